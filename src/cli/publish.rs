//! `backstop publish`.

use std::io::Read;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::out;
use crate::clock::Clock;
use crate::config::Config;
use crate::sidecar::client::Client;

/// The largest event this command reads.
const EVENT_BYTES_MAX: u64 = 64 << 20;

#[derive(Args)]
#[command(
    after_help = "Example:\n  backstop publish --topic orders --type shop.order.placed.v1 \\\n    --data '{\"orderId\": \"1001\", \"total\": \"42.00\"}'\n\n\
    The same --id and --source twice is the same event twice: the second is a duplicate."
)]
pub(super) struct Arguments {
    /// The topic to publish to
    #[arg(long)]
    topic: String,
    /// The pub/sub component [default: BACKSTOP_PUBSUB]
    #[arg(long)]
    pubsub: Option<String>,
    /// The event's type
    #[arg(long = "type", default_value = "com.dapr.event.sent")]
    ty: String,
    /// The event's id [default: a new one]
    #[arg(long)]
    id: Option<String>,
    /// The event's source
    #[arg(long, default_value = "backstop-cli")]
    source: String,
    /// The event's subject
    #[arg(long)]
    subject: Option<String>,
    /// The data: JSON text, or `-` to read it from standard input
    #[arg(long)]
    data: String,
}

pub(super) async fn run(arguments: Arguments, config: &Config) -> anyhow::Result<()> {
    let text = if arguments.data == "-" {
        let mut text = String::new();
        std::io::stdin()
            .lock()
            .take(EVENT_BYTES_MAX)
            .read_to_string(&mut text)
            .context("standard input is not UTF-8 text")?;
        text
    } else {
        arguments.data
    };
    // Kept as text, so that every digit of a large number stays.
    let data: Box<serde_json::value::RawValue> =
        serde_json::from_str(&text).context("--data is not JSON")?;
    let id = arguments.id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let mut attributes = Map::new();
    let mut set =
        |name: &str, value: &str| drop(attributes.insert(name.to_owned(), Json::from(value)));
    set("specversion", "1.0");
    set("id", &id);
    set("source", &arguments.source);
    set("type", &arguments.ty);
    set("time", &Clock::System.now().to_string());
    set("datacontenttype", "application/json");
    if let Some(subject) = &arguments.subject {
        set("subject", subject);
    }
    let mut event = Json::Object(attributes).to_string();
    event.pop();
    event.push_str(",\"data\":");
    event.push_str(data.get());
    event.push('}');

    let pubsub = arguments.pubsub.as_deref().unwrap_or(&config.pubsub);
    let client = Client::new(
        &config.sidecar.grpc_endpoint,
        config.sidecar.dapr_api_token.as_ref(),
        config.delivery.decode_bytes_max,
    )?;
    client
        .publish_bytes(pubsub, &arguments.topic, event.into_bytes(), "application/cloudevents+json", None)
        .await
        .map_err(|status| {
            anyhow::anyhow!(
                "the sidecar at {} did not take the event: {}; is it running, and is `{pubsub}` one of its components?",
                config.sidecar.grpc_endpoint,
                status.message()
            )
        })?;
    out(&format!("{id}\n"))
}
