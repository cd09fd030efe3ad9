//! Which credentials each seed may read: those of the buckets that it acts on, and those that its
//! backups need: the bucket's, or those of its entries if locations have keys of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::HubPlanner;
use super::moves::holder;
use crate::bucket::GardenBucket;
use crate::entry::GardenEntry;
use crate::hub::view::SeedAccess;
use crate::location_keys::secret_name;
use crate::store::LocationKeyMode;

impl<'v> HubPlanner<'v> {
    /// By the plan and by the present state, so that a seed can read the Secret before it is
    /// assigned the bucket.
    pub(super) fn give_access(&mut self) {
        let mut wanted: BTreeMap<&str, BTreeSet<String>> =
            self.members().map(|member| (member.seed.name.as_str(), BTreeSet::new())).collect();
        let of_bucket = |bucket: &GardenBucket| {
            let secret = &bucket.store.secret;
            (secret.namespace == self.settings.namespace).then(|| secret.name.clone())
        };
        let of_entry = |entry: &GardenEntry, bucket: &GardenBucket| match bucket.store.config.location_keys {
            Some(LocationKeyMode::Scoped) => Some(secret_name(&entry.name, &entry.uid)),
            Some(LocationKeyMode::Shared) | None => of_bucket(bucket),
        };
        let mut give = |seed: Option<&str>, secret: Option<String>| {
            if let Some(secrets) = seed.and_then(|seed| wanted.get_mut(seed)) {
                secrets.extend(secret);
            }
        };
        for bucket in &self.view.buckets {
            give(bucket.status.seed.as_deref(), of_bucket(bucket));
        }
        for planned in &self.plan.buckets {
            let Some(bucket) = self.view.buckets.get(planned.bucket) else { continue };
            give(planned.status.as_ref().and_then(|status| status.seed.as_deref()), of_bucket(bucket));
        }
        // The buckets in which they have a place, not those that they name.
        let bucket_of = |e: usize| self.view.buckets.get(self.target.get(e).copied().flatten()?);
        for (e, entry) in self.view.entries.iter().enumerate() {
            let Some(bucket) = bucket_of(e) else { continue };
            let is_fit = holder(entry) == Some(&entry.seed) || self.unfit(e, entry).is_none();
            let secret = of_entry(entry, bucket);
            give(Some(&entry.seed).filter(|_| is_fit).map(String::as_str), secret.clone());
            give(entry.status.seed.as_deref(), secret);
        }
        for planned in &self.plan.entries {
            let (Some(bucket), Some(entry)) =
                (bucket_of(planned.entry), self.view.entries.get(planned.entry))
            else {
                continue;
            };
            let seed = planned.status.as_ref().and_then(|status| status.seed.as_deref());
            give(seed, of_entry(entry, bucket));
        }
        let mut access = Vec::new();
        for (seed, secrets) in wanted {
            let wanted = SeedAccess { secrets, is_bound: true };
            if self.view.access.get(seed) != Some(&wanted) {
                access.push((seed.to_owned(), Some(wanted.secrets)));
            }
        }
        let is_known = |name: &String| self.members().any(|member| member.seed.name == *name);
        let strays = self.view.access.keys().filter(|name| !is_known(name));
        access.extend(strays.map(|name| (name.clone(), None)));
        self.plan.access = access;
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::assignment::SeedHealth;
    use crate::bucket::BucketStatus;
    use crate::entry::EntryStatus;
    use crate::hub::{HubPlan, HubSettings, HubView, ProfileState, SeedState, plan};
    use crate::{Profile, ProfileBackupSettings, ProviderRegion, SecretRef, Seed, Store};

    fn bucket(name: &str, namespace: &str, seed: Option<&str>) -> GardenBucket {
        let place = ProviderRegion { provider: "aws".to_owned(), region: "r".to_owned() };
        let secret = SecretRef { name: format!("{name}-keys"), namespace: namespace.to_owned() };
        GardenBucket {
            name: name.to_owned(),
            is_claimed: true,
            store: Store { place, secret, ..Store::default() },
            status: BucketStatus { seed: seed.map(str::to_owned), ..BucketStatus::default() },
            ..GardenBucket::default()
        }
    }

    fn entry(name: &str, bucket: &str, seed: &str, acts: &str) -> GardenEntry {
        GardenEntry {
            name: name.to_owned(),
            uid: name.to_owned(),
            is_claimed: true,
            seed: seed.to_owned(),
            bucket: Some(bucket.to_owned()),
            placed_in: Some(bucket.to_owned()),
            status: EntryStatus { seed: Some(acts.to_owned()), ..EntryStatus::default() },
            ..GardenEntry::default()
        }
    }

    fn seed(name: &str) -> SeedState {
        let (name, profile, region) = (name.to_owned(), "main".to_owned(), "r".to_owned());
        let seed = Seed { name, profile, region, ..Seed::default() };
        SeedState { member: SeedHealth { seed, ..SeedHealth::default() }, ..SeedState::default() }
    }

    fn profile() -> ProfileState {
        let secret = Some(SecretRef { name: "main-keys".to_owned(), namespace: "garden".to_owned() });
        let profile = Profile {
            name: "main".to_owned(),
            provider: "aws".to_owned(),
            regions: vec!["r".to_owned()],
            backup: Some(ProfileBackupSettings { secret, ..ProfileBackupSettings::default() }),
            ..Profile::default()
        };
        ProfileState { profile, ..ProfileState::default() }
    }

    fn decided(view: &HubView) -> HubPlan {
        let settings = HubSettings { namespace: "garden".to_owned(), ..HubSettings::default() };
        plan(view, &settings, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn each_seed_reads_what_it_acts_on_or_backs_up_into_and_nothing_else() {
        let mut view = HubView {
            profiles: vec![profile()],
            seeds: ["acts", "owns", "was", "idle"].map(seed).into(),
            buckets: vec![
                bucket("made", "garden", Some("acts")),
                bucket("used", "garden", None),
                bucket("nobodys", "garden", Some("gone")),
                bucket("strange", "kube-system", Some("acts")),
            ],
            entries: vec![entry("one", "used", "owns", "was")],
            ..HubView::default()
        };
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let wanted = [
            ("acts", names(&["made-keys"])),
            ("idle", names(&[])),
            ("owns", names(&["used-keys"])),
            ("was", names(&["used-keys"])),
        ];
        let wanted = wanted.map(|(seed, secrets)| (seed.to_owned(), secrets));
        assert_eq!(decided(&view).access, wanted);

        view.buckets[1].store.config.location_keys = Some(LocationKeyMode::Scoped);
        let own = names(&["location-keys-one-one"]);
        let scoped =
            [("acts", names(&["made-keys"])), ("idle", names(&[])), ("owns", own.clone()), ("was", own)];
        let scoped = scoped.map(|(seed, secrets)| (seed.to_owned(), secrets));
        assert_eq!(decided(&view).access, scoped, "who has a directory there does not read the bucket's");
        view.buckets[1].store.config.location_keys = None;

        for (seed, secrets) in wanted {
            let secrets = secrets.unwrap_or_default();
            view.access.insert(seed, SeedAccess { secrets, is_bound: true });
        }
        assert_eq!(decided(&view).access, []);
        view.access.get_mut("idle").unwrap().is_bound = false;
        view.access.insert("gone".to_owned(), SeedAccess::default());
        assert_eq!(decided(&view).access, [("idle".to_owned(), names(&[])), ("gone".to_owned(), None)]);
    }
}
