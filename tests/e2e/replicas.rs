//! Three replicas on one PostgreSQL, behind three sidecars and one Redis, while processes and the
//! database are killed, stopped and cut off.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::harness::{ACCEPTED, Setup, TOPIC, World, bytes, placed, secs};
use crate::postgres::PostgresServer;

const ORDERS: usize = if cfg!(feature = "soak") { 200_000 } else { 3_000 };
/// Their orders are to be heard of in order, which needs several of each in a batch.
const CUSTOMERS: usize = 20;
/// How long the database stays away when it is stopped.
const AWAY: Duration = Duration::from_secs(if cfg!(feature = "soak") { 30 } else { 4 });
/// How long all of it may take to come to rest.
const REST: Duration = Duration::from_secs(if cfg!(feature = "soak") { 900 } else { 240 });
const CONSUMER: &str = "order-service";

/// What is done to them, each while orders are under way.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    ReplicaKilled(usize),
    ReplicaAndSidecarKilled(usize),
    DatabaseCrashes,
    DatabaseStopped,
    ConnectionsCut,
}

const TROUBLES: [Trouble; 6] = [
    Trouble::ReplicaKilled(0),
    Trouble::DatabaseCrashes,
    Trouble::ConnectionsCut,
    Trouble::ReplicaAndSidecarKilled(1),
    Trouble::DatabaseStopped,
    Trouble::ReplicaKilled(2),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_their_database_die_under_load_and_every_order_has_its_effect_once() {
    let mut server = PostgresServer::start();
    let mut replicas = start(&server).await;
    let chunk = ORDERS / TROUBLES.len();
    for (round, trouble) in TROUBLES.into_iter().enumerate() {
        let before = number(&server, "SELECT count(*) FROM orders").await;
        for n in round * chunk..(round + 1) * chunk {
            let mut order = placed(&format!("{n:06}"));
            order["data"]["customerId"] = format!("customer {}", n % CUSTOMERS).into();
            let event = bytes(&order);
            replicas[0].redis.add(TOPIC, &event);
            if n % 10 == 0 {
                replicas[0].redis.add(TOPIC, &event);
            }
        }
        reaches(&server, "SELECT count(*) FROM orders", secs(60.0), |now| now > before).await;
        cause(trouble, &mut server, &mut replicas).await;
    }
    let wanted = i64::try_from(chunk * TROUBLES.len()).unwrap();
    reaches(&server, "SELECT count(*) FROM orders", REST, |now| now == wanted).await;
    reaches(&server, "SELECT count(*) FROM message", REST, |now| now == 0).await;
    let behind = "SELECT count(*) FROM outbox o JOIN relay_cursor c USING (log, pubsub, topic)
        WHERE o.seq > c.seq";
    reaches(&server, behind, REST, |now| now == 0).await;
    assert_eq!(number(&server, "SELECT count(*) FROM orders").await, wanted, "once each");
    assert_eq!(number(&server, "SELECT count(*) FROM inbox").await, wanted);
    assert_eq!(number(&server, "SELECT count(*) FROM outbox").await, wanted);
    assert_eq!(number(&server, "SELECT count(*) FROM exception").await, 0, "nobody gave up");
    let pending = Instant::now();
    while replicas[0].redis.pending(TOPIC, CONSUMER) > 0 {
        assert!(pending.elapsed() < REST, "the broker still waits for an answer");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all_published_in_order(&server, &replicas[0]).await;
}

async fn start(server: &PostgresServer) -> Vec<World> {
    let setup = || {
        Setup::redis()
            .without_inventory()
            .quick_recovery()
            .env("BACKSTOP_STORE_URL", &server.url())
            // What nobody acknowledged is redelivered after three seconds instead of a minute.
            .edit("orderpubsub.yaml", "value: 60s", "value: 3s")
            .edit("orderpubsub.yaml", "value: 15s", "value: 1s")
    };
    let first = setup().start().await;
    let (second, third) =
        tokio::join!(setup().beside(&first).start(), setup().beside(&first).start());
    vec![first, second, third]
}

async fn cause(trouble: Trouble, server: &mut PostgresServer, replicas: &mut [World]) {
    match trouble {
        Trouble::ReplicaKilled(which) => {
            replicas[which].kill_app();
            replicas[which].start_app().await;
        }
        Trouble::ReplicaAndSidecarKilled(which) => {
            replicas[which].kill_app();
            replicas[which].kill_daprd();
            replicas[which].start_app().await;
            replicas[which].start_daprd().await;
        }
        Trouble::DatabaseCrashes => {
            server.crash();
            server.start_again();
        }
        Trouble::DatabaseStopped => {
            server.stop();
            tokio::time::sleep(AWAY).await;
            server.start_again();
        }
        Trouble::ConnectionsCut => {
            let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name = 'backstop'";
            assert!(number(server, cut).await >= 3, "every replica has at least one");
        }
    }
}

/// **Every committed message is published at least once, in each log those of a customer in order.**
async fn all_published_in_order(server: &PostgresServer, world: &World) {
    let mut first_places = HashMap::new();
    for (place, entry) in world.redis.entries(ACCEPTED).into_iter().enumerate() {
        let event: Value = serde_json::from_slice(&entry).unwrap();
        first_places.entry(event["id"].as_str().unwrap().to_owned()).or_insert(place);
    }
    let client = connect(server).await;
    let text = "SELECT log, ordering_key, message_id FROM outbox ORDER BY log, seq";
    let logged = client.query(text, &[]).await;
    let mut last_places: BTreeMap<(i64, String), usize> = BTreeMap::new();
    for row in logged.unwrap() {
        let (log, key, id): (i64, String, String) = (row.get(0), row.get(1), row.get(2));
        let place = *first_places.get(&id).unwrap_or_else(|| panic!("{id} was never published"));
        let before = last_places.insert((log, key.clone()), place);
        let is_in_order = before.is_none_or(|before| before < place);
        assert!(is_in_order, "{id} overtook another of {key} in log {log}");
    }
}

async fn connect(server: &PostgresServer) -> Client {
    let url = format!("{}?options=-c%20search_path%3Dbackstop", server.url());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn number(server: &PostgresServer, query: &str) -> i64 {
    connect(server).await.query_one(query, &[]).await.unwrap().get(0)
}

/// What is in trouble, for a test that has failed.
async fn in_trouble(server: &PostgresServer) -> String {
    let text = "SELECT coalesce(string_agg(what, '; '), 'nothing in trouble') FROM (
            SELECT state || ' ' || coalesce(gate, 'no gate') || ', due ' || (due_at IS NOT NULL)
                || ', claimed by a delivery ' || live_claim || ': ' || count(*) AS what
            FROM message GROUP BY state, gate, due_at IS NOT NULL, live_claim
            UNION ALL SELECT 'gate ' || code || ' ' || state FROM gate) AS all_of_it";
    connect(server).await.query_one(text, &[]).await.unwrap().get(0)
}

async fn reaches(
    server: &PostgresServer,
    query: &str,
    within: Duration,
    wanted: impl Fn(i64) -> bool,
) {
    let begun = Instant::now();
    loop {
        let now = number(server, query).await;
        if wanted(now) {
            return;
        }
        let in_time = begun.elapsed() < within;
        assert!(in_time, "{query}: still {now} after {within:?}; {}", in_trouble(server).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
