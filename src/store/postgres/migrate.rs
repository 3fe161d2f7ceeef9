//! Bringing a database's tables up to this build, safe when many processes do it together.

use tokio_postgres::Client;

use super::connection::told;
use crate::clock::Timestamp;
use crate::store::{AppMigration, StoreError, schema};

mod embedded {
    refinery::embed_migrations!("src/store/migrations/postgres");
}

/// How long a process waits for another one's migration.
const WAIT_SECS: u32 = 300;

/// Makes the schema and its tables, or what is missing of them. One process at a time; the others
/// wait and find it done.
pub(super) async fn migrate(
    client: &mut Client,
    schema: &str,
    lock: i64,
    migrations: &[AppMigration],
    now: Timestamp,
) -> Result<(), StoreError> {
    let away = |error| StoreError::away(told(&error));
    // This connection is closed afterwards, which frees the lock whatever happens.
    client
        .batch_execute(&format!(
            "SET lock_timeout = '{WAIT_SECS}s'; SET statement_timeout = '{WAIT_SECS}s';
             SELECT pg_advisory_lock({lock}); SET client_min_messages = warning;
             CREATE SCHEMA IF NOT EXISTS {schema}"
        ))
        .await
        .map_err(away)?;
    embedded::migrations::runner()
        .run_async(client)
        .await
        .map_err(|error| schema::not_migrated(&error))?;
    for migration in migrations {
        apply_once(client, migration, now).await?;
    }
    Ok(())
}

async fn apply_once(
    client: &mut Client,
    migration: &AppMigration,
    now: Timestamp,
) -> Result<(), StoreError> {
    let away = |error| StoreError::away(told(&error));
    let name = migration.name;
    let transaction = client.transaction().await.map_err(away)?;
    let applied = transaction
        .query_opt("SELECT checksum FROM app_migration WHERE name = $1", &[&name])
        .await
        .map_err(away)?;
    let known: Option<&[u8]> =
        applied.as_ref().map(|row| row.try_get(0)).transpose().map_err(away)?;
    if !schema::is_due(migration, known)? {
        return Ok(());
    }
    transaction
        .batch_execute(migration.sql)
        .await
        .map_err(|error| schema::not_applied(migration, told(&error)))?;
    transaction
        .execute(
            "INSERT INTO app_migration (name, checksum, applied_at) VALUES ($1, $2, $3)",
            &[&name, &schema::checksum(migration).as_slice(), &now.0],
        )
        .await
        .map_err(away)?;
    transaction.commit().await.map_err(away)
}

/// Says when the tables are not those this build works with, and changes nothing.
pub(super) async fn check(client: &Client, schema: &str) -> Result<(), StoreError> {
    let away = |error| StoreError::away(told(&error));
    let known = client
        .query_one("SELECT to_regclass('refinery_schema_history') IS NOT NULL", &[])
        .await
        .and_then(|row| row.try_get::<_, bool>(0))
        .map_err(away)?;
    if !known {
        return Err(schema::problem(format!(
            "there is no store in schema `{schema}`; run `backstop migrate` to make one"
        )));
    }
    let found: i64 = client
        .query_one("SELECT coalesce(max(version), 0)::bigint FROM refinery_schema_history", &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(away)?;
    schema::expect_version(found, schema::newest(&embedded::migrations::runner()))
}
