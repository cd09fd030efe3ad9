//! Everything about one Backup or Schedule, as text in Velero's order of sections.

mod align;
mod backup_json;
mod schedule;
mod spec;
mod volumes;

pub use backup_json::json as backup_json;
pub use schedule::{NextRuns, json as schedule_json, text as schedule};

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, BackupSpec, DeleteBackupRequest, DeleteBackupRequestPhase};
use berth_core::run::Runs;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde_json::Value;

use super::table::{phase, time};
use crate::text::printable;
use align::align;

/// An artifact, as far as it could be had.
#[derive(Clone, Debug, Default)]
pub enum Fetched {
    #[default]
    NotAsked,
    Missing,
    Failed(String),
    Got(Value),
}

/// Where a Backup stands in the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueStanding {
    pub position: Option<u32>,
    pub priority_class: Option<String>,
    pub waits_for: Option<String>,
    pub expected_start: Option<String>,
    pub expected_end: Option<String>,
    /// One line for each backup that must end first.
    pub blockers: Vec<String>,
}

/// What a description is made of.
#[derive(Default)]
pub struct Described<'a> {
    pub standing: Option<QueueStanding>,
    pub deletions: &'a [DeleteBackupRequest],
    /// PodVolumeBackups of the Backup.
    pub pod_volumes: &'a [Value],
    pub results: Fetched,
    pub resources: Fetched,
    pub volumes: Fetched,
    pub operations: Fetched,
    /// Until when the store keeps what was fetched, whoever deletes it.
    pub locked_until: Option<Timestamp>,
    pub details: bool,
    pub colour: bool,
}

/// Text that is aligned at tabs when it is finished.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        // Tabs part the cells.
        let cells: Vec<_> = line.split('\t').map(printable).collect();
        self.coloured(&cells.join("\t"));
    }

    /// A line that is printable already, and may have colours.
    fn coloured(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn row(&mut self, name: &str, value: &str) {
        self.line(&format!("{name}:\t{}", one_line(value)));
    }

    fn blank(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with("\n\n") {
            self.0.push('\n');
        }
    }
}

/// A value stays on its line and in its column, and controls no terminal.
fn one_line(value: &str) -> String {
    printable(&value.replace(['\t', '\n', '\r'], " ")).into_owned()
}

const NONE: &str = "<none>";

fn joined(list: Option<&Vec<String>>, none: &str) -> String {
    match list.filter(|list| !list.is_empty()) {
        Some(list) => list.join(", "),
        None => none.to_owned(),
    }
}

fn red(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
}

fn green(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[32m{text}\x1b[0m") } else { text.to_owned() }
}

fn metadata(text: &mut Text, metadata: &ObjectMeta) {
    text.row("Name", metadata.name.as_deref().unwrap_or_default());
    text.row("Namespace", metadata.namespace.as_deref().unwrap_or_default());
    for (name, map) in [("Labels", &metadata.labels), ("Annotations", &metadata.annotations)] {
        pairs(text, name, map.as_ref());
    }
}

fn pairs(text: &mut Text, name: &str, map: Option<&BTreeMap<String, String>>) {
    let mut name = format!("{name}:");
    for (key, value) in map.into_iter().flatten() {
        text.line(&format!("{name}\t{}={}", one_line(key), one_line(value)));
        name.clear();
    }
    if !name.is_empty() {
        text.line(&format!("{name}\t{NONE}"));
    }
}

/// The description of a Backup.
pub fn backup(backup: &Backup, described: &Described<'_>) -> String {
    let mut text = Text::default();
    let status = backup.status.clone().unwrap_or_default();
    metadata(&mut text, &backup.metadata);
    text.blank();
    phase_and_queue(&mut text, backup, described);
    let (global, faults) = (global_policy(backup), status.validation_errors.as_deref());
    asked_and_wrong(&mut text, &backup.spec, global, faults, described.colour);
    text.blank();
    results(&mut text, backup, &described.results);
    text.blank();
    spec::describe(&mut text, &backup.spec);
    text.blank();
    progress(&mut text, backup, described.locked_until);
    operations(&mut text, backup, described);
    if described.details {
        resources(&mut text, &described.resources);
        text.blank();
    }
    volumes::describe(&mut text, described, &status);
    if let Some(hooks) = status.hook_status {
        text.blank();
        text.row("HooksAttempted", &hooks.hooks_attempted.unwrap_or(0).to_string());
        text.row("HooksFailed", &hooks.hooks_failed.unwrap_or(0).to_string());
    }
    if !described.deletions.is_empty() {
        text.blank();
        deletions(&mut text, described.deletions);
    }
    align(&text.0)
}

/// The ConfigMap with volume policies that a Velero server gave to all its Backups.
fn global_policy(backup: &Backup) -> Option<&str> {
    let name = backup.annotations().get(keys::GLOBAL_VOLUME_POLICY)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

/// What a spec asks for besides its selection, and what is wrong with it. `global`: what its server
/// added.
fn asked_and_wrong(
    text: &mut Text,
    spec: &BackupSpec,
    global: Option<&str>,
    faults: Option<&[String]>,
    colour: bool,
) {
    if let Some(policy) = &spec.resource_policy {
        text.blank();
        text.line("Resource policies:");
        text.row("\tType", &policy.kind);
        text.row("\tName", &policy.name);
    }
    if let Some(name) = global {
        text.blank();
        text.line("Global volume policies:");
        text.row("\tType", "configmap");
        text.row("\tName", name);
    }
    let files = spec.uploader_config.as_ref().and_then(|config| config.parallel_files_upload);
    if let Some(files) = files.filter(|files| *files > 0) {
        text.blank();
        text.line("Uploader config:");
        text.row("\tParallel files upload", &files.to_string());
    }
    let faults = faults.unwrap_or_default();
    if !faults.is_empty() {
        text.blank();
    }
    let mut name = "Validation errors:";
    for fault in faults {
        text.coloured(&format!("{name}\t{}", red(&one_line(fault), colour)));
        name = "";
    }
}

fn phase_and_queue(text: &mut Text, backup: &Backup, described: &Described<'_>) {
    let shown = phase(backup);
    let coloured = match backup.phase() {
        BackupPhase::FailedValidation | BackupPhase::PartiallyFailed | BackupPhase::Failed => {
            red(shown, described.colour)
        }
        BackupPhase::Completed => green(shown, described.colour),
        _ => shown.to_owned(),
    };
    let has_log = matches!(backup.phase(), BackupPhase::Failed | BackupPhase::PartiallyFailed);
    let note = format!(" (run `berth backup logs {}` for more information)", one_line(&backup.name_any()));
    text.coloured(&format!("Phase:\t{coloured}{}", if has_log { &note } else { "" }));
    let status = backup.status.as_ref();
    if let Some(why) = status.and_then(|status| status.failure_reason.as_deref()) {
        text.row("Failed because", why);
    }
    // Shown only from the second run on, because one run means no interruption.
    let runs = backup.annotations().get(keys::RUNS).and_then(|runs| runs.parse::<Runs>().ok());
    if let Some(runs) = runs.filter(|runs| runs.all > 1) {
        text.row("Runs", &runs.told());
    }
    let told = status.and_then(|status| status.queue_position).filter(|position| *position > 0);
    let standing = described.standing.clone().unwrap_or_default();
    let position =
        standing.position.map(i64::from).or(told.filter(|_| backup.phase() == BackupPhase::Queued));
    if let Some(position) = position {
        text.row("Queue position", &position.to_string());
    }
    for (name, value) in [
        ("Priority class", standing.priority_class),
        ("Waits for", standing.waits_for),
        ("Expected start", standing.expected_start),
        ("Expected end", standing.expected_end),
    ] {
        if let Some(value) = value {
            text.row(name, &value);
        }
    }
    let mut name = "Blocked by:";
    for blocker in &standing.blockers {
        text.line(&format!("{name}\t{}", one_line(blocker)));
        name = "";
    }
}

fn results(text: &mut Text, backup: &Backup, fetched: &Fetched) {
    let status = backup.status.as_ref();
    let count = |count: Option<i64>| count.unwrap_or(0);
    let counts = [
        ("Warnings", "warnings", count(status.and_then(|status| status.warnings))),
        ("Errors", "errors", count(status.and_then(|status| status.errors))),
    ];
    for (name, key, count) in counts.into_iter().filter(|(_, _, count)| *count > 0) {
        text.blank();
        match fetched {
            Fetched::Got(results) => result(text, name, results.get(key).unwrap_or(&Value::Null)),
            Fetched::Failed(why) => {
                text.row(name, &format!("{count} <they cannot be had: {why}>"));
            }
            Fetched::Missing | Fetched::NotAsked => text.row(name, &count.to_string()),
        }
    }
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn result(text: &mut Text, name: &str, result: &Value) {
    text.line(&format!("{name}:"));
    let mut group = |name: &str, messages: &Value| {
        let mut name = name.to_owned();
        for message in strings(messages) {
            text.line(&format!("{name}\t{}", one_line(message)));
            // The next message stands below the first one.
            name = name.chars().filter(|c| *c == '\t').collect();
        }
        name.ends_with(':')
    };
    for (name, key) in [("Velero", "velero"), ("Cluster", "cluster")] {
        if group(&format!("\t{name}:"), result.get(key).unwrap_or(&Value::Null)) {
            group(&format!("\t{name}:"), &serde_json::json!([NONE]));
        }
    }
    let namespaces = result.get("namespaces").and_then(Value::as_object);
    match namespaces.filter(|namespaces| !namespaces.is_empty()) {
        None => text.line(&format!("\tNamespaces:\t{NONE}")),
        Some(namespaces) => {
            text.line("\tNamespaces:");
            for (namespace, messages) in namespaces {
                let mut name = format!("\t\t{}:", one_line(namespace));
                for message in strings(messages) {
                    text.line(&format!("{name}\t{}", one_line(message)));
                    name = "\t\t".to_owned();
                }
            }
        }
    }
}

fn progress(text: &mut Text, backup: &Backup, locked_until: Option<Timestamp>) {
    let status = backup.status.clone().unwrap_or_default();
    let told = |when: Option<&Time>| when.map_or_else(|| "<n/a>".to_owned(), time);
    text.row("Backup Format Version", status.format_version.as_deref().unwrap_or_default());
    text.blank();
    if let Some(created) = &backup.metadata.creation_timestamp {
        text.row("Created", &time(created));
    }
    text.row("Started", &told(status.start_timestamp.as_ref()));
    text.row("Completed", &told(status.completion_timestamp.as_ref()));
    text.blank();
    text.row("Expiration", &status.expiration.as_ref().map_or_else(|| "<nil>".to_owned(), time));
    if let Some(until) = locked_until {
        text.row("Locked until", &time(&Time(until)));
    }
    text.blank();
    if let Some(progress) = status.progress {
        let names = if backup.phase() == BackupPhase::InProgress {
            ["Estimated total items to be backed up", "Items backed up so far"]
        } else {
            ["Total items to be backed up", "Items backed up"]
        };
        for (name, items) in names.into_iter().zip([progress.total_items, progress.items_backed_up]) {
            text.row(name, &items.unwrap_or(0).to_string());
        }
        text.blank();
    }
}

fn operations(text: &mut Text, backup: &Backup, described: &Described<'_>) {
    const NAME: &str = "Backup Item Operations";
    let status = backup.status.clone().unwrap_or_default();
    let attempted = status.backup_item_operations_attempted.unwrap_or(0);
    if attempted == 0 {
        return;
    }
    let completed = status.backup_item_operations_completed.unwrap_or(0);
    let failed = status.backup_item_operations_failed.unwrap_or(0);
    let counts = format!("{completed} of {attempted} completed successfully, {failed} failed");
    match &described.operations {
        Fetched::Got(Value::Array(all)) if described.details => {
            text.line(&format!("{NAME}:"));
            for operation in all {
                volumes::operation(text, operation);
            }
        }
        Fetched::Failed(why) if described.details => {
            text.row(NAME, &format!("{counts} <they cannot be had: {why}>"))
        }
        _ if described.details => text.row(NAME, &counts),
        _ => text.row(NAME, &format!("{counts} (specify --details for more information)")),
    }
    text.blank();
}

fn resources(text: &mut Text, fetched: &Fetched) {
    const NAME: &str = "Resource List";
    match fetched {
        Fetched::Got(Value::Object(types)) => {
            text.line(&format!("{NAME}:"));
            for (kind, names) in types {
                text.line(&format!("\t{}:", one_line(kind)));
                for name in strings(names) {
                    text.line(&format!("\t\t- {}", one_line(name)));
                }
            }
        }
        Fetched::Got(_) => text.row(NAME, "<it cannot be read>"),
        Fetched::Failed(why) => text.row(NAME, &format!("<it cannot be had: {why}>")),
        Fetched::Missing => text.row(NAME, "<backup resource list not found>"),
        Fetched::NotAsked => text.row(NAME, "<nothing is stored yet>"),
    }
}

fn deletions(text: &mut Text, requests: &[DeleteBackupRequest]) {
    let parts = |request: &DeleteBackupRequest| {
        let status = request.status.clone().unwrap_or_default();
        (request.phase(), status.errors.unwrap_or_default())
    };
    let failed = requests
        .iter()
        .map(parts)
        .filter(|(phase, errors)| *phase == DeleteBackupRequestPhase::Processed && !errors.is_empty());
    match failed.count() {
        0 => text.line("Deletion Attempts:"),
        failed => text.line(&format!("Deletion Attempts ({failed} failed):")),
    }
    for (i, request) in requests.iter().enumerate() {
        if i > 0 {
            text.blank();
        }
        let (phase, errors) = parts(request);
        let created = request.metadata.creation_timestamp.as_ref().map(time).unwrap_or_default();
        text.line(&format!("\t{created}: {}", phase.as_str()));
        if !errors.is_empty() {
            text.line("\tErrors:");
            for error in errors {
                text.line(&format!("\t\t{}", one_line(&error)));
            }
        }
    }
}

/// Times of a Backup, for whoever needs only these.
pub fn took(backup: &Backup, now: Timestamp) -> Option<jiff::SignedDuration> {
    let status = backup.status.as_ref()?;
    let start = status.start_timestamp.as_ref()?.0;
    Some(status.completion_timestamp.as_ref().map_or(now, |end| end.0).duration_since(start))
}

#[cfg(test)]
mod tests;
