//! `berth schedule`: create, list, describe, pause and delete Schedules.

use std::sync::Arc;

use anyhow::{bail, ensure};
use berth_api::velero::Schedule;
use berth_core::schedule::preview::{Others, preview};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use serde_json::json;

use super::backup::places;
use super::person::{
    Person, Selected, confirmed, faults, print_list, print_object, printed_instead, refuse_plan, typed,
};
use super::version;
use crate::args::Output;
use crate::args::backup::{DeleteArgs, DescribeOutput, DryRun, GetArgs};
use crate::args::schedule::{
    CreateScheduleArgs, DescribeScheduleArgs, PauseArgs, ScheduleArgs, ScheduleCommand,
};
use crate::cli::print::{self, note, say};
use crate::cli::{describe, object, rights, table};
use crate::text::chain;
use crate::write::{Write, patch};

pub async fn run(args: ScheduleArgs) -> anyhow::Result<()> {
    let person = Person::new(args.target)?.coloured(&args.colours);
    let done = match args.command {
        ScheduleCommand::Create(args) => create(&person, &args).await,
        ScheduleCommand::Delete(args) => delete(&person, &args).await,
        ScheduleCommand::Describe(args) => describe_all(&person, &args).await,
        ScheduleCommand::Get(args) => get(&person, &args).await,
        ScheduleCommand::Pause(args) => pause(&person, &args, true).await,
        ScheduleCommand::Unpause(args) => pause(&person, &args, false).await,
    };
    match done {
        Ok(done) => Ok(done),
        Err(error) => Err(person.explained(error).await),
    }
}

async fn create(person: &Person, args: &CreateScheduleArgs) -> anyhow::Result<()> {
    refuse_plan(&args.made, "Schedules")?;
    let schedule = object::schedule(person.namespace(), args);
    faults(object::schedule_faults(args))?;
    let template = &schedule.spec.template;
    places(person, template.storage_location.as_deref(), template.volume_snapshot_locations.as_deref())
        .await?;
    let value = object::json(&schedule);
    if let Some(output) = printed_instead(&args.made) {
        let table =
            |more: &table::More| table::schedules(std::slice::from_ref(&schedule), more, Timestamp::now());
        return print_object(&value, output, &args.made, table);
    }
    version::compare(person).await;
    let is_dry_run = args.made.dry_run == Some(DryRun::Server);
    person.create::<Schedule>(&value, is_dry_run).await?;
    if is_dry_run {
        say!("Schedule {} would be accepted (dry run).", args.name);
    } else {
        say!("Schedule {:?} created successfully.", args.name);
    }
    Ok(())
}

async fn get(person: &Person, args: &GetArgs) -> anyhow::Result<()> {
    let objects = person.chosen::<Schedule>(&args.names, args.selector.as_deref()).await?;
    print_list(&objects, "Schedule", args, |more| {
        table::schedules(&typed::<Schedule>(&objects), more, Timestamp::now())
    })
}

async fn describe_all(person: &Person, args: &DescribeScheduleArgs) -> anyhow::Result<()> {
    use std::io::Write as _;
    let objects = person.chosen::<Schedule>(&args.names, args.selector.as_deref()).await?;
    let schedules = typed::<Schedule>(&objects);
    ensure!(
        args.output == DescribeOutput::Plaintext || schedules.len() == 1,
        "--output: {} schedules are found, and json and yaml describe exactly one: name it",
        schedules.len()
    );
    let others = others(person).await;
    let mut out = print::stdout();
    for (i, schedule) in schedules.iter().enumerate() {
        let next = next_times(schedule, &others, Timestamp::now());
        match args.output {
            DescribeOutput::Plaintext => {
                let gap = if i > 0 { "\n\n" } else { "" };
                write!(out, "{gap}{}", describe::schedule(schedule, &next, person.colour()))?;
            }
            DescribeOutput::Json => {
                print::value(&mut out, &describe::schedule_json(schedule, &next), Output::Json)?
            }
            DescribeOutput::Yaml => {
                print::value(&mut out, &describe::schedule_json(schedule, &next), Output::Yaml)?
            }
        }
    }
    Ok(())
}

/// All Schedules of the namespace, or why they cannot be listed.
async fn others(person: &Person) -> Result<Others, String> {
    let all = person.list_typed::<Schedule>(None).await.map_err(|error| chain(error.as_ref()))?;
    let plans = all.iter().filter_map(Schedule::planned).map(Arc::new).collect();
    Ok(Others { plans, left_out: 0 })
}

/// The next times at which a Schedule is due, and whom they meet.
fn next_times(schedule: &Schedule, others: &Result<Others, String>, now: Timestamp) -> describe::NextRuns {
    // A paused one is due at no time, and an expression that cannot be read says so itself.
    let Some(own) = schedule.planned() else { return describe::NextRuns::default() };
    let unknown = others.as_ref().err().cloned();
    let none = Others::default();
    describe::NextRuns { preview: preview(&own, others.as_ref().unwrap_or(&none), now), unknown }
}

async fn pause(person: &Person, args: &PauseArgs, paused: bool) -> anyhow::Result<()> {
    let Selected { found: schedules, missing } = person.selected::<Schedule>(&args.which).await?;
    if schedules.is_empty() {
        say!("No schedules found");
        return Ok(());
    }
    version::compare(person).await;
    let word = if paused { "paused" } else { "unpaused" };
    let api = person.api::<Schedule>().await?;
    let mut failed = missing;
    for schedule in &schedules {
        let name = schedule.name_any();
        if (schedule.spec.paused == Some(true)) == paused {
            say!("Schedule {name} is already {word}, skip");
            continue;
        }
        let skip = args.skip_immediately.and_then(|skip| skip.0);
        // As Velero's command leaves it: without the field where it is not paused.
        let change = json!({"spec": {"paused": paused.then_some(true), "skipImmediately": skip}});
        // Nothing else is changed, so it need not be as it was read; but it must be the same
        // object.
        let write = Write::to(&name).uid(schedule.metadata.uid.as_deref());
        match patch(&api, write, change).await.written() {
            Ok(_) => say!("Schedule {name} {word} successfully"),
            Err(error) => {
                failed += 1;
                let error = rights::explained(error.into(), person.namespace());
                note!("{name}: {}", chain(error.as_ref()));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} schedules could not be {word}", schedules.len() + missing);
    }
    Ok(())
}

async fn delete(person: &Person, args: &DeleteArgs) -> anyhow::Result<()> {
    let Selected { found: schedules, missing } = person.selected::<Schedule>(&args.which).await?;
    if schedules.is_empty() {
        say!("No schedules found");
        return Ok(());
    }
    version::compare(person).await;
    let names: Vec<String> = schedules.iter().map(ResourceExt::name_any).collect();
    note!("Schedules to delete: {}", names.join(", "));
    for schedule in schedules.iter().filter(|one| one.spec.use_owner_references_in_backup == Some(true)) {
        note!(
            "The Backups of {} are owned by it, and are deleted from the cluster with it.",
            schedule.name_any()
        );
    }
    if !confirmed(args.confirm)? {
        return Ok(());
    }
    let api = person.api::<Schedule>().await?;
    let mut failed = missing;
    for schedule in &schedules {
        let name = schedule.name_any();
        let same = Preconditions { uid: schedule.uid(), resource_version: None };
        match api.delete(&name, &DeleteParams::default().preconditions(same)).await {
            Ok(_) => say!("Schedule deleted: {name}"),
            Err(error) => {
                failed += 1;
                let error = rights::explained(error.into(), person.namespace());
                note!("{name}: {}", chain(error.as_ref()));
            }
        }
    }
    ensure!(failed == 0, "{failed} of {} schedules could not be deleted", schedules.len() + missing);
    Ok(())
}
