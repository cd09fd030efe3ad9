//! Schedules: Backups at their times, one for each, whatever happens to the leader.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use berth_api::velero::{Backup, BackupPhase, Schedule};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::PATIENCE;
use crate::support::{Berth, ControlPlane, Options, binaries, wait_for};

fn schedule(name: &str, expression: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": name, "labels": {"tier": "gold"}, "annotations": {"team": "a"}},
        "spec": {"schedule": expression, "template": {"includedNamespaces": ["default"]}},
    });
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        object["spec"][key] = value;
    }
    object
}

fn read(berth: &Berth, name: &str) -> Schedule {
    let args = ["get", "schedules.velero.io", name, "-n", berth.namespace(), "-o", "json"];
    serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap()
}

fn patch(berth: &Berth, name: &str, change: &Value) {
    let change = change.to_string();
    let args = ["patch", "schedules.velero.io", name, "-n", berth.namespace(), "--type=merge", "-p", &change];
    berth.kubectl().run(&args).unwrap();
}

fn backups(berth: &Berth, schedule: &str) -> anyhow::Result<BTreeMap<String, Backup>> {
    let mut all = berth.kubectl().backups(berth.namespace())?;
    all.retain(|_, backup| backup.labels().get("velero.io/schedule-name").is_some_and(|one| one == schedule));
    Ok(all)
}

fn completed(berth: &Berth, schedule: &str, count: usize) -> BTreeMap<String, Backup> {
    wait_for(&format!("{count} backups of {schedule} to complete"), PATIENCE, || {
        let all = backups(berth, schedule)?;
        let done = all.values().filter(|backup| backup.phase() == BackupPhase::Completed).count();
        Ok((done >= count).then_some(all))
    })
    .unwrap()
}

fn last_backup(schedule: &Schedule) -> Option<Timestamp> {
    Some(schedule.status.as_ref()?.last_backup.as_ref()?.0)
}

/// The time that a backup is for, by its name.
fn tick(schedule: &str, name: &str) -> Timestamp {
    let text = name.strip_prefix(&format!("{schedule}-")).unwrap();
    let civil = jiff::civil::DateTime::strptime("%Y%m%d%H%M%S", text).unwrap();
    civil.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp()
}

fn velero(berth: &Berth, args: &[&str]) -> Output {
    let [program] = binaries::get(["velero"]).unwrap();
    let mut command = Command::new(program);
    command
        .args(args)
        .args(["--namespace", berth.namespace(), "--kubeconfig"])
        .arg(berth.plane().kubeconfig());
    command.env("HOME", berth.plane().folder());
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(proxy);
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_schedule_has_one_backup_for_each_time_and_one_for_all_that_were_missed() {
    let mut options = Options::new(program(), "scheduled");
    options.concurrent_backups = 4;
    let mut berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let ns = berth.namespace().to_owned();

    let every = schedule("every", "@every 3s", json!({"useOwnerReferencesInBackup": true}));
    let answer = berth.kubectl().create(&ns, &[every]).unwrap();
    assert!(answer.warnings().iter().any(|line| line.starts_with("berth: runs at ")), "{}", answer.stderr);
    completed(&berth, "every", 2);
    let found = read(&berth, "every");
    let created = found.creation_timestamp().unwrap().0;
    let status = found.status.clone().unwrap();
    assert_eq!(status.phase.map(|phase| format!("{phase:?}")).as_deref(), Some("Enabled"));

    berth
        .controller
        .await_metric(r#"velero_schedule_expected_interval_seconds{schedule="every"} 3"#)
        .unwrap();

    // Nobody leads for three of its times.
    berth.controller.stop().unwrap();
    let before = backups(&berth, "every").unwrap();
    let last = before.keys().map(|name| tick("every", name)).max().unwrap();
    let after = |seconds| last + SignedDuration::from_secs(seconds);
    wait_for("three times to pass", PATIENCE, || Ok((Timestamp::now() > after(11)).then_some(()))).unwrap();
    berth.controller.process.restart().unwrap();
    let all = completed(&berth, "every", before.len() + 2);
    berth.controller.await_metric(r#"velero_backup_success_total{schedule="every"}"#).unwrap();
    patch(&berth, "every", &json!({"spec": {"paused": true}}));

    // Each is for a time of its own, and of those that were missed only the last one has a backup.
    let ticks: Vec<Timestamp> = all.keys().map(|name| tick("every", name)).collect();
    assert!(ticks.iter().all(|tick| tick.duration_since(created).as_secs() % 3 == 0), "{ticks:?}");
    assert!([3, 6].iter().all(|seconds| !ticks.contains(&after(*seconds))), "{last} {ticks:?}");
    assert!(last_backup(&read(&berth, "every")) >= Some(after(9)));
    let one = all.values().next().unwrap();
    assert_eq!(one.labels().get("tier").map(String::as_str), Some("gold"));
    assert_eq!(one.annotations().get("team").map(String::as_str), Some("a"));
    // By it the Backups count for their Schedule, and no webhook takes it away.
    let of = |backup: &Backup| backup.annotations().get("berth.dev/schedule-uid").cloned();
    assert!(all.values().all(|backup| of(backup) == found.metadata.uid), "{all:#?}");
    let owner = &one.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Schedule", found.metadata.uid.as_ref()));
    assert_eq!(one.spec.included_namespaces.as_deref(), Some(&["default".to_owned()][..]));
}

#[test]
fn stock_veleros_command_line_makes_schedules_that_berth_runs_and_broken_ones_are_refused() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "scheduling")).unwrap();
    let ns = berth.namespace().to_owned();

    let made = velero(
        &berth,
        &["schedule", "create", "often", "--schedule", "@every 2s", "--include-namespaces", "default"],
    );
    assert!(made.status.success(), "{}", said(&made));
    completed(&berth, "often", 1);
    let shown = said(&velero(&berth, &["schedule", "get", "often"]));
    assert!(shown.contains("Enabled") && shown.contains("@every 2s"), "{shown}");
    let paused = velero(&berth, &["schedule", "pause", "often"]);
    assert!(paused.status.success(), "{}", said(&paused));
    assert_eq!(read(&berth, "often").spec.paused, Some(true));

    // Both refuse it: stock Velero's command line, and a dry run.
    let fault = "spec.schedule: hour \"25\" (characters 3 to 4) is above 23; allowed: 0-23";
    let made = velero(&berth, &["schedule", "create", "bad", "--schedule", "0 25 * * *"]);
    assert!(!made.status.success() && said(&made).contains("is above 23"), "{}", said(&made));
    let bad = schedule("bad", "0 25 * * *", json!({"template": {"ttl": "1d"}})).to_string();
    let dry = ["create", "--dry-run=server", "-n", &ns, "-f", "-"];
    let answer = berth.kubectl().answer(&dry, &bad).unwrap();
    assert!(!answer.status.success(), "{}", answer.stderr);
    for told in ["is above 23", "spec.template.ttl: "] {
        assert!(answer.stderr.contains(told), "{told}: {}", answer.stderr);
    }
    // One that came while no webhook answered is told in its status.
    let mut berth = berth;
    berth.webhook.stop().unwrap();
    let answer = berth.kubectl().create(&ns, &[schedule("bad", "0 25 * * *", json!({}))]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let errors = wait_for("the fault to be told", PATIENCE, || {
        Ok(read(&berth, "bad").status.and_then(|status| status.validation_errors))
    });
    assert!(errors.unwrap()[0].starts_with(fault));
}

/// berth creates their Backups with its own rights.
#[test]
fn a_schedule_gives_nobody_what_a_backup_would_not() {
    let berth =
        Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "scheduling-rights")).unwrap();
    let (kubectl, ns) = (berth.kubectl(), berth.namespace().to_owned());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "schedules"},
        "rules": [{"apiGroups": ["velero.io"], "resources": ["schedules"], "verbs": ["create", "get", "patch"]}],
    });
    kubectl.create(&ns, &[role]).unwrap();
    kubectl
        .run(&["create", "rolebinding", "schedules", "-n", &ns, "--role=schedules", "--user=sam"])
        .unwrap();
    kubectl.await_right("sam", &ns, "create", "schedules.velero.io").unwrap();
    let create = |object: &Value| {
        let args = ["create", "-n", &ns, "--as=sam", "--dry-run=server", "-f", "-"];
        kubectl.answer(&args, &object.to_string())
    };
    let hooks = json!({"resources": [{"name": "h", "pre": [{"exec": {"command": ["id"]}}]}]});
    let with_hooks = schedule("hooked", "@yearly", json!({"template": {"hooks": hooks}}));
    let mut first = schedule("first", "@yearly", json!({}));
    first["metadata"]["annotations"]["berth.dev/supersede"] = json!("true");
    let mut high = schedule("high", "@yearly", json!({}));
    high["metadata"]["labels"]["berth.dev/priority-class"] = json!("high");
    let refused =
        [(with_hooks, "spec.template.hooks: "), (first, "berth-operator"), (high, "berth-operator")];
    for (object, told) in &refused {
        // An API server takes a moment to know a new policy.
        wait_for("the policy to refuse it", PATIENCE, || {
            let answer = create(object)?;
            Ok((!answer.status.success() && answer.stderr.contains(told)).then_some(()))
        })
        .unwrap();
    }
    let answer = create(&schedule("plain", "@yearly", json!({}))).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);

    // Those that somebody else made with such a right back up, and run, what that person has said.
    let mut low = schedule("low", "@yearly", json!({}));
    low["metadata"]["labels"]["berth.dev/priority-class"] = json!("normal");
    let mut few = schedule("few", "@yearly", json!({}));
    few["metadata"]["annotations"]["berth.dev/successful-history-limit"] = json!("7");
    let made: Vec<Value> = refused.iter().map(|(object, _)| object.clone()).chain([low, few]).collect();
    let answer = kubectl.create(&ns, &made).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    // By limits of history a Schedule has backups deleted.
    let patch = |name: &str, change: &Value| {
        let change = change.to_string();
        let args = ["patch", "schedules.velero.io", name, "-n", &ns, "--as=sam", "--dry-run=server"];
        kubectl.answer(&[&args[..], &["--type=merge", "-p", &change]].concat(), "").unwrap()
    };
    for (name, told) in [
        ("hooked", "spec.template.hooks: "),
        ("first", "berth-operator"),
        ("high", "berth-operator"),
        ("few", "berth-operator"),
    ] {
        for change in [
            json!({"spec": {"template": {"includedNamespaces": ["kube-system"]}}}),
            json!({"spec": {"template": {"labelSelector": {"matchLabels": {"a": "b"}}}}}),
            json!({"spec": {"schedule": "@daily"}}),
        ] {
            let answer = patch(name, &change);
            assert!(
                !answer.status.success() && answer.stderr.contains(told),
                "{name} {change}: {}",
                answer.stderr
            );
            let answer = patch("low", &change);
            assert!(answer.status.success(), "{change}: {}", answer.stderr);
        }
        for change in [json!({"spec": {"paused": true}}), json!({"metadata": {"annotations": {"a": "b"}}})] {
            let answer = patch(name, &change);
            assert!(answer.status.success(), "{name} {change}: {}", answer.stderr);
        }
    }
    for (name, limit) in [("few", "successful"), ("low", "successful"), ("low", "failed")] {
        let key = format!("berth.dev/{limit}-history-limit");
        let answer = patch(name, &json!({"metadata": {"annotations": {key: "1"}}}));
        assert!(!answer.status.success() && answer.stderr.contains("limits of history"), "{}", answer.stderr);
    }
    // Nor when it has run: by that, times run again, and new Backups push out all older ones.
    for change in [
        json!({"status": {"lastBackup": "2020-01-01T00:00:00Z"}}),
        json!({"status": {"lastSkipped": "2020-01-01T00:00:00Z"}}),
        json!({"status": {"phase": "FailedValidation"}}),
    ] {
        for name in ["few", "hooked", "low"] {
            let answer = patch(name, &change);
            let is_told = answer.stderr.contains("status: which times have had their backups");
            assert!(!answer.status.success() && is_told, "{name} {change}: {}", answer.stderr);
        }
        let mut born = schedule("born", "@yearly", json!({}));
        born["status"] = change["status"].clone();
        let answer = create(&born).unwrap();
        assert!(!answer.status.success() && answer.stderr.contains("leave status out"), "{}", answer.stderr);
    }
    // By deleting a Schedule that owns its Backups whoever may not delete Backups would remove
    // them.
    let owns = json!({"spec": {"useOwnerReferencesInBackup": true}});
    let answer = patch("low", &owns);
    assert!(!answer.status.success() && answer.stderr.contains("the verb delete on"), "{}", answer.stderr);
    let answer = create(&schedule("owner", "@yearly", owns["spec"].clone())).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// Whoever creates Backups can foretell two names of each time, take them, and say that they are
/// the Schedule's.
#[test]
fn no_backup_of_somebody_else_takes_the_place_of_a_scheduled_one() {
    let mut berth =
        Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "scheduling-taken")).unwrap();
    let (kubectl, ns) = (berth.kubectl().clone(), berth.namespace().to_owned());
    // Soon, and once a year.
    let at = Timestamp::now() + SignedDuration::from_secs(20);
    let at = Timestamp::from_second(at.as_second() - at.as_second() % 60 + 60).unwrap();
    let expression = at.strftime("%-M %-H %-d %-m *").to_string();
    let answer = kubectl.create(&ns, &[schedule("taken", &expression, json!({}))]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let uid = read(&berth, "taken").metadata.uid.unwrap();
    let first = format!("taken-{}", at.strftime("%Y%m%d%H%M%S"));
    let digest = ring::digest::digest(&ring::digest::SHA256, uid.as_bytes());
    let short: String = digest.as_ref().iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    let second = format!("{first}-{}", &short[..5]);
    let owner = json!({"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "taken", "uid": uid});
    for name in [&first, &second] {
        let mut squatter = crate::support::backup::backup_of(name, &["default"]);
        squatter["metadata"]["labels"] = json!({"velero.io/schedule-name": "taken"});
        squatter["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
        squatter["metadata"]["ownerReferences"] = json!([owner]);
        let answer = kubectl.create(&ns, &[squatter]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
    }
    let made = wait_for("the Schedule's own backup", PATIENCE, || {
        let all = backups(&berth, "taken")?;
        let own = |backup: &&Backup| backup.annotations().get("berth.dev/schedule-uid") == Some(&uid);
        Ok(all.values().find(own).cloned())
    })
    .unwrap();
    let name = made.name_any();
    assert!(name.starts_with(&format!("{first}-")) && name != second, "{name}");
    wait_for("it to be recorded", PATIENCE, || Ok(last_backup(&read(&berth, "taken")))).unwrap();
    assert_eq!(last_backup(&read(&berth, "taken")), Some(at));
    // Another leader, for whom nothing is recorded, makes none besides.
    let controller = format!("--as=system:serviceaccount:{ns}:berth-controller");
    berth.controller.stop().unwrap();
    let status = json!({"status": {"lastBackup": null}}).to_string();
    let args =
        ["patch", "schedules.velero.io", "taken", "-n", &ns, &controller, "--type=merge", "-p", &status];
    kubectl.run(&args).unwrap();
    let before = backups(&berth, "taken").unwrap().len();
    berth.controller.process.restart().unwrap();
    wait_for("it to be recorded again", PATIENCE, || Ok(last_backup(&read(&berth, "taken")))).unwrap();
    assert_eq!(backups(&berth, "taken").unwrap().len(), before);
}

#[test]
fn who_creates_a_schedule_is_told_what_others_take_then_and_so_is_who_asks_later() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "colliding")).unwrap();
    let (ns, kubectl) = (berth.namespace(), berth.kubectl());
    let of = |name: &str, expression: &str, namespace: &str| {
        schedule(name, expression, json!({"template": {"includedNamespaces": [namespace]}}))
    };
    let others = [of("monthly", "58 1 1 * *", "def*"), of("elsewhere", "0 2 1 * *", "kube-public")];
    assert!(kubectl.create(ns, &others).unwrap().status.success());
    let daily = of("daily", "0 2 1 * *", "default");
    let told = "berth: Schedule monthly, which also takes default, runs within 5 minutes of each of these times: one waits for the other";
    wait_for("the webhook to know the other Schedules", PATIENCE, || {
        let args = ["create", "--dry-run=server", "-n", ns, "-f", "-"];
        let answer = kubectl.answer(&args, &daily.to_string())?;
        Ok(answer.warnings().contains(&told).then_some(()))
    })
    .unwrap();
    let answer = kubectl.create(ns, &[daily]).unwrap();
    let warnings = answer.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let described = crate::cli::said(&berth, &["schedule", "describe", "daily"]);
    assert!(described.contains("Meets:     monthly, which also takes default: each time\n"), "{described}");
    let described = crate::cli::said(&berth, &["schedule", "describe", "elsewhere"]);
    assert!(described.contains("Next:") && !described.contains("Meets:"), "{described}");
}
