//! `berth backup`: shows one Backup.

use std::io::Write;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::Backup;
use berth_core::run::Runs;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;

use super::queue::{Here, Line, read, told};
use crate::args::{BackupArgs, BackupCommand};
use crate::client::Clients;

pub async fn run(args: BackupArgs) -> anyhow::Result<()> {
    let clients = Clients::new(args.target.kubeconfig.as_deref()).await?;
    let here = Here { client: clients.call.clone(), namespace: args.target.namespace };
    let BackupCommand::Describe { name } = args.command;
    let api: Api<Backup> = Api::namespaced(clients.call, &here.namespace);
    let backup = api.get(&name).await.with_context(|| format!("failed to get Backup {name}"))?;
    let situation = read(&here).await?;
    let line = situation.lines().into_iter().find(|line| line.name == name);
    describe(&mut std::io::stdout().lock(), &backup, line.as_ref(), situation.now)?;
    Ok(())
}

fn describe(
    out: &mut impl Write,
    backup: &Backup,
    line: Option<&Line>,
    now: Timestamp,
) -> std::io::Result<()> {
    let mut row = |name: &str, value: &str| {
        if value.is_empty() { Ok(()) } else { writeln!(out, "{:18}{value}", format!("{name}:")) }
    };
    let status = backup.status.clone().unwrap_or_default();
    let list = |names: &Option<Vec<String>>| names.as_ref().map(|names| names.join(", ")).unwrap_or_default();
    row("Name", &backup.name_any())?;
    row("Namespace", &backup.namespace().unwrap_or_default())?;
    row("Phase", backup.phase().as_str())?;
    if let Some(line) = line {
        row("Queue position", &line.position.map(|p| p.to_string()).unwrap_or_default())?;
        row("Priority class", line.priority_class.as_deref().unwrap_or_default())?;
        row("Waits for", line.waits_for.as_deref().unwrap_or_default())?;
        row("Expected start", &line.expected_start.map(|when| told(when, now)).unwrap_or_default())?;
        row("Expected end", &line.expected_end.map(|when| told(when, now)).unwrap_or_default())?;
    }
    row("Location", backup.spec.storage_location.as_deref().unwrap_or("(the default one)"))?;
    row("Namespaces", &list(&backup.spec.included_namespaces))?;
    row("  excluded", &list(&backup.spec.excluded_namespaces))?;
    let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map(|time| time.0.to_string()).unwrap_or_default()
    };
    row("Created", &time(&backup.creation_timestamp()))?;
    // Shown only from the second run on, because one run means no interruption.
    let runs = backup.annotations().get(keys::RUNS).and_then(|runs| runs.parse::<Runs>().ok());
    let runs = runs.filter(|runs| runs.all > 1);
    row("Runs", &runs.map(Runs::told).unwrap_or_default())?;
    row("Started", &time(&status.start_timestamp))?;
    row("Completed", &time(&status.completion_timestamp))?;
    row("Expires", &time(&status.expiration))?;
    if let Some(progress) = status.progress {
        let (done, total) = (progress.items_backed_up.unwrap_or(0), progress.total_items.unwrap_or(0));
        row("Items", &format!("{done} of {total}"))?;
    }
    if let Some(hooks) = status.hook_status {
        let (tried, failed) = (hooks.hooks_attempted.unwrap_or(0), hooks.hooks_failed.unwrap_or(0));
        row("Hooks", &format!("{tried}, of which {failed} failed"))?;
    }
    for (name, count) in [("Warnings", status.warnings), ("Errors", status.errors)] {
        row(name, &count.filter(|count| *count > 0).map(|count| count.to_string()).unwrap_or_default())?;
    }
    row("Failed because", status.failure_reason.as_deref().unwrap_or_default())?;
    for fault in status.validation_errors.iter().flatten() {
        row("Not valid", fault)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_backup_that_was_taken_up_again_says_how_often_it_was_run() {
        for (runs, expected) in [
            (json!("2"), Some("Runs:             2 of 3")),
            (json!("1 4 700"), Some("Runs:             4 of 10")),
            (json!("1"), None),
            (json!("many"), None),
        ] {
            let backup: Backup = serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "Backup",
                "metadata": {"name": "b", "annotations": {keys::RUNS: runs}}, "spec": {},
            }))
            .unwrap();
            let mut out = Vec::new();
            describe(&mut out, &backup, None, Timestamp::now()).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().find(|line| line.starts_with("Runs")), expected, "{text}");
        }
    }
}
