use super::*;
use crate::fence::{HandoverReason, WaitingFor};

/// An entry that is made at `one`, and a second seed.
fn settled() -> (World, usize) {
    let mut world = World::new(None, &["one", "two"]);
    let entry = world.entry("e", None);
    world.settle();
    (world, entry)
}

fn name_another(world: &mut World, entry: usize, seed: &str) {
    let entry = &mut world.view.entries[entry];
    entry.seed = seed.to_owned();
    entry.generation = entry.generation.map(|generation| generation + 1);
}

/// One plan, with nobody answering.
fn decide(world: &mut World) -> HubPlan {
    let plan = world.plan();
    world.act(&plan, || true);
    plan
}

fn holder(world: &World, entry: usize) -> Option<&str> {
    world.view.entries[entry].status.seed.as_deref()
}

#[test]
fn an_entry_moves_when_the_one_before_has_said_that_it_writes_no_more() {
    let (mut world, entry) = settled();
    assert_eq!(world.view.entries[entry].writer.as_deref(), Some("one"));
    name_another(&mut world, entry, "two");
    let plan = decide(&mut world);
    assert_eq!((holder(&world, entry), &plan.moving[..]), (Some("one"), &[(entry, WaitingFor::Answer)][..]));
    assert!(
        world.why(entry).starts_with("to Seed two: Seed one is to write no more first"),
        "{}",
        world.why(entry)
    );
    assert!(world.plan().is_done(), "and nothing is written again meanwhile");

    // What it says of its progress stays.
    let working = OperationReport {
        kind: OperationType::Migrate,
        state: OperationState::Processing,
        description: "1 backup still runs".to_owned(),
    };
    world.view.entries[entry].status.operation = Some(working.clone());
    assert!(world.plan().is_done());
    // An answer to something else is none.
    let answer = OperationReport { state: OperationState::Succeeded, ..working };
    world.view.entries[entry].status.operation = Some(answer.clone());
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"));
    assert!(!world.why(entry).is_empty());

    world.view.entries[entry].status.operation = Some(answer);
    world.view.entries[entry].observed_generation = world.view.entries[entry].generation;
    let plan = decide(&mut world);
    let handed = plan.entries[0].handed.as_ref().unwrap();
    assert_eq!(
        (handed.from.as_str(), handed.to.as_str(), handed.because),
        ("one", "two", HandoverReason::LetGo)
    );
    let moved = &world.view.entries[entry];
    assert_eq!((holder(&world, entry), &moved.status.operation), (Some("two"), &None));
    assert_eq!(moved.writer.as_deref(), Some("two"));
}

#[test]
fn a_move_that_is_taken_back_leaves_no_trace() {
    let (mut world, entry) = settled();
    name_another(&mut world, entry, "two");
    decide(&mut world);
    name_another(&mut world, entry, "one");
    let plan = decide(&mut world);
    assert_eq!((holder(&world, entry), plan.moving.len()), (Some("one"), 0));
    assert_eq!(world.view.entries[entry].status.operation, None);
}

#[test]
fn what_was_never_made_moves_at_once() {
    let mut world = World::new(None, &["one", "two"]);
    world.settle();
    let entry = world.entry("e", None);
    decide(&mut world);
    let found = &world.view.entries[entry];
    assert_eq!((holder(&world, entry), &found.writer), (Some("one"), &None));
    name_another(&mut world, entry, "two");
    let plan = decide(&mut world);
    assert_eq!(plan.entries[0].handed.as_ref().unwrap().because, HandoverReason::NeverMade);
    assert_eq!(holder(&world, entry), Some("two"));
}

#[test]
fn who_is_silent_is_waited_for_until_somebody_speaks() {
    let silent = || {
        let (mut world, entry) = settled();
        name_another(&mut world, entry, "two");
        decide(&mut world);
        world.pass(60);
        world.view.seeds[0].member.seen = Some(at(0));
        let plan = decide(&mut world);
        assert_eq!(
            (holder(&world, entry), &plan.moving[..]),
            (Some("one"), &[(entry, WaitingFor::Sign)][..])
        );
        assert!(world.why(entry).contains("may be writing there still"), "{}", world.why(entry));
        assert!(world.plan().is_done());
        (world, entry)
    };
    let because = |world: &mut World| {
        let plan = decide(world);
        plan.entries[0].handed.as_ref().map(|handed| handed.because)
    };
    // Its cluster is gone.
    let (mut world, entry) = silent();
    world.view.seeds.remove(0);
    assert!(world.plan().entries.is_empty(), "it may be made anew in a moment");
    world.view.unregistered.insert("one".to_owned());
    assert_eq!(because(&mut world), Some(HandoverReason::Unregistered));
    assert_eq!(holder(&world, entry), Some("two"));

    // In a hub that is being restored no Seed is there yet.
    let (mut world, entry) = silent();
    world.view.seeds.clear();
    let plan = decide(&mut world);
    assert!(plan.entries.iter().all(|entry| entry.handed.is_none()));
    assert_eq!(holder(&world, entry), Some("one"));

    // Words, and no others; for this move alone.
    let (mut world, entry) = silent();
    world.view.entries[entry].take_over = Some("true".to_owned());
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"));
    assert!(world.why(entry).ends_with("(in words; what is there is none)"), "{}", world.why(entry));
    world.view.entries[entry].take_over = Some("it burned down".to_owned());
    assert_eq!(because(&mut world), Some(HandoverReason::TakenOver));
    assert_eq!(holder(&world, entry), Some("two"));
    decide(&mut world);
    assert_eq!(world.view.entries[entry].take_over, None);
    // It is for a move that is under way.
    world.view.entries[entry].take_over = Some("in advance".to_owned());
    decide(&mut world);
    assert_eq!(world.view.entries[entry].take_over, None);

    // It was away for a while.
    let (mut world, entry) = silent();
    world.pass(0);
    decide(&mut world);
    assert!(world.why(entry).contains("is to write no more first"), "{}", world.why(entry));
}

/// It was refused its directory, say; and was to go where it could not, so that its cluster was
/// asked. That this one lets go of nothing must not pass for having made it.
#[test]
fn what_was_never_made_goes_on_and_is_not_taken_for_made() {
    let (mut world, entry) = settled();
    name_another(&mut world, entry, "two");
    let found = &mut world.view.entries[entry];
    (found.observed_generation, found.writer) = (None, None);
    found.status.operation = Some(OperationReport {
        kind: OperationType::Migrate,
        state: OperationState::Succeeded,
        description: String::new(),
    });
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("two"));
    assert_eq!(world.view.entries[entry].writer, None);
}

/// Nobody fights over a status with one that does not know what it is asked.
#[test]
fn controllers_of_an_earlier_version_are_not_talked_over() {
    let (mut world, entry) = settled();
    name_another(&mut world, entry, "two");
    decide(&mut world);
    let found = &mut world.view.entries[entry];
    found.observed_generation = found.generation;
    found.status.operation = Some(OperationReport {
        kind: OperationType::Reconcile,
        state: OperationState::Succeeded,
        description: String::new(),
    });
    let plan = world.plan();
    assert_eq!(plan.moving, [(entry, WaitingFor::Upgrade)]);
    assert!(plan.is_done(), "{plan:?}");
}

/// It was restored before anybody moved, and its cluster has not reported since.
#[test]
fn in_a_hub_that_lost_its_statuses_what_was_made_is_not_taken_for_new() {
    let (mut world, entry) = settled();
    world.view.entries[entry].status = EntryStatus::default();
    world.view.entries[entry].observed_generation = None;
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"));
    name_another(&mut world, entry, "two");
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"));
    world.execute();
    world.settle();
    assert_eq!(holder(&world, entry), Some("two"));
}

#[test]
fn a_hub_that_lost_its_statuses_waits_for_who_may_be_writing() {
    let (mut world, entry) = settled();
    name_another(&mut world, entry, "two");
    decide(&mut world);
    let restored = &mut world.view.entries[entry];
    restored.status = EntryStatus::default();
    (restored.observed_generation, restored.generation, restored.is_claimed) = (None, Some(1), false);
    world.view.buckets[0].status = BucketStatus::default();
    for _ in 0..4 {
        decide(&mut world);
        assert_eq!(holder(&world, entry), Some("one"));
    }
    assert_eq!(world.plan().moving, [(entry, WaitingFor::Answer)]);
    world.execute();
    world.settle();
    assert_eq!(holder(&world, entry), Some("two"));
}

#[test]
fn whoever_holds_an_entry_that_is_deleted_on_its_way_acts_on_it() {
    let (mut world, entry) = settled();
    name_another(&mut world, entry, "two");
    decide(&mut world);
    world.delete(entry);
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"), "in grace");
    world.pass(HOUR + 1);
    decide(&mut world);
    assert_eq!(holder(&world, entry), Some("one"), "to remove it");
    let mut away = world.clone();
    world.execute();
    world.settle();
    assert!(world.view.entries.is_empty());
    // It is silent: the other one removes it.
    away.pass(60);
    away.view.seeds[0].member.seen = Some(at(0));
    decide(&mut away);
    assert_eq!(holder(&away, entry), Some("two"));
    away.execute();
    away.settle();
    assert!(away.view.entries.is_empty());
}

/// Admission was away when they came.
#[test]
fn a_bucket_of_others_takes_nobody_in() {
    let mut world = World::new(None, &["one"]);
    world.settle();
    let place = ProviderRegion { provider: "aws".to_owned(), region: "us-west-2".to_owned() };
    let elsewhere = Store { place, secret: secret(), ..Store::default() };
    let here = world.view.buckets[0].store.clone();
    for (name, profile, store) in [
        ("far", None, elsewhere),
        ("others", Some("other".to_owned()), here.clone()),
        ("ours", Some("packet".to_owned()), here),
    ] {
        world.view.buckets.push(GardenBucket {
            name: name.to_owned(),
            profile,
            store,
            ..GardenBucket::default()
        });
    }
    let far = world.entry("far", Some("far"));
    let others = world.entry("others", Some("others"));
    let ours = world.entry("ours", Some("ours"));
    let lost = world.entry("lost", Some("ours"));
    world.view.entries[lost].seed = "nobody".to_owned();
    world.settle();
    let way_out = "make another entry without spec.bucketName, and one is chosen";
    let wanted = [
        (
            far,
            format!(
                "BackupBucket far is at aws us-west-2, and backups of Seed one go to aws eu-west-1: {way_out}"
            ),
        ),
        (
            others,
            format!(
                "BackupBucket others is for clusters of CloudProfile other, and Seed one is of packet: {way_out}"
            ),
        ),
        (lost, "no Seed nobody is registered: create it, or name another one".to_owned()),
    ];
    for (entry, why) in wanted {
        assert_eq!(world.why(entry), why);
        assert!(!world.view.entries[entry].is_claimed && world.view.entries[entry].status.seed.is_none());
    }
    assert!(world.view.entries[ours].is_claimed);
    // Who has its place keeps it, wherever its seed is by now.
    let mut restored = world.clone();
    restored.view.seeds[0].member.seed.region = "nowhere".to_owned();
    restored.view.profiles[0].profile.backup.as_mut().unwrap().region = None;
    restored.view.entries[ours].is_claimed = false;
    restored.view.entries[ours].status = EntryStatus::default();
    restored.view.entries[ours].observed_generation = None;
    let plan = restored.plan();
    restored.act(&plan, || true);
    assert!(restored.view.entries[ours].is_claimed);
}

#[test]
fn an_entry_does_not_move_to_a_seed_of_another_store() {
    let (mut world, entry) = settled();
    world.register("far");
    world.view.seeds.last_mut().unwrap().member.seed.profile = "none".to_owned();
    let allowed =
        |world: &World, seed: &str| world.view.access.get(seed).cloned().unwrap_or_default().secrets;
    for seed in ["far", "nobody"] {
        name_another(&mut world, entry, seed);
        decide(&mut world);
        assert_eq!(holder(&world, entry), Some("one"), "{seed}");
        assert!(allowed(&world, seed).is_empty(), "{seed}");
        // Whoever has it writes no more, and says so: it waits all the same, and nobody writes in
        // turns.
        let operation = OperationReport {
            kind: OperationType::Migrate,
            state: OperationState::Succeeded,
            description: String::new(),
        };
        let found = &mut world.view.entries[entry];
        found.status.operation = Some(operation.clone());
        found.observed_generation = found.generation;
        decide(&mut world);
        assert_eq!(holder(&world, entry), Some("one"), "{seed}");
        assert_eq!(world.view.entries[entry].status.operation, Some(operation), "{seed}");
    }
}

/// Whoever names a bucket has no place there yet.
#[test]
fn an_entry_without_a_place_gives_its_seed_no_keys() {
    let (mut world, entry) = settled();
    world.register("far");
    world.view.seeds.last_mut().unwrap().member.seed.profile = "none".to_owned();
    let bucket = world.view.entries[entry].bucket.clone();
    let stranger = world.entry("stranger", bucket.as_deref());
    world.view.entries[stranger].seed = "far".to_owned();
    decide(&mut world);
    assert!(world.view.access["far"].secrets.is_empty());
    assert!(!world.view.access["one"].secrets.is_empty());
}
