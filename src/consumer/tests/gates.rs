//! Dependencies that are away, and the gates before them.

use super::*;

#[tokio::test]
async fn a_dependency_that_is_away_costs_nobody_a_recovery_and_is_asked_by_one_probe_at_a_time() {
    let world = world(OutsideCall::None).await;
    for n in 0..20 {
        world.dead(&event(&format!("away-{n}"), "fails_while_away")).await;
    }
    world.away.store(true, Ordering::SeqCst);
    assert_eq!(world.recover().await, 20, "all are due, and none knows of the others yet");
    let calls = world.calls();
    for _ in 0..30 {
        world.clock.advance(Duration::from_secs(600));
        assert!(world.recover().await <= 1, "one probe at a time");
    }
    assert!(world.calls() - calls <= 30);
    let rows = world.rows("SELECT max(recoveries) FROM message").await;
    assert_eq!(rows, [[Value::Integer(1)]], "the four before the gate closed had spent one each");
    assert_eq!(world.cases().await, []);

    world.away.store(false, Ordering::SeqCst);
    let mut released = Vec::new();
    while world.count("message").await > 0 {
        // The first is the next probe's time; then successes alone let the others through.
        world.clock.advance(Duration::from_secs(if released.is_empty() { 600 } else { 1 }));
        released.push(world.recover().await);
        assert!(released.len() < 20, "{released:?}");
    }
    assert_eq!(world.count("done").await, 20);
    assert_eq!(released, [1, 1, 2, 4, 8, 4], "the probe, and then the ramp");
}

#[tokio::test]
async fn a_lone_poison_message_closes_no_gate_and_does_not_keep_one_shut_as_its_probe() {
    let world = world(OutsideCall::None).await;
    world.dead(&event("poison", "fail")).await;
    world.away.store(true, Ordering::SeqCst);
    for n in 0..6 {
        world.dead(&event(&format!("away-{n}"), "fails_while_away")).await;
    }
    for _ in 0..8 {
        world.recover().await;
        world.clock.advance(Duration::from_secs(30));
    }
    world.away.store(false, Ordering::SeqCst);
    for _ in 0..30 {
        world.recover().await;
        world.clock.advance(Duration::from_secs(30));
    }
    assert_eq!(world.count("done").await, 6);
    assert_eq!(world.cases().await.len(), 1);
    assert_eq!(world.cases().await[0].0, Category::Exhausted);
    assert!(world.cases().await[0].2 >= 3, "every one of its recoveries was spent");
}

/// Too few to close a gate, so only the budget of each message carries it over the outage.
#[tokio::test]
async fn four_failing_messages_outlast_an_outage_of_an_hour_at_the_default_settings() {
    let world = world_with(OutsideCall::None, Limits::default()).await;
    world.away.store(true, Ordering::SeqCst);
    for n in 0..4 {
        let body = event(&format!("away-{n}"), "fails_while_away");
        for _ in 0..6 {
            assert_eq!(world.live(&body).await, Outcome::Retrying(BUSY));
        }
        assert_eq!(world.dead(&body).await, Outcome::Recovering);
    }
    for _ in 0..3600 / 5 {
        world.clock.advance(Duration::from_secs(5));
        world.recover().await;
    }
    assert_eq!(world.cases().await, []);
    world.away.store(false, Ordering::SeqCst);
    for _ in 0..3600 / 5 {
        world.clock.advance(Duration::from_secs(5));
        world.recover().await;
    }
    assert_eq!((world.count("done").await, world.count("message").await), (4, 0));
    assert_eq!(world.cases().await, []);
}

#[tokio::test]
async fn an_operator_holds_a_gate_and_opens_it() {
    let world = world(OutsideCall::None).await;
    let store = &world.consumer.store;
    let hold = store.act_on_gate("orders".into(), BUSY, crate::store::GateAct::Hold, "ada".into());
    hold.await.unwrap();
    world.dead(&event("1", "")).await;
    for _ in 0..5 {
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(world.recover().await, 0);
    }
    assert_eq!(world.live(&event("2", "")).await, Outcome::Processed);
    assert_eq!(world.recover().await, 0, "no success opens what a person holds");
    let gates = store.gates().await.unwrap();
    assert_eq!((gates.len(), gates[0].waiting, gates[0].gate.held), (1, 1, true));
    let open = store.act_on_gate("orders".into(), BUSY, crate::store::GateAct::Open, "ada".into());
    open.await.unwrap();
    assert_eq!(world.recover().await, 1);
    assert_eq!((world.count("done").await, world.count("gate_audit").await), (2, 2));
}

#[tokio::test]
async fn what_waits_too_long_at_a_closed_gate_becomes_a_case() {
    let world = world(OutsideCall::None).await;
    world.away.store(true, Ordering::SeqCst);
    for n in 0..6 {
        world.dead(&event(&format!("away-{n}"), "fails_while_away")).await;
    }
    world.recover().await;
    world.clock.advance(Duration::from_secs(86_401));
    world.recover().await;
    let cases = world.cases().await;
    assert!(cases.len() >= 2, "those that wait, and the probe: {cases:?}");
    assert!(cases.iter().any(|case| case.1 == "recovery_age_exceeded"), "{cases:?}");
}
