//! The watch caches of the hub's objects, frozen together.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::keys;
use berth_garden_api::hub::cluster;
use berth_garden_api::{BackupBucket, BackupEntry, CloudProfile, Seed};
use berth_garden_core::bucket::GardenBucket;
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::hub::{HubView, ProfileState, SecretState};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{access, tombstone};
use crate::cache::{Cache, SharedCache};
use crate::guarded::Guarded;
use crate::watch::{ObjectKey, of_namespace, reflect_everywhere};

/// Metadata of a Secret, because its data is not needed here.
pub type SecretMetadata = PartialObjectMeta<Secret>;

/// Objects of one kind.
pub type KindCache<K> = Cache<ObjectKey, Arc<K>>;

#[derive(Default)]
pub struct HubCacheState {
    pub profiles: KindCache<CloudProfile>,
    pub seeds: KindCache<Seed>,
    pub buckets: KindCache<BackupBucket>,
    pub entries: KindCache<BackupEntry>,
    pub secrets: KindCache<SecretMetadata>,
    pub roles: KindCache<Role>,
    pub bindings: KindCache<RoleBinding>,
    pub tombstones: KindCache<ConfigMap>,
}

/// Which cache a kind is in.
pub type CacheSelector<K> = fn(&mut HubCacheState) -> &mut KindCache<K>;

/// All objects at one moment, in the order of a view.
#[derive(Clone, Default)]
pub struct HubSnapshot {
    pub profiles: Vec<Arc<CloudProfile>>,
    pub seeds: Vec<Arc<Seed>>,
    pub buckets: Vec<Arc<BackupBucket>>,
    pub entries: Vec<Arc<BackupEntry>>,
    pub secrets: Vec<Arc<SecretMetadata>>,
    /// Roles of seeds.
    pub roles: Vec<Arc<Role>>,
    pub bindings: Vec<Arc<RoleBinding>>,
    /// Records of entries that have ended.
    pub tombstones: Vec<Arc<ConfigMap>>,
}

/// Filled by [`HubCache::follow`].
#[derive(Default)]
pub struct HubCache {
    state: SharedCache<HubCacheState>,
}

impl HubCache {
    pub fn is_synced(&self) -> bool {
        let HubCacheState { profiles, seeds, buckets, entries, secrets, roles, bindings, tombstones } =
            &*self.state.read();
        let hub = profiles.is_synced() && seeds.is_synced() && buckets.is_synced() && entries.is_synced();
        hub && secrets.is_synced() && roles.is_synced() && bindings.is_synced() && tombstones.is_synced()
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.state.changed()
    }

    pub fn frozen(&self) -> HubSnapshot {
        fn all<K>(kind: &KindCache<K>) -> Vec<Arc<K>> {
            kind.values().cloned().collect()
        }
        let HubCacheState { profiles, seeds, buckets, entries, secrets, roles, bindings, tombstones } =
            &*self.state.read();
        HubSnapshot {
            profiles: all(profiles),
            seeds: all(seeds),
            buckets: all(buckets),
            entries: all(entries),
            secrets: all(secrets),
            roles: all(roles),
            bindings: all(bindings),
            tombstones: all(tombstones),
        }
    }

    /// Runs for ever. `namespace`: that of the Secrets and of the records.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let metadata =
            |secret: Secret| PartialObjectMeta { metadata: secret.metadata, ..SecretMetadata::default() };
        let all = watcher::Config::default;
        let access = || all().labels(keys::SEED_ACCESS);
        let ended = all().labels(&format!("{}=true", keys::TOMBSTONE));
        tokio::join!(
            self.watch(Api::all(client.clone()), all(), |one| one, |state| &mut state.profiles),
            self.watch(Api::all(client.clone()), all(), |one| one, |state| &mut state.seeds),
            self.watch(Api::all(client.clone()), all(), |one| one, |state| &mut state.buckets),
            self.watch(Api::all(client.clone()), all(), |one| one, |state| &mut state.entries),
            self.watch(of_namespace(client, namespace), all(), metadata, |state| &mut state.secrets),
            self.watch(of_namespace(client, namespace), access(), |one| one, |state| &mut state.roles),
            self.watch(of_namespace(client, namespace), access(), |one| one, |state| &mut state.bindings),
            self.watch(of_namespace(client, namespace), ended, |one| one, |state| &mut state.tombstones),
        );
    }

    async fn watch<K, T>(
        &self,
        api: Api<Guarded<K>>,
        config: watcher::Config,
        keep: fn(K) -> T,
        part: CacheSelector<T>,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        T: ResourceExt,
    {
        reflect_everywhere(
            api,
            config,
            |object: K| keyed(keep(object)),
            |event| {
                self.state.write(|state| part(state).observe(event));
            },
        )
        .await;
    }

    /// Takes in the answer to a write of this process, which the watch will show only later.
    pub fn note<K: ResourceExt>(&self, part: CacheSelector<K>, object: K) {
        let (key, object) = keyed(object);
        self.state.write(|state| part(state).assume(key, object));
    }
}

/// What is kept of an object: all but its managedFields.
fn keyed<K: ResourceExt>(mut object: K) -> (ObjectKey, Arc<K>) {
    object.meta_mut().managed_fields = None;
    ((object.namespace().unwrap_or_default(), object.name_any()), Arc::new(object))
}

impl HubSnapshot {
    pub fn view(&self, gone: BTreeSet<String>) -> HubView {
        let profiles: Vec<ProfileState> = self.profiles.iter().map(|wire| (&**wire).into()).collect();
        let owner = |name: Option<&String>| profiles.iter().find(|one| Some(&one.profile.name) == name);
        let seeds = self.seeds.iter().map(|wire| {
            let owner = owner(Some(&wire.spec.cloud_profile_name));
            cluster(wire, owner.map(|owner| owner.profile.provider.as_str()))
        });
        let buckets = self.buckets.iter().map(|wire| {
            let mut bucket = GardenBucket::from(&**wire);
            // A hub that was restored has new UIDs.
            let owner = owner(bucket.profile.as_ref());
            bucket.is_claimed &= owner.is_none_or(|owner| is_owned_by(&**wire, &owner.uid));
            bucket
        });
        let secrets = self.secrets.iter().map(|secret| {
            let credentials = SecretState {
                is_guarded: secret.finalizers().iter().any(|one| one == keys::CREDENTIALS_FINALIZER),
                is_deleted: secret.metadata.deletion_timestamp.is_some(),
            };
            (secret.name_any(), credentials)
        });
        HubView {
            seeds: seeds.collect(),
            buckets: buckets.collect(),
            entries: self.entries.iter().map(|wire| GardenEntry::from(&**wire)).collect(),
            secrets: secrets.collect(),
            access: access::found(&self.roles, &self.bindings),
            gone,
            left: tombstone::left(self.tombstones.iter().map(|record| &**record)),
            unregistered: BTreeSet::new(),
            profiles,
        }
    }
}

fn is_owned_by(object: &impl ResourceExt, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == uid)
}
