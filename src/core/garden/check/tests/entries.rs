//! What an entry may be, and what becomes of one that changes or goes.

use super::*;

#[test]
fn an_entry_gets_a_bucket_that_fits_its_seed() {
    let judge = |new: &GardenEntry| said(&entry::check(None, new, false, &view()));
    for (seed, bucket, expected) in [
        ("eu-1", "", "| 0"),
        ("eu-1", "main-eu", "| 0"),
        ("eu-1", "made-by-hand", "| 0"),
        ("", "", "spec.seedName | 0"),
        ("nobody", "", "spec.seedName | 0"),
        ("far", "", "| 1"),
        ("bare", "", "| 1"),
        ("bare", "main-eu", "spec.seedName | 0"),
        ("eu-1", "nothing", "spec.bucketName | 0"),
        ("eu-1", "main-eu-2", "spec.bucketName | 0"),
        ("eu-1", "going", "spec.bucketName | 0"),
        ("eu-1", "failed", "spec.bucketName | 0"),
        ("us-1", "main-eu", "spec.bucketName | 0"),
        ("foreign", "main-eu", "spec.bucketName | 0"),
        ("us-1", "main-eu-2", "spec.bucketName spec.bucketName | 0"),
    ] {
        assert_eq!(judge(&entry("new", seed, bucket)), expected, "{seed} {bucket}");
    }
    assert_eq!(
        judge(&GardenEntry { uid: "x".to_owned(), ..entry("new", "eu-1", "main-eu-2") }),
        "| 0",
        "it has its place"
    );
    let again = GardenEntry { placed_in: text("main-eu-2"), ..entry("new", "eu-1", "main-eu-2") };
    assert_eq!(judge(&again), "| 0", "it had its place before the hub was restored");
    let restored = entry::check(None, &entry("new", "nobody", ""), false, &view()).of_a_restore();
    assert_eq!(said(&restored), "| 1", "others may come later");
    let held = GardenEntry { namespace: "another".to_owned(), ..entry("a", "eu-1", "main-eu") };
    let restored = entry::check(None, &held, false, &view()).of_a_restore();
    assert_eq!(said(&restored), "metadata.name | 0", "two of one name share a directory, whoever makes them");
}

#[test]
fn who_does_not_wait_for_a_writer_is_told_what_that_means() {
    let old = entry("a", "eu-1", "main-eu");
    let said = |old: &GardenEntry, reason: &str| {
        let new = GardenEntry { take_over: text(reason), ..entry("a", "eu-1", "main-eu") };
        said(&entry::check(Some(old), &new, false, &view()))
    };
    assert_eq!(said(&old, "it burned down"), "| 1");
    assert_eq!(said(&old, "true"), "| 1");
    let annotated = GardenEntry { take_over: text("it burned down"), ..old };
    assert_eq!(said(&annotated, "it burned down"), "| 0", "it was told before");
}

#[test]
fn an_entrys_name_is_a_directory_of_its_own() {
    let judge = |new: &GardenEntry| said(&entry::check(None, new, false, &view()));
    for (name, expected) in [
        ("shoot--dev--example--3ef42", "| 0"),
        ("with.dots", "| 0"),
        (&"a".repeat(63), "| 0"),
        (&"a".repeat(64), "metadata.name | 0"),
        ("source-a", "metadata.name | 0"),
    ] {
        assert_eq!(judge(&entry(name, "eu-1", "")), expected, "{name}");
    }
    let same = GardenEntry { namespace: "garden-prod".to_owned(), ..entry("a", "eu-1", "") };
    assert_eq!(judge(&same), "metadata.name | 0");
    assert_eq!(judge(&entry("a", "eu-1", "")), "| 0", "itself");
}

#[test]
fn an_entry_keeps_its_bucket_and_moves_only_to_a_seed_that_fits() {
    let old = GardenEntry { shoot_uid: text("u"), ..entry("a", "eu-1", "main-eu") };
    let judge = |new: &GardenEntry, by_hub: bool| said(&entry::check(Some(&old), new, by_hub, &view()));
    let to = |seed: &str, bucket: &str| GardenEntry { shoot_uid: text("u"), ..entry("a", seed, bucket) };
    assert_eq!(judge(&to("eu-2", "main-eu"), false), "| 0", "another seed, the same data");
    assert_eq!(judge(&to("eu-1", "made-by-hand"), false), "spec.bucketName | 0");
    assert_eq!(judge(&to("eu-1", "made-by-hand"), true), "| 0");
    assert_eq!(judge(&to("eu-1", ""), false), "spec.bucketName | 0");
    assert_eq!(judge(&to("us-1", "main-eu"), false), "spec.seedName | 0");
    assert_eq!(judge(&to("foreign", "main-eu"), false), "spec.seedName | 0");
    assert_eq!(judge(&to("bare", "main-eu"), false), "spec.seedName | 0");
    assert_eq!(judge(&to("far", "main-eu"), false), "spec.seedName | 0");
    assert_eq!(judge(&entry("a", "eu-1", "main-eu"), false), "spec.shootUID | 0");
    let unplaced = entry("a", "eu-1", "");
    let placed = said(&entry::check(Some(&unplaced), &entry("a", "eu-1", "main-eu-2"), false, &view()));
    assert_eq!(placed, "spec.bucketName | 0", "full");
    // A seed that is gone keeps nobody from writing other things.
    let mut bare = view();
    bare.seeds.clear();
    assert_eq!(said(&entry::check(Some(&old), &old, false, &bare)), "| 0");
}

#[test]
fn an_entry_that_the_hub_does_not_know_is_not_deleted_with_its_bucket_named() {
    let old = entry("a", "eu-1", "main-eu");
    let refused = entry::check_delete(&old);
    assert_eq!(
        refused.to_string(),
        "metadata.finalizers: its data would be left in the bucket without a record: wait until the hub has taken it up, and \
         garden.berth.dev/backup is one of them; or, if the data is to stay there, give the reason in the annotation \
         garden.berth.dev/forget-data"
    );
    for (what, other) in [
        ("without a bucket there is no data", entry("a", "eu-1", "")),
        ("its end will be on record", GardenEntry { is_claimed: true, ..old.clone() }),
        (
            "the hub has let it go",
            GardenEntry { deleted_at: Some(jiff::Timestamp::UNIX_EPOCH), ..old.clone() },
        ),
        ("it is meant", GardenEntry { forget_data: text("the store is being given up"), ..old.clone() }),
    ] {
        assert!(entry::check_delete(&other).is_empty(), "{what}");
    }
    assert!(
        !entry::check_delete(&GardenEntry { force_deletion: text("now"), ..old }).is_empty(),
        "force is no record"
    );
}
