//! The story: publishes the orders and prints what becomes of them, as it happens.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::inventory::{Call, Rule};
use crate::orders::{Order, orders};
use crate::say;
use crate::stage::Place;
use crate::watch::{Case, Counters, Sidecar, Watch};

const TOPIC: &str = "orders";
/// How long the story may take: two runs of retries, one after the other, and the recoveries.
const STORY_LIMIT: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same when the story is over.
const LOOK_ON_EVERY: Duration = Duration::from_millis(500);
/// One look in so many lists the cases as well, which starts a program.
const LOOKS_PER_LIST: u32 = 4;
/// How long we look on when all is settled: nothing more may happen.
const QUIET: Duration = Duration::from_secs(1);

/// The story under way.
#[derive(Debug)]
pub struct Story {
    place: Place,
    watch: Watch,
    orders: Vec<Order>,
    published: Receiver<Line>,
    publish: Option<Sender<Line>>,
    began: Instant,
    looks: u32,
    calls_seen: usize,
    /// The counters before the first order: an earlier run may have left work behind.
    before: Counters,
    seen: Counters,
}

/// Something that happened.
#[derive(Debug)]
struct Line {
    at: Instant,
    order_id: String,
    text: String,
}

impl Line {
    fn now(order_id: &str, text: impl Into<String>) -> Self {
        Self { at: Instant::now(), order_id: order_id.to_owned(), text: text.into() }
    }
}

impl Story {
    /// Prepares it.
    pub async fn new(place: &Place) -> anyhow::Result<Self> {
        let watch = Watch::new(place)?;
        let before = watch.counters().await?;
        let suffix: String = uuid::Uuid::new_v4().simple().to_string().chars().take(4).collect();
        let (publish, published) = channel();
        Ok(Self {
            place: place.clone(),
            watch,
            orders: orders(&suffix),
            published,
            publish: Some(publish),
            began: Instant::now(),
            looks: 0,
            calls_seen: 0,
            before,
            seen: before,
        })
    }

    /// Tells it, until something has become of every order. True when that is its fate.
    pub async fn tell(&mut self) -> anyhow::Result<bool> {
        let sidecar = Sidecar::new(&self.place)?;
        say(&format!(
            "\nSix orders, published through the sidecar (POST {}):\n",
            sidecar.publish_url(TOPIC)
        ));
        let events: Vec<_> =
            self.orders.iter().map(|order| (order.event(), order.what, order.copies)).collect();
        for order in &self.orders {
            self.place.inventory.set(&order.id, order.rule.clone());
        }
        self.began = Instant::now();
        let deadline = self.began + STORY_LIMIT;
        // The in-memory broker takes an event only when the one before it has been handled, so
        // publishing and looking on go side by side.
        let mut publishing = Some(Box::pin(publish_all(sidecar, events, self.publish.take())));
        while (publishing.is_some() || !self.is_settled()) && Instant::now() < deadline {
            let pause = tokio::time::sleep(LOOK_EVERY);
            if let Some(under_way) = &mut publishing {
                tokio::select! {
                    done = under_way => {
                        done?;
                        publishing = None;
                    }
                    () = pause => {}
                }
            } else {
                pause.await;
            }
            self.look().await?;
        }
        tokio::time::sleep(QUIET).await;
        self.looks = 0;
        self.look().await?;
        Ok(self.sum_up())
    }

    /// Prints whatever is new.
    async fn look(&mut self) -> anyhow::Result<()> {
        // Effects are looked at before their causes, so that no effect is printed first.
        let ids: Vec<&str> = self.orders.iter().map(|order| order.id.as_str()).collect();
        let rows = self.watch.rows(&ids)?;
        let with_cases = self.looks.is_multiple_of(LOOKS_PER_LIST);
        self.looks = self.looks.wrapping_add(1);
        let cases = if with_cases { self.watch.cases().await? } else { Vec::new() };
        let counters = self.watch.counters().await?;
        let calls = self.place.inventory.calls_after(self.calls_seen);
        self.calls_seen += calls.len();

        let mut lines: Vec<Line> = self.published.try_iter().collect();
        lines.extend(calls.iter().map(|call| self.take_call(call)));
        lines.sort_by_key(|line| line.at);
        for order in &mut self.orders {
            if !order.has_row && rows.contains(&order.id) {
                order.has_row = true;
                lines.push(Line::now(&order.id, "accepted: its row is in the table `orders`"));
            }
            let Some(case) = cases.iter().find(|case| case.event_id == order.id) else { continue };
            if order.case.as_ref().map(|seen| &seen.status) != Some(&case.status) {
                lines.push(Line::now(&order.id, case_text(case)));
            }
            order.case = Some(case.clone());
        }
        lines.extend(self.take_counters(counters));
        for Line { at, order_id, text } in lines {
            let after = at.saturating_duration_since(self.began).as_secs_f64();
            say(&format!("{after:>6.1} s  {order_id:<14}  {text}"));
        }
        Ok(())
    }

    fn take_call(&mut self, call: &Call) -> Line {
        let did = match call.answer {
            Some(200) => "the inventory reserves the goods",
            Some(409) => "the inventory refuses it (409)",
            Some(_) => "the inventory does not work (503)",
            None => "the inventory does not answer",
        };
        let order = self.orders.iter_mut().find(|order| order.id == call.order_id);
        let earlier = if order.is_some() { "" } else { " (an order of an earlier run)" };
        if let Some(order) = order {
            order.calls = call.number;
        }
        let text = format!("attempt {}: {did}{earlier}", call.number);
        Line { at: call.at, order_id: call.order_id.clone(), text }
    }

    /// Counters do not say which order they are about; each that moves here has one it can be.
    fn take_counters(&mut self, now: Counters) -> Vec<Line> {
        let id = |which: fn(&&Order) -> bool| {
            self.orders.iter().find(which).map(|order| order.id.as_str()).unwrap_or_default()
        };
        let mut lines = Vec::new();
        if now.duplicates > self.seen.duplicates {
            let text = "the second copy is a duplicate: acknowledged, and nothing done";
            lines.push(Line::now(id(|order| order.copies > 1), text));
        }
        if now.recoveries > self.seen.recoveries {
            let number = now.recoveries - self.before.recoveries;
            let text = if number == 1 {
                "the sidecar has given up and dead-lettered it; now the service recovers it"
                    .to_owned()
            } else {
                format!("recovery {} failed, another one is due", number - 1)
            };
            lines.push(Line::now(id(|order| order.rule == Rule::FailAlways), text));
        }
        self.seen = now;
        lines
    }

    fn duplicates(&self) -> u64 {
        self.seen.duplicates - self.before.duplicates
    }

    fn accepted(&self) -> u64 {
        self.seen.accepted - self.before.accepted
    }

    fn duplicates_due(&self) -> u64 {
        self.orders.iter().map(|order| order.copies - 1).sum()
    }

    fn accepted_due(&self) -> u64 {
        self.orders.iter().map(|order| u64::from(order.is_to_be_accepted())).sum()
    }

    fn is_settled(&self) -> bool {
        self.orders.iter().all(Order::is_settled)
            && self.duplicates() >= self.duplicates_due()
            && self.accepted() >= self.accepted_due()
    }

    /// Prints the table. True when all of it is as it should be.
    fn sum_up(&self) -> bool {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["ORDER", "WHAT IT IS", "WHAT BECAME OF IT", "ATTEMPTS"]);
        for order in &self.orders {
            let attempts = order.attempts().to_string();
            table.add_row([order.id.as_str(), order.what, &order.became(), &attempts]);
        }
        let table = table.to_string();
        let rows: Vec<&str> = table.lines().map(str::trim_end).collect();
        say(&format!("\n{}\n", rows.join("\n")));
        say(&format!(
            " Duplicates recognised: {}. Messages published to `order-accepted`: {}.",
            self.duplicates(),
            self.accepted()
        ));
        let mut wrong: Vec<String> = self.orders.iter().filter_map(Order::wrong).collect();
        // At least: an earlier run may have left work behind.
        if self.duplicates() < self.duplicates_due() {
            wrong.push(format!("duplicates: at least {} expected", self.duplicates_due()));
        }
        if self.accepted() < self.accepted_due() {
            wrong.push(format!("order-accepted: at least {} expected", self.accepted_due()));
        }
        if !wrong.is_empty() {
            say(&format!("\nNot everything became what it should:\n  {}", wrong.join("\n  ")));
        }
        wrong.is_empty()
    }

    /// Says what to try now, and mends the inventory for it.
    pub fn invite(&self) {
        for order in &self.orders {
            self.place.inventory.set(&order.id, Rule::Reserve);
        }
        let cases = self.orders.iter().filter_map(|order| order.case.as_ref());
        let exhausted = cases.into_iter().find(|case| case.category == "exhausted");
        let id = exhausted.map_or("ID", |case| case.id.as_str());
        let program = self.place.program_as_typed();
        let store = self.place.store_url();
        let metrics = format!("{}/metrics", self.place.service_url);
        say(&format!(
            "
Look for yourself, in another terminal:

  export BACKSTOP_STORE_URL={store}
  {program} exceptions list
  {program} exceptions show {id}
  {program} exceptions redrive {id}
      From now on the inventory works for every order, so this resolves the case.

  Metrics   {metrics}
  Logs      .run/backstop.log, .run/daprd.log

Running until Ctrl-C; what happens is printed here.
"
        ));
    }

    /// Prints what happens, without end.
    pub async fn go_on(&mut self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK_ON_EVERY).await;
            self.look().await?;
        }
    }
}

async fn publish_all(
    sidecar: Sidecar,
    events: Vec<(serde_json::Value, &'static str, u64)>,
    lines: Option<Sender<Line>>,
) -> anyhow::Result<()> {
    for (event, what, copies) in events {
        let id = event.get("id").and_then(serde_json::Value::as_str).unwrap_or_default();
        for copy in 1..=copies {
            let line = Line::now(
                id,
                if copy == 1 {
                    format!("published ({what})")
                } else {
                    "published again".to_owned()
                },
            );
            if let Some(lines) = &lines {
                lines.send(line)?;
            }
            sidecar.publish(TOPIC, &event).await?;
        }
    }
    Ok(())
}

fn case_text(case: &Case) -> String {
    if case.status != "open" {
        return format!("its case is {}", case.status);
    }
    let (live, recoveries) = (case.attempts_of("live"), case.attempts_of("recovery"));
    let attempts = match (live, recoveries) {
        (0, 0) => "the handler was not called".to_owned(),
        (live, 0) => format!("attempts: {live}"),
        (live, recoveries) => format!("attempts: {live}, then {recoveries} recoveries"),
    };
    format!("quarantined, {}: {} ({attempts})", case.category, case.reason)
}
