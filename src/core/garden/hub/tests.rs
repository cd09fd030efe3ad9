use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::bucket::{BucketStatus, GardenBucket};
use crate::condition::ConditionType;
use crate::entry::{EntryStatus, GardenEntry};
use crate::operation::{OperationReport, OperationState, OperationType};
use crate::quota::Quota;
use crate::retention::{Grace, GraceScope, Purpose};
use crate::{ProviderRegion, SecretRef, Store};

mod moves;
mod properties;
mod removal;
mod world;

use world::{HOUR, World, at, secret};

#[test]
fn a_bucket_comes_with_the_first_seed_and_entries_find_it() {
    let mut world = World::new(None, &[]);
    let entry = world.entry("one", None);
    world.settle();
    assert_eq!(world.names(), [""; 0]);
    assert_eq!(world.why(entry), "no Seed one is registered: create it, or name another one");
    world.register("one");
    world.settle();
    assert_eq!(world.names(), ["packet-eu-west-1-3ef42"]);
    let entry = &world.view.entries[0];
    assert_eq!(entry.bucket.as_deref(), Some("packet-eu-west-1-3ef42"));
    assert_eq!(entry.status.seed.as_deref(), Some("one"));
    let bucket = &world.view.buckets[0];
    assert_eq!((bucket.status.ordinal, bucket.status.entries), (Some(1), Some(1)));
    assert_eq!(world.view.profiles[0].status.last_ordinals.get("eu-west-1"), Some(&1));
    assert!(world.view.secrets["store"].is_guarded);
    assert!(world.view.seeds[0].conditions[&ConditionType::BackupBucketsReady].holds);
}

#[test]
fn without_credentials_no_bucket_is_made_and_everybody_hears_why() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    let secret = world.view.secrets.remove("store").unwrap();
    world.settle();
    assert_eq!(world.names(), [""; 0]);
    let why = "there is no Secret garden/store: create it";
    assert_eq!(world.why(entry), format!("its bucket is not made yet: {why}"));
    let ready = &world.view.profiles[0].status.conditions[&ConditionType::BackupBucketsReady];
    assert_eq!((ready.holds, ready.message.as_str()), (false, format!("aws eu-west-1: {why}").as_str()));
    world.view.secrets.insert("store".to_owned(), secret);
    world.settle();
    assert_eq!(world.used(), [1]);
}

#[test]
fn a_limit_fills_buckets_one_after_the_other_and_keeps_what_is_placed() {
    let mut world = World::new(Some(3), &["one"]);
    for i in 0..7 {
        world.entry(&format!("e{i}"), None);
    }
    world.settle();
    assert_eq!(world.used(), [3, 3, 1]);
    assert_eq!(world.names().last(), Some(&"packet-eu-west-1-3ef42-3"));
    world.settings.quota = Quota::new([("aws".to_owned(), 2)]).unwrap();
    world.settle();
    assert_eq!(world.used(), [3, 3, 1]);
    let over = &world.view.buckets[0].status.conditions[&ConditionType::OverLimit];
    assert_eq!((over.holds, over.message.as_str()), (true, "entries 3/2: they stay, and no more come"));
    world.entry("late", None);
    world.entry("later", None);
    world.settle();
    assert_eq!(world.used(), [3, 3, 2, 1]);
}

#[test]
fn an_entry_may_name_a_bucket_that_has_room() {
    let mut world = World::new(Some(1), &["one"]);
    world.settle();
    let name = world.names()[0].to_owned();
    let first = world.entry("first", Some(&name));
    let second = world.entry("second", Some(&name));
    let nowhere = world.entry("nowhere", Some("none"));
    world.settle();
    assert!(world.view.entries[first].is_claimed && !world.view.entries[second].is_claimed);
    assert!(
        world.why(second).starts_with("BackupBucket packet-eu-west-1-3ef42 is full (1/1)"),
        "{}",
        world.why(second)
    );
    assert_eq!(world.why(nowhere), "there is no BackupBucket none");
    assert_eq!(world.used(), [1]);
}

/// Of another profile, whose keys no Seed of ours may have.
fn gold(world: &mut World) -> String {
    let store = Store {
        secret: SecretRef { name: "gold".to_owned(), ..secret() },
        ..world.view.buckets[0].store.clone()
    };
    let profile = Some("gold".to_owned());
    let gold = GardenBucket {
        name: "gold-eu-1".to_owned(),
        is_claimed: true,
        profile,
        store,
        ..GardenBucket::default()
    };
    world.view.buckets.push(gold);
    "gold-eu-1".to_owned()
}

/// An annotation and a finalizer are anybody's word, while nobody is there who could refuse them.
#[test]
fn a_forged_place_in_another_profiles_bucket_yields_nothing() {
    for (placed_in, is_claimed) in [(true, false), (false, true), (true, true)] {
        let mut world = World::new(None, &["one"]);
        world.settle();
        let gold = gold(&mut world);
        let forged = world.entry("forged", Some(&gold));
        let entry = &mut world.view.entries[forged];
        (entry.placed_in, entry.is_claimed) = (Some(gold.clone()).filter(|_| placed_in), is_claimed);
        world.settle();
        let entry = &world.view.entries[forged];
        // By this its Seed would be given the bucket's keys.
        assert_eq!((&entry.status.seed, entry.is_claimed), (&None, is_claimed));
        let why = "BackupBucket gold-eu-1 is for clusters of CloudProfile gold";
        assert!(world.why(forged).starts_with(why), "{}", world.why(forged));
        let listed = |world: &World| -> Vec<String> {
            let bucket = world.view.buckets.iter().find(|bucket| bucket.name == gold).unwrap();
            bucket.status.allocated.clone()
        };
        assert_eq!(listed(&world), [""; 0]);

        // Nor has it any effect on the name, or goes anything with it.
        let rightful = world.entry("forged", None);
        world.view.entries[rightful].namespace = "rightful".to_owned();
        world.view.entries[rightful].created_at = at(-9);
        world.settle();
        assert_eq!(world.view.entries[rightful].status.seed.as_deref(), Some("one"));
        world.view.entries.remove(rightful);
        world.settle();
        world.delete(forged);
        world.view.entries[forged].force_deletion = Some("it is meant".to_owned());
        world.settle();
        let entry = &world.view.entries[forged];
        assert_eq!((&entry.status.seed, entry.status.released_at), (&None, None));
        if is_claimed {
            assert!(world.why(forged).contains("is left alone"), "{}", world.why(forged));
        }
        world.view.entries[forged].forget_data = Some("it is meant".to_owned());
        let end = world.plan().entries.iter().find_map(|one| one.end);
        // By this record nobody of another namespace gets the name in that bucket, should it not
        // have been forged at all.
        assert_eq!(end, is_claimed.then_some(EntryEnd::Forgotten));
        assert_eq!(listed(&world), [""; 0]);
    }
}

/// Below its name there may be backups of somebody else, which would be read and removed with its
/// own.
#[test]
fn a_name_whose_data_was_left_is_given_to_nobody_of_another_namespace() {
    for (placed_in, is_claimed) in [(false, false), (true, false), (true, true)] {
        let mut world = World::new(None, &["one"]);
        world.settle();
        let bucket = world.names()[0].to_owned();
        world.was_left("left", "rightful", &bucket);
        let other = world.entry("left", Some(&bucket).filter(|_| placed_in).map(String::as_str));
        world.view.entries[other].placed_in = Some(bucket).filter(|_| placed_in);
        world.view.entries[other].is_claimed = is_claimed;
        world.settle();
        let why = "data of an entry of this name, of namespace rightful, was left in its directory: give it another name; or, once \
                   nothing is there any more, delete the record of it, ConfigMap garden/tombstone-left-12345";
        assert_eq!(world.why(other), why, "{placed_in} {is_claimed}");
        assert_eq!((world.used(), &world.view.entries[other].status.seed), (vec![0], &None));

        // It is nobody's to remove, either.
        let mut deleted = world.clone();
        deleted.delete(other);
        deleted.view.entries[other].force_deletion = Some("it is meant".to_owned());
        deleted.settle();
        assert_eq!(deleted.view.entries[other].status.released_at, None);

        // Who left it has it again, though he comes later; where another one says to have it by
        // now, nobody has it.
        let mut again = world.clone();
        again.second += 9;
        let rightful = again.entry("left", None);
        again.view.entries[rightful].namespace = "rightful".to_owned();
        again.settle();
        let seed = again.view.entries[rightful].status.seed.as_deref();
        if placed_in || is_claimed {
            assert_eq!((seed, again.used()), (None, vec![0]));
            assert!(again.why(rightful).contains("is in namespace garden-dev"), "{}", again.why(rightful));
            assert_eq!(again.why(other), why);
        } else {
            assert_eq!((seed, again.used()), (Some("one"), vec![1]));
            assert!(again.why(other).contains("is in namespace rightful"), "{}", again.why(other));
        }

        // Somebody has looked.
        world.view.left.clear();
        world.settle();
        assert_eq!(world.used(), [1]);
    }
}

/// Without any status, as a hub may come back.
fn forget_statuses(world: &mut World) {
    world.view.buckets.iter_mut().for_each(|bucket| bucket.status = BucketStatus::default());
    for entry in &mut world.view.entries {
        (entry.status, entry.observed_generation, entry.is_claimed) = (EntryStatus::default(), None, false);
    }
}

/// Before a hub told names with left data from others, somebody could be given one.
#[test]
fn who_was_given_a_name_does_not_lose_it_to_who_had_left_data_there() {
    // Whoever is older, or of one second, as a restore makes them.
    for (is_claimed, later) in [(false, 9), (false, 0), (false, -9), (true, 9), (true, 0), (true, -9)] {
        let mut world = World::new(None, &["one"]);
        let owner = world.entry("same", None);
        world.settle();
        let bucket = world.names()[0].to_owned();
        world.was_left("same", "another", &bucket);
        forget_statuses(&mut world);
        world.view.entries[owner].is_claimed = is_claimed;
        let other = world.entry("same", None);
        world.view.entries[other].namespace = "another".to_owned();
        let created = world.view.entries[owner].created_at.as_second() + later;
        world.view.entries[other].created_at = Timestamp::from_second(created).unwrap();
        world.settle();
        let what = format!("{is_claimed} {later}");
        assert_eq!((&world.view.entries[other].status.seed, world.used()), (&None, vec![0]), "{what}");
        assert!(world.why(other).contains("is in namespace garden-dev"), "{what}: {}", world.why(other));
        let why = world.why(owner);
        assert!(why.contains("of namespace another, was left"), "{what}: {why}");

        // Somebody has looked.
        world.view.left.clear();
        world.settle();
        assert_eq!(world.view.entries[owner].status.seed.as_deref(), Some("one"), "{what}");
        assert_eq!(world.used(), [1], "{what}");
    }
}

/// It waits for a Seed that fits, and its data is where it was.
#[test]
fn an_entry_that_names_a_seed_that_does_not_fit_keeps_its_place_in_a_hub_without_statuses() {
    let mut world = World::new(None, &["one"]);
    let mut silver = world.view.profiles[0].clone();
    silver.uid = "7ab1c2d3-0000".to_owned();
    silver.profile.name = "silver".to_owned();
    if let Some(backup) = &mut silver.profile.backup {
        backup.region = Some("us-east-1".to_owned());
    }
    world.view.profiles.push(silver);
    world.register("two");
    world.view.seeds[1].member.seed.profile = "silver".to_owned();
    let entry = world.entry("e", None);
    world.settle();
    world.view.entries[entry].seed = "two".to_owned();
    world.settle();
    forget_statuses(&mut world);
    world.settle();
    let bucket = world.view.entries[entry].bucket.clone();
    let listed = |world: &World| -> usize {
        let bucket = world.view.buckets.iter().find(|one| Some(&one.name) == bucket.as_ref()).unwrap();
        bucket.status.allocated.len()
    };
    assert_eq!((world.view.entries[entry].status.seed.as_deref(), listed(&world)), (Some("one"), 1));

    // Deleted, its data goes in its time, by the Seed that has it.
    world.delete(entry);
    world.settle();
    assert!(world.view.entries[entry].status.earliest_deletion.is_some(), "{}", world.why(entry));
    assert_eq!((world.view.entries[entry].status.seed.as_deref(), listed(&world)), (Some("one"), 1));
}

/// A directory is one of its bucket.
#[test]
fn what_was_left_in_one_bucket_is_in_nobodys_way_in_another() {
    for (left_in, why) in [("elsewhere", ""), ("", "data of an entry of this name, of namespace another")] {
        let mut world = World::new(None, &["one"]);
        world.settle();
        let bucket = world.names()[0].to_owned();
        world.was_left("named", "another", left_in);
        let entry = world.entry("named", Some(&bucket));
        world.settle();
        let said = world.why(entry);
        assert_eq!((said.is_empty(), said.starts_with(why)), (why.is_empty(), true), "{left_in}: {said}");
        assert_eq!(world.used(), [usize::from(why.is_empty())], "{left_in}");
        // One that names none may come into any.
        world.was_left("anywhere", "another", left_in);
        let entry = world.entry("anywhere", None);
        world.settle();
        assert!(world.why(entry).contains("was left in its directory"), "{left_in}: {}", world.why(entry));
    }
}

/// A name is somebody's by what its bucket lists, whatever records there are.
#[test]
fn who_has_a_name_keeps_it_though_another_namespace_left_data_there() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    let before = world.view.entries[entry].clone();
    let bucket = world.names()[0].to_owned();
    world.was_left("one", "another", &bucket);
    world.settle();
    assert_eq!((&world.view.entries[entry], world.used()), (&before, vec![1]));
}

/// What the hub itself gave keeps its place, whatever becomes of its Seed; and where statuses are
/// lost, what fits.
#[test]
fn a_finalizer_that_is_ours_still_counts_where_a_bucket_lost_its_status() {
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    world.settle();
    world.view.buckets[0].status = BucketStatus::default();
    world.view.entries[entry].placed_in = None;
    world.settle();
    assert_eq!(world.used(), [1]);
    assert_eq!(world.view.entries[entry].status.seed.as_deref(), Some("one"));
}

/// Whoever names a Seed that is not there, and a bucket that is, takes no place in it.
#[test]
fn an_entry_of_a_seed_that_is_not_there_is_listed_nowhere() {
    let mut world = World::new(None, &["one"]);
    world.settle();
    let name = world.names()[0].to_owned();
    let entry = world.entry("ghost", Some(&name));
    world.view.entries[entry].seed = "ghost".to_owned();
    world.settle();
    assert_eq!(world.why(entry), "no Seed ghost is registered: create it, or name another one");
    assert_eq!(world.used(), [0]);
}

#[test]
fn two_entries_of_one_name_never_share_a_directory() {
    let mut world = World::new(None, &["one"]);
    let first = world.entry("same", None);
    world.settle();
    let second = world.entry("same", None);
    world.view.entries[second].namespace = "another".to_owned();
    world.settle();
    assert!(world.view.entries[first].is_claimed && !world.view.entries[second].is_claimed);
    assert!(world.why(second).contains("namespace garden-dev"), "{}", world.why(second));
}

/// A copy in another namespace: as Velero restores it there, or as a hub had both before names were
/// looked at.
fn copy(world: &mut World, of: usize, is_claimed: bool) -> usize {
    let original = world.view.entries[of].clone();
    world.made += 1;
    world.view.entries.push(GardenEntry {
        namespace: "a-copy".to_owned(),
        uid: format!("uid-copy-{}", world.made),
        created_at: at(world.second),
        deleted_at: None,
        is_claimed,
        status: EntryStatus {
            released_at: None,
            ..if is_claimed { original.status.clone() } else { EntryStatus::default() }
        },
        ..original
    });
    world.view.entries.len() - 1
}

#[test]
fn what_a_copy_says_of_its_place_gives_it_none() {
    for is_claimed in [false, true] {
        let mut world = World::new(None, &["one", "two"]);
        let original = world.entry("same", None);
        world.settle();
        // Of the same age, and first by its namespace.
        let copied = copy(&mut world, original, is_claimed);
        world.settle();
        let uid = world.view.entries[original].uid.clone();
        assert_eq!(world.view.buckets[0].status.allocated, [uid], "{is_claimed}");
        assert!(world.why(copied).contains("namespace garden-dev"), "{}", world.why(copied));
        assert_eq!(world.view.entries[copied].status.seed, None, "nobody acts on it");

        // It goes, and nothing of the directory goes with it.
        world.delete(copied);
        world.view.entries[copied].is_claimed = true;
        world.view.entries[copied].status.released_at = Some(at(world.second));
        let plan = world.plan();
        let planned = plan.entries.iter().find(|one| one.entry == copied).unwrap();
        assert_eq!(planned.end, Some(EntryEnd::NotIts), "{is_claimed}");
        assert_eq!(planned.status.as_ref().unwrap().released_at, None);
        world.settle();
        assert_eq!(world.view.entries.len(), 1);
        assert_eq!((world.used(), world.view.entries[0].status.released_at), (vec![1], None));
    }
}

#[test]
fn who_holds_a_name_holds_it_until_it_is_gone() {
    let mut world = World::new(None, &["one"]);
    let original = world.entry("same", None);
    world.settle();
    let copied = copy(&mut world, original, true);
    // The bucket's own record counts for more than age, and a finalizer for more than what an entry
    // says.
    world.view.entries[copied].created_at = at(-9);
    world.settle();
    assert!(world.why(copied).contains("namespace garden-dev"), "{}", world.why(copied));
    let mut restored = world.clone();
    restored.view.buckets[0].status = BucketStatus::default();
    restored.view.entries[copied].is_claimed = false;
    restored.settle();
    assert!(restored.why(copied).contains("namespace garden-dev"), "{}", restored.why(copied));
    // The original is deleted: its data is its own until it is gone; then there is place for the
    // other one.
    world.delete(original);
    world.settle();
    assert!(world.view.entries[original].status.earliest_deletion.is_some());
    assert!(world.why(copied).contains("namespace garden-dev"), "{}", world.why(copied));
    world.pass(HOUR + 1);
    world.settle();
    assert_eq!(world.view.entries.len(), 1);
    assert_eq!(world.view.entries[0].namespace, "a-copy");
    assert_eq!(world.view.buckets[0].status.allocated, [world.view.entries[0].uid.clone()]);
    assert_eq!(world.view.entries[0].status.seed.as_deref(), Some("one"));
}

#[test]
fn a_bucket_that_cannot_be_made_is_waited_for_and_a_refused_name_is_left() {
    let state = |world: &mut World, state| {
        let bucket = world.view.buckets.last_mut().unwrap();
        bucket.status.operation =
            Some(OperationReport { kind: OperationType::Create, state, description: String::new() });
        bucket.error = Some("no such key".to_owned());
    };
    let mut world = World::new(None, &["one"]);
    let entry = world.entry("one", None);
    let plan = world.plan();
    world.act(&plan, || true);
    state(&mut world, OperationState::Error);
    let plan = world.plan();
    world.act(&plan, || true);
    assert_eq!(world.why(entry), "BackupBucket packet-eu-west-1-3ef42 cannot be made yet: no such key");
    assert_eq!(world.plan().create, []);
    for (i, names) in [(1, 2), (2, 3), (3, 3)] {
        state(&mut world, OperationState::Failed);
        let plan = world.plan();
        world.act(&plan, || true);
        assert_eq!(world.names().len(), names, "after {i} refusals");
    }
    assert!(
        world.why(entry).starts_with("the store refuses one bucket after another"),
        "{}",
        world.why(entry)
    );
    world.view.buckets[0].is_exhausted = true;
    let plan = world.plan();
    world.act(&plan, || true);
    assert!(world.why(entry).contains("gives no more buckets"), "{}", world.why(entry));
}

/// All objects are new: other UIDs, no finalizers, no owners, statuses lost or from another time.
#[test]
fn a_hub_that_comes_back_from_its_own_backup_touches_nothing() {
    for keeps_status in [false, true] {
        let mut world = World::new(Some(2), &["one"]);
        for i in 0..5 {
            world.entry(&format!("e{i}"), None);
        }
        world.settle();
        let (names, used) = (world.names().join(" "), world.used());
        // The backup was taken while one of them was removed, and the limit was higher.
        world.delete(0);
        world.view.entries[0].force_deletion = Some("it is meant".to_owned());
        let plan = world.plan();
        world.act(&plan, || true);
        world.settings.quota = Quota::new([("aws".to_owned(), 1)]).unwrap();
        world.view.profiles[0].uid = "ffff0000".to_owned();
        for (i, entry) in world.view.entries.iter_mut().enumerate() {
            (entry.uid, entry.is_claimed, entry.deleted_at) = (format!("new-{i}"), false, None);
            if !keeps_status {
                entry.status = EntryStatus::default();
            }
        }
        for bucket in &mut world.view.buckets {
            bucket.is_claimed = false;
            if !keeps_status {
                bucket.status = BucketStatus::default();
            }
        }
        world.settle();
        assert_eq!((world.names().join(" "), world.used()), (names, used), "{keeps_status}");
        for entry in &world.view.entries {
            assert!(entry.is_claimed && entry.status.released_at.is_none(), "{entry:?}");
            assert!(entry.status.operation.as_ref().is_none_or(|found| found.kind != OperationType::Delete));
        }
    }
}

#[test]
fn credentials_of_the_profile_are_those_of_its_buckets() {
    let mut world = World::new(None, &["one"]);
    world.settle();
    let renewed = SecretRef { name: "renewed".to_owned(), ..secret() };
    world.view.profiles[0].profile.backup.as_mut().unwrap().secret = Some(renewed.clone());
    world.settle();
    assert_eq!(world.view.buckets[0].store.secret, renewed);
    assert!(!world.view.secrets["store"].is_guarded);
    let missing = &world.view.buckets[0].status.conditions[&ConditionType::CredentialsAvailable];
    assert_eq!(
        (missing.holds, missing.message.as_str()),
        (false, "there is no Secret garden/renewed: create it")
    );
    world.view.secrets.insert("renewed".to_owned(), SecretState::default());
    world.settle();
    assert!(world.view.buckets[0].status.conditions[&ConditionType::CredentialsAvailable].holds);
    assert!(world.view.secrets["renewed"].is_guarded);
}

#[test]
fn a_bucket_is_looked_for_elsewhere_only_where_somebody_says_that_it_is_there() {
    let mut world = World::new(None, &["one"]);
    world.settle();
    let before = world.view.buckets[0].store.config.clone();
    let other = Some("https://other".to_owned());
    let backup = world.view.profiles[0].profile.backup.as_mut().unwrap();
    backup.config.endpoint = other.clone();
    backup.config.force_path_style = Some(true);
    world.settle();
    let config = &world.view.buckets[0].store.config;
    assert_eq!(config.endpoint, before.endpoint);
    assert_eq!(config.force_path_style, Some(true), "other settings come through");
    world.view.profiles[0].profile.same_store = other.clone();
    world.settle();
    assert_eq!(world.view.buckets[0].store.config.endpoint, other);
}

/// Somebody made a bucket of his own there.
#[test]
fn what_people_made_is_theirs() {
    let mut world = World::new(None, &["one"]);
    let place = ProviderRegion { provider: "aws".to_owned(), region: "eu-west-1".to_owned() };
    let store = Store { place, secret: secret(), ..Store::default() };
    world.view.buckets.push(GardenBucket { name: "theirs".to_owned(), store, ..GardenBucket::default() });
    world.entry("one", None);
    let named = world.entry("two", Some("theirs"));
    world.settle();
    assert_eq!(world.names(), ["theirs", "packet-eu-west-1-3ef42"]);
    assert_eq!(world.used(), [1, 1]);
    assert!(world.view.entries[named].is_claimed);
    world.view.entries.clear();
    world.settle();
    world.pass(9 * HOUR);
    world.settle();
    assert_eq!(world.names(), ["theirs", "packet-eu-west-1-3ef42"]);
}
