-- The peers' inbox and outbox. The inbox is Backstop's; the outbox has its columns, but only the index
-- that the peers' relay needs, which is one less than Backstop's. Times are timestamps instead of
-- milliseconds: eight bytes either way.
CREATE TABLE inbox (
    key          BYTEA PRIMARY KEY,
    fingerprint  BYTEA NOT NULL,
    committed_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE outbox (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pubsub     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    content    BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

-- What can never be handled, instead of Backstop's cases.
CREATE TABLE exception (
    event_id TEXT PRIMARY KEY,
    reason   TEXT NOT NULL,
    body     BYTEA NOT NULL
);
