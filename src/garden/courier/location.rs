//! The storage location of an entry: made, kept, and taken away in the right order.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::garden::carried::{Freight, Orders, hub_uid, is_ours, lacks};
use berth_api::garden::location::{self as wire, reason, secret_name, takes_credentials};
use berth_api::garden::report::Problem;
use berth_api::garden::{BackupBucket, BackupEntry, Condition};
use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::garden::location::{Access, Holder, Life, Wanted, is_default, life, wanted};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::info;

use super::Courier;
use super::handover::digest_of;
use super::write::{Desk, Failure, keep_secret};
use crate::client::is_not_found;
use crate::write::{self, Answer, Write};

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
        let all = self.all_locations(name);
        let own = all.iter().find(|location| is_ours(location.meta())).cloned();
        let secret = self.member.location_secrets.get(&secret_name(name));
        let is_over = |metadata: &ObjectMeta| self.has_ended(name, metadata, entry);
        let over: Vec<_> = all.iter().filter(|location| is_over(location.meta())).cloned().collect();
        if !over.is_empty() || secret.as_ref().is_some_and(|secret| is_over(secret.meta())) {
            let is_away = self.take_away(name, &over).await?;
            // Of whatever has the name by now it is looked after that.
            return Ok(Told { is_away: is_away && entry.is_none(), condition: None });
        }
        // A hub that knows nothing of it has not said that it is to go.
        let Some(entry) = entry else { return Ok(Told { is_away: own.is_none(), condition: None }) };
        let now = Timestamp::now();
        let without = |why, message: &str| Some(wire::without_location(why, message, now));
        let life = self.life(entry);
        if life == Life::Going {
            let is_known = !all.is_empty() || secret.is_some() || entry.spec.seed_name == self.settings.seed;
            let is_away = !is_known || self.take_away(name, &all).await?;
            return Ok(Told { is_away, condition: without(reason::REMOVED, "") });
        }
        let ready = bucket.is_some_and(was_made) && entry_was_made(entry);
        // Before anything that may fail: who may write there depends on nothing else.
        if let Wanted::Kept(access) = wanted(life, ready, true) {
            self.set_access(entry, &all, access).await?;
        }
        if matches!(life, Life::Elsewhere | Life::Leaving) && own.is_none() {
            return Ok(Told { is_away: true, condition: None });
        }
        if found.is_some() && own.is_none() {
            let message = format!(
                "BackupStorageLocation {name} in namespace {} is somebody else's: rename or delete it",
                self.settings.namespace
            );
            return Ok(Told { is_away: true, condition: without(reason::NAME_TAKEN, &message) });
        }
        let access = match wanted(life, ready, own.is_some()) {
            Wanted::Kept(access) => access,
            Wanted::AsItIs => {
                return Ok(Told { is_away: false, condition: own.map(|found| wire::condition(&found, now)) });
            }
            Wanted::None => {
                let (why, message) = match life {
                    Life::Coming => (reason::MOVING, coming(entry)),
                    _ => (reason::BUCKET_NOT_READY, String::new()),
                };
                let had = has_condition(entry);
                return Ok(Told { is_away: true, condition: without(why, &message).filter(|_| had) });
            }
        };
        let own = self.member.locations.get(name).filter(|_| own.is_some());
        // Where the hub lacks something, what is there goes on as it is.
        let Some(bucket) = bucket else {
            return Ok(Told { is_away: false, condition: own.map(|found| wire::condition(&found, now)) });
        };
        let led_away = own.as_ref().and_then(|found| elsewhere(&found.spec.object_storage.bucket, entry));
        if let Some(problem) = led_away {
            return Ok(Told {
                is_away: false,
                condition: without(reason::BUCKET_NOT_READY, &problem.description),
            });
        }
        let mut digest =
            own.as_ref().and_then(|found| found.annotations().get(keys::CREDENTIALS_DIGEST)).cloned();
        let mut account = own.as_deref().and_then(wire::account_of);
        // Whoever gave the entry away may no longer ask for its keys.
        let credentials =
            (life != Life::Elsewhere).then(|| self.hub.credentials(bucket, Some(entry))).transpose()?;
        if let Some(Ok(credentials)) = credentials {
            if takes_credentials(&bucket.spec.provider) {
                let file = match wire::cloud_file(&bucket.spec.provider, &credentials) {
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
                let uid = entry.uid().unwrap_or_default();
                let labels = [
                    (keys::CARRIED_FOR, self.settings.seed.as_str()),
                    (keys::BACKUP_ENTRY, name),
                    (keys::HUB_UID, uid.as_str()),
                ];
                keep_secret(&self.location_secrets(), &secret_name(name), &labels, &data).await?;
            }
            digest = Some(digest_of(&credentials));
            account = wire::account(&bucket.spec.provider, &credentials);
        }
        let asked = keys::is_set(entry.annotations(), keys::DEFAULT_LOCATION);
        let others = self.member.locations.all();
        let another = others.iter().any(|other| other.name_any() != name && other.spec.default == Some(true));
        let freight = Freight {
            seed: &self.settings.seed,
            namespace: &self.settings.garden_namespace,
            digest: digest.as_deref().unwrap_or_default(),
        };
        let is_default = is_default(asked, another);
        let location = wire::location(entry, bucket, access, is_default, account.as_ref(), freight);
        self.keep_location(own, &location).await?;
        let kept = self.member.locations.get(name);
        let condition = kept.map(|kept| wire::condition(&kept, now));
        // What was not asked yet is told once there is an answer.
        let is_news = |told: &Condition| told.reason != reason::VALIDATING || has_condition(entry);
        Ok(Told { is_away: false, condition: condition.filter(is_news) })
    }

    /// Was this made for an entry that has ended, and is on record in the hub? `entry`: the one of that name that is there.
    pub(super) fn has_ended(&self, name: &str, metadata: &ObjectMeta, entry: Option<&BackupEntry>) -> bool {
        let uid =
            hub_uid(metadata).filter(|uid| entry.is_none_or(|e| e.metadata.uid.as_deref() != Some(uid)));
        uid.is_some_and(|uid| self.hub.has_tombstone(name, uid))
    }

    pub(super) fn life(&self, entry: &BackupEntry) -> Life {
        let seed = &self.settings.seed;
        let orders = Orders::from(entry);
        let holder = match orders.seed.filter(|holder| !holder.is_empty()) {
            None => Holder::Nobody,
            Some(holder) if holder == seed => Holder::Us,
            Some(_) => Holder::Another,
        };
        let is_deleted = entry.metadata.deletion_timestamp.is_some();
        life(entry.spec.seed_name == *seed, holder, is_deleted, orders.is_released)
    }

    /// Its own one, and those that were led into its directory.
    pub(super) fn all_locations(&self, entry: &str) -> Vec<Arc<BackupStorageLocation>> {
        let mut all = self.member.locations.all();
        all.retain(|location| {
            is_of(location, entry) && (!is_ours(location.meta()) || location.name_any() == entry)
        });
        all.sort_by_key(|location| !is_ours(location.meta()));
        all
    }

    async fn set_access(
        &self,
        entry: &BackupEntry,
        locations: &[Arc<BackupStorageLocation>],
        access: Access,
    ) -> Result<(), Failure> {
        let mode = match access {
            Access::ReadWrite => AccessMode::ReadWrite,
            Access::ReadOnly => AccessMode::ReadOnly,
        };
        let uid = entry.uid().unwrap_or_default();
        for location in locations {
            // By this its end is told apart from that of another entry of the same name.
            let is_marked = is_ours(location.meta()) || hub_uid(location.meta()) == Some(&uid);
            if location.spec.access_mode.unwrap_or(AccessMode::ReadWrite) == mode && is_marked {
                continue;
            }
            let labels = if is_marked { json!({}) } else { json!({keys::HUB_UID: uid}) };
            let change = json!({"spec": {"accessMode": mode}});
            self.locations().patch(location, json!({"labels": labels}), change).await?;
        }
        Ok(())
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

    /// Locations first, so that nothing new goes there and no sync brings back what is removed next; then their Backups; the
    /// credentials last. `true`: all of it is gone.
    async fn take_away(&self, name: &str, locations: &[Arc<BackupStorageLocation>]) -> Result<bool, Failure> {
        for location in locations {
            info!(name, location = location.name_any(), "taking a storage location away");
            self.locations().delete(location).await?;
        }
        let mut theirs: BTreeSet<String> = locations.iter().map(|location| location.name_any()).collect();
        // What was left when it was taken away; unless somebody else's has its name.
        theirs.extend(self.member.locations.get(name).is_none().then(|| name.to_owned()));
        let backups = ApiResource::erase::<Backup>(&());
        let repositories =
            ApiResource::from_gvk(&GroupVersionKind::gvk("velero.io", "v1", "BackupRepository"));
        let mut left = 0;
        for location in theirs {
            let selector = format!("{}={location}", keys::STORAGE_LOCATION);
            for kind in [&backups, &repositories] {
                left += self.remove_all(kind, &selector).await?;
            }
        }
        // What was there a moment ago is looked for again.
        if !locations.is_empty() || left > 0 {
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
            match write::delete(&api, Write::to(&object.name_any())).await {
                Answer::Gone(_) => {}
                answer => answer.written().map_err(|error| failure("delete", error))?,
            }
        }
        Ok(found.len())
    }

    pub(super) fn locations(&self) -> Desk<'_, BackupStorageLocation> {
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

fn coming(entry: &BackupEntry) -> String {
    let holder = entry.status.as_ref().and_then(|status| status.seed.as_deref()).unwrap_or_default();
    format!("Seed {holder} is to write there no more first")
}

fn is_of(location: &BackupStorageLocation, entry: &str) -> bool {
    location.labels().get(keys::BACKUP_ENTRY).is_some_and(|of| of == entry)
}

/// What is here in bucket `found` does not follow an entry that was given a place in another one: its data would stay behind.
pub(super) fn elsewhere(found: &str, entry: &BackupEntry) -> Option<Problem> {
    let wanted = entry.spec.bucket_name.as_deref().filter(|wanted| *wanted != found)?;
    Some(Problem::of_configuration(format!(
        "spec.bucketName: its data is in bucket {found}, and the hub has placed it in {wanted}: delete it in the hub with the \
         annotation {}, and create it again with spec.bucketName: {found}",
        keys::FORGET_DATA
    )))
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
