//! Effects: what a statement may expect, and what follows when it does not come so.

use super::*;
use crate::effect::{insert, upsert};
use crate::outcome::reason;

const SOLD_OUT: Code = Code::new("sold_out");

fn stock(item: &str, count: i64) -> [(&'static str, Value); 2] {
    [("item", item.into()), ("count", count.into())]
}

async fn an_insert_that_is_there_already_counts_as_no_row(place: Place) {
    let store = place.open().await;
    let add = || insert("stock", stock("a", 1));
    assert_eq!(store.commit_one("1", vec![add()]).await, Committed::Yes);
    assert_eq!(store.commit_one("2", vec![note("b"), add()]).await, Committed::RowsDiffer);
    assert_eq!(store.commit_one("3", vec![add().expect_rows(0)]).await, Committed::Yes);
    let rejected = vec![note("b"), add().or_reject(SOLD_OUT)];
    assert_eq!(store.commit_one("4", rejected).await, Committed::Rejected(SOLD_OUT));
    assert_eq!(store.count("SELECT count FROM stock").await, 1);
    assert_eq!(store.count("SELECT count(*) FROM note").await, 0, "all or nothing");
    assert_eq!(store.count("SELECT count(*) FROM inbox").await, 2);
}

async fn an_upsert_overwrites_all_but_its_key(place: Place) {
    let store = place.open().await;
    for (id, count) in [("1", 3), ("2", 5)] {
        let put = upsert("stock", ["item"], stock("a", count));
        assert_eq!(store.commit_one(id, vec![put]).await, Committed::Yes);
    }
    assert_eq!(store.count("SELECT count FROM stock").await, 5);
    let only_key = upsert("stock", ["item", "count"], stock("b", 1));
    let refused = store.commit_one("3", vec![only_key]).await;
    assert_eq!(refused, Committed::EffectFailed(reason::EFFECT_FAILED), "no such unique key");
}

async fn a_decision_on_rows_that_have_changed_is_made_again_or_rejected(place: Place) {
    let store = place.open().await;
    store.commit_one("0", vec![insert("stock", stock("a", 1))]).await;
    let take = || sql("UPDATE stock SET count = count - 1 WHERE count > 0", []).expect_rows(1);
    assert_eq!(store.commit_one("1", vec![take()]).await, Committed::Yes);
    assert_eq!(store.commit_one("2", vec![take().or_rerun()]).await, Committed::RowsDiffer);
    let rejected = store.commit_one("2", vec![take().or_reject(SOLD_OUT)]).await;
    assert_eq!(rejected, Committed::Rejected(SOLD_OUT));
    let unasked = sql("UPDATE stock SET count = 9 WHERE item = 'z'", []);
    assert_eq!(store.commit_one("3", vec![unasked]).await, Committed::Yes);
}

async fn a_constraint_is_told_from_sql_that_is_wrong(place: Place) {
    let store = place.open().await;
    let negative = sql("INSERT INTO stock VALUES ('a', -1)", []);
    assert_eq!(
        store.commit_one("1", vec![negative]).await,
        Committed::EffectFailed(reason::EFFECT_CONSTRAINT)
    );
    let nulls = insert("stock", [("item", "a".into()), ("count", Value::Null)]);
    assert_eq!(
        store.commit_one("1", vec![nulls]).await,
        Committed::EffectFailed(reason::EFFECT_CONSTRAINT)
    );
    for wrong in ["INSERT INTO nowhere VALUES (1)", "nonsense", "", "SELECT 1", "COMMIT"] {
        assert_eq!(
            store.commit_one("1", vec![note("a"), sql(wrong, [])]).await,
            Committed::EffectFailed(reason::EFFECT_FAILED),
            "{wrong}"
        );
    }
    assert_eq!(store.count("SELECT count(*) FROM note").await, 0);
    assert!(store.is_healthy(), "none of it is the store's fault");
}

async fn a_name_with_a_quote_is_a_name_and_not_sql(place: Place) {
    let odd = AppMigration { name: "0002_odd", sql: r#"CREATE TABLE "a""b" ("c""d" TEXT);"# };
    let store = place.open_with(OpenAs::Service, &[TABLES, odd]).await.unwrap();
    let add = insert("a\"b", [("c\"d", "x".into())]);
    assert_eq!(store.commit_one("1", vec![add]).await, Committed::Yes);
}

async fn a_query_does_not_write_and_returns_a_bounded_number_of_rows(place: Place) {
    let store = place.open().await;
    let ask = async |text: &str| store.query(text.to_owned(), Vec::new()).await;
    for text in ["DELETE FROM note", "INSERT INTO note VALUES ('a') RETURNING text", "COMMIT"] {
        assert!(ask(text).await.is_err(), "{text}");
    }
    let counting = |rows: u32| {
        format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             SELECT i FROM n"
        )
    };
    assert_eq!(ask(&counting(10_000)).await.unwrap().len(), 10_000);
    let more = ask(&counting(10_001)).await.unwrap_err().to_string();
    assert!(more.contains("more than 10,000 rows"), "{more}");
    let bytes = if place.is_postgres() { "'\\xff'::bytea" } else { "x'ff'" };
    let kinds = ask(&format!("SELECT NULL, 1, CAST(1.5 AS REAL), 'a', {bytes}")).await.unwrap();
    let expected = [
        Value::Null,
        Value::Integer(1),
        Value::Real(1.5),
        Value::Text("a".to_owned()),
        Value::Blob(Bytes::from_static(b"\xff")),
    ];
    assert_eq!(kinds, [expected]);
}

on_both!(
    an_insert_that_is_there_already_counts_as_no_row,
    an_upsert_overwrites_all_but_its_key,
    a_decision_on_rows_that_have_changed_is_made_again_or_rejected,
    a_constraint_is_told_from_sql_that_is_wrong,
    a_name_with_a_quote_is_a_name_and_not_sql,
    a_query_does_not_write_and_returns_a_bounded_number_of_rows,
);
