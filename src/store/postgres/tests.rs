//! What only PostgreSQL can meet: replicas, connections that are cut, commits in doubt.

use std::time::Duration;

use crate::clock::Clock;
use crate::custody::{Authority, Limits, Standing, State};
use crate::effect::{Value, insert, sql};
use crate::store::conformance::{FAILED, Place, TABLES, message, note, outgoing, server};
use crate::store::{
    AppMigration, Committed, Incoming, OpenAs, Store, StoreError, StoreUrl, Written,
};

mod failover;
mod processes;
mod proxy;
mod races;
mod timeouts;
mod tls;

/// Waits until a query on the server gives this number.
async fn until(place: &Place, query: &str, wanted: i64) {
    for _ in 0..2000 {
        if place.on_disk(query).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{query} never gave {wanted}");
}

/// The place with other settings.
fn with(place: &Place, change: impl FnOnce(&mut super::PostgresSettings)) -> StoreUrl {
    let StoreUrl::Postgres(mut settings) = place.url.clone() else { panic!("{:?}", place.url) };
    change(&mut settings);
    StoreUrl::Postgres(settings)
}

async fn open_at(url: &StoreUrl, clock: &Clock) -> Store {
    let opened = Store::open(url, OpenAs::Service, vec![TABLES], Limits::default(), clock.clone());
    opened.await.unwrap()
}
