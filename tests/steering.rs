//! What people see of the queue and how they move it: `berth queue`, annotations, Events, metrics.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{PATIENCE, dequeued, ended, start};
use crate::support::backup::backup_of;
use crate::support::peers::velero;
use crate::support::{Berth, ControlPlane, Options, wait_for};

fn command(berth: &Berth, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    let kubeconfig = berth.plane().kubeconfig();
    command.args(["queue", "--namespace", berth.namespace(), "--kubeconfig", kubeconfig.to_str().unwrap()]);
    command.args(args);
    command
}

/// `berth queue …` as a person types it.
fn berth_queue(berth: &Berth, args: &[&str]) -> String {
    let output = command(berth, args).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

fn start_with(namespace: &str, flags: &[&str]) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.controller_args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    options.webhook_args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

/// A Backup of `default` with these annotations and labels.
fn marked(name: &str, annotations: Value, labels: Value) -> Value {
    let mut object = backup_of(name, &["default"]);
    object["metadata"]["annotations"] = annotations;
    object["metadata"]["labels"] = labels;
    object
}

/// A Backup that has run so long. It is created before it ends, because what has ended before it is
/// there counts for nothing.
fn ran(berth: &Berth, mut past: Value, minutes: i64) {
    let (kubectl, ns) = (berth.kubectl(), berth.namespace());
    past["metadata"]["annotations"]["berth.dev/hold"] = json!("true");
    let name = past["metadata"]["name"].as_str().unwrap().to_owned();
    let made = kubectl.create(ns, &[past]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let begun = kubectl.backup(ns, &name).unwrap().metadata.creation_timestamp.unwrap().0;
    let at = |minutes: i64| {
        let at = begun + jiff::SignedDuration::from_mins(minutes);
        at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    };
    let status = json!({"status": {
        "phase": "Completed", "queuePosition": null, "startTimestamp": at(0), "completionTimestamp": at(minutes),
    }});
    let (controller, status) =
        (format!("--as=system:serviceaccount:{ns}:berth-controller"), status.to_string());
    let args = ["patch", "backups.velero.io", &name, "-n", ns, &controller, "--type=merge", "-p", &status];
    kubectl.run(&args).unwrap();
}

/// Notes of the Events with this reason, by the name of the Backup.
fn events(berth: &Berth, reason: &str) -> Vec<(String, String)> {
    let selector = format!("reason={reason},reportingController=berth.dev");
    let args =
        ["get", "events.events.k8s.io", "-n", berth.namespace(), "--field-selector", &selector, "-o", "json"];
    let list: Value = serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|event| (text(&event["regarding"]["name"]), text(&event["note"]))).collect()
}

/// The value of a metric of the controller.
fn counted(berth: &Berth, name: &str) -> Option<f64> {
    let text = berth.controller.metrics().unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The reference has every metric that a running process serves, in the section of its command.
fn assert_in_reference(command: &str, metrics: &str) {
    let page = include_str!("../docs/reference/metrics.md");
    let section = page.split("\n## ").find(|section| section.starts_with(&format!("`{command}`")));
    let section = section.unwrap_or_else(|| panic!("no section `{command}` in\n{page}"));
    let served = metrics.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next());
    for name in served {
        let is_there = ["", "_total"].iter().any(|end| section.contains(&format!("| `{name}{end}` |")));
        assert!(is_there, "{name} is not in the section `{command}`: add it to src/reference/metrics.rs");
    }
}

#[test]
fn people_see_the_queue_and_steer_it() {
    let mut berth = start("steered", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    let backups = ["one", "two", "three", "four", "five", "six"].map(|name| backup_of(name, &["default"]));
    berth.kubectl().create(&ns, &backups).unwrap();
    let said = berth_queue(&berth, &["explain", "three"]);
    assert!(said.starts_with("three is at position 2 and waits for one "), "{said}");
    assert!(said.contains("one is ahead, and takes default too: it must end first"), "{said}");
    let explained: Value =
        serde_json::from_str(&berth_queue(&berth, &["explain", "three", "-o", "json"])).unwrap();
    assert_eq!((&explained["position"], &explained["reason"]), (&json!(2), &json!("Overlap")));
    assert_eq!(explained["blockers"][1]["name"], "two");
    assert_eq!(berth_queue(&berth, &["hold", "two"]), "two held\n");
    assert_eq!(berth_queue(&berth, &["cancel", "three"]), "three canceled\n");
    let said = berth_queue(&berth, &["first", "six", "five"]);
    assert_eq!(said, "six moved to the front\nfive moved to the front\n");
    let table = berth_queue(&berth, &["list"]);
    assert!(table.contains("five") && table.contains("its release: it is held"), "{table}");
    let yaml = berth_queue(&berth, &["list", "-o", "yaml"]);
    let listed: Vec<Value> = serde_saphyr::from_str(&yaml).unwrap();
    let names: Vec<&str> = listed.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(names, ["six", "five", "one", "two", "four"], "{yaml}");
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["one", "three", "four", "five", "six"]);
    let log = berth.controller.process.log_text().unwrap();
    assert_eq!(dequeued(&log), ["six", "five", "one", "four"]);
    let canceled = done["three"].status.as_ref().unwrap();
    assert_eq!(
        (canceled.phase, canceled.failure_reason.as_deref()),
        (Some(BackupPhase::Failed), Some("Canceled: berth.dev/cancel was set, or the Backup was deleted"))
    );
    assert_eq!(berth.kubectl().phase(&ns, "two").unwrap(), BackupPhase::Queued);
    assert_eq!(berth_queue(&berth, &["release", "--all"]), "two released\n");
    assert_eq!(ended(&berth, &["two"])["two"].phase(), BackupPhase::Completed);
    assert!(berth_queue(&berth, &["hold", "two"]).contains("has ended already"));
    assert!(berth_queue(&berth, &["release", "--all"]).contains("nothing waits here"));
}

#[test]
fn a_held_location_keeps_its_backups_and_only_them() {
    let mut berth = start("held-location", 1);
    let ns = berth.namespace().to_owned();
    let location: Value = serde_json::from_str(
        &berth.kubectl().run(&["get", "backupstoragelocation", "default", "-n", &ns, "-o", "json"]).unwrap(),
    )
    .unwrap();
    let cold = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "cold", "namespace": ns},
        "spec": {"provider": location["spec"]["provider"], "objectStorage": {"bucket": "backups", "prefix": "cold"},
                 "config": location["spec"]["config"]},
    });
    berth.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &cold.to_string()).unwrap();
    assert_eq!(berth_queue(&berth, &["hold", "--location", "cold"]), "storage location cold held\n");
    let mut frozen = backup_of("frozen", &["default"]);
    frozen["spec"]["storageLocation"] = json!("cold");
    // The hold reaches the webhook by a watch.
    let waits = "berth: queued at position 1; waits for the release of storage location cold: it is held";
    wait_for("the webhook to know of the hold", PATIENCE, || {
        let text = serde_json::to_string(&frozen)?;
        let tried = berth.kubectl().answer(&["create", "--dry-run=server", "-n", &ns, "-f", "-"], &text)?;
        Ok((tried.warnings() == [waits]).then_some(()))
    })
    .unwrap();
    // Nor does the controller know of it before it has looked.
    berth.controller.stop().unwrap();
    let answer = berth.kubectl().create(&ns, &[frozen, backup_of("warm", &["default"])]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    berth.controller.process.restart().unwrap();
    assert_eq!(
        ended(&berth, &["warm"])["warm"].phase(),
        BackupPhase::Completed,
        "the held one is in nobody's way"
    );
    assert_eq!(berth.kubectl().phase(&ns, "frozen").unwrap(), BackupPhase::Queued);
    assert_eq!(berth_queue(&berth, &["release", "--location", "cold"]), "storage location cold released\n");
    assert_eq!(ended(&berth, &["frozen"])["frozen"].phase(), BackupPhase::Completed);
}

#[test]
fn priority_classes_are_head_starts_and_unknown_ones_are_refused() {
    let mut berth = start_with("classes", &["--priority-classes=high=1h,low=-1h"]);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    let class = |class: &str| json!({"berth.dev/priority-class": class});
    let backups = [
        marked("slow", class("low"), json!({})),
        backup_of("usual", &["default"]),
        marked("urgent", json!({}), class("high")),
    ];
    berth.kubectl().create(&ns, &backups).unwrap();
    let urgent = berth.kubectl().backup(&ns, "urgent").unwrap().status.unwrap();
    assert_eq!(urgent.queue_position, Some(1), "its place at once, ahead of those that were there");
    let refused = berth.kubectl().create(&ns, &[marked("typo", class("hihg"), json!({}))]);
    let refused = refused.map(|answer| answer.stderr).unwrap_or_else(|error| error.to_string());
    assert!(
        refused.contains("metadata.annotations[berth.dev/priority-class]: \"hihg\" is not a priority class: choose one of high, low, normal"),
        "{refused}"
    );
    berth.controller.process.restart().unwrap();
    ended(&berth, &["slow", "usual", "urgent"]);
    let log = berth.controller.process.log_text().unwrap();
    assert_eq!(dequeued(&log), ["urgent", "usual", "slow"]);
}

#[test]
fn who_used_much_lets_others_pass() {
    let flags = ["--fair-share", "--fair-share-label=team"];
    let mut berth = start_with("fair-share", &flags);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    ran(&berth, marked("past", json!({}), json!({"team": "greedy"})), 10);
    // Copied from a store, where anybody may have written whose it was: it counts for nothing.
    let now = jiff::Timestamp::now();
    let at = |minutes: i64| {
        (now + jiff::SignedDuration::from_mins(minutes)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    };
    for (name, start, end) in [("copy", -60, -1), ("forged", -60, 1)] {
        let mut copy = marked(name, json!({}), json!({"team": "thrifty"}));
        copy["status"] =
            json!({"phase": "Completed", "startTimestamp": at(start), "completionTimestamp": at(end)});
        berth.kubectl().create(&ns, &[copy]).unwrap();
    }
    let of = |name: &str, team: &str| marked(name, json!({}), json!({"team": team}));
    berth
        .kubectl()
        .create(&ns, &[of("again", "greedy"), of("modest", "thrifty"), backup_of("nobody", &["default"])])
        .unwrap();
    berth.controller.process.restart().unwrap();
    ended(&berth, &["again", "modest", "nobody"]);
    let log = berth.controller.process.log_text().unwrap();
    assert_eq!(dequeued(&log), ["modest", "nobody", "again"]);
}

#[test]
fn a_schedule_piles_up_only_where_it_does_not_say_otherwise() {
    let mut berth = start("schedules", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    let of = |name: &str, schedule: &str, supersede: &str| {
        marked(name, json!({"berth.dev/supersede": supersede}), json!({"velero.io/schedule-name": schedule}))
    };
    let answer = berth
        .kubectl()
        .create(
            &ns,
            &[
                of("hourly-1", "hourly", "true"),
                of("hourly-2", "hourly", "true"),
                of("daily-1", "daily", "false"),
                of("daily-2", "daily", "false"),
            ],
        )
        .unwrap();
    let piles = "berth: 1 of schedule daily wait already; annotate the Schedule berth.dev/supersede=true to keep only the last one";
    assert_eq!(
        answer.warnings().iter().filter(|warning| warning.contains("wait already")).collect::<Vec<_>>(),
        [&piles]
    );
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["hourly-1", "hourly-2", "daily-1", "daily-2"]);
    let superseded = done["hourly-1"].status.as_ref().unwrap();
    assert_eq!(superseded.phase, Some(BackupPhase::Failed));
    assert_eq!(
        superseded.failure_reason.as_deref(),
        Some("Superseded: hourly-2, a later backup of the same schedule, takes its place")
    );
    for name in ["hourly-2", "daily-1", "daily-2"] {
        assert_eq!(done[name].phase(), BackupPhase::Completed, "{name}");
    }
    wait_for("it to be counted", PATIENCE, || {
        Ok((counted(&berth, "berth_queue_superseded_total") == Some(1.0)).then_some(()))
    })
    .unwrap();
    wait_for("the Event of the superseded one", PATIENCE, || {
        Ok(events(&berth, "Superseded").iter().any(|(name, _)| name == "hourly-1").then_some(()))
    })
    .unwrap();
}

/// Velero's own command copies label and annotation, so what somebody creates by it is a run of the
/// Schedule.
#[test]
fn what_is_created_from_a_schedule_by_hand_is_superseded_like_its_other_runs() {
    let mut berth = start("from-schedule", 1);
    let ns = berth.namespace().to_owned();
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "often", "annotations": {"berth.dev/supersede": "true"}},
        "spec": {"schedule": "0 1 * * *", "paused": true, "template": {"includedNamespaces": ["default"]}},
    });
    berth.kubectl().create(&ns, &[schedule]).unwrap();
    berth.controller.stop().unwrap();
    for name in ["by-hand-1", "by-hand-2"] {
        let made =
            velero(berth.plane(), &ns, &["backup", "create", name, "--from-schedule", "often"]).unwrap();
        assert!(made.status.success(), "{}{}", made.stdout, made.stderr);
    }
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["by-hand-1", "by-hand-2"]);
    let reason = done["by-hand-1"].status.as_ref().unwrap().failure_reason.as_deref();
    assert_eq!(reason, Some("Superseded: by-hand-2, a later backup of the same schedule, takes its place"));
    assert_eq!(done["by-hand-2"].phase(), BackupPhase::Completed);
}

#[test]
fn what_happens_is_told_by_events_metrics_and_expectations() {
    let mut berth = start("told", 1);
    let ns = berth.namespace().to_owned();
    // Ran before: three minutes, five, and nine.
    berth.kubectl().run(&["create", "namespace", "told-a"]).unwrap();
    for minutes in [3, 5, 9] {
        ran(&berth, backup_of(&format!("past-{minutes}"), &["told-a"]), minutes);
    }
    wait_for("the webhook to see that they have ended", PATIENCE, || {
        let text = serde_json::to_string(&backup_of("tried", &["told-a"]))?;
        let tried = berth.kubectl().answer(&["create", "--dry-run=server", "-n", &ns, "-f", "-"], &text)?;
        Ok(tried.warnings().iter().any(|said| said.contains("queued at position 1;")).then_some(()))
    })
    .unwrap();
    wait_for("the controller to see that they have ended", PATIENCE, || {
        let held = counted(&berth, "berth_queue_waiting{reason=\"Held\"}").unwrap_or_default();
        Ok((held < 0.5).then_some(()))
    })
    .unwrap();
    let mut holder = backup_of("holder", &["told-a"]);
    holder["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    berth.kubectl().create(&ns, &[holder]).unwrap();
    // Frozen, so that what is said of those behind can be read in peace.
    wait_for("the controller to see the holder", PATIENCE, || {
        Ok((counted(&berth, "berth_queue_waiting{reason=\"Held\"}") == Some(1.0)).then_some(()))
    })
    .unwrap();
    wait_for("the Event of the holder", PATIENCE, || {
        let told = events(&berth, "Queued");
        let note = told.iter().find(|(name, _)| name == "holder").map(|(_, note)| note.clone());
        Ok(note.filter(|note| note == "at position 1; waits for its release: it is held"))
    })
    .unwrap();
    berth.controller.stop().unwrap();
    assert_eq!(berth_queue(&berth, &["release", "holder"]), "holder released\n");
    let behind = "berth: expected to start in about 5 min (3 to 9, as such backups went lately)";
    wait_for("the webhook to expect", PATIENCE, || {
        let text = serde_json::to_string(&backup_of("behind", &["told-a"]))?;
        let tried = berth.kubectl().answer(&["create", "--dry-run=server", "-n", &ns, "-f", "-"], &text)?;
        Ok(tried.warnings().contains(&behind).then_some(()))
    })
    .unwrap();
    berth.kubectl().create(&ns, &[backup_of("behind", &["told-a"])]).unwrap();
    let kubeconfig = berth.plane().kubeconfig();
    let described = Command::new(program())
        .args(["backup", "describe", "behind", "-n", &ns, "--kubeconfig", kubeconfig.to_str().unwrap()])
        .output()
        .unwrap();
    let described = String::from_utf8(described.stdout).unwrap();
    let words: Vec<&str> = described.split_whitespace().collect();
    let words = words.join(" ");
    for wanted in
        ["Phase: Queued", "Queue position: 1", "Waits for: holder", "Expected start: in 5m (3m to 9m)"]
    {
        assert!(words.contains(wanted), "{wanted:?} is not in\n{described}");
    }
    let table = berth_queue(&berth, &["list"]);
    assert!(table.contains("EXPECTED") && table.contains("starts in 5m (3m to 9m)"), "{table}");
    let listed: Value = serde_json::from_str(&berth_queue(&berth, &["list", "-o", "json"])).unwrap();
    assert!(listed[1]["expectedEnd"]["likely"].is_string(), "{listed:#}");
    // Rebuilt from objects: right at once after a restart.
    berth.controller.process.restart().unwrap();
    ended(&berth, &["holder", "behind"]);
    wait_for("the Events of both starts", PATIENCE, || {
        Ok((events(&berth, "Dequeued").len() == 2).then_some(()))
    })
    .unwrap();
    for line in ["berth_queue_dequeued_total 2", "berth_queue_wait_seconds_count 2"] {
        berth.controller.await_metric(line).unwrap();
    }
    wait_for("the queue to be empty", PATIENCE, || {
        let empty = ["depth", "running"].map(|name| counted(&berth, &format!("berth_queue_{name}")));
        Ok((empty == [Some(0.0); 2]).then_some(()))
    })
    .unwrap();
    assert_eq!(counted(&berth, "berth_queue_leading"), Some(1.0));
    let admission = berth.webhook.metrics().unwrap();
    assert!(
        admission.contains("berth_admission_reviews_total{rule=\"enqueue\",verdict=\"Allowed\"}"),
        "{admission}"
    );
    assert!(admission.contains("berth_admission_seconds_bucket{le="), "{admission}");
    assert_in_reference("berth webhook", &admission);
    assert_in_reference("berth controller", &berth.controller.metrics().unwrap());
}

#[test]
fn the_queue_can_be_watched() {
    let berth = start("watched", 1);
    let ns = berth.namespace().to_owned();
    let mut watching = command(&berth, &["watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("Nothing waits and nothing runs."));
    berth.kubectl().create(&ns, &[marked("seen", json!({"berth.dev/hold": "true"}), json!({}))]).unwrap();
    // The pipe ends, and the test fails, if the watch does.
    let seen = lines.find(|line| line.contains("seen"));
    assert!(seen.as_ref().is_some_and(|line| line.contains("its release: it is held")), "{seen:?}");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn what_cannot_be_written_lets_others_pass_and_runs_once_it_can() {
    let berth = start("stuck", 1);
    let ns = berth.namespace().to_owned();
    // An administrator's own policy keeps the controller from writing.
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "frozen-stuck"},
    "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["velero.io"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["backups"]}]},
        "validations": [{"expression": "object.metadata.name == 'probe'", "message": "frozen"}],
    }});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "frozen-stuck"},
    "spec": {
        "policyName": "frozen-stuck",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns}}},
    }});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    berth.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string()).unwrap();
    berth
        .kubectl()
        .create(
            &ns,
            &[
                marked("probe", json!({"berth.dev/hold": "true"}), json!({})),
                marked("stuck", json!({"berth.dev/hold": "true"}), json!({})),
            ],
        )
        .unwrap();
    wait_for("the policy to hold", PATIENCE, || {
        let tried = berth.kubectl().answer(
            &["label", "backup.velero.io", "stuck", "-n", &ns, "a=b", "--overwrite", "--dry-run=server"],
            "",
        )?;
        Ok((!tried.status.success()).then_some(()))
    })
    .unwrap();
    berth.kubectl().run(&["delete", "backup.velero.io", "stuck", "-n", &ns]).unwrap();
    berth.kubectl().create(&ns, &[backup_of("stuck", &["default"])]).unwrap();
    wait_for("it to be out of the line", PATIENCE, || {
        Ok(counted(&berth, "berth_queue_unwritable").is_some_and(|count| count >= 1.0).then_some(()))
    })
    .unwrap();
    wait_for("the list to say so", PATIENCE, || {
        let list = berth_queue(&berth, &["list"]);
        let is_told = |line: &str| line.contains("stuck") && line.contains("refuses every write to it");
        Ok(list.lines().any(is_told).then_some(()))
    })
    .unwrap();
    berth.kubectl().run(&["annotate", "backup.velero.io", "probe", "-n", &ns, "berth.dev/hold-"]).unwrap();
    assert_eq!(ended(&berth, &["probe"])["probe"].phase(), BackupPhase::Completed);
    berth.kubectl().run(&["delete", "validatingadmissionpolicybinding", "frozen-stuck"]).unwrap();
    assert_eq!(ended(&berth, &["stuck"])["stuck"].phase(), BackupPhase::Completed);
    wait_for("the Lease to name none", PATIENCE, || {
        let path = r"jsonpath={.metadata.annotations.berth\.dev/unwritable}";
        let noted = berth.kubectl().run(&["get", "lease", "berth-controller", "-n", &ns, "-o", path])?;
        Ok(noted.is_empty().then_some(()))
    })
    .unwrap();
}
