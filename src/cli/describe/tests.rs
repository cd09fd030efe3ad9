use berth_core::schedule::preview::{MetSchedule, Preview};
use serde_json::json;

use super::*;

fn done() -> Backup {
    serde_json::from_value(json!({
        "metadata": {
            "name": "nightly", "namespace": "velero", "labels": {"a": "b", "team": "web"},
            "annotations": {"note": "one\nline", keys::RUNS: "2"},
        },
        "spec": {
            "includedNamespaces": ["web", "db"], "storageLocation": "default", "ttl": "720h0m0s",
            "labelSelector": {"matchLabels": {"app": "web"}}, "orderedResources": {"pods": "web/a"},
            "resourcePolicy": {"kind": "configmap", "name": "p"},
            "hooks": {"resources": [{"name": "freeze", "pre": [{"exec": {
                "command": ["sync", "-f"], "onError": "Fail", "timeout": "30s",
            }}]}]},
        },
        "status": {
            "phase": "PartiallyFailed", "formatVersion": "1.1.0", "errors": 1, "warnings": 2,
            "startTimestamp": "2026-11-25T15:00:00Z", "completionTimestamp": "2026-11-25T15:02:00Z",
            "expiration": "2026-12-25T15:00:00Z", "progress": {"totalItems": 7, "itemsBackedUp": 7},
            "backupItemOperationsAttempted": 1, "backupItemOperationsCompleted": 1,
            "hookStatus": {"hooksAttempted": 2},
        },
    }))
    .unwrap()
}

fn described() -> Described<'static> {
    Described {
        results: Fetched::Got(json!({
            "errors": {"cluster": ["a type\tis gone"]},
            "warnings": {"velero": ["one", "two"], "namespaces": {"web": ["three"]}},
        })),
        resources: Fetched::Got(json!({"v1/Pod": ["web/a", "web/b"]})),
        volumes: Fetched::Got(json!([
            {"backupMethod": "CSISnapshot", "pvcName": "data", "pvcNamespace": "web", "snapshotDataMoved": true,
             "snapshotDataMovementInfo": {"dataMover": "velero", "size": 12}, "result": "succeeded"},
            {"skipped": true, "pvName": "pv1", "skippedReason": "policy"},
        ])),
        operations: Fetched::Failed("no route".to_owned()),
        details: true,
        ..Described::default()
    }
}

#[test]
fn a_backup_that_ended_is_described_in_veleros_order() {
    let text = backup(&done(), &described());
    let mut rest = text.as_str();
    for wanted in [
        "Name:         nightly\nNamespace:    velero\nLabels:       a=b\n              team=web\n",
        "note=one line\n",
        "Phase:  PartiallyFailed (run `berth backup logs nightly` for more information)\nRuns:   2 of 3\n",
        "Resource policies:\n  Type:  configmap\n  Name:  p\n",
        "Warnings:\n  Velero:   one\n            two\n  Cluster:  <none>\n  Namespaces:\n    web:  three\n",
        "Errors:\n  Velero:      <none>\n  Cluster:     a type is gone\n  Namespaces:  <none>\n",
        "Namespaces:\n  Included:  web, db\n  Excluded:  <none>\n",
        "Label selector:  app=web\n",
        "TTL:  720h0m0s\n",
        "Pre Exec Hook:\n        Container:\n        Command:    sync -f\n        On Error:   Fail\n        Timeout:    30s\n",
        "OrderedResources:\n  pods: web/a\n",
        "Started:    2026-11-25 15:00:00 +0000 UTC\n",
        "Total items to be backed up:  7\nItems backed up:              7\n",
        "1 of 1 completed successfully, 0 failed <they cannot be had: no route>\n",
        "Resource List:\n  v1/Pod:\n    - web/a\n    - web/b\n",
        "  CSI Snapshots:\n    web/data:\n      Data Movement:\n        Data Mover: velero\n        Moved data Size (bytes): 12\n",
        "  Pod Volume Backups: <none included>\n",
        "  Skipped:\n    pv1: policy\n",
        "HooksAttempted:  2\nHooksFailed:     0\n",
    ] {
        let Some(at) = rest.find(wanted) else { panic!("{wanted:?} is not, or not here, in\n{text}") };
        rest = &rest[at + wanted.len()..];
    }
}

/// Who does not ask for details learns at least that data is missing.
#[test]
fn skipped_volumes_are_counted_where_no_details_are_asked_for() {
    let short = Described { details: false, ..described() };
    let text = backup(&done(), &short);
    assert!(text.contains("Skipped: 1 (specify --details for the reasons)\n"), "{text}");
    assert!(!text.contains("pv1: policy"), "{text}");
    let none = Described { volumes: Fetched::Got(json!([])), ..short };
    assert!(!backup(&done(), &none).contains("Skipped"));
}

#[test]
fn what_velero_leaves_out_and_what_an_old_one_did_not_store_is_told() {
    let mut done = done();
    let annotations = done.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::GLOBAL_VOLUME_POLICY.to_owned(), "of-all".to_owned());
    let operation = json!({
        "spec": {"backupItemAction": "velero.io/csi-pvc-backupper", "operationID": "du-1", "resourceIdentifier": {
            "Group": "", "Resource": "persistentvolumeclaims", "Namespace": "web", "Name": "data",
        }},
        "status": {"phase": "Completed", "created": "2026-11-25T15:00:01Z", "description": "moved"},
    });
    let request = |minute: u8| {
        let made = format!("2026-11-26T15:0{minute}:00Z");
        let request = json!({"metadata": {"creationTimestamp": made}, "spec": {"backupName": "nightly"}, "status": {"phase": "Processed"}});
        serde_json::from_value::<DeleteBackupRequest>(request).unwrap()
    };
    let deletions = [request(1), request(2)];
    let volumes = json!([
        {"backupMethod": "CSISnapshot", "pvcName": "data", "pvcNamespace": "web", "snapshotDataMoved": true,
         "preserveLocalSnapshot": true, "result": "succeeded"},
    ]);
    let told = Described {
        operations: Fetched::Got(json!([operation])),
        volumes: Fetched::Got(volumes),
        deletions: &deletions,
        ..described()
    };
    let text = backup(&done, &told);
    for wanted in [
        "\n\nGlobal volume policies:\n  Type:  configmap\n  Name:  of-all\n\n",
        "2026-11-25 15:00:01 +0000 UTC\n",
        "    web/data:\n      Snapshot:\n        Snapshot Size (bytes): 0\n        Result: succeeded\n",
        "      Data Movement:\n        Data Mover: velero\n        Moved data Size (bytes): 0\n        Result: succeeded\n",
        "Deletion Attempts:\n  2026-11-26 15:01:00 +0000 UTC: Processed\n\n  2026-11-26 15:02:00 +0000 UTC: Processed\n",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    let json = backup_json(&done, &told);
    assert_eq!(json["globalVolumePolicies"], json!({"type": "configmap", "name": "of-all"}));
    // Of a Velero before 1.13.
    let status = done.status.as_mut().unwrap();
    (status.volume_snapshots_attempted, status.csi_volume_snapshots_attempted) = (Some(3), Some(1));
    let old = Described { volumes: Fetched::Missing, ..described() };
    let unlisted = json!({"nativeSnapshots": 3, "csiSnapshots": 1});
    assert_eq!(backup_json(&done, &old)["status"]["backupVolumes"]["unlisted"], unlisted);
    let text = backup(&done, &old);
    for wanted in
        ["Velero-Native Snapshots: <3, of which", "CSI Snapshots: <1, of which the store has no list>"]
    {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    assert!(backup(&done, &told).contains("Velero-Native Snapshots: <none included>\n"));
}

#[test]
fn of_files_that_are_being_read_it_is_told_how_far_and_how_fast() {
    let one = |pod: &str, progress: Value, text: Option<&str>| {
        json!({
            "metadata": {"annotations": {keys::PROGRESS_TEXT: text}},
            "spec": {"pod": {"namespace": "web", "name": pod}, "volume": "data", "uploaderType": "restic"},
            "status": {"phase": "InProgress", "progress": progress},
        })
    };
    let bytes = json!({"bytesDone": 451, "totalBytes": 1000});
    let all = [
        one("a", bytes.clone(), Some("1234 files, 18.2 MiB/s")),
        // Velero's node-agents write no such text.
        one("b", bytes, None),
        // The bytes are not counted yet.
        one("c", json!({"bytesDone": 7, "totalBytes": 0}), Some("7 files, 1.0 KiB/s\u{1b}[2J")),
        one("d", Value::Null, None),
    ];
    let described = Described { pod_volumes: &all, ..described() };
    let text = backup(&done(), &described);
    let wanted = [
        "    In Progress:\n",
        "      web/a: data (45.10%, 1234 files, 18.2 MiB/s)\n",
        "      web/b: data (45.10%)\n",
        "      web/c: data (7 files, 1.0 KiB/s\\u{1b}[2J)\n",
        "      web/d: data\n",
    ];
    assert!(text.contains(&wanted.concat()), "{text}");
    let json = backup_json(&done(), &described);
    let volumes = &json["status"]["backupVolumes"]["podVolumeBackups"];
    assert_eq!(volumes[0]["filesAndRate"], "1234 files, 18.2 MiB/s");
    let short = Described { details: false, ..described };
    assert!(backup(&done(), &short).contains("In Progress:  4\n"));
}

#[test]
fn what_the_store_keeps_is_told_with_its_date() {
    let until: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let locked = Described { locked_until: Some(until), ..described() };
    let text = backup(&done(), &locked);
    assert!(
        text.contains(
            "Expiration:    2026-12-25 15:00:00 +0000 UTC\nLocked until:  2027-01-01 00:00:00 +0000 UTC\n"
        ),
        "{text}"
    );
    assert_eq!(backup_json(&done(), &locked)["status"]["lockedUntil"], "2027-01-01T00:00:00Z");
    assert!(!backup(&done(), &described()).contains("Locked"));
}

#[test]
fn a_backup_that_waits_says_for_what_and_asks_for_nothing() {
    let waits: Backup = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "velero"}, "spec": {}, "status": {"phase": "Queued", "queuePosition": 9},
    }))
    .unwrap();
    let standing = QueueStanding {
        position: Some(2),
        waits_for: Some("a (running), which also takes web".to_owned()),
        blockers: vec!["a runs, and takes web too".to_owned()],
        ..QueueStanding::default()
    };
    let described = Described { standing: Some(standing), ..Described::default() };
    let text = backup(&waits, &described);
    let wanted = "\
Phase:           Queued
Queue position:  2
Waits for:       a (running), which also takes web
Blocked by:      a runs, and takes web too
";
    assert!(text.contains(wanted), "{text}");
    let json = backup_json(&waits, &described);
    assert_eq!((&json["queue"]["position"], &json["phase"]), (&json!(2), &json!("Queued")));
    assert_eq!(json["spec"]["namespaces"]["included"], json!(["*"]));
}

#[test]
fn the_structure_has_what_the_text_has() {
    let json = backup_json(&done(), &described());
    assert_eq!(json["errors"], json!({"count": 1, "cluster": ["a type\tis gone"]}));
    assert_eq!(json["status"]["backupItemOperations"]["attempted"], 1);
    assert_eq!(json["status"]["resourceList"], json!({"v1/Pod": ["web/a", "web/b"]}));
    let volumes = &json["status"]["backupVolumes"];
    assert_eq!(volumes["csiSnapshots"][0]["pvcName"], "data");
    assert_eq!(volumes["csiSnapshots"].as_array().map(Vec::len), Some(1));
    assert_eq!(volumes["skipped"][0]["skippedReason"], "policy");
    assert_eq!(volumes["skipped"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["resourcePolicies"], json!({"type": "configmap", "name": "p"}));
    // Velero's keys, but for those that it misspells.
    for path in [
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/labels/team",
        "/metadata/annotations/note",
        "/phase",
        "/warnings/namespaces/web",
        "/spec/namespaces/included",
        "/spec/namespaces/excluded",
        "/spec/resources/includedClusterScoped",
        "/spec/resources/excludedNamespaceScoped",
        "/spec/labelSelector",
        "/spec/storageLocation",
        "/spec/veleroNativeSnapshotPVs",
        "/spec/veleroSnapshotMoveData",
        "/spec/dataMover",
        "/spec/TTL",
        "/spec/CSISnapshotTimeout",
        "/spec/hooks/0/pre/0/exec/onError",
        "/spec/orderedResources/pods",
        "/status/backupFormatVersion",
        "/status/started",
        "/status/completed",
        "/status/expiration",
        "/status/totalItemsToBeBackedUp",
        "/status/itemsBackedUp",
        "/status/backupVolumes/nativeSnapshots",
        "/status/backupVolumes/podVolumeBackups",
        "/status/hooksAttempted",
        "/status/hooksFailed",
    ] {
        assert!(json.pointer(path).is_some_and(|value| !value.is_null()), "{path} is not in {json:#}");
    }
    let refused = json!({
        "metadata": {"name": "b"}, "spec": {"orLabelSelectors": [{"matchLabels": {"a": "b"}}], "includedResources": ["pods"]},
        "status": {"phase": "FailedValidation", "validationErrors": ["one", "two"]},
    });
    let json = backup_json(&serde_json::from_value(refused).unwrap(), &Described::default());
    assert_eq!(json["validationErrors"], json!(["one", "two"]));
    assert_eq!(json["spec"]["orLabelSelectors"], json!(["a=b"]));
    let resources = json!({"included": ["pods"], "excluded": [], "clusterScoped": "auto"});
    assert_eq!(json["spec"]["resources"], resources);
    let runs = json!({
        "metadata": {"name": "b"}, "spec": {"includedClusterScopedResources": ["nodes"]},
        "status": {"phase": "InProgress", "progress": {"totalItems": 7, "itemsBackedUp": 2}},
    });
    let json = backup_json(&serde_json::from_value(runs).unwrap(), &Described::default());
    assert_eq!(json["spec"]["resources"]["includedClusterScoped"], json!(["nodes"]));
    assert_eq!(json["status"]["estimatedTotalItemsToBeBackedUp"], 7);
    assert_eq!(json["status"]["itemsBackedUpSoFar"], 2);
}

#[test]
fn a_schedule_is_described_with_its_template() {
    let daily: berth_api::velero::Schedule = serde_json::from_value(json!({
        "metadata": {"name": "daily", "namespace": "velero"},
        "spec": {"schedule": "0 1 * * *", "template": {"ttl": "1h"}, "paused": true},
        "status": {"phase": "FailedValidation", "validationErrors": ["no such zone"]},
    }))
    .unwrap();
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let times = vec![time("2026-11-26T01:00:00Z"), time("2026-11-27T01:00:00Z")];
    let met = |name: &str, at: &[Timestamp]| MetSchedule {
        schedule: name.to_owned(),
        namespaces: vec!["shop".to_owned()],
        at: at.to_vec(),
    };
    let meets = vec![met("a", &times), met("b", &times[1..])];
    let mut next = NextRuns { preview: Preview { times, meets, left_out: 3 }, unknown: None };
    let text = schedule(&daily, &next, false);
    for wanted in [
        "Phase:  FailedValidation\n",
        "Validation errors:  no such zone\n",
        "Paused:  true\n",
        "Schedule:  0 1 * * *\nNext:      2026-11-26 01:00:00 +0000 UTC\n           2026-11-27 01:00:00 +0000 UTC\n",
        "Meets:     a, which also takes shop: each time\n",
        "           b, which also takes shop: 2026-11-27 01:00:00 +0000 UTC\n",
        "           3 Schedules were not compared: they are too many\n",
        "Backup Template:\n  Namespaces:\n    Included:  *\n",
        "  TTL:  1h0m0s\n",
        "Last Backup:  <never>\n",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    let json = schedule_json(&daily, &next);
    assert_eq!(json["next"][0], "2026-11-26 01:00:00 +0000 UTC");
    assert_eq!(json["meets"][1], json!({"schedule": "b", "namespaces": ["shop"], "at": [json["next"][1]]}));
    next.unknown = Some("no right".to_owned());
    let text = schedule(&daily, &next, false);
    assert!(text.contains("Meets:     <unknown: no right>\n"), "{text}");
}

#[test]
fn nothing_that_others_wrote_controls_the_terminal() {
    let bad: Backup = serde_json::from_value(json!({
        "metadata": {"name": "a", "annotations": {"note": "x\u{1b}[2J\u{9b}1m"}},
        "spec": {"orderedResources": {"po\u{7}ds": "web/\u{1b}]0;t"}, "hooks": {"resources": [{"name": "h\u{8}"}]}},
        "status": {
            "phase": "Failed", "errors": 1, "failureReason": "\u{1b}c", "validationErrors": ["\u{1b}[31mno"],
        },
    }))
    .unwrap();
    let results = json!({"errors": {"namespaces": {"w\u{1b}eb": ["\u{1b}[1A"]}}});
    let colourful = Described { results: Fetched::Got(results), colour: true, ..described() };
    for described in [&Described { colour: false, ..described() }, &colourful] {
        let text = backup(&bad, described);
        let plain =
            ["\x1b[31m", "\x1b[0m"].iter().fold(text.clone(), |text, colour| text.replace(colour, ""));
        assert!(!plain.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(plain.contains("note=x\\u{1b}[2J\\u{9b}1m\n"), "{text}");
        assert_eq!(text.contains("\x1b[31mFailed\x1b[0m"), described.colour);
    }
}
