//! A straightforward consumer: tonic, the `dapr` crate's generated service and sqlx, one database
//! transaction an event (dedup row, business row, outbox row). Settings: README.md.

mod relay;
mod store;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use dapr::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::app_callback_server::{AppCallback, AppCallbackServer};
use dapr::dapr::proto::runtime::v1::topic_event_response::TopicEventResponseStatus;
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status};

use store::{Store, Write};

pub const PUBSUB: &str = "benchpubsub";
const TOPIC: &str = "bench";
pub const TOPIC_OUT: &str = "bench-out";

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

struct Consumer {
    store: Store,
    park: Option<Duration>,
    failed: Mutex<HashMap<String, u32>>,
}

impl Consumer {
    async fn handle(&self, event: api::TopicEventRequest) -> anyhow::Result<()> {
        if let Some(park) = self.park {
            tokio::time::sleep(park).await;
        }
        let order: Placed = match serde_json::from_slice(&event.data) {
            Ok(order) => order,
            Err(_) => {
                return self.store.quarantine(&event.id, "data_not_decodable", &event.data).await;
            }
        };
        anyhow::ensure!(!self.fails_again(&order), "a dependency is away");
        let key = digest(&[TOPIC.as_bytes(), event.source.as_bytes(), event.id.as_bytes()]);
        let message_id = hex(&digest(&[&key, b"out"]));
        let message = serde_json::json!({
            "specversion": "1.0",
            "id": message_id,
            "source": "bench-consumer",
            "type": "bench.order.accepted.v1",
            "datacontenttype": "application/json",
            "data": { "orderId": order.order_id, "cents": order.cents },
        });
        let write = Write {
            key,
            fingerprint: digest(&[event.r#type.as_bytes(), &event.data]),
            event_id: order.order_id,
            customer: order.customer,
            cents: order.cents,
            note: order.note,
            message_id,
            content: serde_json::to_vec(&message)?,
        };
        self.store.commit(&write).await
    }

    fn fails_again(&self, order: &Placed) -> bool {
        if order.failures == 0 {
            return false;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let times = failed.entry(order.order_id.clone()).or_default();
        *times += 1;
        *times <= order.failures
    }
}

/// Sixteen bytes that stand for these fields, each with its length before it.
fn digest(fields: &[&[u8]]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    hash.finalize()[..16].to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tonic::async_trait]
impl AppCallback for Consumer {
    async fn list_topic_subscriptions(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::ListTopicSubscriptionsResponse>, Status> {
        let subscription = api::TopicSubscription {
            pubsub_name: PUBSUB.to_owned(),
            topic: TOPIC.to_owned(),
            ..Default::default()
        };
        let subscriptions = vec![subscription];
        Ok(Response::new(api::ListTopicSubscriptionsResponse { subscriptions }))
    }

    async fn on_topic_event(
        &self,
        request: Request<api::TopicEventRequest>,
    ) -> Result<Response<api::TopicEventResponse>, Status> {
        let status = match self.handle(request.into_inner()).await {
            Ok(()) => TopicEventResponseStatus::Success,
            Err(_) => TopicEventResponseStatus::Retry,
        };
        Ok(Response::new(api::TopicEventResponse { status: status as i32 }))
    }

    async fn on_bulk_topic_event(
        &self,
        _: Request<api::TopicEventBulkRequest>,
    ) -> Result<Response<api::TopicEventBulkResponse>, Status> {
        Err(Status::unavailable("single deliveries only"))
    }

    async fn list_input_bindings(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::ListInputBindingsResponse>, Status> {
        Ok(Response::new(api::ListInputBindingsResponse { bindings: Vec::new() }))
    }

    async fn on_invoke(
        &self,
        _: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        Err(Status::not_found("no methods"))
    }

    async fn on_binding_event(
        &self,
        _: Request<api::BindingEventRequest>,
    ) -> Result<Response<api::BindingEventResponse>, Status> {
        Err(Status::failed_precondition("no bindings"))
    }

    async fn on_job_event(
        &self,
        _: Request<api::JobEventRequest>,
    ) -> Result<Response<api::JobEventResponse>, Status> {
        Err(Status::failed_precondition("no jobs"))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("STORE_URL").context("STORE_URL is not set")?;
    let port: u16 = std::env::var("APP_PORT").context("APP_PORT is not set")?.parse()?;
    let store = Store::open(&url).await?;
    if std::env::var("RELAY").is_ok_and(|relay| relay == "1") {
        let sidecar = std::env::var("DAPR_GRPC_PORT").context("DAPR_GRPC_PORT is not set")?;
        tokio::spawn(relay::run(store.clone(), format!("http://127.0.0.1:{sidecar}")));
    }
    let park = std::env::var("BENCH_PARK_MS").ok().and_then(|text| text.parse().ok());
    let consumer =
        Consumer { store, park: park.map(Duration::from_millis), failed: Mutex::default() };
    tonic::transport::Server::builder()
        .max_concurrent_streams(4096)
        .add_service(AppCallbackServer::new(consumer))
        .serve(SocketAddr::from(([127, 0, 0, 1], port)))
        .await?;
    Ok(())
}
