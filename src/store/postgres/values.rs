//! Values between us and PostgreSQL.
//!
//! A parameter goes as text unless it is bytes, so that the database itself makes the column's type
//! of it: an integer fits `bigint`, `boolean` and `numeric`, a text fits `uuid`, `jsonb` and
//! `timestamptz`. PostgreSQL keeps no NUL in a text; ours are kept escaped ([`keep_nul`]).

use std::borrow::Cow;
use std::error::Error;

use bytes::{Bytes, BytesMut};
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::clock::Timestamp;
use crate::effect::Value;
use crate::store::sql::Param;

type Problem = Box<dyn Error + Sync + Send>;

/// Seconds between the Unix epoch and PostgreSQL's, 2000-01-01.
const POSTGRES_EPOCH_SECS: i64 = 946_684_800;
/// Stands before an escaped character; from the private use area of Unicode.
const ESCAPE: char = '\u{E000}';

/// A text as it is kept.
pub(super) fn kept_text(text: &str) -> String {
    keep_nul(text).into_owned()
}

/// A text without NUL that [`nul_again`] turns back into this one.
pub(super) fn keep_nul(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let escaped = text.replace(ESCAPE, "\u{E000}1").replace('\0', "\u{E000}0");
    Cow::Owned(escaped)
}

/// The text that [`keep_nul`] was given.
pub(super) fn nul_again(text: String) -> String {
    if !text.contains(ESCAPE) {
        return text;
    }
    text.replace("\u{E000}0", "\0").replace("\u{E000}1", "\u{E000}")
}

impl ToSql for Param<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Problem> {
        match self {
            Self::Null => return Ok(IsNull::Yes),
            Self::Integer(integer) => out.extend_from_slice(integer.to_string().as_bytes()),
            Self::Real(real) => out.extend_from_slice(real.to_string().as_bytes()),
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            Self::Blob(blob) if *ty == Type::BYTEA => out.extend_from_slice(blob),
            Self::Blob(_) => return Err(format!("bytes do not fit a column of type {ty}").into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self {
            Self::Blob(_) => Format::Binary,
            _ => Format::Text,
        }
    }

    to_sql_checked!();
}

/// A column of any type that has a [`Value`].
pub(super) struct Read(pub Value);

impl<'a> FromSql<'a> for Read {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Problem> {
        let value = match *ty {
            Type::BOOL => Value::Integer(bool::from_sql(ty, raw)?.into()),
            Type::INT2 => Value::Integer(i16::from_sql(ty, raw)?.into()),
            Type::INT4 => Value::Integer(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Value::Integer(i64::from_sql(ty, raw)?),
            Type::FLOAT4 => Value::Real(f32::from_sql(ty, raw)?.into()),
            Type::FLOAT8 => Value::Real(f64::from_sql(ty, raw)?),
            Type::BYTEA => Value::Blob(Bytes::copy_from_slice(raw)),
            Type::UUID => Value::Text(uuid::Uuid::from_slice(raw)?.to_string()),
            Type::JSON => Value::Text(std::str::from_utf8(raw)?.to_owned()),
            Type::JSONB => match raw.split_first() {
                Some((1, json)) => Value::Text(std::str::from_utf8(json)?.to_owned()),
                _ => return Err("a jsonb of an unknown version".into()),
            },
            Type::TIMESTAMPTZ => {
                let micros = i64::from_be_bytes(raw.try_into()?);
                let since_unix = micros.saturating_add(POSTGRES_EPOCH_SECS * 1_000_000);
                Value::Text(Timestamp(since_unix).to_string())
            }
            _ if <String as FromSql<'_>>::accepts(ty) => Value::Text(String::from_sql(ty, raw)?),
            _ => return Err(format!("a column of type {ty}: cast it, to text for example").into()),
        };
        Ok(Self(value))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Problem> {
        Ok(Self(Value::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_kept_without_nul_and_comes_back(
            text in proptest::collection::vec(
                prop_oneof![Just('\0'), Just('\u{E000}'), Just('0'), Just('1'), any::<char>()], 0..20
            ).prop_map(String::from_iter)
        ) {
            let kept = keep_nul(&text);
            prop_assert!(!kept.contains('\0'));
            prop_assert_eq!(nul_again(kept.into_owned()), text);
        }
    }
}
