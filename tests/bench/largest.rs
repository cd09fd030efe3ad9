//! Reviews of the largest Backups that are admitted, while ten thousand wait. By the webhook
//! itself, because what takes time is in all of it: the bytes on the wire, what is read of them,
//! and what a watch cache of a real queue finds.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_core::limits;
use berth_test_support::backup::backup_of;
use berth_test_support::{Berth, ControlPlane, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::admission::hold;
use crate::client::{Connector, authority, request, review};
use crate::limits::{Texts, names_alone, stars};
use crate::report::{Aim, Report, quantile};
use crate::webhook::{ENQUEUE, VALIDATE, ensure_allowed};
use crate::{observer, system};

const NAMESPACE: &str = "velero";
const WAITING: usize = 10_000;
const ASKED: usize = 200;
/// From the last create to the moment at which the webhook's watch has shown it, for sure.
const SHOWN: Duration = Duration::from_secs(2);

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("The largest Backups, beside {WAITING} that wait:");
    let mut berth = Berth::start(ControlPlane::start()?, Options::new(berth, NAMESPACE))?;
    // It takes other namespaces than the Backup that is asked about, because that one is compared
    // with those that wait.
    let _silent = hold(&berth, "default")?;
    // It would keep the same cores busy, and the holder holds its slot all the same.
    berth.controller.process.kill()?;
    let waiting = (0..WAITING).map(|i| {
        let namespaces = [format!("ns-{}", i % 500), format!("ns-{}", i % 7)];
        backup_of(&format!("waits-{i}"), &namespaces.each_ref().map(String::as_str))
    });
    let create = async {
        let client = berth.plane().client().await?;
        observer::create(&client, NAMESPACE, waiting.collect()).await
    };
    runtime.block_on(create)?;
    std::thread::sleep(SHOWN);

    let part = format!("one review, {WAITING} wait");
    let connector = Connector::new(berth.webhook_address(), &authority(&berth)?)?;
    let bodies = [
        ("an ordinary Backup", review(NAMESPACE, "ordinary", true)?),
        ("1 MiB of names", largest(&namespaces(names_alone(0)))?),
        ("1 MiB with patterns", largest(&namespaces(stars(0)))?),
        ("1 MiB with values of selectors", largest(&selectors(limits::VALUES))?),
        ("1 MiB with requirements", largest(&selectors(0))?),
    ];
    for (what, body) in &bodies {
        for (rule, path) in [("enqueue", ENQUEUE), ("validate", VALIDATE)] {
            let request = request(connector.address(), path, body);
            let mut connection = connector.connect()?;
            ensure_allowed(connection.ask(&request)?)?;
            let mut times = Vec::new();
            for _ in 0..ASKED {
                let started = Instant::now();
                connection.ask(&request)?;
                times.push(started.elapsed().as_secs_f64() * 1000.0);
            }
            for (name, share, aim) in [("p50", 0.5, Aim::None), ("p99", 0.99, Aim::AtMost(5.0))] {
                report.add(&part, &format!("{rule}, {what}: {name}"), quantile(&times, share), "ms", aim);
            }
        }
    }
    let peak = system::peak_mib(berth.webhook.process.id())?;
    report.add(&part, "peak memory of the webhook", peak, "MiB", Aim::None);
    Ok(())
}

fn namespaces(texts: Texts) -> Value {
    json!({"includedNamespaces": texts.included, "excludedNamespaces": texts.excluded})
}

/// As many requirements of so many values as are taken: each value, and each requirement, is read
/// by itself.
fn selectors(values: usize) -> Value {
    let values: Vec<String> = (0..values).map(|i| format!("v{i}")).collect();
    let operator = if values.is_empty() { "Exists" } else { "In" };
    let requirement = json!({"key": "tier", "operator": operator, "values": values});
    let requirements = vec![requirement; limits::LABELS / values.len().max(1)];
    let selectors = requirements.chunks(limits::SELECTORS).map(|some| json!({"matchExpressions": some}));
    json!({"orLabelSelectors": selectors.collect::<Vec<Value>>()})
}

/// The review of a Backup of this spec, filled up to the last byte that is admitted.
fn largest(spec: &Value) -> anyhow::Result<String> {
    let mut review: Value = serde_json::from_str(&review(NAMESPACE, "largest", true)?)?;
    let object = review.pointer_mut("/request/object").context("review.json has no object")?;
    object["spec"] = spec.clone();
    object["spec"]["metadata"] = json!({"labels": {"filler": ""}});
    let size = serde_json::to_string(&*object)?.len();
    let left = limits::OBJECT.checked_sub(size).context("the Backup is too large as it is")?;
    object["spec"]["metadata"]["labels"]["filler"] = json!("p".repeat(left));
    Ok(serde_json::to_string(&review)?)
}
