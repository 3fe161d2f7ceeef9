//! The ceiling: a consumer that acknowledges every event, counts it, and does nothing else. It asks
//! for events as Backstop does, as raw bytes, so that the sidecar has the same work.
//!
//! `APP_PORT` says where it listens, `BENCH_BULK=64` asks for bulk delivery; OnInvoke answers with
//! the number of events so far.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context as _;
use dapr::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::app_callback_server::{AppCallback, AppCallbackServer};
use tonic::{Request, Response, Status};

use load::event::{PUBSUB, TOPIC};

/// How long the sidecar waits for a batch to fill: Backstop's default.
const BULK_AWAIT_MS: i32 = 10;

struct Nothing {
    count: AtomicU64,
    bulk: Option<i32>,
}

#[tonic::async_trait]
impl AppCallback for Nothing {
    async fn list_topic_subscriptions(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::ListTopicSubscriptionsResponse>, Status> {
        let subscription = api::TopicSubscription {
            pubsub_name: PUBSUB.to_owned(),
            topic: TOPIC.to_owned(),
            metadata: [("rawPayload".to_owned(), "true".to_owned())].into(),
            bulk_subscribe: self.bulk.map(|messages| api::BulkSubscribeConfig {
                enabled: true,
                max_messages_count: messages,
                max_await_duration_ms: BULK_AWAIT_MS,
            }),
            ..Default::default()
        };
        let subscriptions = vec![subscription];
        Ok(Response::new(api::ListTopicSubscriptionsResponse { subscriptions }))
    }

    async fn on_topic_event(
        &self,
        _: Request<api::TopicEventRequest>,
    ) -> Result<Response<api::TopicEventResponse>, Status> {
        self.count.fetch_add(1, Relaxed);
        Ok(Response::new(api::TopicEventResponse::default()))
    }

    async fn on_bulk_topic_event(
        &self,
        request: Request<api::TopicEventBulkRequest>,
    ) -> Result<Response<api::TopicEventBulkResponse>, Status> {
        let entries = request.into_inner().entries;
        self.count.fetch_add(entries.len() as u64, Relaxed);
        let statuses = entries
            .into_iter()
            .map(|entry| api::TopicEventBulkResponseEntry { entry_id: entry.entry_id, status: 0 });
        Ok(Response::new(api::TopicEventBulkResponse { statuses: statuses.collect() }))
    }

    async fn on_invoke(
        &self,
        _: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let count = self.count.load(Relaxed).to_string().into_bytes();
        let data = prost_types::Any { value: count, ..Default::default() };
        Ok(Response::new(InvokeResponse { data: Some(data), ..Default::default() }))
    }

    async fn list_input_bindings(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::ListInputBindingsResponse>, Status> {
        Ok(Response::new(api::ListInputBindingsResponse { bindings: Vec::new() }))
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

/// On one thread: it was the cheapest.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let port: u16 = std::env::var("APP_PORT").context("APP_PORT is not set")?.parse()?;
    let bulk = std::env::var("BENCH_BULK").ok().map(|text| text.parse()).transpose()?;
    let nothing = Nothing { count: AtomicU64::new(0), bulk };
    tonic::transport::Server::builder()
        .max_concurrent_streams(4096)
        .add_service(AppCallbackServer::new(nothing))
        .serve(SocketAddr::from(([127, 0, 0, 1], port)))
        .await?;
    Ok(())
}
