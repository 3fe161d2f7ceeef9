//! Publishes one topic of one log, on its own: makes the calls that its window names, and moves its
//! cursor behind them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::window::{Call, Kind, Refusal, Window};
use super::{Publish, PublishError, TIMED_OUT};
use crate::consumer::Consumer;
use crate::failpoint::{Gap, reached};
use crate::store::{StoreError, Topic, Waiting};

/// How long one call may take, whatever the client does.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the cursor moves while messages leave. Each move leaves a dead version of its row
/// behind, for as long as somebody holds an old snapshot.
const MOVE_EVERY: Duration = Duration::from_millis(100);
/// How long the task of a topic stays when nothing is left.
const IDLE_FOR: Duration = Duration::from_secs(10);
/// How often it is asked whether the log still is this process's.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The wait after the store could not be read or written.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// How long calls that are out may take when everything ends.
const LAST_CALLS: Duration = Duration::from_secs(3);

/// What all topics share.
pub(super) struct Shared {
    pub consumer: Arc<Consumer>,
    /// The consumer's name.
    pub name: Arc<str>,
    pub publish: Publish,
    /// Calls that may be out at a time, over all topics.
    pub calls: Semaphore,
    pub stop: CancellationToken,
}

/// Something that was under way.
enum Done {
    Call { kind: Kind, seqs: Vec<i64>, took: Duration, result: Result<(), PublishError> },
    Moved { to: i64, result: Result<(), StoreError> },
}

struct Task {
    shared: Arc<Shared>,
    topic: Topic,
    window: Window,
    /// The number of the last message there is.
    newest: watch::Receiver<i64>,
    under_way: JoinSet<Done>,
    calls_out: usize,
    /// Where the cursor is on disk, and when it was moved there.
    cursor: i64,
    moved_at: Option<Instant>,
    is_moving: bool,
    /// Until when the store is left alone.
    store_rests_until: Option<Instant>,
    asked_at: Instant,
}

/// Publishes what waits, until nothing has for a while, the log is another process's, or everything
/// ends; calls that are out are then waited for, for a moment.
pub(super) async fn run(shared: Arc<Shared>, waiting: Waiting, newest: watch::Receiver<i64>) {
    let task = Task {
        shared,
        window: Window::new(waiting.cursor),
        topic: waiting.topic,
        newest,
        under_way: JoinSet::new(),
        calls_out: 0,
        cursor: waiting.cursor,
        moved_at: None,
        is_moving: false,
        store_rests_until: None,
        asked_at: Instant::now(),
    };
    task.run().await;
}

impl Task {
    async fn run(mut self) {
        let stop = self.shared.stop.clone();
        while !stop.is_cancelled() {
            if !self.read().await {
                return;
            }
            let now = Instant::now();
            while let Some(call) = self.window.next(now) {
                self.start(call);
            }
            self.move_cursor(now);
            let has_nothing = self.window.is_empty()
                && self.under_way.is_empty()
                && self.cursor == self.window.reached();
            let wakes_at = if has_nothing { now + IDLE_FOR } else { self.wakes_at(now) };
            tokio::select! {
                () = stop.cancelled() => {}
                Some(done) = self.under_way.join_next() => match done {
                    Ok(done) => self.take_in(done).await,
                    // It panicked. A fresh start publishes what it had out.
                    Err(_) => return,
                },
                changed = self.newest.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(wakes_at) => if has_nothing { return },
            }
        }
        drop(timeout(LAST_CALLS, self.finish()).await);
    }

    /// Takes in what is under way, and moves the cursor behind it.
    async fn finish(&mut self) {
        loop {
            if self.calls_out == 0 {
                self.move_cursor(Instant::now());
            }
            match self.under_way.join_next().await {
                Some(Ok(done)) => self.take_in(done).await,
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Reads on. Says whether the log still is this process's.
    async fn read(&mut self) -> bool {
        let now = Instant::now();
        if self.store_rests_until.is_some_and(|until| until > now) {
            return true;
        }
        let newest = *self.newest.borrow_and_update();
        let (after, max, bytes_max) = match self.window.wants(newest) {
            Some(wanted) => wanted,
            None if now >= self.asked_at + ASK_EVERY => (newest, 0, 0),
            None => return true,
        };
        let store = &self.shared.consumer.store;
        match store.outbox_read(self.topic.clone(), after, max, bytes_max).await {
            Ok(Some(messages)) => {
                self.asked_at = now;
                if max > 0 {
                    self.window.add(messages, newest);
                }
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.store_failed(&error);
                true
            }
        }
    }

    fn start(&mut self, call: Call) {
        let Call { kind, messages } = call;
        let shared = Arc::clone(&self.shared);
        self.calls_out += 1;
        self.under_way.spawn(async move {
            let seqs = messages.iter().map(|message| message.seq).collect();
            // It is never closed.
            let _permit = shared.calls.acquire().await;
            let began = Instant::now();
            let result = timeout(CALL_TIMEOUT, (shared.publish)(messages)).await;
            let result = result.unwrap_or(Err(PublishError::Failed(TIMED_OUT)));
            Done::Call { kind, seqs, took: began.elapsed(), result }
        });
    }

    /// Moves the cursor on disk, where that is due: not at every call, and never two moves at once.
    fn move_cursor(&mut self, now: Instant) {
        let to = self.window.reached();
        let is_due =
            self.calls_out == 0 || self.moved_at.is_none_or(|moved| now >= moved + MOVE_EVERY);
        let store_rests = self.store_rests_until.is_some_and(|until| until > now);
        if to == self.cursor || self.is_moving || !is_due || store_rests {
            return;
        }
        self.is_moving = true;
        let (shared, topic) = (Arc::clone(&self.shared), self.topic.clone());
        self.under_way.spawn(async move {
            let result = shared.consumer.store.outbox_published(topic, to).await;
            Done::Moved { to, result }
        });
    }

    async fn take_in(&mut self, done: Done) {
        match done {
            Done::Call { kind, seqs, took, result } => {
                self.calls_out -= 1;
                self.tell(seqs.len() as u64, &result, took);
                if result.is_ok() {
                    reached(Gap::Published);
                }
                let refusal = self.window.ended(kind, &seqs, result, Instant::now());
                if let Some(refusal) = refusal {
                    self.refuse(refusal).await;
                }
            }
            Done::Moved { to, result } => {
                self.is_moving = false;
                self.moved_at = Some(Instant::now());
                match result {
                    Ok(()) => self.cursor = to,
                    Err(error) => self.store_failed(&error),
                }
            }
        }
    }

    fn tell(&self, count: u64, result: &Result<(), PublishError>, took: Duration) {
        let observer = &self.shared.consumer.observer;
        match result {
            Ok(()) => observer.messages_published(&self.topic.name, count, took),
            Err(PublishError::Failed(code)) => {
                observer.publish_failed(&self.topic.name, count, code, took);
            }
            Err(PublishError::Refused(_)) => {}
        }
    }

    async fn refuse(&mut self, refusal: Refusal) {
        let Refusal { message, code, cursor } = refusal;
        let (seq, source) = (message.seq, self.shared.name.to_string());
        let consumer = Arc::clone(&self.shared.consumer);
        match consumer.store.outbox_refused(message, source, cursor).await {
            Ok(case) => {
                if let Some(case) = case {
                    consumer.observer.publish_refused(&self.topic.name, &code, &case.exception_id);
                }
                self.window.filed(seq);
            }
            Err(error) => {
                self.store_failed(&error);
                self.window.not_filed(seq, Instant::now());
            }
        }
    }

    fn store_failed(&mut self, error: &StoreError) {
        self.shared.consumer.store_away(error);
        self.store_rests_until = Some(Instant::now() + STORE_PAUSE);
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let move_at = (self.cursor != self.window.reached() && !self.is_moving)
            .then(|| self.moved_at.map_or(now, |moved| moved + MOVE_EVERY));
        let after_rest = self.store_rests_until.filter(|until| *until > now);
        let soonest = [self.window.wakes_at(now), after_rest, move_at].into_iter().flatten().min();
        // No sooner: what is due now has been done, or waits for what is under way.
        let soonest = soonest.unwrap_or(now + ASK_EVERY).max(now + Duration::from_millis(5));
        soonest.min(now + ASK_EVERY)
    }
}
