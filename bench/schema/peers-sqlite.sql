-- The peers' inbox and outbox. The inbox is Backstop's; the outbox has its columns, but only the index
-- that the peers' relay needs, which is one less than Backstop's.
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

-- What can never be handled, instead of Backstop's cases.
CREATE TABLE exception (
    event_id TEXT PRIMARY KEY,
    reason   TEXT NOT NULL,
    body     BLOB NOT NULL
);
