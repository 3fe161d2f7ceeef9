//! Connections that are cut: nothing is lost, doubled or guessed.

use std::sync::atomic::Ordering;

use super::proxy::{Cut, Proxy};
use super::*;

/// A store that reaches the server through a line that can be cut.
async fn through_a_proxy(place: &Place) -> (Proxy, Store) {
    let port: u16 =
        server().url().rsplit_once(':').unwrap().1.split_once('/').unwrap().0.parse().unwrap();
    let proxy = Proxy::start(port).await;
    let through = server().url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port));
    let url = with(place, |settings| settings.url = through.parse().unwrap());
    (proxy, open_at(&url, &place.clock).await)
}

#[tokio::test]
async fn a_connection_that_was_cut_while_idle_costs_nobody_anything() {
    let place = Place::postgres();
    let (proxy, store) = through_a_proxy(&place).await;
    for n in 0..5 {
        proxy.cut();
        let id = n.to_string();
        assert_eq!(store.commit_one(&id, vec![note("effect")]).await, Committed::Yes);
        let look = store.look(message(&id).key).await;
        assert!(look.unwrap().done.is_some());
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 5);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_looked_up_and_never_guessed() {
    let place = Place::postgres();
    let (proxy, store) = through_a_proxy(&place).await;
    for (n, cut) in [(1, Cut::After), (2, Cut::Before), (3, Cut::After), (4, Cut::Before)] {
        proxy.cut_next_commit(cut);
        let outgoing = vec![outgoing("topic", &n.to_string())];
        let effects = vec![note("effect")];
        let commit = store.commit(message(&n.to_string()), Authority::Delivery, effects, outgoing);
        assert_eq!(commit.await.unwrap(), Committed::Yes, "cut {cut:?}");
        assert_eq!(place.on_disk("SELECT count(*) FROM note").await, n, "cut {cut:?}");
        assert_eq!(place.on_disk("SELECT count(*) FROM outbox").await, n, "cut {cut:?}");
    }
    assert_eq!(proxy.commits_cut.load(Ordering::SeqCst), 4, "each was cut");
    assert!(store.is_healthy());
}

#[tokio::test]
async fn a_commit_that_is_still_under_way_is_waited_for() {
    let place = Place::postgres();
    let slow = AppMigration {
        name: "0002_slow",
        sql: "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                  $$ BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END $$;
              CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON note DEFERRABLE INITIALLY DEFERRED
                  FOR EACH ROW EXECUTE FUNCTION slow();",
    };
    place.open_with(OpenAs::Service, &[TABLES, slow]).await.unwrap();
    let (proxy, store) = through_a_proxy(&place).await;
    proxy.cut_next_commit(Cut::During);
    assert_eq!(store.commit_one("1", vec![note("effect")]).await, Committed::Yes);
    assert_eq!(proxy.commits_cut.load(Ordering::SeqCst), 1);
    assert_eq!(place.on_disk("SELECT count(*) FROM note").await, 1);
}

#[tokio::test]
async fn a_failure_whose_answer_is_lost_is_counted_once() {
    let place = Place::postgres();
    let (proxy, store) = through_a_proxy(&place).await;
    for (attempts, cut) in [(1, Cut::After), (2, Cut::Before)] {
        proxy.cut_next_commit(cut);
        let failed = store.fail(message("1"), Authority::Delivery, FAILED).await;
        assert!(matches!(failed, Ok(Written::Now(State::Retrying))), "{failed:?}");
        assert_eq!(place.on_disk("SELECT count(*) FROM attempt").await, attempts, "cut {cut:?}");
    }
}

#[tokio::test]
async fn connections_cut_again_and_again_under_load_lose_and_double_nothing() {
    let place = Place::postgres();
    let (proxy, store) = through_a_proxy(&place).await;
    let commits = (0..300).map(|n: u32| {
        let store = store.clone();
        tokio::spawn(async move {
            let id = n.to_string();
            loop {
                let row = insert("stock", [("item", id.as_str().into()), ("count", 1.into())]);
                let commit =
                    store.commit(message(&id), Authority::Delivery, vec![row], Vec::new()).await;
                match commit {
                    Ok(Committed::Yes | Committed::Nothing(Standing::Done)) => return,
                    // The sidecar brings it again.
                    Err(StoreError::Away(_)) => store.becomes_healthy_or_is_probed().await,
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    let commits: Vec<_> = commits.collect();
    for round in 0..10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if round % 2 == 0 { proxy.cut() } else { proxy.cut_next_commit(Cut::After) }
    }
    for commit in commits {
        commit.await.unwrap();
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM stock").await, 300);
    assert_eq!(place.on_disk("SELECT count(*) FROM inbox").await, 300);
}

impl Store {
    /// What the service does while its store is away.
    async fn becomes_healthy_or_is_probed(&self) {
        drop(self.probe().await);
    }
}
