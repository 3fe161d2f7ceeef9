//! Opening: one service a file, migrations that are never edited, and what a dead process left.

use super::*;
use crate::store::{AttemptKind, CaseFilter, CaseStatus};

#[tokio::test]
async fn a_second_service_on_one_file_is_refused_and_an_operator_is_not() {
    let place = Place::sqlite();
    let store = place.open().await;
    let second = refusal(place.open_as(OpenAs::Service).await);
    assert!(second.contains("is being served by another process"), "{second}");
    assert!(second.contains("store.db"), "{second}");
    let operator = place.open_as(OpenAs::Operator).await.unwrap();
    store.file("1", Category::Invalid).await;
    assert_eq!(
        operator.cases(CaseFilter { limit: 9, ..CaseFilter::default() }).await.unwrap().len(),
        1
    );
    drop(store);
    place.open().await;
}

#[tokio::test]
async fn an_operator_s_tool_makes_no_store_where_there_is_none() {
    let place = Place::sqlite();
    let missing = refusal(place.open_as(OpenAs::Operator).await);
    assert!(missing.contains("there is no store at"), "{missing}");
    assert!(missing.contains("BACKSTOP_STORE_URL"), "{missing}");
    assert!(!place.path().exists());
}

#[tokio::test]
async fn an_operator_s_tool_refuses_a_file_that_is_no_store_of_ours() {
    let place = Place::sqlite();
    Connection::open(place.path()).unwrap().execute_batch("CREATE TABLE other (a)").unwrap();
    let foreign = refusal(place.open_as(OpenAs::Operator).await);
    assert!(foreign.contains("is not a Backstop store"), "{foreign}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_by_a_service_too() {
    let place = Place::sqlite();
    std::fs::write(place.path(), "these are not the pages of a database, by far".repeat(100))
        .unwrap();
    refusal(place.open_as(OpenAs::Service).await);
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_may_read_the_file_for_it_holds_payloads() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::sqlite();
    let _store = place.open().await;
    let mode = std::fs::metadata(place.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[tokio::test]
async fn the_case_that_a_killed_process_was_redriving_is_open_again_after_the_next_start() {
    let place = Place::sqlite();
    let store = place.open().await;
    let id = store.file("1", Category::Rejected).await;
    store.request_redrive(id.clone(), "ann".to_owned()).await.unwrap();
    let (claims, _) = store.claim_due(9).await.unwrap();
    assert_eq!(claims[0].kind, AttemptKind::Redrive);
    // Killed: nothing reports, and the lease has almost all of its time left.
    drop(store);
    let store = place.open().await;
    assert_eq!(store.next_due().await.unwrap(), Some(Timestamp(0)), "it is due at once");
    let moved = store.time_passed(9).await.unwrap();
    assert!(matches!(&moved[..], [Written::Quarantined(case)] if case.reopened), "{moved:?}");
    let cases = store.cases_by_prefix(id.clone()).await.unwrap();
    assert_eq!(cases[0].status, CaseStatus::Open);
    let late = store.fail(message("1"), Authority::Run(claims[0].run), FAILED).await.unwrap();
    assert!(matches!(late, Written::Nothing(_)), "{late:?}");
    let acts: Vec<String> =
        store.audit(id).await.unwrap().into_iter().map(|entry| entry.action).collect();
    assert_eq!(acts, ["quarantined", "redrive_requested", "redriving", "reopened"]);
}

#[tokio::test]
async fn a_recovery_that_died_with_its_process_is_due_again_after_the_next_start() {
    let place = Place::sqlite();
    let store = place.open().await;
    store.dead_letter(message("1")).await.unwrap();
    let (claims, _) = store.claim_due(9).await.unwrap();
    assert_eq!((claims.len(), claims[0].attempt), (1, 1));
    drop(store);
    let store = place.open().await;
    let moved = store.time_passed(9).await.unwrap();
    assert!(matches!(&moved[..], [Written::Recovering { .. }]), "{moved:?}");
    place.pass(Duration::from_secs(60));
    let (claims, _) = store.claim_due(9).await.unwrap();
    assert_eq!((claims[0].run, claims[0].attempt), (2, 2), "the lost run is an attempt");
}
