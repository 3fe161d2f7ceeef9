-- Logs of the outbox: a log belongs to one process, which alone appends to it. SQLite has one
-- process, so one log.
CREATE TABLE outbox_log (
    id       INTEGER PRIMARY KEY,
    owner    TEXT NOT NULL,
    last_seq INTEGER NOT NULL
) STRICT;

INSERT INTO outbox_log (id, owner, last_seq)
SELECT 1, '', coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0);

CREATE TABLE outbox_in_logs (
    log        INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    pubsub     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (log, seq)
) STRICT;

INSERT INTO outbox_in_logs SELECT 1, seq, pubsub, topic, message_id, content, created_at FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_in_logs RENAME TO outbox;
CREATE INDEX outbox_topic ON outbox (log, pubsub, topic, seq);

CREATE TABLE relay_cursor_in_logs (
    log    INTEGER NOT NULL,
    pubsub TEXT NOT NULL,
    topic  TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (log, pubsub, topic)
) STRICT, WITHOUT ROWID;

INSERT INTO relay_cursor_in_logs SELECT 1, pubsub, topic, seq FROM relay_cursor;
DROP TABLE relay_cursor;
ALTER TABLE relay_cursor_in_logs RENAME TO relay_cursor;
