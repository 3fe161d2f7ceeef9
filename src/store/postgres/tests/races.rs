//! Two replicas write about the same messages at the same time.

use std::sync::Arc;

use super::*;
use crate::outcome::Category;
use crate::store::postgres::connect::Connector;
use crate::store::sql::Sql;

/// Keeps a message from everybody until it is dropped or released.
struct Hold {
    release: std::sync::mpsc::Sender<()>,
    held: tokio::task::JoinHandle<()>,
}

impl Hold {
    async fn of(place: &Place, incoming: &Arc<Incoming>) -> Self {
        let StoreUrl::Postgres(settings) = &place.url else { panic!("{:?}", place.url) };
        let connection = Connector::new(settings).unwrap().connect().await.unwrap();
        let (release, released) = std::sync::mpsc::channel();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let key = incoming.key;
        let held = tokio::task::spawn_blocking(move || {
            connection.begin().unwrap();
            connection.lock(&[key]).unwrap();
            begun.send(()).unwrap();
            released.recv().unwrap();
            connection.roll_back().unwrap();
        });
        has_begun.await.unwrap();
        Self { release, held }
    }

    async fn release(self) {
        self.release.send(()).unwrap();
        self.held.await.unwrap();
    }
}

/// Waits until so many wait for the message's lock.
async fn waiting_for(place: &Place, incoming: &Arc<Incoming>, wanted: i64) {
    let StoreUrl::Postgres(settings) = &place.url else { panic!("{:?}", place.url) };
    let number = incoming.key.seed().cast_signed()
        ^ crate::store::postgres::connect::lock_space(&settings.schema);
    let (high, low) = (number.cast_unsigned() >> 32, number.cast_unsigned() & 0xffff_ffff);
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
         AND classid::bigint = {high} AND objid::bigint = {low}"
    );
    until(place, &waiting, wanted).await;
}

/// Whether the store holds an inbox key, and a row, for the message.
async fn held(place: &Place, incoming: &Arc<Incoming>) -> (bool, bool) {
    let store = place.open_as(OpenAs::Operator).await.unwrap();
    let look = store.look(incoming.key).await.unwrap();
    (look.done.is_some(), look.row.is_some())
}

#[tokio::test]
async fn a_commit_and_a_first_row_never_both_win() {
    let place = Place::postgres();
    let (one, two) = (place.open().await, place.open().await);
    let mut won = [0, 0];
    for n in 0..20 {
        let incoming = message(&n.to_string());
        let hold = Hold::of(&place, &incoming).await;
        let (first, second) = (one.clone(), two.clone());
        let effects = vec![note("effect")];
        let committing = Arc::clone(&incoming);
        let commit = tokio::spawn(async move {
            first.commit(committing, Authority::Delivery, effects, Vec::new()).await
        });
        let arriving = Arc::clone(&incoming);
        let dead = tokio::spawn(async move { second.dead_letter(arriving).await });
        waiting_for(&place, &incoming, 2).await;
        hold.release().await;
        match (commit.await.unwrap().unwrap(), dead.await.unwrap().unwrap()) {
            (Committed::Yes, Written::Nothing(Standing::Done)) => {
                assert_eq!(held(&place, &incoming).await, (true, false));
                won[0] += 1;
            }
            (
                Committed::Nothing(Standing::Owned(State::Recovering)),
                Written::Recovering { .. },
            ) => {
                assert_eq!(held(&place, &incoming).await, (false, true));
                won[1] += 1;
            }
            both => panic!("{both:?}"),
        }
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, won[0]);
}

#[tokio::test]
async fn every_conditional_write_that_loses_to_a_commit_writes_nothing() {
    let place = Place::postgres();
    let (one, two) = (place.open().await, place.open().await);
    for (n, name) in ["fail", "refuse", "claim", "dead", "commit"].into_iter().enumerate() {
        let incoming = message(&n.to_string());
        let hold = Hold::of(&place, &incoming).await;
        let effects = vec![note("effect")];
        let (store, committing) = (one.clone(), Arc::clone(&incoming));
        let commit = tokio::spawn(async move {
            store.commit(committing, Authority::Delivery, effects, Vec::new()).await
        });
        // Whoever waits first is served first.
        waiting_for(&place, &incoming, 1).await;
        let (store, losing) = (two.clone(), Arc::clone(&incoming));
        let loser = tokio::spawn(async move {
            let delivery = Authority::Delivery;
            let standing = match name {
                "fail" => store.fail(losing, delivery, FAILED).await.map(standing),
                "refuse" => {
                    let category = Category::Rejected;
                    store.refuse(losing, delivery, category, FAILED, true).await.map(standing)
                }
                "claim" => store.claim_live(losing).await.map(|claim| claim.unwrap_err()),
                "dead" => store.dead_letter(losing).await.map(standing),
                _ => {
                    let effects = vec![note("twice")];
                    let committed = store.commit(losing, delivery, effects, Vec::new()).await;
                    committed.map(|committed| match committed {
                        Committed::Nothing(standing) => standing,
                        other => panic!("{other:?}"),
                    })
                }
            };
            standing.unwrap()
        });
        waiting_for(&place, &incoming, 2).await;
        hold.release().await;
        assert_eq!(commit.await.unwrap().unwrap(), Committed::Yes, "{name}");
        assert_eq!(loser.await.unwrap(), Standing::Done, "{name}");
        assert_eq!(held(&place, &incoming).await, (true, false), "{name}");
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note WHERE text = 'effect'").await, 5);
    assert_eq!(place.on_disk("SELECT count(*) FROM note WHERE text = 'twice'").await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM attempt").await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM exception").await, 0);
}

fn standing(written: Written) -> Standing {
    match written {
        Written::Nothing(standing) => standing,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_replicas_never_claim_the_same_recovery() {
    let place = Place::postgres();
    let (one, two) = (place.open().await, place.open().await);
    for n in 0..60 {
        one.dead_letter(message(&n.to_string())).await.unwrap();
    }
    let mut claimed = Vec::new();
    while claimed.len() < 60 {
        let (first, second) = tokio::join!(one.claim_due(8), two.claim_due(8));
        let before = claimed.len();
        for (claims, _) in [first.unwrap(), second.unwrap()] {
            claimed.extend(claims.into_iter().map(|claim| claim.incoming.event_id.clone()));
        }
        assert!(claimed.len() > before, "nobody claims any more after {before}");
    }
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), 60);
    assert_eq!(place.on_disk("SELECT count(*) FROM message WHERE run = 1").await, 60);
}

#[tokio::test]
async fn the_same_messages_in_opposite_orders_are_committed_once_and_nobody_waits_in_a_circle() {
    let place = Place::postgres();
    let (one, two) = (place.open().await, place.open().await);
    let mut commits = Vec::new();
    for n in 0..150 {
        for (store, n) in [(&one, n), (&two, 149 - n)] {
            let store = store.clone();
            let row = insert("stock", [("item", n.to_string().into()), ("count", 1.into())]);
            commits.push(tokio::spawn(async move {
                let committed = store.commit_one(&n.to_string(), vec![row]).await;
                committed == Committed::Yes
            }));
        }
    }
    let mut yes = 0;
    for commit in commits {
        yes += i64::from(commit.await.unwrap());
    }
    assert_eq!((yes, place.on_disk("SELECT count(*) FROM stock").await), (150, 150));
}
