//! What is published, by the real sidecar to the real broker: topics apart, refusals, outages, order,
//! delays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::{
    LATER, Line, PUBSUB, Redis, SECOND_PUBSUB, SOON, Setup, ToPublish, World, becomes, secs,
};
use crate::process::free_ports;

fn to<'a>(topic: &'a str, id: &'a str) -> ToPublish<'a> {
    ToPublish { pubsub: PUBSUB, topic, id, key: None, due_at: None, padding: 0 }
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:05}")).collect()
}

fn all_to<'a>(topic: &'a str, ids: &'a [String]) -> Vec<ToPublish<'a>> {
    ids.iter().map(|id| to(topic, id)).collect()
}

/// The ids that a topic's stream has, in the order of their first copies.
fn arrived(world: &World, topic: &str) -> Vec<String> {
    let mut known = BTreeSet::new();
    let id = |entry: Vec<u8>| {
        let event: Value = serde_json::from_slice(&entry).unwrap();
        event["id"].as_str().unwrap().to_owned()
    };
    let ids = world.redis.entries(topic).into_iter().map(id);
    ids.filter(|id| known.insert(id.clone())).collect()
}

async fn all_arrive(world: &World, topic: &str, count: usize) {
    let what = format!("messages of {topic}");
    becomes(LATER, &what, count, async || arrived(world, topic).len()).await;
    becomes(SOON, "unpublished", 0, async || world.database.unpublished_count(topic)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_of_the_outbox_drain_at_a_rate_that_is_told() {
    let world = Setup::redis().start().await;
    let ids = numbers(10_000);
    world.database.append(&all_to("burst", &ids));
    let first = Instant::now();
    becomes(SOON, "it begins", true, async || world.published("burst") > 0).await;
    let (began, before) = (Instant::now(), world.published("burst"));
    while world.published("burst") < ids.len() {
        assert!(began.elapsed() < LATER, "{} of {}", world.published("burst"), ids.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = began.elapsed();
    becomes(SOON, "unpublished", 0, async || world.database.unpublished_count("burst")).await;
    let count = u32::try_from(ids.len() - before).unwrap();
    let rate = f64::from(count) / took.as_secs_f64();
    eprintln!("drained {count} messages in {took:?}: {rate:.0}/s; begun after {:?}", began - first);
    assert_eq!(world.published("burst"), ids.len(), "each once");
    // Far below what is usual: a machine with other things to do passes too.
    assert!(rate > 1000.0, "{rate:.0} messages a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_flows_while_another_fails_and_a_third_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let mut second = Redis::start(directory.path()).await;
    let [port] = free_ports().unwrap();
    let line = Line::lay(port, second.port).await;
    let world = Setup::redis().second_redis(port).start().await;
    world.redis.spoil("fails");
    line.lose_answers();
    let ids = numbers(300);
    world.database.append(&all_to("fails", &ids));
    let hanging: Vec<ToPublish<'_>> =
        ids.iter().map(|id| ToPublish { pubsub: SECOND_PUBSUB, ..to("hangs", id) }).collect();
    world.database.append(&hanging);
    let failures = "Publishing failed; the relay will try again.";
    becomes(LATER, "one fails", true, async || world.app_lines(failures) > 0).await;
    for round in 0..10 {
        let began = Instant::now();
        let more: Vec<String> = (0..100).map(|n| format!("{round}-{n:03}")).collect();
        world.database.append(&all_to("flows", &more));
        let count = (round + 1) * more.len();
        becomes(SOON, "flowing", count, async || world.published("flows")).await;
        assert!(began.elapsed() < secs(3.0), "round {round} took {:?}", began.elapsed());
    }
    assert_eq!(world.database.unpublished_count("fails"), 300);
    assert_eq!(world.database.unpublished_count("hangs"), 300);
    world.redis.mend("fails");
    line.mend();
    all_arrive(&world, "fails", 300).await;
    becomes(LATER, "hanging", 0, async || world.database.unpublished_count("hangs")).await;
    assert!(second.len("hangs") >= 300);
    assert!(world.cases().is_empty());
    second.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_fails_alone_gets_its_case_while_its_neighbours_arrive() {
    let world = Setup::redis().start().await;
    world.redis.take_bytes_max(1 << 20);
    let ids = numbers(200);
    let mut all = all_to("mixed", &ids);
    all[7].padding = 1_500_000;
    let began = Instant::now();
    world.database.append(&all);
    becomes(SOON, "neighbours", 199, async || arrived(&world, "mixed").len()).await;
    assert!(world.cases().is_empty(), "not at the first failure");
    becomes(LATER, "cases", 1, async || world.cases().len()).await;
    let took = began.elapsed();
    assert!(took > secs(15.0), "after eight failures, not after {took:?}");
    let case = world.only_case();
    assert_eq!(case["category"], "publish_rejected");
    becomes(SOON, "unpublished", 0, async || world.database.unpublished_count("mixed")).await;
    let refused = "Outgoing message refused for good.";
    assert_eq!(world.app_lines(refused), 1);
    assert!(!arrived(&world, "mixed").contains(&ids[7]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_broker_refuses_nothing() {
    let mut world = Setup::redis().start().await;
    let ids = numbers(600);
    let all = all_to("outage", &ids);
    world.database.append(&all[..300]);
    becomes(SOON, "it begins", true, async || world.published("outage") > 0).await;
    world.redis.kill();
    world.database.append(&all[300..]);
    // Longer than a message that fails alone needs to its case.
    tokio::time::sleep(secs(40.0)).await;
    world.redis.start_again().await;
    all_arrive(&world, "outage", 600).await;
    assert!(world.cases().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_key_arrive_in_order_through_failures_and_a_crash() {
    let mut world = Setup::redis().start().await;
    let ids = numbers(900);
    let keys: Vec<String> = (0..ids.len()).map(|n| format!("customer {}", n * n % 17)).collect();
    let all: Vec<ToPublish<'_>> = ids
        .iter()
        .zip(&keys)
        .map(|(id, key)| ToPublish { key: Some(key), ..to("keyed", id) })
        .collect();
    world.redis.spoil("keyed");
    world.database.append(&all[..300]);
    let failures = "Publishing failed; the relay will try again.";
    becomes(LATER, "it fails", true, async || world.app_lines(failures) > 3).await;
    world.redis.mend("keyed");
    becomes(LATER, "it begins", true, async || world.published("keyed") > 50).await;
    world.kill_app();
    world.database.append(&all[300..600]);
    world.start_app().await;
    becomes(LATER, "it goes on", true, async || world.published("keyed") > 300).await;
    world.kill_daprd();
    world.database.append(&all[600..]);
    world.start_daprd().await;
    all_arrive(&world, "keyed", 900).await;
    let key_of: BTreeMap<&String, &String> = ids.iter().zip(&keys).collect();
    let mut last: BTreeMap<&String, String> = BTreeMap::new();
    for id in arrived(&world, "keyed") {
        let key = key_of[&id];
        let before = last.insert(key, id.clone());
        assert!(before.as_ref().is_none_or(|before| *before < id), "{id} after {before:?}: {key}");
    }
    assert!(world.cases().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "the service's clock, read beside it")]
async fn a_delayed_message_leaves_when_it_is_due() {
    let mut world = Setup::redis().start().await;
    let in_3_s = SystemTime::now() + secs(3.0);
    let since_epoch = in_3_s.duration_since(UNIX_EPOCH).unwrap();
    let due_at = Some(i64::try_from(since_epoch.as_micros()).unwrap());
    world.database.append(&[ToPublish { due_at, ..to("delayed", "later") }, to("delayed", "now")]);
    becomes(SOON, "the other", ["now"], async || arrived(&world, "delayed")).await;
    // Over a restart.
    world.kill_app();
    world.start_app().await;
    becomes(SOON, "both", ["now", "later"], async || arrived(&world, "delayed")).await;
    let late = SystemTime::now().duration_since(in_3_s).expect("not before it is due");
    assert!(late < secs(2.0), "{late:?} late");
}
