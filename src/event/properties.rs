//! What holds for every input.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::fingerprint::canonical;
use super::*;

const VALID: &str = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"\u00e9",
    "traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","n":[1,{"a":-0.5e3}],
    "datacontenttype":"application/json","data":{"b":[true,null,"x\n"],"a":12345678901234567890}}"#;

/// Bytes near enough to JSON to get past the first check.
fn json_like() -> impl Strategy<Value = Vec<u8>> {
    let pieces = vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u00",
        "\\ud83d",
        "1",
        "-",
        ".5",
        "e",
        "null",
        "true",
        " ",
        "\"specversion\":\"1.0\"",
        "\"id\":\"1\"",
        "\"source\":\"s\"",
        "\"type\":\"t\"",
        "\"data\":",
        "\"data_base64\":",
        "\"datacontenttype\":",
        "\"text/plain\"",
        "\"eA==\"",
        "\u{feff}",
        "é",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..40).prop_map(|p| p.concat().into_bytes())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>());
    prop::collection::vec(change, 1..6).prop_map(|changes| {
        let mut bytes = VALID.as_bytes().to_vec();
        for (at, what, byte) in changes {
            let at = at.index(bytes.len().max(1));
            match what {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.insert(at.min(bytes.len()), byte),
                _ => bytes.truncate(bytes.len().max(at) - at / 2),
            }
        }
        bytes
    })
}

/// Decodes the bytes in every form; each result must come out of its stored form again.
fn decode_all(body: &[u8]) {
    let names = ["specversion", "id", "source", "type"];
    let values = ["1.0", "1", "s", "t"].map(str::to_owned);
    let [specversion, id, source, ty] = values.clone();
    let metadata = names.map(|name| format!("ce-{name}")).into_iter().zip(values).collect();
    let extensions = serde_json::from_slice(body).unwrap_or_default();
    let content_type = "application/json".to_owned();
    let forms = [
        Form::Broker { metadata: BTreeMap::new() },
        Form::Broker { metadata },
        Form::TakenApart { id, source, ty, specversion, content_type, extensions },
    ];
    for form in forms {
        for result in decode(Arrival { body: Bytes::copy_from_slice(body), form }) {
            let stored = match &result {
                Ok(event) => event.stored(),
                Err(malformed) => &malformed.stored,
            };
            assert_eq!(Event::from_stored(stored), result);
            if let Ok(event) = result {
                let _: (_, _, _) =
                    (event.traceparent(), event.expires_at(), event.recovery_attempt());
            }
        }
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i64).prop_map(Value::from),
        "[a\"\\\\é\n😀]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[abé]{0,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes the value in another way: `dice` chooses white space, escapes and the order of keys.
fn respelt(value: &Value, dice: &mut impl Iterator<Item = u8>, out: &mut String) {
    let space = |dice: &mut dyn Iterator<Item = u8>| {
        ["", " ", "\n", "\t\r"][usize::from(dice.next().unwrap() % 4)]
    };
    out.push_str(space(dice));
    match value {
        Value::String(text) => respelt_text(text, dice, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                respelt(item, dice, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            let mut members: Vec<_> = members.iter().collect();
            let turn = usize::from(dice.next().unwrap()) % members.len().max(1);
            members.rotate_left(turn);
            for (at, (key, value)) in members.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                if dice.next().unwrap() < 80 {
                    // An earlier member of the same name, which the later one replaces.
                    respelt_text(key, dice, out);
                    out.push_str(":[{}],");
                }
                out.push_str(space(dice));
                respelt_text(key, dice, out);
                out.push_str(space(dice));
                out.push(':');
                respelt(value, dice, out);
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
    }
    out.push_str(space(dice));
}

fn respelt_text(text: &str, dice: &mut impl Iterator<Item = u8>, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        if dice.next().unwrap() < 128 {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04X}").unwrap();
            }
        } else {
            let quoted = serde_json::to_string(&letter).unwrap();
            out.push_str(quoted.get(1..quoted.len() - 1).unwrap());
        }
    }
    out.push('"');
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn decoding_never_panics_on_any_bytes(body in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&body);
    }

    #[test]
    fn decoding_never_panics_on_what_looks_like_json(body in json_like()) {
        decode_all(&body);
        decode_all(&[b"{", body.as_slice()].concat());
    }

    #[test]
    fn decoding_never_panics_on_a_damaged_event(body in mutated()) {
        decode_all(&body);
        decode_all(&[b"[", VALID.as_bytes(), b",", &body, b"]"].concat());
    }

    #[test]
    fn the_stored_form_is_the_same_event(data in json(), ratio in any::<f64>(), name in "\\PC*") {
        let event = Event::json("1", "s", "t", &data).unwrap();
        prop_assert_eq!(Event::from_stored(event.stored()), Ok(event));
        let [id, source, ty, specversion] = ["1", "s", "t", "1.0"].map(str::to_owned);
        let extensions = [("ratio".to_owned(), ratio.into()), (name, data)].into_iter().collect();
        let content_type = "text/plain".to_owned();
        let form = Form::TakenApart { id, source, ty, specversion, content_type, extensions };
        for result in decode(Arrival { body: Bytes::from_static(b"x"), form }) {
            let event = result.unwrap();
            prop_assert_eq!(Event::from_stored(event.stored()), Ok(event));
        }
    }

    #[test]
    fn a_fingerprint_ignores_order_white_space_and_escapes(
        value in json(),
        dice in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let mut text = String::new();
        respelt(&value, &mut dice.iter().copied().cycle(), &mut text);
        prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value.clone(), "{}", text);
        prop_assert_eq!(canonical(&text), canonical(&value.to_string()), "{}", text);
    }

    #[test]
    fn different_values_have_different_fingerprints(one in json(), other in json()) {
        let same = canonical(&one.to_string()) == canonical(&other.to_string());
        prop_assert_eq!(same, one == other);
    }

    #[test]
    fn no_two_keys_run_into_each_other(
        one in prop::array::uniform3("[a/\0]{0,3}"),
        other in prop::array::uniform3("[a/\0]{0,3}"),
    ) {
        let key = |[name, source, id]: &[String; 3]| MessageKey::of(name, source, id);
        prop_assert_eq!(key(&one) == key(&other), one == other);
        let [name, source, id] = &other;
        prop_assert_ne!(key(&one), MessageKey::of_bytes(name, format!("{source}{id}").as_bytes()));
    }
}
