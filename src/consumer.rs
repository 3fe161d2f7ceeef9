//! The six steps of a delivery, top to bottom: receive, dedup, validate, handle, transient
//! failure, exhausted; and the dead letter, where the sixth step arrives back here.
//!
//! **Invariants**
//! - Every message ends in exactly one [`Outcome`]; the sidecar's answer follows from it and from
//!   nothing else.
//! - Nothing is acknowledged that is not on disk: an outcome other than [`Outcome::Busy`] and
//!   [`Outcome::StoreAway`] is returned after its commit.
//! - Nothing loops here: retrying is the sidecar's, recovery is `recovery.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::clock::Timestamp;
use crate::custody::{Authority, Standing, State};
use crate::event::{Arrival, Event, decode};
use crate::failpoint::{Gap, reached};
use crate::observe::{self, Lane, Observer, Place};
use crate::outcome::{Category, Code, Outcome, reason};
use crate::store::{AttemptKind, Claim, Incoming, Quarantined, Store, StoreError, Written};
use crate::subscription::{OutsideCall, Subscription};

mod attempt;
mod bulk;
mod in_flight;
mod incoming;

use attempt::Run;
pub(crate) use bulk::Call;
use in_flight::{Entered, InFlight};
use incoming::{UNKNOWN, incoming, is_foreign, unread};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// One handler run. Default 20 s.
    pub handler_timeout: Duration,
    /// The longest a delivery is held, when the sidecar names no deadline. Default 25 s.
    pub delivery_deadline: Duration,
}

/// Where a delivery came by.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The subscription's component, also for a dead letter that came by the second one.
    pub pubsub: String,
    /// The topic it was published to.
    pub topic: String,
    /// The topic it arrived on: for a dead letter, the dead-letter topic.
    pub arrived_on: String,
    /// The consumer's name: the source of what it publishes.
    pub consumer: Arc<str>,
    /// What it came with.
    pub call: Call,
}

/// The path every message takes, live, as a dead letter, in recovery and in a redrive.
pub(crate) struct Consumer {
    pub store: Store,
    pub subscriptions: Vec<Arc<Subscription>>,
    pub times: Times,
    pub observer: Observer,
    /// Rung when something may have become due.
    pub recovery_wake: Notify,
    /// Rung when something was appended to the outbox.
    pub relay_wake: Notify,
    in_flight: InFlight,
    /// Until when every message is claimed before it is handled; microseconds since the epoch.
    cautious_until: AtomicI64,
}

impl Consumer {
    pub(crate) fn new(
        store: Store,
        subscriptions: Vec<Arc<Subscription>>,
        times: Times,
        observer: Observer,
    ) -> Self {
        Self {
            store,
            subscriptions,
            times,
            observer,
            recovery_wake: Notify::new(),
            relay_wake: Notify::new(),
            in_flight: InFlight::default(),
            cautious_until: AtomicI64::new(0),
        }
    }

    /// For a while after an unclean end every message is claimed before it is handled, and
    /// recovery runs one at a time: a message that ends the process is then known by its claim,
    /// spends its own recoveries with each end, and takes no neighbour with it.
    pub(crate) fn be_cautious(&self, until: Timestamp) {
        if self.cautious_until.fetch_max(until.0, Ordering::Relaxed) < until.0 {
            self.observer.is_cautious(until.since(self.store.now()));
        }
    }

    pub(crate) fn is_cautious(&self) -> bool {
        self.store.now().0 < self.cautious_until.load(Ordering::Relaxed)
    }

    /// Step 1, receive: decodes what the sidecar handed over and judges every message in it alone.
    ///
    /// While the store is away the answer is held until it is back, at most to `deadline`; the
    /// messages after the first that could not be judged are left for the next delivery.
    ///
    /// # Cancel safety
    /// Not cancel safe: run it in a task of its own, so that a cancelled call leaves a message
    /// either untouched or judged.
    pub(crate) async fn receive(
        &self,
        subscription: &Subscription,
        lane: Lane,
        arrival: Arrival,
        origin: &Origin,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for decoded in decode(arrival) {
            let began = Instant::now();
            let outcome = match decoded {
                Ok(event) => {
                    let event = Arc::new(event);
                    let incoming = Arc::new(incoming(
                        subscription.name(),
                        subscription.outside_call(),
                        &event,
                        origin,
                    ));
                    match lane {
                        Lane::DeadLetter => {
                            self.dead_letter(subscription, &event, incoming, origin).await
                        }
                        _ => self.live(subscription, event, incoming, origin, deadline).await,
                    }
                }
                Err(malformed) => {
                    let reason = malformed.reason.clone();
                    let unread = Arc::new(unread(subscription.name(), malformed, origin));
                    self.file(unread, Category::Invalid, reason).await
                }
            };
            self.observer.delivery_judged(subscription.place(lane), &outcome, began.elapsed());
            if let Some(gap) = gap_before_answer(&outcome, lane) {
                reached(gap);
            }
            let away = outcome == Outcome::StoreAway;
            outcomes.push(outcome);
            if away {
                // Held, not refused at once: an immediate answer would use up the sidecar's
                // retries, and its breaker, while the store is away for a moment.
                drop(timeout_at(deadline, self.store.becomes_healthy()).await);
                break;
            }
        }
        outcomes
    }

    async fn live(
        &self,
        subscription: &Subscription,
        event: Arc<Event>,
        incoming: Arc<Incoming>,
        origin: &Origin,
        deadline: Instant,
    ) -> Outcome {
        // Step 2, dedup: a twin in this process first, because its result is not on disk yet.
        let _slot = match self.in_flight.enter(incoming.key, incoming.fingerprint) {
            Entered::First(slot) => slot,
            Entered::Twin(finished) => {
                if timeout_at(deadline, finished.cancelled()).await.is_err() {
                    return Outcome::Busy;
                }
                return match self.standing(&incoming).await {
                    Ok(Some(outcome)) => outcome,
                    // The first one failed; its failure is this one's answer too, or twins would
                    // spend a message's attempts without any wait between them.
                    Ok(None) => Outcome::Busy,
                    Err(error) => self.store_away(&error),
                };
            }
        };
        let attempts = match self.look(&incoming).await {
            Ok(Look::Over(outcome)) => return outcome,
            Ok(Look::Open { attempts }) => attempts,
            Err(error) => return self.store_away(&error),
        };
        if subscription.ignores(event.ty()) {
            return Outcome::Ignored;
        }
        // Step 3, validate: what can never fit is filed at once.
        if event.expires_at().is_some_and(|expiry| expiry < self.store.now()) {
            return self.file(incoming, Category::Expired, reason::EXPIRED).await;
        }
        let prepared = match subscription.prepare(&event) {
            Ok(prepared) => prepared,
            Err((category, code)) => return self.file(incoming, category, code).await,
        };
        // Step 4, handle; steps 5 and 6 follow from how that ends.
        let run = if subscription.outside_call() == OutsideCall::None && !self.is_cautious() {
            Run {
                incoming,
                event,
                authority: Authority::Delivery,
                attempt: attempts + 1,
                lane: Lane::Live,
                call: origin.call,
            }
        } else {
            // Claimed first, bytes included: whatever happens now, the store owns it.
            match self.store.claim_live(Arc::clone(&incoming)).await {
                Ok(Ok(claim)) if self.has_time(&claim) => {
                    Run { call: origin.call, ..Run::claimed(claim, event, Lane::Live) }
                }
                Ok(Ok(claim)) => return self.give_back(claim, &reason::LEASE_TOO_SHORT).await,
                Ok(Err(standing)) => return over(standing),
                Err(error) => return self.store_away(&error),
            }
        };
        self.attempt(subscription, run, prepared, &origin.consumer).await
    }

    /// The sidecar gave up and published it: the arrival starts recovery.
    async fn dead_letter(
        &self,
        subscription: &Subscription,
        event: &Event,
        incoming: Arc<Incoming>,
        origin: &Origin,
    ) -> Outcome {
        match self.standing(&incoming).await {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(error) => return self.store_away(&error),
        }
        if is_foreign(subscription, event, &origin.arrived_on) {
            return self.file(incoming, Category::Foreign, reason::FOREIGN_TOPIC).await;
        }
        if subscription.ignores(event.ty()) {
            return Outcome::Ignored;
        }
        if event.expires_at().is_some_and(|expiry| expiry < self.store.now()) {
            return self.file(incoming, Category::Expired, reason::EXPIRED).await;
        }
        if let Err((category, code)) = subscription.prepare(event) {
            return self.file(incoming, category, code).await;
        }
        let written = self.store.dead_letter(Arc::clone(&incoming)).await;
        self.outcome_of(&incoming, written, Some(&reason::RETRIES_EXHAUSTED))
    }

    /// A claimed run, of recovery or of a redrive: the same path from step 3 on.
    pub(crate) async fn rerun(&self, claim: Claim, consumer: &Arc<str>) {
        let began = Instant::now();
        let lane = if claim.kind == AttemptKind::Redrive { Lane::Redrive } else { Lane::Recovery };
        let incoming = Arc::clone(&claim.incoming);
        let outcome = self.rerun_judged(claim, lane, consumer).await;
        let place = Place { subscription: &incoming.subscription, topic: &incoming.topic, lane };
        self.observer.delivery_judged(place, &outcome, began.elapsed());
        if outcome == Outcome::Processed {
            reached(Gap::RecoveryCommitted);
        }
        self.recovery_wake.notify_one();
    }

    /// Whether a claimed run may still begin: with less than one run's time left of its lease it
    /// could still be calling outside when another claims the message.
    fn has_time(&self, claim: &Claim) -> bool {
        claim.lease_until.since(self.store.now()) >= self.times.handler_timeout
    }

    async fn rerun_judged(&self, claim: Claim, lane: Lane, consumer: &Arc<str>) -> Outcome {
        let incoming = Arc::clone(&claim.incoming);
        let authority = Authority::Run(claim.run);
        let known = self
            .subscriptions
            .iter()
            .find(|subscription| subscription.name() == incoming.subscription);
        let Some(subscription) = known else {
            // Perhaps another build takes it; recovery is bounded all the same.
            let written =
                self.store.fail(Arc::clone(&incoming), authority, reason::HANDLER_MISSING).await;
            return self.outcome_of(&incoming, written, Some(&reason::HANDLER_MISSING));
        };
        let event = match Event::from_stored(&incoming.stored) {
            Ok(event) => Arc::new(event),
            Err(malformed) => {
                return self
                    .refuse(incoming, authority, Category::Invalid, malformed.reason, false)
                    .await;
            }
        };
        // An operator who redrives an expired event knows that it has expired.
        let expired = event.expires_at().is_some_and(|expiry| expiry < self.store.now());
        if expired && claim.kind == AttemptKind::Recovery {
            return self
                .refuse(incoming, authority, Category::Expired, reason::EXPIRED, false)
                .await;
        }
        let prepared = match subscription.prepare(&event) {
            Ok(prepared) => prepared,
            Err((category, code)) => {
                return self.refuse(incoming, authority, category, code, false).await;
            }
        };
        if !self.has_time(&claim) {
            return self.give_back(claim, &reason::LEASE_TOO_SHORT).await;
        }
        self.attempt(subscription, Run::claimed(claim, event, lane), prepared, consumer).await
    }

    /// Gives a claim back whose run has not begun: it spends nothing.
    pub(crate) async fn give_back(&self, claim: Claim, code: &Code) -> Outcome {
        let written = self.store.release(Arc::clone(&claim.incoming), claim.run).await;
        self.outcome_of(&claim.incoming, written, Some(code))
    }

    /// Opens a case without a run: it can never fit.
    async fn file(&self, incoming: Arc<Incoming>, category: Category, code: Code) -> Outcome {
        self.refuse(incoming, Authority::Delivery, category, code, false).await
    }

    async fn refuse(
        &self,
        incoming: Arc<Incoming>,
        authority: Authority,
        category: Category,
        code: Code,
        attempted: bool,
    ) -> Outcome {
        let written = self
            .store
            .refuse(Arc::clone(&incoming), authority, category, code.clone(), attempted)
            .await;
        self.outcome_of(&incoming, written, Some(&code))
    }

    /// What a write about a message means for its delivery; the poison log fires here, once,
    /// because the store says "quarantined" only to the one write that did it.
    fn outcome_of(
        &self,
        incoming: &Incoming,
        written: Result<Written, StoreError>,
        code: Option<&Code>,
    ) -> Outcome {
        match written {
            Ok(Written::Nothing(standing)) => over(standing),
            Ok(Written::Removed) => Outcome::Duplicate,
            Ok(Written::Quarantined(case)) => {
                self.quarantined(&case);
                Outcome::Quarantined(case.category)
            }
            Ok(Written::Recovering { due_at, never_attempted }) => {
                let due_in = due_at.map(|due_at| due_at.since(self.store.now()));
                let code = if never_attempted { None } else { code };
                self.observer.recovery_scheduled(&incoming.subscription, code, due_in);
                self.recovery_wake.notify_one();
                Outcome::Recovering
            }
            Ok(Written::Now(State::Retrying)) => {
                self.recovery_wake.notify_one();
                Outcome::Retrying(code.cloned().unwrap_or(reason::HANDLER_FAILED))
            }
            Ok(Written::Now(_)) => Outcome::Linked,
            Err(error) => self.store_away(&error),
        }
    }

    /// The poison log of one case, once: its caller is the one whose write opened it.
    pub(crate) fn quarantined(&self, case: &Quarantined) {
        let told = observe::Quarantined {
            subscription: &case.subscription,
            exception_id: &case.exception_id,
            category: case.category,
            reason: &case.reason,
            attempts: case.attempts,
            event_id: Some(&case.event_id).filter(|id| !id.is_empty()).map(String::as_str),
            source: Some(&case.source).filter(|source| !source.is_empty()).map(String::as_str),
        };
        if case.reopened {
            self.observer.case_reopened(told);
        } else {
            self.observer.message_quarantined(told);
        }
    }

    /// The store did not answer: nothing of it is on disk.
    pub(crate) fn store_away(&self, error: &StoreError) -> Outcome {
        tracing::debug!(error = %error, "The store did not answer.");
        self.observer.store_health(false);
        Outcome::StoreAway
    }

    /// A delivery for a topic nobody here subscribes to: filed, because the sidecar would lose it.
    pub(crate) async fn unknown_topic(&self, arrival: Arrival, origin: &Origin) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for decoded in decode(arrival) {
            let incoming = match decoded {
                Ok(event) => incoming(UNKNOWN, OutsideCall::None, &event, origin),
                Err(malformed) => unread(UNKNOWN, malformed, origin),
            };
            outcomes.push(
                self.file(Arc::new(incoming), Category::Unrouted, reason::UNKNOWN_TOPIC).await,
            );
        }
        outcomes
    }

    async fn standing(&self, incoming: &Arc<Incoming>) -> Result<Option<Outcome>, StoreError> {
        Ok(match self.look(incoming).await? {
            Look::Over(outcome) => Some(outcome),
            Look::Open { .. } => None,
        })
    }

    /// Whether the message is over, ours already, or free to run; the same identity with other
    /// data is filed, never taken for a duplicate.
    async fn look(&self, incoming: &Arc<Incoming>) -> Result<Look, StoreError> {
        let found = self.store.look(incoming.key).await?;
        if let Some(fingerprint) = found.done {
            return Ok(Look::Over(if fingerprint == incoming.fingerprint {
                Outcome::Duplicate
            } else {
                self.reused(incoming).await
            }));
        }
        Ok(match found.row {
            None => Look::Open { attempts: 0 },
            Some((_, fingerprint, _)) if fingerprint != incoming.fingerprint => {
                Look::Over(self.reused(incoming).await)
            }
            Some((State::Retrying, _, attempts)) => Look::Open { attempts },
            Some(_) => Look::Over(Outcome::Linked),
        })
    }

    async fn reused(&self, incoming: &Incoming) -> Outcome {
        let other =
            Incoming { key: incoming.key.reused(&incoming.fingerprint), ..incoming.clone() };
        self.file(Arc::new(other), Category::ReusedId, reason::REUSED_ID).await
    }
}

enum Look {
    Over(Outcome),
    Open { attempts: u32 },
}

/// Where a crash now would leave an outcome on disk that the sidecar has not heard of.
const fn gap_before_answer(outcome: &Outcome, lane: Lane) -> Option<Gap> {
    match (outcome, lane) {
        (Outcome::Processed, _) => Some(Gap::Committed),
        (Outcome::Retrying(_), _) | (Outcome::Recovering, Lane::Live) => Some(Gap::FailureWritten),
        (Outcome::Recovering, Lane::DeadLetter) => Some(Gap::DeadLetterTaken),
        (Outcome::Quarantined(_), _) => Some(Gap::Quarantined),
        _ => None,
    }
}

fn over(standing: Standing) -> Outcome {
    match standing {
        Standing::Done => Outcome::Duplicate,
        Standing::Owned(_) | Standing::Absent => Outcome::Linked,
    }
}

#[cfg(test)]
mod tests;
