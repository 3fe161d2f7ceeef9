CREATE TABLE orders (
    order_id    TEXT PRIMARY KEY,
    total       TEXT NOT NULL,
    currency    TEXT,
    customer_id TEXT,
    event_id    TEXT NOT NULL
);
