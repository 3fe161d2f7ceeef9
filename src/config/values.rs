//! From the text of a variable to its value, or to what is wrong with it.
//!
//! **Invariant:** no problem repeats the text: it might be a secret in the wrong place.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use crate::store::PostgresUrl;

/// Stands for an address that could not be read; never handed out.
pub(super) const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

type Parsed<T> = Result<T, String>;

pub(super) fn secs(text: &str, min: f64, max: f64) -> Parsed<Duration> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = if plain { text.parse::<f64>().ok() } else { None };
    match number {
        Some(secs) if secs >= min && secs <= max => {
            Duration::try_from_secs_f64(secs).map_err(|_| "is out of range".to_owned())
        }
        Some(_) => Err(format!("must lie between {min} and {max} seconds")),
        None => {
            Err("is not a plain number of seconds (digits, decimals allowed, no unit)".to_owned())
        }
    }
}

/// Seconds as [`secs`] reads them.
pub(super) fn secs_text(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

pub(super) fn count<T: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Parsed<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err("is not a whole number".to_owned());
    }
    // Digits that do not fit are above every maximum.
    let number = text.parse::<u64>().unwrap_or(u64::MAX);
    if number < min || number > max {
        return Err(format!("must lie between {min} and {max}"));
    }
    T::try_from(number).map_err(|_| format!("must lie between {min} and {max}"))
}

pub(super) fn name(text: &str) -> Parsed<String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.len() > 64 || !text.bytes().all(known) {
        return Err("must be 1 to 64 letters, digits, dots, underscores or hyphens".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn text(text: &str) -> Parsed<String> {
    if text.len() > 255 || text.chars().any(char::is_control) {
        return Err("must be at most 255 characters, none of them a control character".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn secret(text: &str) -> Parsed<SecretString> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds a space, a line break or a character that is not ASCII, \
                    which a header cannot carry"
            .to_owned());
    }
    Ok(SecretString::from(text))
}

pub(super) fn listen_address(text: &str) -> Parsed<SocketAddr> {
    text.parse().map_err(|_| "is not an IP address and a port".to_owned())
}

/// A database, before the settings that only PostgreSQL has.
pub(super) enum StorePlace {
    Sqlite(PathBuf),
    Postgres(Box<PostgresUrl>),
}

pub(super) fn store_place(text: &str) -> Parsed<StorePlace> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let url: PostgresUrl = text.parse().map_err(|error| format!("{error}"))?;
        return Ok(StorePlace::Postgres(Box::new(url)));
    }
    let Some(path) = text.strip_prefix("sqlite://") else {
        return Err("begins with neither sqlite:// nor postgres://".to_owned());
    };
    if path.contains(":memory:") || path.contains("mode=memory") {
        return Err(
            "a database in memory would forget what was acknowledged: name a file".to_owned()
        );
    }
    if path.contains(['?', '#']) || path.chars().any(char::is_control) {
        return Err("takes a path alone, without parameters".to_owned());
    }
    if path.is_empty() || path.ends_with('/') {
        return Err("names no file".to_owned());
    }
    Ok(StorePlace::Sqlite(PathBuf::from(path)))
}

/// A schema that needs no quotes.
pub(super) fn schema(text: &str) -> Parsed<String> {
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let goes_on =
        text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !begins || !goes_on || text.len() > 63 || text.starts_with("pg_") {
        return Err("is not 1 to 63 of a-z, 0-9 and _, or begins with a digit or pg_".to_owned());
    }
    Ok(text.to_owned())
}

/// A time, or for ever.
pub(super) fn secs_or_keep(text: &str) -> Parsed<Option<Duration>> {
    if text == "keep" { Ok(None) } else { secs(text, 0.0, 3650.0 * 86_400.0).map(Some) }
}

/// A URL with its password masked.
pub(super) fn without_password(url: &str) -> String {
    let masked = url.split_once("://").and_then(|(scheme, rest)| {
        let (credentials, place) = rest.rsplit_once('@')?;
        let (user, _) = credentials.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{place}"))
    });
    let masked = masked.unwrap_or_else(|| url.to_owned());
    // tokio-postgres takes a password as a parameter too.
    let Some((address, query)) = masked.split_once('?') else { return masked };
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        Some(("password", _)) => "password=***",
        _ => pair,
    });
    format!("{address}?{}", shown.collect::<Vec<_>>().join("&"))
}

pub(super) fn http_url(text: &str) -> Parsed<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return Err("does not begin with http:// or https://".to_owned());
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err("holds a user or a password, which do not belong into a URL".to_owned());
    }
    if rest.contains(['?', '#']) || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("takes a host, a port and a path alone, in ASCII".to_owned());
    }
    if !is_host_and_port(authority) {
        return Err("names no host, or a port that is none".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn is_host_and_port(authority: &str) -> bool {
    // The colons of an IPv6 address stand within brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    !host.is_empty() && port.is_none_or(|port| count::<u16>(port, 1, 65_535).is_ok())
}

pub(super) fn plain_http_url(text: &str) -> Parsed<String> {
    if text.starts_with("https://") {
        return Err("this build speaks to it without TLS: use http://".to_owned());
    }
    http_url(text)
}

pub(super) fn log_directives(text: &str) -> Parsed<String> {
    // A lone word that is no level would be taken for a target and switch everything else off.
    let said = text.split(',').map(str::trim).all(|part| {
        part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok())
    });
    if !said || EnvFilter::try_new(text).is_err() {
        return Err("is not a list of levels and target=level".to_owned());
    }
    Ok(text.to_owned())
}
