//! The reference consumer: takes orders, writes a row for each, and says that it was accepted.
//!
//! It uses the public API only. With an inventory service it first reserves the goods there; that
//! destination is idempotent by its contract, so a call whose answer was lost may be repeated.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::{
    Bulk, Code, Context, Effects, HandlerError, Message, OutsideCall, Service, Subscription, insert,
};

/// The event type of an order.
pub const PLACED: &str = "shop.order.placed.v1";
/// The type the sidecar gives to what is published without one, as `dapr publish` does.
const DAPR_DEFAULT: &str = "com.dapr.event.sent";
/// The event type of what is published for an accepted order.
pub const ACCEPTED: &str = "shop.order.accepted.v1";
/// Where accepted orders are published.
pub const ACCEPTED_TOPIC: &str = "order-accepted";
/// What the data of an order has to look like.
pub const SCHEMA: &str = include_str!("orders/placed.v1.schema.json");

const TABLE: &str = include_str!("orders/0001_orders.sql");
/// One call to the inventory, the connection included.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

const ALREADY_PLACED: Code = Code::new("order_already_placed");
const INVENTORY_REJECTED: Code = Code::new("inventory_rejected");
const INVENTORY_UNAVAILABLE: Code = Code::new("inventory_unavailable");
const INVENTORY_UNREACHABLE: Code = Code::new("inventory_unreachable");
const INVENTORY_TIMED_OUT: Code = Code::new("inventory_timed_out");

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Placed {
    order_id: String,
    /// A decimal as text: money is never a float.
    total: String,
    currency: Option<String>,
    customer_id: Option<String>,
    items: Option<Vec<Item>>,
}

#[derive(Debug, Deserialize)]
struct Item {
    sku: String,
    qty: u32,
}

/// The consumer of `orders`, asking the inventory at that base URL if there is one, and the sidecar
/// for many orders in one call if it is to take them in bulk.
///
/// # Errors
/// When no HTTP client can be made.
pub fn service(inventory_url: Option<&str>, in_bulk: bool) -> anyhow::Result<Service> {
    let inventory = match inventory_url {
        Some(url) => Some(Arc::new(Inventory::new(url)?)),
        None => None,
    };
    let call = if inventory.is_some() { OutsideCall::Repeatable } else { OutsideCall::None };
    let place = move |order: Placed, context: Context| place(order, context, inventory.clone());
    let orders = Subscription::new("orders")
        .on(PLACED, place.clone())
        .on(DAPR_DEFAULT, place)
        .schema(PLACED, SCHEMA)
        .schema(DAPR_DEFAULT, SCHEMA)
        .calls_outside(call);
    let orders = if in_bulk { orders.bulk(Bulk::default()) } else { orders };
    Ok(Service::new().migration("0001_orders", TABLE).subscribe(orders))
}

async fn place(
    order: Placed,
    context: Context,
    inventory: Option<Arc<Inventory>>,
) -> Result<Effects, HandlerError> {
    if let Some(inventory) = inventory {
        inventory.reserve(&order, &context).await?;
    }
    let items = order.items.as_ref().map_or(0, Vec::len);
    let accepted = json!({
        "orderId": order.order_id,
        "total": order.total,
        "currency": order.currency,
        "items": items,
    });
    // A customer's orders are heard of in order; without a customer each stands for itself.
    let key = order.customer_id.clone().unwrap_or_else(|| order.order_id.clone());
    let row = insert(
        "orders",
        [
            ("order_id", order.order_id.as_str().into()),
            ("total", order.total.into()),
            ("currency", order.currency.into()),
            ("customer_id", order.customer_id.into()),
            ("event_id", context.event().id().into()),
        ],
    );
    let accepted = Message::new(ACCEPTED_TOPIC, ACCEPTED, accepted);
    Ok(Effects::new()
        .write(row.or_reject(ALREADY_PLACED))
        .publish(accepted.subject(order.order_id).ordering_key(key)))
}

struct Inventory {
    client: reqwest::Client,
    base: reqwest::Url,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
}

impl Inventory {
    fn new(url: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(CALL_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { client, base: url.parse()? })
    }

    /// `PUT {base}/reservations/{orderId}`: 2xx reserves, 409 and 422 reject, anything else may
    /// pass.
    async fn reserve(&self, order: &Placed, context: &Context) -> Result<(), HandlerError> {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("reservations").push(&order.order_id);
        }
        let items: Vec<_> = order
            .items
            .iter()
            .flatten()
            .map(|item| json!({ "sku": item.sku, "qty": item.qty }))
            .collect();
        let request = self
            .client
            .put(url)
            .timeout(CALL_TIMEOUT.min(context.remaining()))
            .header("idempotency-key", context.action_id())
            .json(&json!({ "items": items }));
        let response = request.send().await.map_err(|error| {
            HandlerError::transient(if error.is_timeout() {
                INVENTORY_TIMED_OUT
            } else {
                INVENTORY_UNREACHABLE
            })
        })?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            409 | 422 => {
                // Its code is taken only when it is one; other text must not get into our columns.
                let refusal = response.json::<Refusal>().await.ok();
                let code = refusal.and_then(|refusal| Code::parse(&refusal.code));
                Err(HandlerError::reject(code.unwrap_or(INVENTORY_REJECTED)))
            }
            _ => Err(HandlerError::transient(INVENTORY_UNAVAILABLE)),
        }
    }
}
