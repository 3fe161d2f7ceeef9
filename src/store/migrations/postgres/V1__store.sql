-- Keys of messages whose effect has committed: the dedup memory.
CREATE TABLE inbox (
    key          BYTEA PRIMARY KEY,
    fingerprint  BYTEA NOT NULL,
    committed_at BIGINT NOT NULL
);

-- One row for each message in trouble, or claimed before it is handled (src/custody.rs).
CREATE TABLE message (
    key             BYTEA PRIMARY KEY,
    state           TEXT NOT NULL CHECK (state IN
                      ('retrying', 'recovering', 'running', 'quarantined', 'redriving', 'closed')),
    run             BIGINT NOT NULL,
    lease_until     BIGINT,
    due_at          BIGINT,
    attempts        BIGINT NOT NULL,
    recoveries      BIGINT NOT NULL,
    never_attempted BOOLEAN NOT NULL,
    live_claim      BOOLEAN NOT NULL,
    once            BOOLEAN NOT NULL,
    first_seen_at   BIGINT NOT NULL,
    changed_at      BIGINT NOT NULL,
    fingerprint     BYTEA NOT NULL,
    subscription    TEXT NOT NULL,
    pubsub          TEXT NOT NULL,
    topic           TEXT NOT NULL,
    source          TEXT NOT NULL,
    event_id        TEXT NOT NULL,
    type            TEXT NOT NULL,
    subject         TEXT,
    traceparent     TEXT,
    attributes      TEXT,
    body            BYTEA NOT NULL
) WITH (fillfactor = 80);

-- What has to be done when: recoveries and guard times, then leases that ran out.
CREATE INDEX message_due ON message (state, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX message_lease ON message (lease_until) WHERE lease_until IS NOT NULL;

-- Every recorded attempt of a message that has a row or a case.
CREATE TABLE attempt (
    key  BYTEA NOT NULL,
    n    BIGINT NOT NULL,
    at   BIGINT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('live', 'recovery', 'redrive')),
    code TEXT NOT NULL,
    PRIMARY KEY (key, n)
);

-- Cases. At most one unfinished case a message.
CREATE TABLE exception (
    id           TEXT PRIMARY KEY,
    key          BYTEA NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('open', 'redriving', 'resolved', 'closed')),
    category     TEXT NOT NULL,
    reason       TEXT NOT NULL,
    subscription TEXT NOT NULL,
    pubsub       TEXT NOT NULL,
    topic        TEXT NOT NULL,
    source       TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    type         TEXT NOT NULL,
    subject      TEXT,
    traceparent  TEXT,
    sightings    BIGINT NOT NULL,
    owner        TEXT,
    review_by    BIGINT NOT NULL,
    opened_at    BIGINT NOT NULL,
    changed_at   BIGINT NOT NULL,
    closed_note  TEXT,
    redrive_requested_at BIGINT,
    redrive_requested_by TEXT
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX exception_unfinished ON exception (key) WHERE status IN ('open', 'redriving');
CREATE INDEX exception_key ON exception (key);
CREATE INDEX exception_status ON exception (status, opened_at);
CREATE INDEX exception_redrive ON exception (redrive_requested_at)
    WHERE redrive_requested_at IS NOT NULL;

-- Every act on a case, by whom.
CREATE TABLE audit (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           BIGINT NOT NULL,
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL,
    exception_id TEXT NOT NULL,
    detail       TEXT
);

CREATE INDEX audit_exception ON audit (exception_id, id);

-- Migrations of the application's own tables, by name.
CREATE TABLE app_migration (
    name       TEXT PRIMARY KEY,
    checksum   BYTEA NOT NULL,
    applied_at BIGINT NOT NULL
);
