-- Logs of the outbox: a log belongs to one process, which alone appends to it. The log of a process
-- that is gone is adopted by another, with its unpublished messages.
CREATE TABLE outbox_log (
    id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner    TEXT NOT NULL,
    last_seq BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Messages to publish, append-only.
CREATE TABLE outbox (
    log        BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    pubsub     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    content    BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (log, seq)
);

CREATE INDEX outbox_topic ON outbox (log, pubsub, topic, seq);

-- How far each topic of each log has been published.
CREATE TABLE relay_cursor (
    log    BIGINT NOT NULL,
    pubsub TEXT NOT NULL,
    topic  TEXT NOT NULL,
    seq    BIGINT NOT NULL,
    PRIMARY KEY (log, pubsub, topic)
) WITH (fillfactor = 50);
