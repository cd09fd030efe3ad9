//! Pods of data movers, the gate, and the node-agents' configuration.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::node_agent::ReclaimPolicy;
use berth_core::affinity::{
    AffinityDecision, AffinityFinding, AffinityReason, Expression, NodeSelectorOperator, Term, Toleration,
};
use berth_core::mover::placement::{MoverRef, PodConstraints};
use berth_core::volume::takers::Takers;

use super::*;
use crate::listers::MoverListers;

/// What could take the data of volumes.
#[derive(Default)]
pub struct Known {
    pub agents: Option<bool>,
    pub own_agents: Option<bool>,
    pub drivers: Option<BTreeSet<String>>,
    pub provisioners: Option<BTreeMap<String, String>>,
}

#[derive(Default)]
pub struct Movers {
    decision: Mutex<Option<Result<Option<AffinityDecision>, String>>>,
    pub told: Mutex<Vec<String>>,
    granted: AtomicBool,
    pub takers: Mutex<Known>,
}

impl MoverListers for Arc<Cluster> {
    async fn place(&self, _: &MoverRef<'_>, _: &PodConstraints) -> Result<Option<AffinityDecision>, String> {
        self.movers.decision.lock().clone().unwrap_or(Ok(None))
    }
    fn are_granted(&self) -> bool {
        self.movers.granted.load(Ordering::Relaxed)
    }
    fn configuration(&self) -> Option<String> {
        Some("node-agent-config".to_owned())
    }
    fn classes(&self) -> Option<BTreeMap<String, ReclaimPolicy>> {
        Some(BTreeMap::from([("gold".to_owned(), ReclaimPolicy::Delete)]))
    }
    fn with_takers<T>(&self, look: impl FnOnce(&Takers<'_>) -> T) -> T {
        let known = self.movers.takers.lock();
        let all = known.provisioners.as_ref().map(BTreeMap::iter);
        let provisioners =
            all.map(|all| all.map(|(class, driver)| (class.as_str(), driver.as_str())).collect());
        let (agents, own_agents) = (known.agents, known.own_agents);
        look(&Takers { agents, own_agents, drivers: known.drivers.as_ref(), provisioners })
    }
}

fn pod(owner: Value, affinity: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "du-1",
            "namespace": "velero",
            "labels": {"velero.io/data-upload": "du-1"},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [], "affinity": affinity, "tolerations": [{"key": "a", "operator": "Exists"}]},
    })
}

fn owner() -> Value {
    json!({"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "du-1", "uid": "u", "controller": true})
}

fn required(zone: &str) -> Value {
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})
}

fn decision(zones: Option<&[&str]>) -> AffinityDecision {
    let term = |zone: &&str| Term {
        expressions: vec![Expression::new("zone", NodeSelectorOperator::In, [*zone])],
        ..Term::default()
    };
    let toleration = Toleration { key: "b".into(), value: None, effect: None, seconds: None };
    AffinityDecision {
        terms: zones.map(|zones| zones.iter().map(term).collect()),
        tolerations: vec![toleration],
        reason: AffinityReason::NoRules,
        findings: vec![AffinityFinding::NoNode { nearest: None }],
    }
}

/// The pod as the API server would store it.
async fn placed(router: &Router, pod: Value, dry_run: bool) -> (Value, Vec<String>) {
    use base64::Engine as _;
    let answer = ask(router, PLACE_PATH, review("CREATE", pod.clone(), None, dry_run)).await;
    assert_eq!(answer["allowed"], true);
    let mut stored = pod;
    if let Some(patch) = answer["patch"].as_str() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(patch).unwrap_or_default();
        let patch: json_patch::Patch = serde_json::from_slice(&bytes).unwrap_or_else(|e| unreachable!("{e}"));
        json_patch::patch(&mut stored, &patch).unwrap_or_else(|e| unreachable!("{e}"));
    }
    let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
    (stored, warnings.iter().filter_map(|w| w.as_str().map(str::to_owned)).collect())
}

#[tokio::test]
async fn a_mover_pod_gets_its_terms_and_tolerations_whatever_affinity_it_has() {
    let (cluster, router) = state();
    let anti = json!({"podAntiAffinity": {}});
    for affinity in [required("a"), json!(null), json!({}), json!({"nodeAffinity": {}}), anti.clone()] {
        *cluster.movers.decision.lock() = Some(Ok(Some(decision(Some(&["a", "b"])))));
        let (stored, warnings) = placed(&router, pod(owner(), affinity.clone()), false).await;
        let node =
            &stored["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let zones: Vec<&Value> = node["nodeSelectorTerms"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|term| &term["matchExpressions"][0]["values"][0])
            .collect();
        assert_eq!(zones, ["a", "b"], "{affinity}");
        assert_eq!(stored["spec"]["affinity"]["podAntiAffinity"], affinity["podAntiAffinity"]);
        assert_eq!(stored["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
        assert!(warnings.iter().any(|warning| warning.contains("no node matches")));
        // No term is left: the requirement goes, and nothing else.
        *cluster.movers.decision.lock() = Some(Ok(Some(decision(Some(&[])))));
        let (stored, _) = placed(&router, pod(owner(), affinity.clone()), true).await;
        let node =
            &stored["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(node, &json!(null), "{affinity}");
    }
    // Dry runs record no Event.
    assert_eq!(cluster.movers.told.lock().len(), 5);
}

#[tokio::test]
async fn strangers_and_movers_that_are_not_known_stay_as_they_are() {
    let (cluster, router) = state();
    *cluster.movers.decision.lock() = Some(Ok(Some(decision(Some(&["b"])))));
    let other = |key: &str, value: Value| {
        let mut owner = owner();
        owner[key] = value;
        owner
    };
    let no_label = {
        let mut pod = pod(owner(), required("a"));
        pod["metadata"]["labels"] = json!({"app": "x"});
        pod
    };
    for stranger in [
        pod(other("kind", json!("DataDownload")), required("a")),
        pod(other("name", json!("du-2")), required("a")),
        pod(other("uid", json!("")), required("a")),
        pod(other("controller", json!(false)), required("a")),
        pod(other("apiVersion", json!("velero.io/v1")), required("a")),
        no_label,
    ] {
        assert_eq!(placed(&router, stranger.clone(), false).await, (stranger, vec![]));
    }
    *cluster.movers.decision.lock() = Some(Err("DataUpload du-1 does not exist".to_owned()));
    let (stored, warnings) = placed(&router, pod(owner(), required("a")), false).await;
    assert_eq!(stored, pod(owner(), required("a")));
    assert_eq!(
        warnings,
        ["berth: the pod of DataUpload du-1 is left unchanged: DataUpload du-1 does not exist"]
    );
}

fn mover(kind: &str, phase: &str, grant: Option<&str>) -> Value {
    let annotations = grant.map(|grant| json!({"berth.dev/granted": grant}));
    json!({"kind": kind, "metadata": {"annotations": annotations}, "spec": {}, "status": {"phase": phase}})
}

#[tokio::test]
async fn the_gate_opens_for_what_is_granted_and_refuses_the_rest_in_the_words_of_each_kind() {
    let (cluster, router) = state();
    let step = async |old: Value, new: Value| {
        let answer = ask(&router, GATE_PATH, review("UPDATE", new, Some(old), false)).await;
        answer["status"]["code"].as_u64().unwrap_or(200)
    };
    let accept = async |kind: &str, grant| step(mover(kind, "", grant), mover(kind, "Accepted", grant)).await;
    // No leader grants: the gate is open.
    assert_eq!(accept("DataUpload", None).await, 200);
    cluster.movers.granted.store(true, Ordering::Relaxed);
    let (old, new) = (mover("DataUpload", "", None), mover("DataUpload", "Accepted", None));
    let refused = ask(&router, GATE_PATH, review("UPDATE", new, Some(old), false)).await;
    let message = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("status.phase: waits for a place") && message.contains("`berth queue movers`"),
        "{message}"
    );
    for (kind, code) in
        [("DataUpload", 409), ("DataDownload", 409), ("PodVolumeBackup", 403), ("PodVolumeRestore", 403)]
    {
        assert_eq!(accept(kind, None).await, code, "{kind}");
        assert_eq!(accept(kind, Some("now")).await, 200, "{kind}");
        // A grant in the same write is forged.
        assert_eq!(step(mover(kind, "", None), mover(kind, "Accepted", Some("now"))).await, 403, "{kind}");
        assert_eq!(step(mover(kind, "Prepared", None), mover(kind, "InProgress", None)).await, 200, "{kind}");
        assert_eq!(step(mover(kind, "", None), mover(kind, "Canceled", None)).await, 200, "{kind}");
    }
    let third = |phase: &str| {
        let mut upload = mover("DataUpload", phase, None);
        upload["spec"]["datamover"] = json!("somebody");
        upload
    };
    assert_eq!(step(third(""), third("Accepted")).await, 200);
    let own = |phase: &str| {
        let mut files = mover("PodVolumeBackup", phase, None);
        files["spec"]["uploaderType"] = json!("restic");
        files
    };
    assert_eq!(step(own(""), own("Accepted")).await, 200);
    let by_mover = |phase: &str, grant: Option<&str>| {
        let mut files = mover("PodVolumeBackup", phase, grant);
        files["spec"]["uploaderType"] = json!("restic");
        files["metadata"]["annotations"]["berth.dev/by-mover"] = json!("true");
        files
    };
    assert_eq!(step(by_mover("", None), by_mover("Accepted", None)).await, 403);
    assert_eq!(step(by_mover("", Some("now")), by_mover("Accepted", Some("now"))).await, 200);
    let born = async |phase: &str| {
        let born = mover("PodVolumeBackup", phase, Some("x"));
        let answer = ask(&router, GATE_PATH, review("CREATE", born, None, false)).await;
        answer["status"]["code"].as_u64().unwrap_or(200)
    };
    assert_eq!(born("").await, 403);
    assert_eq!(born("Accepted").await, 403);
    // As Velero's backup sync creates it from another cluster's backup.
    assert_eq!(born("Completed").await, 200);
}

#[tokio::test]
async fn a_configuration_with_faults_is_refused_and_can_be_written_all_the_same() {
    let (_, router) = state();
    let map = |name: &str, unchecked: bool, config: Value| {
        let annotations = unchecked.then(|| json!({"berth.dev/unchecked": "true"}));
        let data = json!({"config.json": config.to_string()});
        let mut review = review(
            "CREATE",
            json!({"metadata": {"name": name, "annotations": annotations}, "data": data}),
            None,
            false,
        );
        review["request"]["name"] = json!(name);
        review
    };
    let faulty =
        json!({"prepareQueueLength": 2, "loadAffinity": [{"storageClass": "silver", "nodeSelector": {}}]});
    let ask = async |review| ask(&router, CONFIGURATION_PATH, review).await;
    let refused = ask(map("node-agent-config", false, faulty.clone())).await;
    let message = refused["status"]["message"].as_str().unwrap_or_default();
    assert_eq!(refused["status"]["code"], 422);
    for words in [
        "data[config.json].prepareQueueLength: does not belong here",
        "loadAffinity[0].storageClass: there is no StorageClass \"silver\"",
        "berth.dev/unchecked=true",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let unchecked = ask(map("node-agent-config", true, faulty.clone())).await;
    assert_eq!(
        (&unchecked["allowed"], unchecked["warnings"].as_array().map(Vec::len)),
        (&json!(true), Some(2))
    );
    assert_eq!(ask(map("another", false, faulty)).await["allowed"], true);
    let good = json!({"loadAffinity": [{"storageClass": "gold", "nodeSelector": {}}]});
    assert_eq!(ask(map("node-agent-config", false, good)).await["allowed"], true);
}
