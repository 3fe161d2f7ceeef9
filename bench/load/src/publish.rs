//! Publishes events of a stream through a real sidecar, in bulk or slowly one by one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::dapr_client::DaprClient;
use tokio::task::JoinSet;

use load::event::{self, PUBSUB, Stream, TOPIC};
use load::report::Done;

/// Events in one call, and calls in flight.
const IN_ONE: u64 = 100;
const IN_FLIGHT: usize = 8;

/// Publishes events `events` and the duplicates among them.
pub async fn publish(target: &str, stream: Stream, events: Range<u64>) -> anyhow::Result<Done> {
    let client = DaprClient::connect(target.to_owned()).await.context("no sidecar there")?;
    let next = Arc::new(AtomicU64::new(events.start));
    let count = events.end;
    let mut loops = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (mut client, next) = (client.clone(), Arc::clone(&next));
        loops.spawn(async move {
            let mut duplicates = 0;
            loop {
                let first = next.fetch_add(IN_ONE, Relaxed);
                if first >= count {
                    return anyhow::Ok(duplicates);
                }
                let events = first..(first + IN_ONE).min(count);
                let again: Vec<u64> =
                    events.clone().filter_map(|n| stream.duplicate_after(n)).collect();
                duplicates += again.len() as u64;
                let all: Vec<u64> = events.chain(again).collect();
                publish_some(&mut client, stream, &all).await?;
            }
        });
    }
    let mut duplicates = 0;
    while let Some(ended) = loops.join_next().await {
        duplicates += ended??;
    }
    Ok(Done { sent: events.end - events.start, duplicates, ..Done::default() })
}

/// Publishes these events one by one, `per_sec` in a second.
pub async fn publish_slowly(
    target: &str,
    stream: Stream,
    events: Range<u64>,
    per_sec: f64,
) -> anyhow::Result<Done> {
    let mut client = DaprClient::connect(target.to_owned()).await.context("no sidecar there")?;
    let mut clock = tokio::time::interval(Duration::from_secs_f64(1.0 / per_sec));
    for n in events.clone() {
        clock.tick().await;
        publish_some(&mut client, stream, &[n]).await?;
    }
    Ok(Done { sent: events.end - events.start, ..Done::default() })
}

async fn publish_some(
    client: &mut DaprClient<tonic::transport::Channel>,
    stream: Stream,
    events: &[u64],
) -> anyhow::Result<()> {
    let entries = events.iter().enumerate().map(|(at, n)| api::BulkPublishRequestEntry {
        entry_id: at.to_string(),
        event: event::cloud_event(&stream.id(*n), stream.kind(*n)).into_bytes(),
        // Taken as it is, id and all.
        content_type: "application/cloudevents+json".to_owned(),
        metadata: HashMap::new(),
    });
    let request = api::BulkPublishRequest {
        pubsub_name: PUBSUB.to_owned(),
        topic: TOPIC.to_owned(),
        entries: entries.collect(),
        metadata: HashMap::new(),
    };
    let answer = client.bulk_publish_event(request).await?.into_inner();
    let failed = answer.failed_entries.first();
    ensure!(failed.is_none(), "the sidecar did not publish an event: {failed:?}");
    Ok(())
}
