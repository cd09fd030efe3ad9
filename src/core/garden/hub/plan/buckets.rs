//! Plans each bucket.

use std::collections::HashMap;

use jiff::Timestamp;

use super::conditions::ConditionUpdates;
use super::{BucketEnd, BucketPlan, HubPlanner, kept, pending, released, was_removed};
use crate::Store;
use crate::assignment::{self, SeedHealth};
use crate::bucket::{BucketStatus, GardenBucket};
use crate::condition::{ConditionMap, ConditionType};
use crate::name::Stem;
use crate::operation::{OperationReport, OperationType};
use crate::retention::{self, BucketFate};

impl<'v> HubPlanner<'v> {
    fn owner(&self, bucket: &GardenBucket) -> Option<usize> {
        let name = bucket.profile.as_ref()?;
        self.view.profiles.iter().position(|one| one.profile.name == *name)
    }

    pub(super) fn plan_buckets(&mut self) {
        let mut named: HashMap<&str, usize> = HashMap::new();
        for name in self.view.entries.iter().filter_map(|entry| entry.bucket.as_deref()) {
            *named.entry(name).or_default() += 1;
        }
        for (b, bucket) in self.view.buckets.iter().enumerate() {
            let entries = self.used(b).max(named.get(bucket.name.as_str()).copied().unwrap_or(0));
            let planned = self.plan_bucket(b, bucket, entries);
            if planned != (BucketPlan { bucket: b, ..BucketPlan::default() }) {
                self.plan.buckets.push(planned);
            }
        }
    }

    fn plan_bucket(&mut self, b: usize, bucket: &GardenBucket, entries: usize) -> BucketPlan {
        let (found, owner) = (&bucket.status, self.owner(bucket));
        let is_removed = found.operation.as_ref().is_some_and(was_removed) && found.released_at.is_some();
        let fate = retention::bucket_fate(
            &retention::BucketUse {
                is_deleted: bucket.is_deleted,
                entries,
                is_wanted: self.is_wanted(bucket, owner),
                idle_since: found
                    .conditions
                    .get(&ConditionType::Idle)
                    .filter(|idle| idle.holds)
                    .map(|idle| idle.since),
                is_removed,
            },
            self.settings.idle_delay,
            self.now,
        );
        if let BucketFate::Idle { until } = fate {
            self.wake(until);
        }
        let acts = assignment::assign(found.seed.as_deref(), &bucket.store.place, self.members(), self.now);
        if let Some(expires) = acts.and_then(SeedHealth::expires) {
            self.wake(expires);
        }
        let seed = acts.map(|member| member.seed.name.clone());
        let stem = owner
            .and_then(|owner| self.view.profiles.get(owner))
            .map(|owner| Stem::new(&owner.profile.name, &bucket.store.place, &owner.uid));
        let mut status = BucketStatus {
            seed: seed.clone().or_else(|| found.seed.clone()),
            allocated: self.places.get(b).cloned().unwrap_or_default(),
            entries: u32::try_from(self.used(b)).ok(),
            limit: self.limit(bucket),
            ordinal: stem.and_then(|stem| stem.ordinal(&bucket.name)).or(found.ordinal),
            ..found.clone()
        };
        (status.operation, status.released_at) =
            self.bucket_operation(found, fate, entries, bucket.is_deleted);
        status.conditions = self.bucket_conditions(bucket, &status, fate, seed.is_some());
        let end = match fate {
            // Places are recorded first, because no place may be given twice.
            BucketFate::Gone => self.is_counted(bucket, owner).then_some(BucketEnd::LetGo),
            BucketFate::Retire => Some(BucketEnd::Retire),
            _ => None,
        };
        BucketPlan {
            bucket: b,
            claim: !bucket.is_claimed && !bucket.is_deleted,
            store: self.store_of(bucket, owner).filter(|store| *store != bucket.store && !bucket.is_deleted),
            status: (status != *found).then_some(status),
            end,
        }
    }

    /// A bucket without a usable owner stays as it is.
    fn is_wanted(&self, bucket: &GardenBucket, owner: Option<usize>) -> bool {
        let Some(owner) = owner else { return bucket.profile.is_none() };
        let Some(Some(stores)) = self.wanted.get(owner) else { return true };
        stores.iter().any(|store| store.place == bucket.store.place)
    }

    /// Copies credentials and settings of the profile to its buckets, so that rotated keys reach
    /// them.
    fn store_of(&self, bucket: &GardenBucket, owner: Option<usize>) -> Option<Store> {
        let profile = &self.view.profiles.get(owner?)?.profile;
        let backup = profile.backup.as_ref().filter(|_| profile.faults().is_empty())?;
        let is_there = profile.backup_provider() == Some(bucket.store.place.provider.as_str());
        is_there.then(|| {
            let mut config = backup.config.clone();
            let was = &bucket.store.config;
            let is_kept = |(of, to): (&(_, &str), &(_, &str))| of.1 == to.1 || profile.is_same_store(to.1);
            // Created while no webhook could refuse it: data of a bucket in use is not looked for
            // in another store.
            let is_same = was.addresses().iter().zip(&config.addresses()).all(is_kept);
            if !is_same && bucket.health().exists() {
                (config.endpoint, config.path) = (was.endpoint.clone(), was.path.clone());
            }
            Store {
                place: bucket.store.place.clone(),
                secret: backup.secret.clone().unwrap_or_default(),
                config,
            }
        })
    }

    fn is_counted(&self, bucket: &GardenBucket, owner: Option<usize>) -> bool {
        let region = &bucket.store.place.region;
        let Some(one) = owner.and_then(|owner| self.view.profiles.get(owner)) else { return true };
        let stem = Stem::new(&one.profile.name, &bucket.store.place, &one.uid);
        let last = one.status.last_ordinals.get(region).copied().unwrap_or(0);
        stem.ordinal(&bucket.name).is_none_or(|ordinal| ordinal <= last)
    }

    fn bucket_operation(
        &self,
        found: &BucketStatus,
        fate: BucketFate,
        entries: usize,
        is_deleted: bool,
    ) -> (Option<OperationReport>, Option<Timestamp>) {
        match fate {
            BucketFate::Held => {
                let left = if entries == 1 { "1 entry is" } else { &format!("{entries} entries are") };
                let text = format!("{left} in it: it goes when they are gone");
                (Some(pending(OperationType::Delete, text)), None)
            }
            BucketFate::Go if found.released_at.is_none() => {
                (Some(released("to be removed from the store")), Some(self.second()))
            }
            _ if is_deleted => (found.operation.clone(), found.released_at),
            _ => (kept(found.operation.as_ref()), None),
        }
    }

    fn bucket_conditions(
        &self,
        bucket: &GardenBucket,
        status: &BucketStatus,
        fate: BucketFate,
        has_executor: bool,
    ) -> ConditionMap {
        let place = &bucket.store.place;
        let mut now = ConditionUpdates {
            found: &bucket.status.conditions,
            at: self.second(),
            now: ConditionMap::new(),
        };
        match has_executor {
            true => now.normal(
                ConditionType::ExecutorAvailable,
                true,
                "SeedReports",
                "a seed that reaches the store acts on it",
            ),
            false => now.tell(
                ConditionType::ExecutorAvailable,
                false,
                "NoSeed",
                format!("no seed that reaches {place} has reported lately: start berth garden agent in one"),
            ),
        }
        let secret = &bucket.store.secret;
        let is_going = self.view.secrets.get(&secret.name).is_some_and(|found| found.is_deleted);
        match self.missing_credentials(secret) {
            Some((reason, fault)) => now.tell(ConditionType::CredentialsAvailable, false, reason, fault),
            None if is_going => now.tell(
                ConditionType::CredentialsAvailable,
                true,
                "SecretGoing",
                format!(
                    "Secret {}/{} is deleted, and stays while buckets need it",
                    secret.namespace, secret.name
                ),
            ),
            None => {
                now.normal(ConditionType::CredentialsAvailable, true, "SecretFound", "its Secret is there")
            }
        }
        match status.limit.map(|limit| (status.allocated.len(), limit)) {
            Some((used, limit)) if u32::try_from(used).is_ok_and(|used| used > limit) => now.tell(
                ConditionType::OverLimit,
                true,
                "OverLimit",
                format!("entries {used}/{limit}: they stay, and no more come"),
            ),
            _ => now.normal(
                ConditionType::OverLimit,
                false,
                "WithinLimit",
                "no more entries than it is to take",
            ),
        }
        match fate {
            BucketFate::Idle { .. } | BucketFate::Retire => now.tell(
                ConditionType::Idle,
                true,
                "NotWanted",
                "no seed backs up into it and no entry is in it: it is deleted after --bucket-idle-delay"
                    .to_owned(),
            ),
            BucketFate::Stay | BucketFate::Held | BucketFate::Go | BucketFate::Gone => {
                now.normal(ConditionType::Idle, false, "InUse", "wanted, in use, or being deleted");
            }
        }
        now.now
    }
}
