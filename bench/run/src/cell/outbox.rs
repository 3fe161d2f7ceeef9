//! From an effect to its message on the broker, through a real sidecar: first events one by one,
//! slower than anybody's limit, for the time that a message takes; then many at once, for the rate.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::Signal;

use load::event::{Stream, TOPIC_OUT};

use super::Cell;
use crate::audit::{self, Expected};
use crate::cpu::{self, Part};
use crate::daprd::{APP_ID, Daprd, Ports, Redis};
use crate::generator::Generator;
use crate::peer::Peer;
use crate::process::free_ports;
use crate::record::Figures;
use crate::stats::quantile;

/// Events of the slow part, and how many of them a second.
const SLOW: u64 = 100;
const SLOW_PER_SEC: f64 = 20.0;
const LIMIT: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Measures both parts; `count` events are in the second.
pub async fn run(cell: &Cell<'_>, count: u64) -> anyhow::Result<Figures> {
    let redis = Redis::start(&cell.directory).await?;
    if cell.contestant.peer == Peer::DaprOutbox {
        redis.add_outbox(&cell.directory)?;
    }
    let [grpc, http] = free_ports()?;
    let ports = Ports { grpc, http };
    let mut setting = Cell::setting(&ports)?;
    setting.relay = true;
    setting.stamped = true;
    cell.make_tables().await?;
    let app = cell.spawn_app(&setting)?;
    super::wait_for_port(setting.app_port).await?;
    let port = Some(setting.app_port);
    let sidecar = Daprd::start(cell.place, &cell.directory, &redis, APP_ID, &ports, port).await?;
    let parts = [(Part::Daprd, sidecar.process()), (Part::Redis, redis.process())];
    let families = cell.families(app.id(), &parts);

    publish(cell, grpc, 0, SLOW, Some(SLOW_PER_SEC)).await?;
    wait_for(&redis, SLOW).await?;
    let slow = redis.cli(&["--raw", "XRANGE", TOPIC_OUT, "-", "+"]).await?;
    let latencies = latencies(&slow)?;
    ensure!(latencies.len() as u64 >= SLOW, "{} of {SLOW} messages are timed", latencies.len());

    let (began, before) = (Instant::now(), families.used());
    publish(cell, grpc, SLOW, count, None).await?;
    wait_for(&redis, SLOW + count).await?;
    let (secs, used) = (began.elapsed().as_secs_f64(), cpu::between(&before, &families.used()));
    let entries = redis.cli(&["--raw", "XRANGE", TOPIC_OUT, "-", "+"]).await?;
    sidecar.end().await?;
    app.end(Signal::TERM).await?;
    redis.end().await?;

    let sent = SLOW + count;
    let stream = Stream::new(cell.seed, false);
    let expected = Expected { stream, sent, preloaded: 0, outbox_kept: false };
    if cell.contestant.peer.has_tables() {
        cell.audit(&expected).await?;
    }
    let published_again = audit::audit_published(&expected, &entries)?;
    let mut figures = Figures::of(count, secs, &used, 64, cell.delay_us);
    figures.bound_per_s = None;
    figures.p50_us = quantile(&latencies, 0.5);
    figures.p99_us = quantile(&latencies, 0.99);
    figures.more.insert("published_again".to_owned(), published_again as f64);
    Ok(figures)
}

async fn publish(
    cell: &Cell<'_>,
    grpc: u16,
    from: u64,
    count: u64,
    per_sec: Option<f64>,
) -> anyhow::Result<()> {
    let mut generator = Generator::start(cell.place, &cell.directory, |command| {
        command.arg("publish").args(["--seed", &cell.seed.to_string()]);
        command.args(["--target", &format!("http://127.0.0.1:{grpc}")]);
        command.args(["--from", &from.to_string(), "--count", &count.to_string()]);
        if let Some(per_sec) = per_sec {
            command.args(["--per-sec", &per_sec.to_string()]);
        }
    })?;
    generator.done(LIMIT).await?;
    Ok(())
}

async fn wait_for(redis: &Redis, count: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let there = redis.stream_len(TOPIC_OUT).await?;
        if there >= count {
            return Ok(());
        }
        ensure!(began.elapsed() < LIMIT, "{there} of {count} messages in {} s", LIMIT.as_secs());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Microseconds from each message's effect, which it carries, to its place on the stream, whose id
/// is the time in milliseconds: to a millisecond, and never less than it was.
fn latencies(entries: &str) -> anyhow::Result<Vec<u64>> {
    let mut id_millis = None;
    let mut latencies = Vec::new();
    for line in entries.lines() {
        if let Some((millis, number)) = line.split_once('-')
            && let (Ok(millis), Ok(_)) = (millis.parse::<u64>(), number.parse::<u64>())
        {
            id_millis = Some(millis);
        } else if let Some(at) = line.find("atMicros") {
            let after =
                line[at + "atMicros".len()..].trim_start_matches(|c: char| !c.is_ascii_digit());
            let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            let effect: u64 = digits.parse().context("a message without its time")?;
            let published = (id_millis.context("a message without its id")? + 1) * 1000;
            latencies.push(published.saturating_sub(effect));
        }
    }
    latencies.sort_unstable();
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::latencies;

    #[test]
    fn a_message_took_from_its_effect_to_the_end_of_its_millisecond() {
        let entries = "1000-0\ndata\n{\"data\":{\"atMicros\":990000,\"orderId\":\"ab\"}}\n\
                       1001-1\ndata\n{\"data\":{\"orderId\":\"ab\",\"atMicros\": 1000500}}\n";
        assert_eq!(latencies(entries).unwrap(), [1500, 11_000]);
    }
}
