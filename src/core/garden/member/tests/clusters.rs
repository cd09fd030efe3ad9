//! Three clusters that run the plan, one step at a time, against a hub that runs the fence. Watches
//! are late, processes die between any two steps, credentials come late, clients begin a backup a
//! while after they saw a location open, and a hub loses its statuses.

mod world;

use super::*;
use world::{Event, World};

/// A pass may end between the opening of a location and whatever comes after: quiet that began
/// before must not count for the next move.
#[test]
fn quiet_from_before_a_location_was_opened_does_not_count() {
    use Event::{Credentials, Decide, Execute, Finish, Look, Name, Pass, Start};
    let mut world = World::new();
    let hear = [Decide(false), Look(0), Finish(0)];
    let made = [&hear[..], &[Execute(0), Finish(0)], &hear, &hear].concat();
    let closed = [&[Name(1)][..], &hear, &hear, &[Pass(9)]].concat();
    let opened = [&[Credentials(0, false), Name(0)][..], &hear].concat();
    let closed_again = [&[Name(1), Credentials(0, true)][..], &hear, &[Pass(1), Finish(0)]].concat();
    for event in made {
        world.happen(event);
    }
    assert_eq!(world.writers(), [0]);
    for event in [closed, opened].concat() {
        world.happen(event);
    }
    assert_eq!(world.clusters[0].access, Some(LocationAccess::ReadWrite));
    let elsewhere = [Decide(false), Look(1), Finish(1), Execute(1), Finish(1), Look(1), Finish(1)];
    for event in [&closed_again[..], &elsewhere, &[Start(0)]].concat() {
        world.happen(event);
        assert!(world.writers().len() <= 1, "{event:?}: {world:?}");
    }
}

#[derive(Clone, Copy, Default)]
struct Allowed {
    forces: bool,
    restores: bool,
    deletes: bool,
}

fn events(allowed: Allowed) -> impl Strategy<Value = Vec<Event>> {
    let cluster = || 0usize..3;
    let common = prop_oneof![
        3 => (1i64..12).prop_map(Event::Pass),
        2 => cluster().prop_map(Event::Name),
        6 => cluster().prop_map(Event::Look),
        6 => cluster().prop_map(Event::Act),
        6 => cluster().prop_map(Event::Finish),
        1 => cluster().prop_map(Event::Crash),
        3 => cluster().prop_map(Event::Execute),
        1 => (cluster(), any::<bool>()).prop_map(|(cluster, known)| Event::Credentials(cluster, known)),
        3 => cluster().prop_map(Event::Start),
        2 => cluster().prop_map(Event::End),
        6 => prop::bool::weighted(0.2).prop_map(Event::Decide),
    ];
    let forces = prop_oneof![Just(Event::TakeOver), cluster().prop_map(Event::Unregister)];
    let deletes = prop_oneof![Just(Event::Delete), Just(Event::Release)];
    let one = prop_oneof![
        40 => common,
        2 * u32::from(allowed.forces) => forces,
        5 * u32::from(allowed.restores) => Just(Event::Restore),
        2 * u32::from(allowed.deletes) => deletes,
    ];
    prop::collection::vec(one, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// However late each of them hears of the hub, and wherever a process dies: two clusters never
    /// write, unless a person has said that one of them does not; and the one that is wanted does
    /// in the end.
    #[test]
    fn one_cluster_writes_at_any_time(events in events(Allowed { forces: true, ..Allowed::default() })) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            if !world.is_forced {
                prop_assert!(world.writers().len() <= 1, "{:?}", world);
            }
        }
        world.settle();
        let record = world.record;
        let settled = (record.holder, record.noted, record.moving);
        prop_assert_eq!(settled, (Some(record.wanted), Some(record.wanted), None));
        prop_assert_eq!(world.writers(), [record.wanted], "{:?}", world);
    }

    /// The same of a hub that loses its statuses now and then, with every answer in them.
    #[test]
    fn a_hub_that_lost_its_statuses_knows_who_writes(
        events in events(Allowed { restores: true, ..Allowed::default() })
    ) {
        let mut world = World::new();
        for event in events {
            // Before the writer was noted the hub cannot know it.
            let was_made = world.record.observed.is_some();
            if matches!(event, Event::Restore) && was_made && world.record.noted != world.record.holder {
                continue;
            }
            world.happen(event);
            prop_assert!(world.writers().len() <= 1, "{:?}", world);
        }
        world.settle();
        prop_assert_eq!(world.writers(), [world.record.wanted], "{:?}", world);
    }

    /// Data is removed by the seed that the hub names, after the hub has released it, and by no
    /// other; and in the end it is gone, and the hub knows.
    #[test]
    fn data_goes_after_its_release_and_by_the_seed_that_the_hub_names(
        events in events(Allowed { deletes: true, ..Allowed::default() })
    ) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            prop_assert!(world.writers().len() <= 1, "{:?}", world);
            for (index, cluster) in world.clusters.iter().enumerate() {
                let may = world.record.is_released && world.record.holder == Some(index);
                prop_assert!(!cluster.has_removed || may, "{:?}", world);
            }
        }
        world.settle();
        if world.record.is_released && world.record.holder.is_some() {
            world.settle();
            prop_assert!(world.record.is_removed, "{:?}", world);
            prop_assert_eq!(world.writers(), Vec::<usize>::new(), "{:?}", world);
        }
    }
}
