//! Publishes the outbox in batches; polls ten times a second while there is nothing.

use std::collections::HashMap;
use std::time::Duration;

use dapr::dapr::proto::runtime::v1 as api;
use dapr::dapr::proto::runtime::v1::dapr_client::DaprClient;
use tonic::transport::{Channel, Endpoint};

use crate::store::{Outgoing, Store};
use crate::{PUBSUB, TOPIC_OUT};

const POLL_EVERY: Duration = Duration::from_millis(100);

pub async fn run(store: Store, sidecar: String) {
    let Ok(endpoint) = Endpoint::from_shared(sidecar) else { return };
    let client = DaprClient::new(endpoint.connect_lazy());
    loop {
        let relayed = store.relay(|batch| publish(client.clone(), batch)).await;
        if let Err(error) = &relayed {
            eprintln!("relaying: {error:#}");
        }
        if relayed.unwrap_or_default() == 0 {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

async fn publish(mut client: DaprClient<Channel>, batch: Vec<Outgoing>) -> anyhow::Result<()> {
    let entries = batch.into_iter().map(|(_, id, content)| api::BulkPublishRequestEntry {
        entry_id: id,
        event: content,
        content_type: "application/cloudevents+json".to_owned(),
        metadata: HashMap::new(),
    });
    let request = api::BulkPublishRequest {
        pubsub_name: PUBSUB.to_owned(),
        topic: TOPIC_OUT.to_owned(),
        entries: entries.collect(),
        metadata: HashMap::new(),
    };
    let answer = client.bulk_publish_event(request).await?.into_inner();
    anyhow::ensure!(answer.failed_entries.is_empty(), "some were not published");
    Ok(())
}
