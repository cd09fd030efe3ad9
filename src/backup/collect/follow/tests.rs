use berth_api::{parse, policy};
use berth_core::policy::filters::Filters;
use berth_core::selection::ResourceFilter;
use berth_core::violation::Field;
use berth_test_scripted::{Hold, Scripted, get, list, page};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::backup::collect::fetch::FEW_NAMES;
use crate::backup::hold::PodHolder;
use crate::backup::hooks::Tally;
use crate::backup::ledger::{Balance, Extents, ListExtent, ObjectLedger};
use crate::backup::list::{Lister, Namespace};
use crate::backup::log::{BackupLog, MessageCounts, gzip_json};
use crate::backup::progress::Counters;
use crate::backup::volumes::RunVolumes;
use crate::backup::volumes::outcomes::Outcomes;

mod resumed;

const PODS: &str = "/api/v1/namespaces/app/pods";
const CLAIMS: &str = "/api/v1/namespaces/app/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

fn kind(resource: &str, group: &str, kind: &str, namespaced: bool) -> ResourceType {
    ResourceType {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        resource: resource.to_owned(),
        singular: kind.to_lowercase(),
        short_names: Vec::new(),
        namespaced,
    }
}

fn lister(api: &Scripted) -> Lister {
    Lister::new(api.client("velero"), 500, Duration::ZERO, Arc::new(Semaphore::new(4)))
}

/// What a backup took.
struct Collected {
    listed: Value,
    /// In the order in which it was handed to the workers.
    archived: Vec<String>,
    stored: BTreeMap<String, Value>,
    counts: MessageCounts,
}

/// What a backup of the namespace `app` with this spec takes, by its resource list, the archive,
/// and the log.
async fn collect(api: &Scripted, more: Value) -> (Value, Vec<String>, MessageCounts) {
    let mut collected = collect_with(api, &[], more, "").await;
    collected.archived.sort_unstable();
    (collected.listed, collected.archived, collected.counts)
}

/// The same of a run that goes on with what is stored, by the places of the types below.
async fn collect_behind(api: &Scripted, more: Value, stored: Balance) -> (Value, Vec<String>, MessageCounts) {
    let mut collected = collect_all(api, &[], more, "", stored).await;
    collected.archived.sort_unstable();
    (collected.listed, collected.archived, collected.counts)
}

/// With more types, and a resource policy.
async fn collect_with(api: &Scripted, others: &[ResourceType], more: Value, text: &str) -> Collected {
    let nothing = Balance::default();
    collect_all(api, others, more, text, nothing).await
}

async fn collect_all(
    api: &Scripted,
    others: &[ResourceType],
    more: Value,
    text: &str,
    stored: Balance,
) -> Collected {
    let mut spec = json!({"includedNamespaces": ["app"]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut wanted = parse::backup(&serde_json::from_value(spec).unwrap()).unwrap();
    let data = BTreeMap::from([("policy".to_owned(), format!("version: v1\n{text}"))]);
    let policies = policy::parse(&data, &Field::root("p")).unwrap();
    if let ResourceFilter::Scoped { policy, .. } = &mut wanted.resources {
        *policy = policies.types.clone().unwrap_or_default();
    }
    let mut types = vec![
        kind("pods", "", "Pod", true),
        kind("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        kind("persistentvolumes", "", "PersistentVolume", false),
        kind("priorityclasses", "scheduling.k8s.io", "PriorityClass", false),
    ];
    types.extend_from_slice(others);
    let namespace = Namespace {
        name: "app".to_owned(),
        labels: Default::default(),
        json: Bytes::from_static(b"{}"),
        lacks_type: true,
        deleting: false,
        excluded: false,
    };
    let (batches, mut taken) = mpsc::channel(64);
    let (log, tally) = (BackupLog::new(String::new()), Tally::default());
    let counters = Counters { total: AtomicU64::new(0), done: Arc::default() };
    let outcomes = Outcomes::default();
    let (volumes, _jobs) = RunVolumes::idle(policies.volumes.clone(), &log, &outcomes);
    let collector = Collector {
        lister: lister(api),
        wanted: &wanted,
        selection: &wanted.resources.resolve(&types, false),
        filters: &Filters::resolve(&policies, &types, ["app"]),
        backup: "nightly",
        types: &types,
        namespaces: &[namespace],
        resolved: &HashSet::from(["app".to_owned()]),
        log: &log,
        counters: &counters,
        volumes: &volumes,
        ledger: &ObjectLedger::again(&types, stored).unwrap(),
        batches,
        holder: PodHolder::new(&[], &log, &tally).0,
    };
    let pack = async {
        let (mut archived, mut stored) = (Vec::new(), BTreeMap::new());
        while let Some(batch) = taken.recv().await {
            for item in batch.items {
                let name = format!("{}/{}", batch.kind.resource, item.name);
                stored.insert(name.clone(), serde_json::from_slice(&item.json).unwrap());
                archived.push(name);
            }
            if let Some(packed) = batch.packed {
                packed.send(()).unwrap();
            }
        }
        (archived, stored)
    };
    let (listed, (archived, stored)) = tokio::join!(collector.run(), pack);
    assert_eq!(counters.total.load(Ordering::Relaxed), archived.len() as u64);
    let listed = serde_json::to_value(listed.unwrap()).unwrap();
    Collected { listed, archived, stored, counts: log.counts() }
}

fn pod(name: &str, claims: &[&str], class: &str) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "app"},
        "spec": {"priorityClassName": class, "volumes": volumes}, "status": {"phase": "Running"},
    })
}

fn claim(name: &str, volume: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "app"},
        "spec": {"volumeName": volume}, "status": {"phase": "Bound"},
    })
}

fn plain(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn of(api: &Scripted, pods: &[Value], claims: &[Value]) {
    api.once(get(PODS).answers(list("5", pods)));
    api.once(get(CLAIMS).answers(list("5", claims)));
}

#[tokio::test(start_paused = true)]
async fn what_is_needed_is_got_once_however_often_it_is_named() {
    let api = Scripted::new();
    of(
        &api,
        &[pod("a", &["c"], "first"), pod("b", &["c"], "first"), pod("plain", &[], "")],
        &[claim("c", "v")],
    );
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    api.once(get(&format!("{CLASSES}/first")).answers(plain("first")));
    let (listed, archived, counts) = collect(&api, json!({})).await;
    let expected = json!({
        "v1/Pod": ["app/a", "app/b", "app/plain"], "v1/PersistentVolumeClaim": ["app/c"],
        "v1/PersistentVolume": ["v"], "scheduling.k8s.io/v1/PriorityClass": ["first"],
    });
    assert_eq!(listed, expected);
    assert_eq!(
        archived,
        [
            "persistentvolumeclaims/c",
            "persistentvolumes/v",
            "pods/a",
            "pods/b",
            "pods/plain",
            "priorityclasses/first"
        ]
    );
    assert_eq!(counts, MessageCounts { warnings: 0, errors: 0 });
}

/// A pod that is stored still names its claim, be it that the claim is not stored yet.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_has_stored_is_looked_at_and_not_stored_again() {
    let api = Scripted::new();
    of(&api, &[pod("a", &["c"], "first"), pod("new", &[], "")], &[claim("c", "v")]);
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let whole = ListExtent { is_whole: true, ..ListExtent::default() };
    let names = std::collections::BTreeMap::from([(0, vec!["app/a", "app/gone"]), (3, vec!["first"])]);
    let stored = Balance {
        extents: Extents::from([(0, whole.clone()), (1, whole)]),
        names: vec![gzip_json(&names).unwrap().into()],
        count: 3,
        ..Balance::default()
    };
    let (listed, archived, counts) = collect_behind(&api, json!({}), stored).await;
    let expected = json!({
        "v1/Pod": ["app/a", "app/gone", "app/new"], "v1/PersistentVolumeClaim": ["app/c"],
        "v1/PersistentVolume": ["v"], "scheduling.k8s.io/v1/PriorityClass": ["first"],
    });
    assert_eq!(listed, expected);
    assert_eq!(archived, ["persistentvolumeclaims/c", "persistentvolumes/v", "pods/new"]);
    assert_eq!(
        counts,
        MessageCounts { warnings: 1, errors: 0 },
        "what the one that is gone needed nobody knows"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_list_brings_is_not_asked_for_again() {
    let api = Scripted::new();
    of(&api, &[pod("a", &["c"], "first")], &[claim("c", "v")]);
    api.once(get(VOLUMES).answers(list("5", &[plain("v"), plain("w")])));
    let spec = json!({
        "includedClusterScopedResources": ["persistentvolumes"],
        "excludedClusterScopedResources": ["priorityclasses"],
    });
    let (_, archived, counts) = collect(&api, spec).await;
    assert_eq!(
        archived,
        ["persistentvolumeclaims/c", "persistentvolumes/v", "persistentvolumes/w", "pods/a"]
    );
    assert_eq!(counts, MessageCounts { warnings: 0, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_warned_of_what_may_not_be_read_is_an_error_and_what_keeps_out_of_backups_stays_out()
{
    let api = Scripted::new();
    let names = [("gone", 0), ("locked", 1), ("shy", 2), ("../v", 3), ("v", 4), ("leaving", 5)];
    let claims = names.map(|(volume, i)| claim(&format!("of-{i}"), volume));
    let [gone, locked, shy, odd, v, leaving] = claims;
    of(&api, &[], &[gone, locked, shy, v]);
    let shy = json!({"metadata": {"name": "shy", "labels": {"velero.io/exclude-from-backup": "true"}}});
    api.once(get(&format!("{VOLUMES}/gone")).refuses(404));
    api.once(get(&format!("{VOLUMES}/locked")).refuses(403));
    api.once(get(&format!("{VOLUMES}/shy")).answers(shy));
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let (listed, _, counts) = collect(&api, json!({})).await;
    assert_eq!(listed["v1/PersistentVolume"], json!(["v"]));
    assert_eq!(counts, MessageCounts { warnings: 1, errors: 1 });
    let api = Scripted::new();
    of(&api, &[], &[odd]);
    let (_, archived, counts) = collect(&api, json!({})).await;
    assert_eq!((archived.len(), counts), (1, MessageCounts { warnings: 1, errors: 0 }));
    let api = Scripted::new();
    of(&api, &[], &[leaving]);
    let deleted = json!({"metadata": {"name": "leaving", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f"]}});
    api.once(get(&format!("{VOLUMES}/leaving")).answers(deleted));
    let (_, archived, counts) = collect(&api, json!({})).await;
    assert_eq!(
        (archived.len(), counts),
        (1, MessageCounts { warnings: 1, errors: 0 }),
        "its volume is being deleted"
    );
}

/// They wait for each other only with what they have in their hands.
#[tokio::test(start_paused = true)]
async fn claims_are_listed_while_pods_are_and_taken_when_these_are_through() {
    let api = Scripted::new();
    let (pods, claims) = (Hold::new(), Hold::new());
    api.once(get(PODS).answers(list("5", &[pod("a", &["c"], "")])).held(&pods));
    api.once(get(CLAIMS).answers(page("5", "more", &[claim("c", "v")])).held(&claims));
    api.once(get(CLAIMS).page("more").answers(list("5", &[claim("d", "v")])));
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let story = async {
        claims.asked().await;
        claims.let_go();
        pods.asked().await;
        pods.let_go();
    };
    let (collected, ()) = tokio::join!(collect_with(&api, &[], json!({}), ""), story);
    let expected = ["pods/a", "persistentvolumeclaims/c", "persistentvolumeclaims/d", "persistentvolumes/v"];
    assert_eq!(collected.archived, expected);
    assert_eq!(collected.counts, MessageCounts { warnings: 0, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn many_are_taken_from_one_list() {
    let api = Scripted::new();
    let names: Vec<String> = (0..=FEW_NAMES).map(|i| format!("v{i}")).collect();
    let claims: Vec<Value> = names.iter().map(|name| claim(name, name)).collect();
    of(&api, &[], &claims);
    let volumes: Vec<Value> = names.iter().skip(1).map(String::as_str).chain(["other"]).map(plain).collect();
    api.once(get(VOLUMES).answers(list("5", &volumes)));
    let (listed, _, counts) = collect(&api, json!({})).await;
    assert_eq!(listed["v1/PersistentVolume"].as_array().unwrap().len(), FEW_NAMES);
    assert_eq!(counts, MessageCounts { warnings: 1, errors: 0 }, "v0 is gone");
}

#[tokio::test(start_paused = true)]
async fn with_a_selector_pods_and_claims_lead_to_each_other_until_nothing_is_new() {
    let api = Scripted::new();
    let pods = [
        pod("a", &["one"], ""),
        pod("b", &["one", "two"], ""),
        pod("c", &["two"], ""),
        pod("far", &["x"], ""),
    ];
    let claims = [claim("one", "v1"), claim("two", "v2"), claim("x", "vx")];
    // What the selector chooses.
    api.next(get(PODS).answers(list("5", &pods[..1]))).once(get(CLAIMS).answers(list("5", &[])));
    // What these lead to: each round looks for claims, and then for the pods that use them.
    api.always(get(PODS).answers(list("6", &pods))).always(get(CLAIMS).answers(list("6", &claims)));
    for volume in ["v1", "v2"] {
        api.once(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    let (_, archived, counts) = collect(&api, json!({"labelSelector": {"matchLabels": {"app": "a"}}})).await;
    assert_eq!(
        archived,
        [
            "persistentvolumeclaims/one",
            "persistentvolumeclaims/two",
            "persistentvolumes/v1",
            "persistentvolumes/v2",
            "pods/a",
            "pods/b",
            "pods/c"
        ]
    );
    assert_eq!(counts, MessageCounts { warnings: 0, errors: 0 });
}

/// A selector chooses objects, and not the namespaces that the backup names.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_the_backup_names_is_stored_though_nothing_in_it_matches() {
    let api = Scripted::new();
    of(&api, &[], &[]);
    let namespaces = [kind("namespaces", "", "Namespace", false)];
    let selector = json!({"labelSelector": {"matchLabels": {"app": "a"}}});
    let collected = collect_with(&api, &namespaces, selector, "").await;
    assert_eq!(collected.archived, ["namespaces/app"]);
    assert_eq!(collected.counts, MessageCounts { warnings: 0, errors: 0 });
}

/// A name that a restore could make no file of would end the restore of all others.
#[tokio::test(start_paused = true)]
async fn what_no_file_can_be_called_is_left_out_and_told() {
    let api = Scripted::new();
    let (long, longest) = ("n".repeat(251), "n".repeat(250));
    of(&api, &[pod("a", &[], ""), pod("b\u{0}", &[], ""), pod(&long, &[], ""), pod(&longest, &[], "")], &[]);
    let (listed, archived, counts) = collect(&api, json!({})).await;
    assert_eq!(listed, json!({"v1/Pod": ["app/a", format!("app/{longest}")]}));
    assert_eq!(archived, ["pods/a".to_owned(), format!("pods/{longest}")]);
    assert_eq!(counts, MessageCounts { warnings: 0, errors: 1 });
}

fn annotated(mut object: Value, annotations: Value) -> Value {
    object["metadata"]["annotations"] = annotations;
    object
}

fn labelled(mut object: Value, labels: Value) -> Value {
    object["metadata"]["labels"] = labels;
    object
}

#[tokio::test(start_paused = true)]
async fn what_an_action_changes_is_stored_changed_and_what_it_leaves_out_is_nowhere() {
    let api = Scripted::new();
    let mut restored = labelled(claim("c", "v"), json!({"app": "db", "velero.io/restore-name": "r"}));
    restored["spec"]["dataSource"] = json!({"kind": "VolumeSnapshot", "name": "s"});
    let skipped = annotated(pod("skipped", &["lost"], "first"), json!({"velero.io/skip-from-backup": ""}));
    of(&api, &[skipped, pod("a", &["c"], "")], &[restored]);
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let collected = collect_with(&api, &[], json!({}), "").await;
    let expected = json!({
        "v1/Pod": ["app/a"], "v1/PersistentVolumeClaim": ["app/c"], "v1/PersistentVolume": ["v"],
    });
    assert_eq!((collected.listed, collected.counts), (expected, MessageCounts { warnings: 0, errors: 0 }));
    let stored = labelled(claim("c", "v"), json!({"app": "db"}));
    assert_eq!(collected.stored["persistentvolumeclaims/c"], stored);
}

#[tokio::test(start_paused = true)]
async fn what_an_object_says_must_come_along_comes_whatever_the_filters_say() {
    let must = json!({"backup.velero.io/must-include-additional-items": "true", "mine": "x"});
    let out = json!({"velero.io/exclude-from-backup": "true"});
    let spec = json!({
        "excludedNamespaceScopedResources": ["persistentvolumeclaims"], "excludedClusterScopedResources": ["*"],
    });
    let api = Scripted::new();
    api.once(
        get(PODS)
            .answers(list("5", &[annotated(pod("a", &["c"], "first"), must.clone()), pod("b", &["d"], "")])),
    );
    let claims = [labelled(claim("c", "v"), out.clone()), claim("d", "w")];
    api.once(get(CLAIMS).answers(list("5", &claims)));
    api.once(get(&format!("{CLASSES}/first")).answers(plain("first")));
    // The volume of the claim does not: that says nothing of what it needs.
    let collected = collect_with(&api, &[], spec.clone(), "").await;
    let expected = json!({
        "v1/Pod": ["app/a", "app/b"], "v1/PersistentVolumeClaim": ["app/c"],
        "scheduling.k8s.io/v1/PriorityClass": ["first"],
    });
    assert_eq!((collected.listed, collected.counts), (expected, MessageCounts { warnings: 0, errors: 0 }));
    assert_eq!(collected.stored["pods/a"]["metadata"]["annotations"], json!({"mine": "x"}));

    let rbac = "rbac.authorization.k8s.io";
    let others = [
        kind("serviceaccounts", "", "ServiceAccount", true),
        kind("clusterrolebindings", rbac, "ClusterRoleBinding", false),
        kind("clusterroles", rbac, "ClusterRole", false),
    ];
    let binding = |name: &str, account: &str| {
        let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": "app"});
        json!({"metadata": {"name": name}, "roleRef": {"name": name}, "subjects": [subject]})
    };
    let account = |name: &str| json!({"metadata": {"name": name, "namespace": "app"}});
    let api = Scripted::new();
    api.once(get(PODS).answers(list("5", &[])));
    let accounts = [annotated(account("one"), must), account("two")];
    api.once(get("/api/v1/namespaces/app/serviceaccounts").answers(list("5", &accounts)));
    let bindings = [binding("of-one", "one"), binding("of-two", "two")];
    api.once(get(&format!("/apis/{rbac}/v1/clusterrolebindings")).answers(list("5", &bindings)));
    api.once(get(&format!("/apis/{rbac}/v1/clusterroles/of-one")).answers(plain("of-one")));
    let collected = collect_with(&api, &others, spec, "").await;
    let expected = json!({
        "v1/ServiceAccount": ["app/one", "app/two"],
        "rbac.authorization.k8s.io/v1/ClusterRoleBinding": ["of-one"],
        "rbac.authorization.k8s.io/v1/ClusterRole": ["of-one"],
    });
    assert_eq!(collected.listed, expected);
}

#[tokio::test(start_paused = true)]
async fn a_class_of_snapshots_brings_the_secret_by_which_they_are_listed_from_wherever_it_is() {
    let others = [
        kind("secrets", "", "Secret", true),
        kind("volumesnapshotclasses", "snapshot.storage.k8s.io", "VolumeSnapshotClass", false),
    ];
    let api = Scripted::new();
    of(&api, &[], &[]);
    api.once(get("/api/v1/namespaces/app/secrets").answers(list("5", &[])));
    let annotations = json!({
        "csi.storage.k8s.io/snapshotter-list-secret-name": "s",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "kube-system",
    });
    let classes = [annotated(plain("fast"), annotations), plain("slow")];
    api.once(get("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses").answers(list("5", &classes)));
    let secret = json!({"metadata": {"name": "s", "namespace": "kube-system"}});
    api.once(get("/api/v1/namespaces/kube-system/secrets/s").answers(secret));
    let spec = json!({"includedClusterScopedResources": ["volumesnapshotclasses"]});
    let collected = collect_with(&api, &others, spec, "").await;
    let expected = json!({
        "v1/Secret": ["kube-system/s"], "snapshot.storage.k8s.io/v1/VolumeSnapshotClass": ["fast", "slow"],
    });
    assert_eq!((collected.listed, collected.counts), (expected, MessageCounts { warnings: 0, errors: 0 }));
}

/// To ask for those of the API server's own types would cost a request for each of them.
#[tokio::test(start_paused = true)]
async fn a_definition_is_got_once_and_what_the_api_server_serves_itself_has_none() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let built_in = [
        "apps",
        "batch",
        "admissionregistration.k8s.io",
        "apiregistration.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
    ];
    let custom = ["example.com", "gateway.networking.k8s.io"];
    // Of an aggregated server.
    let others = ["aggregated.example.com"];
    let api = Scripted::new();
    of(&api, &[], &[]);
    let mut types =
        vec![kind("customresourcedefinitions", "apiextensions.k8s.io", "CustomResourceDefinition", false)];
    for group in built_in.into_iter().chain(custom).chain(others) {
        types.push(kind("things", group, "Thing", true));
        let things = ["a", "b"].map(|name| json!({"metadata": {"name": name, "namespace": "app"}}));
        api.once(get(&format!("/apis/{group}/v1/namespaces/app/things")).answers(list("5", &things)));
    }
    let definitions = custom.map(|group| format!("things.{group}"));
    for name in &definitions {
        api.once(get(&format!("{DEFINITIONS}/{name}")).answers(plain(name)));
    }
    api.once(get(&format!("{DEFINITIONS}/things.{}", others[0])).refuses(404));
    let Collected { listed, archived, counts, .. } = collect_with(&api, &types, json!({}), "").await;
    // Whatever else was asked for has no answer.
    api.finish();
    assert_eq!(listed["apiextensions.k8s.io/v1/CustomResourceDefinition"], json!(definitions));
    assert_eq!(archived.len(), 2 * (types.len() - 1) + definitions.len());
    assert_eq!(counts, MessageCounts { warnings: 0, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn with_a_selector_a_claim_brings_those_of_its_group_and_the_pods_that_use_them() {
    let grouped = |name: &str, group: &str| {
        labelled(claim(name, &format!("v-{name}")), json!({"velero.io/volume-group": group}))
    };
    let claims = [grouped("one", "g"), grouped("two", "g"), grouped("other", "h"), claim("none", "v-none")];
    let api = Scripted::new();
    // What the selector chooses.
    api.next(get(PODS).answers(list("5", &[]))).once(get(CLAIMS).answers(list("5", &claims[..1])));
    // Those of the group, and then who uses any of them.
    api.once(get(CLAIMS).answers(list("6", &claims)));
    api.once(get(PODS).answers(list("6", &[pod("b", &["two"], ""), pod("far", &["other"], "")])));
    for volume in ["v-one", "v-two"] {
        api.once(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    let (listed, _, counts) = collect(&api, json!({"labelSelector": {"matchLabels": {"app": "a"}}})).await;
    let expected = json!({
        "v1/Pod": ["app/b"], "v1/PersistentVolumeClaim": ["app/one", "app/two"],
        "v1/PersistentVolume": ["v-one", "v-two"],
    });
    assert_eq!((listed, counts), (expected, MessageCounts { warnings: 0, errors: 0 }));
}

/// Kinds that a policy does not have are not listed there, and come along where they are needed.
#[tokio::test(start_paused = true)]
async fn a_policy_of_a_namespace_says_which_of_its_objects_are_listed() {
    let policy = "namespacedFilterPolicies:\n- namespaces: [app]\n  resourceFilters:\n  - {kinds: [Pod], labelSelector: {role: web}, names: ['w*'], excludedNames: ['*-old']}";
    let web = |name: &str| labelled(pod(name, &["c"], ""), json!({"role": "web"}));
    let pods = [web("w1"), pod("w2", &["c"], ""), web("b"), web("w-old"), pod("w3", &[], "")];
    let api = Scripted::new();
    // Once what is listed, once who uses the claim.
    api.once(get(PODS).answers(list("5", &pods))).once(get(PODS).answers(list("5", &pods)));
    api.once(get(CLAIMS).answers(list("5", &[claim("c", "v"), claim("d", "w")])));
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    // The spec's selector is not the policy's.
    let spec = json!({"labelSelector": {"matchLabels": {"app": "a"}}});
    let collected = collect_with(&api, &[], spec, policy).await;
    let expected = json!({
        "v1/Pod": ["app/w1", "app/w2"], "v1/PersistentVolumeClaim": ["app/c"], "v1/PersistentVolume": ["v"],
    });
    assert_eq!((collected.listed, collected.counts), (expected, MessageCounts { warnings: 0, errors: 0 }));
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_the_cluster_tightens_what_is_listed_and_what_is_needed_by_name() {
    let policy = "clusterScopedFilterPolicy: {resourceFilters: [{kinds: [pv, PersistentVolume], names: ['v*'], excludedNames: [v-old]}]}";
    let api = Scripted::new();
    of(&api, &[], &[claim("c", "v"), claim("d", "w")]);
    api.once(get(VOLUMES).answers(list("5", &["v", "v-old", "v-new", "w"].map(plain))));
    api.once(get(&format!("{VOLUMES}/w")).answers(plain("w")));
    let spec = json!({"includedClusterScopedResources": ["persistentvolumes"]});
    let collected = collect_with(&api, &[], spec, policy).await;
    assert_eq!(collected.listed["v1/PersistentVolume"], json!(["v", "v-new"]));
    assert_eq!(collected.counts, MessageCounts { warnings: 0, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn what_is_to_go_first_goes_first_in_its_order_and_what_is_not_there_is_warned_of() {
    let api = Scripted::new();
    of(&api, &["a", "b", "c", "d"].map(|name| pod(name, &[], "")), &[]);
    for name in ["c", "b"] {
        api.once(get(&format!("{PODS}/{name}")).answers(pod(name, &[], "")));
    }
    api.once(get(&format!("{PODS}/gone")).refuses(404));
    let elsewhere = json!({"metadata": {"name": "x", "namespace": "other"}});
    api.once(get("/api/v1/namespaces/other/pods/x").answers(elsewhere));
    let spec = json!({"orderedResources": {"pods": "app/c, app/gone,app/b,other/x,no-namespace,app/../x"}});
    let collected = collect_with(&api, &[], spec, "").await;
    assert_eq!(collected.archived, ["pods/c", "pods/b", "pods/a", "pods/d"]);
    assert_eq!(collected.listed, json!({"v1/Pod": ["app/a", "app/b", "app/c", "app/d"]}));
    assert_eq!(collected.counts, MessageCounts { warnings: 1, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn what_is_to_go_first_is_chosen_as_ever() {
    let api = Scripted::new();
    let mine = labelled(pod("mine", &[], ""), json!({"app": "a"}));
    of(&api, std::slice::from_ref(&mine), &[]);
    api.once(get(&format!("{PODS}/mine")).answers(mine));
    api.once(get(&format!("{PODS}/theirs")).answers(pod("theirs", &[], "")));
    let spec = json!({
        "orderedResources": {"pods": "app/theirs,app/mine"}, "labelSelector": {"matchLabels": {"app": "a"}},
    });
    let collected = collect_with(&api, &[], spec, "").await;
    assert_eq!((collected.archived, collected.counts.warnings), (vec!["pods/mine".to_owned()], 1));
    let api = Scripted::new();
    of(&api, &[], &[]);
    api.once(get(&format!("{PODS}/mine")).refuses(403));
    let spec = json!({"orderedResources": {"pods": "app/mine"}});
    assert_eq!(collect_with(&api, &[], spec, "").await.counts, MessageCounts { warnings: 0, errors: 1 });
}
