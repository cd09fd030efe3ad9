//! Runs that end anywhere, with their parts stored in whatever order, and those that go on from
//! there: for each way by which objects enter a backup.

use std::collections::BTreeSet;

use super::*;
use crate::backup::archive::Batch;
use crate::backup::hold::HeldPod;
use crate::backup::hooks::Tried;
use crate::backup::ledger::Contents;

mod along;

const MAPS: &str = "/api/v1/namespaces/app/configmaps";

/// What there is, and how a Backup of it asks.
struct Cluster {
    api: Scripted,
    types: Vec<ResourceType>,
    spec: Value,
    policy: &'static str,
    /// Namespaces with which it began; `app` is there.
    resolved: &'static [&'static str],
}

/// What a checkpoint says at one moment, and what the stored parts hold then.
struct Moment {
    balance: Balance,
    tried: Tried,
    stored: BTreeSet<String>,
}

impl Moment {
    fn first() -> Self {
        let balance = Balance::default();
        Self { balance, tried: Tried::default(), stored: BTreeSet::new() }
    }
}

/// One run to its end.
struct Ran {
    /// All at which it might have ended.
    moments: Vec<Moment>,
    /// What pods with hooks took along, and they themselves, by blocks.
    blocks: Vec<Vec<String>>,
    listed: Value,
    counts: MessageCounts,
    /// Warnings and errors.
    told: String,
}

impl Ran {
    fn stored(&self) -> &BTreeSet<String> {
        &self.moments.last().unwrap().stored
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// What is on its way to the store.
struct Parts<'a> {
    ledger: &'a ObjectLedger,
    tally: &'a Tally,
    under_way: Vec<(String, Contents)>,
    stored: BTreeSet<String>,
    moments: Vec<Moment>,
}

impl Parts<'_> {
    /// As the checkpoint of a run says it.
    fn note(&mut self) {
        let balance = self.ledger.balance().unwrap();
        self.moments.push(Moment { balance, tried: self.tally.tried(), stored: self.stored.clone() });
    }

    /// Gives what it is.
    fn send(&mut self, batch: &Batch) -> Vec<String> {
        let items = batch.items.iter();
        let names: Vec<String> = items.map(|item| key(item.namespace.as_deref(), &item.name)).collect();
        let kind = batch.kind.qualified();
        let sent = names.iter().map(|name| format!("{kind} {name}")).collect();
        let contents = Contents { page: batch.page, resource: kind.as_str().into(), names, at: None };
        self.under_way.push((kind, contents));
        sent
    }

    /// One of them is stored.
    fn store(&mut self, dice: &mut Dice) {
        let (kind, contents) = self.under_way.swap_remove(dice.roll(self.under_way.len()));
        for name in &contents.names {
            assert!(self.stored.insert(format!("{kind} {name}")), "{kind} {name} is stored twice");
        }
        self.ledger.stored(vec![contents]);
        self.note();
    }
}

impl Cluster {
    /// Runs the backup behind what was stored at that moment.
    async fn run(&self, behind: &Moment, dice: &mut Dice) -> Ran {
        let mut spec = json!({"includedNamespaces": ["app"]});
        spec.as_object_mut().unwrap().extend(self.spec.as_object().unwrap().clone());
        let wanted = parse::backup(&serde_json::from_value(spec).unwrap()).unwrap();
        let data = BTreeMap::from([("policy".to_owned(), format!("version: v1\n{}", self.policy))]);
        let policies = policy::parse(&data, &Field::root("p")).unwrap();
        let namespace = Namespace {
            name: "app".to_owned(),
            labels: BTreeMap::new(),
            json: Bytes::from_static(b"{}"),
            lacks_type: true,
            deleting: false,
            excluded: false,
        };
        let Balance { extents, names, count, index } = &behind.balance;
        let (extents, names, index) = (extents.clone(), names.clone(), index.clone());
        let balance = Balance { extents, names, count: *count, index };
        let ledger = ObjectLedger::again(&self.types, balance).unwrap();
        let (log, tally) = (BackupLog::new(String::new()), Tally::default());
        tally.add(behind.tried.clone());
        let counters = Counters { total: AtomicU64::new(0), done: Arc::default() };
        let outcomes = Outcomes::default();
        let (volumes, _jobs) = RunVolumes::idle(policies.volumes.clone(), &log, &outcomes);
        let (batches, mut taken) = mpsc::channel(64);
        let (holder, mut held) = PodHolder::new(&[], &log, &tally);
        let collector = Collector {
            lister: lister(&self.api),
            wanted: &wanted,
            selection: &wanted.resources.resolve(&self.types, false),
            filters: &Filters::resolve(&policies, &self.types, ["app"]),
            backup: "nightly",
            types: &self.types,
            namespaces: &[namespace],
            resolved: &self.resolved.iter().map(|name| (*name).to_owned()).collect(),
            log: &log,
            counters: &counters,
            volumes: &volumes,
            ledger: &ledger,
            batches,
            holder,
        };
        let stored = behind.stored.clone();
        let mut parts =
            Parts { ledger: &ledger, tally: &tally, under_way: Vec::new(), stored, moments: Vec::new() };
        let mut blocks = Vec::new();
        let pack = async {
            parts.note();
            loop {
                tokio::select! {
                    biased;
                    Some(batch) = taken.recv() => {
                        parts.send(&batch);
                        // It is on its way, which is all that anybody waits for.
                        if let Some(packed) = batch.packed {
                            packed.send(()).unwrap();
                        }
                    }
                    Some(block) = held.recv() => {
                        let mut sent = Vec::new();
                        for pod in &block {
                            sent.extend(pod.used.with.iter().flat_map(|batch| parts.send(batch)));
                        }
                        for pod in block {
                            if pod.id.name == "out" {
                                tally.leave_out(&pod.id);
                                continue;
                            }
                            let HeldPod { kind, page, item, .. } = pod;
                            sent.extend(parts.send(&Batch { kind, page, items: vec![item], packed: None }));
                        }
                        blocks.push(sent);
                    }
                    else => break,
                }
                parts.note();
                while !parts.under_way.is_empty() && dice.roll(2) == 0 {
                    parts.store(dice);
                }
            }
            while !parts.under_way.is_empty() {
                parts.store(dice);
            }
        };
        let (listed, ()) = tokio::join!(collector.run(), pack);
        let mut listed = listed.unwrap();
        tally.correct(&mut listed);
        Ran {
            moments: parts.moments,
            blocks,
            listed: serde_json::to_value(listed).unwrap(),
            counts: log.counts(),
            told: serde_json::to_string(&log.told()).unwrap(),
        }
    }

    /// Wherever its run ends, and the next one ends, too: the last one has all of it, and each
    /// object once. Gives what that is.
    async fn is_whole_wherever_its_runs_end(&self) -> BTreeSet<String> {
        let mut dice = Dice(7);
        let mut all = BTreeSet::new();
        for round in 0..4 {
            let first = self.run(&Moment::first(), &mut dice).await;
            assert_eq!(first.counts, MessageCounts { warnings: 0, errors: 0 }, "{round}");
            for (at, moment) in first.moments.iter().enumerate() {
                let second = self.run(moment, &mut dice).await;
                let third = self.run(&second.moments[dice.roll(second.moments.len())], &mut dice).await;
                for (name, ran) in [("second", &second), ("third", &third)] {
                    let place = format!("the {name} run, behind moment {at} of round {round}");
                    assert_eq!(ran.stored(), first.stored(), "{place}");
                    assert_eq!((&ran.listed, ran.counts), (&first.listed, first.counts), "{place}");
                }
            }
            all.clone_from(first.stored());
        }
        all
    }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn namespaces() -> ResourceType {
    kind("namespaces", "", "Namespace", false)
}

fn map(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "app", "labels": {"app": "a", "tier": "b"}});
    json!({"metadata": metadata})
}

fn hooked(name: &str, claims: &[&str]) -> Value {
    let mut pod = annotated(pod(name, claims, "first"), json!({"pre.hook.backup.velero.io/command": "true"}));
    pod["metadata"]["uid"] = json!("u");
    pod["spec"]["containers"] = json!([{"name": "main"}]);
    pod
}

/// Pages, what goes first, what is named, what an action asks for, pods with hooks, a binding, a
/// class of snapshots, a definition, and a namespace.
#[tokio::test(start_paused = true)]
async fn whatever_is_on_its_way_when_a_run_ends_is_stored_once_by_the_one_that_goes_on() {
    const RBAC: &str = "rbac.authorization.k8s.io";
    const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
    const SECRETS: &str = "/api/v1/namespaces/app/secrets";
    let types = vec![
        kind("pods", "", "Pod", true),
        kind("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        kind("persistentvolumes", "", "PersistentVolume", false),
        kind("priorityclasses", "scheduling.k8s.io", "PriorityClass", false),
        kind("configmaps", "", "ConfigMap", true),
        kind("secrets", "", "Secret", true),
        kind("serviceaccounts", "", "ServiceAccount", true),
        kind("clusterrolebindings", RBAC, "ClusterRoleBinding", false),
        kind("clusterroles", RBAC, "ClusterRole", false),
        kind("volumesnapshotclasses", SNAPSHOTS, "VolumeSnapshotClass", false),
        kind("widgets", "example.com", "Widget", true),
        kind("customresourcedefinitions", "apiextensions.k8s.io", "CustomResourceDefinition", false),
        namespaces(),
    ];
    let api = Scripted::new();
    let of_app = |name: &str| json!({"metadata": {"name": name, "namespace": "app"}});
    let must = json!({"backup.velero.io/must-include-additional-items": "true"});
    let web = annotated(pod("web", &["shy"], ""), must);
    api.always(get(PODS).answers(page("5", "more", &[hooked("db", &["c"]), hooked("out", &[])])));
    api.always(get(PODS).page("more").answers(list("5", &[pod("plain", &[], ""), web])));
    let shy = labelled(claim("shy", "w"), json!({"velero.io/exclude-from-backup": "true"}));
    api.always(get(CLAIMS).answers(list("5", &[claim("c", "v"), shy])));
    api.always(get(&format!("{CLAIMS}/c")).answers(claim("c", "v")));
    for volume in ["v", "w"] {
        api.always(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    api.always(get(&format!("{CLASSES}/first")).answers(plain("first")));
    // All that there is of them goes first.
    api.always(get(MAPS).answers(page("5", "more", &[map("a")])));
    api.always(get(MAPS).page("more").answers(list("5", &[map("b")])));
    for name in ["a", "b"] {
        api.always(get(&format!("{MAPS}/{name}")).answers(map(name)));
    }
    // Some of these do.
    api.always(get(SECRETS).answers(page("5", "more", &["a", "b"].map(of_app))));
    api.always(get(SECRETS).page("more").answers(page("5", "last", &["c", "d"].map(of_app))));
    api.always(get(SECRETS).page("last").answers(list("5", &["e"].map(of_app))));
    api.always(get(&format!("{SECRETS}/c")).answers(of_app("c")));
    api.always(get("/api/v1/namespaces/app/serviceaccounts").answers(list("5", &[of_app("one")])));
    let subject = json!({"kind": "ServiceAccount", "name": "one", "namespace": "app"});
    let binding =
        json!({"metadata": {"name": "of-one"}, "roleRef": {"name": "of-one"}, "subjects": [subject]});
    api.always(get(&format!("/apis/{RBAC}/v1/clusterrolebindings")).answers(list("5", &[binding])));
    api.always(get(&format!("/apis/{RBAC}/v1/clusterroles/of-one")).answers(plain("of-one")));
    let annotations = json!({
        "csi.storage.k8s.io/snapshotter-list-secret-name": "s",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "kube-system",
    });
    let fast = annotated(plain("fast"), annotations);
    api.always(get(&format!("/apis/{SNAPSHOTS}/v1/volumesnapshotclasses")).answers(list("5", &[fast])));
    let secret = json!({"metadata": {"name": "s", "namespace": "kube-system"}});
    api.always(get("/api/v1/namespaces/kube-system/secrets/s").answers(secret));
    api.always(get("/apis/example.com/v1/namespaces/app/widgets").answers(list("5", &[of_app("w")])));
    let definitions = ["widgets.example.com".to_owned(), format!("volumesnapshotclasses.{SNAPSHOTS}")];
    for name in &definitions {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        api.always(get(&path).answers(plain(name)));
    }
    let spec = json!({
        "orderedResources": {"configmaps": "app/b,app/a", "secrets": "app/c", "pods": "app/db,app/plain"},
        "includedClusterScopedResources": ["volumesnapshotclasses"],
    });
    for (name, found) in [("db", hooked("db", &["c"])), ("plain", pod("plain", &[], ""))] {
        api.always(get(&format!("{PODS}/{name}")).answers(found));
    }
    let cluster = Cluster { api, types, spec, policy: "", resolved: &["app"] };
    let expected = names([
        "clusterrolebindings.rbac.authorization.k8s.io of-one",
        "clusterroles.rbac.authorization.k8s.io of-one",
        "configmaps app/a",
        "configmaps app/b",
        "customresourcedefinitions.apiextensions.k8s.io volumesnapshotclasses.snapshot.storage.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io widgets.example.com",
        "namespaces app",
        "persistentvolumeclaims app/c",
        "persistentvolumeclaims app/shy",
        "persistentvolumes v",
        "persistentvolumes w",
        "pods app/db",
        "pods app/plain",
        "pods app/web",
        "priorityclasses.scheduling.k8s.io first",
        "secrets app/a",
        "secrets app/b",
        "secrets app/c",
        "secrets app/d",
        "secrets app/e",
        "secrets kube-system/s",
        "serviceaccounts app/one",
        "volumesnapshotclasses.snapshot.storage.k8s.io fast",
        "widgets.example.com app/w",
    ]);
    assert_eq!(cluster.is_whole_wherever_its_runs_end().await, expected);
}

/// Claims of a pod, of a group, and the pods that use these: none of them is listed.
#[tokio::test(start_paused = true)]
async fn what_pods_and_claims_lead_to_is_found_again_by_a_run_that_goes_on() {
    let types = vec![
        kind("pods", "", "Pod", true),
        kind("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        kind("persistentvolumes", "", "PersistentVolume", false),
        namespaces(),
    ];
    let grouped =
        |name: &str, volume: &str| labelled(claim(name, volume), json!({"velero.io/volume-group": "g"}));
    let first = labelled(pod("first", &["c"], ""), json!({"role": "web"}));
    let pods = [first.clone(), pod("second", &["e"], ""), pod("third", &["d"], "")];
    let api = Scripted::new();
    api.always(get(PODS).answers(list("5", &pods)));
    api.always(get(&format!("{PODS}/first")).answers(first));
    api.always(get(CLAIMS).answers(list("5", &[grouped("c", "v"), grouped("e", "w"), claim("d", "x")])));
    for volume in ["v", "w"] {
        api.always(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    let policy = "namespacedFilterPolicies:\n- namespaces: [app]\n  resourceFilters:\n  - {kinds: [Pod], labelSelector: {role: web}}";
    let spec = json!({"orderedResources": {"pods": "app/first"}});
    let cluster = Cluster { api, types, spec, policy, resolved: &["app"] };
    let expected = names([
        "namespaces app",
        "persistentvolumeclaims app/c",
        "persistentvolumeclaims app/e",
        "persistentvolumes v",
        "persistentvolumes w",
        "pods app/first",
        "pods app/second",
    ]);
    assert_eq!(cluster.is_whole_wherever_its_runs_end().await, expected);
}

#[tokio::test(start_paused = true)]
async fn each_selector_is_listed_to_its_end_however_often_runs_end() {
    let api = Scripted::new();
    api.always(get(MAPS).answers(page("5", "more", &["a", "b"].map(map))));
    api.always(get(MAPS).page("more").answers(page("5", "last", &["c", "d"].map(map))));
    api.always(get(MAPS).page("last").answers(list("5", &["e"].map(map))));
    for name in ["a", "d"] {
        api.always(get(&format!("{MAPS}/{name}")).answers(map(name)));
    }
    let types = vec![kind("configmaps", "", "ConfigMap", true), namespaces()];
    let spec = json!({
        "orLabelSelectors": [{"matchLabels": {"app": "a"}}, {"matchLabels": {"tier": "b"}}],
        "orderedResources": {"configmaps": "app/d,app/a"},
    });
    let cluster = Cluster { api, types, spec, policy: "", resolved: &["app"] };
    let expected = names([
        "configmaps app/a",
        "configmaps app/b",
        "configmaps app/c",
        "configmaps app/d",
        "configmaps app/e",
        "namespaces app",
    ]);
    assert_eq!(cluster.is_whole_wherever_its_runs_end().await, expected);
}

/// A run that nobody takes up has read it before anything else.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_deleted_before_it_is_stored_is_told() {
    let cluster = Cluster {
        api: Scripted::new(),
        types: vec![namespaces()],
        spec: json!({}),
        policy: "",
        resolved: &["app", "gone"],
    };
    let mut dice = Dice(7);
    for (is_stored, warnings) in [(false, 1), (true, 0)] {
        let mut behind = Moment::first();
        if is_stored {
            let names = BTreeMap::from([(0, ["gone"])]);
            behind.balance.names.push(gzip_json(&names).unwrap().into());
            behind.balance.count = 1;
        }
        let ran = cluster.run(&behind, &mut dice).await;
        assert_eq!(ran.counts, MessageCounts { warnings, errors: 0 });
        let expected = if is_stored { json!(["app", "gone"]) } else { json!(["app"]) };
        assert_eq!(ran.listed["v1/Namespace"], expected);
    }
}
