-- Keys of messages whose effect has committed: the dedup memory.
CREATE TABLE inbox (
    key          BLOB PRIMARY KEY,
    fingerprint  BLOB NOT NULL,
    committed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each message in trouble, or claimed before it is handled (src/custody.rs).
CREATE TABLE message (
    key             BLOB PRIMARY KEY,
    state           TEXT NOT NULL CHECK (state IN
                      ('retrying', 'recovering', 'running', 'quarantined', 'redriving', 'closed')),
    run             INTEGER NOT NULL,
    lease_until     INTEGER,
    due_at          INTEGER,
    attempts        INTEGER NOT NULL,
    recoveries      INTEGER NOT NULL,
    never_attempted INTEGER NOT NULL,
    live_claim      INTEGER NOT NULL,
    once            INTEGER NOT NULL,
    first_seen_at   INTEGER NOT NULL,
    changed_at      INTEGER NOT NULL,
    fingerprint     BLOB NOT NULL,
    subscription    TEXT NOT NULL,
    pubsub          TEXT NOT NULL,
    topic           TEXT NOT NULL,
    source          TEXT NOT NULL,
    event_id        TEXT NOT NULL,
    type            TEXT NOT NULL,
    subject         TEXT,
    traceparent     TEXT,
    attributes      TEXT,
    body            BLOB NOT NULL
) STRICT;

-- What has to be done when: recoveries and guard times, then leases that ran out.
CREATE INDEX message_due ON message (state, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX message_lease ON message (lease_until) WHERE lease_until IS NOT NULL;

-- Every recorded attempt of a message that has a row or a case.
CREATE TABLE attempt (
    key  BLOB NOT NULL,
    n    INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('live', 'recovery', 'redrive')),
    code TEXT NOT NULL,
    PRIMARY KEY (key, n)
) STRICT, WITHOUT ROWID;

-- Cases. At most one unfinished case a message.
CREATE TABLE exception (
    id           TEXT PRIMARY KEY,
    key          BLOB NOT NULL,
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
    sightings    INTEGER NOT NULL,
    owner        TEXT,
    review_by    INTEGER NOT NULL,
    opened_at    INTEGER NOT NULL,
    changed_at   INTEGER NOT NULL,
    closed_note  TEXT,
    redrive_requested_at INTEGER,
    redrive_requested_by TEXT
) STRICT;

CREATE UNIQUE INDEX exception_unfinished ON exception (key) WHERE status IN ('open', 'redriving');
CREATE INDEX exception_key ON exception (key);
CREATE INDEX exception_status ON exception (status, opened_at);
CREATE INDEX exception_redrive ON exception (redrive_requested_at)
    WHERE redrive_requested_at IS NOT NULL;

-- Every act on a case, by whom.
CREATE TABLE audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           INTEGER NOT NULL,
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL,
    exception_id TEXT NOT NULL,
    detail       TEXT
) STRICT;

CREATE INDEX audit_exception ON audit (exception_id, id);

-- Messages to publish: an append-only log. AUTOINCREMENT, so that a number is never given twice
-- and, one writer committing serially, none is left out.
CREATE TABLE outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    pubsub     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX outbox_topic ON outbox (pubsub, topic, seq);

-- How far each topic of the log has been published.
CREATE TABLE relay_cursor (
    pubsub TEXT NOT NULL,
    topic  TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (pubsub, topic)
) STRICT, WITHOUT ROWID;

-- Migrations of the application's own tables, by name.
CREATE TABLE app_migration (
    name       TEXT PRIMARY KEY,
    checksum   BLOB NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
