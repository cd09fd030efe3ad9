//! `berth backup`: create, list, describe, read and delete Backups.

mod artifacts;
mod create;
mod delete;
mod describe;
mod logs;
mod plan;
mod wait;

pub use create::places;

use std::process::ExitCode;

use berth_api::velero::Backup;
use jiff::Timestamp;
use kube::api::DynamicObject;

use super::person::{Person, print_list, typed};
use crate::args::backup::{BackupArgs, BackupCommand, GetArgs};
use crate::args::listed::ListOutput;
use crate::cli::table;

pub async fn run(args: BackupArgs) -> anyhow::Result<ExitCode> {
    let person = Person::new(args.target)?.coloured(&args.colours);
    let done = match args.command {
        BackupCommand::Create(args) => create::run(&person, &args).await,
        BackupCommand::Delete(args) => delete::run(&person, &args).await.map(success),
        BackupCommand::Describe(args) => describe::run(&person, &args).await.map(success),
        BackupCommand::Download(args) => artifacts::download(&person, &args).await.map(success),
        BackupCommand::Get(args) => get(&person, &args).await.map(success),
        BackupCommand::Logs(args) => logs::run(&person, &args).await,
        BackupCommand::Contents(args) => artifacts::contents(&person, &args).await.map(success),
        BackupCommand::Diff(args) => artifacts::diff(&person, &args).await.map(success),
    };
    match done {
        Ok(done) => Ok(done),
        Err(error) => Err(person.explained(error).await),
    }
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

async fn get(person: &Person, args: &GetArgs) -> anyhow::Result<()> {
    let is_table = matches!(args.output.output, ListOutput::Table | ListOutput::Wide);
    if is_table && args.names.is_empty() {
        let mut backups = person.list_typed::<Backup>(args.selector.as_deref()).await?;
        table::sort_backups(&mut backups);
        return print_list(&[], "Backup", args, |more| table::backups(&backups, more, Timestamp::now()));
    }
    let objects = person.chosen::<Backup>(&args.names, args.selector.as_deref()).await?;
    print_list(&objects, "Backup", args, |more| table::backups(&sorted(&objects), more, Timestamp::now()))
}

/// Backups in the order in which they are listed.
fn sorted(objects: &[DynamicObject]) -> Vec<Backup> {
    let mut backups = typed::<Backup>(objects);
    table::sort_backups(&mut backups);
    backups
}
