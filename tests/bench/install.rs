//! From a control plane without berth to the first Backup that has its place, and from a webhook's
//! start to its first answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::velero::Backup;
use berth_test_support::pods::Cluster;
use berth_test_support::{Berth, ControlPlane, Options, backup, wait_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::report::{Aim, Report, median};
use crate::system;

const NAMESPACE: &str = "velero";
const ROUNDS: usize = 3;
const STARTS: usize = 7;
const BACKUPS: usize = 1_000;
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Installation:");
    install(berth, report)?;
    start(runtime, berth, report)
}

fn install(berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    let image = concat!("berth:", env!("CARGO_PKG_VERSION")).to_owned();
    let cluster = Cluster::start(BTreeMap::from([(image, berth.to_owned())]))?;
    let run = |command: &str| {
        let output = Command::new(berth)
            .arg(command)
            .arg("--kubeconfig")
            .arg(cluster.plane().kubeconfig())
            .output()?;
        ensure!(output.status.success(), "berth {command}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let (mut installed, mut queued) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let begun = Instant::now();
        run("install")?;
        installed.push(begun.elapsed().as_secs_f64());
        // Where it is to go: without that no Backup is taken.
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": {"provider": "aws", "default": true, "objectStorage": {"bucket": "b"}},
        });
        let mut held = backup(&format!("first-{round}"), json!({}));
        held["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
        cluster.kubectl().run_with(&["create", "-f", "-"], &location.to_string())?;
        let name = held["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let args = ["create", "-n", NAMESPACE, "-o", "json", "-f", "-"];
        wait_for("the first Backup to be taken", PATIENCE, || {
            let answer = cluster.kubectl().answer(&args, &held.to_string())?;
            let created: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
            ensure!(!answer.status.success() || created["status"]["phase"] == "Queued", "{created}");
            Ok(answer.status.success().then_some(()))
        })
        .with_context(|| name)?;
        queued.push(begun.elapsed().as_secs_f64());
        cluster.kubectl().run(&["delete", "backups.velero.io,bsl", "--all", "-n", NAMESPACE])?;
        run("uninstall")?;
        wait_for("the namespace to go", PATIENCE, || {
            let found = cluster.kubectl().run(&["get", "namespace", NAMESPACE, "--ignore-not-found"])?;
            Ok(found.is_empty().then_some(()))
        })?;
    }
    report.add("install", "berth install", median(&installed), "s", Aim::None);
    report.add("install", "to the first queued Backup", median(&queued), "s", Aim::AtMost(5.0));
    Ok(())
}

fn start(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut options = Options::new(berth, NAMESPACE);
    // As manifests/manager/webhook.yaml has it.
    options.env.push(("MIMALLOC_ARENA_EAGER_COMMIT".to_owned(), "0".to_owned()));
    let berth = Berth::start(ControlPlane::start()?, options)?;
    runtime.block_on(async {
        let api: Api<Backup> = Api::namespaced(berth.plane().client().await?, NAMESPACE);
        let create = async |number: usize| {
            let mut held = backup(&format!("held-{number}"), json!({"includedNamespaces": ["default"]}));
            held["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
            let held: Backup = serde_json::from_value(held)?;
            api.create(&PostParams::default(), &held).await?;
            anyhow::Ok(())
        };
        stream::iter(0..BACKUPS).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await
    })?;
    let (mut starts, mut peaks, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..STARTS {
        let name = format!("webhook-{number}");
        // Its token and its kubeconfig are made before the clock runs, as the kubelet does.
        let (server, _) = berth.start_another_webhook(&name)?;
        let started = server.process.started();
        wait_for("the webhook to be ready", PATIENCE, || Ok(server.is_ready().then_some(())))?;
        starts.push(started.elapsed().as_secs_f64() * 1_000.0);
        peaks.push(system::peak_mib(server.process.id())?);
        resident.push(system::resident_mib(server.process.id())?);
    }
    let part = format!("start, {BACKUPS} Backups");
    report.add(&part, "webhook to ready", median(&starts), "ms", Aim::AtMost(300.0));
    report.add(&part, "webhook's resident memory", median(&resident), "MiB", Aim::AtMost(40.0));
    report.add(&part, "webhook's peak memory", median(&peaks), "MiB", Aim::None);
    let controller = system::peak_mib(berth.controller.process.id())?;
    report.add(&part, "controller's peak memory", controller, "MiB", Aim::None);
    Ok(())
}
