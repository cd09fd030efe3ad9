use berth_api::parse;
use berth_test_scripted::{Scripted, get, list};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::backup::asked::Asked;
use crate::backup::collect::{Counters, Namespace};
use crate::backup::ledger::{Balance, Extent, Extents, Ledger};
use crate::backup::list::Lister;
use crate::backup::log::{BackupLog, Counts, gzip_json};

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

/// What a backup of the namespace `app` with this spec takes, by its resource list, the archive, and the log.
async fn collect(api: &Scripted, more: Value) -> (Value, Vec<String>, Counts) {
    let nothing = Balance { extents: Extents::new(), names: Vec::new(), count: 0 };
    collect_behind(api, more, nothing).await
}

/// The same of a run that goes on with what is stored, by the places of the types below.
async fn collect_behind(api: &Scripted, more: Value, stored: Balance) -> (Value, Vec<String>, Counts) {
    let mut spec = json!({"includedNamespaces": ["app"]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let wanted = parse::backup(&serde_json::from_value(spec).unwrap()).unwrap();
    let types = [
        kind("pods", "", "Pod", true),
        kind("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        kind("persistentvolumes", "", "PersistentVolume", false),
        kind("priorityclasses", "scheduling.k8s.io", "PriorityClass", false),
    ];
    let namespace = Namespace {
        name: "app".to_owned(),
        labels: Default::default(),
        json: Bytes::from_static(b"{}"),
        lacks_type: true,
        deleting: false,
        excluded: false,
    };
    let (batches, mut taken) = mpsc::channel(64);
    let log = BackupLog::new(String::new());
    let counters = Counters { total: AtomicU64::new(0), done: Arc::default(), asked: Asked::default() };
    let collector = Collector {
        lister: lister(api),
        wanted: &wanted,
        selection: &wanted.resources.resolve(&types, false),
        types: &types,
        namespaces: &[namespace],
        resolved: &HashSet::from(["app".to_owned()]),
        log: &log,
        counters: &counters,
        ledger: &Ledger::again(&types, stored).unwrap(),
        batches,
    };
    let listed = collector.run().await.unwrap();
    let mut archived = Vec::new();
    while let Ok(batch) = taken.try_recv() {
        archived.extend(batch.items.iter().map(|item| format!("{}/{}", batch.kind.resource, item.name)));
    }
    archived.sort_unstable();
    assert_eq!(counters.total.load(Ordering::Relaxed), archived.len() as u64);
    (serde_json::to_value(&listed).unwrap(), archived, log.counts())
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
    assert_eq!(counts, Counts { warnings: 0, errors: 0 });
}

/// A pod that is stored still names its claim, be it that the claim is not stored yet.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_has_stored_is_looked_at_and_not_stored_again() {
    let api = Scripted::new();
    of(&api, &[pod("a", &["c"], "first"), pod("new", &[], "")], &[claim("c", "v")]);
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let whole = Extent { is_whole: true, ..Extent::default() };
    let names = std::collections::BTreeMap::from([(0, vec!["app/a", "app/gone"]), (3, vec!["first"])]);
    let stored = Balance {
        extents: Extents::from([(0, whole.clone()), (1, whole)]),
        names: vec![gzip_json(&names).unwrap().into()],
        count: 3,
    };
    let (listed, archived, counts) = collect_behind(&api, json!({}), stored).await;
    let expected = json!({
        "v1/Pod": ["app/a", "app/gone", "app/new"], "v1/PersistentVolumeClaim": ["app/c"],
        "v1/PersistentVolume": ["v"], "scheduling.k8s.io/v1/PriorityClass": ["first"],
    });
    assert_eq!(listed, expected);
    assert_eq!(archived, ["persistentvolumeclaims/c", "persistentvolumes/v", "pods/new"]);
    assert_eq!(counts, Counts { warnings: 0, errors: 0 });
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
    assert_eq!(counts, Counts { warnings: 0, errors: 0 });
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_warned_of_what_may_not_be_read_is_an_error_and_what_keeps_out_of_backups_stays_out()
{
    let api = Scripted::new();
    let claims =
        ["gone", "locked", "shy", "../v", "v"].map(|volume| claim(&format!("of-{}", volume.len()), volume));
    let [gone, locked, shy, odd, v] = claims;
    of(&api, &[], &[gone, locked, shy, v]);
    let shy = json!({"metadata": {"name": "shy", "labels": {"velero.io/exclude-from-backup": "true"}}});
    api.once(get(&format!("{VOLUMES}/gone")).refuses(404));
    api.once(get(&format!("{VOLUMES}/locked")).refuses(403));
    api.once(get(&format!("{VOLUMES}/shy")).answers(shy));
    api.once(get(&format!("{VOLUMES}/v")).answers(plain("v")));
    let (listed, _, counts) = collect(&api, json!({})).await;
    assert_eq!(listed["v1/PersistentVolume"], json!(["v"]));
    assert_eq!(counts, Counts { warnings: 1, errors: 1 });
    let api = Scripted::new();
    of(&api, &[], &[odd]);
    let (_, archived, counts) = collect(&api, json!({})).await;
    assert_eq!((archived.len(), counts), (1, Counts { warnings: 1, errors: 0 }));
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
    assert_eq!(counts, Counts { warnings: 1, errors: 0 }, "v0 is gone");
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
    assert_eq!(counts, Counts { warnings: 0, errors: 0 });
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
    assert_eq!(counts, Counts { warnings: 0, errors: 1 });
}
