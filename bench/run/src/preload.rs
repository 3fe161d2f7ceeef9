//! A dedup memory that has grown: keys as real ones are (random bytes), spread evenly over the three
//! generations that are remembered, each index as full as one that random keys have made.

use std::path::Path;

use crate::database::{Database, connect};

/// Half of `BACKSTOP_DEDUP_RETENTION_SECS` (seven days): for so long one generation is written.
/// After it the next of four tables is; the oldest is then empty.
const TURN_MICROS: u128 = 7 * 86_400 * 1_000_000 / 2;

/// The table that is written now, and the two before it. All three are as large as at the end of a
/// turn, when the one that is written is at its largest.
fn tables() -> anyhow::Result<[(String, u128); 3]> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_micros();
    let turn = now / TURN_MICROS;
    Ok([turn - 2, turn - 1, turn].map(|turn| (format!("inbox_{}", turn % 4), turn * TURN_MICROS)))
}

/// Fills Backstop's empty memory with `rows` keys of other events.
pub async fn fill(database: &Database, rows: u64) -> anyhow::Result<()> {
    let tables = tables()?;
    let mut left = rows;
    for (n, (table, since)) in tables.iter().enumerate() {
        let share = left / (tables.len() - n) as u64;
        left -= share;
        match database {
            Database::Postgres(_, port) => {
                connect(*port).await?.batch_execute(&postgres(table, *since, share)).await?;
            }
            Database::Sqlite(path) => {
                let (path, table, since) = (path.clone(), table.clone(), *since);
                tokio::task::spawn_blocking(move || sqlite(&path, &table, since, share)).await??;
            }
        }
    }
    if let Database::Postgres(_, port) = database {
        connect(*port).await?.batch_execute("CHECKPOINT").await?;
    }
    Ok(())
}

/// The index is made after the rows, which is quick, with pages as full as random inserts leave
/// them (a natural logarithm of two, 69 %) instead of as full as a sorted build would.
fn postgres(table: &str, since: u128, rows: u64) -> String {
    format!(
        "SET maintenance_work_mem = '1GB';
         ALTER TABLE {table} DROP CONSTRAINT {table}_pkey;
         INSERT INTO {table} (key, fingerprint, committed_at)
         SELECT decode(md5('{table}' || n), 'hex'), decode(md5(n::text), 'hex'), {since} + n
         FROM generate_series(1, {rows}) n;
         ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY (key) WITH (fillfactor = 69);
         ALTER INDEX {table}_pkey RESET (fillfactor);
         ANALYZE {table};"
    )
}

/// In the order of the key, which is the quickest; SQLite fills the pages of such a table the same
/// either way (54 bytes a row sorted, 53 in random order).
fn sqlite(path: &Path, table: &str, since: u128, rows: u64) -> anyhow::Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch(&format!(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
         PRAGMA temp_store = MEMORY; PRAGMA cache_size = -1000000;
         BEGIN;
         WITH RECURSIVE counted(n) AS
           (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {rows})
         INSERT INTO {table} (key, fingerprint, committed_at)
         SELECT randomblob(16) AS k, randomblob(16), {since} + n FROM counted ORDER BY k;
         COMMIT;
         PRAGMA locking_mode = NORMAL; PRAGMA journal_mode = WAL;"
    ))?;
    Ok(())
}
