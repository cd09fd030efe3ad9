//! The guard in the API server says the same as the rules in `berth_core::guard`, case by case,
//! with berth away; grants are given by berth alone; and who may steer does so by rights.

mod deletions;
mod generated;
mod node_agent;
mod schedules;
mod secrets;
mod trust;

use std::sync::OnceLock;

use berth::movers::objects;
use berth_api::velero::Backup;
use berth_core::guard::{BackupChange, Roles, judge};
use berth_core::mover::MoverKind;
use futures::future::join_all;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::queue::{PATIENCE, dequeued, start};
use crate::rights::movers::mover;
use crate::support::backup::backup_of;
use crate::support::peers::define_movers;
use crate::support::{ControlPlane, Kubectl, manifest, wait_for, wait_until};

/// Velero's definitions of data movers, and no berth: for tests whose namespaces, users and
/// policies have names of their own.
fn with_movers() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| {
        let plane = ControlPlane::start().unwrap();
        define_movers(&plane).unwrap();
        plane
    })
}

const PHASES: [&str; 7] = ["", "New", "Queued", "ReadyToStart", "InProgress", "Completed", "Deleting"];

/// Phases of those that have ended, and of one that has not.
const ENDS: [&str; 4] = ["PartiallyFailed", "Failed", "FailedValidation", "Finalizing"];

/// From a phase to another.
fn moves() -> Vec<(&'static str, &'static str)> {
    let among = PHASES.into_iter().flat_map(|from| PHASES.into_iter().skip(1).map(move |to| (from, to)));
    let tos = ["InProgress", "WaitingForPluginOperations", "Finalizing", "FailedValidation", "Deleting"];
    let of_ends = ENDS.into_iter().chain(["Completed"]);
    let of_ends = of_ends.flat_map(|from| tos.into_iter().map(move |to| (from, to)));
    among.chain(of_ends).collect()
}

async fn client_of(plane: &ControlPlane, user: &str) -> Client {
    let file = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

fn name_of(phase: &str) -> String {
    if phase.is_empty() { "none".to_owned() } else { phase.to_lowercase() }
}

/// A dry run of a merge patch: would it go through?
async fn goes_through(api: &Api<Backup>, phase: &str, patch: &Value) -> bool {
    passes("berth-guard", api.patch(&name_of(phase), &dry_run(), &Patch::Merge(patch)).await)
}

fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

/// Or has this policy refused it?
fn passes<T>(policy: &str, answer: Result<T, kube::Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(policy) => false,
        Err(error) => panic!("{error}"),
    }
}

/// As far as roles go, and once the API server knows them.
fn let_do_everything(kubectl: &Kubectl, users: &[&str]) {
    for user in users {
        let name = format!("guard-everything-{}", user.replace(':', "-"));
        let flag = format!("--user={user}");
        kubectl.run(&["create", "clusterrolebinding", &name, "--clusterrole=cluster-admin", &flag]).unwrap();
        kubectl.await_right(user, "default", "*", "*").unwrap();
    }
}

/// What people have who may make Backups and change them, and classes that let others pass.
fn people() -> Value {
    let verbs = json!(["get", "list", "create", "patch", "delete"]);
    json!([
        {"apiGroups": ["velero.io"], "resources": ["*"], "verbs": verbs},
        {"apiGroups": ["berth.dev"], "resources": ["priorityclasses"], "resourceNames": ["low"], "verbs": ["use"]},
    ])
}

/// Binds a ClusterRole of these rules, which let create and change Backups at least. Once the API
/// server knows it.
fn may(kubectl: &Kubectl, user: &str, rules: &Value) {
    let name = format!("guard-{user}");
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name}, "rules": rules});
    kubectl.run_with(&["create", "-f", "-"], &role.to_string()).unwrap();
    let (role, flag) = (format!("--clusterrole={name}"), format!("--user={user}"));
    kubectl.run(&["create", "clusterrolebinding", &name, &role, &flag]).unwrap();
    for verb in ["create", "patch"] {
        kubectl.await_right(user, "default", verb, "backups.velero.io").unwrap();
    }
}

fn any_api(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Backup>(&()))
}

/// Would it be created?
async fn is_created(api: &Api<DynamicObject>, object: &Value) -> bool {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    passes("berth-guard", api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await)
}

fn annotation(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {format!("berth.dev/{key}"): value.into()}}})
}

const NOTHING: BackupChange<'static> = BackupChange {
    from: None,
    to: "",
    status_changed: false,
    spec_changed: false,
    is_decided: false,
    marks_changed: false,
    marks_dropped: false,
    steered: false,
    hooks_changed: false,
};
const SPEC: BackupChange<'static> = BackupChange { spec_changed: true, ..NOTHING };
const MARKS: BackupChange<'static> = BackupChange { marks_changed: true, ..NOTHING };
const STEERED: BackupChange<'static> = BackupChange { steered: true, ..NOTHING };

fn hooks() -> Value {
    let exec = json!({"exec": {"command": ["id"]}});
    json!({"resources": [{"name": "x", "pre": [exec]}]})
}

/// Merge patches, and what they change.
fn patches() -> Vec<(Value, BackupChange<'static>)> {
    vec![
        (json!({"spec": {"includedNamespaces": ["b"]}}), SPEC),
        (json!({"spec": {"hooks": hooks()}}), BackupChange { hooks_changed: true, ..SPEC }),
        (annotation("enqueued-at", "2000-01-01T00:00:00Z"), MARKS),
        (annotation("resolved-namespaces", "x"), MARKS),
        (annotation("waits-since", "2000-01-01T00:00:00Z"), MARKS),
        (annotation("frozen", "a/pod/u"), MARKS),
        (annotation("scope", "0a1b"), MARKS),
        (annotation("run", "of-nobody"), MARKS),
        (annotation("runs", "0"), MARKS),
        (annotation("publishing", "of-nobody"), MARKS),
        (annotation("schedule-uid", "of-nobody"), MARKS),
        (annotation("files-go", "true"), MARKS),
        (annotation("first", "2000-01-01T00:00:00Z"), STEERED),
        (annotation("supersede", "true"), STEERED),
        (annotation("supersede", "false"), NOTHING),
        (annotation("priority-class", "high"), STEERED),
        (annotation("priority-class", "low"), NOTHING),
        (annotation("priority-class", "normal"), NOTHING),
        (json!({"metadata": {"labels": {"berth.dev/priority-class": "high"}}}), STEERED),
        (annotation("cancel", "true"), NOTHING),
        (json!({"metadata": {"annotations": {"berth.dev/hold": "true"}, "labels": {"a": "b"}}}), NOTHING),
    ]
}

/// What people write beside the phase when they create one, and what that is.
fn births() -> Vec<(Value, BackupChange<'static>)> {
    vec![
        (json!({}), NOTHING),
        (json!({"spec": {"hooks": hooks()}}), BackupChange { hooks_changed: true, ..NOTHING }),
        // As Velero's command line writes it.
        (json!({"spec": {"hooks": {}}}), NOTHING),
        (annotation("enqueued-at", "2000-01-01T00:00:00Z"), NOTHING),
        (annotation("resolved-namespaces", "x"), MARKS),
        (annotation("waits-since", "2000-01-01T00:00:00Z"), MARKS),
        (annotation("frozen", "a/pod/u"), MARKS),
        (annotation("scope", "0a1b"), MARKS),
        (annotation("run", "of-nobody"), MARKS),
        (annotation("runs", "0"), MARKS),
        (annotation("publishing", "of-nobody"), MARKS),
        (annotation("schedule-uid", "of-nobody"), MARKS),
        (annotation("files-go", "true"), MARKS),
        (annotation("first", "2000-01-01T00:00:00Z"), STEERED),
        (annotation("supersede", "true"), STEERED),
        (annotation("priority-class", "high"), STEERED),
        (annotation("priority-class", "low"), NOTHING),
        (annotation("hold", "true"), NOTHING),
        // As Argo CD does for what is a hook.
        (json!({"metadata": {"finalizers": ["argocd.argoproj.io/hook-finalizer"]}}), NOTHING),
    ]
}

/// What becomes of the marks `run` and `schedule-uid`, and what that is.
fn drops() -> [(Value, BackupChange<'static>); 4] {
    let dropped = BackupChange { marks_dropped: true, ..MARKS };
    let both = json!({"metadata": {"annotations": {"berth.dev/run": null, "berth.dev/schedule-uid": null}}});
    [
        (annotation("run", Value::Null), dropped),
        (annotation("run", "of-nobody"), MARKS),
        (annotation("schedule-uid", Value::Null), MARKS),
        (both, MARKS),
    ]
}

fn marked(phase: &str) -> String {
    format!("marked-{}", name_of(phase))
}

/// All cases, as one user: how many they are. Each is a dry run, so that the users may ask side by
/// side.
async fn agree(plane: &ControlPlane, ns: &str, user: &str, roles: Roles) -> usize {
    let client = client_of(plane, user).await;
    let (api, raw): (Api<Backup>, _) = (Api::namespaced(client.clone(), ns), any_api(client, ns));
    let mut judged = 0;
    for (from, to) in moves() {
        let patch = json!({"status": {"phase": to, "queuePosition": 7}});
        let change = BackupChange { from: Some(from), to, status_changed: true, ..BackupChange::default() };
        let expected = judge(roles, &change).is_ok();
        assert_eq!(goes_through(&api, from, &patch).await, expected, "{user}: {from:?} to {to:?}");
        judged += 1;
    }
    for from in PHASES {
        for (patch, changes) in patches() {
            let change = BackupChange { from: Some(from), to: from, ..changes };
            let expected = judge(roles, &change).is_ok();
            assert_eq!(goes_through(&api, from, &patch).await, expected, "{user}: {from:?}: {patch}");
            judged += 1;
        }
        for (patch, changes) in drops() {
            let change = BackupChange { from: Some(from), to: from, ..changes };
            let passed = goes_through(&api, &marked(from), &patch).await;
            assert_eq!(passed, judge(roles, &change).is_ok(), "{user}: {from:?}: {patch} of marks");
            judged += 1;
        }
        // Null is no status.
        let null = Patch::Json::<()>(
            serde_json::from_value(json!([{"op": "add", "path": "/status", "value": null}])).unwrap(),
        );
        let passed = passes("berth-guard", api.patch(&name_of(from), &dry_run(), &null).await);
        let change = BackupChange {
            from: Some(from),
            to: "",
            status_changed: !from.is_empty(),
            ..BackupChange::default()
        };
        assert_eq!(passed, judge(roles, &change).is_ok(), "{user}: {from:?} to null");
        for (rest, changes) in births() {
            let mut object = backup_of("born", &["a"]);
            json_patch::merge(&mut object, &rest);
            object["status"] = if from.is_empty() { Value::Null } else { json!({"phase": from}) };
            let expected = judge(roles, &BackupChange { to: from, ..changes }).is_ok();
            assert_eq!(is_created(&raw, &object).await, expected, "{user}: create {from:?}: {rest}");
            judged += 1;
        }
    }
    // What an operator has given is not for others to take, either.
    for key in ["first", "supersede", "priority-class"] {
        let change = BackupChange { from: Some("Queued"), to: "Queued", ..STEERED };
        let passed = goes_through(&api, "Steered", &annotation(key, Value::Null)).await;
        assert_eq!(passed, judge(roles, &change).is_ok(), "{user}: no {key}");
    }
    judged
}

#[tokio::test]
async fn the_policy_and_the_rules_agree_case_by_case() {
    let mut berth = start("guard", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.process.kill().unwrap();
    berth.webhook.process.kill().unwrap();
    let kubectl = berth.kubectl().clone();
    kubectl.run(&["delete", "validatingadmissionpolicybinding", "berth-guard-guard"]).unwrap();
    let mut steered = backup_of("steered", &["a"]);
    steered["metadata"]["annotations"] = json!({"berth.dev/first": "2000-01-01T00:00:00Z",
        "berth.dev/supersede": "true", "berth.dev/priority-class": "high"});
    steered["status"] = json!({"phase": "Queued"});
    let plain = PHASES.into_iter().chain(ENDS).map(|phase| {
        let mut object = backup_of(&name_of(phase), &["a"]);
        if !phase.is_empty() {
            object["status"] = json!({"phase": phase});
        }
        object
    });
    let with_marks = PHASES.into_iter().map(|phase| {
        let mut object = backup_of(&marked(phase), &["a"]);
        object["metadata"]["annotations"] = json!({"berth.dev/run": "r", "berth.dev/schedule-uid": "u"});
        if !phase.is_empty() {
            object["status"] = json!({"phase": phase});
        }
        object
    });
    for object in plain.chain(with_marks).chain([steered]) {
        wait_until("the guard to be off", PATIENCE, async || {
            Ok(kubectl.create(&ns, std::slice::from_ref(&object))?.status.success().then_some(()))
        })
        .await
        .unwrap();
    }
    let users = [
        "mallory",
        "system:serviceaccount:guard:berth-controller",
        "system:serviceaccount:guard:velero",
        "guard-operator",
        "guard-editor",
    ];
    let_do_everything(&kubectl, &users[1..3]);
    let mut editor = people();
    // Not all of them: that would hold subresources, too.
    editor[0]["resources"] = json!(["backups"]);
    editor[0]["verbs"] = json!(["get", "list", "create", "patch", "update"]);
    for (user, rules) in [("mallory", people()), ("guard-operator", people()), ("guard-editor", editor)] {
        may(&kubectl, user, &rules);
    }
    berth.plane().install(manifest::objects(&ns, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let operator = ["--clusterrole=berth-operator-guard", "--user=guard-operator"];
    kubectl.run(&[&["create", "rolebinding", "operator", "-n", &ns][..], &operator].concat()).unwrap();
    let nobody = Roles::default();
    let all = [
        nobody,
        // Everybody who may do everything may do that as well.
        Roles { queue: true, executor: true, operator: true, editor: true, ..nobody },
        Roles { lifecycle: true, operator: true, editor: true, ..nobody },
        Roles { operator: true, ..nobody },
        Roles { editor: true, ..nobody },
    ];
    // The API server learns of the guard, and of who is an operator, through watches.
    let forged = json!({"status": {"phase": "Completed"}});
    for (user, patch, passes) in
        [("mallory", forged, false), ("guard-operator", annotation("supersede", "true"), true)]
    {
        let api = Api::namespaced(client_of(berth.plane(), user).await, &ns);
        wait_until("the guard to be on", PATIENCE, async || {
            Ok((goes_through(&api, "Queued", &patch).await == passes).then_some(()))
        })
        .await
        .unwrap();
    }
    let of_each = users.into_iter().zip(all).map(|(user, roles)| agree(berth.plane(), &ns, user, roles));
    let judged: usize = join_all(of_each).await.into_iter().sum();
    assert_eq!(judged, 5 * (7 * (6 + patches().len() + drops().len() + births().len()) + 5 * 5));
    // What replaces the whole object, and knows no status, is told what to do in its place.
    for name in ["queued", "inprogress", "completed"] {
        let patch = json!([{"op": "remove", "path": "/status"}]).to_string();
        let args = ["patch", "backups.velero.io", name, "-n", &ns, "--as=mallory", "--dry-run=server"];
        let answer = kubectl.answer(&[&args[..], &["--type=json", "-p", &patch]].concat(), "").unwrap();
        let said = answer.stderr;
        assert!(said.contains("use kubectl apply") && !said.contains("leave status out"), "{name}: {said}");
    }
    // An update that only spells out that there is no status changes nothing.
    let api: Api<Backup> = Api::namespaced(client_of(berth.plane(), users[0]).await, &ns);
    assert!(goes_through(&api, "", &json!({"status": {}, "metadata": {"labels": {"a": "c"}}})).await);
}

/// With the roles as they are shipped, and no webhook that answers.
#[tokio::test]
async fn users_make_hold_and_cancel_and_the_rest_is_for_operators_and_editors() {
    const NS: &str = "steerers";
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    let location = |name: &str, labels: Value, prefix: &str| {
        json!({"apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": name, "namespace": NS, "labels": labels},
            "spec": {"provider": "aws", "objectStorage": {"bucket": "b", "prefix": prefix}}})
    };
    let of_entry = json!({"garden.berth.dev/backup-entry": "ship--1"});
    for object in [location("default", json!({}), "p"), location("entry", of_entry.clone(), "ship--1/velero")]
    {
        kubectl.run_with(&["create", "-f", "-"], &object.to_string()).unwrap();
    }
    let mut kept = backup_of("kept", &["a"]);
    kept["metadata"]["annotations"] =
        json!({"berth.dev/keep": "a court asks for it", "berth.dev/keep-last": "2"});
    kept["metadata"]["finalizers"] = json!(["a/hook"]);
    kubectl.create(NS, &[backup_of("waits", &["a"]), kept]).unwrap();
    let_do_everything(kubectl, &["ed"]);
    for user in ["--user=ann", "--user=oli"] {
        let name = user.replace("--user=", "");
        kubectl.run(&["create", "rolebinding", &name, "-n", NS, "--role=berth-user", user]).unwrap();
    }
    let operator = format!("--clusterrole={}", manifest::suffixed("berth-operator", NS));
    kubectl.run(&["create", "rolebinding", "operator", "-n", NS, &operator, "--user=oli"]).unwrap();
    let patch = |user: &str, kind: &str, name: &str, patch: &Value| {
        let (user, patch) = (format!("--as={user}"), patch.to_string());
        let args = ["patch", kind, name, "-n", NS, &user, "--dry-run=server", "--type=merge", "-p", &patch];
        kubectl.answer(&args, "").unwrap()
    };
    wait_until("the policies to be on", PATIENCE, async || {
        let forged = patch("ann", "bsl", "default", &json!({"metadata": {"labels": {"a": "b"}}}));
        let born = born(MoverKind::DataUpload, "forged", NS, "New", Some("x"));
        let born =
            kubectl.answer(&["create", "--dry-run=server", "-f", "-"], &serde_json::to_string(&born)?)?;
        let moved = patch("ann", "backups.velero.io", "waits", &annotation("first", "2026-01-01T00:00:00Z"));
        let refused = [("berth-locations", forged), ("berth-grants", born), ("berth-guard", moved)];
        let may = patch("oli", "backups.velero.io", "waits", &annotation("first", "2026-01-01T00:00:00Z"));
        let are_on = refused.iter().all(|(policy, answer)| answer.stderr.contains(policy));
        Ok((are_on && may.status.success()).then_some(()))
    })
    .await
    .unwrap();
    // Where backups go.
    let free = json!({"metadata": {"annotations": {"berth.dev/hold": "true"}}});
    for bound in [
        json!({"spec": {"config": {"s3Url": "https://evil.example"}}}),
        json!({"spec": {"accessMode": "ReadWrite"}}),
        json!({"status": {"phase": "Available"}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"berth.dev/hold": "true", "a": "b"}}}),
        json!({"metadata": {"finalizers": ["a/b"]}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}),
    ] {
        for (user, legal) in [("ann", false), ("oli", false), ("ed", true)] {
            let answer = patch(user, "bsl", "default", &bound);
            assert_eq!(answer.status.success(), legal, "{user} {bound}: {}", answer.stderr);
            assert!(legal || answer.stderr.contains("berth-locations"), "{}", answer.stderr);
            assert!(patch(user, "bsl", "default", &free).status.success(), "{user}");
        }
    }
    // Another entry's directory.
    let prefix = |prefix: &str| json!({"spec": {"objectStorage": {"prefix": prefix}}});
    let mut read_only = prefix("ship--2/velero");
    read_only["spec"]["accessMode"] = json!("ReadOnly");
    let mut stranger = prefix("ship--2/velero");
    stranger["metadata"] = json!({"labels": {"garden.berth.dev/backup-entry": null}});
    let mut leaves = stranger.clone();
    leaves["spec"]["objectStorage"]["bucket"] = json!("c");
    for (change, legal) in [
        (prefix("ship--1/other"), true),
        (prefix("/ship--1/"), true),
        (prefix("ship--10/velero"), false),
        (prefix("ship--2/velero"), false),
        (prefix(""), false),
        (stranger, false),
        (read_only, true),
        (leaves, true),
    ] {
        let answer = patch("ed", "bsl", "entry", &change);
        assert_eq!(answer.status.success(), legal, "{change}: {}", answer.stderr);
    }
    for (prefix, legal) in [("ship--1/velero", true), ("ship--2/velero", false)] {
        let object = location("other", of_entry.clone(), prefix).to_string();
        let answer = kubectl.answer(&["create", "--as=ed", "--dry-run=server", "-f", "-"], &object).unwrap();
        assert_eq!(answer.status.success(), legal, "{prefix}: {}", answer.stderr);
    }
    // Backups, as they are created and moved.
    let create = |user: &str, rest: &Value| {
        let mut object = backup_of("new", &["a"]);
        json_patch::merge(&mut object, rest);
        let user = format!("--as={user}");
        let args = ["create", "-n", NS, &user, "--dry-run=server", "-f", "-"];
        kubectl.answer(&args, &object.to_string()).unwrap()
    };
    for (rest, who) in [
        (json!({}), &["ann", "oli", "ed"][..]),
        (annotation("hold", "true"), &["ann", "oli", "ed"]),
        (annotation("priority-class", "low"), &["ann", "oli", "ed"]),
        (annotation("priority-class", "high"), &["oli", "ed"]),
        (annotation("first", "2026-01-01T00:00:00Z"), &["oli", "ed"]),
        (annotation("supersede", "true"), &["oli", "ed"]),
        (json!({"status": {"phase": "Completed"}}), &["oli", "ed"]),
        (json!({"spec": {"hooks": hooks()}}), &["ed"]),
        // Nothing waits for an object that goes.
        (json!({"metadata": {"finalizers": ["a/b"]}}), &["ann", "oli", "ed"]),
    ] {
        for user in ["ann", "oli", "ed"] {
            let answer = create(user, &rest);
            assert_eq!(answer.status.success(), who.contains(&user), "{user} {rest}: {}", answer.stderr);
        }
    }
    for key in ["hold", "cancel", "keep"] {
        let answer = patch("ann", "backups.velero.io", "waits", &annotation(key, "true"));
        assert!(answer.status.success(), "{}", answer.stderr);
    }
    let first = annotation("first", "2026-01-01T00:00:00Z");
    let refused = patch("ann", "backups.velero.io", "waits", &first);
    assert!(refused.stderr.contains("bind the ClusterRole berth-operator"), "{}", refused.stderr);
    assert!(patch("oli", "backups.velero.io", "waits", &first).status.success());
    // When a Backup is removed.
    let verbs = json!(["get", "create", "patch", "update"]);
    may(kubectl, "upd", &json!([{"apiGroups": ["velero.io"], "resources": ["backups"], "verbs": verbs}]));
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
    for (name, bound) in [
        ("waits", json!({"metadata": {"finalizers": ["a/b"]}})),
        ("kept", json!({"metadata": {"finalizers": ["a/hook", "a/b"]}})),
        ("waits", json!({"metadata": {"ownerReferences": [owner]}})),
        ("waits", annotation("forget-volumes", "true")),
        ("kept", annotation("keep", Value::Null)),
        ("kept", annotation("keep-last", "1")),
    ] {
        for (user, legal) in [("ann", false), ("oli", false), ("upd", false), ("ed", true)] {
            let answer = patch(user, "backups.velero.io", name, &bound);
            assert_eq!(answer.status.success(), legal, "{user} {bound}: {}", answer.stderr);
            // That Role gives the deletion of all that is stored as well.
            let said = &answer.stderr;
            let names_the_verb =
                said.contains("the verb delete on backups") && !said.contains("berth-deleter");
            assert!(legal || names_the_verb, "{said}");
        }
    }
    // Who sets a finalizer at creation takes it off by an update.
    for (user, legal) in [("ann", false), ("oli", false), ("upd", true), ("ed", true)] {
        let answer = patch(user, "backups.velero.io", "kept", &json!({"metadata": {"finalizers": null}}));
        assert_eq!(answer.status.success(), legal, "{user}: {}", answer.stderr);
        assert!(legal || answer.stderr.contains("the verb update or delete on backups"), "{}", answer.stderr);
    }
    // A place of a data mover, with a grant or without.
    let rules =
        json!([{"apiGroups": ["velero.io"], "resources": ["*"], "verbs": ["get", "create", "patch"]}]);
    may(kubectl, "pat", &rules);
    for kind in MoverKind::ALL {
        let api = objects::api(&client_of(plane, "ed").await, NS, kind);
        api.create(&PostParams::default(), &born(kind, "moves", NS, "New", None)).await.unwrap();
        for (user, may_take) in [("pat", false), ("ed", true)] {
            let api = objects::api(&client_of(plane, user).await, NS, kind);
            for (phase, takes) in
                [("Accepted", true), ("Prepared", true), ("InProgress", true), ("Canceled", false)]
            {
                let legal = may_take || !takes;
                let patch = Patch::Merge(json!({"status": {"phase": phase}}));
                let passed = passes("berth-grants", api.patch("moves", &dry_run(), &patch).await);
                assert_eq!(passed, legal, "{user}: {kind} to {phase}");
                let create = PostParams { dry_run: true, ..PostParams::default() };
                let passed =
                    passes("berth-grants", api.create(&create, &born(kind, "new", NS, phase, None)).await);
                assert_eq!(passed, legal, "{user}: {kind} as {phase}");
            }
            // The leader would take the place.
            let mark = Patch::Merge(annotation("by-mover", "true"));
            let passed = passes("berth-grants", api.patch("moves", &dry_run(), &mark).await);
            assert_eq!(passed, may_take, "{user}: {kind} by a data mover");
        }
    }
}

/// What the webhook does, it does for an object that spells out that it has no status, too.
#[tokio::test]
async fn an_explicit_null_is_placed_as_well() {
    let mut berth = start("null-status", 1);
    berth.controller.process.kill().unwrap();
    let api = any_api(client_of(berth.plane(), "nils").await, berth.namespace());
    let_do_everything(berth.kubectl(), &["nils"]);
    let mut object = backup_of("null", &["a"]);
    object["status"] = Value::Null;
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let created = api.create(&PostParams::default(), &object).await.unwrap();
    assert_eq!(created.data["status"]["phase"], "Queued", "{created:?}");
}

/// Two come while berth is away; one of them says that it has a place, and an early one. A third
/// says that it came tomorrow.
#[tokio::test]
async fn a_place_that_is_written_by_hand_gains_nothing_and_misleads_nobody() {
    let mut berth = start("by-hand", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    berth.webhook.process.kill().unwrap();
    let placed = |name: &str, hours: i64| {
        let mut object = backup_of(name, &["default"]);
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(hours);
        object["metadata"]["annotations"] = json!({"berth.dev/enqueued-at": format!("{at:.6}")});
        object["status"] = json!({"phase": "Queued", "queuePosition": 1});
        object
    };
    let kubectl = berth.kubectl().clone();
    for make in [
        &(|| backup_of("honest", &["default"])) as &dyn Fn() -> Value,
        &|| placed("forged", 0),
        &|| placed("early", -1),
        &|| placed("tomorrow", 23),
        &|| backup_of("last", &["default"]),
    ] {
        let object = make();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(kubectl.create(&ns, &[object]).unwrap().status.success());
        // What has no mark that counts arrived at the end of the second in which the API server
        // created it.
        let created = kubectl.backup(&ns, &name).unwrap().metadata.creation_timestamp.unwrap().0;
        let arrived = created + jiff::SignedDuration::from_secs(1);
        wait_until("the second to be over", PATIENCE, async || {
            Ok((jiff::Timestamp::now() > arrived).then_some(()))
        })
        .await
        .unwrap();
    }
    berth.webhook.process.restart().unwrap();
    wait_until("the webhook to answer again", PATIENCE, async || {
        let args = ["create", "-n", &ns, "--dry-run=server", "-f", "-"];
        let tried = kubectl.answer(&args, &backup_of("tried", &["default"]).to_string())?;
        Ok(tried.warnings().iter().any(|said| said.contains("queued at position")).then_some(()))
    })
    .await
    .unwrap();
    assert!(kubectl.create(&ns, &[backup_of("newcomer", &["default"])]).unwrap().status.success());
    let mark =
        kubectl.backup(&ns, "newcomer").unwrap().metadata.annotations.unwrap()["berth.dev/enqueued-at"]
            .clone();
    let ahead = mark.parse::<jiff::Timestamp>().unwrap().duration_since(jiff::Timestamp::now());
    assert!(ahead < jiff::SignedDuration::from_mins(1), "it follows a mark of tomorrow: {mark}");
    berth.controller.process.restart().unwrap();
    let names = ["honest", "forged", "early", "tomorrow", "last", "newcomer"];
    crate::queue::ended(&berth, &names);
    assert_eq!(dequeued(&berth.controller.process.log_text().unwrap()), names);
}

fn born(kind: MoverKind, name: &str, namespace: &str, phase: &str, grant: Option<&str>) -> DynamicObject {
    let mut object = mover(kind, name, namespace, false);
    object["status"] = json!({"phase": phase});
    object["metadata"]["annotations"] = json!(grant.map(|grant| json!({"berth.dev/granted": grant})));
    serde_json::from_value(object).unwrap()
}

/// No webhook answers, and still no user can give a Backup a place or take a place from another.
/// Everything else is free.
#[tokio::test]
async fn grants_are_given_and_taken_by_the_controller_alone() {
    const NS: &str = "grants";
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let accounts = ["berth-controller", "berth-webhook", "velero"];
    let [controller, webhook, velero] = accounts.map(|name| format!("system:serviceaccount:{NS}:{name}"));
    let users = [controller.as_str(), &webhook, &velero, "mallory"];
    let_do_everything(plane.kubectl(), &users);
    let create = PostParams { dry_run: true, ..PostParams::default() };
    for user in users {
        let client = client_of(plane, user).await;
        let is_controller = user == controller;
        for kind in MoverKind::ALL {
            let api = objects::api(&client, NS, kind);
            if is_controller {
                for (name, phase, grant) in
                    [("plain", "New", None), ("granted", "New", Some("x")), ("over", "Failed", Some("x"))]
                {
                    let object = born(kind, name, NS, phase, grant);
                    api.create(&PostParams::default(), &object).await.unwrap();
                }
            } else {
                wait_until("the policy to be on", PATIENCE, async || {
                    let forged = born(kind, "forged", NS, "New", Some("x"));
                    Ok((!passes("berth-grants", api.create(&create, &forged).await)).then_some(()))
                })
                .await
                .unwrap();
            }
            for (phase, grant, is_anybodys) in [
                ("New", None, true),
                ("Accepted", Some("x"), false),
                // Velero copies what has ended from a store, with all its annotations.
                ("Completed", Some("x"), true),
            ] {
                let answer = api.create(&create, &born(kind, "new", NS, phase, grant)).await;
                let passed = passes("berth-grants", answer);
                assert_eq!(passed, is_anybodys || is_controller, "{user}: {kind} {phase} {grant:?}");
            }
            let grant = |value: Value| json!({"metadata": {"annotations": {"berth.dev/granted": value}}});
            let free = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec": {"cancel": true}});
            let phase = |phase: &str| json!({"status": {"phase": phase}});
            for (name, patch, is_anybodys) in [
                ("plain", grant(json!("x")), false),
                ("plain", grant(json!("")), false),
                ("plain", free.clone(), true),
                ("plain", phase("Accepted"), true),
                ("granted", grant(json!("y")), false),
                ("granted", grant(json!(null)), false),
                ("granted", grant(json!("x")), true),
                ("granted", free.clone(), true),
                ("granted", phase("Accepted"), true),
                ("granted", phase("Completed"), true),
                ("over", grant(json!(null)), false),
                ("over", free.clone(), true),
                ("over", phase("Canceled"), true),
                // With a grant that was not given to this one.
                ("over", phase("New"), false),
                ("over", phase("Accepted"), false),
            ] {
                let answer = api.patch(name, &dry_run(), &Patch::Merge(&patch)).await;
                let passed = passes("berth-grants", answer);
                assert_eq!(passed, is_anybodys || is_controller, "{user}: {kind} {name} {patch}");
            }
        }
    }
}

/// In a role `*` is also every subresource.
#[test]
fn nobody_runs_anything_but_hooks_in_pods_with_a_token_of_berth() {
    let berth = start("connecting", 1);
    let kubectl = berth.kubectl();
    let accounts = ["controller", "webhook", "garden-agent", "node-agent"]
        .map(|duty| format!("system:serviceaccount:connecting:berth-{duty}"));
    let of_pods = "/api/v1/namespaces/default/pods/nobody";
    let answers = |path: &str, account: &str, words: &str| {
        // The API server takes roles and policies up a moment after they were made.
        wait_for(&format!("{path} as {account} to be answered by {words:?}"), PATIENCE, || {
            let answer = kubectl.answer(&["get", "--raw", path, "--as", account], "")?;
            Ok(answer.stderr.contains(words).then_some(()))
        })
        .unwrap();
    };
    let refusal = "berth's service accounts run nothing";
    let exec = format!("{of_pods}/exec?command=id&stdout=true");
    // By a right of their own: that to read everything is none.
    answers(&exec, &accounts[0], "\"nobody\" not found");
    kubectl.run(&["delete", "clusterrolebinding", "berth-hooks-connecting"]).unwrap();
    answers(&exec, &accounts[0], refusal);
    let_do_everything(kubectl, &accounts.each_ref().map(String::as_str));
    for path in [
        format!("{of_pods}/proxy/"),
        exec.clone(),
        format!("{of_pods}/attach?stdout=true"),
        format!("{of_pods}/portforward"),
        "/api/v1/namespaces/default/services/nobody/proxy/".to_owned(),
        "/api/v1/nodes/nobody/proxy/".to_owned(),
    ] {
        for account in accounts.iter().skip(usize::from(path == exec)) {
            answers(&path, account, refusal);
        }
        let answer = kubectl.answer(&["get", "--raw", &path], "").unwrap();
        assert!(!answer.stderr.contains("berth"), "it is nobody else's business: {}", answer.stderr);
    }
}

#[test]
fn nobody_makes_tokens_of_other_accounts_with_a_token_of_berth() {
    let berth = start("tokens", 1);
    let kubectl = berth.kubectl();
    let accounts = ["controller", "webhook", "garden-agent"]
        .map(|duty| format!("system:serviceaccount:tokens:berth-{duty}"));
    let_do_everything(kubectl, &accounts.each_ref().map(String::as_str));
    let secret = |kind: &str| {
        let annotations = json!({"kubernetes.io/service-account.name": "default"});
        // The agent makes none without.
        let labels = json!({"garden.berth.dev/seed": "ship"});
        let metadata =
            json!({"name": "made", "namespace": "tokens", "annotations": annotations, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}).to_string()
    };
    let make = |kind: &str, user: &str| {
        kubectl.answer(&["create", "--dry-run=server", "--as", user, "-f", "-"], &secret(kind)).unwrap()
    };
    for account in &accounts {
        // The API server takes a policy up a moment after it was made.
        wait_for(&format!("a token to be refused to {account}"), PATIENCE, || {
            let refused = make("kubernetes.io/service-account-token", account);
            Ok(refused.stderr.contains("make no tokens of other accounts").then_some(()))
        })
        .unwrap();
        let made = make("Opaque", account);
        assert!(made.status.success(), "{}", made.stderr);
    }
    let others = kubectl
        .answer(&["create", "--dry-run=server", "-f", "-"], &secret("kubernetes.io/service-account-token"))
        .unwrap();
    assert!(others.status.success(), "it is nobody else's business: {}", others.stderr);
}
