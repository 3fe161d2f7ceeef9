//! The writer: one transaction for many, one delivery's failure its own, answers after the commit.

use tokio::sync::oneshot;

use super::*;
use crate::custody::State;
use crate::effect::{insert, upsert};
use crate::outcome::reason;

fn add(ledger: &Ledger<'_>, text: &str) -> Result<(), StoreError> {
    ledger.sql.execute("INSERT INTO note (text) VALUES ($1)", params![text]).map(drop)
}

/// Holds the writer in a job until the sender speaks, so that what follows queues up behind it and
/// shares one transaction.
pub(super) async fn hold(store: &Store) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (go, wait) = oneshot::channel();
    let (begun, has_begun) = oneshot::channel();
    let store = store.clone();
    let held = tokio::spawn(async move {
        let mut ends = Some((begun, wait));
        let job = move |_: &Ledger<'_>| {
            let (begun, wait) = ends.take().unwrap();
            begun.send(()).unwrap();
            wait.blocking_recv().unwrap();
            Ok(Kept::Undo(()))
        };
        store.writer().write_alone(job).await.unwrap();
    });
    has_begun.await.unwrap();
    (go, held)
}

type Job = Box<dyn FnMut(&Ledger<'_>) -> Result<Kept<&'static str>, StoreError> + Send>;

/// Queues jobs in this order and gives their answers.
async fn together(store: &Store, jobs: Vec<Job>) -> Vec<Result<&'static str, StoreError>> {
    let (go, held) = hold(store).await;
    let mut answers = Vec::new();
    for mut job in jobs {
        let store = store.clone();
        let (queued, is_queued) = oneshot::channel();
        answers.push(tokio::spawn(async move {
            let mut write = std::pin::pin!(store.write(None, move |ledger| job(ledger)));
            // The first poll queues the job.
            assert!(futures::poll!(write.as_mut()).is_pending());
            queued.send(()).unwrap();
            write.await
        }));
        is_queued.await.unwrap();
    }
    go.send(()).unwrap();
    held.await.unwrap();
    let mut results = Vec::new();
    for answer in answers {
        results.push(answer.await.unwrap());
    }
    results
}

fn writes(text: &'static str) -> Job {
    Box::new(move |ledger| add(ledger, text).map(|()| Kept::Keep(text)))
}

async fn one_delivery_s_bad_sql_undoes_nothing_of_its_neighbours(place: Place) {
    let store = place.open().await;
    let fails: Job = Box::new(|ledger| {
        add(ledger, "half of a failing one")?;
        ledger.sql.execute("INSERT INTO nowhere VALUES (1)", &[])?;
        Ok(Kept::Keep("never"))
    });
    let undone: Job = Box::new(|ledger| add(ledger, "undone").map(|()| Kept::Undo("undone")));
    let answers = together(&store, vec![writes("first"), fails, undone, writes("last")]).await;
    assert_eq!(answers[0].as_ref().unwrap(), &"first");
    assert!(matches!(&answers[1], Err(StoreError::Away(_))), "{:?}", answers[1]);
    assert_eq!(answers[2].as_ref().unwrap(), &"undone");
    assert_eq!(answers[3].as_ref().unwrap(), &"last");
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 2);
    assert!(store.is_healthy());
}

async fn what_only_the_commit_finds_out_fails_alone_and_counts_for_its_own_message(place: Place) {
    let store = place.open().await;
    let (go, held) = hold(&store).await;
    let dangling = insert("line", [("item", "unknown".into())]);
    let commit = |id: &'static str, statements: Vec<Statement>| {
        let store = store.clone();
        tokio::spawn(async move {
            store.commit(message(id), Authority::Delivery, statements, Vec::new()).await
        })
    };
    let commits = [
        commit("1", vec![note("first")]),
        commit("2", vec![note("second"), dangling]),
        commit("3", vec![note("third")]),
    ];
    tokio::task::yield_now().await;
    go.send(()).unwrap();
    held.await.unwrap();
    let mut committed = Vec::new();
    for commit in commits {
        committed.push(commit.await.unwrap().unwrap());
    }
    let constraint = Committed::EffectFailed(reason::EFFECT_CONSTRAINT);
    assert_eq!(committed, [Committed::Yes, constraint, Committed::Yes]);
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 2, "neither lost nor twice");
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 2);
    assert!(store.is_healthy(), "it is the message's fault, not the store's");
}

async fn one_event_in_fifty_with_bad_sql_fails_alone(place: Place) {
    let store = place.open().await;
    let commits = (0..200).map(|n: i64| {
        let count = if n % 50 == 17 { -1 } else { n };
        let id = n.to_string();
        let row = insert("stock", [("item", id.as_str().into()), ("count", count.into())]);
        let store = store.clone();
        tokio::spawn(async move { (n, store.commit_one(&id, vec![row]).await) })
    });
    for commit in commits.collect::<Vec<_>>() {
        let (n, committed) = commit.await.unwrap();
        let expected = match n % 50 {
            17 => Committed::EffectFailed(reason::EFFECT_CONSTRAINT),
            _ => Committed::Yes,
        };
        assert_eq!(committed, expected, "{n}");
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 196);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 196);
}

async fn the_same_message_committed_many_times_at_once_is_committed_once(place: Place) {
    let store = place.open().await;
    let commits = (0..50).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.commit_one("1", vec![note("once")]).await })
    });
    let mut yes = 0;
    for commit in commits.collect::<Vec<_>>() {
        match commit.await.unwrap() {
            Committed::Yes => yes += 1,
            other => assert_eq!(other, Committed::Nothing(Standing::Done)),
        }
    }
    assert_eq!((yes, place.on_disk("SELECT count(*) FROM note").await), (1, 1));
}

async fn a_message_in_trouble_and_a_done_one_among_good_ones_are_left_as_they_are(place: Place) {
    let store = place.open().await;
    let line = || vec![insert("line", [("item", Value::Null)])];
    store.commit_one("done", line()).await;
    store.dead_letter(message("in trouble")).await.unwrap();
    let (go, held) = hold(&store).await;
    let commits = ["1", "in trouble", "2", "done", "3"].map(|id| {
        let (store, effects) = (store.clone(), line());
        tokio::spawn(async move { store.commit_one(id, effects).await })
    });
    tokio::task::yield_now().await;
    go.send(()).unwrap();
    held.await.unwrap();
    let mut committed = Vec::new();
    for commit in commits {
        committed.push(commit.await.unwrap());
    }
    let owned = Committed::Nothing(Standing::Owned(State::Recovering));
    let done = Committed::Nothing(Standing::Done);
    assert_eq!(committed, [Committed::Yes, owned, Committed::Yes, done, Committed::Yes]);
    assert_eq!(place.on_disk("SELECT count(*) FROM line").await, 4);
}

/// Deliveries that queue up together, of every form.
async fn deliveries_of_all_forms_together_come_to_the_same_as_one_by_one(place: Place) {
    let store = place.open().await;
    store.commit_one("done", vec![note("before")]).await;
    store.dead_letter(message("in trouble")).await.unwrap();
    let stock = |item: &str, count: i64| [("item", item.into()), ("count", count.into())];
    let forms: Vec<(&str, Vec<Statement>, Committed)> = vec![
        ("1", vec![insert("stock", stock("a", 1))], Committed::Yes),
        ("22", vec![insert("stock", stock("b", 2)), note("b")], Committed::Yes),
        ("333", vec![upsert("stock", ["item"], stock("c", 3))], Committed::Yes),
        (
            "4",
            vec![insert("stock", stock("d", 4)), insert("line", [("item", "d".into())])],
            Committed::Yes,
        ),
        ("5", vec![insert("line", [("item", Value::Null)])], Committed::Yes),
        ("6", Vec::new(), Committed::Yes),
        ("done", vec![insert("line", [("item", Value::Null)])], Committed::Nothing(Standing::Done)),
        (
            "in trouble",
            vec![insert("line", [("item", Value::Null)])],
            Committed::Nothing(Standing::Owned(State::Recovering)),
        ),
        (
            "7",
            vec![insert("stock", stock("e", -1))],
            Committed::EffectFailed(reason::EFFECT_CONSTRAINT),
        ),
        (
            "8",
            vec![insert("nowhere", stock("e", 1))],
            Committed::EffectFailed(reason::EFFECT_FAILED),
        ),
        ("9", vec![upsert("stock", ["item"], stock("f", 6))], Committed::Yes),
    ];
    // Alone, then with a neighbour each time one longer: every one meets every other.
    for round in 0..3 {
        let (go, held) = hold(&store).await;
        let mut commits = Vec::new();
        for (id, statements, _) in forms.iter().skip(round) {
            let (store, statements) = (store.clone(), statements.clone());
            let id = if round == 0 || !id.starts_with(|c: char| c.is_ascii_digit()) {
                (*id).to_owned()
            } else {
                format!("{id}-{round}")
            };
            let outgoing = vec![outgoing(&format!("topic {}", id.len() % 2), &id)];
            commits.push(tokio::spawn(async move {
                store.commit(message(&id), Authority::Delivery, statements, outgoing).await
            }));
        }
        go.send(()).unwrap();
        held.await.unwrap();
        for (commit, (id, statements, expected)) in
            commits.into_iter().zip(forms.iter().skip(round))
        {
            let committed = commit.await.unwrap().unwrap();
            let inserts_stock_again = round > 0
                && *expected == Committed::Yes
                && statements.iter().any(|one| *one != note("b") && is_insert_of(one, "stock"));
            let expected = if inserts_stock_again { &Committed::RowsDiffer } else { expected };
            assert_eq!(&committed, expected, "{id} in round {round}");
        }
    }
    let outbox = place.on_disk("SELECT count(*) FROM outbox").await;
    let inbox = place.on_disk("SELECT count(*) FROM inbox").await;
    assert_eq!(outbox, inbox - 1, "one message each, but for the first");
    let gaps = "SELECT count(*) FROM (SELECT log, max(seq) - count(*) AS gap FROM outbox GROUP BY log) AS logs
        WHERE gap <> 0";
    assert_eq!(place.on_disk(gaps).await, 0);
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 5);
    assert_eq!(place.on_disk("SELECT count FROM stock WHERE item = 'f'").await, 6);
}

fn is_insert_of(statement: &Statement, name: &str) -> bool {
    matches!(&statement.action, crate::effect::Action::Insert { table, .. } if *table == name)
}

async fn the_answer_comes_when_another_process_can_see_the_write(place: Place) {
    let store = place.open().await;
    for n in 1..=20 {
        assert_eq!(store.commit_one(&n.to_string(), vec![note("done")]).await, Committed::Yes);
        assert_eq!(place.on_disk("SELECT count(*) FROM note").await, n);
    }
}

async fn a_job_whose_caller_has_gone_away_still_commits(place: Place) {
    let store = place.open().await;
    let (go, held) = hold(&store).await;
    {
        let alone = |ledger: &Ledger<'_>| add(ledger, "alone").map(Kept::Keep);
        let mut write = std::pin::pin!(store.write(None, alone));
        assert!(futures::poll!(write.as_mut()).is_pending());
    }
    go.send(()).unwrap();
    held.await.unwrap();
    store.probe().await.unwrap();
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 1);
}

on_both!(
    one_delivery_s_bad_sql_undoes_nothing_of_its_neighbours,
    what_only_the_commit_finds_out_fails_alone_and_counts_for_its_own_message,
    one_event_in_fifty_with_bad_sql_fails_alone,
    the_same_message_committed_many_times_at_once_is_committed_once,
    a_message_in_trouble_and_a_done_one_among_good_ones_are_left_as_they_are,
    deliveries_of_all_forms_together_come_to_the_same_as_one_by_one,
    the_answer_comes_when_another_process_can_see_the_write,
    a_job_whose_caller_has_gone_away_still_commits,
);
