//! The metrics of each process, read from their encoded form.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use berth_api::velero::Backup;
use berth_core::mover::MoverKind;
use berth_core::mover::grant::MoverPhase;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{code, head, table, wrap};
use crate::backup::metrics::BackupMetrics;
use crate::certificates::follow::CertificateMetrics;
use crate::lifecycle::age::AgeMetrics;
use crate::lifecycle::schedule::metrics::ScheduleMetrics;
use crate::lifecycle::sync::metrics::SyncMetrics;
use crate::metrics::{
    ByBucket, GardenMetrics, MoverMetrics, QueueMetrics, ReasonLabels, agent_events_dropped, encode,
    webhook_events_dropped,
};

/// Stands for any value of a label, because the page shows only its key.
const ANY: &str = "any";

pub fn page() -> anyhow::Result<String> {
    let intro = "What each process serves at `/metrics` on its port `health`. A histogram has the series `_bucket`, `_sum` and \
        `_count`. A metric with labels has no series before it has a first value. How to scrape and what to alert on: \
        [the queue](../queue.md#metrics).";
    let mut text = head("Metrics", intro);
    for (title, note, registry) in [
        (
            "berth controller",
            "A controller that does not lead shows zeros. Those that begin with `velero_`, `berth_schedules_`, `berth_sync_` or `berth_last_good_backup_` are there with `--executor=berth` only.",
            controller()?,
        ),
        ("berth webhook", "Each replica counts what it answered itself.", webhook()),
        ("berth garden agent", "The agent of a member cluster.", agent()),
    ] {
        let encoded = encode(&Arc::new(registry)).context("the metrics cannot be encoded")?;
        let rows = parse(&encoded).into_iter().map(|metric| {
            let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
            let is_counter = metric.kind == "counter";
            let name = if is_counter { format!("{}_total", metric.name) } else { metric.name };
            vec![code(&name), metric.kind, labels.join(", "), metric.help]
        });
        text += &format!("## `{title}`\n\n{}\n\n", wrap(note));
        text += &table(&["metric", "type", "labels", "meaning"], rows);
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    Ok(text + "\n")
}

/// As `berth controller` registers them. Each family has a value, because a family without one is
/// not encoded.
fn controller() -> anyhow::Result<Registry> {
    let mut registry = Registry::default();
    let queue = QueueMetrics::new(&mut registry);
    drop(queue.waiting.get_or_create(&ReasonLabels { reason: ANY }));
    drop(queue.passed_over.get_or_create(&ReasonLabels { reason: ANY }));
    let movers = MoverMetrics::new(&mut registry);
    movers.own.show([(MoverKind::DataUpload, MoverPhase::InProgress)]);
    movers.own.ended(MoverKind::DataUpload, MoverPhase::Completed, 0, Some(0.0));
    let garden = GardenMetrics::new(&mut registry);
    let bucket = ByBucket { bucket: ANY.to_owned() };
    drop(garden.entries.get_or_create(&bucket));
    drop(garden.limit.get_or_create(&bucket));
    let backups = BackupMetrics::new(&mut registry);
    let ended: Backup = serde_json::from_value(json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": ANY},
        "spec": {},
        "status": {
            "phase": "Completed",
            "startTimestamp": "2026-01-01T00:00:00Z",
            "completionTimestamp": "2026-01-01T00:01:00Z",
        },
    }))?;
    backups.stored(None, 0);
    backups.ended(&ended, Timestamp::UNIX_EPOCH);
    ScheduleMetrics::new(&mut registry).show_any(ANY);
    SyncMetrics::new(&mut registry).show_any(ANY);
    AgeMetrics::new(&mut registry).show_any(ANY);
    Ok(registry)
}

/// As `berth webhook` registers them.
fn webhook() -> Registry {
    let mut registry = Registry::default();
    webhook_events_dropped(&mut registry);
    berth_webhooks::state::register_with_values(&mut registry);
    CertificateMetrics::default().register(&mut registry);
    registry
}

/// As `berth garden agent` registers them.
fn agent() -> Registry {
    let mut registry = Registry::default();
    agent_events_dropped(&mut registry);
    registry
}

#[derive(Default)]
struct Metric {
    name: String,
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Reads OpenMetrics text: each metric's HELP, TYPE, and then its samples.
fn parse(text: &str) -> Vec<Metric> {
    let mut found: Vec<Metric> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            found.push(Metric { name: name.to_owned(), help: help.to_owned(), ..Metric::default() });
        } else if let Some(metric) = found.last_mut() {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((_, kind)) => kind.clone_into(&mut metric.kind),
                None => metric.labels.extend(labels(line)),
            }
        }
    }
    found
}

/// The keys of a sample's labels, except `le` of a histogram's buckets. No value here holds a comma
/// or a brace.
fn labels(sample: &str) -> Vec<String> {
    let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(inside, _)| inside);
    let keys = inside.unwrap_or_default().split(',').filter_map(|label| label.split_once('='));
    keys.map(|(key, _)| key).filter(|key| *key != "le").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// How a metric is registered. In two parts, because this file is searched as well.
    const CALL: &str = concat!(".register", "(");

    /// Adds the name of every metric that a source file below a folder registers.
    fn registered(folder: &Path, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                registered(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                // A metric has a help text after its name; the models' tests register other things.
                let metrics = source.split(CALL).skip(1).filter_map(|call| {
                    let (name, rest) = call.trim_start().strip_prefix('"')?.split_once('"')?;
                    rest.starts_with(',').then(|| name.to_owned())
                });
                names.extend(metrics);
            }
        }
    }

    #[test]
    fn every_metric_that_the_source_registers_is_on_the_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = Vec::new();
        for folder in ["src", "webhooks"] {
            registered(&root.join(folder), &mut names);
        }
        assert!(names.iter().any(|name| name == "depth"), "no registration is found: {names:?}");
        let page = page().unwrap();
        let shown: Vec<&str> = page
            .lines()
            .filter_map(|row| row.strip_prefix("| `")?.split('`').next())
            .map(|metric| metric.strip_suffix("_total").unwrap_or(metric))
            .collect();
        for name in &names {
            let name = name.strip_suffix("_total").unwrap_or(name);
            let is_it = |metric: &str| metric == name || metric.ends_with(&format!("_{name}"));
            let wanted = names.iter().filter(|other| is_it(other)).count();
            assert!(
                shown.iter().filter(|metric| is_it(metric)).count() >= wanted.max(1),
                "{name} is not in docs/reference/metrics.md: register it in src/reference/metrics.rs, too"
            );
        }
        assert!(shown.len() >= names.len(), "a metric of {names:?} is missing in {shown:?}");
    }
}
