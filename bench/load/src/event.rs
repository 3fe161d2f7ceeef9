//! Which events a run sends: a pure function of a seed and a number, so that whoever knows both can
//! say afterwards which effects there must be. The ids look random, as real ones do: a key that
//! grows with time would make every index look better than it is.

use serde_json::json;

/// The topic that events are delivered on.
pub const TOPIC: &str = "bench";
/// The topic that consumers publish to.
pub const TOPIC_OUT: &str = "bench-out";
/// The pub/sub component of both.
pub const PUBSUB: &str = "benchpubsub";
/// The CloudEvents type of every event.
pub const TYPE: &str = "bench.order.placed.v1";
/// The CloudEvents source of every event.
pub const SOURCE: &str = "/bench/shop";
/// Length of an id in characters: 32 hex digits, 128 bits.
pub const ID_LEN: usize = 32;

/// One event in a hundred of a dirty stream is poison, one fails for a while.
const PER_CENT_POISON: u64 = 1;
const PER_CENT_TRANSIENT: u64 = 1;
/// One delivery in ten of a dirty stream is followed by a duplicate of an older one.
const PER_CENT_DUPLICATE: u64 = 10;
/// How many events ago the one was that comes again.
const DUPLICATE_OF_AGO: u64 = 500;
/// How often a transient event fails before it succeeds.
pub const TRANSIENT_FAILURES: u32 = 2;

/// What an event does to its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is handled at once.
    Good,
    /// Its data does not fit the consumer's type: it can never be handled.
    Poison,
    /// Its handling fails [`TRANSIENT_FAILURES`] times and then succeeds.
    Transient,
}

/// A stream of events.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    seed: u64,
    dirty: bool,
}

impl Stream {
    /// The stream of this seed; a dirty one has poison, transient failures and duplicates in it.
    pub fn new(seed: u64, dirty: bool) -> Self {
        Self { seed, dirty }
    }

    /// The id of event `n`.
    pub fn id(&self, n: u64) -> String {
        let high = mixed(self.seed ^ mixed(n));
        let low = mixed(high ^ n.rotate_left(32));
        format!("{high:016x}{low:016x}")
    }

    /// What event `n` does.
    pub fn kind(&self, n: u64) -> Kind {
        if !self.dirty {
            return Kind::Good;
        }
        match mixed(self.seed.wrapping_add(1) ^ mixed(n)) % 100 {
            x if x < PER_CENT_POISON => Kind::Poison,
            x if x < PER_CENT_POISON + PER_CENT_TRANSIENT => Kind::Transient,
            _ => Kind::Good,
        }
    }

    /// The older event that is delivered once more after event `n`, if any.
    pub fn duplicate_after(&self, n: u64) -> Option<u64> {
        let again =
            self.dirty && mixed(self.seed.wrapping_add(2) ^ mixed(n)) % 100 < PER_CENT_DUPLICATE;
        n.checked_sub(DUPLICATE_OF_AGO).filter(|_| again)
    }
}

/// SplitMix64's finaliser: a bijection that spreads its input over all bits.
fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The JSON data of an event: about 200 bytes.
pub fn data(id: &str, kind: Kind) -> String {
    let cents = if kind == Kind::Poison { json!("a lot") } else { json!(123_456) };
    let failures = if kind == Kind::Transient { TRANSIENT_FAILURES } else { 0 };
    json!({
        "orderId": id,
        "customer": "customer-00042",
        "cents": cents,
        "failures": failures,
        "note": "Leave it with the neighbours at number 7 if nobody answers the door, please.",
    })
    .to_string()
}

/// The CloudEvent as a sidecar writes it to the broker.
pub fn cloud_event(id: &str, kind: Kind) -> String {
    let data: serde_json::Value =
        serde_json::from_str(&data(id, kind)).unwrap_or(serde_json::Value::Null);
    // serde_json sorts the keys of an object, and so does the sidecar.
    json!({
        "data": data,
        "datacontenttype": "application/json",
        "id": id,
        "pubsubname": PUBSUB,
        "source": SOURCE,
        "specversion": "1.0",
        "time": "2026-11-30T12:00:00Z",
        "topic": TOPIC,
        "traceid": TRACE,
        "traceparent": TRACE,
        "tracestate": "",
        "type": TYPE,
    })
    .to_string()
}

/// A trace context of the usual length, not sampled.
pub const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_repeat_and_the_shares_of_a_dirty_stream_are_as_told() {
        let stream = Stream::new(7, true);
        let ids: std::collections::HashSet<_> = (0..100_000).map(|n| stream.id(n)).collect();
        assert_eq!(ids.len(), 100_000);
        assert!(ids.iter().all(|id| id.len() == ID_LEN));
        let of = |kind| (0..100_000).filter(|n| stream.kind(*n) == kind).count();
        assert!((900..1100).contains(&of(Kind::Poison)), "{}", of(Kind::Poison));
        assert!((900..1100).contains(&of(Kind::Transient)));
        let again = (0..100_000).filter_map(|n| stream.duplicate_after(n)).count();
        assert!((9_000..11_000).contains(&again), "{again}");
        let clean = Stream::new(7, false);
        assert!(
            (0..1000).all(|n| clean.kind(n) == Kind::Good && clean.duplicate_after(n).is_none())
        );
    }
}
