//! The storage location of an entry: made, kept, and taken away in the right order.

use std::sync::Arc;

use berth_api::garden::carried::{Freight, hub_uid, is_ours, lacks};
use berth_api::garden::location::{self as wire, reason, secret_name, takes_credentials};
use berth_api::garden::operation::{OperationState, OperationType};
use berth_api::garden::{BackupBucket, BackupEntry, Condition};
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::garden::location::{Life, is_default, wanted};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::info;

use super::Courier;
use super::handover::digest_of;
use super::write::{Desk, Failure, keep_secret};
use crate::client::is_not_found;

/// What the entry should know of its location.
pub struct Told {
    /// Nothing is written or read there any more, as far as this cluster goes.
    pub is_away: bool,
    pub condition: Option<Condition>,
}

impl Courier {
    pub(super) async fn location(
        &self,
        name: &str,
        entry: Option<&BackupEntry>,
        bucket: Option<&BackupBucket>,
    ) -> Result<Told, Failure> {
        let found = self.member.locations.get(name);
        let ours = found.clone().filter(|found| is_made_for(found, name));
        // Its credentials go last, and after the location itself.
        let ended = entry.is_none()
            && match &ours {
                Some(ours) => self.has_ended(name, ours.meta()),
                None => self.hub.has_tombstone(name, None),
            };
        let Some(life) = self.life(entry, ended) else {
            // A hub that knows nothing of it has not said that it is to go.
            return Ok(Told { is_away: ours.is_none(), condition: None });
        };
        let now = Timestamp::now();
        let without = |why, message: &str| Some(wire::without_location(why, message, now));
        if life == Life::Elsewhere && ours.is_none() {
            return Ok(Told { is_away: true, condition: None });
        }
        if found.is_some() && ours.is_none() {
            let message = format!(
                "BackupStorageLocation {name} in namespace {} is somebody else's: rename or delete it",
                self.settings.namespace
            );
            return Ok(Told { is_away: true, condition: without(reason::NAME_TAKEN, &message) });
        }
        let ready = bucket.is_some_and(was_made) && entry.is_some_and(entry_was_made);
        let Some(access) = wanted(life, ready, ours.is_some()) else {
            if life == Life::Going {
                let is_away = self.take_away(name, ours.as_deref()).await?;
                return Ok(Told { is_away, condition: without(reason::REMOVED, "") });
            }
            let had = entry.is_some_and(has_condition);
            return Ok(Told {
                is_away: true,
                condition: had.then(|| without(reason::BUCKET_NOT_READY, "")).flatten(),
            });
        };
        // Where the hub lacks something, what is there goes on as it is.
        let (Some(entry), Some(bucket)) = (entry, bucket) else {
            return Ok(Told { is_away: false, condition: ours.map(|found| wire::condition(&found, now)) });
        };
        let mut digest =
            ours.as_ref().and_then(|found| found.annotations().get(keys::CREDENTIALS_DIGEST)).cloned();
        if let Ok(credentials) = self.hub.credentials(bucket) {
            if takes_credentials(&bucket.spec.provider) {
                let file = match wire::cloud_file(&credentials) {
                    Ok(file) => file,
                    Err(faults) => {
                        let of = bucket.spec.secret_ref.clone().unwrap_or_default();
                        let message = format!("Secret {}/{} in the hub: {faults}", of.namespace, of.name);
                        return Ok(Told {
                            is_away: false,
                            condition: without(reason::CREDENTIALS, &message),
                        });
                    }
                };
                let data = [(wire::CLOUD.to_owned(), file.into_bytes())].into();
                let labels = [(keys::CARRIED_FOR, self.settings.seed.as_str()), (keys::BACKUP_ENTRY, name)];
                keep_secret(&self.location_secrets(), &secret_name(name), &labels, &data).await?;
            }
            digest = Some(digest_of(&credentials));
        }
        let asked = keys::is_set(entry.annotations(), keys::DEFAULT_LOCATION);
        let others = self.member.locations.all();
        let another = others.iter().any(|other| other.name_any() != name && other.spec.default == Some(true));
        let freight = Freight {
            seed: &self.settings.seed,
            namespace: &self.settings.garden_namespace,
            digest: digest.as_deref().unwrap_or_default(),
        };
        let location = wire::location(entry, bucket, access, is_default(asked, another), freight);
        self.keep_location(ours, &location).await?;
        let kept = self.member.locations.get(name);
        let condition = kept.map(|kept| wire::condition(&kept, now));
        // What was not asked yet is told once there is an answer.
        let is_news = |told: &Condition| told.reason != reason::VALIDATING || has_condition(entry);
        Ok(Told { is_away: false, condition: condition.filter(is_news) })
    }

    /// Has the hub a record of the end of the entry that this was made for?
    pub(super) fn has_ended(&self, name: &str, metadata: &ObjectMeta) -> bool {
        hub_uid(metadata).is_some_and(|uid| self.hub.has_tombstone(name, Some(uid)))
    }

    /// `None`: the hub says nothing of it.
    fn life(&self, entry: Option<&BackupEntry>, ended: bool) -> Option<Life> {
        let Some(entry) = entry else { return ended.then_some(Life::Going) };
        let status = entry.status.as_ref();
        let last = status.and_then(|status| status.last_operation.as_ref());
        let migrates =
            last.is_some_and(|op| op.kind == OperationType::Migrate && op.state != OperationState::Succeeded);
        let is_deleted = entry.metadata.deletion_timestamp.is_some();
        Some(if is_deleted && status.is_some_and(|status| status.released_at.is_some()) {
            Life::Going
        } else if entry.spec.seed_name != self.settings.seed {
            Life::Elsewhere
        } else if is_deleted {
            Life::Grace
        } else if migrates {
            Life::Migrating
        } else {
            Life::Live
        })
    }

    async fn keep_location(
        &self,
        ours: Option<Arc<BackupStorageLocation>>,
        wanted: &BackupStorageLocation,
    ) -> Result<(), Failure> {
        let desk = self.locations();
        let Some(found) = ours else {
            desk.ensure_ours(&wanted.name_any()).await?;
            return desk.apply(wanted).await;
        };
        if wire::is_as(&found.spec, &wanted.spec) && !lacks(found.meta(), wanted.meta()) {
            return Ok(());
        }
        // New keys: whoever checks locations, berth or Velero, is to check this one now.
        let digest = |location: &BackupStorageLocation| {
            location.annotations().get(keys::CREDENTIALS_DIGEST).cloned().unwrap_or_default()
        };
        if digest(&found) != digest(wanted) && found.status.is_some() {
            desk.patch(&found, json!({}), json!({"status": {"lastValidationTime": Value::Null}})).await?;
        }
        desk.apply(wanted).await
    }

    /// Location first, so that nothing new goes there and no sync brings back what is removed next; then its Backups; its
    /// credentials last. `true`: all of it is gone.
    async fn take_away(&self, name: &str, ours: Option<&BackupStorageLocation>) -> Result<bool, Failure> {
        if let Some(location) = ours {
            info!(name, "taking the storage location away");
            self.locations().delete(location).await?;
        }
        let selector = format!("{}={name}", keys::STORAGE_LOCATION);
        let backups = ApiResource::erase::<Backup>(&());
        let repositories =
            ApiResource::from_gvk(&GroupVersionKind::gvk("velero.io", "v1", "BackupRepository"));
        let mut left = 0;
        for kind in [backups, repositories] {
            left += self.remove_all(&kind, &selector).await?;
        }
        // What was there a moment ago is looked for again.
        if ours.is_some() || left > 0 {
            return Ok(false);
        }
        if let Some(secret) = self.member.location_secrets.get(&secret_name(name)) {
            self.location_secrets().delete(&secret).await?;
        }
        Ok(true)
    }

    /// How many there were.
    async fn remove_all(&self, kind: &ApiResource, selector: &str) -> Result<usize, Failure> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.clients.call.clone(), &self.settings.namespace, kind);
        let failure = |what, error| Failure::Api {
            what,
            kind: kind.kind.clone(),
            name: selector.to_owned(),
            source: Box::new(error),
        };
        let found = match api.list_metadata(&ListParams::default().labels(selector)).await {
            Ok(found) => found.items,
            Err(error) if is_not_found(&error) => return Ok(0),
            Err(error) => return Err(failure("list", error)),
        };
        for object in &found {
            match api.delete(&object.name_any(), &DeleteParams::default()).await {
                Err(error) if !is_not_found(&error) => return Err(failure("delete", error)),
                _ => {}
            }
        }
        Ok(found.len())
    }

    fn locations(&self) -> Desk<'_, BackupStorageLocation> {
        Desk {
            api: Api::namespaced(self.clients.call.clone(), &self.settings.namespace),
            known: &self.member.locations,
        }
    }

    fn location_secrets(&self) -> Desk<'_, Secret> {
        Desk {
            api: Api::namespaced(self.clients.call.clone(), &self.settings.namespace),
            known: &self.member.location_secrets,
        }
    }
}

fn is_made_for(location: &BackupStorageLocation, entry: &str) -> bool {
    is_ours(location.meta()) && location.labels().get(keys::BACKUP_ENTRY).is_some_and(|of| of == entry)
}

/// Has it ever been there? One that has a passing fault was.
fn was_made(bucket: &BackupBucket) -> bool {
    bucket.status.as_ref().is_some_and(|status| status.observed_generation.is_some())
}

fn entry_was_made(entry: &BackupEntry) -> bool {
    entry.status.as_ref().is_some_and(|status| status.observed_generation.is_some())
}

fn has_condition(entry: &BackupEntry) -> bool {
    let conditions = entry.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.kind == wire::LOCATION_AVAILABLE)
}
