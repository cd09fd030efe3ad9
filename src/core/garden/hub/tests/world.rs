//! A hub whose plans are carried out.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::assignment::SeedHealth;
use crate::bucket::GardenBucket;
use crate::entry::GardenEntry;
use crate::hub::*;
use crate::operation::{OperationReport, OperationState, OperationType};
use crate::quota::Quota;
use crate::retention::{Grace, GraceScope};
use crate::{Profile, ProfileBackupSettings, SecretRef, Seed};

pub(super) const HOUR: i64 = 3600;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(super) fn secret() -> SecretRef {
    SecretRef { name: "store".to_owned(), namespace: "garden".to_owned() }
}

/// A hub, and what becomes of it when plans are carried out, wholly or in part.
#[derive(Clone)]
pub(super) struct World {
    pub(super) view: HubView,
    pub(super) settings: HubSettings,
    pub(super) second: i64,
    pub(super) made: u32,
}

impl World {
    /// A packet profile whose backups go to `aws` `eu-west-1`, with these seeds.
    pub(super) fn new(limit: Option<u32>, seeds: &[&str]) -> Self {
        let profile = Profile {
            name: "packet".to_owned(),
            provider: "packet".to_owned(),
            regions: vec!["ewr1".to_owned()],
            backup: Some(ProfileBackupSettings {
                provider: Some("aws".to_owned()),
                region: Some("eu-west-1".to_owned()),
                secret: Some(secret()),
                ..ProfileBackupSettings::default()
            }),
            ..Profile::default()
        };
        let quota = Quota::new(limit.map(|limit| ("aws".to_owned(), limit))).unwrap();
        let view = HubView {
            profiles: vec![ProfileState {
                profile,
                uid: "3ef4219a-0000".to_owned(),
                ..ProfileState::default()
            }],
            secrets: BTreeMap::from([("store".to_owned(), SecretState::default())]),
            ..HubView::default()
        };
        let hour = SignedDuration::from_secs(HOUR);
        let grace = Grace::new([(GraceScope::default(), hour)]).unwrap();
        let settings = HubSettings { quota, grace, idle_delay: hour, namespace: "garden".to_owned() };
        let mut world = Self { view, settings, second: 0, made: 0 };
        seeds.iter().for_each(|name| world.register(name));
        world
    }

    pub(super) fn register(&mut self, name: &str) {
        let seed = Seed {
            name: name.to_owned(),
            profile: "packet".to_owned(),
            region: "ewr1".to_owned(),
            reaches: None,
        };
        let seen = Some(at(self.second));
        let member = SeedHealth { seed, provider: "packet".to_owned(), seen, ..SeedHealth::default() };
        self.view.seeds.push(SeedState { member, ..SeedState::default() });
    }

    pub(super) fn entry(&mut self, name: &str, bucket: Option<&str>) -> usize {
        self.made += 1;
        self.view.entries.push(GardenEntry {
            namespace: "garden-dev".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}-{}", self.made),
            created_at: at(self.second),
            seed: "one".to_owned(),
            bucket: bucket.map(str::to_owned),
            generation: Some(1),
            ..GardenEntry::default()
        });
        self.view.entries.len() - 1
    }

    pub(super) fn plan(&self) -> HubPlan {
        plan(&self.view, &self.settings, at(self.second))
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.second += seconds;
        let now = at(self.second);
        self.view.seeds.iter_mut().for_each(|cluster| cluster.member.seen = Some(now));
    }

    /// Carries out those writes of a plan that `happens` lets through, in the order in which the
    /// hub makes them.
    pub(super) fn act(&mut self, plan: &HubPlan, mut happens: impl FnMut() -> bool) {
        for (seed, secrets) in &plan.access {
            match secrets.clone().filter(|_| happens()) {
                Some(secrets) => {
                    drop(self.view.access.insert(seed.clone(), SeedAccess { secrets, is_bound: true }))
                }
                None if secrets.is_none() => drop(self.view.access.remove(seed)),
                None => {}
            }
        }
        for new in &plan.create {
            if happens() {
                self.view.buckets.push(GardenBucket {
                    name: new.name.clone(),
                    created_at: at(self.second),
                    is_claimed: true,
                    profile: Some(self.view.profiles[new.profile].profile.name.clone()),
                    store: new.store.clone(),
                    ..GardenBucket::default()
                });
            }
        }
        let mut failed = BTreeSet::new();
        let mut ended = Vec::new();
        for one in &plan.buckets {
            let bucket = &mut self.view.buckets[one.bucket];
            if one.claim && happens() {
                bucket.is_claimed = true;
            }
            if let Some(store) = one.store.clone().filter(|_| happens()) {
                bucket.store = store;
            }
            match &one.status {
                Some(status) if happens() => bucket.status = status.clone(),
                Some(_) => drop(failed.insert(one.bucket)),
                None => {}
            }
            match one.end.filter(|_| happens()) {
                Some(BucketEnd::Retire) => bucket.is_deleted = true,
                Some(BucketEnd::LetGo) => ended.push(bucket.name.clone()),
                None => {}
            }
        }
        let mut removed = Vec::new();
        for one in &plan.entries {
            let entry = &mut self.view.entries[one.entry];
            let claim = one.claim.filter(|bucket| !failed.contains(bucket));
            if one.claim.is_some() && claim.is_none() {
                continue;
            }
            if let Some(bucket) = claim {
                if !happens() {
                    continue;
                }
                let name = self.view.buckets[bucket].name.clone();
                (entry.bucket, entry.placed_in, entry.is_claimed) = (Some(name.clone()), Some(name), true);
            }
            match one.status.clone() {
                Some(status) if happens() => entry.status = status,
                Some(_) => continue,
                None => {}
            }
            if let Some(writer) = one.writer.clone().filter(|_| happens()) {
                entry.take_over = entry.take_over.take().filter(|_| entry.seed != writer);
                entry.writer = Some(writer);
            }
            if one.end.is_some() && happens() {
                removed.push(entry.uid.clone());
            }
        }
        for (profile, status) in &plan.profiles {
            if happens() {
                self.view.profiles[*profile].status = status.clone();
            }
        }
        for (seed, conditions) in &plan.seeds {
            self.view.seeds[*seed].conditions = conditions.clone();
        }
        for (name, is_guarded) in &plan.secrets {
            self.view.secrets.get_mut(name).unwrap().is_guarded = *is_guarded;
        }
        self.view.entries.retain(|entry| !removed.contains(&entry.uid));
        self.view.buckets.retain(|bucket| !ended.contains(&bucket.name));
        let here: BTreeSet<&String> = self.view.entries.iter().map(|entry| &entry.uid).collect();
        self.view.gone = plan.unknown.iter().filter(|uid| !here.contains(uid)).cloned().collect();
    }

    /// What a seed's controllers do: buckets are made, and what was released is removed.
    pub(super) fn execute(&mut self) {
        let done = |kind| {
            Some(OperationReport { kind, state: OperationState::Succeeded, description: String::new() })
        };
        for bucket in &mut self.view.buckets {
            let Some(_) = &bucket.status.seed else { continue };
            match (bucket.is_deleted, bucket.status.released_at) {
                (true, Some(_)) => bucket.status.operation = done(OperationType::Delete),
                (false, _) if !bucket.health().exists() => {
                    bucket.status.operation = done(OperationType::Create)
                }
                _ => {}
            }
        }
        for entry in &mut self.view.entries {
            match (entry.deleted_at, entry.status.released_at) {
                (Some(_), Some(_)) => entry.status.operation = done(OperationType::Delete),
                (None, _) if entry.status.seed.is_some() => {
                    let moves = entry.status.seed.as_ref() != Some(&entry.seed);
                    let kind = if moves { OperationType::Migrate } else { OperationType::Create };
                    entry.status.operation = done(kind);
                    entry.observed_generation = entry.generation;
                }
                _ => {}
            }
        }
    }

    /// Until nothing is left to be done.
    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            let plan = self.plan();
            if plan.is_done() {
                return;
            }
            self.act(&plan, || true);
            self.execute();
        }
        panic!("it never comes to rest: {:?}", self.plan());
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.view.buckets.iter().map(|bucket| bucket.name.as_str()).collect()
    }

    pub(super) fn used(&self) -> Vec<usize> {
        self.view.buckets.iter().map(|bucket| bucket.status.allocated.len()).collect()
    }

    pub(super) fn delete(&mut self, entry: usize) {
        self.view.entries[entry].deleted_at = Some(at(self.second));
    }

    /// Data of an entry of that namespace, by its record.
    pub(super) fn was_left(&mut self, name: &str, namespace: &str, bucket: &str) {
        let (namespace, bucket) = (namespace.to_owned(), bucket.to_owned());
        let left = LeftoverData { namespace, bucket, record: format!("tombstone-{name}-12345") };
        self.view.left.entry(name.to_owned()).or_default().push(left);
    }

    pub(super) fn why(&self, entry: usize) -> String {
        let operation = self.view.entries[entry].status.operation.as_ref();
        operation
            .filter(|found| found.state == OperationState::Pending)
            .map(|found| found.description.clone())
            .unwrap_or_default()
    }
}

impl HubPlan {
    pub(super) fn is_done(&self) -> bool {
        let Self {
            create,
            buckets,
            entries,
            profiles,
            seeds,
            secrets,
            access,
            waiting: _,
            moving: _,
            unknown,
            next: _,
        } = self;
        create.is_empty()
            && buckets.is_empty()
            && entries.is_empty()
            && profiles.is_empty()
            && seeds.is_empty()
            && secrets.is_empty()
            && access.is_empty()
            && unknown.is_empty()
    }
}
