//! Speeds and memory, measured here and now, with stock Velero beside berth on the same machine in
//! the same run. `make bench` runs it. Prints a table and writes `target/bench/results.json`.

mod admission;
mod backed_up;
mod burst;
mod cli;
mod client;
mod contents;
mod engine;
mod file_backups;
mod garden;
mod garden_deletion;
mod hooks;
mod hostile;
mod install;
mod installed;
mod largest;
mod lifecycle;
mod limits;
mod load;
mod movers;
mod observer;
mod planner;
mod pod_volumes;
mod queue;
mod report;
mod resume;
mod stock;
mod system;
mod uploads;
mod volumes;
mod waiting;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use berth_test_support::project;
use clap::{Parser, ValueEnum};

use load::Cargo;
use report::Report;

/// berth's own, for what is measured inside this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Speeds and memory of berth, side by side with stock Velero.
#[derive(Parser)]
struct Args {
    /// The berth binary to measure. Build it with --release.
    #[arg(long)]
    berth: PathBuf,
    /// Only this part. May be given more than once.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// How many ConfigMaps and Secrets the engine backs up, one run per size.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 50_000])]
    sizes: Vec<usize>,
    /// How many the engine backs up alone, its memory beside that for a third of them.
    #[arg(long, default_value_t = 300_000)]
    large: usize,
    /// How many it backs up in two runs, of which the first one is killed.
    #[arg(long, default_value_t = 300_000)]
    resumed: usize,
    /// How many Backups the queue holds, one pair of runs per size.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    queues: Vec<usize>,
    /// How many backups the store holds whose life is measured.
    #[arg(long, default_value_t = 5_000)]
    stored: usize,
    /// How many of them are deleted.
    #[arg(long, default_value_t = 200)]
    deleted: usize,
    /// How many Schedules are due in one minute.
    #[arg(long, default_value_t = 1_000)]
    schedules: usize,
    /// How many MiB in large files a volume holds that a node agent reads. The aims are for 10240.
    #[arg(long, default_value_t = 2_048)]
    volume_mib: usize,
    /// How many small files another one holds. The aims are for 200000, that of memory for 1000000.
    #[arg(long, default_value_t = 50_000)]
    volume_files: usize,
    /// Leave stock Velero out, because it takes most of the time.
    #[arg(long)]
    alone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Planner,
    Limits,
    Webhook,
    Admission,
    Largest,
    Hostile,
    Engine,
    Namespaces,
    Types,
    Pods,
    Growth,
    Resume,
    Hooks,
    Volumes,
    Queue,
    Burst,
    Install,
    Movers,
    Uploads,
    Waiting,
    FileBackups,
    PodVolumes,
    Garden,
    GardenDeletion,
    Cli,
    Lifecycle,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        berth,
        only,
        sizes,
        large,
        resumed,
        queues,
        stored,
        deleted,
        schedules,
        volume_mib,
        volume_files,
        alone,
    } = args;
    let berth = berth.canonicalize().with_context(|| format!("there is no {}", berth.display()))?;
    ensure!(sizes.iter().all(|size| *size >= 100), "--sizes: at least 100 objects each");
    ensure!(large >= 300, "--large: at least 300 objects");
    ensure!(resumed >= 1_000, "--resumed: at least 1,000 objects");
    ensure!(volume_mib > 0 && volume_files >= 100, "--volume-mib, --volume-files: too small");
    ensure!(stored > deleted && deleted > 0, "--stored: more than --deleted");
    let wants = |part| only.is_empty() || only.contains(&part);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::default();
    if wants(Part::Planner) {
        planner::measure(&mut report)?;
    }
    if wants(Part::Limits) {
        limits::measure(&mut report)?;
    }
    if wants(Part::Webhook) {
        webhook::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Admission) {
        admission::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Largest) {
        largest::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Hostile) {
        hostile::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Engine) {
        for cargo in sizes.into_iter().map(Cargo::Objects) {
            engine::measure(&runtime, &berth, cargo, alone, &mut report)?;
        }
    }
    let kinds =
        [(Part::Namespaces, Cargo::Namespaces), (Part::Types, Cargo::Types), (Part::Pods, Cargo::Pods)];
    for (_, cargo) in kinds.into_iter().filter(|(part, _)| wants(*part)) {
        engine::measure(&runtime, &berth, cargo, alone, &mut report)?;
    }
    if wants(Part::Growth) {
        engine::measure_growth(&runtime, &berth, large, &mut report)?;
    }
    if wants(Part::Resume) {
        resume::measure(&runtime, &berth, resumed, &mut report)?;
    }
    if wants(Part::Hooks) {
        hooks::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Volumes) {
        volumes::measure(&runtime, &berth, alone, &mut report)?;
    }
    if wants(Part::Queue) {
        queue::measure(&runtime, &berth, &queues, &mut report)?;
    }
    if wants(Part::Burst) {
        burst::measure(&runtime, &berth, alone, &mut report)?;
    }
    if wants(Part::Install) {
        install::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Movers) {
        movers::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Uploads) {
        uploads::measure(&berth, alone, &mut report)?;
    }
    if wants(Part::Waiting) {
        waiting::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::FileBackups) {
        file_backups::measure(&runtime, &berth, alone, &mut report)?;
    }
    if wants(Part::PodVolumes) {
        let sizes = pod_volumes::Sizes { mib: volume_mib, files: volume_files };
        pod_volumes::measure(&berth, &sizes, &mut report)?;
    }
    if wants(Part::Garden) {
        garden::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::GardenDeletion) {
        garden_deletion::measure(&runtime, &berth, &mut report)?;
    }
    if wants(Part::Cli) {
        cli::measure(&runtime, &berth, alone, &mut report)?;
        contents::measure(&runtime, &berth, alone, &mut report)?;
    }
    if wants(Part::Lifecycle) {
        let sizes = lifecycle::Sizes { stored, deleted, schedules };
        lifecycle::measure(&runtime, &berth, sizes, alone, &mut report)?;
    }
    report.show();
    report.write(&project().join("target/bench/results.json"))
}
