//! Deliveries that are committed in one group: what one of them meets is its own.

use super::writes::hold;
use super::*;
use crate::custody::State;
use crate::effect::insert;
use crate::outcome::reason;
use crate::store::Claim;

fn stock(item: impl Into<Value>, count: i64) -> Statement {
    insert("stock", [("item", item.into()), ("count", count.into())])
}

/// Commits them in one group, each with an outgoing message, and gives what each came to.
async fn together(
    store: &Store,
    deliveries: Vec<(Arc<Incoming>, Authority, Vec<Statement>)>,
) -> Vec<Committed> {
    let (go, held) = hold(store).await;
    let commits: Vec<_> = deliveries
        .into_iter()
        .map(|(incoming, authority, statements)| {
            let (store, messages) = (store.clone(), vec![outgoing("a", &incoming.event_id)]);
            tokio::spawn(async move {
                store.commit(incoming, authority, statements, messages).await.unwrap()
            })
        })
        .collect();
    tokio::task::yield_now().await;
    go.send(()).unwrap();
    held.await.unwrap();
    let mut committed = Vec::new();
    for commit in commits {
        committed.push(commit.await.unwrap());
    }
    committed
}

fn live(id: &str, statements: Vec<Statement>) -> (Arc<Incoming>, Authority, Vec<Statement>) {
    (message(id), Authority::Delivery, statements)
}

/// Messages that recovery has claimed, in the order of their ids.
async fn claimed(store: &Store, place: &Place, ids: &[String]) -> Vec<Claim> {
    for id in ids {
        store.dead_letter(message(id)).await.unwrap();
    }
    place.pass(Duration::from_secs(3600));
    let (mut claims, other) = store.claim_due(u32::try_from(ids.len()).unwrap()).await.unwrap();
    assert_eq!((claims.len(), other.len()), (ids.len(), 0));
    claims.sort_by_key(|claim| ids.iter().position(|id| *id == claim.incoming.event_id));
    claims
}

async fn those_in_the_way_of_a_group_keep_nobody_else_from_it(place: Place) {
    let store = place.open().await;
    store.commit_one("before", vec![stock("taken", 1)]).await;
    let deliveries = (0..60).map(|n: i64| {
        let statement = match n {
            7 => stock("negative", -1),
            31 => stock("taken", 1).or_reject(FAILED),
            32 => stock("taken", 1),
            // As a text, which the column does not take.
            50 => insert("stock", [("item", "text".into()), ("count", "many".into())]),
            _ => stock(format!("item {n}"), n),
        };
        live(&n.to_string(), vec![statement])
    });
    let committed = together(&store, deliveries.collect()).await;
    for (n, committed) in committed.into_iter().enumerate() {
        match n {
            7 => assert_eq!(committed, Committed::EffectFailed(reason::EFFECT_CONSTRAINT)),
            31 => assert_eq!(committed, Committed::Rejected(FAILED)),
            32 => assert_eq!(committed, Committed::RowsDiffer),
            // SQLite's columns take what they are given.
            50 if !place.is_postgres() => {}
            50 => assert!(matches!(committed, Committed::EffectFailed(_)), "{committed:?}"),
            _ => assert_eq!(committed, Committed::Yes, "{n}"),
        }
    }
    let written = place.on_disk("SELECT count(*) FROM inbox").await;
    assert_eq!(written, if place.is_postgres() { 57 } else { 58 });
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, written);
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox").await, written - 1);
    assert_eq!(place.on_disk("SELECT max(seq) FROM outbox").await, written - 1, "without a gap");
    assert!(store.is_healthy());
}

async fn claimed_runs_end_together_and_leave_nothing_behind(place: Place) {
    let store = place.open().await;
    let ids: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let first = claimed(&store, &place, &ids).await;
    for claim in first {
        let failed = store.fail(claim.incoming, Authority::Run(claim.run), FAILED).await.unwrap();
        assert!(matches!(failed, Written::Recovering { .. }), "{failed:?}");
    }
    // Successes open the gate that so many failures have closed.
    for n in 0..8 {
        store.commit_one(&format!("good {n}"), Vec::new()).await;
        place.pass(Duration::from_secs(3600));
    }
    let (claims, _) = store.claim_due(20).await.unwrap();
    assert_eq!(claims.len(), 20);
    let mut deliveries: Vec<_> = claims
        .into_iter()
        .map(|claim| {
            let row = vec![stock(claim.incoming.event_id.as_str(), 1)];
            (claim.incoming, Authority::Run(claim.run), row)
        })
        .collect();
    // One whose lease was taken over meanwhile.
    if let Some((.., Authority::Run(run), _)) = deliveries.get_mut(4) {
        *run += 1;
    }
    let others = (100..110).map(|n: i64| live(&n.to_string(), vec![stock(n.to_string(), 1)]));
    deliveries.extend(others);
    let late = deliveries[4].0.key;
    let committed = together(&store, deliveries).await;
    for (n, committed) in committed.into_iter().enumerate() {
        match n {
            4 => assert_eq!(committed, Committed::Nothing(Standing::Owned(State::Running))),
            _ => assert_eq!(committed, Committed::Yes, "{n}"),
        }
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 29);
    assert_eq!(place.on_disk("SELECT count(*) FROM message").await, 1);
    assert_eq!(place.on_disk("SELECT count(DISTINCT key) FROM attempt").await, 1);
    assert!(store.look(late).await.unwrap().row.is_some());
}

async fn a_redrive_among_claimed_runs_resolves_its_case(place: Place) {
    let store = place.open().await;
    let id = store.file("redriven", Category::Rejected).await;
    store.request_redrive(id.clone(), "ann".to_owned()).await.unwrap();
    let (redrives, _) = store.claim_due(1).await.unwrap();
    let ids: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    let mut claims = claimed(&store, &place, &ids).await;
    claims.extend(redrives);
    let runs = claims.into_iter().map(|claim| {
        let row = vec![stock(claim.incoming.event_id.as_str(), 1)];
        (claim.incoming, Authority::Run(claim.run), row)
    });
    let committed = together(&store, runs.collect()).await;
    assert!(committed.iter().all(|one| *one == Committed::Yes), "{committed:?}");
    let resolved = "SELECT count(*) FROM exception WHERE status = 'resolved'";
    assert_eq!(place.on_disk(resolved).await, 1);
    assert_eq!(place.on_disk("SELECT count(*) FROM attempt").await, 1, "the case keeps its own");
    assert_eq!(place.on_disk("SELECT count(*) FROM message").await, 0);
}

async fn a_group_s_successes_open_a_gate_as_far_as_one_by_one(place: Place) {
    let store = place.open().await;
    store.fail(message("fails"), Authority::Delivery, FAILED).await.unwrap();
    assert_eq!(store.gates().await.unwrap().len(), 1, "it counts");
    let deliveries = |from: i64| {
        let row = |n: i64| live(&n.to_string(), vec![stock(n.to_string(), 1)]);
        (from..from + 10).map(row).collect::<Vec<_>>()
    };
    together(&store, deliveries(0)).await;
    assert_eq!(store.gates().await.unwrap().len(), 0, "a success ends the count");

    store.act_on_gate("orders".to_owned(), FAILED, GateAct::Hold, "ann".to_owned()).await.unwrap();
    together(&store, deliveries(10)).await;
    let gates = store.gates().await.unwrap();
    assert!(gates.len() == 1 && gates[0].gate.held, "only who holds it opens it");
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 20);
}

on_both!(
    those_in_the_way_of_a_group_keep_nobody_else_from_it,
    claimed_runs_end_together_and_leave_nothing_behind,
    a_redrive_among_claimed_runs_resolves_its_case,
    a_group_s_successes_open_a_gate_as_far_as_one_by_one,
);
