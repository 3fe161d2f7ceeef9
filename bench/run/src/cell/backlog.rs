//! A backlog on the broker: published once through a real sidecar, and then copied for every cell
//! that works off the same one.

use std::time::Duration;

use anyhow::ensure;
use load::event::TOPIC;

use super::Cell;
use crate::daprd::{Daprd, Ports, Redis};
use crate::generator::Generator;
use crate::process::free_ports;

/// How long it may take to publish one.
pub const PUBLISH_LIMIT: Duration = Duration::from_secs(120);
const DUMP: &str = "dump.rdb";

/// A Redis of the cell's own with the first `count` events of the cell's stream.
pub async fn redis_with(cell: &Cell<'_>, count: u64) -> anyhow::Result<Redis> {
    let kept = cell.place.root.join(format!("backlog-{}-{count}", cell.seed));
    if !kept.exists() {
        let making = kept.with_extension("making");
        let _ = std::fs::remove_dir_all(&making);
        std::fs::create_dir_all(&making)?;
        let redis = Redis::start(&making).await?;
        let [grpc, http] = free_ports()?;
        let ports = Ports { grpc, http };
        let publisher =
            Daprd::start(cell.place, &making, &redis, "bench-publisher", &ports, None).await?;
        let mut generator = Generator::start(cell.place, &making, |command| {
            command.arg("publish").args(["--seed", &cell.seed.to_string()]);
            command.args(["--target", &format!("http://127.0.0.1:{grpc}")]);
            command.args(["--count", &count.to_string()]);
        })?;
        generator.done(PUBLISH_LIMIT).await?;
        publisher.end().await?;
        let there = redis.stream_len(TOPIC).await?;
        ensure!(there == count, "{there} of {count} events are on the stream");
        redis.cli(&["SAVE"]).await?;
        redis.end().await?;
        std::fs::rename(&making, &kept)?;
    }
    std::fs::copy(kept.join(DUMP), cell.directory.join(DUMP))?;
    Redis::start(&cell.directory).await
}
