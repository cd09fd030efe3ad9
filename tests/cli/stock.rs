//! berth's commands against the server of a stock Velero: what its own command does there, they do,
//! too.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::cells;
use crate::admission::program;
use crate::support::peers::{S3, Velero, install_definitions, prepare};
use crate::support::process::without_proxies;
use crate::support::{ControlPlane, PATIENCE, wait_for};

const NAMESPACE: &str = "velero";

#[test]
fn a_stock_server_does_what_berths_commands_ask_for() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    install_definitions(&plane).unwrap();
    let s3 = S3::start(&plane, "cli-stock").unwrap();
    prepare(&plane, NAMESPACE, &s3, "week").unwrap();
    let velero = Velero::start(&plane, NAMESPACE, &s3, &[], &[]).unwrap();
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new(program());
        command.args(args).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(plane.kubeconfig());
        command.env("HOME", plane.folder()).current_dir(plane.folder()).stdin(Stdio::null());
        without_proxies(&mut command);
        command.output().unwrap()
    };
    let ends = |args: &[&str], code: i32| {
        let output = run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
        (out, err)
    };
    let said = |args: &[&str]| ends(args, 0).0;
    let alike = |args: &[&str]| assert_eq!(cells(&said(args)), cells(&velero.run(args).unwrap()), "{args:?}");

    let (version, warnings) = ends(&["version", "--timeout=2m"], 0);
    assert!(version.contains("Server:\n\tVersion: v"), "{version}");
    assert_eq!(warnings, "", "nothing is known of the version of a Velero");
    // A backup, and what is told of it.
    let monday = ["--include-namespaces", "default", "--ttl", "48h", "--labels", "team=web", "--wait"];
    let text = said(&[&["backup", "create", "monday"][..], &monday].concat());
    assert!(text.contains("Backup completed with status: Completed"), "{text}");
    alike(&["backup", "get"]);
    alike(&["backup", "get", "--selector", "team!=db", "--label-columns", "team", "--show-labels"]);
    let text = said(&["backup", "describe", "monday", "--details"]);
    for wanted in ["Phase:  Completed", "v1/Namespace:\n    - default", "Backup Volumes:"] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    assert_eq!(said(&["backup", "contents", "monday", "--grep", "namespaces/"]), "namespaces/default\n");
    // One that is not valid.
    let away = ["--provider", "aws", "--bucket", "none", "--access-mode", "ReadOnly"];
    said(&[&["backup-location", "create", "away"][..], &away].concat());
    let faulty = ["backup", "create", "faulty", "--storage-location", "away", "--wait"];
    let (text, _) = ends(&faulty, 5);
    assert!(text.contains("Backup completed with status: FailedValidation"), "{text}");
    let (_, text) = ends(&["backup", "logs", "faulty"], 1);
    assert!(text.contains("never run"), "{text}");
    // Locations that are named must be there, also where the object is only printed.
    velero.run(&["snapshot-location", "create", "disks", "--provider", "aws"]).unwrap();
    let places = ["--storage-location", "away", "--volume-snapshot-locations", "disks"];
    for (noun, more) in [("backup", &[][..]), ("schedule", &["--schedule", "@daily"])] {
        let args = [&[noun, "create", "placed", "-o", "json"][..], &places, more].concat();
        let printed = |text: &str| {
            let object: Value = serde_json::from_str(text).unwrap();
            (object["metadata"]["name"].clone(), object["spec"].clone())
        };
        let (ours, theirs) = (printed(&said(&args)), printed(&velero.run(&args).unwrap()));
        assert_eq!(ours, theirs, "{args:?}");
        let spec = if noun == "backup" { &ours.1 } else { &ours.1["template"] };
        assert_eq!(spec["volumeSnapshotLocations"], json!(["disks"]), "{spec:#}");
    }
    let missing = ["backup", "create", "x", "--volume-snapshot-locations", "disk"];
    let (_, text) = ends(&missing, 1);
    assert!(text.contains("--volume-snapshot-locations") && text.contains("did you mean disks?"), "{text}");
    // A schedule.
    let daily = ["--schedule", "0 1 * * *", "--include-namespaces", "default", "--ttl", "24h"];
    said(&[&["schedule", "create", "daily"][..], &daily].concat());
    wait_for("the Schedule to be looked at", PATIENCE, || {
        Ok(said(&["schedule", "get"]).contains("Enabled").then_some(()))
    })
    .unwrap();
    alike(&["schedule", "get"]);
    said(&["schedule", "pause", "daily"]);
    alike(&["schedule", "get"]);
    let text = said(&["backup", "create", "--from-schedule", "daily", "--wait"]);
    assert!(text.contains("Backup completed with status: Completed"), "{text}");
    said(&["schedule", "delete", "daily", "--confirm"]);
    assert!(!said(&["schedule", "get"]).contains("daily"));
    // Old things go.
    said(&["backup", "delete", "monday", "--confirm"]);
    wait_for("the backup to be deleted", PATIENCE, || {
        Ok((!said(&["backup", "get"]).contains("monday")).then_some(()))
    })
    .unwrap();
    assert!(!s3.file("week/backups/monday/velero-backup.json").exists());
    said(&["backup-location", "delete", "away", "--confirm"]);
    assert!(!said(&["backup-location", "get"]).contains("away"));
}
