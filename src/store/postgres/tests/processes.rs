//! Processes that share a database: they start together, end without a word, and are taken for
//! dead while they live.

use super::*;
use crate::store::Outgoing;
use crate::store::postgres::process::LEASE;

/// The ids that wait to be published, in the order they will be.
async fn waiting(store: &Store) -> Vec<String> {
    let topics = store.outbox_pending(99).await.unwrap();
    topics.into_iter().flatten().map(|message| message.message_id).collect()
}

/// Somebody who has looked at the database once and holds on to what it was.
async fn old_snapshot() -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    client.batch_execute(hold).await.unwrap();
    client
}

async fn waiting_all(store: &Store) -> Vec<String> {
    let topics = store.outbox_pending(9_999).await.unwrap();
    topics.into_iter().flatten().map(|message| message.message_id).collect()
}

async fn publish(store: &Store, id: &str) {
    let row = insert("line", [("item", Value::Null)]);
    let outgoing = vec![outgoing("topic", id)];
    let committed = store.commit(message(id), Authority::Delivery, vec![row], outgoing).await;
    assert_eq!(committed.unwrap(), Committed::Yes);
}

#[tokio::test]
async fn five_processes_that_start_at_once_make_the_tables_once() {
    let place = Place::postgres();
    let opened = futures::future::join_all((0..5).map(|_| place.open_as(OpenAs::Service))).await;
    for opened in opened {
        opened.unwrap();
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM refinery_schema_history").await, 6);
    assert_eq!(place.on_disk("SELECT count(*) FROM app_migration").await, 1);
}

#[tokio::test]
async fn a_service_that_may_not_migrate_starts_only_where_the_tables_are() {
    let place = Place::postgres();
    let url = with(&place, |settings| settings.migrates_at_start = false);
    let open = || {
        let clock = place.clock.clone();
        Store::open(&url, OpenAs::Service, vec![TABLES], Limits::default(), clock)
    };
    let refused = open().await.unwrap_err().to_string();
    assert!(refused.contains("run `backstop migrate`"), "{refused}");
    Store::migrate(&url, vec![TABLES], place.clock.clone()).await.unwrap();
    open().await.unwrap();
}

#[tokio::test]
async fn the_outbox_of_a_process_that_died_is_adopted_in_its_order_and_its_death_is_noticed() {
    let place = Place::postgres();
    let (dying, living) = (place.open().await, place.open().await);
    for n in 1..=20 {
        publish(&dying, &format!("{n:02}")).await;
    }
    drop(dying);
    living.serving().await.unwrap();
    assert!(waiting(&living).await.is_empty(), "its lease is not over");
    assert_eq!(living.crash_seen(), None);
    place.pass(LEASE + Duration::from_secs(1));
    living.serving().await.unwrap();
    let expected: Vec<String> = (1..=20).map(|n| format!("{n:02}")).collect();
    assert_eq!(waiting(&living).await, expected);
    assert_eq!(living.crash_seen(), Some(place.clock.now()));
}

#[tokio::test]
async fn a_process_taken_for_dead_goes_on_in_a_log_of_its_own() {
    let place = Place::postgres();
    let (paused, other) = (place.open().await, place.open().await);
    publish(&paused, "1").await;
    place.pass(LEASE + Duration::from_secs(1));
    other.serving().await.unwrap();
    assert_eq!(waiting(&other).await, ["1"]);
    publish(&paused, "2").await;
    assert_eq!(waiting(&paused).await, ["2"], "what it commits now is its own to publish");
    assert_eq!(waiting(&other).await, ["1"]);
    let session = paused.session(Duration::from_secs(9)).await.unwrap();
    let lost =
        session.commit(message("3"), Authority::Delivery, vec![outgoing("topic", "3")]).await;
    if lost.is_err() {
        // Nothing was written; the delivery comes again.
        let session = paused.session(Duration::from_secs(9)).await.unwrap();
        let outgoing = vec![outgoing("topic", "3")];
        let again = session.commit(message("3"), Authority::Delivery, outgoing).await;
        assert_eq!(again.unwrap(), Committed::Yes);
    }
    let mut all = waiting(&paused).await;
    all.sort();
    assert_eq!(all, ["2", "3"]);
}

#[tokio::test]
async fn a_process_that_ended_properly_leaves_its_outbox_and_no_alarm() {
    let place = Place::postgres();
    let (ending, living) = (place.open().await, place.open().await);
    publish(&ending, "1").await;
    ending.ended().await.unwrap();
    drop(ending);
    living.serving().await.unwrap();
    assert_eq!(waiting(&living).await, ["1"]);
    assert_eq!(living.crash_seen(), None);
}

#[tokio::test]
async fn delayed_messages_are_moved_once_by_whichever_replica_and_in_order() {
    const COUNT: usize = 300;
    let place = Place::postgres();
    let replicas = [place.open().await, place.open().await, place.open().await];
    for n in 0..COUNT {
        let later = Outgoing {
            due_at: Some(replicas[0].now().plus(Duration::from_secs(1))),
            ..outgoing("topic", &format!("{n:03}"))
        };
        let id = n.to_string();
        let commit = replicas[0].commit(message(&id), Authority::Delivery, Vec::new(), vec![later]);
        assert_eq!(commit.await.unwrap(), Committed::Yes);
    }
    place.pass(Duration::from_secs(2));
    let move_all = |store: &Store| {
        let store = store.clone();
        async move {
            while store.outbox_look().await.unwrap().next_due.is_some() {
                store.outbox_move_due(7).await.unwrap();
            }
        }
    };
    futures::future::join_all(replicas.iter().map(move_all)).await;
    let mut all = Vec::new();
    for replica in &replicas {
        let own = waiting_all(replica).await;
        assert!(own.is_sorted(), "in the order of its log: {own:?}");
        all.extend(own);
    }
    all.sort();
    let expected: Vec<String> = (0..COUNT).map(|n| format!("{n:03}")).collect();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn logs_of_processes_that_are_gone_are_forgotten_when_all_has_left_for_a_day() {
    let place = Place::postgres();
    // Its own logs are the older ones, so they stay the ones in use.
    let (living, ending) = (place.open().await, place.open().await);
    publish(&ending, "1").await;
    ending.ended().await.unwrap();
    drop(ending);
    living.serving().await.unwrap();
    let day = Duration::from_secs(86_401);
    place.pass(day);
    living.serving().await.unwrap();
    assert_eq!(waiting(&living).await, ["1"], "not before it has left");
    let adopted = living.outbox_look().await.unwrap().waiting.remove(0);
    living.outbox_published(adopted.topic, adopted.newest).await.unwrap();
    for _ in 0..2 {
        living.serving().await.unwrap();
    }
    assert_eq!(place.on_disk("SELECT count(*) FROM outbox_log").await, 2);
    publish(&living, "2").await;
    assert_eq!(waiting(&living).await, ["2"]);
}

#[tokio::test]
async fn appending_leaves_no_versions_of_a_row_behind_that_an_old_snapshot_would_keep() {
    let place = Place::postgres();
    let store = place.open().await;
    let snapshot = old_snapshot().await;
    for n in 0..400 {
        let id = n.to_string();
        // Both ways that a commit is written.
        if n % 2 == 0 {
            publish(&store, &id).await;
        } else {
            let outgoing = vec![outgoing("topic", &id)];
            let commit =
                store.commit(message(&id), Authority::Delivery, vec![note("alone")], outgoing);
            assert_eq!(commit.await.unwrap(), Committed::Yes);
        }
    }
    assert_eq!(place.on_disk("SELECT max(seq) FROM outbox").await, 400);
    let size = place.on_disk("SELECT pg_relation_size('outbox_log')").await;
    assert_eq!(size, 8192, "one page: the row stays as it was");
    drop(snapshot);
}

#[tokio::test]
async fn a_log_that_was_adopted_is_not_read_by_the_process_that_had_it() {
    let place = Place::postgres();
    let (paused, other) = (place.open().await, place.open().await);
    publish(&paused, "1").await;
    let topic = paused.outbox_look().await.unwrap().waiting.remove(0).topic;
    assert!(paused.outbox_read(topic.clone(), 0, 9, 9_999).await.unwrap().is_some());
    place.pass(LEASE + Duration::from_secs(1));
    other.serving().await.unwrap();
    assert!(paused.outbox_read(topic.clone(), 0, 9, 9_999).await.unwrap().is_none());
    assert_eq!(other.outbox_read(topic, 0, 9, 9_999).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn the_time_is_the_database_s() {
    let place = Place::postgres();
    let store = open_at(&place.url, &Clock::System).await;
    let text = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let before = store.count(text).await;
    store.dead_letter(message("1")).await.unwrap();
    let seen = store.count("SELECT first_seen_at FROM message").await;
    let after = store.count(text).await;
    assert!((before..=after).contains(&seen), "{before} {seen} {after}");
}
