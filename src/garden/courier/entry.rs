//! Buckets and entries: down, and what becomes of them up.

use berth_api::extensions::Extension as _;
use berth_api::garden::carried::{self, Freight, entry_secret};
use berth_api::garden::location as wire;
use berth_api::garden::report::{
    Problem, Report, locked_until, says_the_same, with_condition, without_condition,
};
use berth_api::garden::{
    BackupBucket, BackupBucketStatus, BackupEntry, BackupEntryStatus, Condition, Removed,
};
use berth_api::keys;
use berth_core::garden::handover;
use berth_core::garden::location::Life;
use jiff::Timestamp;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::warn;

use super::Courier;
use super::handover::{Before, Parcel};
use super::location::{Told, elsewhere};
use super::secrets::Credentials;
use super::write::{Desk, Failure};
use crate::text::chain;

impl Courier {
    pub(super) async fn bucket(&self, name: &str) -> Result<(), Failure> {
        let hub = self.hub.buckets.get(name);
        let found = self.member.buckets.get(name);
        let api = |_: &BackupBucket| Api::all(self.hub_clients.call.clone());
        let told = self.told(hub.as_deref(), found.as_ref().map(|found| found.meta()), false, api).await?;
        let none = BackupBucketStatus::default();
        let status = hub.as_ref().and_then(|hub| hub.status.as_ref()).unwrap_or(&none);
        let credentials = self.credentials(told, hub.as_deref(), None)?;
        let parcel = Parcel {
            name,
            told,
            found,
            secret: carried::bucket_secret(name),
            credentials,
            forgets: hub.as_ref().is_some_and(|hub| keys::is_set(hub.annotations(), keys::FORGET_DATA)),
            waits: false,
            uid: hub.as_ref().and_then(|hub| hub.uid()),
            elsewhere: None,
        };
        let desk = Desk { api: Api::all(self.clients.call.clone()), known: &self.member.buckets };
        let before = Before {
            generation: hub.as_ref().and_then(|hub| hub.metadata.generation),
            last_operation: status.last_operation.as_ref(),
            last_error: status.last_error.as_ref(),
            is_deleted: hub.as_ref().is_some_and(|hub| hub.metadata.deletion_timestamp.is_some()),
        };
        let wanted = |freight: Freight<'_>| Some(carried::bucket(hub.as_deref()?, freight));
        let outcome = self.hand_over(parcel, &desk, wanted, before).await?;
        let change = change(outcome.report.as_ref(), before, status.observed_generation);
        match (&hub, change) {
            (Some(hub), Some(change)) => {
                let desk: Desk<'_, BackupBucket> =
                    Desk { api: Api::all(self.hub_clients.call.clone()), known: &self.hub.buckets };
                desk.patch_status(hub, change).await
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn entry(&self, name: &str) -> Result<(), Failure> {
        let hub = self.hub.entry(name);
        let found = self.member.entries.get(name);
        let ended = found.as_ref().is_some_and(|found| self.has_ended(name, &found.metadata, hub.as_deref()));
        let api = |hub: &BackupEntry| {
            Api::namespaced(self.hub_clients.call.clone(), &hub.namespace().unwrap_or_default())
        };
        // What was made for one that has ended goes its own way first, whatever has its name by now.
        let shown = hub.as_deref().filter(|_| !ended);
        let told = match self.told(shown, found.as_ref().map(|found| found.meta()), ended, api).await? {
            // For as long as its backups run nothing else is done to it.
            handover::Told::Keep if shown.is_some_and(|hub| self.life(hub) == Life::Leaving) => {
                handover::Told::Unassigned
            }
            told => told,
        };
        let mut failed = None;
        let bucket_name = hub.as_ref().and_then(|hub| hub.spec.bucket_name.clone());
        let bucket = bucket_name.as_ref().and_then(|bucket| self.hub.buckets.get(bucket));
        let location = match self.location(name, hub.as_deref(), bucket.as_deref()).await {
            // What is wrong there is told there, and keeps nothing else from going on.
            Err(failure) if !failure.passes() => {
                let why = chain(&failure);
                warn!(name, error = why, "its storage location could not be looked after");
                let condition = wire::without_location(wire::reason::UNAVAILABLE, &why, Timestamp::now());
                failed = Some(why);
                Told { is_away: false, condition: Some(condition) }
            }
            location => location?,
        };
        let none = BackupEntryStatus::default();
        let status = hub.as_ref().and_then(|hub| hub.status.as_ref()).unwrap_or(&none);
        let missing = bucket_name.as_ref().filter(|_| bucket.is_none()).map(|bucket| {
            Err(Problem::of_configuration(format!(
                "spec.bucketName: there is no BackupBucket {bucket} in the hub: create it again"
            )))
        });
        let elsewhere =
            hub.as_ref().zip(found.as_ref()).and_then(|(hub, found)| elsewhere(&found.spec.bucket_name, hub));
        let vouched = hub.as_deref().is_some_and(carried::was_made) && carried::needs_word(found.as_deref());
        let parcel = Parcel {
            name,
            told,
            found,
            secret: entry_secret(name),
            credentials: self.credentials(told, bucket.as_deref(), hub.as_deref())?.or(missing),
            forgets: hub.as_ref().is_some_and(|hub| keys::is_set(hub.annotations(), keys::FORGET_DATA)),
            waits: !location.is_away,
            uid: hub.as_ref().and_then(|hub| hub.uid()),
            elsewhere,
        };
        let desk = Desk { api: Api::all(self.clients.call.clone()), known: &self.member.entries };
        let before = Before {
            generation: hub.as_ref().and_then(|hub| hub.metadata.generation),
            last_operation: status.last_operation.as_ref(),
            last_error: status.last_error.as_ref(),
            is_deleted: hub.as_ref().is_some_and(|hub| hub.metadata.deletion_timestamp.is_some()),
        };
        let wanted = |freight: Freight<'_>| {
            Some(carried::entry(hub.as_deref()?, bucket.as_deref()?, freight, vouched))
        };
        let outcome = self.hand_over(parcel, &desk, wanted, before).await?;
        let locked = self.member.entries.get(name).and_then(|found| locked_until(found.common()));
        let Some(hub) = &hub else { return Ok(()) };
        let report = self.leaving(hub, failed.as_deref()).await?.or(outcome.report);
        let mut change = change(report.as_ref(), before, status.observed_generation);
        if let Some(removed) = more(outcome.removed, status.removed) {
            change.get_or_insert_with(|| json!({}))["removed"] = json!(removed);
        }
        // Whoever tells counts removes them, and knows what the store does not let go.
        if outcome.removed.is_some() && locked != status.locked_until {
            change.get_or_insert_with(|| json!({}))["lockedUntil"] = json!(locked);
        }
        if let Some(conditions) = self.conditions(hub, &status.conditions, location.condition) {
            change.get_or_insert_with(|| json!({}))["conditions"] = json!(conditions);
        }
        let Some(change) = change else { return Ok(()) };
        let namespace = hub.namespace().unwrap_or_default();
        let desk: Desk<'_, BackupEntry> = Desk {
            api: Api::namespaced(self.hub_clients.call.clone(), &namespace),
            known: &self.hub.entries,
        };
        desk.patch_status(hub, change).await
    }

    /// Those of a bucket, or of an entry in it, where this seed has something to do there.
    fn credentials(
        &self,
        told: handover::Told,
        bucket: Option<&BackupBucket>,
        entry: Option<&BackupEntry>,
    ) -> Result<Option<Result<Credentials, Problem>>, Failure> {
        let bucket = bucket.filter(|_| matches!(told, handover::Told::Keep | handover::Told::Remove));
        bucket.map(|bucket| self.hub.credentials(bucket, entry)).transpose()
    }

    /// Those of an entry, where they are to be other ones: about the cluster whose backups these are, whoever acts for it.
    fn conditions(
        &self,
        hub: &BackupEntry,
        before: &[Condition],
        location: Option<Condition>,
    ) -> Option<Vec<Condition>> {
        if hub.spec.seed_name != self.settings.seed {
            return None;
        }
        let told = location.and_then(|wanted| with_condition(before, wanted));
        let locations = self.member.locations.all();
        let locations: Vec<_> = locations.iter().map(|location| &**location).collect();
        // Nothing is to be moved into a directory that goes.
        let legacy = hub.metadata.deletion_timestamp.is_none();
        let legacy = legacy.then(|| wire::legacy(&locations, &hub.name_any(), Timestamp::now())).flatten();
        let now = told.as_deref().unwrap_or(before);
        let changed = match legacy {
            Some(wanted) => with_condition(now, wanted),
            None => without_condition(now, wire::LEGACY_LOCATION),
        };
        changed.or(told)
    }
}

/// Fields of the hub's status that are to be another way; `None`: all is said.
fn change(report: Option<&Report>, before: Before<'_>, observed: Option<i64>) -> Option<Value> {
    let report = report?;
    let seen = report.observed_generation.is_none() || report.observed_generation == observed;
    if seen && says_the_same(report, before.last_operation, before.last_error) {
        return None;
    }
    let mut change = json!({"lastOperation": report.last_operation, "lastError": report.last_error});
    if let Some(generation) = report.observed_generation {
        change["observedGeneration"] = json!(generation);
    }
    Some(change)
}

/// Counts only grow: an executor that begins anew counts from nothing.
fn more(now: Option<Removed>, before: Option<Removed>) -> Option<Removed> {
    let now = now?;
    let before = before.unwrap_or_default();
    (now.objects > before.objects || now.bytes > before.bytes).then_some(now)
}
