//! Keys that are limited to one directory, for buckets whose locations should have such keys. They
//! are created with the store's own keys, which only the Seed that acts on the bucket gets.
//!
//! The hub creates them, because it has the store's keys anyway and every Seed reads its Secrets
//! there. A Seed that created keys for others would have to write their Secrets, and would let the
//! keys expire while it is away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use berth_api::keys::{self, EXCLUDE_FROM_BACKUP, GARDEN_FINALIZER};
use berth_garden_api::{BackupBucket, BackupEntry, LocationKeys, StoreConfig};
use berth_garden_core::location_keys::{IssuedKeys, is_due, secret_name};
use berth_garden_core::scope::RemovalScope;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::objects::{HubCache, HubSnapshot, SecretMetadata};
use crate::events::{EventReason, Events};
use crate::storage::bucket::sts::{self, Sts};
use crate::text::chain;
use crate::write::{Write, apply, delete};

/// A pass begins at least this often.
const PERIOD: Duration = Duration::from_secs(10);
/// Changes that come within this time are handled in one pass.
const GATHER: Duration = Duration::from_millis(200);
/// The same keys are not asked for twice within this time, whatever the result was.
const PACE: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(20);
const AT_ONCE: usize = 8;

pub struct LocationKeyKeeper<'h> {
    pub client: &'h Client,
    /// Namespace of the Secrets.
    pub namespace: &'h str,
    pub events: &'h Events,
}

/// Keys that an entry should have.
struct LocationKeyRequest {
    /// Name of the Secret with these keys.
    secret: String,
    entry: Arc<BackupEntry>,
    bucket: Arc<BackupBucket>,
    /// Name of the Secret with the keys that create them.
    source: String,
    /// See [`IssuedKeys::from`].
    from: String,
}

/// By name of the Secret.
type Attempts = Mutex<BTreeMap<String, LocationKeyAttempt>>;

/// Result of the last request for these keys.
struct LocationKeyAttempt {
    at: Instant,
    failure: Option<String>,
}

impl LocationKeyKeeper<'_> {
    /// Runs while this process leads.
    pub async fn run(&self, objects: &HubCache) {
        let mut changed = objects.changed();
        while !objects.is_synced() {
            let _ = changed.changed().await;
        }
        let attempts = Mutex::default();
        loop {
            changed.mark_unchanged();
            self.look(objects, &attempts).await;
            let _ = timeout(PERIOD, changed.changed()).await;
            sleep(GATHER).await;
        }
    }

    async fn look(&self, objects: &HubCache, attempts: &Attempts) {
        let frozen = objects.frozen();
        let orders = orders(&frozen, self.namespace);
        let wanted: BTreeSet<&str> = orders.iter().map(|order| order.secret.as_str()).collect();
        attempts.lock().retain(|name, _| wanted.contains(name.as_str()));
        let now = Timestamp::now();
        let over: Vec<_> = frozen.secrets.iter().filter(|secret| is_over(secret, &wanted, now)).collect();
        stream::iter(over).for_each_concurrent(AT_ONCE, |secret| self.remove(secret)).await;
        let found: BTreeMap<String, &SecretMetadata> =
            frozen.secrets.iter().map(|secret| (secret.name_any(), &**secret)).collect();
        let needs_some = |order: &&LocationKeyRequest| {
            let made = found.get(&order.secret).and_then(|secret| made(secret));
            let is_early = attempts.lock().get(&order.secret).is_some_and(|last| last.at.elapsed() < PACE);
            !is_early && is_due(made.as_ref(), &order.from, now)
        };
        let due: Vec<_> = orders
            .iter()
            .filter(needs_some)
            .map(|order| (order, found.get(&order.secret).copied()))
            .collect();
        stream::iter(due)
            .for_each_concurrent(AT_ONCE, |(order, found)| self.attempt(order, found, objects, attempts))
            .await;
    }

    async fn attempt(
        &self,
        order: &LocationKeyRequest,
        found: Option<&SecretMetadata>,
        objects: &HubCache,
        attempts: &Attempts,
    ) {
        let failure = match self.make(order, found).await {
            Ok(secret) => {
                let metadata = SecretMetadata { metadata: secret.metadata, ..SecretMetadata::default() };
                objects.note(|state| &mut state.secrets, metadata);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        let last = LocationKeyAttempt { at: Instant::now(), failure: failure.clone() };
        let before = attempts.lock().insert(order.secret.clone(), last).and_then(|last| last.failure);
        if let Some(why) = failure.filter(|why| before.as_ref() != Some(why)) {
            let name = order.entry.name_any();
            warn!(name, error = why, "could not create the keys of a directory");
            let note = format!("the keys of its directory could not be made: {why}");
            self.events.tell_about(EventReason::Failed, order.entry.object_ref(&()), note);
        }
    }

    async fn make(
        &self,
        order: &LocationKeyRequest,
        found: Option<&SecretMetadata>,
    ) -> anyhow::Result<Secret> {
        let LocationKeyRequest { secret: name, entry, bucket, .. } = order;
        if found.is_some_and(|found| !is_ours(found)) {
            bail!("Secret {}/{name} is somebody else's: rename or delete it", self.namespace);
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace);
        let source = timeout(CALL, api.get(&order.source)).await??;
        let directory = RemovalScope::of_entry(&entry.name_any(), None)?;
        let policy = sts::policy(&bucket.name_any(), &bucket.spec.region, &directory);
        let none = StoreConfig::default();
        let config = bucket.spec.provider_config.as_ref().unwrap_or(&none);
        let sts = Sts::open(&bucket.spec.region, config, &source)?;
        let now = Timestamp::now();
        let keys =
            timeout(CALL, sts.make(&entry.name_any(), &policy)).await.context("no answer in time")??;
        let (at, expire_at) = (now.to_string(), keys.expire_at.to_string());
        let labels = [(keys::LOCATION_KEYS, "true"), (EXCLUDE_FROM_BACKUP, "true")];
        let annotations = [
            (keys::MADE_FROM, order.from.as_str()),
            (keys::MADE_AT, at.as_str()),
            (keys::EXPIRE_AT, expire_at.as_str()),
        ];
        let data = [
            ("accessKeyID", keys.access_key_id),
            ("secretAccessKey", keys.secret_access_key),
            ("sessionToken", keys.session_token),
        ];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(self.namespace.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            data: Some(data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).into()),
            ..Secret::default()
        };
        let written = apply(&api, Write::to(name).within(CALL), &secret).await.written()?;
        info!(name = entry.name_any(), until = %keys.expire_at, "created the keys of a directory");
        Ok(written)
    }

    async fn remove(&self, over: &SecretMetadata) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace);
        let name = over.name_any();
        let that_one = Write::to(&name).uid(over.metadata.uid.as_deref()).within(CALL);
        // A Secret that stays is handled in the next pass.
        if let Err(error) = delete(&api, that_one).await.written() {
            debug!(name, error = chain(&error), "could not remove expired keys");
        }
    }
}

/// One for each entry that has a place in a bucket whose locations have their own keys.
fn orders(frozen: &HubSnapshot, namespace: &str) -> Vec<LocationKeyRequest> {
    let mut orders = Vec::new();
    let scoped: Vec<_> = frozen.buckets.iter().filter(|bucket| is_scoped(bucket)).collect();
    if scoped.is_empty() {
        return orders;
    }
    let entries: BTreeMap<String, &Arc<BackupEntry>> =
        frozen.entries.iter().filter_map(|entry| Some((entry.uid()?, entry))).collect();
    for bucket in scoped {
        let reference = bucket.spec.secret_ref.as_ref().filter(|secret| secret.namespace == namespace);
        let source = reference
            .and_then(|reference| frozen.secrets.iter().find(|secret| secret.name_any() == reference.name));
        // The bucket's condition says that they are missing.
        let Some(source) = source else { continue };
        let role = bucket.spec.provider_config.as_ref().and_then(|config| config.role_arn.as_deref());
        let version = source.resource_version().unwrap_or_default();
        let from = format!("{}@{version} {}", source.name_any(), role.unwrap_or_default());
        for uid in bucket.status.iter().flat_map(|status| &status.allocated) {
            let Some(entry) = entries.get(uid).copied().filter(|entry| is_in(entry, bucket)) else {
                continue;
            };
            orders.push(LocationKeyRequest {
                secret: secret_name(&entry.name_any(), uid),
                entry: Arc::clone(entry),
                bucket: Arc::clone(bucket),
                source: source.name_any(),
                from: from.clone(),
            });
        }
    }
    orders
}

fn is_scoped(bucket: &BackupBucket) -> bool {
    let keys = bucket.spec.provider_config.as_ref().and_then(|config| config.location_keys);
    keys == Some(LocationKeys::Scoped)
}

fn is_in(entry: &BackupEntry, bucket: &BackupBucket) -> bool {
    entry.finalizers().iter().any(|one| one == GARDEN_FINALIZER)
        && entry.spec.bucket_name == bucket.metadata.name
}

fn is_ours(secret: &SecretMetadata) -> bool {
    secret.labels().contains_key(keys::LOCATION_KEYS)
}

/// Are these keys neither wanted nor usable any more? A hub that was restored does not know for a
/// moment which entries want keys.
fn is_over(secret: &SecretMetadata, wanted: &BTreeSet<&str>, now: Timestamp) -> bool {
    is_ours(secret)
        && !wanted.contains(secret.name_any().as_str())
        && made(secret).is_none_or(|made| made.expire_at <= now)
}

fn made(secret: &SecretMetadata) -> Option<IssuedKeys> {
    let said = |key: &str| secret.annotations().get(key).filter(|_| is_ours(secret));
    let time = |key: &str| said(key)?.parse::<Timestamp>().ok();
    Some(IssuedKeys {
        from: said(keys::MADE_FROM)?.clone(),
        at: time(keys::MADE_AT)?,
        expire_at: time(keys::EXPIRE_AT)?,
    })
}

#[cfg(test)]
mod tests;
