-- Gates: one for each (subscription, code) that has failed since the last success (src/gate.rs).
CREATE TABLE gate (
    subscription  TEXT NOT NULL,
    code          TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('counting', 'closed', 'opening')),
    since         INTEGER NOT NULL,
    held          INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    let_through   INTEGER NOT NULL,
    awaited       INTEGER NOT NULL,
    next_probe_at INTEGER,
    PRIMARY KEY (subscription, code)
) STRICT, WITHOUT ROWID;

-- The different messages a gate has counted since the last success; at most five each.
CREATE TABLE gate_failure (
    subscription TEXT NOT NULL,
    code         TEXT NOT NULL,
    key          BLOB NOT NULL,
    PRIMARY KEY (subscription, code, key)
) STRICT, WITHOUT ROWID;

-- The gate a message failed at last, and when it was last a probe. A message that waits at a closed
-- gate is `recovering` without a due time.
ALTER TABLE message ADD COLUMN gate TEXT;
ALTER TABLE message ADD COLUMN probed_at INTEGER;

CREATE INDEX message_waiting ON message (subscription, gate, probed_at, first_seen_at)
    WHERE state = 'recovering' AND due_at IS NULL;

-- Acts on gates, by whom.
CREATE TABLE gate_audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           INTEGER NOT NULL,
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL,
    subscription TEXT NOT NULL,
    code         TEXT NOT NULL
) STRICT;
