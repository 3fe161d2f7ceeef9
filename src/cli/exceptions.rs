//! `backstop exceptions`: the queue on the command line, a thin skin over [`crate::exception`].

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{complain, operator_store, out, table};
use crate::config::{Config, operator_name};
use crate::exception::{Case, Payload, Redriven};
use crate::outcome::Category;
use crate::store::{CaseFilter, CaseStatus, Store};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List cases: unfinished ones first, then the newest
    List(ListArguments),
    /// Show one case: reference, attempts, what may be done next, its audit log
    Show(ShowArguments),
    /// Have the service run the messages of cases again, once each
    Redrive(RedriveArguments),
    /// Close cases: nothing runs again, a late delivery included
    Close(CloseArguments),
}

#[derive(Args)]
pub(super) struct ListArguments {
    /// As a JSON array
    #[arg(long)]
    json: bool,
    /// Only this status: open, redriving, resolved or closed; may be repeated
    #[arg(long, value_parser = parse_status)]
    status: Vec<CaseStatus>,
    /// Only this category
    #[arg(long, value_parser = parse_category)]
    category: Option<Category>,
    /// At most so many
    #[arg(long, default_value_t = 1000)]
    limit: u32,
}

#[derive(Args)]
pub(super) struct ShowArguments {
    /// The case's id, or the beginning of it
    id: String,
    /// As a JSON object
    #[arg(long)]
    json: bool,
    /// Show the payload too; the look is written to the audit log
    #[arg(long)]
    reveal: bool,
}

#[derive(Args)]
pub(super) struct RedriveArguments {
    /// Ids, or the beginnings of them
    #[arg(required_unless_present = "category")]
    ids: Vec<String>,
    /// Every open case of this category, as they are now
    #[arg(long, value_parser = parse_category, conflicts_with = "ids")]
    category: Option<Category>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the runs to end, in seconds; 0 only asks for them
    #[arg(long, default_value_t = 60)]
    wait_secs: u64,
}

#[derive(Args)]
pub(super) struct CloseArguments {
    /// Ids, or the beginnings of them
    #[arg(required = true)]
    ids: Vec<String>,
    /// Why: kept with the case
    #[arg(long)]
    note: String,
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let store = operator_store(config).await?;
    match command {
        Command::List(arguments) => list(&store, arguments).await,
        Command::Show(arguments) => show(&store, arguments).await,
        Command::Redrive(arguments) => redrive(&store, arguments).await,
        Command::Close(arguments) => close(&store, arguments).await,
    }
}

async fn list(store: &Store, arguments: ListArguments) -> anyhow::Result<()> {
    let filter = CaseFilter {
        statuses: arguments.status,
        category: arguments.category,
        limit: arguments.limit,
    };
    let cases = store.exceptions(filter).await?;
    if arguments.json {
        return out(&format!("{}\n", serde_json::to_string_pretty(&cases)?));
    }
    if cases.is_empty() {
        complain("No cases.");
        return Ok(());
    }
    let mut table = table(&[
        "id", "status", "category", "reason", "topic", "source", "event id", "attempts", "opened",
    ]);
    for case in &cases {
        table.add_row([
            case.id.as_str(),
            case.status.as_str(),
            case.category.as_str(),
            case.reason.as_str(),
            &case.topic,
            &brief(&case.source),
            &brief(&case.event_id),
            &case.attempts.to_string(),
            &case.opened_at.to_string(),
        ]);
    }
    out(&format!("{table}\n"))
}

async fn show(store: &Store, arguments: ShowArguments) -> anyhow::Result<()> {
    let case = store.exception(&arguments.id).await?;
    let payload = if arguments.reveal {
        store.reveal_payload(&case.id, &operator_name()).await?
    } else {
        None
    };
    let audit = store.exception_audit(&case.id).await?;
    if arguments.json {
        let mut object = serde_json::to_value(&case)?;
        if let Some(fields) = object.as_object_mut() {
            fields.insert("audit".to_owned(), serde_json::to_value(&audit)?);
            let shown =
                if arguments.reveal { serde_json::to_value(&payload)? } else { json!("masked") };
            fields.insert("payload".to_owned(), shown);
        }
        return out(&format!("{}\n", serde_json::to_string_pretty(&object)?));
    }
    let mut text = format!(
        "case           {}\nstatus         {}\ncategory       {}\nreason         {}\nsubscription   {}\n\
         topic          {} on {}\nsource         {}\nevent id       {}\ntype           {}\nsubject        {}\n\
         trace          {}\nintended       {}\nlast confirmed {}\nsightings      {}\nowner          {}\n\
         opened         {}\nreview by      {}\nnext           {}\n",
        case.id,
        case.status.as_str(),
        case.category,
        case.reason,
        case.subscription,
        case.topic,
        case.pubsub,
        or_dash(&case.source),
        or_dash(&case.event_id),
        or_dash(&case.ty),
        case.subject.as_deref().unwrap_or("-"),
        case.traceparent.as_deref().unwrap_or("-"),
        case.intended_action,
        case.last_confirmed_stage,
        case.sightings,
        case.owner.as_deref().unwrap_or("-"),
        case.opened_at,
        case.review_by,
        case.next_action,
    );
    for blocked in &case.blocked {
        let _ = writeln!(text, "blocked        {}: {}", blocked.action, blocked.why);
    }
    if let Some(note) = &case.closed_note {
        let _ = writeln!(text, "closed note    {note}");
    }
    text.push_str("\nattempts\n");
    for attempt in &case.attempt_history {
        let _ = writeln!(
            text,
            "  {:>3}  {}  {:<8}  {}",
            attempt.n,
            attempt.at,
            attempt.kind.as_str(),
            attempt.code
        );
    }
    text.push_str("\naudit\n");
    for entry in &audit {
        let detail = entry.detail.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {}  {}  {}  {detail}", entry.at, entry.actor, entry.action);
    }
    text.push_str("\npayload\n");
    let _ = match payload {
        None if arguments.reveal => writeln!(text, "  none is kept"),
        None => {
            writeln!(text, "  masked; --reveal shows it, and the look is written to the audit log")
        }
        Some(Payload::Utf8(content)) => writeln!(text, "{content}"),
        Some(Payload::Base64(content)) => writeln!(text, "base64: {content}"),
    };
    out(&text)
}

async fn redrive(store: &Store, arguments: RedriveArguments) -> anyhow::Result<()> {
    let cases = chosen(store, &arguments).await?;
    if arguments.dry_run {
        let mut table = table(&["id", "category", "reason", "verdict"]);
        for case in &cases {
            let verdict = verdict(case);
            table.add_row([
                case.id.as_str(),
                case.category.as_str(),
                case.reason.as_str(),
                &verdict,
            ]);
        }
        return out(&format!("{table}\nA dry run: nothing was done.\n"));
    }
    let actor = operator_name();
    let (mut asked, mut failed) = (Vec::new(), 0_usize);
    for case in cases {
        match store.redrive_exception(&case.id, &actor).await {
            Ok(()) => asked.push(case.id),
            Err(error) => {
                failed += 1;
                complain(&error.to_string());
            }
        }
    }
    if arguments.wait_secs == 0 {
        for id in &asked {
            out(&format!("{id} asked for\n"))?;
        }
    } else {
        failed += wait(store, &asked, Duration::from_secs(arguments.wait_secs)).await?;
    }
    anyhow::ensure!(failed == 0, "{failed} of the cases were not resolved");
    Ok(())
}

/// Waits for the runs and says how each ended; counts those that did not resolve their case.
async fn wait(store: &Store, asked: &[String], patience: Duration) -> anyhow::Result<usize> {
    let until = tokio::time::Instant::now() + patience;
    let progress = if std::io::stderr().is_terminal() && asked.len() > 1 {
        let bar = ProgressBar::new(asked.len() as u64);
        bar.with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} redriven, {eta} left")?)
    } else {
        ProgressBar::hidden()
    };
    let mut unresolved = 0;
    for id in asked {
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let ended = store.redrive_ended(id, left).await?;
        progress.inc(1);
        let text = match ended {
            Redriven::Resolved => "resolved",
            Redriven::Reopened => "open again: it failed",
            Redriven::Waiting => "has not run yet: is the service running?",
        };
        unresolved += usize::from(ended != Redriven::Resolved);
        progress.suspend(|| out(&format!("{id} {text}\n")))?;
    }
    progress.finish_and_clear();
    Ok(unresolved)
}

async fn chosen(store: &Store, arguments: &RedriveArguments) -> anyhow::Result<Vec<Case>> {
    if let Some(category) = arguments.category {
        let filter = CaseFilter {
            statuses: vec![CaseStatus::Open],
            category: Some(category),
            limit: u32::MAX,
        };
        return Ok(store.exceptions(filter).await?);
    }
    let mut cases = Vec::new();
    for id in &arguments.ids {
        cases.push(store.exception(id).await?);
    }
    Ok(cases)
}

fn verdict(case: &Case) -> String {
    match (case.status, case.category.redrive_blocked()) {
        (CaseStatus::Open, None) => "would run".to_owned(),
        (CaseStatus::Open, Some(why)) => format!("refused: {why}"),
        (status, _) => format!("refused: it is {}", status.as_str()),
    }
}

async fn close(store: &Store, arguments: CloseArguments) -> anyhow::Result<()> {
    let actor = operator_name();
    for id in &arguments.ids {
        let case = store.exception(id).await?;
        store
            .close_exception(&case.id, &actor, &arguments.note)
            .await
            .with_context(|| format!("{id} was not closed"))?;
        out(&format!("{} closed\n", case.id))?;
    }
    Ok(())
}

fn brief(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    if text.chars().count() <= CHARS_MAX {
        return text.to_owned();
    }
    let cut: String = text.chars().take(CHARS_MAX - 1).collect();
    format!("{cut}…")
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn parse_status(text: &str) -> Result<CaseStatus, String> {
    CaseStatus::parse(text)
        .ok_or_else(|| format!("one of {}", CaseStatus::ALL.map(CaseStatus::as_str).join(", ")))
}

fn parse_category(text: &str) -> Result<Category, String> {
    Category::parse(text)
        .ok_or_else(|| format!("one of {}", Category::ALL.map(Category::as_str).join(", ")))
}
