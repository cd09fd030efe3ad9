//! `berth backup create`.

use std::process::ExitCode;

use anyhow::Context as _;
use berth_api::velero::{Backup, BackupStorageLocation, Schedule};
use jiff::Timestamp;
use serde_json::Value;

use super::super::person::{Person, faults, print_object, printed_instead};
use super::super::version;
use super::{plan, wait};
use crate::args::backup::{CreateArgs, DryRun, MadeOutput};
use crate::cli::kinds::VolumeSnapshotLocation;
use crate::cli::print::say;
use crate::cli::{object, table};

pub async fn run(person: &Person, args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let backup = wanted(person, args).await?;
    let value = object::json(&backup);
    if let Some(output) = printed_instead(&args.made) {
        let table =
            |more: &table::More| table::backups(std::slice::from_ref(&backup), more, Timestamp::now());
        print_object(&value, output, &args.made, table)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.made.dry_run == Some(DryRun::Plan) {
        return plan::run(person, &backup, args.made.output).await.map(|()| ExitCode::SUCCESS);
    }
    version::compare(person).await;
    let is_dry_run = args.made.dry_run == Some(DryRun::Server);
    if args.from_schedule.is_some() {
        say!("Creating backup from schedule, all other filters are ignored.");
    }
    let created = person.create::<Backup>(&value, is_dry_run).await?;
    let made: Backup =
        serde_json::from_value(created.clone()).context("the API server's answer is no Backup")?;
    let name = made.metadata.name.clone().unwrap_or_default();
    if is_dry_run {
        return dry_run(args, &made, &created);
    }
    say!("Backup request {name:?} submitted successfully.");
    if args.wait {
        say!(
            "Waiting for backup to complete. You may safely press ctrl-c to stop waiting - your backup will continue in the background."
        );
        return wait::until_ended(person, &made).await.map(|outcome| ExitCode::from(outcome.code()));
    }
    say!("Run `berth backup describe {name}` or `berth backup logs {name}` for more details.");
    Ok(ExitCode::SUCCESS)
}

fn dry_run(args: &CreateArgs, made: &Backup, created: &Value) -> anyhow::Result<ExitCode> {
    if let Some(output) = args.made.output.filter(|output| *output != MadeOutput::Table) {
        print_object(created, output, &args.made, |_| {
            table::backups(&[], &table::More::default(), Timestamp::now())
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = made.metadata.name.as_deref().unwrap_or_default();
    match made.status.as_ref().and_then(|status| status.queue_position).filter(|position| *position > 0) {
        Some(position) => {
            say!("Backup {name} would be accepted, at position {position} of the queue (dry run).")
        }
        None => say!("Backup {name} would be accepted (dry run). No webhook gave it a place in a queue."),
    }
    Ok(ExitCode::SUCCESS)
}

/// The Backup that the flags ask for, after the checks that Velero makes.
async fn wanted(person: &Person, args: &CreateArgs) -> anyhow::Result<Backup> {
    faults(object::backup_faults(args))?;
    let spec = object::spec(&args.spec);
    places(person, spec.storage_location.as_deref(), spec.volume_snapshot_locations.as_deref()).await?;
    let name = args.name.as_deref();
    let Some(schedule) = args.from_schedule.as_deref().map(str::trim) else {
        return Ok(object::backup(person.namespace(), name.unwrap_or_default(), &args.spec));
    };
    let found: Schedule = person.get(schedule).await.context("--from-schedule")?;
    Ok(object::backup_of_schedule(person.namespace(), name, &found, &args.spec, Timestamp::now()))
}

/// The locations that the flags name must be there.
pub async fn places(
    person: &Person,
    storage: Option<&str>,
    snapshots: Option<&[String]>,
) -> anyhow::Result<()> {
    if let Some(storage) = storage {
        person.get::<BackupStorageLocation>(storage).await.context("--storage-location")?;
    }
    for name in snapshots.unwrap_or_default() {
        person.get::<VolumeSnapshotLocation>(name).await.context("--volume-snapshot-locations")?;
    }
    Ok(())
}
