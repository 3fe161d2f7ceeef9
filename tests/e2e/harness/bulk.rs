//! Orders in bulk: the same tests, with many events in one call of the sidecar.
//!
//! `BACKSTOP_ORDERS_BULK=on cargo test --test e2e` runs every test so. Where one then sees something
//! else, it says what.

use futures::future::join_all;
use serde_json::Value;

use super::{RETRY, SUCCESS, Setup, TOPIC, World, bytes};

/// Whether whoever runs the tests wants all of them in bulk.
pub(super) fn is_asked_for() -> bool {
    #[allow(clippy::disallowed_methods, reason = "chooses how tests run, configures no service")]
    let asked = std::env::var("BACKSTOP_ORDERS_BULK");
    match asked.as_deref() {
        Ok("on") => true,
        Ok("off") | Err(_) => false,
        Ok(other) => panic!("BACKSTOP_ORDERS_BULK is on or off, not {other:?}"),
    }
}

impl Setup {
    /// Orders come in bulk, whatever the environment says.
    #[must_use]
    pub fn in_bulk(mut self) -> Self {
        self.is_bulk = true;
        self
    }

    /// Orders come one by one, whatever the environment says.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.is_bulk = false;
        self
    }
}

impl World {
    /// What the sidecar is answered when trying again may help: in bulk it is not asked to, because
    /// the store has taken the event over.
    pub fn not_now(&self) -> i32 {
        if self.is_bulk { SUCCESS } else { RETRY }
    }

    /// The state of an event that has failed, before the first recovery.
    pub fn after_failure(&self) -> &'static str {
        if self.is_bulk { "recovering" } else { "retrying" }
    }

    /// Publishes events so that all of them can be in hand at the same time. One batch of a topic is
    /// under way at a time, so in bulk they must come in one.
    pub async fn publish_at_once(&self, events: &[Value]) {
        if self.is_bulk {
            let data: Vec<Vec<u8>> = events.iter().map(bytes).collect();
            self.redis.add_at_once(TOPIC, &data);
        } else {
            join_all(events.iter().map(|event| self.publish(event))).await;
        }
    }
}
