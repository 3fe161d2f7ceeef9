//! One attempt: runs the handler within its limits and reports how that ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value as Json};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::{Call, Consumer, over};
use crate::clock::Timestamp;
use crate::custody::{Authority, Standing};
use crate::effect::{Effects, Message};
use crate::event::Event;
use crate::failpoint::{Gap, reached};
use crate::handler::{Context, HandlerError, Kind, Tx};
use crate::observe::{Lane, current_traceparent, span_for};
use crate::outcome::{Category, Code, Outcome, reason};
use crate::store::{Claim, Committed, Incoming, Outgoing, StoreError, Written};
use crate::subscription::{OutsideCall, Prepared, Subscription};

/// How often a handler runs again because rows had changed under its decision.
const RERUNS_MAX: u32 = 3;

/// How long an interactive transaction may keep the writer for itself.
const TRANSACTION_MAX: Duration = Duration::from_secs(5);

/// A message about to be handled, and by what right.
pub(super) struct Run {
    pub incoming: Arc<Incoming>,
    pub event: Arc<Event>,
    pub authority: Authority,
    pub attempt: u32,
    pub lane: Lane,
    /// What it came with, if it is live.
    pub call: Call,
}

impl Run {
    pub(super) fn claimed(claim: Claim, event: Arc<Event>, lane: Lane) -> Self {
        Self {
            authority: Authority::Run(claim.run),
            attempt: claim.attempt,
            lane,
            call: Call::Single,
            incoming: claim.incoming,
            event,
        }
    }
}

/// How often it is tried to give a claim back that could not be written.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// How running and committing ended.
enum Ended {
    Committed(Committed),
    Error(HandlerError),
    StoreAway(StoreError),
}

impl Consumer {
    /// Runs the handler and writes down how it ended.
    pub(super) async fn attempt(
        &self,
        subscription: &Subscription,
        run: Run,
        prepared: Prepared,
        consumer: &Arc<str>,
    ) -> Outcome {
        let limit = self.times.handler_timeout;
        let until = Instant::now() + limit;
        match (run.lane, run.authority) {
            (Lane::Redrive, _) => reached(Gap::RedriveClaimed),
            (_, Authority::Run(_)) => reached(Gap::Claimed),
            (_, Authority::Delivery) => {}
        }
        let place = subscription.place(run.lane);
        let span = span_for(place, run.event.traceparent(), run.event.tracestate());
        let work = async {
            let mut reruns = 0;
            let mut next = Ok(prepared);
            loop {
                let began = Instant::now();
                let ended = match next {
                    Ok(prepared) => self.run_once(&run, prepared, consumer, until).await,
                    Err((_, code)) => Ended::Error(HandlerError::reject(code)),
                };
                let may_rerun = subscription.outside_call() != OutsideCall::Once
                    && reruns < RERUNS_MAX
                    && Instant::now() < until;
                if may_rerun && matches!(ended, Ended::Committed(Committed::RowsDiffer)) {
                    reruns += 1;
                    // A run uses its decoded input up.
                    next = subscription.prepare(&run.event);
                    continue;
                }
                let failed = failure_of(&ended);
                self.observer.attempt_finished(
                    place,
                    run.attempt,
                    failed.as_ref().map_or(Ok(()), Err),
                    began.elapsed(),
                );
                let outcome = self.report(subscription, &run, ended).await;
                if outcome == Outcome::StoreAway {
                    self.give_back_unwritten(subscription, &run);
                }
                return outcome;
            }
        };
        tracing::Instrument::instrument(work, span).await
    }

    async fn run_once(
        &self,
        run: &Run,
        prepared: Prepared,
        consumer: &Arc<str>,
        until: Instant,
    ) -> Ended {
        let action_id: Arc<str> = run.incoming.key.to_string().into();
        let context =
            Context::new(Arc::clone(&run.event), run.attempt, action_id, until, self.store.clone());
        match prepared {
            Prepared::Effects(handler) => match bounded(until, handler(context)).await {
                Ok(effects) => self.commit(run, effects, consumer).await,
                Err(error) => Ended::Error(error),
            },
            Prepared::Interactive(handler) => {
                let left = until.saturating_duration_since(Instant::now());
                let session = match self.store.session(left.min(TRANSACTION_MAX)).await {
                    Ok(session) => session,
                    Err(error) => return Ended::StoreAway(error),
                };
                let in_transaction = async move {
                    let mut tx = Tx::new(session);
                    handler(context, &mut tx).await.map(|()| tx)
                };
                match bounded(until, in_transaction).await {
                    Ok(tx) => {
                        let (session, messages) = tx.into_parts();
                        let outgoing = self.outgoing(run, messages, consumer);
                        committed(
                            session
                                .commit(Arc::clone(&run.incoming), run.authority, outgoing)
                                .await,
                        )
                    }
                    Err(error) => Ended::Error(error),
                }
            }
        }
    }

    async fn commit(&self, run: &Run, effects: Effects, consumer: &Arc<str>) -> Ended {
        reached(Gap::Handled);
        let outgoing = self.outgoing(run, effects.messages, consumer);
        let incoming = Arc::clone(&run.incoming);
        committed(self.store.commit(incoming, run.authority, effects.statements, outgoing).await)
    }

    async fn report(&self, subscription: &Subscription, run: &Run, ended: Ended) -> Outcome {
        match ended {
            Ended::Committed(Committed::Yes) => {
                self.relay_wake.notify_one();
                Outcome::Processed
            }
            Ended::Committed(Committed::Nothing(standing)) => self.lost(run, standing).await,
            Ended::Committed(Committed::Rejected(code)) => self.reject(run, code).await,
            // The handler had finished, so whatever it calls outside has happened.
            Ended::Committed(Committed::RowsDiffer) => {
                self.failed(subscription, run, reason::EFFECT_ROWS, true).await
            }
            Ended::Committed(Committed::EffectFailed(code)) => {
                self.failed(subscription, run, code, true).await
            }
            Ended::Error(error) => match error.kind {
                Kind::Rejected => self.reject(run, error.code).await,
                Kind::NotSent => self.failed(subscription, run, error.code, false).await,
                Kind::Transient => {
                    if let Some(origin) = error.origin {
                        tracing::debug!(
                            error.kind = origin,
                            "The handler's error had no code of its own."
                        );
                    }
                    self.failed(subscription, run, error.code, true).await
                }
            },
            Ended::StoreAway(error) => self.store_away(&error),
        }
    }

    /// Gives a claim back whose run could not be written, as soon as it can: the store was away, the
    /// run has not failed. An operator's run, one whose call must not be repeated unasked, and one
    /// whose process ends before that are over with their lease.
    fn give_back_unwritten(&self, subscription: &Subscription, run: &Run) {
        let Authority::Run(number) = run.authority else { return };
        if run.lane == Lane::Redrive || subscription.outside_call() == OutsideCall::Once {
            return;
        }
        let (store, incoming) = (self.store.clone(), Arc::clone(&run.incoming));
        tokio::spawn(async move {
            loop {
                store.becomes_healthy().await;
                // Whatever it says: from now on it is written, or another owns the message.
                if store.release(Arc::clone(&incoming), number).await.is_ok() {
                    return;
                }
                tokio::time::sleep(GIVE_BACK_EVERY).await;
            }
        });
    }

    async fn reject(&self, run: &Run, code: Code) -> Outcome {
        self.refuse(Arc::clone(&run.incoming), run.authority, Category::Rejected, code, true).await
    }

    /// Step 5: written down before it is answered. `called` says that the handler may have called
    /// outside; where that must not be repeated unasked, nothing is.
    async fn failed(
        &self,
        subscription: &Subscription,
        run: &Run,
        code: Code,
        called: bool,
    ) -> Outcome {
        let incoming = Arc::clone(&run.incoming);
        if called && subscription.outside_call() == OutsideCall::Once {
            return self
                .refuse(incoming, run.authority, Category::OutcomeUnknown, code, true)
                .await;
        }
        let written = match run.call {
            Call::Single => {
                self.store.fail(Arc::clone(&incoming), run.authority, code.clone()).await
            }
            Call::Bulk => {
                self.store.fail_in_bulk(Arc::clone(&incoming), run.authority, code.clone()).await
            }
        };
        match written {
            Ok(Written::Nothing(standing)) => self.lost(run, standing).await,
            written => self.outcome_of(&incoming, written, Some(&code)),
        }
    }

    /// Somebody else has the message, or has ended it: if that was another event under the same
    /// id, this one has not been dealt with yet.
    async fn lost(&self, run: &Run, standing: Standing) -> Outcome {
        match self.standing(&run.incoming).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => over(standing),
            Err(error) => self.store_away(&error),
        }
    }

    fn outgoing(&self, run: &Run, messages: Vec<Message>, consumer: &Arc<str>) -> Vec<Outgoing> {
        let now = self.store.now();
        let trace = current_traceparent().or_else(|| run.event.traceparent().map(str::to_owned));
        messages
            .into_iter()
            .enumerate()
            .map(|(n, message)| to_publish(run, message, n, consumer, trace.as_deref(), now))
            .collect()
    }
}

fn committed(result: Result<Committed, StoreError>) -> Ended {
    match result {
        Ok(committed) => Ended::Committed(committed),
        Err(error) => Ended::StoreAway(error),
    }
}

fn failure_of(ended: &Ended) -> Option<Code> {
    match ended {
        Ended::Committed(Committed::Yes | Committed::Nothing(_)) => None,
        Ended::Committed(Committed::RowsDiffer) => Some(reason::EFFECT_ROWS),
        Ended::Committed(Committed::Rejected(code) | Committed::EffectFailed(code)) => {
            Some(code.clone())
        }
        Ended::Error(error) => Some(error.code.clone()),
        Ended::StoreAway(_) => Some(reason::STORE_AWAY),
    }
}

/// Runs a handler in a task of its own, so that a panic stays there and a time limit holds even
/// if the handler never yields to it again.
async fn bounded<T: Send + 'static>(
    until: Instant,
    work: impl Future<Output = Result<T, HandlerError>> + Send + 'static,
) -> Result<T, HandlerError> {
    let task = tokio::spawn(tracing::Instrument::in_current_span(work));
    let _abort = AbortOnDrop(task.abort_handle());
    match timeout_at(until, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(HandlerError::transient(reason::HANDLER_PANICKED)),
        Err(_) => Err(HandlerError::transient(reason::HANDLER_TIMED_OUT)),
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The structured CloudEvent the relay will publish. Its id follows from the message that caused
/// it and its place among that message's publications, so a repetition keeps it.
fn to_publish(
    run: &Run,
    message: Message,
    n: usize,
    consumer: &Arc<str>,
    trace: Option<&str>,
    now: Timestamp,
) -> Outgoing {
    let message_id = format!("{}-{n}", run.incoming.key);
    let mut event = Map::new();
    let mut set = |name: &str, value: Json| drop(event.insert(name.to_owned(), value));
    set("specversion", "1.0".into());
    set("id", message_id.clone().into());
    set("source", consumer.to_string().into());
    set("type", message.ty.into());
    set("time", now.to_string().into());
    set("datacontenttype", "application/json".into());
    if let Some(subject) = message.subject {
        set("subject", subject.into());
    }
    if let Some(trace) = trace {
        // Both, because the sidecar overwrites `traceparent` where `traceid` is absent
        // (components-contrib v1.18.3, pubsub/envelope.go).
        set("traceparent", trace.into());
        set("traceid", trace.into());
    }
    set("data", message.data);
    event.extend(message.extensions);
    Outgoing {
        log: 0,
        seq: 0,
        pubsub: message.pubsub.unwrap_or_else(|| run.incoming.pubsub.clone()),
        topic: message.topic,
        message_id,
        ordering_key: message.ordering_key,
        due_at: message.delay.map(|delay| now.plus(delay)),
        content: Bytes::from(Json::Object(event).to_string()),
    }
}
