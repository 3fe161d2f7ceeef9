-- Every process that serves, under a lease it renews. One that is 'serving' past its lease never
-- said goodbye.
CREATE TABLE process (
    id          TEXT PRIMARY KEY,
    state       TEXT NOT NULL CHECK (state IN ('serving', 'ended', 'crashed')),
    lease_until BIGINT NOT NULL
) WITH (fillfactor = 80);
