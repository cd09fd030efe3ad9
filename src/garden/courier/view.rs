//! The hub and the member cluster, as the courier sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::garden::report::Problem;
use berth_api::garden::{BackupBucket, BackupEntry, SecretReference};
use berth_api::velero::BackupStorageLocation;
use berth_api::{extensions, keys};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;

use super::known::Known;
use crate::mirror::of_namespace;

/// Keys and values of a Secret.
pub type Credentials = BTreeMap<String, Vec<u8>>;

/// What the hub says. Stays as it was while the hub cannot be reached.
pub struct Hub {
    namespace: String,
    pub buckets: Known<BackupBucket>,
    pub entries: Known<BackupEntry>,
    secrets: Known<Secret>,
    tombstones: Known<ConfigMap>,
}

/// What was made of it here.
pub struct Member {
    namespace: String,
    garden_namespace: String,
    pub buckets: Known<extensions::BackupBucket>,
    pub entries: Known<extensions::BackupEntry>,
    /// Of ours in the namespace of the credentials.
    pub secrets: Known<Secret>,
    pub locations: Known<BackupStorageLocation>,
    /// Of ours beside the locations.
    pub location_secrets: Known<Secret>,
}

impl Hub {
    pub fn new(namespace: &str, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            buckets: Known::new(changes),
            entries: Known::new(changes),
            secrets: Known::new(changes),
            tombstones: Known::new(changes),
        }
    }

    pub fn is_synced(&self) -> bool {
        self.buckets.is_listed()
            && self.entries.is_listed()
            && self.secrets.is_listed()
            && self.tombstones.is_listed()
    }

    /// For ever.
    pub async fn follow(&self, client: &Client) {
        let all = watcher::Config::default;
        let ended = all().labels(&format!("{}=true", keys::TOMBSTONE));
        tokio::join!(
            self.buckets.follow(of_cluster(client), all()),
            self.entries.follow(of_cluster(client), all()),
            self.secrets.follow(of_namespace(client, &self.namespace), all()),
            self.tombstones.follow(of_namespace(client, &self.namespace), ended),
        );
    }

    /// The entry of that name. Of several, in as many namespaces, one has the directory: the one that was given a place, and a
    /// seed to act on it.
    pub fn entry(&self, name: &str) -> Option<Arc<BackupEntry>> {
        let lacks = |entry: &Arc<BackupEntry>| {
            let is_claimed = entry.finalizers().iter().any(|one| one == keys::GARDEN_FINALIZER);
            let seed = entry.status.as_ref().and_then(|status| status.seed.as_ref());
            (!is_claimed, seed.is_none())
        };
        self.entries.named(name).into_iter().min_by_key(lacks)
    }

    /// Is the end of the entry of that name and UID on record?
    pub fn has_tombstone(&self, entry: &str, uid: &str) -> bool {
        let says = |map: &ConfigMap, key: &str, value: &str| {
            map.data.as_ref().and_then(|data| data.get(key)).is_some_and(|found| found == value)
        };
        self.tombstones.all().iter().any(|map| says(map, "entry", entry) && says(map, "uid", uid))
    }

    /// # Errors
    /// When there are none, with what to do about it.
    pub fn credentials(&self, bucket: &BackupBucket) -> Result<Credentials, Problem> {
        let Some(SecretReference { name, namespace }) = &bucket.spec.secret_ref else {
            if !berth_api::garden::location::takes_credentials(&bucket.spec.provider) {
                return Ok(Credentials::new());
            }
            let bucket = bucket.name_any();
            return Err(Problem::of_configuration(format!(
                "BackupBucket {bucket} names no credentials: set spec.secretRef"
            )));
        };
        let ours = &self.namespace;
        if namespace != ours {
            return Err(Problem::of_configuration(format!(
                "Secret {namespace}/{name} cannot be read: credentials of buckets belong into namespace {ours}"
            )));
        }
        let Some(secret) = self.secrets.get(name) else {
            return Err(Problem::of_configuration(format!(
                "there is no Secret {namespace}/{name} in the hub: create it again with the store's keys"
            )));
        };
        Ok(secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect())
    }
}

impl Member {
    pub fn new(namespace: &str, garden_namespace: &str, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            garden_namespace: garden_namespace.to_owned(),
            buckets: Known::new(changes),
            entries: Known::new(changes),
            secrets: Known::new(changes),
            locations: Known::new(changes),
            location_secrets: Known::new(changes),
        }
    }

    pub fn is_synced(&self) -> bool {
        self.buckets.is_listed()
            && self.entries.is_listed()
            && self.secrets.is_listed()
            && self.locations.is_listed()
            && self.location_secrets.is_listed()
    }

    /// For ever.
    pub async fn follow(&self, client: &Client) {
        let all = watcher::Config::default;
        let ours = || all().labels(keys::CARRIED_FOR);
        tokio::join!(
            self.buckets.follow(of_cluster(client), all()),
            self.entries.follow(of_cluster(client), all()),
            self.secrets.follow(of_namespace(client, &self.garden_namespace), ours()),
            self.locations.follow(of_namespace(client, &self.namespace), all()),
            self.location_secrets.follow(of_namespace(client, &self.namespace), ours()),
        );
    }
}

fn of_cluster<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DeserializeGuard<K>> {
    Api::all(client.clone())
}
