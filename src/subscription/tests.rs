use super::*;

fn problems(change: impl FnOnce(Subscription) -> Subscription) -> Vec<String> {
    let handler = async |_: serde_json::Value, _: Context| Ok(Effects::new());
    change(Subscription::new("orders").on("order", handler)).problems().collect()
}

#[test]
fn bulk_is_refused_where_it_could_stall_or_lose_an_event() {
    let bulk =
        |max_messages, await_ms| problems(|orders| orders.bulk(Bulk { max_messages, await_ms }));
    assert_eq!(problems(|orders| orders.bulk(Bulk::default())), [""; 0]);
    for (max_messages, await_ms, expected) in [
        (2, 1, &[][..]),
        (1_000, 1_000, &[]),
        (0, 10, &["subscription `orders`: bulk takes 2 to 1,000 messages"]),
        (1, 10, &["subscription `orders`: bulk takes 2 to 1,000 messages"]),
        (1_001, 10, &["subscription `orders`: bulk takes 2 to 1,000 messages"]),
        (64, 0, &["subscription `orders`: bulk awaits 1 to 1,000 ms"]),
        (64, 1_001, &["subscription `orders`: bulk awaits 1 to 1,000 ms"]),
    ] {
        assert_eq!(bulk(max_messages, await_ms), expected, "{max_messages} {await_ms}");
    }
    let taken_apart = |orders: Subscription| orders.bulk(Bulk::default()).envelope(Envelope::Dapr);
    let expected = ["subscription `orders`: bulk takes the raw envelope only"];
    assert_eq!(problems(taken_apart), expected);
}
