//! A backlog in Redis streams, consumed through a real sidecar at the concurrency of the component
//! file (64), with everybody publishing the outgoing messages through it at the same time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::Signal;

use load::event::{Stream, TOPIC, TOPIC_OUT};

use super::{Cell, backlog};
use crate::audit::{self, Expected};
use crate::cpu::{self, Part};
use crate::daprd::{APP_ID, Daprd, Ports, Redis};
use crate::database::fsyncs;
use crate::group::Drain;
use crate::peer::Peer;
use crate::process::{Process, free_ports};
use crate::record::Figures;
use crate::watch::Watch;

/// How many events are asked for in one call: as many as the component hands over at once.
const BULK: u16 = 64;
/// How long the last events may take.
const LAST_LIMIT: Duration = Duration::from_secs(120);
/// How long nothing may happen before the cell is void.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// The measured part of the backlog: caches are warm before it, and after it workers run dry.
const FROM_TENTHS: u64 = 1;
const UNTIL_TENTHS: u64 = 9;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Fills the stream, then measures how it is worked off.
pub async fn run(cell: &Cell<'_>, drain: &Drain) -> anyhow::Result<Figures> {
    let count = drain.backlog.min(cell.lengths.backlog_max);
    let redis = backlog::redis_with(cell, count).await?;
    let peer = cell.contestant.peer;

    let [grpc, http] = free_ports()?;
    let ports = Ports { grpc, http };
    let mut told = Cell::setting(&ports)?;
    told.relay = true;
    told.bulk = drain.bulk.then_some(BULK);
    cell.make_tables().await?;
    // Not start_app: Backstop answers what the sidecar asks only when there is a sidecar.
    let app = cell.spawn_app(&told)?;
    super::wait_for_port(told.app_port).await?;
    let before = Some(told.app_port);
    let sidecar = Daprd::start(cell.place, &cell.directory, &redis, APP_ID, &ports, before).await?;
    let parts = [(Part::Daprd, sidecar.process()), (Part::Redis, redis.process())];
    let families = cell.families(app.id(), &parts);

    let (first, last) = (count * FROM_TENTHS / 10, count * UNTIL_TENTHS / 10);
    let watch = match peer {
        Peer::Nothing => Watch::count(told.app_port).await?,
        _ => Watch::open(&cell.database).await?,
    };
    let seen_first = wait_for(&watch, &app, first).await?;
    let (before, fsyncs_before, from) = (families.used(), fsyncs(&cell.directory), Instant::now());
    let seen_last = wait_for(&watch, &app, last).await?;
    let (after, fsyncs_after, until) = (families.used(), fsyncs(&cell.directory), Instant::now());
    // Numbers may be left out, so the end is counted.
    wait_for(&watch, &app, count).await?;
    while watch.effects().await? < count {
        ensure!(from.elapsed() < LAST_LIMIT, "{} of {count} effects", watch.effects().await?);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let resident = cpu::resident_peak_kib(app.id());
    let mut more = BTreeMap::new();
    let mut entries = String::new();
    if peer.has_tables() {
        let relayed_after = wait_for_published(&redis, count, from).await?;
        // From the same moment until every message was out: who lets the outbox grow shows it here.
        let relayed_per_s = (count - first) as f64 / relayed_after.as_secs_f64();
        more.insert("relayed_per_s".to_owned(), relayed_per_s);
        entries = redis.cli(&["--raw", "XRANGE", TOPIC_OUT, "-", "+"]).await?;
    }
    // What was taken must be off the stream, for those without tables too.
    wait_for_acknowledged(&redis).await?;
    let counted = watch.effects().await?;
    ensure!(counted == count, "{counted} effects of {count} events");

    sidecar.end().await?;
    app.end(Signal::TERM).await?;
    redis.end().await?;
    if peer.has_tables() {
        let stream = Stream::new(cell.seed, false);
        let expected = Expected { stream, sent: count, preloaded: 0, outbox_kept: false };
        cell.audit(&expected).await?;
        let published_again = audit::audit_published(&expected, &entries)?;
        more.insert("published_again".to_owned(), published_again as f64);
    }

    let events = seen_last - seen_first;
    let secs = (until - from).as_secs_f64();
    let mut figures = Figures::of(events, secs, &cpu::between(&before, &after), 64, cell.delay_us);
    figures.fsyncs_per_1000 = Some((fsyncs_after - fsyncs_before) as f64 * 1e3 / events as f64);
    figures.resident_peak_mib = resident.map(|kib| kib as f64 / 1024.0);
    figures.more = more;
    Ok(figures)
}

/// Waits until there are about so many effects; tells how many there are then.
async fn wait_for(watch: &Watch, app: &Process, count: u64) -> anyhow::Result<u64> {
    let (mut seen, mut moved_at) = (0, Instant::now());
    loop {
        // No table yet is no effect yet.
        let now = watch.progress().await.unwrap_or_default();
        if now >= count {
            return Ok(now);
        }
        if now > seen {
            (seen, moved_at) = (now, Instant::now());
        }
        ensure!(
            moved_at.elapsed() < STALL_LIMIT,
            "stalled at {seen} of {count} effects: {}",
            app.tail()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until every message is on the broker; tells how long after `from` that was.
async fn wait_for_published(redis: &Redis, count: u64, from: Instant) -> anyhow::Result<Duration> {
    let (mut seen, mut moved_at) = (0, Instant::now());
    loop {
        let now = redis.stream_len(TOPIC_OUT).await?;
        if now >= count {
            return Ok(from.elapsed());
        }
        if now > seen {
            (seen, moved_at) = (now, Instant::now());
        }
        ensure!(moved_at.elapsed() < STALL_LIMIT, "the relay stalled at {seen} of {count}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until the sidecar has acknowledged all that it was given.
async fn wait_for_acknowledged(redis: &Redis) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let pending = redis.cli(&["--raw", "XPENDING", TOPIC, APP_ID]).await?;
        if pending.lines().next().is_some_and(|count| count.trim() == "0") {
            return Ok(());
        }
        ensure!(began.elapsed() < STALL_LIMIT, "not all was acknowledged: {pending}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
