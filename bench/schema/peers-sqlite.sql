-- The peers' inbox and outbox: Backstop's columns and indexes (src/store/migrations/sqlite).
CREATE TABLE inbox (
    key          BLOB PRIMARY KEY,
    fingerprint  BLOB NOT NULL,
    committed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    pubsub     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX outbox_topic ON outbox (pubsub, topic, seq);

-- What can never be handled, instead of Backstop's cases.
CREATE TABLE exception (
    event_id TEXT PRIMARY KEY,
    reason   TEXT NOT NULL,
    body     BLOB NOT NULL
);
