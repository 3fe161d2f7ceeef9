//! What one topic has in hand: which messages may leave next, what came of those that did, and how
//! far its cursor may move. Pure: it is told the time and does nothing itself.
//!
//! **Invariants**
//! - Of the messages with one ordering key only the first that has not left is ever out, so they
//!   leave in the log's order, one after another, also when one of them fails.
//! - A batch that fails says nothing about its messages: each is then sent alone.
//! - A message is refused only when it fails alone, again and again, while later messages of its
//!   topic are accepted; the last failure comes after such an acceptance. So an outage refuses
//!   nothing, however long.
//! - In trouble (nothing was accepted since the last failure) one message is out at a time, after a
//!   growing pause: an outage costs little and is noticed to be over.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::PublishError;
use crate::backoff::Backoff;
use crate::outcome::Code;
use crate::store::Outgoing;

/// Messages in one call.
pub(super) const BATCH_MAX: usize = 100;
/// Their bytes together, but for one that is larger alone; the sidecar takes 4 MiB.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Batches out at a time.
const BATCHES_MAX: usize = 4;
/// Messages out alone at a time.
const ALONE_MAX: usize = 16;
/// Messages in hand with their content.
const HELD_MAX: usize = 1_000;
/// Their bytes together, but for one that is larger alone.
const HELD_BYTES_MAX: usize = 4 << 20;
/// Messages remembered beyond the cursor, those that were accepted included.
const WINDOW_MAX: usize = 100_000;
/// A message is refused at its eighth failure alone at the earliest, after about 25 s.
const FAILURES_MIN: u32 = 8;
/// So many failures before must have come after a later message was accepted.
const COUNTED_MIN: u32 = 6;
/// Failures of a topic in a row that are taken for an outage.
const OUTAGE_FAILURES: u32 = 5;
/// The wait before a message, or a topic in trouble, is tried again.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), max: Duration::from_secs(15) };
/// The time without batches after one failed whose messages then went alone.
const BATCH_REST: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// One call to make.
#[derive(Debug)]
pub(super) struct Call {
    pub kind: Kind,
    pub messages: Vec<Outgoing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Several messages, in no order.
    Batch,
    /// One message.
    Alone,
    /// One that was accepted before, once more, to see whether the topic takes anything at all.
    Check,
}

/// A message that is to be refused for good.
#[derive(Debug)]
pub(super) struct Refusal {
    pub message: Outgoing,
    pub code: Code,
    /// How far the cursor may move when it has its case.
    pub cursor: i64,
}

#[derive(Debug)]
pub(super) struct Window {
    /// All up to here has left or has a case.
    reached: i64,
    /// The number of the last message that was read.
    read_to: i64,
    /// What was read beyond `reached`, and whether it is over.
    slots: VecDeque<(i64, bool)>,
    open: BTreeMap<i64, Open>,
    open_bytes: usize,
    batches: usize,
    alone: usize,
    trouble: Pauses,
    batch_rest: Pauses,
    /// The latest in the log of those that were accepted.
    latest: Option<Outgoing>,
    is_checking: bool,
}

#[derive(Debug)]
struct Open {
    message: Outgoing,
    is_out: bool,
    /// Its batch has failed.
    goes_alone: bool,
    /// Failures alone.
    failures: u32,
    /// How many of them came after a later one was accepted; from 0 again after an outage.
    counted: u32,
    /// A later one was accepted since its last failure.
    is_overtaken: bool,
    until: Option<Instant>,
}

/// Failures in a row, and until when nothing is tried for them.
#[derive(Debug, Default)]
struct Pauses {
    failures: u32,
    until: Option<Instant>,
}

impl Pauses {
    fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

impl Window {
    pub(super) fn new(cursor: i64) -> Self {
        Self {
            reached: cursor,
            read_to: cursor,
            slots: VecDeque::new(),
            open: BTreeMap::new(),
            open_bytes: 0,
            batches: 0,
            alone: 0,
            trouble: Pauses::default(),
            batch_rest: Pauses::default(),
            latest: None,
            is_checking: false,
        }
    }

    /// How far the cursor may move: nothing before is missing.
    pub(super) fn reached(&self) -> i64 {
        self.reached
    }

    /// Whether every message that was read is over.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// After which number messages are wanted, how many, and of how many bytes; `newest` is the
    /// number of the last one there is.
    pub(super) fn wants(&self, newest: i64) -> Option<(i64, u32, u64)> {
        let room = HELD_MAX.saturating_sub(self.open.len());
        let is_full = room < BATCH_MAX
            || self.open_bytes >= HELD_BYTES_MAX
            || self.slots.len() + room > WINDOW_MAX;
        if newest <= self.read_to || is_full {
            return None;
        }
        let bytes = HELD_BYTES_MAX - self.open_bytes;
        Some((self.read_to, u32::try_from(room).unwrap_or(u32::MAX), bytes as u64))
    }

    /// Takes in what was read after [`Window::wants`]; `newest` as there.
    pub(super) fn add(&mut self, messages: Vec<Outgoing>, newest: i64) {
        if messages.is_empty() {
            self.read_to = self.read_to.max(newest);
        }
        for message in messages {
            self.read_to = message.seq;
            self.slots.push_back((message.seq, false));
            self.open_bytes += message.content.len();
            let open = Open {
                message,
                is_out: false,
                goes_alone: false,
                failures: 0,
                counted: 0,
                is_overtaken: false,
                until: None,
            };
            self.open.insert(self.read_to, open);
        }
    }

    /// The next call to make now, if any. Its messages are out until [`Window::ended`].
    pub(super) fn next(&mut self, now: Instant) -> Option<Call> {
        if self.trouble.is_on(now) {
            return None;
        }
        let call = if self.trouble.failures > 0 {
            let is_out = self.batches + self.alone > 0;
            (!is_out).then(|| self.check(now).or_else(|| self.probe(now))).flatten()
        } else {
            let singly = self.batch_rest.is_on(now);
            let next = |window: &Self| {
                window.check(now).or_else(|| window.first(now, |open| singly || open.goes_alone))
            };
            let alone = (self.alone < ALONE_MAX).then(|| next(self)).flatten();
            let may_batch = !singly && self.batches < BATCHES_MAX;
            alone.or_else(|| may_batch.then(|| self.batch(now)).flatten())
        };
        let call = call?;
        match call.kind {
            Kind::Batch => self.batches += 1,
            Kind::Alone => self.alone += 1,
            Kind::Check => {
                self.alone += 1;
                self.is_checking = true;
                return Some(call);
            }
        }
        for message in &call.messages {
            if let Some(open) = self.open.get_mut(&message.seq) {
                open.is_out = true;
            }
        }
        Some(call)
    }

    /// What may leave: in order, of each key the first.
    fn ready(&self, now: Instant) -> impl Iterator<Item = &Open> {
        let mut keys: HashSet<&str> = HashSet::new();
        if self.is_checking {
            keys.extend(self.latest.iter().filter_map(|latest| latest.ordering_key.as_deref()));
        }
        self.open.values().filter(move |open| {
            let is_first = open.message.ordering_key.as_deref().is_none_or(|key| keys.insert(key));
            is_first && open.may_leave(now) && !open.needs_check()
        })
    }

    fn batch(&self, now: Instant) -> Option<Call> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for open in self.ready(now).filter(|open| !open.goes_alone) {
            bytes += open.message.content.len();
            if messages.len() == BATCH_MAX || (bytes > BATCH_BYTES_MAX && !messages.is_empty()) {
                break;
            }
            messages.push(open.message.clone());
        }
        let kind = match messages.len() {
            0 => return None,
            1 => Kind::Alone,
            _ => Kind::Batch,
        };
        Some(Call { kind, messages })
    }

    fn first(&self, now: Instant, wanted: impl Fn(&Open) -> bool) -> Option<Call> {
        self.ready(now).find(|open| wanted(open)).map(Open::alone)
    }

    /// In trouble: the one that has failed least, so that one that always fails hides no other.
    fn probe(&self, now: Instant) -> Option<Call> {
        self.ready(now).min_by_key(|open| (open.failures, open.message.seq)).map(Open::alone)
    }

    /// Where nothing else leaves that would tell, the latest that was accepted is sent again.
    fn check(&self, now: Instant) -> Option<Call> {
        let latest = self.latest.as_ref().filter(|_| !self.is_checking)?;
        let is_wanted = |open: &Open| {
            open.message.seq < latest.seq && open.may_leave(now) && open.needs_check()
        };
        let key_is_out = latest.ordering_key.is_some()
            && self
                .open
                .values()
                .any(|open| open.is_out && open.message.ordering_key == latest.ordering_key);
        if key_is_out || !self.open.values().any(is_wanted) {
            return None;
        }
        Some(Call { kind: Kind::Check, messages: vec![latest.clone()] })
    }

    /// Takes in how a call ended. What it gives is to be filed, with [`Window::filed`] or
    /// [`Window::not_filed`] after it.
    pub(super) fn ended(
        &mut self,
        kind: Kind,
        seqs: &[i64],
        result: Result<(), PublishError>,
        now: Instant,
    ) -> Option<Refusal> {
        match kind {
            Kind::Batch => self.batches = self.batches.saturating_sub(1),
            Kind::Alone => self.alone = self.alone.saturating_sub(1),
            Kind::Check => {
                self.alone = self.alone.saturating_sub(1);
                self.is_checking = false;
            }
        }
        match (kind, result) {
            (_, Ok(())) => {
                if kind == Kind::Batch {
                    self.batch_rest = Pauses::default();
                }
                self.accepted(kind, seqs);
                None
            }
            (Kind::Batch, Err(error)) => {
                self.batch_failed(seqs, matches!(error, PublishError::Failed(_)), now);
                None
            }
            (Kind::Alone, Err(error)) => self.failed_alone(seqs.first().copied()?, error, now),
            (Kind::Check, Err(_)) => {
                // It is the topic after all.
                for open in self.open.values_mut() {
                    open.counted = 0;
                    open.is_overtaken = false;
                }
                self.topic_failed(now);
                None
            }
        }
    }

    fn accepted(&mut self, kind: Kind, seqs: &[i64]) {
        for seq in seqs {
            self.mark(*seq);
            if let Some(open) = self.take(*seq)
                && self.latest.as_ref().is_none_or(|latest| latest.seq < *seq)
            {
                self.latest = Some(open.message);
            }
        }
        let Some(last) = seqs.iter().max() else { return };
        let trouble = std::mem::take(&mut self.trouble);
        let ends_outage = kind != Kind::Check && trouble.failures >= OUTAGE_FAILURES;
        for open in self.open.values_mut().filter(|open| open.failures > 0) {
            open.is_overtaken |= open.message.seq < *last;
            if ends_outage {
                open.counted = 0;
            }
            if trouble.failures > 0 && open.counted == 0 {
                // Probably not its own fault.
                open.until = None;
            }
        }
    }

    fn batch_failed(&mut self, seqs: &[i64], is_trouble: bool, now: Instant) {
        for seq in seqs {
            if let Some(open) = self.open.get_mut(seq) {
                open.is_out = false;
                open.goes_alone = true;
            }
        }
        if is_trouble {
            self.trouble.failures = self.trouble.failures.max(1);
            let rest = BATCH_REST.delay(self.batch_rest.failures, 0);
            self.batch_rest.failures = self.batch_rest.failures.saturating_add(1);
            self.batch_rest.until = Some(now + rest);
        }
    }

    fn failed_alone(&mut self, seq: i64, error: PublishError, now: Instant) -> Option<Refusal> {
        let later_accepted = self.latest.as_ref().is_some_and(|latest| latest.seq > seq);
        let open = self.open.get_mut(&seq)?;
        open.goes_alone = true;
        let code = match error {
            PublishError::Refused(code) => return self.refusal(seq, code),
            PublishError::Failed(code) => code,
        };
        open.failures = open.failures.saturating_add(1);
        let is_proven = open.failures >= FAILURES_MIN && open.counted >= COUNTED_MIN;
        open.counted = open.counted.saturating_add(u32::from(later_accepted));
        if std::mem::take(&mut open.is_overtaken) && is_proven {
            return self.refusal(seq, code);
        }
        open.is_out = false;
        open.until = Some(now + BACKOFF.delay(open.failures - 1, seq.cast_unsigned()));
        // One that is known to fail says nothing about the others.
        if open.failures == 1 || self.trouble.failures > 0 {
            self.topic_failed(now);
        }
        None
    }

    fn topic_failed(&mut self, now: Instant) {
        // What was out together fails together.
        if self.trouble.is_on(now) {
            return;
        }
        self.trouble.failures = self.trouble.failures.saturating_add(1);
        let again = self.trouble.failures.checked_sub(2);
        self.trouble.until = again.map(|again| now + BACKOFF.delay(again, 0));
    }

    fn refusal(&mut self, seq: i64, code: Code) -> Option<Refusal> {
        let over = self.slots.iter().take_while(|(slot, is_over)| *is_over || *slot == seq);
        let cursor = over.last().map_or(self.reached, |(slot, _)| *slot);
        // It stays out until it is filed.
        self.open.get(&seq).map(|open| Refusal { message: open.message.clone(), code, cursor })
    }

    /// It has its case.
    pub(super) fn filed(&mut self, seq: i64) {
        self.mark(seq);
        self.take(seq);
    }

    /// Its case could not be written; it is tried again.
    pub(super) fn not_filed(&mut self, seq: i64, now: Instant) {
        if let Some(open) = self.open.get_mut(&seq) {
            open.is_out = false;
            open.is_overtaken = true;
            open.until = Some(now + BACKOFF.delay(open.failures, seq.cast_unsigned()));
        }
    }

    /// When it is worth asking [`Window::next`] again though nothing has happened.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        if self.trouble.is_on(now) {
            return self.trouble.until;
        }
        self.open.values().filter_map(|open| open.until).filter(|until| *until > now).min()
    }

    fn mark(&mut self, seq: i64) {
        if let Ok(place) = self.slots.binary_search_by_key(&seq, |(slot, _)| *slot)
            && let Some(slot) = self.slots.get_mut(place)
        {
            slot.1 = true;
        }
        while let Some((seq, true)) = self.slots.front().copied() {
            self.reached = seq;
            self.slots.pop_front();
        }
    }

    fn take(&mut self, seq: i64) -> Option<Open> {
        let open = self.open.remove(&seq)?;
        self.open_bytes = self.open_bytes.saturating_sub(open.message.content.len());
        Some(open)
    }
}

impl Open {
    fn may_leave(&self, now: Instant) -> bool {
        !self.is_out && self.until.is_none_or(|until| until <= now)
    }

    /// Whether it would be refused at its next failure if a later one were accepted before.
    fn needs_check(&self) -> bool {
        self.failures + 1 >= FAILURES_MIN && self.counted >= COUNTED_MIN && !self.is_overtaken
    }

    fn alone(&self) -> Call {
        Call { kind: Kind::Alone, messages: vec![self.message.clone()] }
    }
}

#[cfg(test)]
mod tests;
