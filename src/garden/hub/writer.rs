//! Writes what was decided. Each write carries the resourceVersion that was decided on; a write
//! that fails is left to the next plan.

mod patch;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_api::keys::{self, CREDENTIALS_FINALIZER, GARDEN_FINALIZER};
use berth_garden_api::hub::{bucket_change, entry_change, profile_change, seed_change};
use berth_garden_api::{BackupBucket, BackupBucketSpec, BackupEntry, CloudProfile, Seed};
use berth_garden_core::hub::{BucketEnd, BucketPlan, EntryHandover, EntryPlan, HubPlan, HubView, NewBucket};
use futures::StreamExt;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use patch::{adoption, owned_by, with, without};

use super::access;
use super::objects::{CacheSelector, HubCache, HubSnapshot};
use super::tombstone;
use crate::metrics::GardenMetrics;
use crate::text::chain;
use crate::write::{Write, WriteResult, create, delete, patch_metadata, patch_status};

const AT_ONCE: usize = 16;

/// What was written of a plan.
#[derive(Debug, Default)]
pub struct WrittenPlan {
    /// Everything was written.
    pub is_complete: bool,
    /// UIDs of entries that ended.
    pub gone: Vec<String>,
    /// The same entries, as indices into the view.
    pub ended: Vec<usize>,
    /// Names of buckets that were created, each with its profile.
    pub made: Vec<(String, usize)>,
    /// Buckets that were deleted, as indices into the view.
    pub retired: Vec<usize>,
    /// Entries that were given to another cluster, as indices into the view.
    pub handed: Vec<(usize, EntryHandover)>,
}

pub struct HubWriter<'o> {
    client: Client,
    namespace: String,
    objects: &'o HubCache,
    metrics: &'o GardenMetrics,
}

/// Objects of one kind, to write to, and their watch cache.
struct To<K> {
    api: Api<K>,
    part: CacheSelector<K>,
}

/// One round of writes.
struct Round<'r> {
    frozen: &'r HubSnapshot,
    view: &'r HubView,
    now: Timestamp,
    is_complete: AtomicBool,
    /// Buckets whose status could not be written as entries of this plan need it.
    unready: Mutex<BTreeSet<usize>>,
    acted: Mutex<WrittenPlan>,
}

impl Round<'_> {
    fn fail(&self) {
        self.is_complete.store(false, Ordering::Relaxed);
    }
}

impl<'o> HubWriter<'o> {
    pub fn new(client: Client, namespace: &str, objects: &'o HubCache, metrics: &'o GardenMetrics) -> Self {
        Self { client, namespace: namespace.to_owned(), objects, metrics }
    }

    /// Buckets first, because an entry gets its place once the bucket's status lists it.
    pub async fn act(
        &self,
        frozen: &HubSnapshot,
        view: &HubView,
        plan: &HubPlan,
        now: Timestamp,
    ) -> WrittenPlan {
        let round = Round {
            frozen,
            view,
            now,
            is_complete: AtomicBool::new(true),
            unready: Mutex::default(),
            acted: Mutex::default(),
        };
        let round = &round;
        let HubPlan { create, buckets, entries, profiles, seeds, secrets, access, .. } = plan;
        // Roles first, so that a seed that is assigned a bucket can already read its Secret.
        stream::iter(access).for_each_concurrent(AT_ONCE, |one| self.access(round, one)).await;
        stream::iter(create).for_each_concurrent(AT_ONCE, |new| self.make(round, new)).await;
        stream::iter(buckets).for_each_concurrent(AT_ONCE, |one| self.bucket(round, one)).await;
        stream::iter(entries).for_each_concurrent(AT_ONCE, |one| self.entry(round, one)).await;
        let to: To<CloudProfile> =
            To { api: Api::all(self.client.clone()), part: |state| &mut state.profiles };
        for (index, status) in profiles {
            let Some(found) = frozen.profiles.get(*index) else { continue };
            self.status(round, &to, &**found, profile_change(found, status, now)).await;
        }
        let to: To<Seed> = To { api: Api::all(self.client.clone()), part: |state| &mut state.seeds };
        for (index, conditions) in seeds {
            let Some(found) = frozen.seeds.get(*index) else { continue };
            self.status(round, &to, &**found, seed_change(found, conditions, now)).await;
        }
        for (name, is_needed) in secrets {
            self.guard(round, name, *is_needed).await;
        }
        let is_complete = round.is_complete.load(Ordering::Relaxed);
        WrittenPlan { is_complete, ..std::mem::take(&mut *round.acted.lock()) }
    }

    async fn access(&self, round: &Round<'_>, (seed, secrets): &(String, Option<BTreeSet<String>>)) {
        match access::write(&self.client, &self.namespace, seed, secrets.as_ref()).await {
            Ok(Some((role, binding))) => {
                self.objects.note(|state| &mut state.roles, role);
                self.objects.note(|state| &mut state.bindings, binding);
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%seed, error = format!("{error:#}"), "what a Seed may read could not be written");
                round.fail();
            }
        }
    }

    async fn make(&self, round: &Round<'_>, new: &NewBucket) {
        let Some(profile) = round.frozen.profiles.get(new.profile) else { return };
        let backup = profile.spec.backup.clone().unwrap_or_default();
        let spec = BackupBucketSpec {
            provider: new.store.place.provider.clone(),
            region: new.store.place.region.clone(),
            secret_ref: backup.secret_ref,
            provider_config: profile.spec.store_config(),
        };
        let mut bucket = BackupBucket::new(&new.name, spec);
        bucket.metadata.annotations = Some([(keys::CLOUD_PROFILE.to_owned(), profile.name_any())].into());
        bucket.metadata.finalizers = Some(vec![GARDEN_FINALIZER.to_owned()]);
        bucket.metadata.owner_references = Some(vec![owned_by(profile)]);
        let api: Api<BackupBucket> = Api::all(self.client.clone());
        match create(&api, &bucket).await {
            WriteResult::Written(made) => {
                info!(name = %new.name, profile = %profile.name_any(), "made a BackupBucket");
                self.objects.note(|state| &mut state.buckets, made);
                round.acted.lock().made.push((new.name.clone(), new.profile));
            }
            // Another writer was faster: the watch will show it.
            WriteResult::Conflict(_) => round.fail(),
            WriteResult::Gone(error) | WriteResult::Refused(error) => {
                warn!(name = %new.name, error = chain(&error), "a BackupBucket could not be made");
                round.fail();
            }
            WriteResult::TimedOut => {
                warn!(name = %new.name, "timed out creating a BackupBucket");
                round.fail();
            }
        }
    }

    async fn bucket(&self, round: &Round<'_>, one: &BucketPlan) {
        let Some(mut found) = round.frozen.buckets.get(one.bucket).map(|bucket| (**bucket).clone()) else {
            return;
        };
        let to = To { api: Api::all(self.client.clone()), part: |state| &mut state.buckets };
        if let Some(wanted) = &one.status {
            let change = bucket_change(&found, wanted, round.now);
            match self.status(round, &to, &found, change).await {
                Some(written) => found = written,
                None => {
                    round.unready.lock().insert(one.bucket);
                    return;
                }
            }
        }
        if one.claim || one.store.is_some() {
            let Some(patch) = adoption(round, &found, one) else { return };
            match self.patch(round, &to, &found, patch).await {
                Some(written) => found = written,
                None => return,
            }
        }
        match one.end {
            Some(BucketEnd::LetGo) => {
                let patch = json!({"finalizers": without(&found, GARDEN_FINALIZER)});
                if self.patch(round, &to, &found, json!({"metadata": patch})).await.is_some() {
                    info!(name = %found.name_any(), "a BackupBucket is gone from its store");
                }
            }
            Some(BucketEnd::Retire) => match delete(&to.api, Write::on(&found)).await.written() {
                Ok(()) => round.acted.lock().retired.push(one.bucket),
                Err(error) => {
                    warn!(name = %found.name_any(), error = chain(&error), "an idle BackupBucket could not be deleted");
                    round.fail();
                }
            },
            None => {}
        }
    }

    async fn entry(&self, round: &Round<'_>, one: &EntryPlan) {
        let Some(mut found) = round.frozen.entries.get(one.entry).map(|entry| (**entry).clone()) else {
            return;
        };
        let namespace = found.namespace().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), &namespace);
        let to: To<BackupEntry> = To { api, part: |state| &mut state.entries };
        if let Some(bucket) = one.claim {
            let Some(name) = round.view.buckets.get(bucket).map(|bucket| &bucket.name) else { return };
            if round.unready.lock().contains(&bucket) {
                return;
            }
            let patch = json!({
                "metadata": {
                    "finalizers": with(&found, GARDEN_FINALIZER),
                    "annotations": {keys::PLACED_IN: name},
                },
                "spec": {"bucketName": name},
            });
            match self.patch(round, &to, &found, patch).await {
                Some(written) => found = written,
                None => return,
            }
        }
        if let Some(wanted) = &one.status {
            let change = entry_change(&found, wanted, round.now);
            match self.status(round, &to, &found, change).await {
                Some(written) => found = written,
                None => return,
            }
        }
        if let Some(handed) = &one.handed {
            round.acted.lock().handed.push((one.entry, handed.clone()));
        }
        if let Some(writer) = &one.writer {
            let is_there = found.spec.seed_name == *writer;
            let mut annotations = json!({keys::WRITER: writer});
            if is_there {
                // The permission to take it over was for this move.
                annotations[keys::TAKE_OVER] = Value::Null;
            }
            let patch = json!({"metadata": {"annotations": annotations}});
            match self.patch(round, &to, &found, patch).await {
                Some(written) => found = written,
                None => return,
            }
        }
        let Some(end) = one.end else { return };
        let name = found.name_any();
        let bucket =
            round.frozen.buckets.iter().find(|bucket| bucket.metadata.name == found.spec.bucket_name);
        let bucket = bucket.map(|bucket| &**bucket);
        match tombstone::write(&self.client, &self.namespace, &found, bucket, end, round.now).await {
            // Entries that wait for the name are judged by the record at once.
            Ok(record) => self.objects.note(|state| &mut state.tombstones, record),
            Err(error) => {
                warn!(%namespace, %name, error = format!("{error:#}"), "the end of a BackupEntry cannot be recorded: it stays");
                round.fail();
                return;
            }
        }
        let uid = found.uid().unwrap_or_default();
        let patch = json!({"metadata": {"finalizers": without(&found, GARDEN_FINALIZER)}});
        if self.patch(round, &to, &found, patch).await.is_some() {
            info!(%namespace, %name, ?end, "the end of a BackupEntry is on record");
            self.metrics.removed.inc();
            let mut acted = round.acted.lock();
            acted.gone.push(uid);
            acted.ended.push(one.entry);
        }
    }

    async fn guard(&self, round: &Round<'_>, name: &str, is_needed: bool) {
        let Some(found) = round.frozen.secrets.iter().find(|secret| secret.name_any() == name) else {
            return;
        };
        let finalizers = match is_needed {
            true => with(&**found, CREDENTIALS_FINALIZER),
            false => without(&**found, CREDENTIALS_FINALIZER),
        };
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = json!({"metadata": {"finalizers": finalizers}});
        let written = patch_metadata(&api, Write::on(&**found), patch).await;
        if let Some(written) = self.judge::<Secret, _>(round, name, written) {
            self.objects.note(|state| &mut state.secrets, written);
        }
    }

    /// Writes metadata and spec. `None`: not written.
    async fn patch<K>(&self, round: &Round<'_>, to: &To<K>, found: &K, patch: Value) -> Option<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let written = crate::write::patch(&to.api, Write::on(found), patch).await;
        let written = self.judge::<K, _>(round, &found.name_any(), written)?;
        self.objects.note(to.part, written.clone());
        Some(written)
    }

    /// As [`HubWriter::patch`].
    async fn status<K>(&self, round: &Round<'_>, to: &To<K>, found: &K, change: Value) -> Option<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let written = patch_status(&to.api, Write::on(found), json!({"status": change})).await;
        let written = self.judge::<K, _>(round, &found.name_any(), written)?;
        self.objects.note(to.part, written.clone());
        Some(written)
    }

    fn judge<K: Resource<DynamicType = ()>, T>(
        &self,
        round: &Round<'_>,
        name: &str,
        answer: WriteResult<T>,
    ) -> Option<T> {
        let kind = K::kind(&());
        match answer {
            WriteResult::Written(written) => return Some(written),
            WriteResult::Conflict(_) => {
                self.metrics.conflicts.inc();
            }
            WriteResult::Gone(_) => {}
            WriteResult::Refused(error) => {
                warn!(%kind, %name, error = chain(&error), "a decision could not be written");
            }
            WriteResult::TimedOut => warn!(%kind, %name, "timed out writing a decision"),
        }
        round.fail();
        None
    }
}
