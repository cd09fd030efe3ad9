//! Command lines beside what Velero's own command line makes of them. `tests/cli.rs` repeats the
//! record (`src/cli/tests/velero.json`).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser as _;
use serde::Deserialize;
use serde_json::Value;

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
                Some(path) if path == PathBuf::from("/CACERT") => Some(AUTHORITY),
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
