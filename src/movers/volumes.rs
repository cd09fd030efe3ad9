//! The volume of a data mover.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::mover_pod::term;
use berth_api::velero::{DataDownload, DataMover as _, DataUpload};
use berth_core::affinity::Term;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use parking_lot::RwLock;
use tokio::time::timeout;

use crate::client::is_not_found;
use crate::text::chain;
use crate::watch::{of_namespace, reflect};

/// Time-out for a read of an object that is not in a cache yet, because the API server waits for
/// the admission response.
const PATIENCE: Duration = Duration::from_millis(800);

/// The volume of a DataUpload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataUploadVolume {
    pub uid: String,
    pub source_class: Option<String>,
    pub source_namespace: String,
    pub source_claim: String,
    /// berth carries it.
    pub own: bool,
}

impl DataUploadVolume {
    fn of(upload: DataUpload) -> (String, Self) {
        let name = upload.name_any();
        let uid = upload.uid().unwrap_or_default();
        let own = upload.is_own();
        let spec = upload.spec;
        let source_class = spec.csi_snapshot.and_then(|snapshot| snapshot.storage_class);
        let source_class = source_class.filter(|class| !class.is_empty());
        let (source_namespace, source_claim) = (spec.source_namespace, spec.source_pvc);
        let read = Self {
            uid,
            source_class,
            source_namespace: source_namespace.unwrap_or_default(),
            source_claim: source_claim.unwrap_or_default(),
            own,
        };
        (name, read)
    }
}

/// The volume of a DataDownload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    pub uid: String,
    pub namespace: String,
    pub claim: String,
    /// berth carries it.
    pub own: bool,
}

impl Download {
    fn of(download: DataDownload) -> (String, Self) {
        let (name, uid) = (download.name_any(), download.uid().unwrap_or_default());
        let own = download.is_own();
        let target = download.spec.target_volume.unwrap_or_default();
        let (namespace, claim) = (target.namespace.unwrap_or_default(), target.pvc.unwrap_or_default());
        (name, Self { uid, namespace, claim, own })
    }
}

/// Caches for admission. An object that is not in them is read from the API server.
pub struct MoverVolumes {
    client: Client,
    pub namespace: String,
    uploads: RwLock<BTreeMap<String, DataUploadVolume>>,
    downloads: RwLock<BTreeMap<String, Download>>,
    /// Claims of the namespace, with their StorageClasses: those that movers mount.
    claims: RwLock<BTreeMap<String, Option<String>>>,
}

impl MoverVolumes {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            uploads: RwLock::default(),
            downloads: RwLock::default(),
            claims: RwLock::default(),
        }
    }

    /// Watches. Never returns.
    pub async fn follow(&self, client: &Client) {
        let everything = watcher::Config::default;
        let uploads =
            reflect(of_namespace(client, &self.namespace), everything(), DataUploadVolume::of, |event| {
                event.apply_to(&mut self.uploads.write());
            });
        let downloads = reflect(of_namespace(client, &self.namespace), everything(), Download::of, |event| {
            event.apply_to(&mut self.downloads.write());
        });
        let claims = reflect(of_namespace(client, &self.namespace), everything(), claim, |event| {
            event.apply_to(&mut self.claims.write());
        });
        tokio::join!(uploads, downloads, claims);
    }

    /// The volume of a DataUpload.
    ///
    /// # Errors
    /// It does not exist, or the API server cannot be read.
    pub async fn upload(&self, name: &str, uid: &str) -> Result<DataUploadVolume, String> {
        let known = self.uploads.read().get(name).filter(|upload| upload.uid == uid).cloned();
        match known {
            Some(known) => Ok(known),
            None => Ok(DataUploadVolume::of(self.get(&self.namespace, name).await?).1),
        }
    }

    /// The volume of a DataDownload.
    ///
    /// # Errors
    /// It does not exist, or the API server cannot be read.
    pub async fn download(&self, name: &str, uid: &str) -> Result<Download, String> {
        let known = self.downloads.read().get(name).filter(|download| download.uid == uid).cloned();
        match known {
            Some(known) => Ok(known),
            None => Ok(Download::of(self.get(&self.namespace, name).await?).1),
        }
    }

    /// StorageClass of a claim.
    ///
    /// # Errors
    /// The claim cannot be read.
    pub async fn class(&self, namespace: &str, name: &str) -> Result<Option<String>, String> {
        let known = || self.claims.read().get(name).cloned().filter(|_| namespace == self.namespace);
        match known() {
            Some(known) => Ok(known),
            None => Ok(claim(self.get(namespace, name).await?).1),
        }
    }

    /// The node affinity that Velero copies from the source's volume into a backup's pod: the nodes
    /// that can mount it.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub async fn topology(&self, upload: &DataUploadVolume) -> Result<Vec<Term>, String> {
        let source: PersistentVolumeClaim = self.get(&upload.source_namespace, &upload.source_claim).await?;
        let name = source.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = ask("PersistentVolume", &name, volumes.get(&name)).await?;
        let affinity = volume.spec.and_then(|spec| spec.node_affinity).and_then(|affinity| affinity.required);
        Ok(affinity.map_or_else(Vec::new, |required| required.node_selector_terms.iter().map(term).collect()))
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Result<K, String>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        ask(&K::kind(&()), name, api.get(name)).await
    }
}

async fn ask<K>(
    kind: &str,
    name: &str,
    asked: impl Future<Output = Result<K, kube::Error>>,
) -> Result<K, String> {
    match timeout(PATIENCE, asked).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(error)) if is_not_found(&error) => Err(format!("{kind} {name} does not exist")),
        Ok(Err(error)) => Err(format!("{kind} {name} cannot be read: {}", chain(&error))),
        Err(_) => Err(format!("{kind} {name} could not be read in time")),
    }
}

fn claim(claim: PersistentVolumeClaim) -> (String, Option<String>) {
    let class = claim.spec.and_then(|spec| spec.storage_class_name).filter(|class| !class.is_empty());
    (claim.metadata.name.unwrap_or_default(), class)
}
