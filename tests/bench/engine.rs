//! The engine: how fast and in how much memory, beside a bare list and stock Velero on the same
//! objects.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_test_support::peers::S3;
use berth_test_support::process::in_own_session;
use berth_test_support::{Berth, ControlPlane, Options, Process, manifest, port, wait_for};
use kube::Client;
use object_store::ObjectStoreExt as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::backed_up::{self, BackedUp};
use crate::load::Cargo;
use crate::report::{Aim, Report, median};
use crate::stock;
use crate::system;

pub const NAMESPACE: &str = "velero";
pub const LOCATION: &str = "away";
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

/// A control plane with objects to back up, a bucket, and no program yet that runs backups.
pub struct Site {
    pub berth: Berth,
    pub s3: S3,
    pub client: Client,
}

impl Site {
    pub fn start(runtime: &Runtime, program: &Path, cargo: Cargo) -> anyhow::Result<Self> {
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
        cargo.fill(runtime, berth.plane(), &client)?;
        eprintln!("  created in {:.0} s", filling.elapsed().as_secs_f64());
        Ok(Self { berth, s3, client })
    }

    /// Some runs of one controller, and bare lists between them.
    fn run(
        &self,
        runtime: &Runtime,
        program: &Path,
        cargo: Cargo,
        workers: u16,
        name: &str,
    ) -> anyhow::Result<Runs> {
        let arguments = [format!("--item-block-worker-count={workers}")];
        let controller = Controller::start(&self.berth, program, name, &arguments)?;
        let (mut lists, mut runs, included) = (Vec::new(), Vec::new(), cargo.included());
        for run in 0..RUNS {
            lists.push(runtime.block_on(cargo.list(&self.client))?.as_secs_f64());
            let name = format!("{name}-run-{run}");
            let run = back_up(&self.client, &self.s3, NAMESPACE, LOCATION, &name, &included);
            let done = runtime.block_on(run);
            runs.push(done.with_context(|| format!("see {}", controller.0.log().display()))?);
        }
        let peak_mib = system::peak_mib(controller.0.id())?;
        let seconds = median(&runs.iter().map(|done| done.seconds).collect::<Vec<_>>());
        let last = runs.last().copied().context("no runs")?;
        Ok(Runs { done: Done { seconds, ..last }, peak_mib, lists })
    }
}

struct Runs {
    done: Done,
    peak_mib: f64,
    /// Seconds of each bare list.
    lists: Vec<f64>,
}

/// What is aimed at: times a bare list, and times stock Velero's rate.
fn aims(cargo: Cargo) -> (Aim, Aim) {
    match cargo {
        Cargo::Objects(size) => (Aim::AtMost(1.25), Aim::AtLeast(if size > 20_000 { 20.0 } else { 25.0 })),
        // What they cost is requests.
        Cargo::Namespaces | Cargo::Types | Cargo::Pods => (Aim::None, Aim::AtLeast(20.0)),
    }
}

pub fn measure(
    runtime: &Runtime,
    program: &Path,
    cargo: Cargo,
    alone: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let part = format!("engine, {}", cargo.text());
    eprintln!("The {part}:");
    if !alone {
        stock::find()?;
    }
    let site = Site::start(runtime, program, cargo)?;
    let mut lists = Vec::new();
    let mut best: Vec<(u16, Runs)> = Vec::new();
    for workers in WORKERS {
        let runs = site.run(runtime, program, cargo, workers, &format!("workers-{workers}"))?;
        lists.extend_from_slice(&runs.lists);
        best.push((workers, runs));
    }
    let list = median(&lists);
    report.add(&part, "bare list, JSON, 500 a page", list, "s", Aim::None);
    let stock = if alone {
        None
    } else {
        Some(stock::run(runtime, site.berth.plane(), &site.client, &site.s3, &cargo.included())?)
    };
    if let Some(stock) = &stock {
        report.add(&part, "stock Velero: wall", stock.done.seconds, "s", Aim::None);
        report.add(&part, "stock Velero: rate", stock.done.rate(), "items/s", Aim::None);
        report.add(&part, "stock Velero: peak memory", stock.peak_mib, "MiB", Aim::None);
        report.add(&part, "stock Velero: archive", stock.done.archive / 1e6, "MB", Aim::None);
    }
    let (to_list, to_stock) = aims(cargo);
    for (workers, Runs { done, peak_mib, .. }) in best {
        let says = |what: &str| format!("berth, workers {workers}: {what}");
        report.add(&part, &says("wall"), done.seconds, "s", Aim::None);
        report.add(&part, &says("rate"), done.rate(), "items/s", Aim::None);
        report.add(&part, &says("wall to bare list"), done.seconds / list, "×", to_list);
        let most = if cargo == Cargo::Pods { 160.0 } else { 128.0 };
        report.add(&part, &says("peak memory"), peak_mib, "MiB", Aim::AtMost(most));
        report.add(&part, &says("archive"), done.archive / 1e6, "MB", Aim::None);
        if let Some(stock) = &stock {
            ensure!(
                done.items == stock.done.items,
                "{} items, and stock Velero {}",
                done.items,
                stock.done.items
            );
            let faster = done.rate() / stock.done.rate();
            report.add(&part, &says("rate to stock Velero's"), faster, "×", to_stock);
            let larger = 100.0 * (done.archive / stock.done.archive - 1.0);
            report.add(&part, &says("archive to stock Velero's"), larger, "% more", Aim::AtMost(2.0));
        }
    }
    Ok(())
}

/// How much memory more objects take: a backup of so many, and one of a third of them.
pub fn measure_growth(
    runtime: &Runtime,
    program: &Path,
    objects: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (third, cargo) = (Cargo::Objects(objects / 3), Cargo::Objects(objects));
    let part = format!("engine alone, {}", cargo.text());
    eprintln!("The {part}:");
    let site = Site::start(runtime, program, third)?;
    let few = site.run(runtime, program, third, 1, "few")?;
    third.fill_up(runtime, &site.client, objects)?;
    let many = site.run(runtime, program, cargo, 1, "many")?;
    let list = median(&many.lists);
    report.add(&part, "bare list, JSON, 500 a page", list, "s", Aim::None);
    report.add(&part, "wall", many.done.seconds, "s", Aim::None);
    report.add(&part, "rate", many.done.rate(), "items/s", Aim::None);
    report.add(&part, "wall to bare list", many.done.seconds / list, "×", Aim::AtMost(2.5));
    report.add(&part, "peak memory", many.peak_mib, "MiB", Aim::AtMost(100.0));
    let growth = many.peak_mib - few.peak_mib;
    report.add(
        &part,
        &format!("peak memory beyond that of {}", third.text()),
        growth,
        "MiB",
        Aim::AtMost(5.0),
    );
    Ok(())
}

/// Creates a Backup of these namespaces, and waits for it through a watch. `prefix` of the location
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
    included: &[String],
) -> anyhow::Result<Done> {
    let started = Instant::now();
    create(client, namespace, location, name, included).await?;
    await_end(client, s3, namespace, name, started).await
}

/// Creates a Backup of these namespaces.
///
/// # Errors
/// When the API server refuses it.
pub async fn create(
    client: &Client,
    namespace: &str,
    location: &str,
    name: &str,
    included: &[String],
) -> anyhow::Result<()> {
    let spec = json!({
        "includedNamespaces": included,
        "storageLocation": location,
        "snapshotVolumes": false,
        "ttl": "24h",
    });
    backed_up::create(client, namespace, name, spec).await
}

/// Waits for a Backup through a watch.
///
/// # Errors
/// When it does not end Completed.
pub async fn await_end(
    client: &Client,
    s3: &S3,
    namespace: &str,
    name: &str,
    started: Instant,
) -> anyhow::Result<Done> {
    let BackedUp { seconds, status } =
        backed_up::await_end(client, namespace, name, started, LONGEST).await?;
    let items = status.progress.and_then(|progress| progress.items_backed_up).context("no progress")?;
    let prefix = if namespace == NAMESPACE { "berth" } else { namespace };
    let archive = format!("{prefix}/backups/{name}/{name}.tar.gz");
    let archive = s3.store()?.head(&archive.into()).await?.size as f64;
    Ok(Done { seconds, items: f64::from(i32::try_from(items)?), archive })
}

/// `berth controller`, fresh.
pub struct Controller(pub Process);

impl Controller {
    /// Returns once it has found the location Available. `name`: of its log.
    pub fn start(berth: &Berth, program: &Path, name: &str, arguments: &[String]) -> anyhow::Result<Self> {
        let plane = berth.plane();
        let mut command = in_own_session(program);
        command.args(["controller", "--namespace", NAMESPACE, "--kubeconfig"]);
        command.arg(plane.service_account_kubeconfig(NAMESPACE, "berth-controller")?);
        command.arg(format!("--health-address={}:{}", Ipv4Addr::LOCALHOST, port::free()?));
        command.args(arguments);
        // As manifests/manager/controller.yaml has it.
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        command.arg(format!("--webhook-configuration={}", manifest::suffixed("berth", NAMESPACE)));
        command.args(["--webhook-name=127.0.0.1", "--lease-duration=3s"]);
        let log = plane.folder().join(format!("controller-{name}.log"));
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
