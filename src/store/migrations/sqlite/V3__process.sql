-- How the latest service ended: one row. 'serving' at a start means that it never said goodbye.
CREATE TABLE process (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    state TEXT NOT NULL CHECK (state IN ('serving', 'ended'))
) STRICT;

INSERT INTO process (only, state) VALUES (1, 'ended');
