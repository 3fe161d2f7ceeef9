//! `backstop gates`: what waits for a dependency that is away, and an operator's hand on it.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{complain, operator_store, out, table};
use crate::clock::Timestamp;
use crate::config::{Config, operator_name};
use crate::gate::GateState;
use crate::outcome::Code;
use crate::store::GateAct;

#[derive(Args)]
pub(super) struct Arguments {
    /// As a JSON array
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    act: Option<Act>,
}

#[derive(Subcommand)]
enum Act {
    /// Keep a gate closed until it is opened by hand: no probes
    Hold(Name),
    /// Open a gate at once, for all that wait at it
    Open(Name),
}

#[derive(Args)]
struct Name {
    /// The subscription
    subscription: String,
    /// The reason code
    #[arg(value_parser = parse_code)]
    code: Code,
}

/// One gate, as it is shown.
#[derive(Serialize)]
struct View {
    subscription: String,
    code: Code,
    state: GateState,
    since: Timestamp,
    held: bool,
    failures: u32,
    waiting: u32,
    last_probe_at: Option<Timestamp>,
    next_probe_at: Option<Timestamp>,
}

pub(super) async fn run(arguments: Arguments, config: &Config) -> anyhow::Result<()> {
    let store = operator_store(config).await?;
    let (name, act) = match arguments.act {
        None => return list(&store, arguments.json).await,
        Some(Act::Hold(name)) => (name, GateAct::Hold),
        Some(Act::Open(name)) => (name, GateAct::Open),
    };
    let done = match act {
        GateAct::Hold => "held closed; `backstop gates open` opens it",
        GateAct::Open => "open",
    };
    let text = format!("{} {} {done}\n", name.subscription, name.code);
    store.act_on_gate(name.subscription, name.code, act, operator_name()).await?;
    out(&text)
}

async fn list(store: &crate::Store, json: bool) -> anyhow::Result<()> {
    let gates = store.gates().await?.into_iter().map(|row| View {
        subscription: row.subscription,
        code: row.code,
        state: row.gate.state,
        since: row.gate.since,
        held: row.gate.held,
        failures: row.gate.failures,
        waiting: row.waiting,
        last_probe_at: row.last_probe_at,
        next_probe_at: row.gate.next_probe_at,
    });
    let gates: Vec<View> = gates.collect();
    if json {
        return out(&format!("{}\n", serde_json::to_string_pretty(&gates)?));
    }
    if gates.is_empty() {
        complain("No gates: nothing has failed since the last success.");
        return Ok(());
    }
    let mut table = table(&[
        "subscription",
        "code",
        "state",
        "since",
        "failures",
        "waiting",
        "last probe",
        "next probe",
    ]);
    for gate in &gates {
        let time =
            |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let state = if gate.held { "held" } else { gate.state.as_str() };
        table.add_row([
            &gate.subscription,
            gate.code.as_str(),
            state,
            &gate.since.to_string(),
            &gate.failures.to_string(),
            &gate.waiting.to_string(),
            &time(gate.last_probe_at),
            &time(gate.next_probe_at.filter(|_| !gate.held)),
        ]);
    }
    out(&format!("{table}\n"))
}

fn parse_code(text: &str) -> Result<Code, String> {
    Code::parse(text)
        .ok_or_else(|| "a code is snake_case, such as `inventory_unavailable`".to_owned())
}
