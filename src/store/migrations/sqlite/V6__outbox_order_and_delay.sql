-- Messages of one ordering key on a topic leave one after another.
ALTER TABLE outbox ADD COLUMN ordering_key TEXT;

-- Messages that are not to leave yet. They move into a log when they are due.
CREATE TABLE outbox_delayed (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at       INTEGER NOT NULL,
    pubsub       TEXT NOT NULL,
    topic        TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    ordering_key TEXT,
    content      BLOB NOT NULL
) STRICT;

CREATE INDEX outbox_delayed_due ON outbox_delayed (due_at, id);
