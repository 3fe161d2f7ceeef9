//! What an event, a fingerprint and a key say of themselves.

use super::fingerprint::canonical;
use super::tests::{DATA, Is::Filed, apart, broker, check, e0, one};
use super::*;
use crate::outcome::reason::{MISSING_ID, NOT_A_CLOUDEVENT};

#[test]
fn a_trace_parent_is_valid_or_absent() {
    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const ZERO: &str = "00-00000000000000000000000000000000-0000000000000000-00";
    let event = |parent: &str, id: &str| {
        let (parent, id) = (format!("\"{parent}\""), format!("\"{id}\""));
        one(e0(&[("traceparent", &parent), ("traceid", &id), ("tracestate", "\"a=1\"")]))
    };
    for good in [GOOD, "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"] {
        assert_eq!(event(good, ZERO).traceparent(), Some(good));
        assert_eq!(event(good, ZERO).tracestate(), Some("a=1"));
        assert_eq!(event(ZERO, good).traceparent(), Some(good), "the older attribute");
    }
    for bad in [
        "",
        ZERO,
        &GOOD.to_uppercase(),
        GOOD.trim_start_matches("00-"),
        &format!("{GOOD}-x"),
        &GOOD.replace("00-", "ff-"),
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    ] {
        assert_eq!(
            (event(bad, bad).traceparent(), event(bad, bad).tracestate()),
            (None, None),
            "{bad}"
        );
    }
}

#[test]
fn an_expiration_is_rfc_3339_or_never() {
    let at = |text: &str| one(e0(&[("expiration", text)])).expires_at();
    let same = Some(Timestamp(1_767_607_200_500_000));
    for text in [
        "2026-01-05T10:00:00.5Z",
        "2026-01-05t10:00:00.500000000z",
        "2026-01-05T12:00:00.50+02:00",
        "2026-01-05T04:30:00.5-05:30",
        "2026-01-05T10:00:00.5-00:00",
    ] {
        assert_eq!(at(&format!("\"{text}\"")), same, "C28: {text}");
    }
    for never in [
        "",
        "2026-01-05T10:00Z",
        "2026-01-05T10:00:00",
        "2026-01-05 10:00:00Z",
        "2026-13-05T10:00:00Z",
        "2026-01-05T10:00:00.Z",
        "2026-01-05T10:00:00+02:00[Europe/Berlin]",
        "soon",
        "1767607200",
    ] {
        assert_eq!(at(&format!("\"{never}\"")), None, "{never}");
    }
    assert_eq!((at("1767607200"), at("")), (None, None));
}

#[test]
fn a_recovery_attempt_that_makes_no_sense_counts_as_none() {
    for (text, wanted) in [
        ("3", 3),
        ("3.0", 3),
        ("1e2", 100),
        (r#""3""#, 3),
        (r#""007""#, 7),
        ("10000", 10_000),
        ("10001", 0),
        ("-1", 0),
        ("2.5", 0),
        ("1e300", 0),
        (r#""-1""#, 0),
        (r#""+1""#, 0),
        (r#"" 1""#, 0),
        (r#""1.0""#, 0),
        (r#""""#, 0),
        (r#""99999999999""#, 0),
        ("true", 0),
        ("[1]", 0),
        ("null", 0),
        ("", 0),
    ] {
        assert_eq!(one(e0(&[("recoveryattempt", text)])).recovery_attempt(), wanted, "{text}");
    }
}

#[test]
fn an_event_can_be_made_of_parts_by_the_same_rules() {
    let event = Event::json("1", "/s", "t", &serde_json::json!({"a": [1, null]})).unwrap();
    assert_eq!(
        (event.data().unwrap().as_ref(), event.content_type()),
        (br#"{"a":[1,null]}"#.as_slice(), Some("application/json"))
    );
    assert_eq!(event.stored().attributes, None);
    assert_eq!(Event::json("1", "/s", "t", &Value::Null).unwrap().data(), None);
    assert_eq!(Event::json(" ", "/s", "t", &Value::Null).unwrap_err().reason, MISSING_ID);
}

#[test]
fn nothing_that_is_debugged_shows_data() {
    let results = check(
        &broker(format!("[{}, 7]", e0(&[("subject", r#""Ada""#)]))),
        &[DATA, Filed(NOT_A_CLOUDEVENT)],
    );
    let text = format!("{results:?} {:?}", apart(&[], serde_json::json!({"x": "42.00"}), "42.00"));
    assert!(!text.contains("42.00") && !text.contains("Ada"), "{text}");
    assert!(text.contains("not_a_cloudevent") && text.contains("ord-1001"), "{text}");
}

#[test]
fn a_fingerprint_sees_values_and_not_their_spelling() {
    let print = |data: &str| one(e0(&[("data", data)])).fingerprint();
    for (left, right) in [
        (r#"{"a":1,"b":[true, null]}"#, "{ \"b\" : [true,null],\n\"a\":1 }"),
        (r#"{"a":"\u00e9\/\n\ud83d\ude00"}"#, "{\"\\u0061\":\"é/\\u000a😀\"}"),
        (r#"{"a":1,"b":0,"a":2}"#, r#"{"b":0,"a":2}"#),
        (r#"{"x":{"d":1,"c":{"b":1,"a":2}}}"#, r#"{"x":{"c":{"a":2,"b":1},"d":1}}"#),
        (r#"{"":{},"aa":[],"b":{}}"#, r#"{"b":{},"aa":[],"":{}}"#),
    ] {
        assert_eq!(print(left), print(right), "{left} {right}");
    }
    let different = [
        "12345678901234567890",
        "12345678901234567891",
        "1",
        "1.0",
        r#""1""#,
        "[1]",
        "[[1]]",
        "[]",
        "{}",
        "[1,1]",
        "[11]",
        r#"{"a":1}"#,
        r#"{"a":"1"}"#,
        r#"["a",1]"#,
        r#"{"a":{"b":1}}"#,
        r#"{"a":{},"b":1}"#,
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\udc00\ud800""#,
        r#""\ud800\ud800""#,
        r#""\ud800\u0041""#,
        r#"["a","b"]"#,
        r#"["a\"\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000b"]"#,
        r#"["a\"\u0001\u0000\u0000\u0000\u0000\u0000\u0000\u0000b"]"#,
        r#""\ud800\udc00""#,
        r#""\ufffd""#,
        "true",
        r#""true""#,
        "",
        r#""""#,
        r#"{"a":2,"a":1,"b":1}"#,
    ];
    for (at, left) in different.iter().enumerate() {
        for right in &different[at + 1..] {
            assert_ne!(print(left), print(right), "{left} {right}");
        }
    }
    let other_type = one(e0(&[("type", r#""other""#)])).fingerprint();
    assert_ne!(one(e0(&[])).fingerprint(), other_type);
    let text = one(e0(&[("datacontenttype", r#""text/plain""#), ("data", r#""1""#)])).fingerprint();
    assert_ne!(print("1"), text, "JSON and other data");
    assert!(canonical(&"[".repeat(127)).is_ok() && canonical(&"[".repeat(128)).is_err());
}

#[test]
fn keys_are_byte_for_byte_and_apart_by_kind() {
    let key = MessageKey::of("orders", "/shop/eu", "aB1");
    assert_eq!(key.to_string(), "42ace68eed025d8faced1749f78a983d", "on disk: must never change");
    let hashed = blake3::hash(
        b"\x01\x06\0\0\0\0\0\0\0orders\x08\0\0\0\0\0\0\0/shop/eu\x03\0\0\0\0\0\0\0aB1",
    );
    assert_eq!(key.0[..], hashed.as_bytes()[..16]);
    assert_eq!(format!("{key:?}"), key.to_string());
    assert_eq!(MessageKey::parse_hex(&key.to_string().to_uppercase()), Some(key));
    for bad in ["", "42", "+2ace68eed025d8faced1749f78a983d", "g2ace68eed025d8faced1749f78a983d"] {
        assert_eq!(MessageKey::parse_hex(bad), None, "{bad}");
    }
    assert_eq!(MessageKey([0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0]).seed(), 0x0102);
    let print = one(e0(&[])).fingerprint();
    let all = [
        key,
        MessageKey::of("orders", "/shop/eu", "Ab1"),
        MessageKey::of("orders", "/shop/us", "aB1"),
        MessageKey::of("billing", "/shop/eu", "aB1"),
        MessageKey::of_bytes("orders", b"/shop/euaB1"),
        key.reused(&print),
        key.reused(&print).reused(&print),
        MessageKey::of_bytes("orders", &key.0),
    ];
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
}
