//! Plays snapshot controller and CSI driver for claims that exist as objects only: it knows what is
//! in the storage, and does what the claim's name says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::ControlPlane;
use crate::support::control_plane::client;

pub const DRIVER: &str = "played.berth.test";

fn kind(kind: &str) -> ApiResource {
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
    ApiResource::from_gvk(&gvk)
}

#[derive(Default)]
struct State {
    /// Handles, each with its claim.
    storage: BTreeMap<String, String>,
    /// Claims of which a snapshot was asked for.
    asked: Vec<String>,
    /// Claims whose snapshots are held back.
    held: BTreeSet<String>,
    /// Claims whose snapshots are cut, and not ready.
    late: BTreeSet<String>,
}

#[derive(Clone, Default)]
pub struct Player(Arc<Mutex<State>>);

impl Player {
    /// For as long as the test's process runs.
    pub fn start(plane: &ControlPlane) -> Self {
        let player = Self::default();
        let (played, kubeconfig) = (player.clone(), plane.kubeconfig());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(played.play(kubeconfig));
        });
        player
    }

    /// Claims (namespace, slash, name) whose snapshots are in the storage, sorted.
    pub fn stored(&self, namespace: &str) -> Vec<String> {
        let prefix = format!("{namespace}/");
        let mut claims: Vec<String> = self.0.lock().storage.values().cloned().collect();
        claims.retain(|claim| claim.starts_with(&prefix));
        claims.sort();
        claims
    }

    pub fn asked(&self, claim: &str) -> usize {
        self.0.lock().asked.iter().filter(|asked| *asked == claim).count()
    }

    pub fn hold(&self, claim: &str) {
        self.0.lock().held.insert(claim.to_owned());
    }

    pub fn let_go(&self, claim: &str) {
        self.0.lock().held.remove(claim);
    }

    /// Its snapshots are cut at once, and not ready before [`Player::make_ready`].
    pub fn make_late(&self, claim: &str) {
        self.0.lock().late.insert(claim.to_owned());
    }

    pub fn make_ready(&self, claim: &str) {
        self.0.lock().late.remove(claim);
    }

    async fn play(self, kubeconfig: PathBuf) {
        let client = client(&kubeconfig).await.unwrap();
        let snapshots: Api<DynamicObject> = Api::all_with(client.clone(), &kind("VolumeSnapshot"));
        let mut events = std::pin::pin!(watcher(snapshots, watcher::Config::default()));
        let mut seen = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(snapshot) | watcher::Event::InitApply(snapshot)) => {
                    if seen.insert(snapshot.uid().unwrap()) {
                        tokio::spawn(self.clone().take(client.clone(), snapshot));
                    }
                }
                Ok(watcher::Event::Delete(snapshot)) => {
                    tokio::spawn(self.clone().delete(client.clone(), snapshot));
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn take(self, client: Client, snapshot: DynamicObject) {
        let (namespace, uid) = (snapshot.namespace().unwrap(), snapshot.uid().unwrap());
        let name = snapshot.data["spec"]["source"]["persistentVolumeClaimName"].as_str().unwrap().to_owned();
        let claim = format!("{namespace}/{name}");
        self.0.lock().asked.push(claim.clone());
        while self.0.lock().held.contains(&claim) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let contents: Api<DynamicObject> = Api::all_with(client.clone(), &kind("VolumeSnapshotContent"));
        let classes: Api<DynamicObject> = Api::all_with(client.clone(), &kind("VolumeSnapshotClass"));
        let snapshots: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind("VolumeSnapshot"));
        // Nobody takes a snapshot that is not asked for any more.
        if snapshots.get_opt(&snapshot.name_any()).await.unwrap().is_none() {
            return;
        }
        // A snapshot controller tells it, and makes no content.
        let class = snapshot.data["spec"]["volumeSnapshotClassName"].as_str().unwrap_or_default();
        if classes.get_opt(class).await.unwrap().is_none() {
            let told = json!({"message": format!("failed to retrieve snapshot class {class}")});
            let patch = Patch::Merge(json!({"status": {"readyToUse": false, "error": told}}));
            let _ = snapshots.patch_status(&snapshot.name_any(), &PatchParams::default(), &patch).await;
            return;
        }
        let content = format!("snapcontent-{uid}");
        let object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": content},
            "spec": {
                "deletionPolicy": "Delete", "driver": DRIVER, "source": {"volumeHandle": name},
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "name": snapshot.name_any(), "namespace": namespace, "uid": uid,
                },
            },
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        contents.create(&PostParams::default(), &object).await.unwrap();
        let (name_of_snapshot, params) = (snapshot.name_any(), PatchParams::default());
        let tell = async |content_status: Value, is_ready: bool| {
            let patch = Patch::Merge(json!({"status": content_status}));
            let _ = contents.patch_status(&content, &params, &patch).await;
            let status = json!({"boundVolumeSnapshotContentName": content, "readyToUse": is_ready});
            let patch = Patch::Merge(json!({"status": status}));
            let _ = snapshots.patch_status(&name_of_snapshot, &params, &patch).await;
        };
        if name.starts_with("never") {
            tell(json!({"error": {"message": "the disk is on fire"}}), false).await;
            return;
        }
        if name.starts_with("errs") {
            tell(json!({"error": {"message": "not this time"}}), false).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let handle = format!("handle-{uid}");
        self.0.lock().storage.insert(handle.clone(), claim.clone());
        let status = |is_ready| {
            json!({
                "snapshotHandle": handle, "restoreSize": 2_147_483_648_u64, "readyToUse": is_ready, "error": null,
            })
        };
        tell(status(false), false).await;
        while self.0.lock().late.contains(&claim) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !name.starts_with("unready") {
            tell(status(true), true).await;
        }
    }

    /// As a snapshot controller and a driver do it.
    async fn delete(self, client: Client, snapshot: DynamicObject) {
        let contents: Api<DynamicObject> = Api::all_with(client, &kind("VolumeSnapshotContent"));
        let uid = snapshot.uid().unwrap();
        let name = format!("snapcontent-{uid}");
        let Ok(Some(content)) = contents.get_opt(&name).await else { return };
        if content.data["spec"]["deletionPolicy"] == "Delete" {
            let _ = contents.delete(&name, &DeleteParams::default()).await;
            self.0.lock().storage.remove(&format!("handle-{uid}"));
        }
    }
}
