-- What an event is about: the same row for every consumer. No unique key on the event, so that a
-- doubled effect shows.
CREATE TABLE bench_order (
    id       INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL,
    customer TEXT NOT NULL,
    cents    INTEGER NOT NULL,
    note     TEXT NOT NULL
);
