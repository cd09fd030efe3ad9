//! Promises that hold whatever people, seeds and crashes do.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Delete(usize),
    /// A plan of which each write happens or not.
    Act(Vec<bool>),
    Execute,
    Pass(i64),
    Leave,
    Return,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1usize..6).prop_map(Step::Create),
        (0usize..20).prop_map(Step::Delete),
        prop::collection::vec(any::<bool>(), 1..12).prop_map(Step::Act),
        Just(Step::Act(vec![true])),
        Just(Step::Execute),
        (1i64..HOUR).prop_map(Step::Pass),
        Just(Step::Leave),
        Just(Step::Return),
    ]
}

proptest! {
    /// Whatever happens, and wherever a hub dies: no bucket is ever over its limit, nobody is
    /// moved, nothing goes that was not deleted, or before its time; and in the end everybody has
    /// exactly one place.
    #[test]
    fn places_are_exact_whatever_happens(steps in prop::collection::vec(step(), 1..40), limit in 1u32..5) {
        let mut world = World::new(Some(limit), &["one"]);
        let mut homes: BTreeMap<String, String> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Create(count) => for _ in 0..count {
                    let name = format!("e{}", world.made);
                    world.entry(&name, None);
                },
                Step::Delete(index) => if let Some(entry) = world.view.entries.get_mut(index) {
                    entry.deleted_at.get_or_insert(at(world.second));
                    if !entry.is_claimed {
                        world.view.entries.remove(index);
                    }
                },
                Step::Act(happens) => {
                    let mut dice = happens.into_iter().cycle();
                    let plan = world.plan();
                    world.act(&plan, || dice.next().unwrap_or(true));
                }
                Step::Execute => world.execute(),
                Step::Pass(seconds) => world.pass(seconds),
                Step::Leave => world.view.seeds.clear(),
                Step::Return if world.view.seeds.is_empty() => world.register("one"),
                Step::Return => {}
            }
            for used in world.used() {
                prop_assert!(used <= limit as usize, "{:?}", world.used());
            }
            for entry in &world.view.entries {
                if let Some(bucket) = &entry.bucket {
                    prop_assert_eq!(homes.entry(entry.uid.clone()).or_insert_with(|| bucket.clone()), bucket);
                    let holds = |one: &&GardenBucket| one.name == *bucket && one.status.allocated.contains(&entry.uid);
                    prop_assert_eq!(world.view.buckets.iter().filter(holds).count(), 1, "{:?}", entry);
                }
                if let Some(released) = entry.status.released_at {
                    let deleted = entry.deleted_at.expect("nothing goes that was not deleted");
                    prop_assert!(released > deleted + SignedDuration::from_secs(HOUR));
                }
            }
        }
        world.view.seeds.clear();
        world.register("one");
        world.settle();
        let live = world.view.entries.iter().filter(|entry| entry.deleted_at.is_none());
        for entry in live {
            prop_assert!(entry.bucket.is_some() && entry.is_claimed, "{entry:?}");
        }
        let names: BTreeSet<&str> = world.names().into_iter().collect();
        prop_assert_eq!(names.len(), world.view.buckets.len());
        let held: usize = world.used().iter().sum();
        let here = world.view.entries.iter().filter(|entry| entry.is_claimed).count();
        prop_assert_eq!(held, here);
    }
}

proptest! {
    /// However entries are copied and deleted, and wherever a hub dies: of several of one name one
    /// has a place, only that one's data goes, and in the end every name has one.
    #[test]
    fn a_directory_has_one_entry_whatever_happens(
        steps in prop::collection::vec((step(), prop::option::of((0usize..9, any::<bool>()))), 1..40)
    ) {
        let mut world = World::new(None, &["one"]);
        for (step, copied) in steps {
            if let Some((of, is_claimed)) = copied.filter(|(of, _)| *of < world.view.entries.len()) {
                copy(&mut world, of, is_claimed);
            }
            match step {
                Step::Create(number) => drop(world.entry(&format!("e{number}"), None)),
                Step::Delete(index) => if let Some(entry) = world.view.entries.get_mut(index) {
                    entry.deleted_at.get_or_insert(at(world.second));
                    if !entry.is_claimed {
                        world.view.entries.remove(index);
                    }
                },
                Step::Act(happens) => {
                    let mut dice = happens.into_iter().cycle();
                    let plan = world.plan();
                    world.act(&plan, || dice.next().unwrap_or(true));
                }
                Step::Execute => world.execute(),
                Step::Pass(seconds) => world.pass(seconds),
                Step::Leave | Step::Return => {}
            }
            let listed: BTreeSet<&String> =
                world.view.buckets.iter().flat_map(|bucket| &bucket.status.allocated).collect();
            let placed: Vec<&GardenEntry> =
                world.view.entries.iter().filter(|entry| listed.contains(&entry.uid)).collect();
            let names: BTreeSet<&String> = placed.iter().map(|entry| &entry.name).collect();
            prop_assert_eq!(names.len(), placed.len(), "{:?}", placed);
            for entry in world.view.entries.iter().filter(|entry| entry.status.released_at.is_some()) {
                prop_assert!(listed.contains(&entry.uid), "{:?}", entry);
            }
        }
        world.execute();
        world.settle();
        for entry in world.view.entries.iter().filter(|entry| entry.deleted_at.is_none()) {
            let others = world.view.entries.iter().filter(|other| other.name == entry.name && other.uid != entry.uid);
            let is_placed = world.view.buckets.iter().any(|bucket| bucket.status.allocated.contains(&entry.uid));
            prop_assert!(is_placed || others.count() > 0, "{entry:?}");
            prop_assert_eq!(is_placed, entry.status.seed.is_some());
        }
    }
}
