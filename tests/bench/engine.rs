//! The engine: how fast and in how much memory, beside a bare list and stock Velero on the same objects.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::velero::{Backup, BackupPhase};
use berth_test_support::peers::S3;
use berth_test_support::process::in_own_session;
use berth_test_support::{Berth, ControlPlane, Options, Process, manifest, port, wait_for};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use object_store::ObjectStoreExt as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::load;
use crate::report::{Aim, Report, median};
use crate::stock;
use crate::system;

const NAMESPACE: &str = "velero";
const LOCATION: &str = "away";
const RUNS: usize = 3;
const WORKERS: [u16; 2] = [1, 2];
const PATIENCE: Duration = Duration::from_secs(60);
/// Of stock Velero, on a slow machine.
const LONGEST: Duration = Duration::from_secs(1800);

/// A backup that ended well.
#[derive(Clone, Copy)]
pub struct Done {
    pub seconds: f64,
    pub items: f64,
    pub archive: f64,
}

impl Done {
    fn rate(self) -> f64 {
        self.items / self.seconds
    }
}

pub fn measure(
    runtime: &Runtime,
    program: &Path,
    size: usize,
    alone: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("The engine, {size} ConfigMaps and Secrets:");
    if !alone {
        stock::find()?;
    }
    let part = format!("engine, {size} objects");
    let mut berth = Berth::start(ControlPlane::start()?, Options::new(program, NAMESPACE))?;
    let s3 = S3::start(berth.plane(), "bench")?;
    let answer = berth
        .kubectl()
        .create(NAMESPACE, &[s3.keys.secret_object(NAMESPACE), s3.location(LOCATION, "berth")])?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    // Each measurement has a controller of its own, so that peaks of memory are its own too.
    berth.controller.process.kill()?;
    let client = runtime.block_on(berth.plane().client())?;
    let filling = Instant::now();
    runtime.block_on(load::fill(&client, size))?;
    eprintln!("  created in {:.0} s", filling.elapsed().as_secs_f64());

    let mut lists = Vec::new();
    let mut best: Vec<(u16, Done, f64)> = Vec::new();
    for workers in WORKERS {
        let controller = Controller::start(&berth, program, workers)?;
        let mut runs = Vec::new();
        for run in 0..RUNS {
            lists.push(runtime.block_on(load::list(&client))?.as_secs_f64());
            let name = format!("workers-{workers}-run-{run}");
            let done = runtime.block_on(back_up(&client, &s3, NAMESPACE, LOCATION, &name));
            runs.push(done.with_context(|| format!("see {}", controller.0.log().display()))?);
        }
        let peak = system::peak_mib(controller.0.id())?;
        let seconds = median(&runs.iter().map(|done| done.seconds).collect::<Vec<_>>());
        let last = runs.last().copied().context("no runs")?;
        best.push((workers, Done { seconds, ..last }, peak));
    }
    let list = median(&lists);
    report.add(&part, "bare list, JSON, 500 a page", list, "s", Aim::None);
    let stock = if alone { None } else { Some(stock::run(runtime, berth.plane(), &client, &s3)?) };
    if let Some(stock) = &stock {
        report.add(&part, "stock Velero: wall", stock.done.seconds, "s", Aim::None);
        report.add(&part, "stock Velero: rate", stock.done.rate(), "items/s", Aim::None);
        report.add(&part, "stock Velero: peak memory", stock.peak_mib, "MiB", Aim::None);
        report.add(&part, "stock Velero: archive", stock.done.archive / 1e6, "MB", Aim::None);
    }
    for (workers, done, peak) in best {
        let says = |what: &str| format!("berth, workers {workers}: {what}");
        report.add(&part, &says("wall"), done.seconds, "s", Aim::None);
        report.add(&part, &says("rate"), done.rate(), "items/s", Aim::None);
        report.add(&part, &says("wall to bare list"), done.seconds / list, "×", Aim::AtMost(2.5));
        report.add(&part, &says("peak memory"), peak, "MiB", Aim::AtMost(128.0));
        report.add(&part, &says("archive"), done.archive / 1e6, "MB", Aim::None);
        if let Some(stock) = &stock {
            ensure!(
                done.items == stock.done.items,
                "{} items, and stock Velero {}",
                done.items,
                stock.done.items
            );
            let aim = if size > 20_000 { 20.0 } else { 30.0 };
            let faster = done.rate() / stock.done.rate();
            report.add(&part, &says("rate to stock Velero's"), faster, "×", Aim::AtLeast(aim));
            let larger = 100.0 * (done.archive / stock.done.archive - 1.0);
            report.add(&part, &says("archive to stock Velero's"), larger, "% more", Aim::AtMost(2.0));
        }
    }
    Ok(())
}

/// Creates a Backup of all that [`load::fill`] made, and waits for it through a watch. `prefix` of the location
/// is the namespace's for stock Velero and `berth` for berth.
///
/// # Errors
/// When it does not end Completed.
pub async fn back_up(
    client: &Client,
    s3: &S3,
    namespace: &str,
    location: &str,
    name: &str,
) -> anyhow::Result<Done> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let backup: Backup = serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": name},
        "spec": {
            "includedNamespaces": [format!("{}*", load::PREFIX)],
            "storageLocation": location,
            "snapshotVolumes": false,
            "ttl": "24h",
        },
    }))?;
    let started = Instant::now();
    api.create(&PostParams::default(), &backup).await?;
    let is_final = |backup: Option<&Backup>| backup.is_some_and(|backup| backup.phase().is_final());
    let ended = tokio::time::timeout(LONGEST, await_condition(api, name, is_final)).await;
    let seconds = started.elapsed().as_secs_f64();
    let status = ended.context("the backup takes too long")??.and_then(|backup| backup.status);
    let status = status.context("the Backup is gone")?;
    ensure!(status.phase == Some(BackupPhase::Completed), "{name} ended {status:?}");
    let items = status.progress.and_then(|progress| progress.items_backed_up).context("no progress")?;
    let prefix = if namespace == NAMESPACE { "berth" } else { namespace };
    let archive = format!("{prefix}/backups/{name}/{name}.tar.gz");
    let archive = s3.store()?.head(&archive.into()).await?.size as f64;
    Ok(Done { seconds, items: f64::from(i32::try_from(items)?), archive })
}

/// `berth controller`, fresh.
struct Controller(Process);

impl Controller {
    /// Returns once it has found the location Available.
    fn start(berth: &Berth, program: &Path, workers: u16) -> anyhow::Result<Self> {
        let plane = berth.plane();
        let mut command = in_own_session(program);
        command.args(["controller", "--namespace", NAMESPACE, "--kubeconfig"]);
        command.arg(plane.service_account_kubeconfig(NAMESPACE, "berth-controller")?);
        command.arg(format!("--health-address={}:{}", Ipv4Addr::LOCALHOST, port::free()?));
        command.arg(format!("--item-block-worker-count={workers}"));
        command.arg(format!("--webhook-configuration={}", manifest::suffixed("berth", NAMESPACE)));
        command.args(["--webhook-name=127.0.0.1", "--lease-duration=3s"]);
        let log = plane.folder().join(format!("controller-{workers}.log"));
        let mut process = Process::start("berth controller", command, &log)?;
        wait_for("a controller that leads", PATIENCE, || {
            process.ensure_runs()?;
            Ok(process.log_text()?.contains("leading").then_some(()))
        })?;
        wait_for("the location to be Available", PATIENCE, || {
            process.ensure_runs()?;
            let args = ["get", "backupstoragelocations", LOCATION, "-n", NAMESPACE, "-o", "json"];
            let location: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
            Ok((location["status"]["phase"] == "Available").then_some(()))
        })?;
        Ok(Self(process))
    }
}
