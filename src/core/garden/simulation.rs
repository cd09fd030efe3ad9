//! Simulates the hub: applies its plans as if every one succeeded, until there is nothing left to
//! decide.

use jiff::Timestamp;

use super::bucket::GardenBucket;
use super::hub::{HubPlan, HubSettings, HubView, PlacementWaitReason, plan};
use super::operation::{OperationReport, OperationState, OperationType};

/// Each plan creates a bucket or places an entry, and the rest follows. More rounds than this mean
/// that it does not end.
const ROUNDS_PER_OBJECT: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationResult {
    pub view: HubView,
    /// Names of buckets that would be created.
    pub made: Vec<String>,
    /// Entries that stay without a place, as indices into the view's.
    pub waiting: Vec<(usize, PlacementWaitReason)>,
}

pub fn simulate(mut view: HubView, settings: &HubSettings, now: Timestamp) -> SimulationResult {
    let (mut made, mut waiting) = (Vec::new(), Vec::new());
    let rounds = ROUNDS_PER_OBJECT * (view.entries.len() + view.seeds.len() + view.profiles.len() + 1);
    for _ in 0..rounds {
        let decided = plan(&view, settings, now);
        waiting.clone_from(&decided.waiting);
        let before = view.clone();
        carry_out(&mut view, decided, &mut made, now);
        if view == before {
            break;
        }
    }
    SimulationResult { view, made, waiting }
}

fn carry_out(view: &mut HubView, decided: HubPlan, made: &mut Vec<String>, now: Timestamp) {
    for bucket in decided.buckets {
        let Some(found) = view.buckets.get_mut(bucket.bucket) else { continue };
        found.is_claimed |= bucket.claim;
        if let Some(status) = bucket.status {
            found.status = status;
        }
    }
    for entry in decided.entries {
        let name = entry.claim.and_then(|bucket| view.buckets.get(bucket)).map(|bucket| bucket.name.clone());
        let Some(found) = view.entries.get_mut(entry.entry) else { continue };
        if name.is_some() {
            found.is_claimed = true;
            found.placed_in.clone_from(&name);
            found.bucket = name;
        }
        if let Some(status) = entry.status {
            found.status = status;
        }
        found.writer = entry.writer.or(found.writer.take());
    }
    for (profile, status) in decided.profiles {
        if let Some(found) = view.profiles.get_mut(profile) {
            found.status = status;
        }
    }
    for (seed, conditions) in decided.seeds {
        if let Some(found) = view.seeds.get_mut(seed) {
            found.conditions = conditions;
        }
    }
    for (secret, is_guarded) in decided.secrets {
        view.secrets.entry(secret).or_default().is_guarded = is_guarded;
    }
    for bucket in decided.create {
        made.push(bucket.name.clone());
        view.buckets.push(GardenBucket {
            name: bucket.name,
            created_at: now,
            profile: view.profiles.get(bucket.profile).map(|profile| profile.profile.name.clone()),
            store: bucket.store,
            ..GardenBucket::default()
        });
    }
    // The executor has created it.
    for bucket in &mut view.buckets {
        if bucket.status.operation.is_none() && bucket.status.seed.is_some() {
            bucket.status.operation = Some(OperationReport {
                kind: OperationType::Create,
                state: OperationState::Succeeded,
                description: String::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assignment::SeedHealth;
    use super::super::entry::GardenEntry;
    use super::super::hub::{ProfileState, SeedState};
    use super::super::quota::Quota;
    use super::super::{Profile, ProfileBackupSettings, SecretRef, Seed};
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn hub(provider: &str, region: Option<&str>, regions: &[&str]) -> HubView {
        let profile = Profile {
            name: "packet".into(),
            provider: "packet".into(),
            regions: regions.iter().map(|region| (*region).to_owned()).collect(),
            backup: Some(ProfileBackupSettings {
                provider: Some(provider.into()),
                region: region.map(str::to_owned),
                secret: Some(SecretRef { name: "s".into(), namespace: "garden".into() }),
                ..ProfileBackupSettings::default()
            }),
            ..Profile::default()
        };
        let infrastructure = ProfileState { profile, uid: "1234567".into(), ..ProfileState::default() };
        HubView {
            profiles: vec![infrastructure],
            secrets: [("s".to_owned(), Default::default())].into(),
            ..HubView::default()
        }
    }

    fn with(mut view: HubView, seeds: &[(&str, &str)], entries: usize) -> HubView {
        for (name, region) in seeds {
            let seed = Seed {
                name: (*name).into(),
                profile: "packet".into(),
                region: (*region).into(),
                ..Seed::default()
            };
            let member =
                SeedHealth { seed, provider: "packet".into(), seen: Some(NOW), ..SeedHealth::default() };
            view.seeds.push(SeedState { member, ..SeedState::default() });
            for i in 0..entries {
                let entry = format!("{name}--{i}");
                view.entries.push(GardenEntry {
                    namespace: "dev".into(),
                    uid: format!("uid of {entry}"),
                    name: entry,
                    seed: (*name).into(),
                    ..GardenEntry::default()
                });
            }
        }
        view
    }

    fn settings(limit: u32) -> HubSettings {
        HubSettings {
            quota: Quota::new([("aws".to_owned(), limit), ("packet".to_owned(), limit)]).unwrap(),
            namespace: "garden".into(),
            ..HubSettings::default()
        }
    }

    #[test]
    fn one_region_serves_all_until_it_is_full() {
        let view = with(hub("aws", Some("eu-west-1"), &["ewr1", "ams1"]), &[("a", "ewr1"), ("b", "ams1")], 2);
        let seen = simulate(view.clone(), &settings(10), NOW);
        assert_eq!(seen.made, ["packet-eu-west-1-12345"]);
        assert!(seen.view.entries.iter().all(|e| e.bucket.as_deref() == Some("packet-eu-west-1-12345")));
        assert_eq!(seen.waiting, []);
        let seen = simulate(view, &settings(3), NOW);
        assert_eq!(seen.made, ["packet-eu-west-1-12345", "packet-eu-west-1-12345-2"]);
        let first = |e: &&GardenEntry| e.bucket.as_deref() == Some("packet-eu-west-1-12345");
        assert_eq!(seen.view.entries.iter().filter(first).count(), 3);
    }

    #[test]
    fn regions_have_their_own_and_nobody_waits_in_silence() {
        let view = hub("packet", None, &["ewr1", "ams1"]);
        let view = with(view, &[("a", "ewr1"), ("b", "ams1"), ("c", "nrt1")], 1);
        let mut seen = simulate(view, &settings(10), NOW);
        seen.made.sort();
        assert_eq!(seen.made, ["packet-ams1-12345", "packet-ewr1-12345"]);
        assert_eq!(seen.waiting.len(), 1);
        let (entry, why) = &seen.waiting[0];
        assert_eq!((seen.view.entries[*entry].name.as_str(), why.word()), ("c--0", "NowhereToBackUp"));
    }

    #[test]
    fn without_seeds_nothing_is_made() {
        let seen = simulate(hub("aws", Some("eu-west-1"), &["ewr1"]), &settings(10), NOW);
        assert_eq!(seen.made, Vec::<String>::new());
    }
}
