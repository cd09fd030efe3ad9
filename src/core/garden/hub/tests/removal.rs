//! When data, buckets and entries go.

use super::*;

#[test]
fn data_outlives_its_entry_for_its_grace_and_leaves_a_place() {
    let mut world = World::new(Some(1), &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    world.delete(entry);
    world.settle();
    assert!(
        world.why(entry).starts_with("its data stays until 2023-11-14T23:13:20Z"),
        "{}",
        world.why(entry)
    );
    assert_eq!(world.view.entries[entry].status.earliest_deletion, Some(at(HOUR)));
    assert_eq!(world.plan().next, Some(at(40) + SignedDuration::from_millis(1)));
    world.pass(HOUR);
    assert!(world.plan().is_done());
    world.pass(1);
    let plan = world.plan();
    assert_eq!(plan.entries[0].status.as_ref().unwrap().released_at, Some(at(HOUR + 1)));
    world.act(&plan, || true);
    assert_eq!(world.used(), [1], "its objects are still there");
    world.execute();
    let plan = world.plan();
    assert_eq!(plan.entries[0].end, Some(EntryEnd::Removed));
    world.settle();
    assert_eq!(world.used(), [0]);
}

/// A hub that was restored has a status of a deletion that it knows nothing of; then its entry is
/// deleted again.
#[test]
fn leave_for_an_earlier_deletion_is_no_leave() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    world.view.entries[entry].status.released_at = Some(at(0));
    world.view.entries[entry].status.operation = Some(OperationReport {
        kind: OperationType::Delete,
        state: OperationState::Succeeded,
        description: String::new(),
    });
    world.pass(60);
    world.delete(entry);
    world.settle();
    let status = &world.view.entries[entry].status;
    assert_eq!((status.released_at, status.earliest_deletion), (None, Some(at(60 + HOUR))));
    world.pass(HOUR + 1);
    let plan = world.plan();
    assert_eq!(plan.entries[0].status.as_ref().unwrap().released_at, Some(at(61 + HOUR)));
}

#[test]
fn force_and_purpose_decide_when_data_goes() {
    let mut world = World::new(None, &["one"]);
    let (forced, tested) = (world.entry("forced", None), world.entry("tested", None));
    world.settings.grace = Grace::new([
        (GraceScope { provider: Some("aws".to_owned()), purpose: None }, SignedDuration::from_secs(HOUR)),
        (
            GraceScope { provider: Some("aws".to_owned()), purpose: Some(Purpose::Testing) },
            SignedDuration::ZERO,
        ),
    ])
    .unwrap();
    world.view.entries[tested].purpose = Some(Purpose::Testing);
    world.settle();
    world.delete(forced);
    world.delete(tested);
    world.view.entries[forced].force_deletion = Some("it is meant".to_owned());
    let released = |world: &World| -> Vec<usize> {
        let plan = world.plan();
        let goes =
            plan.entries.iter().filter(|one| one.status.as_ref().is_some_and(|s| s.released_at.is_some()));
        goes.map(|one| one.entry).collect()
    };
    assert_eq!(released(&world), [forced]);
    world.pass(1);
    assert_eq!(released(&world), [forced, tested]);
}

#[test]
fn somebody_else_removes_what_a_lost_seed_left() {
    let mut world = World::new(None, &["one", "two"]);
    let entry = world.entry("one", None);
    world.settle();
    world.delete(entry);
    world.pass(2 * HOUR);
    world.view.seeds[0].member.seen = Some(at(0));
    let plan = world.plan();
    world.act(&plan, || true);
    assert_eq!(world.view.entries[entry].status.seed.as_deref(), Some("two"));
    assert_eq!(world.view.buckets[0].status.seed.as_deref(), Some("two"));
    world.view.seeds.clear();
    assert!(world.plan().entries.is_empty(), "whoever had it may come back");
    world.view.entries[entry].forget_data = Some("it is meant".to_owned());
    assert_eq!(world.plan().entries[0].end, Some(EntryEnd::Forgotten));
}

#[test]
fn a_bucket_stays_while_entries_are_in_it_and_goes_long_after_its_seed() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    let seed = world.view.seeds.remove(0);
    world.pass(9 * HOUR);
    world.settle();
    assert_eq!(world.names().len(), 1);
    world.view.entries.remove(entry);
    world.settle();
    assert!(world.view.buckets[0].status.conditions[&ConditionType::Idle].holds);
    world.pass(HOUR);
    world.settle();
    assert_eq!(world.names().len(), 1);
    let mut back = world.clone();
    back.view.seeds.push(seed);
    back.pass(9 * HOUR);
    back.settle();
    assert_eq!(back.names().len(), 1);
    world.pass(1);
    world.register("other");
    world.view.seeds[0].member.seed.profile = "another".to_owned();
    world.settle();
    assert_eq!(world.names(), [""; 0]);
    assert_eq!(world.view.profiles[0].status.last_ordinals["eu-west-1"], 1);
    assert!(!world.view.secrets["store"].is_guarded);
    world.view.seeds[0].member.seed.profile = "packet".to_owned();
    world.settle();
    assert_eq!(world.names(), ["packet-eu-west-1-3ef42-2"], "no name is given twice");
}

/// A bucket that people delete goes when nobody is in it, and not before; then the next one is
/// made.
#[test]
fn a_deleted_bucket_waits_for_its_entries() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    world.view.buckets[0].is_deleted = true;
    world.entry("two", None);
    world.settle();
    let held = world.view.buckets[0].status.operation.as_ref().unwrap();
    assert_eq!(held.description, "1 entry is in it: it goes when they are gone");
    assert_eq!(world.used(), [1, 1]);
    world.view.entries.remove(entry);
    world.settle();
    assert_eq!(world.names(), ["packet-eu-west-1-3ef42-2"]);
}
