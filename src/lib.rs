//! Backstop stands on the consuming side of [Dapr](https://dapr.io) pub/sub and makes at-least-once
//! delivery safe: every event is decoded, deduplicated, validated and handled, its effects commit
//! together with the record that it was handled, and from its first failure on it is in custody
//! until its effect has committed or a person has closed it.
//!
//! # A consumer, step by step
//!
//! **The event.** Any type that deserialises from the event's JSON data. Money stays text.
//!
//! ```
//! #[derive(serde::Deserialize)]
//! #[serde(rename_all = "camelCase")]
//! struct Placed {
//!     order_id: String,
//!     total: String,
//! }
//! ```
//!
//! **The handler.** An ordinary async function from the event and a [`Context`] to [`Effects`]:
//! what is to be written and published, as data. The store commits the effects, the outgoing
//! messages and the record of the event in one transaction, or none of them.
//!
//! ```
//! use backstop::{Code, Context, Effects, HandlerError, Message, insert};
//! # #[derive(serde::Deserialize)]
//! # #[serde(rename_all = "camelCase")]
//! # struct Placed { order_id: String, total: String }
//!
//! const ALREADY_PLACED: Code = Code::new("order_already_placed");
//!
//! async fn place(order: Placed, _context: Context) -> Result<Effects, HandlerError> {
//!     let accepted = serde_json::json!({ "orderId": order.order_id });
//!     let row = insert("shop_order", [
//!         ("id", order.order_id.into()),
//!         ("total", order.total.into()),
//!     ]);
//!     Ok(Effects::new()
//!         .write(row.or_reject(ALREADY_PLACED))
//!         .publish(Message::new("order-accepted", "shop.order.accepted.v1", accepted)))
//! }
//! ```
//!
//! What a handler returns decides what happens next:
//!
//! | it returns | then |
//! |---|---|
//! | `Ok(effects)` | everything commits and the sidecar is told SUCCESS |
//! | any error by `?`, or [`HandlerError::transient`] | nothing commits; the failure and the event are written down; the sidecar retries, and after it the store recovers the event by itself, under a cap |
//! | [`HandlerError::reject`] | a case is opened with your code; no retry |
//! | a panic, or too much time | as a transient error |
//!
//! **Its test** needs no database and no sidecar:
//!
//! ```
//! # use backstop::{Code, Context, Effects, HandlerError, insert};
//! # #[derive(serde::Deserialize)]
//! # #[serde(rename_all = "camelCase")]
//! # struct Placed { order_id: String, total: String }
//! # async fn place(order: Placed, _context: Context) -> Result<Effects, HandlerError> {
//! #     Ok(Effects::new().write(insert("shop_order", [("id", order.order_id.into()), ("total", order.total.into())])))
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let data = serde_json::json!({ "orderId": "1001", "total": "42.00" });
//! let event = backstop::Event::json("e-1", "/shop", "shop.order.placed.v1", &data)?;
//! let effects = place(serde_json::from_value(data)?, Context::detached(event)).await.expect("it is a good order");
//! let row = insert("shop_order", [("id", "1001".into()), ("total", "42.00".into())]);
//! assert_eq!(effects, Effects::new().write(row));
//! # Ok(())
//! # }
//! ```
//!
//! **The service.** Subscriptions with their handlers, and the tables the effects write. [`main`]
//! is the whole program: `serve` behind the sidecar, and the operators' commands.
//!
//! ```no_run
//! # use backstop::{Context, Effects, HandlerError};
//! # #[derive(serde::Deserialize)]
//! # struct Placed {}
//! # async fn place(_order: Placed, _context: Context) -> Result<Effects, HandlerError> { Ok(Effects::new()) }
//! use backstop::{Service, Subscription};
//!
//! fn main() -> std::process::ExitCode {
//!     backstop::main(|_config| {
//!         Ok(Service::new()
//!             .migration("0001_shop_order", "CREATE TABLE shop_order (id TEXT PRIMARY KEY, total TEXT)")
//!             .subscribe(Subscription::new("orders").on("shop.order.placed.v1", place)))
//!     })
//! }
//! ```
//!
//! Put it behind a sidecar with `dapr run --app-id shop --app-port 50051 --app-protocol grpc
//! --resources-path components/redis -- cargo run -- serve`, and it runs.
//!
//! # When effects are not enough
//!
//! - A handler that must read, decide and write in one transaction takes the interactive form,
//!   [`Subscription::on_tx`] and [`Tx`].
//! - A handler that calls another service says so with [`Subscription::calls_outside`]; its event is
//!   then claimed on disk before the call, and [`OutsideCall`] says what a lost answer means.
//! - To embed the consumer in a program of your own, call [`Service::serve`] with a [`Config`] and a
//!   shutdown future instead of [`main`].
//!
//! # What is not promised
//!
//! Recovery handles an event later than its neighbours, so events of one key can be handled in
//! another order than they were published. What goes out is published at least once, under an id
//! that stays the same. A process paused for longer than its lease can make an outside call twice.

mod backoff;
mod cli;
mod clock;
mod config;
mod consumer;
mod custody;
mod effect;
mod event;
mod exception;
mod failpoint;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod handler;
mod observe;
pub mod orders;
mod outcome;
mod recovery;
mod relay;
mod service;
mod sidecar;
mod store;
mod subscription;
mod telemetry;

pub use backoff::Backoff;
pub use cli::main;
pub use clock::{Clock, Timestamp};
pub use config::{
    AppTokenMode, Config, ConfigError, DeliveryLimits, LogFormat, Origin, Problem, Setting,
    SidecarSettings, TelemetrySettings,
};
pub use custody::Limits;
pub use effect::{
    Effects, InvalidExtensionName, Message, Statement, Value, insert, json, sql, upsert,
};
pub use event::{
    ATTRIBUTE_BYTES_MAX, BATCH_EVENTS_MAX, DEPTH_MAX, Event, Fingerprint, ID_BYTES_MAX, Malformed,
    MessageKey, Stored,
};
pub use exception::{Blocked, Case, ExceptionError, Payload, Redriven};
pub use handler::{Context, HandlerError, Tx};
pub use outcome::{CODE_BYTES_MAX, Category, Code, reason};
pub use service::Service;
pub use store::{
    AppMigration, Attempt, AttemptKind, AuditEntry, CaseFilter, CaseStatus, OpenAs,
    PostgresSettings, PostgresUrl, PostgresUrlError, Retention, Store, StoreError, StoreUrl,
};
pub use subscription::{Bulk, Envelope, InteractiveHandler, OutsideCall, Subscription};
pub use telemetry::Telemetry;

/// Every metric and log event of this crate: the contract that `docs/TELEMETRY.md` shows.
pub mod catalog {
    pub use crate::observe::{EVENTS, Event, Kind, METRICS, Metric, OTHER};
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
