//! Plans profiles, seeds and credentials.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::HubPlanner;
use crate::condition::{ConditionMap, ConditionState, ConditionType};
use crate::hub::reason::PlacementWaitReason;
use crate::hub::view::ProfileStatus;
use crate::placement::BucketHealth;
use crate::{SecretRef, Store};

impl<'v> HubPlanner<'v> {
    /// Conditions of profiles and seeds: do their backups have a bucket?
    pub(super) fn plan_conditions(&mut self) {
        for (p, owner) in self.view.profiles.iter().enumerate() {
            let mut status = ProfileStatus { conditions: ConditionMap::new(), ..owner.status.clone() };
            let regions = self
                .view
                .buckets
                .iter()
                .filter(|bucket| bucket.profile.as_ref() == Some(&owner.profile.name));
            for region in regions.map(|bucket| &bucket.store.place.region).collect::<BTreeSet<_>>() {
                let last = self.last_ordinal(p, region);
                if last > 0 {
                    status.last_ordinals.insert(region.clone(), last);
                }
            }
            let faults = owner.profile.faults();
            let stores = self.wanted.get(p).and_then(Option::as_ref).into_iter().flatten();
            let ready = match faults.is_empty() {
                false => Some((false, "ProfileFaulty", faults.to_string())),
                true => self.readiness(p, stores),
            };
            status.conditions = settled(&owner.status.conditions, ready, self.second());
            if status != owner.status {
                self.plan.profiles.push((p, status));
            }
        }
        for (s, cluster) in self.view.seeds.iter().enumerate() {
            let ready = match self.homes.get(cluster.member.seed.name.as_str()) {
                Some(Ok((profile, store))) => self.readiness(*profile, [store].into_iter()),
                Some(Err(PlacementWaitReason::NoBackups { .. })) | None => None,
                Some(Err(why)) => Some((false, why.word(), why.to_string())),
            };
            let conditions = settled(&cluster.conditions, ready, self.second());
            if conditions != cluster.conditions {
                self.plan.seeds.push((s, conditions));
            }
        }
    }

    /// `None`: no bucket is wanted, so there is no condition.
    fn readiness<'s>(
        &self,
        profile: usize,
        stores: impl Iterator<Item = &'s Store>,
    ) -> Option<(bool, &'static str, String)> {
        let mut is_wanted = false;
        let mut missing = Vec::new();
        let mut is_making = true;
        for store in stores {
            is_wanted = true;
            let candidates = self.candidates(profile, store);
            if candidates.iter().any(|(_, one)| one.standing == BucketHealth::Ready) {
                continue;
            }
            is_making &= candidates.iter().all(|(_, one)| one.standing == BucketHealth::Making);
            let errors = candidates.iter().filter_map(|(b, _)| {
                let bucket = self.view.buckets.get(*b)?;
                Some(format!("{}: {}", bucket.name, bucket.error.as_ref()?))
            });
            let errors: Vec<String> = errors.collect();
            let fault = self.missing_credentials(&store.secret).map(|(_, fault)| fault);
            is_making &= fault.is_none();
            let what = errors.into_iter().chain(fault).collect::<Vec<_>>().join("; ");
            let what = if what.is_empty() { "is being made".to_owned() } else { what };
            missing.push(format!("{}: {what}", store.place));
        }
        match missing.is_empty() {
            true if is_wanted => {
                Some((true, "BackupBucketsAvailable", "backups have a bucket to go to".to_owned()))
            }
            true => None,
            false if is_making => Some((false, "BackupBucketsProgressing", missing.join(", "))),
            false => Some((false, "BackupBucketsError", missing.join(", "))),
        }
    }

    /// Why a Secret cannot be used: reason, and message.
    pub(super) fn missing_credentials(&self, secret: &SecretRef) -> Option<(&'static str, String)> {
        let SecretRef { name, namespace } = secret;
        let ours = &self.settings.namespace;
        if namespace != ours {
            let text = format!(
                "Secret {namespace}/{name} is not in namespace {ours}, and no other is read: move it there"
            );
            return Some(("OtherNamespace", text));
        }
        let is_missing = !self.view.secrets.contains_key(name);
        is_missing.then(|| ("NoSecret", format!("there is no Secret {namespace}/{name}: create it")))
    }

    /// Keeps the finalizer on credentials while any bucket needs them.
    pub(super) fn guard_secrets(&mut self) {
        let needed: BTreeSet<&str> = self
            .view
            .buckets
            .iter()
            .filter(|bucket| bucket.store.secret.namespace == self.settings.namespace)
            .map(|bucket| bucket.store.secret.name.as_str())
            .collect();
        for (name, secret) in &self.view.secrets {
            let is_needed = needed.contains(name.as_str());
            // No finalizer can be added to an object that is being deleted.
            if is_needed != secret.is_guarded && !(is_needed && secret.is_deleted) {
                self.plan.secrets.push((name.clone(), is_needed));
            }
        }
    }
}

/// Conditions of one object. That all is well is written only if it was not so before.
pub(super) struct ConditionUpdates<'f> {
    pub(super) found: &'f ConditionMap,
    pub(super) at: Timestamp,
    pub(super) now: ConditionMap,
}

impl ConditionUpdates<'_> {
    pub(super) fn tell(&mut self, about: ConditionType, holds: bool, reason: &str, message: String) {
        let before = self.found.get(&about).filter(|before| before.holds == holds);
        let since = before.map_or(self.at, |before| before.since);
        self.now.insert(about, ConditionState { holds, since, reason: reason.to_owned(), message });
    }

    pub(super) fn normal(&mut self, about: ConditionType, holds: bool, reason: &str, message: &str) {
        if self.found.contains_key(&about) {
            self.tell(about, holds, reason, message.to_owned());
        }
    }
}

fn settled(found: &ConditionMap, ready: Option<(bool, &'static str, String)>, at: Timestamp) -> ConditionMap {
    let mut now = ConditionUpdates { found, at, now: ConditionMap::new() };
    if let Some((holds, reason, message)) = ready {
        now.tell(ConditionType::BackupBucketsReady, holds, reason, message);
    }
    now.now
}
