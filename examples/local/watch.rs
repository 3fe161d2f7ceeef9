//! What can be seen of an order from outside: its row, its case, the service's counters.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rusqlite::{Connection, OpenFlags};
use serde::Deserialize;

use crate::stage::Place;

/// How long one HTTP call may take; publishing waits while the in-memory broker is busy.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// A case, as `backstop exceptions list --json` prints it.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    pub id: String,
    pub category: String,
    pub reason: String,
    pub event_id: String,
    pub status: String,
    pub attempts: usize,
    pub attempt_history: Vec<Attempt>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Attempt {
    pub kind: String,
}

impl Case {
    /// Handler runs of this kind: `live`, `recovery` or `redrive`.
    pub fn attempts_of(&self, kind: &str) -> usize {
        self.attempt_history.iter().filter(|attempt| attempt.kind == kind).count()
    }
}

/// The service's counters that the story needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Deliveries that were duplicates.
    pub duplicates: u64,
    /// Recoveries that got a due time.
    pub recoveries: u64,
    /// Messages published to `order-accepted`.
    pub accepted: u64,
}

/// The sidecar, to publish through.
#[derive(Debug)]
pub struct Sidecar {
    base: String,
    client: reqwest::Client,
}

impl Sidecar {
    /// The one that was started.
    pub fn new(place: &Place) -> anyhow::Result<Self> {
        let base = format!("{}/v1.0/publish/{}", place.sidecar_url, place.pubsub);
        Ok(Self { base, client: client()? })
    }

    /// Where events for this topic are posted.
    pub fn publish_url(&self, topic: &str) -> String {
        format!("{}/{topic}", self.base)
    }

    /// Publishes a CloudEvent.
    pub async fn publish(&self, topic: &str, event: &serde_json::Value) -> anyhow::Result<()> {
        let request = self
            .client
            .post(self.publish_url(topic))
            .header("content-type", "application/cloudevents+json")
            .body(event.to_string());
        let answer = request.send().await.context("the sidecar does not answer")?;
        let status = answer.status();
        let body = answer.text().await.unwrap_or_default();
        anyhow::ensure!(status.is_success(), "the sidecar did not publish it: {status} {body}");
        Ok(())
    }
}

fn client() -> anyhow::Result<reqwest::Client> {
    Ok(reqwest::Client::builder().no_proxy().timeout(CALL_LIMIT).build()?)
}

/// Looks at a running service.
#[derive(Debug)]
pub struct Watch {
    place: Place,
    database: Connection,
    client: reqwest::Client,
}

impl Watch {
    /// Opens what is looked at.
    pub fn new(place: &Place) -> anyhow::Result<Self> {
        let path =
            place.store_url().strip_prefix("sqlite://").context("the store is not SQLite")?;
        let database = Connection::open_with_flags(
            place.directory.join(path),
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        database.busy_timeout(Duration::from_secs(2))?;
        Ok(Self { place: place.clone(), database, client: client()? })
    }

    /// Which of these orders have their row.
    pub fn rows(&self, order_ids: &[&str]) -> anyhow::Result<HashSet<String>> {
        let mut select =
            self.database.prepare_cached("SELECT order_id FROM orders WHERE order_id = ?1")?;
        let mut found = HashSet::new();
        for id in order_ids {
            let mut rows = select.query([id])?;
            if let Some(row) = rows.next()? {
                found.insert(row.get(0)?);
            }
        }
        Ok(found)
    }

    /// The cases: unfinished ones, then the newest.
    pub async fn cases(&self) -> anyhow::Result<Vec<Case>> {
        let mut list = Command::new(&self.place.program);
        list.args(["exceptions", "list", "--json"])
            .envs(&self.place.env)
            .current_dir(&self.place.directory)
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || list.output()).await??;
        anyhow::ensure!(
            output.status.success(),
            "`backstop exceptions list` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// What the service has counted since it started.
    pub async fn counters(&self) -> anyhow::Result<Counters> {
        let request = self.client.get(format!("{}/metrics", self.place.service_url));
        let text = request.send().await?.error_for_status()?.text().await?;
        Ok(Counters {
            duplicates: sum(&text, "backstop_outcomes_total", &["outcome=\"duplicate\""]),
            recoveries: sum(&text, "backstop_recoveries_scheduled_total", &[]),
            accepted: sum(
                &text,
                "messaging_client_sent_messages_total",
                &["messaging_destination_name=\"order-accepted\"", "error_type=\"\""],
            ),
        })
    }
}

/// The sum of a counter over the series that have these labels; a label that is wanted empty may
/// be absent.
fn sum(text: &str, name: &str, labels: &[&str]) -> u64 {
    let series = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let given = series.strip_prefix(name)?;
        let fits = labels.iter().all(|label| match label.strip_suffix("=\"\"") {
            Some(absent) => !given.contains(absent) || given.contains(label),
            None => given.contains(label),
        });
        fits.then(|| value.parse::<u64>().unwrap_or(0))
    });
    series.sum()
}
