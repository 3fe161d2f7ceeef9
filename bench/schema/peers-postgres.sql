-- The peers' inbox and outbox: Backstop's columns. The outbox has no index but its key: the peers'
-- relay needs no other.
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
