//! A hundred Backups whose data nobody moves: how often berth asks the API server while they wait
//! and nothing happens.
//!
//! Counted is what the API server counts, in a minute with these Backups and in one before there
//! was any. Left out are Leases, which a leader renews whatever happens, and watches, which count
//! when they end, every five minutes, however many Backups there are.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use berth_api::velero::BackupPhase;
use berth_test_support::csi::define_snapshots;
use berth_test_support::peers::define_movers;
use berth_test_support::{Berth, ControlPlane, Options, backup, wait_for};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::report::{Aim, Report};
use crate::volumes::{DRIVER, make_claims, play};
use crate::{observer, system};

const NAMESPACE: &str = "velero";
const PART: &str = "100 waiting operations";
const WAITING: usize = 100;
const SLOTS: u16 = 4;
/// Until everything is told that has just happened.
const SETTLED: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(600);

pub fn measure(runtime: &Runtime, program: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    let plane = ControlPlane::start()?;
    plane.define()?;
    define_movers(&plane)?;
    define_snapshots(&plane)?;
    plane.apply(vec![json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "played"}, "driver": DRIVER, "deletionPolicy": "Delete",
    })])?;
    let berth =
        Berth::start(plane, Options { concurrent_backups: SLOTS, ..Options::new(program, NAMESPACE) })?;
    let client = runtime.block_on(berth.plane().client())?;
    let before = runtime.block_on(quiet_minute(&client))?;
    begin(runtime, &berth, &client)?;
    let cpu = system::cpu_seconds(berth.controller.process.id())?;
    let after = runtime.block_on(quiet_minute(&client))?;
    let cpu = system::cpu_seconds(berth.controller.process.id())? - cpu;
    report.add(PART, "calls a minute before", before, "", Aim::None);
    report.add(PART, "calls a minute", after, "", Aim::None);
    report.add(PART, "calls a minute because of them", (after - before).max(0.0), "", Aim::AtMost(10.0));
    // Of the time until it was quiet, too.
    report.add(PART, "CPU of the controller meanwhile", cpu, "s", Aim::None);
    let backups = berth.kubectl().backups(NAMESPACE)?;
    let waiting = backups.values().filter(|one| one.phase() == BackupPhase::WaitingForPluginOperations);
    ensure!(waiting.count() == WAITING, "some do not wait any more");
    Ok(())
}

/// Until all Backups wait, each for the data of one claim.
fn begin(runtime: &Runtime, berth: &Berth, client: &Client) -> anyhow::Result<()> {
    let spaces: Vec<String> = (0..WAITING).map(|i| format!("waits-{i}")).collect();
    let namespace =
        |name: &String| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    berth.plane().apply(spaces.iter().map(namespace).collect())?;
    let driver = runtime.spawn(play(client.clone()));
    for space in &spaces {
        runtime.block_on(make_claims(client, space, 1))?;
    }
    let backups: Vec<Value> = spaces
        .iter()
        .map(|space| backup(space, json!({"includedNamespaces": [space], "snapshotMoveData": true})))
        .collect();
    runtime.block_on(observer::create(client, NAMESPACE, backups))?;
    wait_for("all Backups to wait for their operations", LONGEST, || {
        let backups = berth.kubectl().backups(NAMESPACE)?;
        for (name, one) in &backups {
            ensure!(!one.phase().is_final(), "{name} ended {:?}", one.status);
        }
        let waiting = backups.values().filter(|one| one.phase() == BackupPhase::WaitingForPluginOperations);
        Ok((waiting.count() == WAITING).then_some(()))
    })?;
    driver.abort();
    Ok(())
}

/// How many calls the API server answers in a minute in which nothing happens.
async fn quiet_minute(client: &Client) -> anyhow::Result<f64> {
    tokio::time::sleep(SETTLED).await;
    let before = calls(client).await?;
    tokio::time::sleep(MINUTE).await;
    Ok(calls(client).await? - before)
}

async fn calls(client: &Client) -> anyhow::Result<f64> {
    const LEFT_OUT: [&str; 3] = [",resource=\"\"", ",resource=\"leases\"", "verb=\"WATCH\""];
    observer::requests(client, |line| !LEFT_OUT.iter().any(|words| line.contains(words))).await
}
