//! Identity of a message and equality of its data, as 16 bytes each.
//!
//! **Invariants**
//! - Everything hashed begins with a byte for its kind and every field with its length, so no two
//!   different inputs are hashed as the same bytes.
//! - The canonical form of JSON is built without recursion, and deeper than [`DEPTH_MAX`] is
//!   refused.
//!
//! BLAKE3 cut to 16 bytes: an accidental collision takes about 2^64 messages. A producer who looks
//! for one on purpose can only make its own two messages look alike.

use std::fmt;
use std::ops::Range;

use super::DEPTH_MAX;

/// What is hashed; never renumber, for keys are kept on disk.
#[derive(Clone, Copy)]
enum Kind {
    Identity = 1,
    Bytes = 2,
    Reused = 3,
    NoData = 4,
    JsonData = 5,
    OtherData = 6,
}

/// Which message it is, for one subscription: equal keys are the same message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageKey(pub [u8; 16]);

impl MessageKey {
    /// The key of an event: subscription name, `source` and `id`, byte for byte.
    pub fn of(subscription: &str, source: &str, id: &str) -> Self {
        let fields = [subscription.as_bytes(), source.as_bytes(), id.as_bytes()];
        Self(digest(Kind::Identity, &fields))
    }

    /// The key of what has no identity of its own: its bytes, or a declared part of them.
    pub fn of_bytes(subscription: &str, bytes: &[u8]) -> Self {
        Self(digest(Kind::Bytes, &[subscription.as_bytes(), bytes]))
    }

    /// The key of another message that came under this key with other data.
    #[must_use]
    pub fn reused(&self, other: &Fingerprint) -> Self {
        Self(digest(Kind::Reused, &[&self.0, &other.0]))
    }

    /// Its first eight bytes, for choosing a jitter or a shard.
    pub fn seed(&self) -> u64 {
        u64::try_from(u128::from_be_bytes(self.0) >> 64).unwrap_or_default()
    }

    /// The key that is displayed so: 32 hex digits in either case.
    pub fn parse_hex(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Equality of type and data: tells a duplicate from another message under the same id.
///
/// For JSON the order of keys, white space and string escapes do not matter, and of a key given
/// twice the last counts, as for every common parser. Numbers are compared as they are written:
/// integers beyond 2^53 differ in every digit, and so do `1.0` and `1`. Other data is compared
/// byte for byte. No data and empty data are the same thing (see [`super::Event::data`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// Of an event of that type without data.
    pub(super) fn of_nothing(ty: &str) -> Self {
        Self(digest(Kind::NoData, &[ty.as_bytes()]))
    }

    /// Of an event of that type with JSON data, given in its [`canonical`] form.
    pub(super) fn of_json(ty: &str, canonical: &[u8]) -> Self {
        Self(digest(Kind::JsonData, &[ty.as_bytes(), canonical]))
    }

    /// Of an event of that type with any other data.
    pub(super) fn of_bytes(ty: &str, bytes: &[u8]) -> Self {
        Self(digest(Kind::OtherData, &[ty.as_bytes(), bytes]))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn digest(kind: Kind, fields: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind as u8]);
    for field in fields {
        hasher.update(&length(field.len()));
        hasher.update(field);
    }
    let mut digest = [0; 16];
    hasher.finalize_xof().fill(&mut digest);
    digest
}

fn length(bytes: usize) -> [u8; 8] {
    u64::try_from(bytes).unwrap_or(u64::MAX).to_le_bytes()
}

/// JSON nested deeper than [`DEPTH_MAX`] levels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooDeep;

/// One form for all texts of the same JSON value: keys sorted, strings unescaped and preceded by
/// their length, numbers and literals as written after a `#`, which marks where one ends too.
///
/// `text` must be one valid JSON value; of anything else the result means nothing, but it still
/// comes. Half a surrogate pair, legal in JSON text and in no Unicode string, becomes the three
/// bytes it would have in UTF-8, which no valid text contains.
pub(super) fn canonical(text: &str) -> Result<Vec<u8>, TooDeep> {
    let mut input = Input(text.as_bytes());
    let mut out = Vec::with_capacity(text.len());
    let mut open: Vec<Container> = Vec::new();
    while let Some(byte) = input.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => {}
            b'{' | b'[' => {
                if open.len() == DEPTH_MAX {
                    return Err(TooDeep);
                }
                begin_value(&mut open);
                out.push(byte);
                open.push(Container::new(byte == b'{', out.len()));
            }
            b'}' | b']' => {
                if let Some(container) = open.pop() {
                    container.sort_members(&mut out);
                }
                out.push(byte);
            }
            b'"' => {
                let is_key = open.last_mut().is_some_and(Container::take_key_turn);
                if !is_key {
                    begin_value(&mut open);
                }
                let start = out.len();
                string(&mut input, &mut out);
                if let Some(object) = open.last_mut().filter(|_| is_key) {
                    object.members.push(start..out.len());
                }
            }
            _ => {
                begin_value(&mut open);
                out.push(b'#');
                out.push(byte);
                out.extend_from_slice(input.until(|byte| b",:]} \t\n\r".contains(&byte)));
            }
        }
    }
    Ok(out)
}

/// After a value an object's next string is a key again.
fn begin_value(open: &mut [Container]) {
    if let Some(container) = open.last_mut() {
        container.expects_key = container.is_object;
    }
}

/// An array or object that is not closed yet.
struct Container {
    is_object: bool,
    expects_key: bool,
    /// Where its first member begins in the output.
    start: usize,
    /// Where each member's key stands in the output; its value follows, up to the next key.
    members: Vec<Range<usize>>,
}

impl Container {
    fn new(is_object: bool, start: usize) -> Self {
        Self { is_object, expects_key: is_object, start, members: Vec::new() }
    }

    fn take_key_turn(&mut self) -> bool {
        std::mem::take(&mut self.expects_key)
    }

    /// Puts the members in the order of their keys, keeping the last of equal keys. The sidecar
    /// writes keys in this order already, so an object is seldom moved.
    fn sort_members(&self, out: &mut Vec<u8>) {
        let is_sorted = {
            let text = |key: &Range<usize>| out.get(key.clone()).and_then(|key| key.get(QUOTED..));
            self.members.is_sorted_by(|one, next| text(one) < text(next))
        };
        if is_sorted {
            return;
        }
        let written = out.split_off(self.start.min(out.len()));
        let local = |at: usize| at.saturating_sub(self.start);
        let bytes = |from, to| written.get(local(from)..local(to)).unwrap_or_default();
        let ends = self.members.iter().skip(1).map(|key| key.start);
        let ends = ends.chain([self.start.saturating_add(written.len())]);
        let mut members: Vec<(&[u8], &[u8])> = (self.members.iter().zip(ends))
            .map(|(key, end)| (bytes(key.start, key.end), bytes(key.end, end)))
            .collect();
        members.sort_by_key(|(key, _)| key.get(QUOTED..));
        let following = members.iter().skip(1).map(|(key, _)| Some(*key)).chain([None]);
        for ((key, value), next) in members.iter().zip(following) {
            if next != Some(*key) {
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
        }
    }
}

/// Bytes before the text of a string in the canonical form: a quote and the length.
const QUOTED: usize = 9;

/// What is left of the text.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn until(&mut self, stop: impl Fn(u8) -> bool) -> &'a [u8] {
        let at = self.0.iter().position(|byte| stop(*byte)).unwrap_or(self.0.len());
        let (run, rest) = self.0.split_at(at);
        self.0 = rest;
        run
    }

    fn unit(&mut self) -> u32 {
        let digits =
            (0..4).filter_map(|_| self.next()).filter_map(|byte| char::from(byte).to_digit(16));
        digits.fold(0, |unit, digit| unit * 16 + digit)
    }

    /// The second half of a pair, if that is what follows.
    fn low_surrogate(&mut self) -> Option<u32> {
        let rest = self.0.strip_prefix(b"\\u")?;
        let mut ahead = Input(rest);
        let unit = ahead.unit();
        (0xdc00..0xe000).contains(&unit).then(|| {
            self.0 = ahead.0;
            unit
        })
    }
}

/// Copies a string whose opening quote has been read, without escapes and after its length.
fn string(input: &mut Input<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    let length_at = out.len();
    out.extend_from_slice(&length(0));
    let start = out.len();
    loop {
        out.extend_from_slice(input.until(|byte| byte == b'"' || byte == b'\\'));
        match input.next() {
            Some(b'\\') => escape(input, out),
            _ => break,
        }
    }
    let written = length(out.len() - start);
    if let Some(place) = out.get_mut(length_at..start) {
        place.copy_from_slice(&written);
    }
}

fn escape(input: &mut Input<'_>, out: &mut Vec<u8>) {
    let code = match input.next() {
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => 0x0a,
        Some(b'r') => 0x0d,
        Some(b't') => 0x09,
        Some(b'u') => match input.unit() {
            high @ 0xd800..0xdc00 => match input.low_surrogate() {
                Some(low) => 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                None => high,
            },
            unit => unit,
        },
        Some(other) => u32::from(other),
        None => return,
    };
    if let Some(text) = char::from_u32(code) {
        out.extend_from_slice(text.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let [_, _, high, low] = code.to_be_bytes();
        out.push(0xe0 | (high >> 4));
        out.push(0x80 | ((high & 0x0f) << 2) | (low >> 6));
        out.push(0x80 | (low & 0x3f));
    }
}
