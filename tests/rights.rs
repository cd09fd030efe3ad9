//! Least rights: with the roles that are shipped everything works, and without any one rule of them something breaks.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use berth::args::Executor;
use berth::install::{Certificates, Settings, render};
use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::backup::backup_of;
use crate::support::{Berth, ControlPlane, Options, project, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
/// Much longer than anything here takes with all rights; what the API server refused is looked for besides.
const BROKEN: Duration = Duration::from_secs(6);
const AT_ONCE: usize = 3;

/// What a rule is for, and how its absence shows.
struct Need {
    kind: &'static str,
    role: &'static str,
    rule: usize,
    /// For the documentation.
    needed_for: &'static str,
    symptom: Symptom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symptom {
    /// berth does not become ready.
    NotReady,
    /// A Backup is queued and never runs.
    NotRun,
    /// Nobody finds out whether its location can be used.
    LocationUnknown,
    /// The leader cannot stay one.
    LosesLead,
    /// Nothing is told of it.
    NoEvent,
    /// Another queue is refused, and nobody is told.
    NoForeignQueueEvent,
    /// Only the log of the controller tells that it could not look. With --executor=velero.
    OnlyLogged(&'static str),
    /// The same of the webhook.
    WebhookOnlyLogged(&'static str),
    /// Nothing is started: Velero cannot be asked. With --executor=velero.
    CannotAskVelero,
}

const fn need(
    kind: &'static str,
    role: &'static str,
    rule: usize,
    needed_for: &'static str,
    symptom: Symptom,
) -> Need {
    Need { kind, role, rule, needed_for, symptom }
}

const NEEDS: [Need; 16] = [
    need(
        "Role",
        "berth-webhook",
        0,
        "answering from the queue as it is: without, never ready",
        Symptom::NotReady,
    ),
    need(
        "Role",
        "berth-webhook",
        1,
        "Events about a foreign queue and about certificates",
        Symptom::NoForeignQueueEvent,
    ),
    need("Role", "berth-webhook", 2, "its certificate: without, never ready", Symptom::NotReady),
    need(
        "ClusterRole",
        "berth-webhook",
        0,
        "letting Backups through where the definition is too old",
        Symptom::WebhookOnlyLogged("definition of Backups"),
    ),
    need(
        "ClusterRole",
        "berth-webhook",
        1,
        "serving a certificate only when its authority is in `caBundle`",
        Symptom::NotReady,
    ),
    need("Role", "berth-controller", 0, "seeing Backups, moving them", Symptom::NotRun),
    need(
        "Role",
        "berth-controller",
        1,
        "held locations, and whether one can be used",
        Symptom::LocationUnknown,
    ),
    need("Role", "berth-controller", 2, "Events", Symptom::NoEvent),
    need("Role", "berth-controller", 3, "becoming leader where there was none", Symptom::NotReady),
    need("Role", "berth-controller", 4, "staying leader", Symptom::LosesLead),
    need(
        "ClusterRole",
        "berth-controller",
        0,
        "noticing a definition that is too old",
        Symptom::OnlyLogged("definition of Backups"),
    ),
    need(
        "ClusterRole",
        "berth-controller",
        1,
        "noticing another berth; knowing what caBundle lacks",
        Symptom::NotReady,
    ),
    need("ClusterRole", "berth-engine", 0, "backing up everything that there is", Symptom::NotRun),
    need("Role", "berth-beside-velero", 0, "asking Velero whether it is there", Symptom::CannotAskVelero),
    need("Role", "berth-certificates", 0, "making the webhooks' certificate", Symptom::NotReady),
    need("Role", "berth-certificates", 1, "renewing and repairing it", Symptom::NotReady),
];

/// One rule that no role of another duty covers as well.
const CA_BUNDLE: Need = need("ClusterRole", "berth-certificates", 0, "writing caBundle", Symptom::NotReady);

fn needs() -> impl Iterator<Item = &'static Need> {
    NEEDS.iter().chain([&CA_BUNDLE])
}

/// What backs everything up may read everything: only without it can be seen what else reads.
fn is_beside_velero(need: &Need) -> bool {
    matches!(need.symptom, Symptom::OnlyLogged(_) | Symptom::CannotAskVelero)
        || (need.kind, need.role, need.rule) == ("ClusterRole", "berth-controller", 1)
        || need.role == "berth-certificates"
}

/// Of its own: other tests give rights away.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::start().unwrap())
}

fn start(namespace: &str, need: Option<&Need>) -> (anyhow::Result<Berth>, Vec<std::path::PathBuf>) {
    let mut options = Options::new(program(), namespace);
    options.env.push(("BERTH_LOG".to_owned(), "berth=debug,info".to_owned()));
    options.controller_args.push("--list-retry-timeout=1s".to_owned());
    if let Some(need) = need {
        options.without_rule = Some((need.kind, need.role, need.rule));
        options.beside_velero = is_beside_velero(need);
        if need.symptom == Symptom::NotReady {
            options.patience = BROKEN;
        }
    }
    let plane = plane();
    if options.beside_velero {
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
    }
    let logs = ["webhook.log", "controller.log"].map(|name| plane.folder().join(namespace).join(name));
    (Berth::start(plane, options), logs.to_vec())
}

fn logged(logs: &[std::path::PathBuf]) -> String {
    logs.iter().map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect()
}

/// Lines in which the API server refuses something to berth's service accounts.
fn refusals<'l>(logs: &'l str, namespace: &str) -> Vec<&'l str> {
    let account = format!("system:serviceaccount:{namespace}:berth-");
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
    let patch = json!({"status": {"phase": "ReadyToStart", "queuePosition": 0}}).to_string();
    let who = format!("--as={velero}");
    let args = ["patch", "backups.velero.io", "moved", "-n", namespace, &who, "--type=merge", "-p", &patch];
    let answer = kubectl.answer(&args, "").unwrap();
    assert!(answer.stderr.contains("Conflict") || answer.stderr.contains("changed"), "{}", answer.stderr);
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
    let (berth, _) = start("all-rules", None);
    let berth = berth.unwrap();
    create(&berth, "whole");
    assert!(completes(&berth, "whole", PATIENCE));
    assert!(has_event(&berth, "Dequeued", PATIENCE));
    berth
        .kubectl()
        .run(&["annotate", "bsl", "default", "-n", berth.namespace(), "berth.dev/hold=true"])
        .unwrap();
    foreign_queue(&berth);
    assert!(has_event(&berth, "ForeignQueue", PATIENCE));
    let logs = logged(&berth.logs());
    let refusals = refusals(&logs, berth.namespace());
    assert!(refusals.is_empty(), "{refusals:#?}");
}

fn tail(logs: &str) -> String {
    logs.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}

fn breaks(need: &Need, index: usize) {
    let namespace = format!("rule-{index}");
    let what = format!("{} {} rule {} ({})", need.kind, need.role, need.rule, need.needed_for);
    let (berth, logs) = start(&namespace, Some(need));
    if need.symptom == Symptom::NotReady {
        assert!(berth.is_err(), "berth became ready without {what}");
    } else {
        let berth = berth.unwrap();
        match need.symptom {
            Symptom::NotReady => {}
            Symptom::NotRun => {
                create(&berth, "never");
                assert!(!completes(&berth, "never", BROKEN), "{what}");
            }
            Symptom::LocationUnknown => {
                let path = "jsonpath={.status.phase}";
                let args = ["get", "bsl", "default", "-n", &namespace, "-o", path];
                let checked = || Ok((!berth.kubectl().run(&args)?.is_empty()).then_some(()));
                assert!(wait_for("the check of the location", BROKEN, checked).is_err(), "{what}");
            }
            Symptom::LosesLead => {
                let lost = || Ok(logged(&logs).contains("could not be renewed in time").then_some(()));
                wait_for("the lead to be lost", PATIENCE, lost).unwrap();
            }
            Symptom::NoEvent => {
                create(&berth, "silent");
                assert!(completes(&berth, "silent", PATIENCE), "{what}");
                assert!(!has_event(&berth, "Dequeued", BROKEN / 3), "{what}");
            }
            Symptom::NoForeignQueueEvent => {
                berth
                    .kubectl()
                    .run(&["annotate", "bsl", "default", "-n", &namespace, "berth.dev/hold=true"])
                    .unwrap();
                foreign_queue(&berth);
                assert!(!has_event(&berth, "ForeignQueue", BROKEN / 3), "{what}");
            }
            Symptom::OnlyLogged(_) | Symptom::WebhookOnlyLogged(_) => {}
            Symptom::CannotAskVelero => {
                let why = wait_for("why nothing is started", PATIENCE, || Ok(stopped(&berth))).unwrap();
                assert!(why.contains("cannot be asked"), "{what}: {why}");
            }
        }
        if let Symptom::OnlyLogged(words) | Symptom::WebhookOnlyLogged(words) = need.symptom {
            let told = || Ok(logged(&logs).contains(words).then_some(()));
            wait_for("the log to tell", PATIENCE, told).unwrap();
        }
        drop(berth);
    }
    // And that is why: the API server refused it to that service account.
    let logs = logged(&logs);
    assert!(
        !refusals(&logs, &namespace).is_empty(),
        "{what}: nothing was refused; the end of the log: {}",
        tail(&logs)
    );
}

#[test]
fn without_any_one_rule_something_breaks() {
    let work = Mutex::new(needs().enumerate());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((index, need)) = next else { return };
                    breaks(need, index);
                }
            });
        }
    });
}

fn rendered() -> Vec<Value> {
    let beside = Settings { executor: Executor::Velero, ..Settings::new("velero") };
    let cert_manager = Settings { certificates: Certificates::CertManager, ..Settings::new("velero") };
    let mut objects = render(&Settings::new("velero")).unwrap();
    for object in [render(&beside).unwrap(), render(&cert_manager).unwrap()].concat() {
        let is_there = objects.iter().any(|one| {
            one["kind"] == object["kind"] && one["metadata"]["name"] == object["metadata"]["name"]
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
    let others = |role: &str, rule: usize| match (role, rule) {
        ("berth-viewer", 0) => "`berth queue list`, `watch`, `explain`, `berth backup describe`",
        ("berth-viewer", 1) | ("berth-user", 2) => "knowing the slots and the order",
        ("berth-user", 0) => "making, seeing, holding, moving, ending Backups",
        ("berth-user", 1) => "`berth queue hold --location`",
        _ => unreachable!("{role} {rule} is not in the table"),
    };
    let mut table = "| role | may | on | needed for |\n|---|---|---|---|\n".to_owned();
    for role in rendered().iter().filter(|object| object["rules"].is_array()) {
        let (kind, name) = (role["kind"].as_str().unwrap(), role["metadata"]["name"].as_str().unwrap());
        for (index, rule) in role["rules"].as_array().unwrap().iter().enumerate() {
            let found = needs().find(|need| (need.kind, need.role, need.rule) == (kind, name, index));
            let needed_for = found.map_or_else(|| others(name, index), |need| need.needed_for);
            let names = words(&rule["resourceNames"]);
            let names = if names.is_empty() { names } else { format!(" {names}") };
            let on = format!("{}{names}", words(&rule["resources"]).replace('*', "\\*"));
            writeln!(table, "| {kind} {name} | {} | {on} | {needed_for} |", words(&rule["verbs"])).unwrap();
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
    let others = 5;
    assert_eq!(needs().count() + others, rules, "each rule has its test");
}

/// What people may do by the roles for them, and no more.
#[test]
fn viewers_look_and_users_make_and_move() {
    let (berth, _) = start("people", None);
    let berth = berth.unwrap();
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
            object["rules"].as_array_mut().unwrap().remove(rule);
            kubectl.run_with(&["create", "-n", namespace, "-f", "-"], &object.to_string()).unwrap();
            bound.clone_from(&name);
        }
        kubectl.run(&["create", "serviceaccount", &name, "-n", namespace]).unwrap();
        let account = format!("--serviceaccount={namespace}:{name}");
        let role = format!("--role={bound}");
        kubectl.run(&["create", "rolebinding", &name, "-n", namespace, &role, &account]).unwrap();
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
    assert!(!queue(&as_one_of("berth-user", Some(1)), &["hold", "--location", "default"]).status.success());
}
