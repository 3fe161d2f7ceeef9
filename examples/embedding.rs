//! The smallest consumer: one handler, one table. Run it with `cargo run --example embedding serve`
//! behind a sidecar; its operator commands come with it (`... embedding exceptions list`).

use std::process::ExitCode;

use backstop::{Context, Effects, HandlerError, Service, Subscription, insert};

#[derive(serde::Deserialize)]
struct Paid {
    invoice: String,
    cents: i64,
}

async fn book(paid: Paid, context: Context) -> Result<Effects, HandlerError> {
    let row = insert(
        "payments",
        [
            ("event_id", context.event().id().into()),
            ("invoice", paid.invoice.into()),
            ("cents", paid.cents.into()),
        ],
    );
    Ok(Effects::new().write(row))
}

fn main() -> ExitCode {
    backstop::main(|_config| {
        let payments = Subscription::new("payments").on("shop.payment.made.v1", book);
        let table = "CREATE TABLE payments (event_id TEXT, invoice TEXT, cents INTEGER) STRICT";
        Ok(Service::new().migration("0001_payments", table).subscribe(payments))
    })
}
