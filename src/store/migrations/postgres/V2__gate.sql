-- Gates: one for each (subscription, code) that has failed since the last success (src/gate.rs).
CREATE TABLE gate (
    subscription  TEXT NOT NULL,
    code          TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('counting', 'closed', 'opening')),
    since         BIGINT NOT NULL,
    held          BOOLEAN NOT NULL,
    failures      BIGINT NOT NULL,
    let_through   BIGINT NOT NULL,
    awaited       BIGINT NOT NULL,
    next_probe_at BIGINT,
    PRIMARY KEY (subscription, code)
) WITH (fillfactor = 80);

-- The different messages a gate has counted since the last success; at most five each.
CREATE TABLE gate_failure (
    subscription TEXT NOT NULL,
    code         TEXT NOT NULL,
    key          BYTEA NOT NULL,
    PRIMARY KEY (subscription, code, key)
);

-- The gate a message failed at last, and when it was last a probe. A message that waits at a closed
-- gate is `recovering` without a due time.
ALTER TABLE message ADD COLUMN gate TEXT;
ALTER TABLE message ADD COLUMN probed_at BIGINT;

CREATE INDEX message_waiting ON message (subscription, gate, probed_at NULLS FIRST, first_seen_at)
    WHERE state = 'recovering' AND due_at IS NULL;

-- Acts on gates, by whom.
CREATE TABLE gate_audit (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           BIGINT NOT NULL,
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL,
    subscription TEXT NOT NULL,
    code         TEXT NOT NULL
);
