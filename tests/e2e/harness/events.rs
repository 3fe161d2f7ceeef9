//! Events to publish.

use serde_json::{Value, json};

/// The source of every event that says nothing else.
pub const SOURCE: &str = "/shop/e2e";
/// The type of an order.
pub const PLACED: &str = "shop.order.placed.v1";

/// The event that places this order; its id is [`event_id`].
pub fn placed(order_id: &str) -> Value {
    json!({
        "specversion": "1.0",
        "id": event_id(order_id),
        "source": SOURCE,
        "type": PLACED,
        "datacontenttype": "application/json",
        "data": { "orderId": order_id, "total": "42.00" },
    })
}

/// The same with other attributes or data; a null takes the attribute away.
pub fn placed_with(order_id: &str, changes: &Value) -> Value {
    let mut event = placed(order_id);
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            event.as_object_mut().unwrap().remove(name);
        } else {
            event[name] = value.clone();
        }
    }
    event
}

/// The id of the event that places this order.
pub fn event_id(order_id: &str) -> String {
    format!("event-{order_id}")
}

/// An event's bytes.
pub fn bytes(event: &Value) -> Vec<u8> {
    event.to_string().into_bytes()
}
