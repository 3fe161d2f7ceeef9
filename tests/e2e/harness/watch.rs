//! What an outsider can do to a world and see of it: publish through the sidecar, the command
//! line, metrics and logs.

use std::process::Command;

use serde_json::Value;

use super::{ACCEPTED, DEAD, FORGOTTEN, PUBSUB, TOPIC, World, bytes};

/// What a command came to.
#[derive(Debug)]
pub struct CommandLine {
    pub is_success: bool,
    pub stdout: String,
    /// Shown when an assertion fails.
    #[allow(dead_code, reason = "read by its Debug form")]
    stderr: String,
}

impl World {
    /// Publishes an event through the sidecar to the subscribed topic.
    pub async fn publish(&self, event: &Value) {
        self.publish_as("application/cloudevents+json", "", bytes(event)).await;
    }

    /// Publishes bytes exactly as they are.
    pub async fn publish_raw(&self, data: &[u8]) {
        let query = "?metadata.rawPayload=true";
        self.publish_as("application/octet-stream", query, data.to_vec()).await;
    }

    async fn publish_as(&self, content_type: &str, query: &str, data: Vec<u8>) {
        let port = self.ports.dapr.http;
        let url = format!("http://127.0.0.1:{port}/v1.0/publish/{PUBSUB}/{TOPIC}{query}");
        let request = self.http.post(url).header("content-type", content_type).body(data);
        let answer = request.send().await.unwrap();
        let status = answer.status();
        assert!(status.is_success(), "publishing: {status} {}", answer.text().await.unwrap());
    }

    /// Runs `backstop` beside the service, in its environment.
    pub fn cli(&self, args: &[&str]) -> CommandLine {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backstop"));
        #[allow(clippy::disallowed_methods, reason = "taken from a child, not read")]
        for (name, _) in std::env::vars_os() {
            if FORGOTTEN.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.args(args).envs(&self.run.app_env).current_dir(self.directory.path());
        let output = command.output().unwrap();
        CommandLine {
            is_success: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Every case there ever was, as `exceptions list` tells it.
    pub fn cases(&self) -> Vec<Value> {
        let listed = self.cli(&["exceptions", "list", "--json"]);
        assert!(listed.is_success, "{listed:?}");
        serde_json::from_str(&listed.stdout).unwrap()
    }

    /// The only case there is.
    pub fn only_case(&self) -> Value {
        let mut cases = self.cases();
        assert_eq!(cases.len(), 1, "{cases:#?}");
        cases.remove(0)
    }

    /// The sum of a counter over every line that has these labels; 0 when there is none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.metric_at(self.ports.http, name, labels).await
    }

    /// How many batches the sidecar has handed over.
    pub async fn batches(&self) -> u64 {
        let name = "dapr_component_pubsub_ingress_bulk_count";
        self.metric_at(self.ports.dapr.metrics, name, &[]).await
    }

    async fn metric_at(&self, port: u16, name: &str, labels: &[(&str, &str)]) -> u64 {
        let url = format!("http://127.0.0.1:{port}/metrics");
        let text = self.http.get(url).send().await.unwrap().text().await.unwrap();
        let wanted: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        text.lines()
            .filter(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && wanted.iter().all(|label| line.contains(label))
            })
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// How many messages came to this, since the service started.
    pub async fn outcomes(&self, outcome: &str) -> u64 {
        self.metric("backstop_outcomes_total", &[("outcome", outcome)]).await
    }

    /// Everything the service has printed, over all its starts.
    pub fn app_log(&self) -> String {
        self.log("app", self.app_starts)
    }

    /// Everything the sidecar has printed, over all its starts.
    pub fn daprd_log(&self) -> String {
        self.log("daprd", self.daprd_starts)
    }

    /// Whether the service calls itself ready, as an orchestrator asks it.
    pub async fn is_ready(&self) -> bool {
        let url = format!("http://127.0.0.1:{}/readyz", self.ports.http);
        self.http.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
    }

    /// How many lines the service has printed with this message, over all its starts.
    pub fn app_lines(&self, message: &str) -> usize {
        self.app_log().lines().filter(|line| line.contains(message)).count()
    }

    /// How many entries a topic's stream has.
    pub fn published(&self, topic: &str) -> usize {
        self.redis.len(topic)
    }

    /// The events on `order-accepted`, in order.
    pub fn accepted(&self) -> Vec<Value> {
        let entries = self.redis.entries(ACCEPTED);
        entries.iter().map(|entry| serde_json::from_slice(entry).unwrap()).collect()
    }

    /// The subjects on `order-accepted`, sorted: the order ids.
    pub fn accepted_orders(&self) -> Vec<String> {
        let accepted = self.accepted();
        let mut orders: Vec<String> =
            accepted.iter().map(|event| event["subject"].as_str().unwrap().to_owned()).collect();
        orders.sort();
        orders
    }

    /// Events that the sidecar has in hand or still has to be asked for, on both topics.
    pub fn unacknowledged(&self) -> i64 {
        [TOPIC, DEAD].map(|topic| self.redis.pending(topic, super::CONSUMER)).iter().sum()
    }
}
