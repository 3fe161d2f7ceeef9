//! The calls the sidecar makes to us.
//!
//! **Invariants**
//! - [`status_of`] is the only place where an answer is built, from an exhaustive match; the
//!   protocol's default (0) means SUCCESS, so nothing is ever left to a default.
//! - A message in a batch is never answered RETRY and never left unanswered: one that is holds up
//!   its whole topic. It is answered SUCCESS, or the whole call fails and nothing is acknowledged.
//! - `UNIMPLEMENTED` is never answered: the sidecar acknowledges the event and it is gone (dapr
//!   v1.18.2, `pkg/runtime/subscription/postman/grpc/grpc.go`). DROP is never answered.
//! - Every delivery is judged in a task of its own, so a cancelled call leaves nothing half done.

use std::sync::Arc;
use std::time::Duration;

use dapr::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::app_callback_alpha_server::AppCallbackAlpha;
use dapr::dapr::proto::runtime::v1::app_callback_health_check_server::AppCallbackHealthCheck;
use dapr::dapr::proto::runtime::v1::app_callback_server::AppCallback;
use dapr::dapr::proto::runtime::v1::topic_event_response::TopicEventResponseStatus;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::identity::{Identity, is_second_component, second_component};
use super::token::TokenCheck;
use super::wire::{arrival_of, bulk_arrival, grpc_timeout, matches_topic, metadata_of};
use crate::consumer::{Call, Consumer, Origin};
use crate::event::Arrival;
use crate::observe::Lane;
use crate::outcome::Outcome;
use crate::subscription::{Bulk, Envelope, Subscription};

/// How long before the sidecar's deadline an answer is due, so that it still arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(250);
/// How long before that a batch's messages are handed to the store: a quarter of the time there
/// is, at most this.
const HAND_OVER_MARGIN: Duration = Duration::from_secs(2);
/// How long the question for our subscriptions waits for the sidecar's identity; the sidecar
/// itself gives up after about 10 s and then never asks again.
const IDENTITY_WAIT: Duration = Duration::from_secs(8);

/// The gRPC services, over one consumer.
#[derive(Clone)]
pub(crate) struct Callback {
    consumer: Arc<Consumer>,
    /// The component of subscriptions that name none.
    pubsub: Arc<str>,
    identity: watch::Receiver<Option<Arc<Identity>>>,
    deliveries: TaskTracker,
    token: TokenCheck,
    draining: CancellationToken,
}

impl Callback {
    pub(crate) fn new(
        consumer: Arc<Consumer>,
        pubsub: Arc<str>,
        identity: watch::Receiver<Option<Arc<Identity>>>,
        deliveries: TaskTracker,
        draining: CancellationToken,
        token: TokenCheck,
    ) -> Self {
        Self { consumer, pubsub, identity, deliveries, token, draining }
    }

    async fn identity(&self) -> Result<Arc<Identity>, Status> {
        let mut told = self.identity.clone();
        let waited = tokio::time::timeout(IDENTITY_WAIT, told.wait_for(Option::is_some)).await;
        let identity = match waited {
            Ok(Ok(identity)) => identity.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        // An error, never an empty list: the sidecar would take that for "no subscriptions".
        identity.ok_or_else(|| Status::unavailable("the sidecar's own API does not answer yet"))
    }

    /// Which subscription a delivery is for, and on which lane.
    fn addressee(
        &self,
        identity: &Identity,
        pubsub: &str,
        topic: &str,
    ) -> Option<(Arc<Subscription>, Lane)> {
        self.consumer.subscriptions.iter().find_map(|subscription| {
            let own = subscription.pubsub_or(&self.pubsub);
            let by_own = pubsub == own || pubsub.is_empty();
            let lane = if identity.is_dead_letter_topic(topic, subscription.topic_name()) {
                (by_own || is_second_component(pubsub, own)).then_some(Lane::DeadLetter)
            } else {
                (by_own && matches_topic(subscription.topic_name(), topic)).then_some(Lane::Live)
            };
            lane.map(|lane| (Arc::clone(subscription), lane))
        })
    }

    /// Judges one delivery in a task of its own and says what to answer.
    async fn deliver(
        &self,
        call: Call,
        pubsub: &str,
        topic: String,
        arrival: Arrival,
        deadline: Instant,
    ) -> Answer {
        let Some(identity) = self.identity.borrow().clone() else { return Answer::Unavailable };
        let addressee = self.addressee(&identity, pubsub, &topic);
        let origin = self.origin(&identity, addressee.as_ref(), call, pubsub, topic);
        let open = match (call, &addressee) {
            (Call::Bulk, Some((subscription, Lane::Live))) => {
                Some((Arc::clone(subscription), arrival.clone(), origin.clone()))
            }
            (Call::Bulk | Call::Single, _) => None,
        };
        let until = if open.is_some() { hand_over_at(Instant::now(), deadline) } else { deadline };
        let consumer = Arc::clone(&self.consumer);
        let judged = self.deliveries.spawn(async move {
            match addressee {
                Some((subscription, lane)) => {
                    consumer.receive(&subscription, lane, arrival, &origin, until).await
                }
                None => consumer.unknown_topic(arrival, &origin).await,
            }
        });
        let outcomes = self.in_time(until, judged).await;
        let Some((subscription, arrival, origin)) = open.filter(|_| is_open(&outcomes)) else {
            return answer_of(&outcomes, call);
        };
        let consumer = Arc::clone(&self.consumer);
        let handed_over = self
            .deliveries
            .spawn(async move { consumer.hand_over(&subscription, arrival, &origin).await });
        answer_of(&self.in_time(deadline, handed_over).await, call)
    }

    /// What a task comes to until then. It goes on after that, and the next delivery meets what it
    /// has left.
    async fn in_time(&self, until: Instant, task: JoinHandle<Vec<Outcome>>) -> Vec<Outcome> {
        match tokio::time::timeout_at(until, task).await {
            Ok(Ok(outcomes)) => outcomes,
            Err(_) if self.consumer.store.is_healthy() => vec![Outcome::Busy],
            Err(_) | Ok(Err(_)) => vec![Outcome::StoreAway],
        }
    }

    fn origin(
        &self,
        identity: &Identity,
        addressee: Option<&(Arc<Subscription>, Lane)>,
        call: Call,
        pubsub: &str,
        topic: String,
    ) -> Origin {
        let consumer = Arc::clone(&identity.consumer);
        match addressee {
            Some((subscription, lane)) => Origin {
                pubsub: subscription.pubsub_or(&self.pubsub).to_owned(),
                topic: if *lane == Lane::DeadLetter {
                    subscription.topic_name().to_owned()
                } else {
                    topic.clone()
                },
                arrived_on: topic,
                consumer,
                call,
            },
            None => Origin {
                pubsub: pubsub.to_owned(),
                topic: topic.clone(),
                arrived_on: topic,
                consumer,
                call,
            },
        }
    }

    async fn deliver_bulk(
        &self,
        request: Request<api::TopicEventBulkRequest>,
    ) -> Result<Response<api::TopicEventBulkResponse>, Status> {
        self.token.check(request.metadata())?;
        let deadline = self.deadline(request.metadata());
        let shared = metadata_of(request.metadata());
        let bulk = request.into_inner();
        let entries = bulk.entries.into_iter().map(|entry| {
            let (topic, pubsub, shared) = (bulk.topic.clone(), &bulk.pubsub_name, &shared);
            async move {
                let entry_id = entry.entry_id;
                let answer =
                    match bulk_arrival(entry.event, entry.metadata, &entry.content_type, shared) {
                        Some(arrival) => {
                            self.deliver(Call::Bulk, pubsub, topic, arrival, deadline).await
                        }
                        // A placeholder for an entry that the sidecar could not encode: no bytes,
                        // and no id either, so the sidecar ignores what it is answered, counts the
                        // entry as failed, retries it alone and then dead-letters it with its bytes
                        // (dapr v1.18.2, `pkg/runtime/subscription/postman/grpc/grpc.go`,
                        // `DeliverBulk`). RETRY says the same, and SUCCESS to an entry that has an
                        // id would lose it. A raw subscription has none: only an event that the
                        // sidecar takes apart can fail to be encoded.
                        None => Answer::Retry,
                    };
                (entry_id, answer)
            }
        });
        let mut statuses = Vec::new();
        for (entry_id, answer) in futures::future::join_all(entries).await {
            if answer == Answer::Unavailable {
                return Err(unavailable());
            }
            let status = status_of(answer)? as i32;
            statuses.push(api::TopicEventBulkResponseEntry { entry_id, status });
        }
        Ok(Response::new(api::TopicEventBulkResponse { statuses }))
    }

    /// The sidecar's own deadline when it has one, never later than ours.
    fn deadline(&self, metadata: &MetadataMap) -> Instant {
        let ours = self.consumer.times.delivery_deadline;
        let theirs = metadata
            .get("grpc-timeout")
            .and_then(|value| value.to_str().ok())
            .and_then(grpc_timeout)
            .map_or(ours, |timeout| timeout.saturating_sub(ANSWER_MARGIN));
        Instant::now() + ours.min(theirs)
    }
}

/// What a delivery is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Success,
    Retry,
    Unavailable,
}

/// What the outcomes of a delivery's messages come to: one that the sidecar must keep keeps all,
/// and those already judged are duplicates next time.
fn answer_of(outcomes: &[Outcome], call: Call) -> Answer {
    let answers = outcomes.iter().map(|outcome| answer_to(outcome, call));
    answers.fold(Answer::Success, |all, one| match (all, one) {
        (Answer::Unavailable, _) | (_, Answer::Unavailable) => Answer::Unavailable,
        (Answer::Retry, _) | (_, Answer::Retry) => Answer::Retry,
        (Answer::Success, Answer::Success) => Answer::Success,
    })
}

fn answer_to(outcome: &Outcome, call: Call) -> Answer {
    match (outcome, call) {
        (
            Outcome::Processed
            | Outcome::Duplicate
            | Outcome::Linked
            | Outcome::Ignored
            | Outcome::Quarantined(_)
            | Outcome::Recovering,
            Call::Single | Call::Bulk,
        ) => Answer::Success,
        (Outcome::Retrying(_) | Outcome::Busy, Call::Single) => Answer::Retry,
        // In a batch: not even the hand-over had an end in time.
        (Outcome::Retrying(_) | Outcome::Busy, Call::Bulk)
        | (Outcome::StoreAway, Call::Single | Call::Bulk) => Answer::Unavailable,
    }
}

/// Whether the sidecar would have to call again about one of them, and could.
fn is_open(outcomes: &[Outcome]) -> bool {
    answer_of(outcomes, Call::Single) == Answer::Retry
}

fn hand_over_at(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - HAND_OVER_MARGIN.min(left / 4)
}

/// The one place that builds an answer to the sidecar.
fn status_of(answer: Answer) -> Result<TopicEventResponseStatus, Status> {
    match answer {
        Answer::Success => Ok(TopicEventResponseStatus::Success),
        Answer::Retry => Ok(TopicEventResponseStatus::Retry),
        Answer::Unavailable => Err(unavailable()),
    }
}

fn unavailable() -> Status {
    Status::unavailable("nothing could be written; the sidecar keeps the event")
}

#[tonic::async_trait]
impl AppCallback for Callback {
    async fn list_topic_subscriptions(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::ListTopicSubscriptionsResponse>, Status> {
        let identity = self.identity().await?;
        let mut subscriptions = Vec::new();
        for subscription in &self.consumer.subscriptions {
            let (topic, pubsub) = (subscription.topic_name(), subscription.pubsub_or(&self.pubsub));
            let dead = identity.dead_letter_topic(topic);
            let second = identity.dead_letter_component(pubsub).unwrap_or_else(|| {
                self.consumer
                    .observer
                    .dead_letter_component_missing(pubsub, &second_component(pubsub));
                pubsub.to_owned()
            });
            let raw = subscription.envelope_form() == Envelope::Raw;
            let live = declared(pubsub, topic, &dead, raw);
            subscriptions.push(api::TopicSubscription {
                bulk_subscribe: subscription.asks_for_bulk().map(bulk_subscribe),
                ..live
            });
            // One at a time, always: it is retried without an end, so one dead letter that cannot
            // be taken in yet would hold up the batch it came in and all that follow.
            subscriptions.push(declared(&second, &dead, &identity.unreadable_topic(topic), raw));
        }
        Ok(Response::new(api::ListTopicSubscriptionsResponse { subscriptions }))
    }

    async fn on_topic_event(
        &self,
        request: Request<api::TopicEventRequest>,
    ) -> Result<Response<api::TopicEventResponse>, Status> {
        self.token.check(request.metadata())?;
        let deadline = self.deadline(request.metadata());
        let metadata = metadata_of(request.metadata());
        let event = request.into_inner();
        let (pubsub, topic) = (event.pubsub_name.clone(), event.topic.clone());
        let arrival = arrival_of(event, metadata);
        let answer = self.deliver(Call::Single, &pubsub, topic, arrival, deadline).await;
        Ok(Response::new(api::TopicEventResponse { status: status_of(answer)? as i32 }))
    }

    async fn on_bulk_topic_event(
        &self,
        request: Request<api::TopicEventBulkRequest>,
    ) -> Result<Response<api::TopicEventBulkResponse>, Status> {
        self.deliver_bulk(request).await
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
        Err(Status::not_found("this application has no methods to invoke"))
    }

    async fn on_binding_event(
        &self,
        _: Request<api::BindingEventRequest>,
    ) -> Result<Response<api::BindingEventResponse>, Status> {
        Err(Status::failed_precondition("this application takes no input bindings"))
    }

    async fn on_job_event(
        &self,
        _: Request<api::JobEventRequest>,
    ) -> Result<Response<api::JobEventResponse>, Status> {
        Err(Status::failed_precondition("this application takes no jobs"))
    }
}

#[tonic::async_trait]
impl AppCallbackAlpha for Callback {
    async fn on_bulk_topic_event_alpha1(
        &self,
        request: Request<api::TopicEventBulkRequest>,
    ) -> Result<Response<api::TopicEventBulkResponse>, Status> {
        self.deliver_bulk(request).await
    }

    async fn on_job_event_alpha1(
        &self,
        _: Request<api::JobEventRequest>,
    ) -> Result<Response<api::JobEventResponse>, Status> {
        Err(Status::failed_precondition("this application takes no jobs"))
    }
}

#[tonic::async_trait]
impl AppCallbackHealthCheck for Callback {
    async fn health_check(
        &self,
        _: Request<()>,
    ) -> Result<Response<api::HealthCheckResponse>, Status> {
        if self.draining.is_cancelled() {
            Err(Status::unavailable("the service is draining"))
        } else if !self.consumer.store.is_healthy() {
            Err(Status::unavailable("the store cannot be written"))
        } else {
            Ok(Response::new(api::HealthCheckResponse {}))
        }
    }
}

fn bulk_subscribe(bulk: Bulk) -> api::BulkSubscribeConfig {
    api::BulkSubscribeConfig {
        enabled: true,
        max_messages_count: bulk.max_messages.into(),
        max_await_duration_ms: bulk.await_ms.into(),
    }
}

fn declared(
    pubsub: &str,
    topic: &str,
    dead_letter_topic: &str,
    raw: bool,
) -> api::TopicSubscription {
    let metadata = raw.then(|| ("rawPayload".to_owned(), "true".to_owned()));
    api::TopicSubscription {
        pubsub_name: pubsub.to_owned(),
        topic: topic.to_owned(),
        metadata: metadata.into_iter().collect(),
        routes: None,
        dead_letter_topic: dead_letter_topic.to_owned(),
        bulk_subscribe: None,
    }
}

#[cfg(test)]
mod tests;
