//! TLS: a certificate is verified, always.

use super::*;

/// What opening over TLS comes to, with the server under this name and these parameters.
async fn open(place: &Place, host: &str, parameters: &str) -> Result<Store, StoreError> {
    let url = server().url().replace("127.0.0.1", host);
    let url = format!("{url}?{parameters}");
    let url = with(place, |settings| settings.url = url.parse().unwrap());
    Store::open(&url, OpenAs::Service, vec![TABLES], Limits::default(), place.clock.clone()).await
}

#[tokio::test]
async fn a_certificate_that_is_trusted_and_names_the_host_is_accepted() {
    let place = Place::postgres();
    let trusted = format!("sslmode=verify-full&sslrootcert={}", server().certificate().display());
    let store = open(&place, "localhost", &trusted).await.unwrap();
    assert_eq!(store.commit_one("1", vec![note("encrypted")]).await, Committed::Yes);
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(store.count(encrypted).await, 1);
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let place = Place::postgres();
    let refused = open(&place, "localhost", "sslmode=require").await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let place = Place::postgres();
    let trusted = format!("sslmode=require&sslrootcert={}", server().certificate().display());
    let refused = open(&place, "127.0.0.1", &trusted).await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_file_of_authorities_that_cannot_be_read_is_told_with_its_name() {
    let place = Place::postgres();
    let missing = "sslmode=require&sslrootcert=/nowhere/ca.pem";
    let refused = open(&place, "localhost", missing).await.unwrap_err().to_string();
    assert!(refused.contains("/nowhere/ca.pem"), "{refused}");
}
