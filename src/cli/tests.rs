//! Command lines beside what Velero's own command line makes of them. `tests/cli.rs` repeats the
//! record (`src/cli/tests/velero.json`).

mod examples;

use std::ffi::OsString;

use clap::Parser as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::object;
use super::typed::arranged;
use crate::args::backup::BackupCommand;
use crate::args::location::LocationCommand;
use crate::args::schedule::ScheduleCommand;
use crate::args::{Args, Command};

/// One command line, and what stock Velero prints with `-o json`, or says.
#[derive(Deserialize)]
struct Recorded {
    args: Vec<String>,
    object: Option<Value>,
    refused: Option<String>,
}

/// Stands for the file of `--cacert`.
const AUTHORITY: &[u8] = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// The object that a command line asks for.
fn made(args: &[String]) -> Result<Value, String> {
    let typed = ["berth".to_owned()].into_iter().chain(args.iter().cloned()).map(OsString::from);
    let args = Args::try_parse_from(arranged(typed)).map_err(|error| error.to_string())?;
    let told = |faults: Vec<String>| if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) };
    match args.command {
        Command::Backup(backup) => {
            let BackupCommand::Create(args) = backup.command else { return Err("no create".to_owned()) };
            told(object::backup_faults(&args))?;
            let name = args.name.as_deref().unwrap_or_default();
            Ok(object::json(&object::backup(&backup.target.namespace, name, &args.spec)))
        }
        Command::Schedule(schedule) => {
            let ScheduleCommand::Create(args) = schedule.command else { return Err("no create".to_owned()) };
            told(object::schedule_faults(&args))?;
            Ok(object::json(&object::schedule(&schedule.target.namespace, &args)))
        }
        Command::BackupLocation(location) => {
            let LocationCommand::Create(args) = location.command else { return Err("no create".to_owned()) };
            let authority = match args.cacert.as_deref() {
                None => None,
                Some(path) if path == std::path::Path::new("/CACERT") => Some(AUTHORITY),
                Some(path) => return Err(format!("--cacert {} cannot be read", path.display())),
            };
            object::location(&location.target.namespace, &args, authority).map_err(|faults| faults.join("\n"))
        }
        _ => Err("not one of these commands".to_owned()),
    }
}

/// Without fields that say nothing.
fn plain(mut object: Value) -> Value {
    if let Some(policy) = object.pointer_mut("/spec/resourcePolicy").and_then(Value::as_object_mut) {
        policy.retain(|_, value| !value.is_null());
    }
    if let Some(policy) = object.pointer_mut("/spec/template/resourcePolicy").and_then(Value::as_object_mut) {
        policy.retain(|_, value| !value.is_null());
    }
    object
}

/// Only what berth makes by itself counts for a Schedule, and the mark of that is refused to
/// others.
#[test]
fn a_backup_that_somebody_makes_of_a_schedule_is_not_its_own() {
    let typed = ["berth", "backup", "create", "--from-schedule", "daily"].map(OsString::from);
    let args = Args::try_parse_from(arranged(typed)).unwrap();
    let Command::Backup(backup) = args.command else { unreachable!() };
    let BackupCommand::Create(args) = backup.command else { unreachable!() };
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": "daily", "uid": "u1"},
        "spec": {"schedule": "@daily", "template": {}},
    });
    let (schedule, now) =
        (serde_json::from_value(schedule).unwrap(), "2026-01-02T02:00:00Z".parse().unwrap());
    let made = object::json(&object::backup_of_schedule("velero", None, &schedule, &args.spec, now));
    assert_eq!(made["metadata"]["name"], "daily-20260102020000");
    assert_eq!(made["metadata"]["labels"], json!({"velero.io/schedule-name": "daily"}));
    assert_eq!(made["metadata"]["annotations"], Value::Null);
}

/// Velero's command takes them and does nothing with them.
#[test]
fn a_schedule_has_the_annotations_that_its_flags_give_it() {
    let args = ["schedule", "create", "daily", "--schedule=@daily", "--annotations=note=weekly"];
    let made = made(&args.map(str::to_owned)).unwrap();
    assert_eq!(made["metadata"]["annotations"], json!({"note": "weekly"}));
}

#[test]
fn the_same_flags_make_the_same_objects_as_veleros() {
    let recorded: Vec<Recorded> = serde_json::from_str(include_str!("tests/velero.json")).unwrap();
    let (mut compared, mut refused, mut wrong) = (0, 0, Vec::new());
    for Recorded { args, object, refused: said } in recorded {
        let line = args.join(" ");
        match (made(&args), object) {
            (Ok(ours), Some(theirs)) => {
                compared += 1;
                let (ours, theirs) = (plain(ours), plain(theirs));
                if ours != theirs {
                    wrong.push(format!("{line}\n  ours {ours}\n  Velero's {theirs}"));
                }
            }
            (Err(_), None) => refused += 1,
            (Err(ours), Some(_)) => wrong.push(format!("{line}\n  only Velero accepts it: {ours}")),
            (Ok(_), None) => wrong.push(format!("{line}\n  only Velero refuses it: {said:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 120 && refused >= 40, "{compared} and {refused} are too few");
}

/// A line in quotes, as a shell splits it.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quote = !quote;
                word.get_or_insert_default();
            }
            ' ' if !quote => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.into_iter().chain(word).collect()
}

/// What `backup-location set` would change.
fn changed(args: &[String]) -> Option<Result<Value, String>> {
    let typed = ["berth".to_owned()].into_iter().chain(args.iter().cloned()).map(OsString::from);
    let Command::BackupLocation(location) = Args::try_parse_from(arranged(typed)).ok()?.command else {
        return None;
    };
    let LocationCommand::Set(args) = location.command else { return None };
    Some(object::change(&args, None).map_err(|faults| faults.join("\n")))
}

#[test]
fn wrong_command_lines_are_told_the_flag_and_the_way_out() {
    let (mut count, mut wrong) = (0, Vec::new());
    for row in include_str!("tests/wrong.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut parts = row.splitn(3, " | ");
        let [line, flag, way_out] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let args = split(line);
        let said = match changed(&args).unwrap_or_else(|| made(&args)) {
            Ok(object) => {
                wrong.push(format!("{line}: taken as {object}"));
                continue;
            }
            Err(said) => said,
        };
        let named = flag == "NAME" || said.contains(flag);
        if !named || !said.contains(way_out) || flag.is_empty() || way_out.is_empty() {
            wrong.push(format!("{line}: wanted {flag} and {way_out:?} in {said}"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 200, "{count}");
}
