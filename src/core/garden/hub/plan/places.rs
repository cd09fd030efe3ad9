//! Which entries have a place, which get one, and which buckets that takes.

use std::collections::{BTreeMap, HashMap};

use super::moves::holder;
use super::{HubPlanner, NewBucket};
use crate::Store;
use crate::bucket::GardenBucket;
use crate::entry::GardenEntry;
use crate::hub::reason::PlacementWaitReason;
use crate::name::Stem;
use crate::placement::{self, BucketCandidate, BucketHealth};
use crate::quota::room;

/// How many names a store may refuse before no more are tried.
const MOST_REFUSED: usize = 3;

impl<'v> HubPlanner<'v> {
    /// An entry that has a place keeps it: by its bucket's status, by its own annotation, or both.
    /// Of several entries of the same name only the one that has the name keeps a place, because
    /// they would share one directory.
    pub(super) fn keep_places(&mut self) {
        let by_uid: HashMap<&str, usize> =
            self.view.entries.iter().enumerate().map(|(i, entry)| (entry.uid.as_str(), i)).collect();
        // By entry: the bucket that lists it, if it is in that bucket.
        let mut listed: Vec<Option<usize>> = vec![None; self.view.entries.len()];
        for (b, bucket) in self.view.buckets.iter().enumerate() {
            for uid in &bucket.status.allocated {
                let Some(entry) = by_uid.get(uid.as_str()).copied() else {
                    if !self.view.gone.contains(uid) {
                        self.plan.unknown.insert(uid.clone());
                        self.keep(b, uid);
                    }
                    continue;
                };
                let Some(known) = self.view.entries.get(entry) else { continue };
                let is_here = match &known.bucket {
                    Some(name) => *name == bucket.name,
                    // The leader that gave it this place died before it wrote the entry. A bucket
                    // that is being deleted takes no entries.
                    None => known.deleted_at.is_none() && !bucket.is_deleted,
                };
                if let Some(place) = listed.get_mut(entry).filter(|place| is_here && place.is_none()) {
                    *place = Some(b);
                }
            }
        }
        let doubted: Vec<bool> = self.view.entries.iter().map(|entry| self.is_doubted(entry)).collect();
        self.find_holders(&listed, &doubted);
        for (e, entry) in self.view.entries.iter().enumerate() {
            if !self.holds_name(e, entry) {
                continue;
            }
            let named = entry.bucket.as_deref().and_then(|name| self.buckets.get(name).copied());
            // The directory may contain another entry's data, although this one has the name.
            let counts = doubted.get(e) == Some(&false) && self.view.left_by_another(entry).is_none();
            let says_so = counts && (entry.is_claimed || entry.placed_in == entry.bucket);
            let place = listed.get(e).copied().flatten().or(named.filter(|_| says_so));
            if let Some(b) = place {
                self.put(e, b);
            }
        }
    }

    /// Does it name a bucket in which no entry of its Seed was ever given a place? A place gives
    /// the Seed the bucket's keys, and an annotation and a finalizer prove nothing, because anyone
    /// can write them. If the Seed that may write there fits the bucket, the data is there,
    /// whatever Seed the entry names by now. A missing Seed may appear with the rest of a hub that
    /// is being restored.
    fn is_doubted(&self, entry: &GardenEntry) -> bool {
        let bucket = entry.bucket.as_deref().and_then(|name| self.buckets.get(name));
        let Some(bucket) = bucket.and_then(|b| self.view.buckets.get(*b)) else { return false };
        let is_strange = |seed: &str| {
            let misfit = self.misfit(seed, bucket);
            matches!(
                misfit,
                Some(PlacementWaitReason::OtherPlace { .. } | PlacementWaitReason::OtherProfile { .. })
            )
        };
        is_strange(&entry.seed) && holder(entry).is_none_or(is_strange)
    }

    /// An entry that a bucket lists was given its place by this hub, and so was one with the hub's
    /// finalizer; an annotation may come from a copy. What is in doubt does not count. An entry
    /// whose namespace left data there comes before others, but not before one that claims to have
    /// a place: that one's data may be there by now, so both wait for a person.
    fn find_holders(&mut self, listed: &[Option<usize>], doubted: &[bool]) {
        let view = self.view;
        let precedence = |e: usize, entry: &'v GardenEntry| {
            let is_listed = listed.get(e).is_some_and(Option::is_some);
            let counts = doubted.get(e) == Some(&false);
            let says_so = entry.bucket.is_some() && entry.placed_in == entry.bucket;
            let (created, namespace) = (entry.created_at, &entry.namespace);
            let is_barred = !entry.is_claimed && !says_so && view.left_by_another(entry).is_some();
            (!is_listed, is_barred, !(counts && entry.is_claimed), !(counts && says_so), created, namespace)
        };
        for (e, entry) in self.view.entries.iter().enumerate() {
            let holder = self.holders.entry(&entry.name).or_insert(e);
            let before = self.view.entries.get(*holder);
            if before.is_some_and(|before| precedence(e, entry) < precedence(*holder, before)) {
                *holder = e;
            }
        }
    }

    /// Does this entry have the name, and with it the directory?
    pub(super) fn holds_name(&self, e: usize, entry: &GardenEntry) -> bool {
        self.holders.get(entry.name.as_str()) == Some(&e)
    }

    fn keep(&mut self, bucket: usize, uid: &str) {
        if let Some(places) = self.places.get_mut(bucket) {
            places.push(uid.to_owned());
        }
    }

    fn put(&mut self, entry: usize, bucket: usize) {
        let Some(uid) = self.view.entries.get(entry).map(|entry| entry.uid.clone()) else { return };
        self.keep(bucket, &uid);
        if let Some(target) = self.target.get_mut(entry) {
            *target = Some(bucket);
        }
    }

    pub(super) fn wait(&mut self, entry: usize, why: PlacementWaitReason) {
        if let Some(waiting) = self.waiting.get_mut(entry) {
            *waiting = Some(why);
        }
    }

    /// Entries without a place, oldest first. One whose name another entry has, or has left data
    /// under, waits.
    fn homeless(&mut self) -> Vec<usize> {
        let mut homeless = Vec::new();
        for (e, entry) in self.view.entries.iter().enumerate() {
            if self.target.get(e).is_some_and(Option::is_some) || entry.deleted_at.is_some() {
                continue;
            }
            if !self.holds_name(e, entry) {
                let holder = self.holders.get(entry.name.as_str()).and_then(|e| self.view.entries.get(*e));
                let namespace = holder.map(|holder| holder.namespace.clone()).unwrap_or_default();
                self.wait(e, PlacementWaitReason::NameTaken { namespace });
            } else if let Some(left) = self.view.left_by_another(entry) {
                let namespace = left.namespace.clone();
                let record = format!("{}/{}", self.settings.namespace, left.record);
                self.wait(e, PlacementWaitReason::NameLeft { namespace, record });
            } else {
                homeless.push(e);
            }
        }
        let age = |e: &usize| {
            let entry = self.view.entries.get(*e);
            entry.map(|entry| (entry.created_at, &entry.namespace, &entry.name))
        };
        homeless.sort_by_cached_key(age);
        homeless
    }

    /// Entries that name a bucket and have no place there yet. Admission has checked them, but it
    /// cannot know of two that came at the same time.
    pub(super) fn take_named(&mut self) {
        for e in self.homeless() {
            let Some(name) = self.view.entries.get(e).and_then(|entry| entry.bucket.clone()) else {
                continue;
            };
            let found = self.buckets.get(name.as_str()).copied();
            let Some((b, bucket)) = found.and_then(|b| Some((b, self.view.buckets.get(b)?))) else {
                self.wait(e, PlacementWaitReason::NoBucket { bucket: name });
                continue;
            };
            if let Some(why) = self.view.entries.get(e).and_then(|entry| self.misfit(&entry.seed, bucket)) {
                self.wait(e, why);
                continue;
            }
            match self.limit(bucket) {
                _ if bucket.is_deleted => self.wait(e, PlacementWaitReason::BucketGoing { bucket: name }),
                Some(limit) if room(Some(limit), self.used(b)) == 0 => {
                    let used = self.used(b);
                    self.wait(e, PlacementWaitReason::Full { bucket: name, used, limit });
                }
                _ => self.put(e, b),
            }
        }
    }

    /// Why an entry of a Seed cannot go into the bucket that it names. An entry that admission
    /// would have refused, but was created without it, waits.
    pub(super) fn misfit(&self, seed: &str, bucket: &GardenBucket) -> Option<PlacementWaitReason> {
        let named = || seed.to_owned();
        let (profile, store) = match self.homes.get(seed) {
            None => return Some(PlacementWaitReason::NoSeed { seed: named() }),
            Some(Err(why)) => return Some(why.clone()),
            Some(Ok((profile, store))) => (self.view.profiles.get(*profile)?, store),
        };
        if bucket.store.place != store.place {
            let (at, place) = (bucket.store.place.clone(), store.place.clone());
            return Some(PlacementWaitReason::OtherPlace {
                bucket: bucket.name.clone(),
                at,
                seed: named(),
                place,
            });
        }
        let profile = &profile.profile.name;
        let owner = bucket.profile.clone().filter(|owner| owner != profile)?;
        let (bucket, profile) = (bucket.name.clone(), profile.clone());
        Some(PlacementWaitReason::OtherProfile { bucket, owner, seed: named(), profile })
    }

    /// Buckets of a profile in one place that can take entries, now or later.
    pub(super) fn candidates(&self, profile: usize, store: &Store) -> Vec<(usize, BucketCandidate<'v>)> {
        let Some(owner) = self.view.profiles.get(profile) else { return Vec::new() };
        let of = self.view.buckets.iter().enumerate().filter(|(_, bucket)| {
            !bucket.is_deleted
                && bucket.profile.as_ref() == Some(&owner.profile.name)
                && bucket.store.place == store.place
        });
        of.map(|(b, bucket)| {
            let candidate = BucketCandidate {
                name: &bucket.name,
                created_at: bucket.created_at,
                standing: bucket.health(),
                used: self.used(b),
                limit: self.limit(bucket),
            };
            (b, candidate)
        })
        .collect()
    }

    pub(super) fn place_waiting(&mut self) {
        let mut candidates: HashMap<(usize, Store), Vec<(usize, BucketCandidate<'v>)>> = HashMap::new();
        for e in self.homeless() {
            let Some(entry) = self.view.entries.get(e).filter(|entry| entry.bucket.is_none()) else {
                continue;
            };
            let (profile, store) = match self.homes.get(entry.seed.as_str()) {
                None => {
                    self.wait(e, PlacementWaitReason::NoSeed { seed: entry.seed.clone() });
                    continue;
                }
                Some(Err(why)) => {
                    let why = why.clone();
                    self.wait(e, why);
                    continue;
                }
                Some(Ok(home)) => home.clone(),
            };
            let key = (profile, store);
            if !candidates.contains_key(&key) {
                candidates.insert(key.clone(), self.candidates(key.0, &key.1));
            }
            let Some(open) = candidates.get_mut(&key) else { continue };
            let line: Vec<BucketCandidate> = open.iter().map(|(_, candidate)| *candidate).collect();
            match placement::choose(&line).and_then(|index| open.get_mut(index)) {
                Some((b, candidate)) => {
                    candidate.used += 1;
                    let b = *b;
                    self.put(e, b);
                }
                None => self.wait(e, PlacementWaitReason::Making),
            }
        }
    }

    /// The buckets that profiles want, and those that waiting entries need.
    pub(super) fn make_buckets(&mut self) {
        let mut needed: BTreeMap<(usize, Store), Vec<usize>> = BTreeMap::new();
        for (profile, stores) in self.wanted.iter().enumerate() {
            needed.extend(stores.iter().flatten().map(|store| ((profile, store.clone()), Vec::new())));
        }
        for (e, _) in
            self.waiting.iter().enumerate().filter(|(_, why)| **why == Some(PlacementWaitReason::Making))
        {
            let Some(entry) = self.view.entries.get(e) else { continue };
            if let Some(Ok(home)) = self.homes.get(entry.seed.as_str()) {
                needed.entry(home.clone()).or_default().push(e);
            }
        }
        for ((profile, store), entries) in needed {
            let candidates = self.candidates(profile, &store);
            let line: Vec<BucketCandidate> = candidates.iter().map(|(_, candidate)| *candidate).collect();
            let limit = self.settings.quota.limit(&store.place.provider);
            let missing = placement::missing(&line, entries.len(), limit);
            let obstacle = self.obstacle(&store, &candidates, missing);
            match &obstacle {
                Some(why) => entries.iter().for_each(|e| self.wait(*e, why.clone())),
                None => self.make(profile, &store, missing),
            }
        }
    }

    /// Why it does not help to wait for these buckets and to create `missing` more.
    fn obstacle(
        &self,
        store: &Store,
        candidates: &[(usize, BucketCandidate)],
        missing: usize,
    ) -> Option<PlacementWaitReason> {
        let of = |standing: &[BucketHealth]| -> Vec<&'v GardenBucket> {
            let those = candidates.iter().filter(|(_, one)| standing.contains(&one.standing));
            those.filter_map(|(b, _)| self.view.buckets.get(*b)).collect()
        };
        let bad = of(&[BucketHealth::Stuck, BucketHealth::Refused]);
        let (stuck, refused) = (of(&[BucketHealth::Stuck]), of(&[BucketHealth::Refused]));
        if let Some(full) = bad.iter().find(|bucket| bucket.is_exhausted) {
            return Some(PlacementWaitReason::Exhausted { bucket: full.name.clone() });
        }
        if let Some(last) = refused.last().filter(|_| missing > 0 && refused.len() >= MOST_REFUSED) {
            return Some(PlacementWaitReason::Refused { bucket: last.name.clone() });
        }
        if let Some((_, fault)) = self.missing_credentials(&store.secret).filter(|_| missing > 0) {
            return Some(PlacementWaitReason::NoCredentials { fault });
        }
        let stuck = stuck.first()?;
        let error = stuck.error.clone().unwrap_or_else(|| "it is tried again".to_owned());
        Some(PlacementWaitReason::Stuck { bucket: stuck.name.clone(), error })
    }

    fn make(&mut self, profile: usize, store: &Store, missing: usize) {
        let Some(owner) = self.view.profiles.get(profile) else { return };
        let stem = Stem::new(&owner.profile.name, &store.place, &owner.uid);
        let mut last = self.last_ordinal(profile, &store.place.region);
        for _ in 0..missing {
            last += 1;
            self.plan.create.push(NewBucket { name: stem.name(last), profile, store: store.clone() });
        }
    }

    /// Highest ordinal that a bucket of the profile has or had in the region.
    pub(super) fn last_ordinal(&self, profile: usize, region: &str) -> u32 {
        let Some(owner) = self.view.profiles.get(profile) else { return 0 };
        let known = self.view.buckets.iter().filter_map(|bucket| {
            let provider = bucket.store.place.provider.as_str();
            Stem { profile: &owner.profile.name, provider, region, uid: &owner.uid }.ordinal(&bucket.name)
        });
        known.chain(owner.status.last_ordinals.get(region).copied()).max().unwrap_or(0)
    }
}
