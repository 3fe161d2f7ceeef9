//! placeholder
mod backoff;
mod cli;
mod clock;
mod config;
mod consumer;
mod custody;
mod effect;
mod event;
mod exception;
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
    SidecarSettings, StoreUrl, TelemetrySettings,
};
pub use custody::Limits;
pub use effect::{
    Effects, InvalidExtensionName, Message, Statement, Value, insert, json, sql, upsert,
};
pub use event::{Event, Fingerprint, Malformed, MessageKey, Stored};
pub use exception::{Blocked, Case, ExceptionError, Payload, Redriven};
pub use handler::{Context, HandlerError, Tx};
pub use outcome::{CODE_BYTES_MAX, Category, Code, reason};
pub use service::Service;
pub use store::{
    AppMigration, Attempt, AttemptKind, AuditEntry, CaseFilter, CaseStatus, OpenAs, Store,
    StoreError,
};
pub use subscription::{Envelope, InteractiveHandler, OutsideCall, Subscription};
pub use telemetry::Telemetry;
