use super::*;
use bytes::Bytes;
use proptest::prelude::*;

const BROKER: Code = Code::new("broker_failed");

fn failed() -> Result<(), PublishError> {
    Err(PublishError::Failed(BROKER))
}

fn message(seq: i64, key: Option<&str>) -> Outgoing {
    Outgoing {
        log: 1,
        seq,
        pubsub: "pubsub".to_owned(),
        topic: "topic".to_owned(),
        message_id: seq.to_string(),
        ordering_key: key.map(str::to_owned),
        due_at: None,
        content: Bytes::from_static(b"{}"),
    }
}

/// A window with messages of these keys, numbered from 1.
fn window(keys: &[Option<&str>]) -> Window {
    let mut window = Window::new(0);
    let messages = keys.iter().zip(1..).map(|(key, seq)| message(seq, *key)).collect();
    window.add(messages, i64::try_from(keys.len()).unwrap());
    window
}

fn seqs(call: &Call) -> Vec<i64> {
    call.messages.iter().map(|message| message.seq).collect()
}

/// A topic whose broker does what `accepts` says of each message, driven through its own time.
struct Driven {
    window: Window,
    now: Instant,
    began: Instant,
    /// What was accepted, in order.
    accepted: Vec<i64>,
    calls: usize,
    /// Calls for one message alone.
    tries: Vec<(Duration, i64)>,
    refused: Vec<i64>,
}

impl Driven {
    fn new(window: Window) -> Self {
        let now = Instant::now();
        let (accepted, tries, refused) = (Vec::new(), Vec::new(), Vec::new());
        Self { window, now, began: now, accepted, calls: 0, tries, refused }
    }

    /// Goes on until nothing is left, or for that long.
    fn run(&mut self, limit: Duration, accepts: impl Fn(i64, Duration) -> bool) {
        let until = self.now + limit;
        while self.now < until {
            let Some(call) = self.window.next(self.now) else {
                match self.window.wakes_at(self.now) {
                    Some(at) => self.now = at.min(until),
                    None => return,
                }
                continue;
            };
            self.calls += 1;
            let at = self.now - self.began;
            let (sent, mut result) = (seqs(&call), Ok(()));
            if call.kind == Kind::Alone {
                self.tries.push((at, sent[0]));
            }
            for seq in &sent {
                if accepts(*seq, at) {
                    self.accepted.push(*seq);
                } else {
                    result = failed();
                }
            }
            if let Some(refusal) = self.window.ended(call.kind, &sent, result, self.now) {
                self.window.filed(refusal.message.seq);
                assert_eq!(self.window.reached(), refusal.cursor.max(self.window.reached()));
                self.refused.push(refusal.message.seq);
            }
            self.now += Duration::from_millis(1);
        }
    }

    fn tries_of(&self, seq: i64) -> usize {
        self.tries.iter().filter(|(_, tried)| *tried == seq).count()
    }
}

#[test]
fn a_batch_has_of_each_key_one_message_and_the_next_leaves_after_it() {
    let mut window = window(&[Some("a"), Some("a"), None, Some("b"), None, Some("a")]);
    let now = Instant::now();
    let first = window.next(now).unwrap();
    assert_eq!((first.kind, seqs(&first)), (Kind::Batch, vec![1, 3, 4, 5]));
    assert!(window.next(now).is_none(), "its key is out");
    assert!(window.ended(first.kind, &seqs(&first), Ok(()), now).is_none());
    assert_eq!(window.reached(), 1);
    for expected in [2, 6] {
        let next = window.next(now).unwrap();
        assert_eq!((next.kind, seqs(&next)), (Kind::Alone, vec![expected]));
        assert!(window.ended(next.kind, &seqs(&next), Ok(()), now).is_none());
    }
    assert_eq!(window.reached(), 6);
    assert!(window.is_empty());
}

#[test]
fn batches_are_bounded_in_number_and_bytes_and_few_are_out_at_a_time() {
    let mut window = window(&[None; 900]);
    let now = Instant::now();
    let sizes: Vec<usize> =
        std::iter::from_fn(|| window.next(now)).map(|call| call.messages.len()).collect();
    assert_eq!(sizes, [BATCH_MAX; BATCHES_MAX]);

    let mut window = Window::new(0);
    let large = |seq, size: usize| Outgoing { content: vec![0; size].into(), ..message(seq, None) };
    window.add(vec![large(1, 600_000), large(2, 600_000), large(3, 3 << 20), large(4, 9)], 4);
    let calls: Vec<Vec<i64>> =
        std::iter::from_fn(|| window.next(now)).map(|call| seqs(&call)).collect();
    assert_eq!(calls, [vec![1], vec![2], vec![3], vec![4]]);
}

#[test]
fn what_was_accepted_beyond_one_that_does_not_leave_is_not_sent_again() {
    let mut driven = Driven::new(window(&[None; 50]));
    driven.run(Duration::from_secs(3), |seq, _| seq != 7);
    assert_eq!(driven.window.reached(), 6);
    // Once in the batch that failed, and once alone.
    for seq in (1..=50).filter(|seq| *seq != 7) {
        let times = driven.accepted.iter().filter(|accepted| **accepted == seq).count();
        assert_eq!(times, 2, "{seq}");
    }
}

#[test]
fn one_that_always_fails_alone_is_refused_after_its_eighth_failure_and_the_others_have_left() {
    let mut driven = Driven::new(window(&[None; 100]));
    driven.run(Duration::from_secs(600), |seq, _| seq != 1);
    assert_eq!(driven.refused, [1]);
    assert_eq!(driven.tries_of(1), 8);
    let (last, _) = driven.tries.iter().rfind(|(_, seq)| *seq == 1).unwrap();
    assert!((secs(17)..secs(33)).contains(last), "about 25 s: {last:?}");
    assert_eq!(driven.window.reached(), 100);
    let others = driven.tries.iter().filter(|(_, seq)| *seq != 1).map(|(at, _)| *at).max();
    assert!(others.unwrap() < secs(2), "the others do not wait for it: {others:?}");
    let twice = driven.accepted.iter().filter(|seq| **seq == 100).count();
    assert_eq!(
        twice, 3,
        "in the batch, alone, and once more as the proof that the topic takes any"
    );
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn one_that_failed_only_after_all_others_had_left_is_refused_too() {
    let mut window = window(&[None; 3]);
    let now = Instant::now();
    let batch = window.next(now).unwrap();
    // As if the first had been too large for the batch and were still out.
    window.batch_failed(&[1], false, now);
    window.accepted(Kind::Batch, &[2, 3]);
    window.batches = 0;
    drop(batch);
    let mut driven = Driven::new(window);
    driven.run(secs(600), |seq, _| seq != 1);
    assert_eq!((driven.refused, driven.tries.len()), (vec![1], 8));
}

#[test]
fn what_failed_during_an_outage_is_not_refused_for_one_failure_after_it() {
    // Others left, then an outage, and when it is over the first fails a few times more.
    let mut driven = Driven::new(window(&[None; 20]));
    driven.run(secs(3), |seq, _| seq != 1);
    driven.run(secs(3600), |_, _| false);
    driven.window.add((21..40).map(|seq| message(seq, None)).collect(), 39);
    driven.run(secs(40), |seq, at| seq != 1 || at > secs(3630));
    assert!(driven.refused.is_empty());
    driven.run(secs(60), |_, _| true);
    assert_eq!(driven.window.reached(), 39);
}

#[test]
fn two_that_always_fail_are_both_refused() {
    let mut driven = Driven::new(window(&[None; 20]));
    driven.run(Duration::from_secs(600), |seq, _| ![3, 12].contains(&seq));
    driven.refused.sort_unstable();
    assert_eq!(driven.refused, [3, 12]);
    assert_eq!(driven.window.reached(), 20);
}

#[test]
fn an_outage_refuses_nothing_however_long_and_costs_few_calls() {
    let hours = secs(4 * 3600);
    let mut driven = Driven::new(window(&[None; 300]));
    driven.run(hours, |_, _| false);
    assert_eq!((driven.refused.len(), driven.window.reached()), (0, 0));
    assert!(driven.calls < 4 * 3600 / 10, "{} calls in four hours", driven.calls);
    driven.run(secs(60), |_, _| true);
    assert_eq!(driven.window.reached(), 300);
    let first = driven.tries.iter().map(|(at, _)| *at).find(|at| *at >= hours).unwrap();
    assert!(first < hours + secs(19), "noticed to be over: {first:?}");
}

#[test]
fn an_outage_that_begins_after_others_left_refuses_nothing() {
    // The first fails a few times while others are accepted; then nothing is, for a day.
    for outage_at in [1, 2, 3, 5, 8, 13, 20, 24] {
        let mut driven = Driven::new(window(&[None; 20]));
        let accepts = |seq, at| at < secs(outage_at) && seq != 4;
        driven.run(secs(86_400), accepts);
        assert!(driven.refused.is_empty(), "outage after {outage_at} s");
        driven.run(secs(60), |_, _| true);
        assert_eq!(driven.window.reached(), 20, "outage after {outage_at} s");
    }
}

#[test]
fn those_behind_one_of_their_key_that_fails_wait_and_others_go_on() {
    let mut driven = Driven::new(window(&[Some("a"), None, Some("a"), Some("b"), Some("b")]));
    driven.run(secs(10), |seq, _| seq != 1);
    assert_eq!(driven.window.reached(), 0);
    let accepted: HashSet<i64> = driven.accepted.iter().copied().collect();
    assert_eq!(accepted, HashSet::from([2, 4, 5]));
    driven.run(secs(600), |seq, _| seq != 1);
    assert_eq!(driven.refused, [1]);
    assert_eq!(driven.window.reached(), 5, "the next of its key goes on when it has its case");
}

#[test]
fn what_is_certain_to_be_refused_is_refused_at_once_but_never_by_a_batch() {
    let too_large = || Err(PublishError::Refused(Code::new("message_too_large")));
    let mut window = window(&[None; 2]);
    let now = Instant::now();
    let batch = window.next(now).unwrap();
    assert!(window.ended(batch.kind, &seqs(&batch), too_large(), now).is_none());
    let alone = window.next(now).unwrap();
    assert_eq!((alone.kind, seqs(&alone)), (Kind::Alone, vec![1]));
    let refusal = window.ended(alone.kind, &[1], too_large(), now).unwrap();
    assert_eq!((refusal.message.seq, refusal.cursor), (1, 1));
    window.not_filed(1, now);
    let later = now + secs(1);
    let other = window.next(later).unwrap();
    assert_eq!(seqs(&other), [1], "its case could not be written, so it is tried again");
    window.ended(other.kind, &[1], too_large(), later).unwrap();
    window.filed(1);
    assert_eq!(window.reached(), 1);
}

#[test]
fn a_broker_that_takes_no_batches_gets_them_ever_more_rarely() {
    let mut window = window(&[None; 900]);
    let began = Instant::now();
    let (mut now, mut batches, mut next) = (began, 0, 901);
    while now < began + secs(600) {
        if let Some(call) = window.next(now) {
            let result = if call.kind == Kind::Batch { failed() } else { Ok(()) };
            batches += usize::from(call.kind == Kind::Batch);
            assert!(window.ended(call.kind, &seqs(&call), result, now).is_none());
            window.add(vec![message(next, None)], next);
            next += 1;
        }
        now += Duration::from_millis(50);
    }
    assert!((5..20).contains(&batches), "{batches} batches in ten minutes");
}

#[test]
fn what_is_in_hand_is_bounded() {
    let mut window = Window::new(0);
    let mut next = 1;
    let now = Instant::now();
    // The first never leaves; everything else does.
    for _ in 0..300_000 {
        if let Some((after, max, _)) = window.wants(i64::MAX) {
            assert_eq!(after, next - 1);
            let messages = (next..).take(max as usize).map(|seq| message(seq, None));
            window.add(messages.collect(), i64::MAX);
            next += i64::from(max);
        }
        assert!(window.open.len() <= HELD_MAX && window.slots.len() <= WINDOW_MAX);
        let Some(call) = window.next(now) else { break };
        let rest: Vec<i64> = seqs(&call).into_iter().filter(|seq| *seq != 1).collect();
        window.accepted(call.kind, &rest);
        match call.kind {
            Kind::Batch => window.batches = 0,
            _ => window.alone = 0,
        }
    }
    assert_eq!(window.reached(), 0);
    assert!(window.slots.len() > WINDOW_MAX - 2 * HELD_MAX, "{}", window.slots.len());
    assert!(window.wants(i64::MAX).is_none());
}

proptest! {
    /// Whatever fails when: each key's first copies arrive in order, nothing is left out, and the
    /// cursor never passes what has not left.
    #[test]
    fn the_order_of_each_key_holds_whatever_fails(
        keys in prop::collection::vec(0_u8..5, 1..60),
        fails in prop::collection::vec(any::<bool>(), 1..200),
        order in any::<u64>(),
    ) {
        const NAMES: [Option<&str>; 5] = [None, Some("a"), Some("b"), Some("c"), Some("d")];
        let key_of: Vec<Option<&str>> =
            keys.iter().map(|key| NAMES[usize::from(*key)]).collect();
        let mut window = window(&key_of);
        let (mut now, mut out, mut order) = (Instant::now(), Vec::new(), order);
        let mut left: Vec<i64> = Vec::new();
        let mut fails = fails.into_iter();
        for _ in 0..20_000 {
            if window.is_empty() { break }
            while let Some(call) = window.next(now) { out.push(call); }
            if out.is_empty() {
                now = window.wakes_at(now).unwrap_or(now + secs(1));
                continue;
            }
            // Any of what is out ends next; a batch arrives in no order, and perhaps in part.
            order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = usize::try_from(order >> 33).unwrap() % out.len();
            let call: Call = out.swap_remove(place);
            let is_bad = fails.next().unwrap_or(false);
            let mut arrived = seqs(&call);
            arrived.reverse();
            if is_bad { arrived.truncate(arrived.len() / 2); }
            left.extend(arrived);
            let result = if is_bad { failed() } else { Ok(()) };
            if let Some(refusal) = window.ended(call.kind, &seqs(&call), result, now) {
                left.push(refusal.message.seq);
                window.filed(refusal.message.seq);
            }
            let passed = (1..=window.reached()).find(|seq| !left.contains(seq));
            prop_assert_eq!(passed, None, "the cursor passed it");
            now += Duration::from_millis(1);
        }
        prop_assert!(window.is_empty());
        for name in NAMES.into_iter().flatten() {
            let of_key = |seq: &i64| key_of[usize::try_from(*seq - 1).unwrap()] == Some(name);
            let mut first_copies: Vec<i64> = Vec::new();
            for seq in left.iter().copied().filter(of_key) {
                if !first_copies.contains(&seq) { first_copies.push(seq); }
            }
            prop_assert!(first_copies.is_sorted(), "{:?}", first_copies);
        }
    }
}
