//! The hub's objects, as watches and our own writes show them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::garden::hub::cluster;
use berth_api::garden::{BackupBucket, BackupEntry, CloudProfile, Seed};
use berth_api::keys;
use berth_core::garden::hub::{Bucket, Credentials, Entry, Infrastructure, View};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{access, tombstone};
use crate::mirror::{Change, Key, is_older, mirror_everywhere, of_namespace};

/// Of a Secret: its data is read by nobody here.
pub type Metadata = PartialObjectMeta<Secret>;

/// Objects of one kind.
pub struct Kind<K> {
    objects: BTreeMap<Key, Arc<K>>,
    is_listed: bool,
}

impl<K> Default for Kind<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), is_listed: false }
    }
}

impl<K: ResourceExt> Kind<K> {
    /// An answer to a write of our own may be newer than what the watch shows.
    fn newer(&self, object: Arc<K>) -> Arc<K> {
        let version = |object: &K| object.resource_version().unwrap_or_default();
        match self.objects.get(&key(&*object)).filter(|known| known.uid() == object.uid()) {
            Some(known) if is_older(&version(&object), &version(known)) => Arc::clone(known),
            _ => object,
        }
    }

    fn put(&mut self, object: Arc<K>) {
        let object = self.newer(object);
        self.objects.insert(key(&*object), object);
    }

    fn observe(&mut self, change: Change<Arc<K>, Key>) {
        match change {
            Change::All(all) => {
                self.objects = all.into_iter().map(|object| (key(&*object), self.newer(object))).collect();
                self.is_listed = true;
            }
            Change::Applied(object) => self.put(object),
            Change::Deleted(key) => drop(self.objects.remove(&key)),
        }
    }

    /// The answer to a write of our own. Of one that was its last, nothing is left.
    fn note(&mut self, object: K) {
        if object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty() {
            self.objects.remove(&key(&object));
        } else {
            self.put(Arc::new(object));
        }
    }
}

#[derive(Default)]
pub struct State {
    pub profiles: Kind<CloudProfile>,
    pub seeds: Kind<Seed>,
    pub buckets: Kind<BackupBucket>,
    pub entries: Kind<BackupEntry>,
    pub secrets: Kind<Metadata>,
    pub roles: Kind<Role>,
    pub bindings: Kind<RoleBinding>,
    pub tombstones: Kind<ConfigMap>,
}

/// Where a kind is kept.
pub type Part<K> = fn(&mut State) -> &mut Kind<K>;

/// Everything at one moment, in the order of a view.
#[derive(Clone, Default)]
pub struct Frozen {
    pub profiles: Vec<Arc<CloudProfile>>,
    pub seeds: Vec<Arc<Seed>>,
    pub buckets: Vec<Arc<BackupBucket>>,
    pub entries: Vec<Arc<BackupEntry>>,
    pub secrets: Vec<Arc<Metadata>>,
    /// What seeds may read.
    pub roles: Vec<Arc<Role>>,
    pub bindings: Vec<Arc<RoleBinding>>,
    /// Records of entries that are no more.
    pub tombstones: Vec<Arc<ConfigMap>>,
}

/// Filled by [`Objects::follow`].
#[derive(Default)]
pub struct Objects {
    state: RwLock<State>,
    changes: watch::Sender<u64>,
}

impl Objects {
    pub fn is_synced(&self) -> bool {
        let State { profiles, seeds, buckets, entries, secrets, roles, bindings, tombstones } =
            &*self.state.read();
        let hub = profiles.is_listed && seeds.is_listed && buckets.is_listed && entries.is_listed;
        hub && secrets.is_listed && roles.is_listed && bindings.is_listed && tombstones.is_listed
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    pub fn frozen(&self) -> Frozen {
        fn all<K>(kind: &Kind<K>) -> Vec<Arc<K>> {
            kind.objects.values().cloned().collect()
        }
        let State { profiles, seeds, buckets, entries, secrets, roles, bindings, tombstones } =
            &*self.state.read();
        Frozen {
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

    /// For ever. `namespace`: that of the Secrets, and of the records.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let metadata =
            |secret: Secret| PartialObjectMeta { metadata: secret.metadata, ..Metadata::default() };
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
        api: Api<DeserializeGuard<K>>,
        config: watcher::Config,
        keep: fn(K) -> T,
        part: Part<T>,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        T: ResourceExt,
    {
        let keep = |object: K| Arc::new(slim(keep(object)));
        mirror_everywhere(api, config, keep, |change| {
            self.write(|state| part(state).observe(change));
        })
        .await;
    }

    /// Takes in the answer to a write of our own, which the watch will show only later.
    pub fn note<K: ResourceExt>(&self, part: Part<K>, object: K) {
        self.write(|state| part(state).note(slim(object)));
    }

    fn write(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write());
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Nobody needs to know who wrote which field.
fn slim<K: ResourceExt>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

impl Frozen {
    pub fn view(&self, gone: BTreeSet<String>) -> View {
        let profiles: Vec<Infrastructure> = self.profiles.iter().map(|wire| (&**wire).into()).collect();
        let owner = |name: Option<&String>| profiles.iter().find(|one| Some(&one.profile.name) == name);
        let seeds = self.seeds.iter().map(|wire| {
            let owner = owner(Some(&wire.spec.cloud_profile_name));
            cluster(wire, owner.map(|owner| owner.profile.provider.as_str()))
        });
        let buckets = self.buckets.iter().map(|wire| {
            let mut bucket = Bucket::from(&**wire);
            // A hub that was restored has new UIDs.
            let owner = owner(bucket.profile.as_ref());
            bucket.is_claimed &= owner.is_none_or(|owner| is_owned_by(&**wire, &owner.uid));
            bucket
        });
        let secrets = self.secrets.iter().map(|secret| {
            let credentials = Credentials {
                is_guarded: secret.finalizers().iter().any(|one| one == keys::CREDENTIALS_FINALIZER),
                is_deleted: secret.metadata.deletion_timestamp.is_some(),
            };
            (secret.name_any(), credentials)
        });
        View {
            seeds: seeds.collect(),
            buckets: buckets.collect(),
            entries: self.entries.iter().map(|wire| Entry::from(&**wire)).collect(),
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

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
