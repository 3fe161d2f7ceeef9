-- The dedup memory in generations, each emptied as a whole (src/store/memory.rs). What was
-- remembered so far goes into all of them, so that none of it is forgotten too early.
CREATE TABLE inbox_0 (
    key          BYTEA PRIMARY KEY,
    fingerprint  BYTEA NOT NULL,
    committed_at BIGINT NOT NULL
);
CREATE TABLE inbox_1 (LIKE inbox_0 INCLUDING ALL);
CREATE TABLE inbox_2 (LIKE inbox_0 INCLUDING ALL);
CREATE TABLE inbox_3 (LIKE inbox_0 INCLUDING ALL);

INSERT INTO inbox_0 SELECT * FROM inbox;
INSERT INTO inbox_1 SELECT * FROM inbox;
INSERT INTO inbox_2 SELECT * FROM inbox;
INSERT INTO inbox_3 SELECT * FROM inbox;
DROP TABLE inbox;

CREATE VIEW inbox AS
    SELECT key, fingerprint, committed_at FROM inbox_0
    UNION ALL SELECT key, fingerprint, committed_at FROM inbox_1
    UNION ALL SELECT key, fingerprint, committed_at FROM inbox_2
    UNION ALL SELECT key, fingerprint, committed_at FROM inbox_3;

-- What is forgotten in small batches.
CREATE INDEX message_closed ON message (changed_at) WHERE state = 'closed';
CREATE INDEX exception_finished ON exception (changed_at) WHERE status IN ('resolved', 'closed');
