//! The commands. They only wire subsystems together, each started by one call.

mod backup;
mod certificates;
mod check;
mod controller;
mod garden;
mod install;
mod location;
mod names;
mod namespaced;
mod node_agent;
mod person;
mod queue;
mod schedule;
mod uninstall;
mod version;
mod webhook;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use crate::args::backup::BackupCommand;
use crate::args::garden::GardenCommand;
use crate::args::location::LocationCommand;
use crate::args::schedule::ScheduleCommand;
use crate::args::{Args, Command, Definitions, MOST_CONCURRENT_BACKUPS, ReportArgs};
use crate::cli::print::{stdout, unless_closed};
use crate::{reference, telemetry};

/// # Errors
/// Why a command cannot do its work; the message says what to change.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let done = match args.command {
        Command::Crd { of, write } => crd(of, write),
        Command::Reference { write } => reference::write(&write),
        Command::Man { write } => reference::man::write(&write),
        Command::Krew => shown(&reference::krew::manifest()),
        Command::Help { words } => match crate::cli::topics::help(&words) {
            Ok(text) => return written(shown(&text).map(|()| ExitCode::SUCCESS)),
            Err(error) => Err(anyhow::anyhow!(error)),
        },
        Command::Webhook(args) => serve(&args.common.reports.clone(), webhook::run(*args)),
        Command::Backup(args) => {
            let runtime = runtime(matches!(args.command, BackupCommand::Get(_)))?;
            return written(runtime.block_on(backup::run(args)));
        }
        Command::Schedule(args) => {
            let runtime = runtime(matches!(args.command, ScheduleCommand::Get(_)))?;
            let done = runtime.block_on(schedule::run(args));
            return written(done.map(|()| ExitCode::SUCCESS));
        }
        Command::BackupLocation(args) => {
            let runtime = runtime(matches!(args.command, LocationCommand::Get(_)))?;
            let done = runtime.block_on(location::run(args));
            return written(done.map(|()| ExitCode::SUCCESS));
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            crate::cli::completion::write(shell, &mut script)?;
            let printed = stdout().write_all(&script).context("the script cannot be printed");
            return written(printed.map(|()| ExitCode::SUCCESS));
        }
        Command::CompleteNames { words } => {
            let names: String = names::of(&words).into_iter().map(|name| name + "\n").collect();
            // Nobody may read any more.
            let _ = stdout().write_all(names.as_bytes());
            Ok(())
        }
        Command::CompleteWords { words } => {
            let found = crate::cli::kubectl::candidates(&words);
            let text = found.text(&names::asked(found.request.clone()));
            let _ = stdout().write_all(text.as_bytes());
            Ok(())
        }
        Command::Version(args) => Runtime::new()?.block_on(version::run(args)),
        Command::Install(args) => Runtime::new()?.block_on(install::run(*args)),
        Command::Uninstall(args) => Runtime::new()?.block_on(uninstall::run(args)),
        Command::Check(args) => return Ok(Runtime::new()?.block_on(check::run(args))),
        Command::Certificates(args) => Runtime::new()?.block_on(certificates::run(args)),
        Command::NodeAgent(args) => match args.command {
            Some(command) => {
                return Ok(Runtime::new()?.block_on(node_agent::run(args.target, command)));
            }
            None => serve(&args.server.reports.clone(), node_agent::serve(args.target, args.server)),
        },
        Command::Queue(args) => Runtime::new()?.block_on(queue::run(args)),
        Command::Controller(args) => serve(&args.common.reports.clone(), controller::run(*args)),
        Command::Garden(args) => match args.command {
            GardenCommand::Agent(args) => serve(&args.reports.clone(), garden::agent::run(*args)),
            GardenCommand::Buckets(args) => Runtime::new()?.block_on(garden::list::buckets(args)),
            GardenCommand::Entries(args) => Runtime::new()?.block_on(garden::list::entries(args)),
            GardenCommand::Plan(args) => garden::plan::run(&args),
            GardenCommand::Migrate(args) => Runtime::new()?.block_on(garden::migrate::run(args)),
        },
    };
    written(done.map(|()| ExitCode::SUCCESS))
}

/// For a command of a person. One that only lists has one thread, because an answer comes in
/// hundreds of pieces, and each of them would wake another thread. The others may stand at a
/// question while a connection has to be looked after.
fn runtime(only_lists: bool) -> std::io::Result<Runtime> {
    let mut builder = if only_lists { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build()
}

/// The exit code of an error: 2 where the command line itself is wrong, as where its flags cannot
/// be read.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<person::WrongFlags>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn shown(text: &str) -> anyhow::Result<()> {
    Ok(stdout().write_all(text.as_bytes())?)
}

fn written(done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    unless_closed(done, ExitCode::SUCCESS)
}

/// Blocking threads of the runtime: one for each archive worker of as many runs as the flags allow,
/// because a worker keeps its thread for the whole run, and as many as tokio has by itself, for
/// files, DNS and what else is short. Threads are started on demand.
const BLOCKING: usize = MOST_CONCURRENT_BACKUPS as usize * controller::PACKERS + 512;

fn serve(reports: &ReportArgs, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    telemetry::init(reports.log_format, &reports.log_level)?;
    let runtime = Builder::new_multi_thread().enable_all().max_blocking_threads(BLOCKING).build()?;
    let result = runtime.block_on(command);
    // Not waited for, because blocking workers of an abandoned run end by themselves.
    runtime.shutdown_background();
    result
}

fn crd(of: Definitions, write: Option<PathBuf>) -> anyhow::Result<()> {
    let definitions = match of {
        Definitions::Velero => berth_api::crd::velero(),
        Definitions::PodVolumes => berth_api::crd::pod_volumes(),
        Definitions::Garden => berth_garden_api::crd::hub(),
        Definitions::GardenMember => berth_garden_api::crd::member(),
    };
    for (name, text) in berth_api::crd::files(&definitions)? {
        match &write {
            None => shown(&format!("---\n{text}\n"))?,
            Some(folder) => {
                std::fs::create_dir_all(folder).with_context(|| format!("--write {}", folder.display()))?;
                let path = folder.join(name);
                std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// Otherwise their archive workers would leave no thread for the files that they wait for.
    #[test]
    fn no_more_backups_may_run_at_a_time_than_the_runtime_has_threads_for() {
        let most = u32::from(MOST_CONCURRENT_BACKUPS);
        for command in ["controller", "webhook", "install"] {
            for (backups, is_taken) in [(most, true), (most + 1, false)] {
                let flag = format!("--concurrent-backups={backups}");
                let taken = Args::try_parse_from(["berth", command, flag.as_str()]).is_ok();
                assert_eq!(taken, is_taken, "{command} {flag}");
            }
        }
    }
}
