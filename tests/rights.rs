//! Least rights: with the roles that are shipped everything works, and without any one rule of them
//! something breaks.

mod data_movers;
mod garden;
mod member;
pub mod movers;
pub mod needs;
mod node_agent;
mod none;

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use berth::install::hub::HUB_SECRET;
use berth::install::{InstallSettings, MemberParts, member as install, render};
use berth::settings::{Certificates, Executor};
use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::peers::define_movers;
use crate::support::times::Wait;
use crate::support::{Berth, ControlPlane, Options, manifest, project, wait_for};
use needs::{Need, needs};

/// Much longer than anything here takes with all rights; what the API server refused is looked for
/// besides.
const BROKEN: Duration = Duration::from_secs(6);
const AT_ONCE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// berth does not become ready.
    NotReady,
    /// A Backup is queued and never runs.
    NotRun,
    /// No controller finds out whether its location can be used.
    LocationUnknown,
    /// The leader cannot stay one.
    LosesLead,
    /// Nothing reports it.
    NoEvent,
    /// Another queue is refused, and no Event says so.
    NoForeignQueueEvent,
    /// It sees none of this kind, which only the log tells. With --executor=velero, and data
    /// movers.
    Blind(&'static str),
    /// Only the log tells, in these words, what it could not do. With --executor=velero, and data
    /// movers.
    OnlyLogged(&'static str),
    /// A hook fails, because it may not be run.
    NoHooks,
    /// A volume is not backed up: see [`crate::volumes`].
    NoData,
    /// Nothing is started: Velero cannot be asked. With --executor=velero.
    CannotAskVelero,
    /// Only the log tells, in these words, what the hub of shared buckets could not do: see
    /// [`garden`].
    OfHub(&'static str),
}

/// Of its own: other tests give rights away.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| {
        let plane = ControlPlane::start().unwrap();
        define_movers(&plane).unwrap();
        plane
    })
}

fn start(namespace: &str, need: Option<&Need>, beside_velero: bool) -> anyhow::Result<Berth> {
    start_within(namespace, need, beside_velero, BROKEN)
}

/// `broken`: how long to wait for one that is not to become ready.
fn start_within(
    namespace: &str,
    need: Option<&Need>,
    beside_velero: bool,
    broken: Duration,
) -> anyhow::Result<Berth> {
    let mut options = Options::new(program(), namespace);
    options.env.push(("BERTH_LOG".to_owned(), "berth=debug,info".to_owned()));
    options.controller_args.push("--list-retry-timeout=1s".to_owned());
    options.controller_args.extend(movers::PATIENCE_OF_CONTROLLER.map(str::to_owned));
    options.beside_velero = beside_velero;
    options.garden = need.is_some_and(|need| need.role == "berth-webhook-garden" && need.kind == "Role");
    if let Some(need) = need {
        options.without_rule = Some((need.kind, need.role, need.rule));
        if need.symptom == Symptom::NotReady {
            options.patience = broken;
        }
    }
    let plane = plane();
    if beside_velero {
        // Velero's users have one.
        plane.define().unwrap();
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {
                "apiVersion": "velero.io/v1",
                "kind": "BackupStorageLocation",
                "metadata": {"name": "default", "namespace": namespace},
                "spec": {"provider": "aws", "default": true, "objectStorage": {"bucket": "b"}},
            },
        ]});
        plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string()).unwrap();
        movers::prepare(plane, namespace);
    }
    if need.is_none() {
        // What is refused before the API server knows the roles is no fault of theirs.
        let mut objects = manifest::objects(namespace, "https://127.0.0.1:1", beside_velero)?;
        objects.retain(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "Namespace" || kind == "ServiceAccount" || kind.contains("Role")
        });
        plane.install(objects)?;
        for (duty, verb, resource) in [
            ("controller", "patch", "backups.velero.io"),
            ("controller", "list", "nodes"),
            ("webhook", "list", "backups.velero.io"),
            ("webhook", "list", "nodes"),
        ] {
            let account = format!("system:serviceaccount:{namespace}:berth-{duty}");
            plane.kubectl().await_right(&account, namespace, verb, resource)?;
        }
    }
    Berth::start(plane, options)
}

fn logged(logs: &[std::path::PathBuf]) -> String {
    logs.iter().map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect()
}

/// Lines in which the API server refuses something to berth's service account for that duty; for
/// any, if that is empty.
fn refusals<'l>(logs: &'l str, namespace: &str, duty: &str) -> Vec<&'l str> {
    let account = format!("system:serviceaccount:{namespace}:berth-{duty}");
    logs.lines().filter(|line| line.contains("is forbidden") && line.contains(&account)).collect()
}

fn create(berth: &Berth, name: &str) {
    let answer = berth.kubectl().create(berth.namespace(), &[backup_of(name, &["default"])]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

fn completes(berth: &Berth, name: &str, patience: Duration) -> bool {
    let done = || {
        let phase = berth.kubectl().phase(berth.namespace(), name)?;
        Ok((phase == BackupPhase::Completed).then_some(()))
    };
    wait_for("the backup to complete", patience, done).is_ok()
}

/// What is said of the hook of a pod that runs nowhere, and so has no kubelet either.
fn hook_fails_for(berth: &Berth) -> String {
    let kubectl = berth.kubectl();
    let namespace = format!("{}-hooked", berth.namespace());
    let metadata = json!({
        "name": "db", "namespace": namespace, "annotations": {"pre.hook.backup.velero.io/command": "true"},
    });
    let containers = json!([{"name": "main", "image": "example.com/nothing"}]);
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}},
    ]});
    kubectl.run_with(&["create", "-f", "-"], &objects.to_string()).unwrap();
    let answer = kubectl.create(berth.namespace(), &[backup_of("hooked", &[namespace.as_str()])]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let log = berth.controller.process.log().to_owned();
    wait_for("the hook to fail", PATIENCE, || {
        let text = logged(std::slice::from_ref(&log));
        Ok(text.lines().find(|line| line.contains("a hook failed")).map(str::to_owned))
    })
    .unwrap()
}

fn has_event(berth: &Berth, reason: &str, patience: Duration) -> bool {
    let selector = format!("reason={reason}");
    let args =
        ["get", "events.events.k8s.io", "-n", berth.namespace(), "--field-selector", &selector, "-o", "name"];
    let told = || Ok((!berth.kubectl().run(&args)?.is_empty()).then_some(()));
    wait_for("the Event", patience, told).is_ok()
}

/// Velero's own queue, left on by mistake.
fn foreign_queue(berth: &Berth) {
    create(berth, "moved");
    let (kubectl, namespace) = (berth.kubectl(), berth.namespace());
    let velero = format!("system:serviceaccount:{namespace}:velero");
    let (role, user) = ("--role=berth-user", format!("--user={velero}"));
    kubectl.run(&["create", "rolebinding", "velero", "-n", namespace, role, &user]).unwrap();
    kubectl.await_right(&velero, namespace, "patch", "backups.velero.io").unwrap();
    let patch = json!({"status": {"phase": "ReadyToStart", "queuePosition": 0}}).to_string();
    let who = format!("--as={velero}");
    let args = ["patch", "backups.velero.io", "moved", "-n", namespace, &who, "--type=merge", "-p", &patch];
    let answer = kubectl.answer(&args, "").unwrap();
    assert!(answer.stderr.contains("Conflict") || answer.stderr.contains("changed"), "{}", answer.stderr);
}

/// The review of shared buckets looks for the Secret.
fn name_credentials(berth: &Berth) {
    let profile = json!({
        "apiVersion": "garden.berth.dev/v1alpha1",
        "kind": "CloudProfile",
        "metadata": {"name": berth.namespace()},
        "spec": {
            "provider": "aws",
            "constraints": {"regions": ["eu"]},
            "backup": {
                "secretRef": {"name": "operator", "namespace": "garden"},
                "providerConfig": {"locationKeys": "shared"},
            },
        },
    });
    let _ = berth.kubectl().answer(&["create", "--dry-run=server", "-f", "-"], &profile.to_string()).unwrap();
}

/// Velero's own definition is not here, so it is told apart from a refusal to ask.
fn stopped(berth: &Berth) -> Option<String> {
    let args = ["get", "lease", "berth-controller", "-n", berth.namespace(), "-o", "json"];
    let lease: Value = serde_json::from_str(&berth.kubectl().run(&args).ok()?).ok()?;
    let why = lease["metadata"]["annotations"]["berth.dev/stopped"].as_str()?;
    (why.contains("Velero")).then(|| why.to_owned())
}

#[test]
fn with_all_rules_everything_works() {
    let berth = start("all-rules", None, false).unwrap();
    create(&berth, "whole");
    assert!(completes(&berth, "whole", PATIENCE));
    assert!(has_event(&berth, "Dequeued", PATIENCE));
    let why = hook_fails_for(&berth);
    assert!(why.contains("does not have a host assigned"), "{why}");
    berth
        .kubectl()
        .run(&["annotate", "bsl", "default", "-n", berth.namespace(), "berth.dev/hold=true"])
        .unwrap();
    foreign_queue(&berth);
    assert!(has_event(&berth, "ForeignQueue", PATIENCE));
    let logs = logged(&berth.logs());
    let refusals = refusals(&logs, berth.namespace(), "");
    assert!(refusals.is_empty(), "{refusals:#?}");
}

fn tail(logs: &str) -> String {
    logs.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}

fn breaks(need: &Need, index: usize) {
    let namespace = format!("rule-{index}");
    let what = format!("{} {} rule {} ({})", need.kind, need.role, need.rule, need.needed_for);
    let logs = [plane().folder().join(&namespace).join(format!("{}.log", need.duty()))];
    // The reason for all that breaks: the API server refused it to that service account.
    let is_refused = || !refusals(&logged(&logs), &namespace, need.duty()).is_empty();
    let beside_velero = need.is_seen_beside_velero();
    let mut broken = BROKEN;
    let mut berth = start_within(&namespace, Some(need), beside_velero, broken);
    // A busy machine may not have come so far.
    while need.symptom == Symptom::NotReady && berth.is_err() && !is_refused() && broken < PATIENCE {
        broken *= 4;
        berth = start_within(&namespace, Some(need), beside_velero, broken);
    }
    if need.symptom == Symptom::NotReady {
        assert!(berth.is_err(), "berth became ready without {what}");
    } else {
        let berth = berth.unwrap();
        let tells = |words: &str| {
            movers::create(plane(), &namespace);
            name_credentials(&berth);
            let told = || Ok(logged(&logs).contains(words).then_some(()));
            wait_for(&format!("the log to tell {words:?} without {what}"), PATIENCE, told).unwrap();
        };
        let wait_refused = || {
            wait_for(&format!("a refusal without {what}"), PATIENCE, || Ok(is_refused().then_some(())))
                .unwrap_or_else(|error| panic!("{error}: {}", tail(&logged(&logs))));
        };
        match need.symptom {
            Symptom::NotReady | Symptom::OfHub(_) | Symptom::NoData => {}
            Symptom::NotRun => {
                create(&berth, "never");
                wait_refused();
                assert!(!completes(&berth, "never", BROKEN), "{what}");
            }
            Symptom::LocationUnknown => {
                let path = "jsonpath={.status.phase}";
                let args = ["get", "bsl", "default", "-n", &namespace, "-o", path];
                let checked = || Ok((!berth.kubectl().run(&args)?.is_empty()).then_some(()));
                wait_refused();
                assert!(wait_for("the check of the location", BROKEN, checked).is_err(), "{what}");
            }
            Symptom::LosesLead => {
                let lost = || Ok(logged(&logs).contains("could not be renewed in time").then_some(()));
                wait_for("the lead to be lost", PATIENCE, lost).unwrap();
            }
            Symptom::NoEvent => {
                create(&berth, "silent");
                assert!(completes(&berth, "silent", PATIENCE), "{what}");
                wait_refused();
                assert!(!has_event(&berth, "Dequeued", BROKEN / 3), "{what}");
            }
            Symptom::NoForeignQueueEvent => {
                berth
                    .kubectl()
                    .run(&["annotate", "bsl", "default", "-n", &namespace, "berth.dev/hold=true"])
                    .unwrap();
                foreign_queue(&berth);
                wait_refused();
                assert!(!has_event(&berth, "ForeignQueue", BROKEN / 3), "{what}");
            }
            Symptom::NoHooks => {
                // The API server does not say whom it refuses that.
                let why = hook_fails_for(&berth);
                assert!(why.contains("whether the ClusterRole berth-hooks is missing"), "{what}: {why}");
                return;
            }
            Symptom::Blind(kind) => tells(&format!("the watch was interrupted kind={kind} ")),
            Symptom::OnlyLogged(words) => tells(words),
            Symptom::CannotAskVelero => {
                let why = wait_for("why nothing is started", PATIENCE, || Ok(stopped(&berth))).unwrap();
                assert!(why.contains("cannot be asked"), "{what}: {why}");
            }
        }
        wait_refused();
        drop(berth);
    }
    assert!(is_refused(), "{what}: nothing was refused; the end of the log: {}", tail(&logged(&logs)));
}

#[test]
fn any_one_rule_less_breaks_something() {
    let of_queue = needs().filter(|need| !matches!(need.symptom, Symptom::OfHub(_) | Symptom::NoData));
    let work = Mutex::new(of_queue.enumerate());
    let _wait = Wait::start("each rule to be missed");
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((index, need)) = next else { return };
                    breaks(&need, index);
                }
            });
        }
    });
}

fn rendered() -> Vec<Value> {
    let beside = InstallSettings { executor: Executor::Velero, ..InstallSettings::new("velero") };
    let cert_manager =
        InstallSettings { certificates: Certificates::CertManager, ..InstallSettings::new("velero") };
    let hub = install::HubCredentialsSecret { secret: HUB_SECRET.to_owned(), digest: None };
    let member =
        InstallSettings { member: Some(MemberParts::Courier(hub)), ..InstallSettings::new("velero") };
    let files = InstallSettings { pod_volumes: true, ..InstallSettings::new("velero") };
    let mut objects = render(&InstallSettings::new("velero")).unwrap();
    for object in [beside, cert_manager, member, files].iter().flat_map(|settings| render(settings).unwrap())
    {
        let is_there = objects.iter().any(|one| {
            ["name", "namespace"].iter().all(|field| one["metadata"][field] == object["metadata"][field])
                && one["kind"] == object["kind"]
        });
        if !is_there {
            objects.push(object);
        }
    }
    objects
}

fn words(value: &Value) -> String {
    let words: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    words.join(", ")
}

/// The table of the documentation: every rule of every role, and what it is for.
fn table() -> String {
    let others = |kind: &str, role: &str, rule: usize| match (role, rule) {
        ("berth-garden-seeds", 0) if kind == "Role" => "records of what has ended",
        ("berth-garden-seeds", 0) => "what is given to the seed, and to others",
        ("berth-garden-seeds", 1) => "telling what became of it, and that the seed is alive",
        ("berth-viewer", 0) => "`berth queue list`, `watch`, `explain`, `berth backup get`, `describe`",
        ("berth-viewer", 6) => {
            "`berth schedule get`, `describe`; deletion attempts in `berth backup describe`"
        }
        ("berth-reader", 0) => "`berth backup logs`, `download`, `contents`, `diff`",
        ("berth-user", 8) => {
            "`berth schedule get`, `describe`; `--from-schedule`, `--volume-snapshot-locations`; deletion attempts in `berth backup describe`"
        }
        ("berth-scheduler", 0) => "`berth schedule create`, `pause`, `unpause`, `delete`",
        ("berth-deleter", 0) => "`berth backup delete`",
        ("berth-deleter", 1) => "removing the Backup alone, by kubectl",
        ("berth-lifecycle", 0) if kind == "ClusterRole" => "having the snapshots of a deleted backup deleted",
        ("berth-lifecycle", 1) if kind == "ClusterRole" => "removing the objects of these snapshots",
        ("berth-lifecycle", 0) => "creating what is due or in the store; removing what is deleted or gone",
        ("berth-lifecycle", 1) => "knowing when Schedules are due, recording it",
        ("berth-lifecycle", 2) => "carrying out deletions, and asking for those of expired Backups",
        ("berth-lifecycle", 3) => "answering downloads",
        ("berth-lifecycle", 4) => "removing the Restores of a deleted Backup",
        ("berth-lifecycle", 5) => "bringing PodVolumeBackups from a store",
        ("berth-lifecycle", 6) => "`velero version`",
        ("berth-viewer", 1) | ("berth-user", 3) => "knowing the slots and the order",
        ("berth-viewer", 2) | ("berth-user", 4) => "`berth queue movers`",
        ("berth-viewer", 3) | ("berth-user", 5) => "where node-agents and data movers run",
        ("berth-viewer", 4) | ("berth-user", 6) => "finding the node-agents' configuration",
        ("berth-viewer", 5) | ("berth-user", 7) => "reading it, and the ledger of grants",
        ("berth-user", 0) => "making, seeing, holding, ending Backups",
        ("berth-user", 1) => "`berth queue hold --location`",
        ("berth-user", 2) => "a priority class that lets others pass",
        ("berth-operator", 0) => {
            "`berth queue first`, all priority classes, superseding, finished Backups of other clusters"
        }
        _ => unreachable!("{role} {rule} is not in the table"),
    };
    let mut table = "| role | may | on | needed for |\n|---|---|---|---|\n".to_owned();
    for role in rendered().iter().filter(|object| object["rules"].is_array()) {
        let (kind, name) = (role["kind"].as_str().unwrap(), role["metadata"]["name"].as_str().unwrap());
        for (index, rule) in role["rules"].as_array().unwrap().iter().enumerate() {
            let found = needs().find(|need| (need.kind, need.role, need.rule) == (kind, name, index));
            let found = found.map(|need| need.needed_for).or_else(|| member::needed_for(role, index));
            let found = found.or_else(|| node_agent::needed_for(role, index));
            let found = found.or_else(|| data_movers::needed_for(role, index));
            let needed_for = found.unwrap_or_else(|| others(kind, name, index));
            let names = words(&rule["resourceNames"]);
            let names = if names.is_empty() { names } else { format!(" {names}") };
            let on = format!("{}{names}", words(&rule["resources"]).replace('*', "\\*"));
            let place =
                member::elsewhere(role).map(|namespace| format!(" in {namespace}")).unwrap_or_default();
            writeln!(table, "| {kind} {name}{place} | {} | {on} | {needed_for} |", words(&rule["verbs"]))
                .unwrap();
        }
    }
    table
}

#[test]
fn the_documentation_has_every_rule_and_what_needs_it() {
    let page = std::fs::read_to_string(project().join("docs/install.md")).unwrap();
    let table = table();
    assert!(page.contains(&table), "docs/install.md lacks this table:\n\n{table}");
    let rules: usize = rendered().iter().filter_map(|object| Some(object["rules"].as_array()?.len())).sum();
    let others = 33;
    let of_agents = member::RIGHTS.len() + node_agent::RIGHTS.len() + data_movers::RIGHTS.len();
    assert_eq!(needs().count() + of_agents + others, rules, "each rule has its test");
}

/// What people may do by the roles for them, and no more.
#[test]
fn viewers_look_and_users_make_and_move() {
    let berth = start("people", None, false).unwrap();
    let (kubectl, namespace) = (berth.kubectl(), berth.namespace());
    kubectl.run(&["annotate", "bsl", "default", "-n", namespace, "berth.dev/hold=true"]).unwrap();
    create(&berth, "theirs");
    let as_one_of = |role: &str, without: Option<usize>| {
        let name = format!("{role}-{}", without.map_or("whole".to_owned(), |rule| rule.to_string()));
        let mut bound = role.to_owned();
        if let Some(rule) = without {
            let text = kubectl.run(&["get", "role", role, "-n", namespace, "-o", "json"]).unwrap();
            let mut object: Value = serde_json::from_str(&text).unwrap();
            object["metadata"] = json!({"name": name});
            let rules = object["rules"].as_array_mut().unwrap();
            rules.remove(rule);
            // By which the API server shows that it goes by this role. Until then it refuses all.
            rules.push(json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["be-bound"]}));
            kubectl.run_with(&["create", "-n", namespace, "-f", "-"], &object.to_string()).unwrap();
            bound.clone_from(&name);
        }
        kubectl.run(&["create", "serviceaccount", &name, "-n", namespace]).unwrap();
        let account = format!("--serviceaccount={namespace}:{name}");
        let role = format!("--role={bound}");
        kubectl.run(&["create", "rolebinding", &name, "-n", namespace, &role, &account]).unwrap();
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let (verb, resource) = match without {
            None => ("list", "backups.velero.io"),
            Some(_) => ("be-bound", "configmaps"),
        };
        kubectl.await_right(&user, namespace, verb, resource).unwrap();
        berth.plane().service_account_kubeconfig(namespace, &name).unwrap()
    };
    let queue = |kubeconfig: &std::path::Path, args: &[&str]| {
        let mut command = std::process::Command::new(program());
        command.arg("queue").args(args).args(["--namespace", namespace, "--kubeconfig"]).arg(kubeconfig);
        command.output().unwrap()
    };
    let viewer = as_one_of("berth-viewer", None);
    let seen = queue(&viewer, &["list"]);
    assert!(seen.status.success() && String::from_utf8_lossy(&seen.stdout).contains("theirs"), "{seen:?}");
    assert!(!queue(&viewer, &["hold", "theirs"]).status.success());
    assert!(!queue(&as_one_of("berth-viewer", Some(0)), &["list"]).status.success());
    let user = as_one_of("berth-user", None);
    for (role, whole, needed) in [("berth-viewer", &viewer, 2..6), ("berth-user", &user, 4..8)] {
        let seen = queue(whole, &["movers"]);
        assert!(seen.status.success(), "{role}: {}", String::from_utf8_lossy(&seen.stderr));
        for rule in needed {
            let seen = queue(&as_one_of(role, Some(rule)), &["movers"]);
            let said = String::from_utf8_lossy(&seen.stderr);
            assert!(!seen.status.success() && said.contains("forbidden"), "{role} without {rule}: {said}");
        }
    }
    let first = queue(&user, &["first", "theirs"]);
    let said = String::from_utf8_lossy(&first.stderr);
    assert!(!first.status.success() && said.contains("bind the ClusterRole berth-operator"), "{said}");
    let (operator, account) = (
        format!("--clusterrole=berth-operator-{namespace}"),
        format!("--serviceaccount={namespace}:berth-user-whole"),
    );
    kubectl.run(&["create", "rolebinding", "operator", "-n", namespace, &operator, &account]).unwrap();
    let moved = || Ok(queue(&user, &["first", "theirs"]).status.success().then_some(()));
    wait_for("operators to move it", PATIENCE, moved).unwrap();
    for args in
        [&["list"][..], &["hold", "theirs"], &["release", "theirs"], &["release", "--location", "default"]]
    {
        let done = queue(&user, args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let made =
        kubectl.with_kubeconfig(user.clone()).create(namespace, &[backup_of("made", &["default"])]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let without_backups = as_one_of("berth-user", Some(0));
    let refused =
        kubectl.with_kubeconfig(without_backups).create(namespace, &[backup_of("no", &["default"])]).unwrap();
    assert!(!refused.status.success());
    // Who makes backups removes none, and has none made by berth.
    for (verb, resource, role) in [
        ("create", "deletebackuprequests.velero.io", "berth-deleter"),
        ("delete", "backups.velero.io", "berth-deleter"),
        ("create", "schedules.velero.io", "berth-scheduler"),
        ("patch", "schedules.velero.io", "berth-scheduler"),
        ("delete", "schedules.velero.io", "berth-scheduler"),
    ] {
        let may = |user: &str| {
            let who = format!("--as=system:serviceaccount:{namespace}:{user}");
            let answer = kubectl.answer(&["auth", "can-i", verb, resource, "-n", namespace, &who], "");
            answer.unwrap().stdout.trim() == "yes"
        };
        assert!(!may("berth-user-whole"), "berth-user may {verb} {resource}");
        let one = format!("one-{role}");
        let account = format!("--serviceaccount={namespace}:{one}");
        let binding = format!("{one}-{verb}-{}", resource.split('.').next().unwrap());
        kubectl
            .run(&["create", "rolebinding", &binding, "-n", namespace, &format!("--role={role}"), &account])
            .unwrap();
        wait_for("the role to be bound", PATIENCE, || Ok(may(&one).then_some(()))).unwrap();
    }
    assert!(!queue(&as_one_of("berth-user", Some(1)), &["hold", "--location", "default"]).status.success());
}
