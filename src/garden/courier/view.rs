//! The hub and the member cluster, as the courier sees them.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_garden_api::extensions;
use berth_garden_api::{BackupBucket, BackupEntry, LocationKeys, SecretReference};
use berth_garden_core::location_keys;
use berth_garden_core::member::StatusProblem;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;

use super::cache::ObjectCache;
use super::secrets::{HubCredentials, SecretAnswer, SecretData, Secrets};
use crate::guarded::Guarded;
use crate::watch::of_namespace;

/// Watch caches of the hub. They stay as they are while the hub cannot be reached.
pub struct HubCaches {
    namespace: String,
    pub buckets: ObjectCache<BackupBucket>,
    pub entries: ObjectCache<BackupEntry>,
    secrets: Secrets,
    tombstones: ObjectCache<ConfigMap>,
}

/// Watch caches of the member cluster.
pub struct MemberCaches {
    namespace: String,
    garden_namespace: String,
    pub buckets: ObjectCache<extensions::BackupBucket>,
    pub entries: ObjectCache<extensions::BackupEntry>,
    /// The courier's own, in the namespace of the credentials.
    pub secrets: ObjectCache<Secret>,
    pub locations: ObjectCache<BackupStorageLocation>,
    /// The courier's own, beside the locations.
    pub location_secrets: ObjectCache<Secret>,
}

impl HubCaches {
    pub fn new(namespace: &str, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            buckets: ObjectCache::new(changes),
            entries: ObjectCache::new(changes),
            secrets: Secrets::new(namespace, changes),
            tombstones: ObjectCache::new(changes),
        }
    }

    pub fn is_synced(&self) -> bool {
        self.buckets.is_synced() && self.entries.is_synced() && self.tombstones.is_synced()
    }

    /// Asks for the credentials of buckets that this seed acts on, and of entries that it holds or
    /// is to hold.
    pub fn want_credentials(&self, seed: &str) {
        let acts = |by: Option<&String>| by.is_some_and(|by| by == seed);
        let mut wanted = Vec::new();
        for bucket in self.buckets.all() {
            if acts(bucket.status.as_ref().and_then(|status| status.seed.as_ref())) {
                wanted.push(self.secret_of(&bucket, None));
            }
        }
        for entry in self.entries.all() {
            let holder = entry.status.as_ref().and_then(|status| status.seed.as_ref());
            if entry.spec.seed_name == seed || acts(holder) {
                let bucket = entry.spec.bucket_name.as_deref().and_then(|name| self.buckets.get(name));
                wanted.push(bucket.and_then(|bucket| self.secret_of(&bucket, Some(&entry))));
            }
        }
        let ours = wanted.into_iter().flatten().filter(|secret| secret.namespace == self.namespace);
        self.secrets.want(ours.map(|secret| secret.name).collect());
    }

    /// Where the credentials of a bucket are, or of an entry in it, which may have its own.
    fn secret_of(&self, bucket: &BackupBucket, entry: Option<&BackupEntry>) -> Option<SecretReference> {
        let secret = bucket.spec.secret_ref.clone()?;
        let Some(entry) = entry.filter(|_| is_scoped(bucket)) else { return Some(secret) };
        let name = location_keys::secret_name(&entry.name_any(), &entry.uid().unwrap_or_default());
        Some(SecretReference { name, namespace: self.namespace.clone() })
    }

    /// Runs for ever.
    pub async fn follow(&self, client: &Client) {
        let all = watcher::Config::default;
        let ended = all().labels(&format!("{}=true", keys::TOMBSTONE));
        tokio::join!(
            self.buckets.follow(of_cluster(client), all()),
            self.entries.follow(of_cluster(client), all()),
            self.secrets.follow(client),
            self.tombstones.follow(of_namespace(client, &self.namespace), ended),
        );
    }

    /// The entry of that name. If several namespaces have one, the directory is that of the entry
    /// which has a place, and a seed that acts on it.
    pub fn entry(&self, name: &str) -> Option<Arc<BackupEntry>> {
        let lacks = |entry: &Arc<BackupEntry>| {
            let is_claimed = entry.finalizers().iter().any(|one| one == keys::GARDEN_FINALIZER);
            let seed = entry.status.as_ref().and_then(|status| status.seed.as_ref());
            (!is_claimed, seed.is_none())
        };
        self.entries.named(name).into_iter().min_by_key(lacks)
    }

    /// UIDs of entries of that name whose end is on record.
    pub fn tombstones_of(&self, entry: &str) -> BTreeSet<String> {
        let get = |map: &ConfigMap, key: &str| map.data.as_ref()?.get(key).cloned();
        let all = self.tombstones.all();
        let theirs = all.iter().filter(|map| get(map, "entry").as_deref() == Some(entry));
        theirs.filter_map(|map| get(map, "uid")).collect()
    }

    /// Of a bucket, or of an entry in it.
    pub fn credentials(&self, bucket: &BackupBucket, entry: Option<&BackupEntry>) -> HubCredentials {
        let fault = |text: String| HubCredentials::Missing(StatusProblem::of_configuration(text));
        let secret = self.secret_of(bucket, entry);
        let Some(SecretReference { name, namespace }) = &secret else {
            if !berth_garden_api::location::takes_credentials(&bucket.spec.provider) {
                return HubCredentials::Known(Arc::new(SecretData::new()));
            }
            let bucket = bucket.name_any();
            return fault(format!("BackupBucket {bucket} names no credentials: set spec.secretRef"));
        };
        let ours = &self.namespace;
        if namespace != ours {
            return fault(format!(
                "Secret {namespace}/{name} cannot be read: put credentials of buckets into namespace {ours}"
            ));
        }
        match self.secrets.get(name) {
            None => HubCredentials::Unanswered(name.clone()),
            Some(SecretAnswer::Found(credentials)) => HubCredentials::Known(credentials),
            Some(SecretAnswer::Missing) if entry.is_some() && is_scoped(bucket) => fault(format!(
                "the hub has not made the keys of this directory (Secret {namespace}/{name}): Events of the BackupEntry there say why"
            )),
            Some(SecretAnswer::Missing) => fault(format!(
                "there is no Secret {namespace}/{name} in the hub: create it again with the store's keys"
            )),
            Some(SecretAnswer::Forbidden) => fault(format!(
                "Secret {namespace}/{name} in the hub may not be read: ServiceAccount SEED of namespace {} and user {}SEED may, where \
                 SEED is this Seed's name: let the agent's kubeconfig be for one of them",
                keys::SEEDS_NAMESPACE,
                keys::SEED_USER
            )),
        }
    }
}

impl MemberCaches {
    pub fn new(namespace: &str, garden_namespace: &str, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            garden_namespace: garden_namespace.to_owned(),
            buckets: ObjectCache::new(changes),
            entries: ObjectCache::new(changes),
            secrets: ObjectCache::new(changes),
            locations: ObjectCache::new(changes),
            location_secrets: ObjectCache::new(changes),
        }
    }

    pub fn is_synced(&self) -> bool {
        self.buckets.is_synced()
            && self.entries.is_synced()
            && self.secrets.is_synced()
            && self.locations.is_synced()
            && self.location_secrets.is_synced()
    }

    /// Runs for ever.
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

/// Do locations in this bucket have keys of their own?
fn is_scoped(bucket: &BackupBucket) -> bool {
    let keys = bucket.spec.provider_config.as_ref().and_then(|config| config.location_keys);
    keys == Some(LocationKeys::Scoped)
}

fn of_cluster<K: Resource<DynamicType = ()>>(client: &Client) -> Api<Guarded<K>> {
    Api::all(client.clone())
}
