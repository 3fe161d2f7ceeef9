//! The rules of decoding, one sentence each. `C15` and the like name the public bug report that a
//! case replays.

use super::*;
use crate::outcome::reason::*;

/// What a case expects of one event.
pub(super) enum Is {
    Json(&'static str),
    Bytes(&'static [u8]),
    Empty,
    Filed(Code),
}
use Is::{Bytes as Raw, Empty, Filed, Json};

/// Decodes, compares, and holds every result against its own stored form.
pub(super) fn check(arrival: &Arrival, wanted: &[Is]) -> Vec<Result<Event, Malformed>> {
    let results = decode(arrival.clone());
    assert_eq!(results.len(), wanted.len(), "{:?}", String::from_utf8_lossy(&arrival.body));
    for (result, wanted) in results.iter().zip(wanted) {
        let context = format!("{result:?} from {:?}", String::from_utf8_lossy(&arrival.body));
        match (result, wanted) {
            (Ok(event), Json(text)) => {
                assert!(event.data_is_json(), "{context}");
                assert_eq!(event.data().unwrap(), text.as_bytes(), "{context}");
            }
            (Ok(event), Raw(bytes)) => {
                assert!(!event.data_is_json(), "{context}");
                assert_eq!(event.data().unwrap(), bytes, "{context}");
            }
            (Ok(event), Empty) => assert_eq!(event.data(), None, "{context}"),
            (Err(malformed), Filed(reason)) => assert_eq!(&malformed.reason, reason, "{context}"),
            _ => panic!("{context}"),
        }
        match result {
            Ok(event) => assert_eq!(Event::from_stored(event.stored()).as_ref(), Ok(event)),
            Err(malformed) => {
                assert_eq!(Event::from_stored(&malformed.stored).as_ref(), Err(malformed));
            }
        }
    }
    results
}

pub(super) fn broker(body: impl AsRef<[u8]>) -> Arrival {
    let body = Bytes::copy_from_slice(body.as_ref());
    Arrival { body, form: Form::Broker { metadata: BTreeMap::new() } }
}

fn binary(metadata: &[(&str, &str)], body: impl AsRef<[u8]>) -> Arrival {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let form = Form::Broker { metadata: metadata.collect() };
    Arrival { body: Bytes::copy_from_slice(body.as_ref()), form }
}

const CE: [(&str, &str); 4] = [
    ("ce_specversion", "1.0"),
    ("ce_id", "ord-1001"),
    ("ce_source", "/shop/eu"),
    ("ce_type", "shop.order.placed.v1"),
];

/// The members of E0 of the field log, with others put in, or taken out by an empty value.
pub(super) fn e0(changes: &[(&str, &str)]) -> String {
    let mut members = vec![
        ("specversion", r#""1.0""#),
        ("id", r#""ord-1001""#),
        ("source", r#""/shop/eu""#),
        ("type", r#""shop.order.placed.v1""#),
        ("datacontenttype", r#""application/json""#),
        ("data", r#"{"orderId":"ord-1001","total":"42.00"}"#),
    ];
    for (name, value) in changes {
        members.retain(|(present, _)| present != name);
        if !value.is_empty() {
            members.push((name, value));
        }
    }
    let members: Vec<String> = members.iter().map(|(n, v)| format!("\"{n}\": {v}")).collect();
    format!("{{{}}}", members.join(", "))
}

pub(super) fn apart(
    changes: &[(&str, &str)],
    extensions: Value,
    data: impl AsRef<[u8]>,
) -> Arrival {
    let field = |name: &str, usual: &str| {
        let change = changes.iter().find(|(changed, _)| *changed == name);
        change.map_or(usual, |(_, value)| value).to_owned()
    };
    let form = Form::TakenApart {
        id: field("id", "ord-1001"),
        source: field("source", "/shop/eu"),
        ty: field("type", "shop.order.placed.v1"),
        specversion: field("specversion", "1.0"),
        content_type: field("datacontenttype", "application/json"),
        extensions: serde_json::from_value(extensions).unwrap(),
    };
    Arrival { body: Bytes::copy_from_slice(data.as_ref()), form }
}

pub(super) fn one(body: impl AsRef<[u8]>) -> Event {
    decode(broker(body)).remove(0).unwrap()
}

pub(super) const DATA: Is = Json(r#"{"orderId":"ord-1001","total":"42.00"}"#);

#[test]
fn a_structured_event_is_read_whole() {
    let body = e0(&[
        ("subject", r#""orders/1001""#),
        ("time", r#""2026-01-05T10:00Z""#),
        ("dataschema", r#""https://schemas.example/order""#),
        ("topic", r#""orders""#),
        ("x-fc-id", "7"),
        ("MyExt", "true"),
        ("gone", "null"),
    ]);
    let event = check(&broker(&body), &[DATA]).remove(0).unwrap();
    assert_eq!((event.id(), event.source()), ("ord-1001", "/shop/eu"));
    assert_eq!((event.ty(), event.subject()), ("shop.order.placed.v1", Some("orders/1001")));
    assert_eq!(event.time(), Some("2026-01-05T10:00Z"), "C9: kept as it came, not judged");
    assert_eq!(event.content_type(), Some("application/json"));
    assert_eq!(event.dataschema(), Some("https://schemas.example/order"));
    assert_eq!(event.topic(), Some("orders"));
    assert_eq!(event.extension("x-fc-id"), Some(&Value::from(7)), "C13: any name");
    assert_eq!(event.extension("MyExt"), Some(&Value::from(true)));
    assert_eq!((event.extension("gone"), event.extension("id")), (None, None));
    assert_eq!(event.stored().body, body, "the exact bytes");
}

#[test]
fn specversion_is_exactly_1_0() {
    for other in [r#""""#, r#""0.3""#, r#""1.0.2""#, r#"" 1.0""#, r#""2.0""#, "1.0", "true"] {
        check(&broker(e0(&[("specversion", other)])), &[Filed(UNSUPPORTED_SPECVERSION)]);
    }
    for none in ["", "null"] {
        check(&broker(e0(&[("specversion", none)])), &[Filed(NOT_A_CLOUDEVENT)]);
    }
    check(
        &apart(&[("specversion", "0.3")], Map::new().into(), ""),
        &[Filed(UNSUPPORTED_SPECVERSION)],
    );
    check(&apart(&[("specversion", "")], Map::new().into(), ""), &[Filed(NOT_A_CLOUDEVENT)]);
}

#[test]
fn id_source_and_type_are_strings_that_are_not_blank() {
    let names = [("id", MISSING_ID), ("source", MISSING_SOURCE), ("type", MISSING_TYPE)];
    for (name, missing) in names {
        for blank in ["", "null", r#""""#, r#"" ""#, r#""\t\u00a0\n""#] {
            check(&broker(e0(&[(name, blank)])), &[Filed(missing.clone())]);
        }
        for other in ["17", "true", r#"{"a":1}"#, r#"["x"]"#, r#""\ud800""#] {
            check(&broker(e0(&[(name, other)])), &[Filed(INVALID_ATTRIBUTE)]);
        }
        // A35: the sidecar says a missing attribute with an empty string.
        check(&apart(&[(name, "")], Map::new().into(), "{}"), &[Filed(missing)]);
    }
    check(&broker(e0(&[("datacontenttype", "1")])), &[Filed(INVALID_ATTRIBUTE)]);
    assert_eq!(one(e0(&[("id", r#"" x ""#)])).id(), " x ", "never trimmed");
    // A36: everything missing at once.
    let changes =
        [("id", ""), ("source", ""), ("type", ""), ("specversion", ""), ("datacontenttype", "")];
    check(&apart(&changes, Map::new().into(), "{}"), &[Filed(NOT_A_CLOUDEVENT)]);
}

#[test]
fn attributes_have_a_longest_size_and_are_cut_when_filed() {
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
    check(&broker(e0(&[("id", &text(1024))])), &[DATA]);
    check(&broker(e0(&[("id", &text(1025))])), &[Filed(ID_TOO_LONG)]);
    for name in ["source", "type", "subject"] {
        check(&broker(e0(&[(name, &text(2048))])), &[DATA]);
        check(&broker(e0(&[(name, &text(2049))])), &[Filed(ATTRIBUTE_TOO_LONG)]);
    }
    let euros = format!("\"{}\"", "€".repeat(400));
    let filed = check(&broker(e0(&[("id", &euros), ("subject", "\"s\"")])), &[Filed(ID_TOO_LONG)]);
    let malformed = filed[0].clone().unwrap_err();
    assert_eq!(malformed.id.unwrap(), "€".repeat(341), "1,023 bytes: a whole character less");
    assert_eq!(malformed.source.as_deref(), Some("/shop/eu"));
    assert_eq!(malformed.ty.as_deref(), Some("shop.order.placed.v1"));
    assert_eq!(malformed.subject.as_deref(), Some("s"));
}

#[test]
fn an_odd_subject_or_time_is_no_fault() {
    for odd in [r#""""#, "null", "5", "[]"] {
        let event = check(&broker(e0(&[("subject", odd), ("time", odd)])), &[DATA]).remove(0);
        let event = event.unwrap();
        assert_eq!((event.subject(), event.time()), (None, None), "C4: {odd}");
    }
}

#[test]
fn bytes_that_are_no_event_are_filed_with_a_reason() {
    let cases: [(&[u8], Code); 15] = [
        (b"", MALFORMED_JSON),
        (b"  ", MALFORMED_JSON),
        (b"{", MALFORMED_JSON),
        (b"[{},", MALFORMED_JSON),
        (b"{}x", MALFORMED_JSON),
        (br#"{"specversion":"1.0","note":"\u12"}"#, MALFORMED_JSON),
        (b"hello", MALFORMED_JSON),
        (b"null", NOT_A_CLOUDEVENT),
        (b"17", NOT_A_CLOUDEVENT),
        (br#""text""#, NOT_A_CLOUDEVENT),
        (b"{}", NOT_A_CLOUDEVENT),
        (br#"{"orderId":1}"#, NOT_A_CLOUDEVENT),
        (br#"{"eventType":"Blob"}"#, NOT_A_CLOUDEVENT),
        (b"{\"id\":\"\xff\"}", INVALID_UTF8),
        (b"\xff\xfe{\0}\0", INVALID_UTF8),
    ];
    for (body, reason) in cases {
        let filed = check(&broker(body), &[Filed(reason)]).remove(0).unwrap_err();
        assert_eq!(filed.stored.body, body);
    }
    check(&broker(b"{\0}\0"), &[Filed(MALFORMED_JSON)]);
}

#[test]
fn a_byte_order_mark_is_skipped_and_kept() {
    let body = [b"\xef\xbb\xbf", e0(&[]).as_bytes()].concat();
    let event = check(&broker(&body), &[DATA]).remove(0).unwrap();
    assert_eq!(event.stored().body, body);
    let batch = [b"\xef\xbb\xbf[".as_slice(), e0(&[]).as_bytes(), b"]"].concat();
    check(&broker(batch), &[DATA]);
    check(&apart(&[], Map::new().into(), b"\xef\xbb\xbf{\"a\":1}"), &[Json(r#"{"a":1}"#)]);
    check(&apart(&[], Map::new().into(), b"\xff\xfe{\0}\0"), &[Filed(INVALID_UTF8)]);
}

#[test]
fn event_grid_events_are_known_by_their_shape() {
    let grid = r#"{"id":"1","eventType":"Blob","subject":"x",
        "eventTime":"2026-01-01T00:00:00Z","data":{},"dataVersion":"1"}"#;
    check(&broker(grid), &[Filed(EVENT_GRID_SCHEMA)]);
    let filed = check(
        &broker(format!("[{grid},{grid}]")),
        &[Filed(EVENT_GRID_SCHEMA), Filed(EVENT_GRID_SCHEMA)],
    );
    let malformed = filed[0].clone().unwrap_err();
    assert_eq!((malformed.id.as_deref(), malformed.subject.as_deref()), (Some("1"), Some("x")));
    let extensions = serde_json::json!({"eventType": "Blob", "eventTime": "2026-01-01T00:00:00Z"});
    let empty = [("specversion", ""), ("source", ""), ("type", "")];
    check(&apart(&empty, extensions, ""), &[Filed(EVENT_GRID_SCHEMA)]);
}

#[test]
fn each_member_of_a_batch_is_judged_alone_with_its_own_bytes() {
    check(&broker("[]"), &[]);
    check(&broker(" [ ] "), &[]);
    let second = e0(&[("id", r#""ord-1002""#), ("data", "[1, 2]")]);
    let batch = format!("[ {}, 5 , {second},[{second}],null, {{}} ]", e0(&[("id", "3")]));
    let results = check(
        &broker(batch),
        &[
            Filed(INVALID_ATTRIBUTE),
            Filed(NOT_A_CLOUDEVENT),
            Json("[1, 2]"),
            Filed(NOT_A_CLOUDEVENT),
            Filed(NOT_A_CLOUDEVENT),
            Filed(NOT_A_CLOUDEVENT),
        ],
    );
    let event = results[2].clone().unwrap();
    assert_eq!((event.id(), &event.stored().body[..]), ("ord-1002", second.as_bytes()));
    assert_eq!(&results[1].clone().unwrap_err().stored.body[..], b"5");
    check(&broker(format!("[{second},]")), &[Filed(MALFORMED_JSON)]);
}

#[test]
fn a_batch_beyond_its_longest_is_filed_whole() {
    let array = |members: usize| format!("[{}]", vec!["{}"; members].join(","));
    assert_eq!(decode(broker(array(BATCH_EVENTS_MAX))).len(), BATCH_EVENTS_MAX);
    let body = array(BATCH_EVENTS_MAX + 1);
    let results = decode(broker(&body));
    let [Err(malformed)] = &results[..] else { panic!("{}", results.len()) };
    assert_eq!((&malformed.reason, &malformed.stored.body[..]), (&BATCH_TOO_LONG, body.as_bytes()));
}

#[test]
fn json_content_is_told_by_its_subtype() {
    for json in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "text/json",
        "application/problem+json",
        "application/vnd.a_b+json ;v=\\\"1\\\"",
        "application/cloudevents+json",
        "",
    ] {
        check(&broker(e0(&[("datacontenttype", &format!("\"{json}\""))])), &[DATA]);
    }
    check(&broker(e0(&[("datacontenttype", "")])), &[DATA]);
    check(&broker(e0(&[("datacontenttype", "null")])), &[DATA]);
    for other in ["text/plain", "application/jsonx", "multipart/mixed; boundary=\\\"x\\\"", "json"]
    {
        let changes =
            [("datacontenttype", format!("\"{other}\"")), ("data", r#""a \u20ac""#.into())];
        let changes: Vec<_> = changes.iter().map(|(n, v)| (*n, v.as_str())).collect();
        check(&broker(e0(&changes)), &[Raw("a €".as_bytes())]);
    }
}

#[test]
fn json_data_keeps_its_text() {
    for text in [
        r#"{"orderId":637831257272814404}"#,
        "[12345678901234567890, 0.10, 1e999]",
        r#"{"note":"a\u0000b", "half":"\ud800"}"#,
        r#"{"k":1,"k":2}"#,
        r#""{\"a\":1}""#,
        r#""I'm just a string""#,
        "0",
        "false",
    ] {
        check(&broker(e0(&[("data", text)])), &[Json(text)]);
        check(&apart(&[], Map::new().into(), text), &[Json(text)]);
        check(&binary(&CE, text), &[Json(text)]);
    }
}

#[test]
fn no_data_null_and_zero_bytes_are_the_same() {
    let none = one(e0(&[("data", "")])).fingerprint();
    for data in ["", "null"] {
        let event = check(&broker(e0(&[("data", data)])), &[Empty]).remove(0).unwrap();
        assert!(!event.data_is_json());
        assert_eq!(event.fingerprint(), none);
        check(&apart(&[], Map::new().into(), data), &[Empty]);
        check(&binary(&CE, data), &[Empty]);
    }
    check(&broker(e0(&[("datacontenttype", r#""text/plain""#), ("data", r#""""#)])), &[Empty]);
    check(&broker(e0(&[("data", ""), ("data_base64", r#""""#)])), &[Empty]);
    check(&broker(e0(&[("data", r#""""#)])), &[Json(r#""""#)]);
}

#[test]
fn data_base64_is_decoded_and_then_judged_by_the_content_type() {
    let changes = |ty, base64| [("datacontenttype", ty), ("data", "null"), ("data_base64", base64)];
    let octets = r#""application/octet-stream""#;
    let cases = [
        (octets, r#""/wD+""#, Raw(b"\xff\x00\xfe")),
        (octets, r#""eA""#, Raw(b"x")),
        (octets, r#""e A=""#, Filed(INVALID_BASE64)),
        (octets, r#""_w==""#, Filed(INVALID_BASE64)),
        (octets, "5", Filed(INVALID_BASE64)),
        ("null", r#""eyJhIjoxfQ==""#, Json(r#"{"a":1}"#)),
        ("null", r#""AAE=""#, Raw(b"\x00\x01")),
        (r#""text/json""#, r#""AAE=""#, Filed(MALFORMED_JSON)),
        (r#""text/json""#, r#""/wD+""#, Filed(INVALID_UTF8)),
    ];
    for (ty, base64, wanted) in cases {
        check(&broker(e0(&changes(ty, base64))), &[wanted]);
    }
    check(&broker(e0(&[("data_base64", r#""eA==""#)])), &[Filed(AMBIGUOUS_DATA)]);
    check(&broker(e0(&[("data", "\"x\""), ("data_base64", "1")])), &[Filed(AMBIGUOUS_DATA)]);
}

#[test]
fn a_wrong_label_is_neither_unquoted_nor_parsed() {
    let plain = [("datacontenttype", "text/plain")];
    check(&apart(&plain, Map::new().into(), "\"ord-1001\""), &[Raw(b"\"ord-1001\"")]);
    check(&apart(&plain, Map::new().into(), r#"{"a":1}"#), &[Raw(br#"{"a":1}"#)]);
    check(
        &broker(e0(&[("datacontenttype", r#""application/avro""#), ("data", r#""Zm9v""#)])),
        &[Raw(b"Zm9v")],
    );
    check(
        &broker(e0(&[("datacontenttype", r#""text/xml""#), ("data", "[1, 2]")])),
        &[Raw(b"[1, 2]")],
    );
    let half = [("datacontenttype", r#""text/plain""#), ("data", r#""\ud800""#)];
    check(&broker(e0(&half)), &[Filed(MALFORMED_JSON)]);
    check(&apart(&[], Map::new().into(), b"\x00\x01"), &[Filed(MALFORMED_JSON)]);
}

#[test]
fn broken_json_that_the_sidecar_wrapped_as_a_string_is_told_from_other_strings() {
    for (data, broken) in [
        (r#""{\"orderId\": 1""#, true),
        (r#""\n [1, 2""#, true),
        (r#""{}""#, false),
        (r#""order {1""#, false),
        (r#"{"orderId": "{1"}"#, false),
    ] {
        let event = check(&broker(e0(&[("data", data)])), &[Json(data)]).remove(0).unwrap();
        assert_eq!(event.holds_broken_json(), broken, "{data}");
    }
}

#[test]
fn an_envelope_in_an_envelope_is_filed_not_unwrapped() {
    let inner = e0(&[]);
    check(&broker(e0(&[("data", &inner)])), &[Filed(NESTED_ENVELOPE)]);
    check(&apart(&[], Map::new().into(), &inner), &[Filed(NESTED_ENVELOPE)]);
    check(&binary(&CE, &inner), &[Filed(NESTED_ENVELOPE)]);
    let part = r#"{"specversion":"1.0","id":"1","source":"s"}"#;
    assert_eq!(one(e0(&[("data", part)])).data().unwrap(), part, "no type, no envelope");
}

#[test]
fn nesting_is_bounded_without_a_deep_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}0{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    for make in [nested as fn(usize) -> String, objects] {
        let event = one(e0(&[("data", &make(127))]));
        assert!(serde_json::from_slice::<Value>(event.data().unwrap()).is_ok());
        for depth in [128, 129, 100_000] {
            check(&broker(e0(&[("data", &make(depth))])), &[Filed(TOO_DEEP)]);
            check(&broker(e0(&[("ext", &make(depth))])), &[Filed(TOO_DEEP)]);
            check(&binary(&CE, make(depth)), &[Filed(TOO_DEEP)]);
        }
        check(&broker(e0(&[("ext", &make(127))])), &[DATA]);
    }
    check(&broker(format!("{{\"a\":{}}}", nested(100_000))), &[Filed(NOT_A_CLOUDEVENT)]);
    check(&broker(nested(100_000)), &[Filed(NOT_A_CLOUDEVENT)]);
    check(&broker("[".repeat(100_000)), &[Filed(MALFORMED_JSON)]);
    check(&broker(e0(&[("ext", "1e999")])), &[Filed(INVALID_ATTRIBUTE)]);
}

#[test]
fn binary_mode_is_told_by_its_specversion() {
    for prefix in ["ce_", "CE_", "ce-", "cloudevents:", "cloudEvents:", "cloudevents_"] {
        let named = CE.map(|(key, value)| (key.replace("ce_", prefix), value));
        let mut metadata: Vec<_> = named.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        metadata.extend([
            ("__topic", "orders"),
            ("content-type", "text/plain"),
            ("ce.id", "other"),
        ]);
        let event = check(&binary(&metadata, "hi"), &[Raw(b"hi")]).remove(0).unwrap();
        assert_eq!((event.id(), event.source()), ("ord-1001", "/shop/eu"));
        assert_eq!(event.content_type(), Some("text/plain"));
        assert_eq!(event.extension("__topic"), None);
    }
    let metadata = |more: &[(&'static str, &'static str)]| [&CE[..], more].concat();
    check(
        &binary(&metadata(&[("content-type", "application/json")]), "{"),
        &[Filed(MALFORMED_JSON)],
    );
    check(&binary(&metadata(&[("metadata.ContentType", "text/csv")]), "{}"), &[Raw(b"{}")]);
    check(&binary(&metadata(&[("ce_datacontenttype", "text/csv")]), "{}"), &[Raw(b"{}")]);
    check(&binary(&metadata(&[]), "{\"a\" :1}\n"), &[Json("{\"a\" :1}")]);
    check(&binary(&metadata(&[]), b"\xff\x00"), &[Raw(b"\xff\x00")]);
    let call = [("content-type", "application/grpc"), ("metadata.contenttype", "text/csv")];
    check(&binary(&metadata(&call[..1]), "{}"), &[Json("{}")]);
    check(&binary(&metadata(&call), "{}"), &[Raw(b"{}")]);
    check(&binary(&metadata(&[("ce_id", " ")]), "{}"), &[Filed(MISSING_ID)]);
    let structured = metadata(&[("content-type", "application/CloudEvents+json; charset=UTF-8")]);
    check(&binary(&structured, e0(&[])), &[DATA]);
    check(&binary(&[("ce_id", "x")], e0(&[])), &[DATA]);
}

#[test]
fn only_the_http_prefix_is_percent_decoded() {
    for (text, wanted) in [
        ("a%20b", "a b"),
        ("%e2%82%AC", "€"),
        ("%", "%"),
        ("%2", "%2"),
        ("%+1", "%+1"),
        ("%ff", "%ff"),
    ] {
        let named = CE.map(|(key, value)| (key.replace("ce_", "ce-"), value));
        let mut metadata: Vec<_> = named.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        metadata.push(("ce-note", text));
        let event = check(&binary(&metadata, "1"), &[Json("1")]).remove(0).unwrap();
        assert_eq!(event.extension("note"), Some(&Value::from(wanted)));
        let event =
            decode(binary(&[&CE[..], &[("ce_note", text)]].concat(), "1")).remove(0).unwrap();
        assert_eq!(event.extension("note"), Some(&Value::from(text)));
    }
}

#[test]
fn what_the_sidecar_took_apart_is_put_together() {
    let extensions = serde_json::json!({
        "subject": "s", "time": "2026-01-05T10:00:00Z", "topic": "orders", "recoveryattempt": 3.0,
        "ratio": 0.1, "id": "other", "gone": null,
    });
    let event =
        check(&apart(&[], extensions, r#"{"a":1}"#), &[Json(r#"{"a":1}"#)]).remove(0).unwrap();
    assert_eq!((event.id(), event.subject()), ("ord-1001", Some("s")));
    assert_eq!((event.topic(), event.recovery_attempt()), (Some("orders"), 3));
    assert_eq!(event.extension("ratio"), Some(&Value::from(0.1)));
    assert_eq!((event.extension("gone"), event.extension("subject")), (None, None));
    check(&apart(&[("datacontenttype", "")], Map::new().into(), ""), &[Empty]);
    check(&apart(&[("id", "")], serde_json::json!({"id": "other"}), ""), &[Filed(MISSING_ID)]);
}
