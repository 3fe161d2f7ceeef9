//! The Backstop consumer that is measured: one typed row and one outgoing message an event, by the
//! library's public API and nothing else.
//!
//! Set by the environment, besides Backstop's own settings:
//! - `BENCH_HANDLER=sql` writes the row by a statement of its own instead of typed data, so that no
//!   two events' rows are merged;
//! - `BENCH_PARK_MS=5000` makes each handler wait so long first;
//! - `BENCH_BULK=64` asks for bulk delivery, so many events in a call;
//! - `BENCH_STAMP=1` puts the time of the effect into the message, in microseconds.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backstop::{
    Bulk, Code, Context, Effects, HandlerError, Message, Service, Subscription, insert, sql,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const AWAY: Code = Code::new("bench_away");

const TABLE_SQLITE: &str = include_str!("../../schema/business-sqlite.sql");
const TABLE_POSTGRES: &str = include_str!("../../schema/business-postgres.sql");

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Placed {
    order_id: String,
    customer: String,
    cents: i64,
    /// How often handling this event fails before it succeeds.
    failures: u32,
    note: String,
}

struct Settings {
    own_statement: bool,
    stamped: bool,
    park: Option<Duration>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
    own_statement: std::env::var("BENCH_HANDLER").is_ok_and(|form| form == "sql"),
    stamped: std::env::var("BENCH_STAMP").is_ok_and(|stamp| stamp == "1"),
    park: std::env::var("BENCH_PARK_MS")
        .ok()
        .and_then(|text| text.parse().ok())
        .map(Duration::from_millis),
});

/// How often each transient event has failed so far.
static FAILED: LazyLock<Mutex<HashMap<String, u32>>> = LazyLock::new(Mutex::default);

async fn place(order: Placed, _context: Context) -> Result<Effects, HandlerError> {
    if let Some(park) = SETTINGS.park {
        tokio::time::sleep(park).await;
    }
    if order.failures > 0 && fails_again(&order) {
        return Err(HandlerError::transient(AWAY));
    }
    let mut accepted = serde_json::json!({ "orderId": order.order_id, "cents": order.cents });
    if SETTINGS.stamped {
        accepted["atMicros"] = now_micros().into();
    }
    let row = if SETTINGS.own_statement {
        sql(
            "INSERT INTO bench_order (event_id, customer, cents, note) VALUES ($1, $2, $3, $4)",
            [order.order_id.into(), order.customer.into(), order.cents.into(), order.note.into()],
        )
    } else {
        insert(
            "bench_order",
            [
                ("event_id", order.order_id.into()),
                ("customer", order.customer.into()),
                ("cents", order.cents.into()),
                ("note", order.note.into()),
            ],
        )
    };
    Ok(Effects::new().write(row).publish(Message::new(
        "bench-out",
        "bench.order.accepted.v1",
        accepted,
    )))
}

fn now_micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn fails_again(order: &Placed) -> bool {
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let times = failed.entry(order.order_id.clone()).or_default();
    *times += 1;
    *times <= order.failures
}

fn main() -> ExitCode {
    let on_postgres =
        std::env::var("BACKSTOP_STORE_URL").is_ok_and(|url| url.starts_with("postgres"));
    let table = if on_postgres { TABLE_POSTGRES } else { TABLE_SQLITE };
    let in_one_call = std::env::var("BENCH_BULK").ok().and_then(|text| text.parse().ok());
    backstop::main(move |_config| {
        let mut orders = Subscription::new("bench").on("bench.order.placed.v1", place);
        if let Some(max_messages) = in_one_call {
            orders = orders.bulk(Bulk { max_messages, ..Bulk::default() });
        }
        Ok(Service::new().migration("0001_bench_order", table).subscribe(orders))
    })
}
