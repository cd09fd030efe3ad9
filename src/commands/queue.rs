//! `berth queue`: what waits, why, and moving it. Reads the API; steers by annotations, which the leader obeys.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context as _, ensure};
use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::Backup;
use berth_core::queue::{Entry, Phase, Plan, Reason, View, plan, precedence};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::controller::LEASE;
use crate::args::{Output, QueueArgs, QueueCommand};
use crate::client::Clients;
use crate::queue::store::entry;

/// One line of the queue.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    phase: &'static str,
    /// Exact place, computed now; the object's own may lag behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    since: Timestamp,
}

pub async fn run(args: QueueArgs) -> anyhow::Result<()> {
    let clients = Clients::new(args.kubeconfig.as_deref()).await?;
    let api: Api<Backup> = Api::namespaced(clients.call.clone(), &args.namespace);
    match args.command {
        QueueCommand::List { output } => {
            let view = view(&clients.call, &args.namespace).await?;
            show(&lines(&view, &plan(&view)), output)
        }
        QueueCommand::Explain { name } => explain(&view(&clients.call, &args.namespace).await?, &name),
        QueueCommand::Hold(which) => {
            annotate(&api, &which.names(&api).await?, keys::HOLD, Some("true"), "held").await
        }
        QueueCommand::Release(which) => {
            annotate(&api, &which.names(&api).await?, keys::HOLD, None, "released").await
        }
        QueueCommand::Cancel(which) => {
            annotate(&api, &which.names(&api).await?, keys::CANCEL, Some("true"), "canceled").await
        }
        QueueCommand::First { name } => {
            let now = format!("{:.6}", Timestamp::now());
            annotate(&api, &[name], keys::FIRST, Some(&now), "moved to the front").await
        }
    }
}

impl crate::args::Which {
    async fn names(self, api: &Api<Backup>) -> anyhow::Result<Vec<String>> {
        if !self.all {
            return Ok(self.names);
        }
        let backups = api.list(&ListParams::default()).await.context("failed to list the Backups")?;
        Ok(backups
            .iter()
            .filter(|b| entry(b).is_some_and(|e| !e.phase.is_running()))
            .map(ResourceExt::name_any)
            .collect())
    }
}

async fn view(client: &Client, namespace: &str) -> anyhow::Result<View> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let backups = api.list(&ListParams::default()).await.context("failed to list the Backups")?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(LEASE).await.unwrap_or_default();
    let slots = lease.and_then(|lease| lease.annotations().get(keys::CONCURRENT_BACKUPS)?.parse().ok());
    Ok(View {
        slots: slots.unwrap_or(1),
        backups: backups.iter().filter_map(entry).map(Into::into).collect(),
    })
}

fn lines(view: &View, plan: &Plan) -> Vec<Line> {
    let line = |entry: &Entry, position: Option<u32>, reason: Option<&Reason>| Line {
        name: entry.name.clone(),
        phase: match entry.phase {
            Phase::New => "New",
            Phase::Queued => "Queued",
            Phase::ReadyToStart => "ReadyToStart",
            Phase::InProgress => "InProgress",
        },
        position,
        waits_for: reason.map(ToString::to_string),
        reason: reason.map(Reason::word),
        since: entry.enqueued_at.unwrap_or(entry.created_at),
    };
    let mut running: Vec<&Entry> =
        view.backups.iter().map(AsRef::as_ref).filter(|b| b.phase.is_running()).collect();
    running.sort_by(|a, b| precedence(a, b));
    let next = plan
        .start
        .iter()
        .filter_map(|i| view.backups.get(*i))
        .map(|entry| line(entry, None, Some(&Reason::Next)));
    let waiting = plan
        .waiting
        .iter()
        .filter_map(|w| view.backups.get(w.backup).map(|entry| line(entry, Some(w.place), Some(&w.reason))));
    running.into_iter().map(|entry| line(entry, None, None)).chain(next).chain(waiting).collect()
}

fn show(lines: &[Line], output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(lines)?)?,
        Output::Table if lines.is_empty() => writeln!(out, "Nothing waits and nothing runs.")?,
        Output::Table => {
            let now = Timestamp::now();
            let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(4).max(4);
            writeln!(out, "{:8}  {:width$}  {:12}  {:>7}  WAITS FOR", "POSITION", "NAME", "PHASE", "SINCE")?;
            for line in lines {
                let position = line.position.map_or_else(String::new, |p| p.to_string());
                let waits_for = line.waits_for.as_deref().unwrap_or_default();
                let since = age(now.duration_since(line.since));
                writeln!(
                    out,
                    "{position:8}  {:width$}  {:12}  {since:>7}  {waits_for}",
                    line.name, line.phase
                )?;
            }
        }
    }
    Ok(())
}

/// `5s`, `12m`, `3h`, `2d`.
fn age(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        s @ 0..=119 => format!("{s}s"),
        s @ 120..=7199 => format!("{}m", s / 60),
        s @ 7200..=172_799 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// Every backup that is in the way of one, and where they meet.
fn explain(view: &View, name: &str) -> anyhow::Result<()> {
    let wanted = view.backups.iter().find(|b| b.name == name);
    let wanted = wanted.with_context(|| format!("Backup {name} neither waits nor runs"))?;
    let mut out = std::io::stdout().lock();
    if wanted.phase.is_running() {
        writeln!(out, "{name} runs.")?;
        return Ok(());
    }
    let decided = plan(view);
    let waiting = decided.waiting.iter().find(|w| view.backups.get(w.backup).is_some_and(|b| b.name == name));
    let Some(waiting) = waiting else {
        writeln!(out, "{name} starts next.")?;
        return Ok(());
    };
    writeln!(out, "{name} is at position {} and waits for {}.", waiting.place, waiting.reason)?;
    let ahead = |b: &&std::sync::Arc<Entry>| {
        b.name != name && b.is_in_the_way() && (b.phase.is_running() || precedence(b, wanted).is_lt())
    };
    let mut blockers: Vec<_> = view.backups.iter().filter(ahead).collect();
    blockers.sort_by(|a, b| b.phase.is_running().cmp(&a.phase.is_running()).then_with(|| precedence(a, b)));
    for blocker in blockers {
        if let Some(meeting) = blocker.namespaces.meets(&wanted.namespaces) {
            let state = if blocker.phase.is_running() { "runs" } else { "is ahead" };
            writeln!(out, "  {} {state}, and takes {} too", blocker.name, meeting.namespaces.join(", "))?;
        }
    }
    let running = view.backups.iter().filter(|b| b.phase.is_running()).count();
    writeln!(out, "  {running} of {} slots are taken", view.slots)?;
    Ok(())
}

async fn annotate(
    api: &Api<Backup>,
    names: &[String],
    key: &str,
    value: Option<&str>,
    done: &str,
) -> anyhow::Result<()> {
    ensure!(!names.is_empty(), "no Backup is named: give names, or --all for all that wait");
    for name in names {
        let found = api.get(name).await.with_context(|| format!("failed to get Backup {name}"))?;
        ensure!(entry(&found).is_some(), "Backup {name} has ended already ({})", found.phase().as_str());
        let annotations: BTreeMap<&str, Value> = [(key, json!(value))].into();
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(name, &params, &patch)
            .await
            .with_context(|| format!("failed to annotate Backup {name}"))?;
        println!("{name} {done}");
    }
    Ok(())
}
