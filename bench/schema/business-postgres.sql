-- What an event is about: the same row for every consumer. No unique key on the event, so that a
-- doubled effect shows.
CREATE TABLE bench_order (
    id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id TEXT NOT NULL,
    customer TEXT NOT NULL,
    cents    BIGINT NOT NULL,
    note     TEXT NOT NULL
);
