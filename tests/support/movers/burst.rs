//! What a node-agent wants to find, and many data movements at once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::Client;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::player::{DRIVER, Pace, Player};
use super::{History, Kind};
use crate::control_plane;
use crate::csi::{class, define_snapshots};
use crate::peers::install_definitions;
use crate::pods::Cluster;
use crate::wait::PATIENCE;
use crate::wait_for;

/// Where the applications are whose data is moved.
pub const SOURCE: &str = "source";
/// A StorageClass whose volumes exist as objects only.
pub const CLASS: &str = "played";
/// A Backup and a Restore, both Completed.
const OWNER: &str = "burst";
/// Label of the applications' pods, which no kubelet runs.
const APPLICATION: &str = "berth.test/application";
/// Calls at once.
const AT_ONCE: usize = 16;

pub struct Burst<'a> {
    cluster: &'a Cluster,
    namespace: String,
    runtime: tokio::runtime::Runtime,
    client: Client,
    player: Player,
    pub history: Arc<History>,
}

impl<'a> Burst<'a> {
    /// Definitions, Velero's namespace and account, an application with a volume on each node, and
    /// a player.
    ///
    /// # Errors
    /// When the API server refuses something.
    pub fn new(cluster: &'a Cluster, namespace: &str, pace: Pace) -> anyhow::Result<Self> {
        let plane = cluster.plane();
        install_definitions(plane)?;
        define_snapshots(plane)?;
        cluster.leave(APPLICATION);
        plane.apply(objects(cluster, namespace))?;
        let history = Arc::new(History::start(plane, namespace)?);
        let player = Player::start(cluster, namespace, Arc::clone(&history), pace)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(control_plane::client(&plane.kubeconfig()))?;
        let burst = Self { cluster, namespace: namespace.to_owned(), runtime, client, player, history };
        burst.settle()?;
        Ok(burst)
    }

    /// Until the source's claim is bound, and the applications have what they would have on real
    /// nodes.
    fn settle(&self) -> anyhow::Result<()> {
        let kubectl = self.cluster.kubectl();
        let phase = ["get", "pvc", "data", "--namespace", SOURCE, "-o", "jsonpath={.status.phase}"];
        wait_for("the source's claim to be bound", PATIENCE, || {
            Ok((kubectl.run(&phase)? == "Bound").then_some(()))
        })?;
        let pods = self.applications();
        for node in self.cluster.nodes() {
            let name = application(&node.name);
            let pod = self.runtime.block_on(pods.get(&name))?;
            let folder = self.cluster.pods_folder().join(pod.metadata.uid.unwrap_or_default());
            std::fs::create_dir_all(folder.join("volumes/kubernetes.io~empty-dir/data"))?;
            // What a restore waits for: the pod is held by its first container.
            let waits = json!({"name": "restore-wait", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"running": {}}});
            let status = Patch::Merge(json!({"status": {"initContainerStatuses": [waits]}}));
            self.runtime.block_on(pods.patch_status(&name, &PatchParams::default(), &status))?;
        }
        Ok(())
    }

    /// # Errors
    /// When the player could not go on.
    pub fn ensure_plays(&self) -> anyhow::Result<()> {
        self.player.ensure_plays()
    }

    /// From now on nothing of data movements begins to run on this node, and nothing ends, as where
    /// a kubelet is away.
    pub fn hold(&self, node: &str) {
        self.player.hold(node);
    }

    /// From now on nothing of data movements ends on this node that has begun to run.
    pub fn hold_ends(&self, node: &str) {
        self.player.hold_ends(node);
    }

    /// After [`Burst::hold`] and [`Burst::hold_ends`]: they go on.
    pub fn release(&self, node: &str) {
        self.player.release(node);
    }

    /// From now on the scheduler puts pods on these nodes only.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn open(&self, open: &[&str]) -> anyhow::Result<()> {
        let nodes: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &resource("", "v1", "Node", "nodes"));
        for node in self.cluster.nodes() {
            let closed = (!open.contains(&node.name.as_str())).then_some(true);
            let patch = Patch::Merge(json!({"spec": {"unschedulable": closed}}));
            self.runtime.block_on(nodes.patch(&node.name, &PatchParams::default(), &patch))?;
        }
        Ok(())
    }

    /// Creates so many, named PREFIX-1 and so on, as nearly at once as can be. Those of pods'
    /// volumes are spread over the nodes by turns. They belong to a Backup or Restore that has
    /// ended.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn create(&self, kind: Kind, prefix: &str, count: usize) -> anyhow::Result<Vec<String>> {
        self.create_with(kind, prefix, count, true)
    }

    /// DataUploads whose snapshots are not ready before [`Burst::set_ready`]: whichever node-agent
    /// accepts one waits for that, and accepts no other one meanwhile.
    ///
    /// # Errors
    /// As [`Burst::create`].
    pub fn create_unready(&self, prefix: &str, count: usize) -> anyhow::Result<Vec<String>> {
        self.create_with(Kind::DataUpload, prefix, count, false)
    }

    /// The snapshots of these DataUploads are ready from now on.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn set_ready(&self, names: &[String]) -> anyhow::Result<()> {
        self.all(names, |name| async move {
            let status = Patch::Merge(json!({"status": {"readyToUse": true}}));
            self.snapshots().patch_status(&name, &PatchParams::default(), &status).await?;
            anyhow::Ok(())
        })
    }

    fn create_with(
        &self,
        kind: Kind,
        prefix: &str,
        count: usize,
        are_ready: bool,
    ) -> anyhow::Result<Vec<String>> {
        let owner = self.owner(kind)?;
        let names: Vec<String> = (1..=count).map(|number| format!("{prefix}-{number}")).collect();
        match kind {
            Kind::DataUpload => self.all(&names, |name| self.make_snapshot(name, are_ready))?,
            Kind::DataDownload => self.all(&names, |name| self.make_target(name))?,
            Kind::PodVolumeBackup | Kind::PodVolumeRestore => {}
        }
        let nodes = self.cluster.nodes().iter().cycle().map(|node| node.name.as_str());
        let objects = names.iter().zip(nodes).map(|(name, node)| self.object(kind, name, node, &owner));
        self.submit(kind, objects.collect::<anyhow::Result<_>>()?)?;
        Ok(names)
    }

    /// Creates these as they are, as nearly at once as can be.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn submit(&self, kind: Kind, objects: Vec<Value>) -> anyhow::Result<()> {
        let api = kind.api(&self.client, &self.namespace);
        let create = async |object: Value| -> anyhow::Result<()> {
            api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
            Ok(())
        };
        let created = futures::stream::iter(objects).map(create).buffer_unordered(AT_ONCE);
        self.runtime.block_on(created.try_collect::<()>())
    }

    /// Changes one: an annotation, say, which is nothing but a new resourceVersion.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn patch(&self, kind: Kind, name: &str, patch: &Value) -> anyhow::Result<()> {
        let api = kind.api(&self.client, &self.namespace);
        self.runtime.block_on(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)))?;
        Ok(())
    }

    /// # Errors
    /// When some have not ended after `patience`, or did not end well.
    pub fn wait_completed(&self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let ended = self.history.wait_ended(count, patience);
        self.ensure_plays()?;
        ended?;
        let phases = self.history.phases()?;
        anyhow::ensure!(phases.keys().all(|phase| phase == "Completed"), "they are {phases:?}");
        Ok(())
    }

    fn all<F: Future<Output = anyhow::Result<()>>>(
        &self,
        names: &[String],
        make: impl Fn(String) -> F,
    ) -> anyhow::Result<()> {
        let made = futures::stream::iter(names.iter().cloned()).map(make).buffer_unordered(AT_ONCE);
        self.runtime.block_on(made.try_collect::<()>())
    }

    /// The applications' pods.
    fn applications(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), SOURCE, &resource("", "v1", "Pod", "pods"))
    }

    fn snapshots(&self) -> Api<DynamicObject> {
        let kind = resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots");
        Api::namespaced_with(self.client.clone(), SOURCE, &kind)
    }

    /// A snapshot, as a snapshot-controller would leave it. A node-agent moves it away, so each
    /// object has one.
    async fn make_snapshot(&self, name: String, is_ready: bool) -> anyhow::Result<()> {
        let contents: Api<DynamicObject> = Api::all_with(
            self.client.clone(),
            &resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents"),
        );
        let content = format!("content-{name}");
        let spec = json!({
            "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "source"},
            "volumeSnapshotRef": {"name": name, "namespace": SOURCE},
        });
        let status = json!({"snapshotHandle": name, "readyToUse": true, "restoreSize": 1 << 20});
        make(&contents, "VolumeSnapshotContent", &content, spec, status).await?;
        let spec = json!({"source": {"persistentVolumeClaimName": "data"}});
        let status =
            json!({"boundVolumeSnapshotContentName": content, "readyToUse": is_ready, "restoreSize": "1Mi"});
        make(&self.snapshots(), "VolumeSnapshot", &name, spec, status).await
    }

    /// A claim that waits for its data, as a restore of a moved snapshot leaves it.
    async fn make_target(&self, name: String) -> anyhow::Result<()> {
        let claims: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            SOURCE,
            &resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        );
        let mut wanted = claim(&name);
        wanted["spec"]["selector"] = json!({"matchLabels": {"velero.io/dynamic-pv-restore": name}});
        claims.create(&PostParams::default(), &serde_json::from_value(wanted)?).await?;
        Ok(())
    }

    /// Its UID.
    fn owner(&self, kind: Kind) -> anyhow::Result<String> {
        let (of, plural) = (kind.owner(), kind.owner().to_lowercase() + "s");
        let owners: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &resource("velero.io", "v1", of, &plural),
        );
        self.runtime
            .block_on(owners.get(OWNER))?
            .metadata
            .uid
            .with_context(|| format!("{of} {OWNER} has no UID"))
    }

    /// What [`Burst::create`] creates; of a pod's volume, that of the application on this node.
    ///
    /// # Errors
    /// When the API server does not know what it belongs to.
    pub fn one(&self, kind: Kind, name: &str, node: &str) -> anyhow::Result<Value> {
        self.object(kind, name, node, &self.owner(kind)?)
    }

    fn object(&self, kind: Kind, name: &str, node: &str, owner: &str) -> anyhow::Result<Value> {
        let of = kind.owner();
        let pod = || -> anyhow::Result<Value> {
            let name = application(node);
            let pod = self.runtime.block_on(self.applications().get(&name))?;
            Ok(json!({"kind": "Pod", "namespace": SOURCE, "name": name, "uid": pod.metadata.uid}))
        };
        let lower = of.to_lowercase();
        let mut labels =
            json!({format!("velero.io/{lower}-name"): OWNER, format!("velero.io/{lower}-uid"): owner});
        let pod = match kind {
            Kind::DataUpload | Kind::DataDownload => Value::Null,
            Kind::PodVolumeBackup | Kind::PodVolumeRestore => pod()?,
        };
        if kind == Kind::PodVolumeRestore {
            labels["velero.io/pod-uid"] = pod["uid"].clone();
        }
        let spec = spec(kind, name, node, &pod);
        Ok(json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": labels,
                // Without one, stock Velero's node-agent panics when a PodVolumeBackup is done.
                "ownerReferences": [{
                    "apiVersion": "velero.io/v1", "kind": of, "name": OWNER, "uid": owner, "controller": true,
                }],
            },
            "spec": spec,
        }))
    }
}

/// Of a data movement. `node` and `pod`, an ObjectReference, are those of a pod's volume; `name`
/// that of the snapshot or of the claim.
pub fn spec(kind: Kind, name: &str, node: &str, pod: &Value) -> Value {
    let mut spec = match kind {
        Kind::DataUpload => json!({
            "snapshotType": "CSI", "csiSnapshot": {"volumeSnapshot": name, "storageClass": CLASS},
            "sourcePVC": "data", "operationTimeout": "1m",
        }),
        Kind::DataDownload => json!({
            "targetVolume": {"namespace": SOURCE, "pvc": name, "pv": ""},
            "snapshotID": "played", "operationTimeout": "1m",
        }),
        Kind::PodVolumeBackup => json!({
            "node": node, "pod": pod, "volume": "data", "repoIdentifier": "", "uploaderType": "kopia",
        }),
        Kind::PodVolumeRestore => json!({
            "pod": pod, "volume": "data", "repoIdentifier": "", "uploaderType": "kopia", "snapshotID": "played",
        }),
    };
    spec["backupStorageLocation"] = json!("default");
    if kind != Kind::PodVolumeBackup {
        spec["sourceNamespace"] = json!(SOURCE);
    }
    spec
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// An object, and then its status.
async fn make(
    api: &Api<DynamicObject>,
    kind: &str,
    name: &str,
    spec: Value,
    status: Value,
) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    let made = api.create(&PostParams::default(), &serde_json::from_value(object)?).await;
    made.with_context(|| format!("{kind} {name}"))?;
    let status = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &status)
        .await
        .with_context(|| format!("{kind} {name}"))?;
    Ok(())
}

fn application(node: &str) -> String {
    format!("application-{node}")
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": SOURCE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

fn objects(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let mut source = claim("data");
    source["spec"]["volumeName"] = json!("source");
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SOURCE}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "velero", "namespace": namespace}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("velero-{namespace}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "velero", "namespace": namespace}],
        }),
        class(CLASS, DRIVER, "Immediate", &json!({})),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "source"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Mi"},
                "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": SOURCE, "name": "data"},
                "csi": {"driver": DRIVER, "volumeHandle": "source"},
            },
        }),
        source,
    ];
    objects.extend([("Backup", json!({})), ("Restore", json!({"backupName": OWNER}))].map(|(kind, spec)| {
        json!({
            "apiVersion": "velero.io/v1",
            "kind": kind,
            "metadata": {"name": OWNER, "namespace": namespace},
            "spec": spec,
            "status": {"phase": "Completed"},
        })
    }));
    objects.extend(cluster.nodes().iter().map(|node| {
        let container = |name: &str| json!({"name": name, "image": "none"});
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": application(&node.name), "namespace": SOURCE, "labels": {APPLICATION: ""}},
            "spec": {
                "nodeName": node.name,
                "initContainers": [container("restore-wait")],
                "containers": [container("application")],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        })
    }));
    objects
}
