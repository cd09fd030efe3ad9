//! 266 backups of 266 empty namespaces, created at once, two slots: stock Velero's queue and
//! engine, and berth's.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::velero::BackupPhase;
use berth_test_support::peers::{S3, Velero, install_definitions, prepare};
use berth_test_support::{Berth, ControlPlane, Options, backup};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::observer::{self, Change, Observer};
use crate::report::{Aim, Report};
use crate::{stock, system};

const COUNT: usize = 266;
const SLOTS: u16 = 2;
const LONGEST: Duration = Duration::from_secs(1200);
const PART: &str = "266 backups, 2 slots";
const STOCK: &str = "stock";

struct Burst {
    seconds: f64,
    writes: f64,
    /// Of all slots, from the first start to the last end.
    busy: f64,
}

pub fn measure(runtime: &Runtime, program: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    if !alone {
        stock::find()?;
    }
    let options = Options { concurrent_backups: SLOTS, ..Options::new(program, "velero") };
    let berth = Berth::start(ControlPlane::start()?, options)?;
    let s3 = S3::start(berth.plane(), "burst")?;
    let answer =
        berth.kubectl().create("velero", &[s3.keys.secret_object("velero"), s3.location("away", "berth")])?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    let namespaces: Vec<Value> = (0..COUNT)
        .map(|i| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("q-{i}")}}))
        .collect();
    berth.kubectl().create("", &namespaces)?;
    let client = runtime.block_on(berth.plane().client())?;
    let before = system::cpu_seconds(berth.controller.process.id())?;
    let ours = runtime.block_on(burst(&client, "velero", "away"))?;
    let cpu = system::cpu_seconds(berth.controller.process.id())? - before;
    report.add(PART, "berth: from the first create to the last end", ours.seconds, "s", Aim::AtMost(16.0));
    report.add(
        PART,
        "berth: writes to Backups, creates included",
        ours.writes / COUNT as f64,
        "each",
        Aim::AtMost(8.0),
    );
    report.add(PART, "berth: slots busy", ours.busy * 100.0, "%", Aim::AtLeast(95.0));
    report.add(PART, "berth: CPU of the controller", cpu, "s", Aim::None);
    if alone {
        return Ok(());
    }
    install_definitions(berth.plane())?;
    prepare(berth.plane(), STOCK, &s3, STOCK)?;
    let velero = Velero::start(berth.plane(), STOCK, &s3, &[], &["--concurrent-backups=2"])?;
    let theirs = runtime.block_on(burst(&client, STOCK, "default"));
    let theirs = theirs.with_context(|| berth_test_support::log::tail(velero.log(), 20))?;
    report.add(PART, "stock Velero: from the first create to the last end", theirs.seconds, "s", Aim::None);
    report.add(PART, "stock Velero: writes to Backups", theirs.writes / COUNT as f64, "each", Aim::None);
    report.add(PART, "stock Velero: slots busy", theirs.busy * 100.0, "%", Aim::None);
    report.add(
        PART,
        "stock Velero's time to berth's",
        theirs.seconds / ours.seconds,
        "×",
        Aim::AtLeast(20.0),
    );
    report.add(
        PART,
        "stock Velero's writes to berth's",
        theirs.writes / ours.writes,
        "×",
        Aim::AtLeast(15.0),
    );
    Ok(())
}

async fn burst(client: &Client, namespace: &str, location: &str) -> anyhow::Result<Burst> {
    let mut observer = Observer::start(client, namespace, |_| {}).await?;
    let before = observer::writes(client, "backups").await?;
    let begun = Instant::now();
    let spec = |i: usize| json!({"includedNamespaces": [format!("q-{i}")], "storageLocation": location, "snapshotVolumes": false});
    let backups = (0..COUNT).map(|i| backup(&format!("q-{i}"), spec(i)));
    observer::create(client, namespace, backups.collect()).await?;
    observer.wait_ended(COUNT, LONGEST).await?;
    let writes = observer::writes(client, "backups").await? - before;
    let changes = observer.changes();
    let failed: Vec<&Change> =
        changes.iter().filter(|c| c.phase.is_final() && c.phase != BackupPhase::Completed).collect();
    ensure!(failed.is_empty(), "not all were completed: {failed:?}");
    let last = changes.iter().filter(|c| c.phase.is_final()).map(|c| c.at).max().context("nothing ended")?;
    Ok(Burst { seconds: (last - begun).as_secs_f64(), writes, busy: busy(&changes) })
}

/// Share of the slots that ReadyToStart and InProgress backups held, from the first start to the
/// last one.
fn busy(changes: &[Change]) -> f64 {
    let is_running = |phase| matches!(phase, BackupPhase::ReadyToStart | BackupPhase::InProgress);
    let starts = || changes.iter().filter(|c| c.phase == BackupPhase::ReadyToStart);
    let (Some(first), Some(last)) = (starts().next(), starts().next_back()) else { return 0.0 };
    let mut running: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
    let (mut held, mut since) = (0.0, first.at);
    for change in changes.iter().filter(|c| c.at <= last.at) {
        let at = change.at.max(first.at);
        held += running.len() as f64 * (at - since).as_secs_f64();
        since = at;
        if is_running(change.phase) {
            running.insert(&change.name);
        } else {
            running.remove(change.name.as_str());
        }
    }
    held / (f64::from(SLOTS) * (last.at - first.at).as_secs_f64())
}
