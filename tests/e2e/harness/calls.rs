//! The sidecar's part played by hand: deliveries in exactly the form that a raw subscription's
//! have, at a moment the test chooses.

use std::time::Duration;

use dapr::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use dapr::dapr::proto::runtime::v1::topic_event_bulk_request_entry::Event;
use dapr::dapr::proto::runtime::v1::{
    TopicEventBulkRequest, TopicEventBulkRequestEntry, TopicEventRequest, TopicEventResponse,
};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::{DEAD, PUBSUB, TOPIC, World};

/// The answer that takes an event off the broker.
pub const SUCCESS: i32 = 0;
/// The answer that has the sidecar call again.
pub const RETRY: i32 = 1;

impl World {
    /// Delivers an event's bytes on the subscribed topic; in bulk, in a batch of its own.
    pub async fn deliver(&self, data: &[u8]) -> Result<i32, Status> {
        if self.is_bulk {
            return self
                .call_batch(Request::new(batch(&[data])))
                .await
                .map(|mut all| all.remove(0));
        }
        self.deliver_to(PUBSUB, TOPIC, data).await
    }

    /// Delivers a batch on the subscribed topic, and says what each event of it is answered.
    pub async fn deliver_batch(&self, data: &[&[u8]]) -> Result<Vec<i32>, Status> {
        self.call_batch(Request::new(batch(data))).await
    }

    /// The same, and says how long it will wait.
    pub async fn deliver_batch_within(
        &self,
        patience: Duration,
        data: &[&[u8]],
    ) -> Result<Vec<i32>, Status> {
        let mut request = Request::new(batch(data));
        request.set_timeout(patience);
        self.call_batch(request).await
    }

    /// Delivers an event's bytes on the dead-letter topic.
    pub async fn deliver_dead(&self, data: &[u8]) -> Result<i32, Status> {
        self.deliver_to(&format!("{PUBSUB}-dead"), DEAD, data).await
    }

    /// Delivers an event's bytes on any topic, under an envelope id of its own, as each delivery
    /// of a raw subscription has (components-contrib v1.18.3, `pubsub/envelope.go`).
    pub async fn deliver_to(&self, pubsub: &str, topic: &str, data: &[u8]) -> Result<i32, Status> {
        self.call(Request::new(envelope(pubsub, topic, data))).await
    }

    /// Delivers an event's bytes and says how long it will wait, as a sidecar with a timeout does.
    pub async fn deliver_within(&self, patience: Duration, data: &[u8]) -> Result<i32, Status> {
        if self.is_bulk {
            let answers = self.deliver_batch_within(patience, &[data]).await;
            return answers.map(|mut all| all.remove(0));
        }
        let mut request = Request::new(envelope(PUBSUB, TOPIC, data));
        request.set_timeout(patience);
        self.call(request).await
    }

    /// Delivers an event's bytes and cancels the call after `patience`, which it does not announce.
    pub async fn deliver_and_cancel(&self, patience: Duration, data: &[u8]) {
        let answered = tokio::time::timeout(patience, self.deliver(data)).await;
        assert!(answered.is_err(), "answered before it was cancelled: {answered:?}");
    }

    async fn call(&self, request: Request<TopicEventRequest>) -> Result<i32, Status> {
        let answer = self.client().await?.on_topic_event(request).await?;
        let TopicEventResponse { status } = answer.into_inner();
        Ok(status)
    }

    async fn call_batch(
        &self,
        request: Request<TopicEventBulkRequest>,
    ) -> Result<Vec<i32>, Status> {
        let sent: Vec<String> =
            request.get_ref().entries.iter().map(|entry| entry.entry_id.clone()).collect();
        let answer = self.client().await?.on_bulk_topic_event(request).await?.into_inner();
        let (answered, statuses): (Vec<String>, Vec<i32>) =
            answer.statuses.into_iter().map(|one| (one.entry_id, one.status)).unzip();
        assert_eq!(answered, sent, "none is left unanswered");
        Ok(statuses)
    }

    async fn client(&self) -> Result<AppCallbackClient<Channel>, Status> {
        let endpoint = format!("http://127.0.0.1:{}", self.ports.app_called);
        let client = AppCallbackClient::connect(endpoint).await;
        client.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// A batch as a raw subscription in bulk has it: the broker's bytes (dapr v1.18.2,
/// `pkg/runtime/pubsub/subscriptions.go`, `FetchEntry`).
fn batch(data: &[&[u8]]) -> TopicEventBulkRequest {
    let entry = |data: &&[u8]| TopicEventBulkRequestEntry {
        entry_id: uuid::Uuid::new_v4().to_string(),
        event: Some(Event::Bytes(data.to_vec())),
        ..TopicEventBulkRequestEntry::default()
    };
    TopicEventBulkRequest {
        id: uuid::Uuid::new_v4().to_string(),
        entries: data.iter().map(entry).collect(),
        topic: TOPIC.to_owned(),
        pubsub_name: PUBSUB.to_owned(),
        r#type: "com.dapr.event.sent.bulk".to_owned(),
        ..TopicEventBulkRequest::default()
    }
}

fn envelope(pubsub: &str, topic: &str, data: &[u8]) -> TopicEventRequest {
    TopicEventRequest {
        id: uuid::Uuid::new_v4().to_string(),
        source: "Dapr".to_owned(),
        r#type: "com.dapr.event.sent".to_owned(),
        spec_version: "1.0".to_owned(),
        data_content_type: "application/octet-stream".to_owned(),
        data: data.to_vec(),
        topic: topic.to_owned(),
        pubsub_name: pubsub.to_owned(),
        path: String::new(),
        extensions: None,
    }
}
