//! The metrics of each process, as they are encoded.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use berth_api::velero::Backup;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{code, head, table, wrap};
use crate::backup::metrics::BackupMetrics;
use crate::certificates::follow::Counts;
use crate::metrics::{
    ByBucket, ByReason, GardenMetrics, MoverMetrics, QueueMetrics, agent_events_dropped, encode,
    webhook_events_dropped,
};

/// Any value of a label: only its key is shown.
const ANY: &str = "any";

pub fn page() -> anyhow::Result<String> {
    let intro = "What each process serves at `/metrics` on its port `health`. A histogram has the series `_bucket`, `_sum` and \
        `_count`. A metric with labels has no series before it has a first value. How to scrape and what to alert on: \
        [the queue](../queue.md#metrics).";
    let mut text = head("Metrics", intro);
    for (title, told, registry) in [
        (
            "berth controller",
            "A controller that does not lead shows zeros. Those that begin with `velero_` are there with `--executor=berth` only.",
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
        text += &format!("## `{title}`\n\n{}\n\n", wrap(told));
        text += &table(&["metric", "type", "labels", "meaning"], rows);
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    Ok(text + "\n")
}

/// As `berth controller` registers them; each family has a value, because one without is not encoded.
fn controller() -> anyhow::Result<Registry> {
    let mut registry = Registry::default();
    let queue = QueueMetrics::new(&mut registry);
    drop(queue.waiting.get_or_create(&ByReason { reason: ANY }));
    drop(queue.passed_over.get_or_create(&ByReason { reason: ANY }));
    MoverMetrics::new(&mut registry);
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
    Ok(registry)
}

/// As `berth webhook` registers them.
fn webhook() -> Registry {
    let mut registry = Registry::default();
    webhook_events_dropped(&mut registry);
    berth_webhooks::state::register_with_values(&mut registry);
    Counts::default().register(&mut registry);
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

/// Reads OpenMetrics text: of each metric HELP, TYPE, and then its samples.
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

/// The keys of a sample's labels, but for the one of a histogram's buckets. No value here holds a comma or a brace.
fn labels(sample: &str) -> Vec<String> {
    let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(inside, _)| inside);
    let keys = inside.unwrap_or_default().split(',').filter_map(|label| label.split_once('='));
    keys.map(|(key, _)| key).filter(|key| *key != "le").map(str::to_owned).collect()
}
