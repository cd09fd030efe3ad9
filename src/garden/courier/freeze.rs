//! What the courier sees of a bucket or an entry at one moment: the view that core plans on, and
//! beside it the objects that its steps write.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_garden_api::extensions::{self, Extension};
use berth_garden_api::location::{self as wire, secret_name, takes_credentials};
use berth_garden_api::member_objects::{self, MemberContext, hub_uid, is_ours, lacks, member_state};
use berth_garden_api::{BackupBucket, BackupEntry, hub_state};
use berth_garden_core::entry_life::{EntryPhase, MemberState};
use berth_garden_core::member::{
    self, BucketView, CopyState, EntryView, Facts, HubKind, LocationCredentials, MemberLocation, ObjectDrift,
    ObjectView, OwnLocation,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Courier;
use super::cache::ObjectCache;
use super::secrets::{HubCredentials, SecretData};
use super::write::{is_kept, secret};

/// The member's object of a bucket or an entry.
pub struct FrozenObject<E> {
    pub name: String,
    pub found: Option<Arc<E>>,
    pub wanted: Option<E>,
    /// The copy of the hub's credentials as it should be, where those are known.
    pub copy: Option<Secret>,
    /// Name of that copy.
    pub copy_name: String,
    /// The Secret of the hub that has not been heard of.
    pub unanswered: Option<String>,
    view: ObjectView,
}

pub struct FrozenBucket {
    pub hub: Option<Arc<BackupBucket>>,
    pub object: FrozenObject<extensions::BackupBucket>,
}

pub struct FrozenEntry {
    pub hub: Option<Arc<BackupEntry>>,
    pub object: FrozenObject<extensions::BackupEntry>,
    /// All of the member cluster.
    pub locations: Vec<Arc<BackupStorageLocation>>,
    pub wanted: Option<WantedLocation>,
    bucket: Option<Arc<BackupBucket>>,
    ended: BTreeSet<String>,
    views: Vec<MemberLocation>,
    location_secret_of: Option<Option<String>>,
    quiet: Option<member::Quiesced>,
    namespace: String,
    seed: String,
}

/// The entry's own location and its Secret, as they should be.
pub struct WantedLocation {
    pub location: BackupStorageLocation,
    /// Where the store takes credentials, and they are known.
    pub secret: Option<Secret>,
    credentials: LocationCredentials,
    /// The location that is there is another one.
    differs: bool,
}

impl FrozenBucket {
    pub fn view<'a>(&self, seed: &str, facts: &'a Facts) -> BucketView<'a> {
        let hub = self.hub.as_ref().map(|hub| hub_state::bucket(hub, seed));
        BucketView { hub, object: self.object.view.clone(), facts }
    }
}

impl FrozenEntry {
    pub fn view<'a>(&'a self, facts: &'a Facts) -> EntryView<'a> {
        let wanted = self.wanted.as_ref();
        EntryView {
            name: &self.object.name,
            namespace: &self.namespace,
            hub: self.hub.as_ref().map(|hub| hub_state::entry(hub, &self.seed)),
            bucket: self.bucket.as_ref().map(|bucket| hub_state::bucket_of_entry(bucket)),
            ended: self.ended.clone(),
            object: self.object.view.clone(),
            locations: &self.views,
            own: OwnLocation { differs: wanted.is_some_and(|wanted| wanted.differs) },
            location_credentials: wanted.map(|wanted| wanted.credentials.clone()).unwrap_or_default(),
            location_secret: self.location_secret_of.clone(),
            quiet: self.quiet.clone(),
            facts,
        }
    }

    /// UID of the hub's object.
    pub fn uid(&self) -> String {
        self.hub.as_ref().and_then(|hub| hub.uid()).unwrap_or_default()
    }

    pub fn location(&self, name: &str) -> Option<&Arc<BackupStorageLocation>> {
        self.locations.iter().find(|one| one.name_any() == name)
    }
}

/// What is common to buckets and entries.
struct SyncedObject<'a, E> {
    kind: HubKind,
    name: &'a str,
    cache: &'a ObjectCache<E>,
    copy_name: String,
    credentials: Option<HubCredentials>,
    /// UID of the hub's object.
    uid: Option<String>,
}

impl Courier {
    pub(super) fn freeze_bucket(&self, name: &str) -> FrozenBucket {
        let hub = self.hub.buckets.get(name);
        let object = SyncedObject {
            kind: HubKind::BackupBucket,
            name,
            cache: &self.member.buckets,
            copy_name: member_objects::bucket_secret(name),
            credentials: hub.as_ref().map(|bucket| self.hub.credentials(bucket, None)),
            uid: hub.as_ref().and_then(|hub| hub.uid()),
        };
        let wanted = |_: Option<&_>, context: MemberContext<'_>| {
            hub.as_ref().map(|hub| member_objects::bucket(hub, context))
        };
        FrozenBucket { object: self.freeze_object(object, wanted), hub }
    }

    pub(super) fn freeze_entry(&self, name: &str, facts: &Facts) -> FrozenEntry {
        let hub = self.hub.entry(name);
        let bucket = hub.as_ref().and_then(|hub| hub.spec.bucket_name.as_ref());
        let bucket = bucket.and_then(|bucket| self.hub.buckets.get(bucket));
        let object = SyncedObject {
            kind: HubKind::BackupEntry,
            name,
            cache: &self.member.entries,
            copy_name: member_objects::entry_secret(name),
            credentials: bucket.as_ref().map(|bucket| self.hub.credentials(bucket, hub.as_deref())),
            uid: hub.as_ref().and_then(|hub| hub.uid()),
        };
        let credentials = object.credentials.clone();
        let wanted = |found: Option<&extensions::BackupEntry>, context: MemberContext<'_>| {
            let (hub, bucket) = (hub.as_ref()?, bucket.as_ref()?);
            let is_vouched = member_objects::was_made(hub) && member_objects::needs_word(found);
            Some(member_objects::entry(hub, bucket, context, is_vouched))
        };
        let mut object = self.freeze_object(object, wanted);
        object.view.bucket = object.found.as_ref().map(|found| found.spec.bucket_name.clone());
        let locations = self.member.locations.all();
        let secret = self.member.location_secrets.get(&secret_name(name));
        let mut frozen = FrozenEntry {
            ended: self.hub.tombstones_of(name),
            views: locations.iter().map(|one| hub_state::member_location(one)).collect(),
            location_secret_of: secret.as_ref().map(|secret| hub_uid(secret.meta()).map(str::to_owned)),
            quiet: self.quiet.get(name),
            namespace: self.settings.namespace.clone(),
            seed: self.settings.seed.clone(),
            hub,
            object,
            locations,
            wanted: None,
            bucket,
        };
        frozen.wanted = self.wanted_location(&frozen, credentials, secret.as_deref(), facts);
        frozen
    }

    /// `None`: there should be none, or it stays as it is.
    fn wanted_location(
        &self,
        frozen: &FrozenEntry,
        credentials: Option<HubCredentials>,
        found_secret: Option<&Secret>,
        facts: &Facts,
    ) -> Option<WantedLocation> {
        let view = frozen.view(facts);
        let access = view.access()?;
        let (hub, bucket) = (frozen.hub.as_ref()?, frozen.bucket.as_ref()?);
        let (name, provider) = (&frozen.object.name, &bucket.spec.provider);
        let own = frozen.location(name).filter(|own| is_ours(own.meta()));
        // A seed that gave the entry away may no longer read its keys.
        let known = match credentials {
            Some(HubCredentials::Known(known)) if view.phase() != Some(EntryPhase::Elsewhere) => Some(known),
            _ => None,
        };
        let (digest, account) = match &known {
            Some(known) => (digest_of(known), wire::account(provider, known)),
            None => {
                let digest = own.and_then(|own| own.annotations().get(keys::CREDENTIALS_DIGEST)).cloned();
                (digest.unwrap_or_default(), own.and_then(|own| wire::account_of(own)))
            }
        };
        let file =
            known.filter(|_| takes_credentials(provider)).map(|known| wire::cloud_file(provider, &known));
        let (secret, credentials) = match file {
            None => (None, LocationCredentials::NotNeeded),
            Some(Ok(file)) => {
                let uid = frozen.uid();
                let labels = [
                    (keys::CARRIED_FOR, self.settings.seed.as_str()),
                    (keys::BACKUP_ENTRY, name),
                    (keys::HUB_UID, uid.as_str()),
                ];
                let data = [(wire::CLOUD.to_owned(), file.into_bytes())].into();
                let wanted = secret(&secret_name(name), &labels, &data);
                let state = copy(found_secret, &wanted);
                (Some(wanted), LocationCredentials::Copy(state))
            }
            Some(Err(faults)) => {
                let of = bucket.spec.secret_ref.clone().unwrap_or_default();
                let message = format!("Secret {}/{} in the hub: {faults}", of.namespace, of.name);
                (None, LocationCredentials::Faulty(message))
            }
        };
        let context = MemberContext {
            seed: &self.settings.seed,
            namespace: &self.settings.garden_namespace,
            digest: &digest,
        };
        let location = wire::location(hub, bucket, access, view.is_default(), account.as_ref(), context);
        let differs = own
            .is_some_and(|own| !wire::is_as(&own.spec, &location.spec) || lacks(own.meta(), location.meta()));
        Some(WantedLocation { location, secret, credentials, differs })
    }

    fn freeze_object<E>(
        &self,
        object: SyncedObject<'_, E>,
        wanted: impl FnOnce(Option<&E>, MemberContext<'_>) -> Option<E>,
    ) -> FrozenObject<E>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let SyncedObject { kind, name, cache, copy_name, credentials, uid } = object;
        let found = cache.get(name);
        let annotation = found.as_ref().and_then(|found| found.annotations().get(keys::CREDENTIALS_DIGEST));
        let mut digest = annotation.cloned().unwrap_or_default();
        let found_copy = self.member.secrets.get(&copy_name);
        let (mut copied, mut unanswered) = (None, None);
        let credentials = match credentials {
            None => member::CredentialsState::NoBucket,
            Some(HubCredentials::Unanswered(secret)) => {
                unanswered = Some(secret);
                member::CredentialsState::Unanswered
            }
            Some(HubCredentials::Missing(problem)) => member::CredentialsState::Missing(problem),
            Some(HubCredentials::Known(known)) => {
                digest = digest_of(&known);
                copied =
                    Some(secret(&copy_name, &[(keys::CARRIED_FOR, self.settings.seed.as_str())], &known));
                member::CredentialsState::Known
            }
        };
        let context = MemberContext {
            seed: &self.settings.seed,
            namespace: &self.settings.garden_namespace,
            digest: &digest,
        };
        let wanted = wanted(found.as_deref(), context);
        let uid_here = found.as_ref().and_then(|found| hub_uid(found.meta()));
        let view = ObjectView {
            kind,
            name: name.to_owned(),
            state: found.as_ref().map_or(MemberState::Absent, |found| {
                member_state(found.meta(), found.common(), E::FINALIZER)
            }),
            is_ours: found.as_ref().is_some_and(|found| is_ours(found.meta())),
            hub_uid: uid_here.map(str::to_owned),
            bucket: None,
            wanted: match &wanted {
                Some(wanted) => compare(found.as_deref(), wanted),
                None => ObjectDrift::Unknown,
            },
            credentials,
            copy: match (&found_copy, &copied) {
                (None, _) => CopyState::Absent,
                (Some(_), None) => CopyState::Stale,
                (Some(found), Some(wanted)) => copy(Some(found), wanted),
            },
            is_permitted: uid_here.is_some_and(|uid| self.permits.is_granted(uid)),
            is_permit_fresh: uid.is_some_and(|uid| self.permits.is_fresh(&uid)),
        };
        FrozenObject { name: name.to_owned(), found, wanted, copy: copied, copy_name, unanswered, view }
    }
}

fn compare<E: Extension + Resource>(found: Option<&E>, wanted: &E) -> ObjectDrift {
    let Some(found) = found else { return ObjectDrift::Different { in_marks: true } };
    // Nothing can be put on an object that is being deleted, but marks.
    let mut marks = wanted.meta().clone();
    marks.finalizers = None;
    let in_marks = lacks(found.meta(), &marks);
    if in_marks || found.wants_else(wanted) || lacks(found.meta(), wanted.meta()) {
        ObjectDrift::Different { in_marks }
    } else {
        ObjectDrift::Same
    }
}

fn copy(found: Option<&Secret>, wanted: &Secret) -> CopyState {
    match found {
        None => CopyState::Absent,
        Some(found) if is_kept(found, wanted) => CopyState::Current,
        Some(_) => CopyState::Stale,
    }
}

/// Ten hexadecimal digits: enough to notice other keys, too few to be worth anything.
fn digest_of(credentials: &SecretData) -> String {
    let mut all = Vec::new();
    for (key, value) in credentials {
        for part in [key.as_bytes(), value.as_slice()] {
            all.extend(part.len().to_be_bytes());
            all.extend(part);
        }
    }
    digest(&SHA256, &all).as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}
