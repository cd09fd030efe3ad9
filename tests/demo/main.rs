//! A newcomer's look at berth: a control plane from nothing, five Backups that ask for each other's
//! namespaces, and the order in which they run. `make demo` runs it; KEEP=1 leaves everything up,
//! `make demo-stop` ends that.

mod cluster;
mod kept;
mod order;
mod scene;
mod step;
mod table;

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use berth::watch::{WatchEvent, of_namespace, reflect};
use berth_api::velero::Backup;
use berth_test_support::{Berth, ControlPlane, Options, binaries, peers, project};
use clap::Parser;
use kube::runtime::watcher;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use scene::Scene;
use step::{Steps, blocking, say};
use table::Table;

const NAMESPACE: &str = "velero";
const SLOTS: u16 = 2;
const BACKUPS: &str = "tests/demo/backups.yaml";
const PATIENCE: Duration = Duration::from_secs(300);

/// Five Backups on a real control plane, queued and run.
#[derive(Parser)]
struct Args {
    /// The berth binary to show.
    #[arg(long)]
    berth: PathBuf,
}

fn main() -> ExitCode {
    show(Args::parse().berth).unwrap_or_else(|error| {
        eprintln!("demo: {error:#}");
        ExitCode::FAILURE
    })
}

fn show(program: PathBuf) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = run(program) => done.map(|()| ExitCode::SUCCESS),
            stopped = stop_signal() => {
                let (name, number) = stopped?;
                eprintln!("\ndemo: {name}: ending everything");
                Ok(ExitCode::from(128 + number))
            }
        }
    });
    // A step that was under way in a thread is not waited for: the janitor ends what it started.
    binaries::cancel();
    runtime.shutdown_background();
    done
}

async fn stop_signal() -> anyhow::Result<(&'static str, u8)> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(tokio::select! {
        _ = interrupt.recv() => ("interrupted", 2),
        _ = terminate.recv() => ("asked to end", 15),
    })
}

async fn run(program: PathBuf) -> anyhow::Result<()> {
    let keep = kept::is_wanted();
    if keep {
        kept::ensure_none()?;
    }
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let mut steps = Steps::default();

    let names = ["etcd", "kube-apiserver", "kubectl", "velero-crds"];
    let what = "find the programs (what is missing is built first: some minutes)";
    steps.step(what, blocking(move || binaries::get(names))).await?;
    let plane = steps.step("start etcd and kube-apiserver", blocking(ControlPlane::start)).await?;
    say(format_args!("  {}", plane.url()))?;
    let client = plane.client().await?;
    let define = blocking(move || {
        plane.define()?;
        peers::define_movers(&plane)?;
        anyhow::Ok(plane)
    });
    let plane = steps.step("apply manifests/crd, and Velero's definitions of data movers", define).await?;
    let objects = steps.step("make namespaces ns1 to ns9", cluster::fill(&client)).await?;
    say(format_args!("  {objects} objects"))?;
    let options = Options { concurrent_backups: SLOTS, garden: true, ..Options::new(program, NAMESPACE) };
    let what = "apply the other manifests, start berth webhook and berth controller (--concurrent-backups 2)";
    let mut berth = steps.step(what, blocking(move || Berth::start(plane, options))).await?;

    let (sender, mut changes) = mpsc::unbounded_channel();
    // The receiver is gone once the table is complete.
    let observe = move |change: WatchEvent<Backup>| drop(sender.send((Instant::now(), change)));
    let backups = of_namespace(&client, NAMESPACE);
    let watch = reflect(backups, watcher::Config::default(), |backup: Backup| backup, observe);
    let watch = tokio::spawn(watch);
    changes.recv().await.context("the watch of Backups ended")?;

    let what = "create five Backups";
    steps.step(what, create(&berth)).await?;
    say("")?;
    let what = "run them";
    let scene = steps.step(what, follow(&mut berth, &mut changes)).await?;
    watch.abort();
    say("")?;
    scene.ensure_completed()?;
    say(order::check(scene.happened())?)?;

    say(format_args!(
        "\nArchives{}:",
        if keep { "" } else { ", gone when this ends (KEEP=1 leaves everything up)" }
    ))?;
    for name in scene.names() {
        let archive = berth.archive(name);
        let size = archive.metadata().with_context(|| format!("no archive {}", archive.display()))?.len();
        say(format_args!("{:>10}  {}", human(size), archive.display()))?;
    }
    let (kubeconfig, archives) = (berth.plane().kubeconfig(), berth.archives());
    if keep {
        berth.leave_running(kept::save)?;
    } else {
        let end = move || {
            drop(berth);
            Ok(())
        };
        steps.step("end everything", blocking(end)).await?;
    }
    say("")?;
    steps.show()?;
    if keep {
        say("\nAll of it is still up; `make demo-stop` ends it.")?;
        say(format_args!("KUBECONFIG={}", kubeconfig.display()))?;
        say(format_args!("ARCHIVES={}", archives.display()))?;
    }
    Ok(())
}

/// One plain `kubectl create`, its answer as a person sees it.
async fn create(berth: &Berth) -> anyhow::Result<()> {
    say(format_args!("$ kubectl create -f {BACKUPS}"))?;
    let mut command = berth.kubectl().command(&["create", "-f", BACKUPS]);
    // One stream, so that each warning stands where kubectl said it.
    let stdout = std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned()?;
    command.current_dir(project()).stdin(Stdio::null()).stderr(stdout);
    let status = blocking(move || Ok(command.status()?)).await?;
    ensure!(status.success(), "kubectl create failed ({status})");
    Ok(())
}

/// Shows what happens until all have ended.
async fn follow(
    berth: &mut Berth,
    changes: &mut mpsc::UnboundedReceiver<(Instant, WatchEvent<Backup>)>,
) -> anyhow::Result<Scene> {
    let mut scene = Scene::new(usize::from(SLOTS));
    let mut table = Table::new();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let started = Instant::now();
    loop {
        tokio::select! {
            biased;
            change = changes.recv() => {
                let (at, change) = change.context("the watch of Backups ended")?;
                scene.observe(at, change);
            }
            _ = tick.tick() => berth.ensure_runs()?,
        }
        table.show(&scene.rows(Instant::now()))?;
        if scene.is_over() && changes.is_empty() {
            return Ok(scene);
        }
        if started.elapsed() > PATIENCE {
            bail!(
                "not all have ended after {PATIENCE:?}. The controller's last lines:\n{}",
                last_lines(berth)
            );
        }
    }
}

fn last_lines(berth: &Berth) -> String {
    berth_test_support::log::tail(berth.controller.process.log(), 20)
}

fn human(bytes: u64) -> String {
    match bytes {
        0..=999 => format!("{bytes} B"),
        1_000..=999_999 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
