//! Migrations of the application's own tables, and operators beside a service.

use super::*;

/// What opening says when it refuses.
pub(in crate::store) fn refusal(opened: Result<Store, StoreError>) -> String {
    match opened {
        Ok(_) => panic!("it opened"),
        Err(error) => error.to_string(),
    }
}

async fn an_application_s_migration_runs_once_and_is_refused_when_it_was_edited(place: Place) {
    let more = AppMigration { name: "0002_more", sql: "CREATE TABLE more (a TEXT);" };
    place.open_with(OpenAs::Service, &[TABLES]).await.unwrap();
    place.open_with(OpenAs::Service, &[TABLES, more.clone()]).await.unwrap();
    place.open_with(OpenAs::Service, &[TABLES, more]).await.unwrap();
    let edited = AppMigration { sql: "CREATE TABLE note (text TEXT, more TEXT);", ..TABLES };
    let refused = refusal(place.open_with(OpenAs::Service, &[edited]).await);
    assert!(refused.contains("`0001_tables` was edited"), "{refused}");
}

async fn a_migration_that_fails_leaves_nothing_of_itself(place: Place) {
    let fails = AppMigration {
        name: "0002_fails",
        sql: "CREATE TABLE half (a TEXT); CREATE TABLE note (text TEXT);",
    };
    let refused = refusal(place.open_with(OpenAs::Service, &[TABLES, fails]).await);
    assert!(refused.contains("`0002_fails` failed"), "{refused}");
    let half = place.open().await.query("SELECT a FROM half".to_owned(), Vec::new()).await;
    assert!(half.is_err(), "{half:?}");
}

async fn an_operator_s_tool_makes_no_store_where_there_is_none(place: Place) {
    let missing = refusal(place.open_as(OpenAs::Operator).await);
    assert!(missing.contains("there is no store"), "{missing}");
    place.open().await;
    place.open_as(OpenAs::Operator).await.unwrap();
}

async fn an_operator_sees_what_the_service_wrote_while_it_serves(place: Place) {
    let store = place.open().await;
    let operator = place.open_as(OpenAs::Operator).await.unwrap();
    let id = store.file("1", Category::Invalid).await;
    assert_eq!(operator.cases_by_prefix(id.clone()).await.unwrap().len(), 1);
    let closed = operator.close(id.clone(), "ann".to_owned(), "settled by hand".to_owned()).await;
    assert_eq!(closed.unwrap(), Asked::Taken);
    assert_eq!(store.cases_by_prefix(id).await.unwrap()[0].status, CaseStatus::Closed);
}

on_both!(
    an_application_s_migration_runs_once_and_is_refused_when_it_was_edited,
    a_migration_that_fails_leaves_nothing_of_itself,
    an_operator_s_tool_makes_no_store_where_there_is_none,
    an_operator_sees_what_the_service_wrote_while_it_serves,
);
