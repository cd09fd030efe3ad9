use proptest::prelude::*;

use super::*;

fn listed(size: u64) -> SourceObject {
    SourceObject { size, tag: Some(format!("t{size}")), modified: Timestamp::UNIX_EPOCH }
}

fn listing(objects: &[(&str, u64)]) -> BTreeMap<String, SourceObject> {
    objects.iter().map(|(key, size)| ((*key).to_owned(), listed(*size))).collect()
}

fn same() -> CopyAttempt {
    CopyAttempt::Same { checksum: "c".to_owned() }
}

fn copied(objects: &[(&str, u64)]) -> Items {
    let mut items = Items::new();
    relist(&mut items, listing(objects));
    items.values_mut().for_each(|item| assert!(record(item, same())));
    items
}

fn sizes(objects: &[(&str, u64)]) -> BTreeMap<String, u64> {
    objects.iter().map(|(key, size)| ((*key).to_owned(), *size)).collect()
}

#[test]
fn a_second_listing_adds_what_is_new_and_what_changed() {
    let mut items = copied(&[("a", 1), ("b", 2), ("c", 3)]);
    items.get_mut("c").unwrap().status = CopyStatus::NotFound;
    assert_eq!(relist(&mut items, listing(&[("a", 1), ("b", 9), ("c", 3), ("d", 4)])), 3);
    let status = |key: &str| items[key].status;
    assert_eq!(status("a"), CopyStatus::Copied);
    for key in ["b", "c", "d"] {
        assert_eq!(status(key), CopyStatus::None, "{key}");
    }
    assert_eq!(CopyCounts::of(&items), CopyCounts { none: 3, copied: 1, not_found: 0, bytes: 17 });
}

#[test]
fn what_is_at_the_destination_already_is_never_overwritten() {
    let mut item = MigrationItem::new(listed(1));
    let taken = CopyAttempt::Taken { source: "s".into(), destination: "d".into() };
    assert!(!record(&mut item, taken));
    assert_eq!(item.status, CopyStatus::None);
    assert_eq!(item.error.as_deref(), Some("something else is there already: SHA-256 d, at the source s"));
}

#[test]
fn everything_in_the_way_of_the_cut_over_is_told() {
    let objects = [("backups/x/x.tar.gz", 1), ("backups/x/velero-backup.json", 2)];
    let items = copied(&objects);
    assert_eq!(gate(&items, &listing(&objects), &sizes(&objects)), Ok(()));

    let mut some = items.clone();
    relist(&mut some, listing(&[("kopia/r", 5)]));
    let source = listing(&[objects[0], objects[1], ("kopia/r", 5), ("new", 1)]);
    let told = gate(&some, &source, &sizes(&[("backups/x/x.tar.gz", 7)])).unwrap_err();
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "backups/x/velero-backup.json is not at the destination as it was copied",
            "backups/x/x.tar.gz is not at the destination as it was copied",
            "kopia/r is not copied",
            "new is new at the source, or has changed",
        ]
    );
}

#[test]
fn a_backup_may_expire_but_not_lose_a_file() {
    let objects = [("backups/x/x.tar.gz", 1), ("backups/x/velero-backup.json", 2)];
    let mut items = copied(&objects);
    items.get_mut("backups/x/x.tar.gz").unwrap().status = CopyStatus::NotFound;
    let there = sizes(&objects);
    assert_eq!(gate(&items, &BTreeMap::new(), &there), Ok(()), "it has expired");
    assert_eq!(
        expire(&mut items.clone(), &BTreeMap::new()),
        Err(MigrationObstacle::Emptied(2)),
        "but not if that was all there was: it may be gone from sight only"
    );
    let told = gate(&items, &listing(&objects[1..]), &there).unwrap_err();
    assert_eq!(told, [MigrationObstacle::Torn("x".into())]);
}

#[test]
fn what_expired_is_on_record_before_it_goes_and_goes_however_often_that_is_interrupted() {
    let mut items = copied(&[("a", 1), ("b", 2), ("c", 3)]);
    let foreign = listing(&[("theirs", 1)]);
    relist(&mut items, foreign);
    assert!(record(items.get_mut("theirs").unwrap(), CopyAttempt::Missing));
    let source = listing(&[("a", 1)]);
    let there = sizes(&[("a", 1), ("b", 2), ("theirs", 1)]);
    assert_eq!(leftovers(&items, &there), [""; 0], "nothing is on record as gone");
    assert_eq!(expire(&mut items, &source), Ok(()));
    assert_eq!(items["b"].status, CopyStatus::NotFound);
    assert_eq!(leftovers(&items, &there), ["b"], "c is not there, and what we did not put there is not ours");
    assert_eq!(expire(&mut items, &source), Ok(()), "a second time");
    assert_eq!(leftovers(&items, &there), ["b"]);
}

#[test]
fn a_source_that_is_empty_all_at_once_removes_nothing() {
    let mut items = copied(&[("a", 1), ("b", 2)]);
    let before = items.clone();
    let refused = expire(&mut items, &BTreeMap::new()).unwrap_err();
    assert_eq!(refused, MigrationObstacle::Emptied(2));
    assert!(refused.to_string().contains("is its folder mounted?"), "{refused}");
    assert_eq!(items, before);
    // Nor is what is on record as gone already, once there is nothing to compare it with.
    items.values_mut().for_each(|item| item.status = CopyStatus::NotFound);
    assert_eq!(expire(&mut items, &BTreeMap::new()), Err(MigrationObstacle::Emptied(2)));
    let mut untouched = Items::new();
    relist(&mut untouched, listing(&[("a", 1)]));
    assert_eq!(expire(&mut untouched, &BTreeMap::new()), Ok(()), "nothing was copied");
}

#[test]
fn what_was_begun_and_not_looked_at_may_be_replaced_and_nothing_else() {
    let mut item = MigrationItem::new(listed(1));
    assert!(item.is_to_begin() && !item.may_replace("x"));
    item.begun = true;
    let mut items: Items = [("a".to_owned(), item)].into();
    relist(&mut items, listing(&[("a", 2)]));
    assert!(items["a"].may_replace("what an earlier copy left there"));
    let mut gone = items.clone();
    assert!(record(gone.get_mut("a").unwrap(), CopyAttempt::Missing));
    assert_eq!(leftovers(&gone, &sizes(&[("a", 1)])), ["a"], "half of what nobody has any more");
    let item = items.get_mut("a").unwrap();
    assert!(record(item, same()));
    assert!(item.may_replace("c") && !item.may_replace("x") && !item.is_to_begin());
    let mut taken = MigrationItem { begun: true, ..MigrationItem::new(listed(1)) };
    assert!(!record(&mut taken, CopyAttempt::Taken { source: "s".into(), destination: "d".into() }));
    assert!(!taken.may_replace("d"));
}

#[test]
fn nothing_goes_at_the_source_that_is_not_at_the_destination() {
    let items = copied(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    let source = listing(&[("a", 1), ("b", 2), ("c", 3), ("d", 5), ("new", 1)]);
    let there = listing(&[("a", 1), ("c", 9), ("d", 5), ("new", 1)]);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let wanted =
        Retirement { remove: names(&["a"]), changed: names(&["d", "new"]), missing: names(&["b", "c"]) };
    assert_eq!(retirement(&items, &source, &there), wanted);
    assert!(retirement(&items, &source, &BTreeMap::new()).remove.is_empty(), "its only copy");
}

#[test]
fn phases_follow_one_another() {
    let mut phase = MigrationPhase::Planned;
    let mut seen = vec![phase];
    while let Some(next) = phase.next() {
        assert!(next > phase);
        phase = next;
        seen.push(phase);
    }
    assert_eq!(seen.len(), 6);
    assert_eq!(phase, MigrationPhase::Retired);
}

proptest! {
    /// Whatever happens at the source and however copies end: once all attempts end well, the gate
    /// opens, and what is there is what the last listing had.
    #[test]
    fn it_ends_well(rounds in prop::collection::vec(prop::collection::btree_map("[a-e]", 0_u64..4, 0..5), 1..5), fails in any::<u64>()) {
        let mut items = Items::new();
        let mut there: BTreeMap<String, u64> = BTreeMap::new();
        let mut dice = fails;
        for round in &rounds {
            let source: BTreeMap<String, SourceObject> = round.iter().map(|(k, s)| (k.clone(), listed(*s))).collect();
            relist(&mut items, source.clone());
            for (key, item) in &mut items {
                dice = dice.rotate_left(7) ^ 0x9e37;
                if item.status != CopyStatus::None || dice % 3 == 0 { continue; }
                match source.get(key) {
                    None => { record(item, CopyAttempt::Missing); }
                    Some(found) => { there.insert(key.clone(), found.size); record(item, same()); }
                }
            }
        }
        let last: BTreeMap<String, SourceObject> = rounds.last().unwrap().iter().map(|(k, s)| (k.clone(), listed(*s))).collect();
        relist(&mut items, last.clone());
        for (key, item) in &mut items {
            if item.status == CopyStatus::None {
                match last.get(key) {
                    None => { record(item, CopyAttempt::Missing); }
                    Some(found) => { there.insert(key.clone(), found.size); record(item, same()); }
                }
            }
        }
        let is_emptied = last.is_empty() && items.values().any(MigrationItem::is_ours);
        prop_assert_eq!(expire(&mut items, &last).is_err(), is_emptied);
        if is_emptied { return Ok(()); }
        for key in leftovers(&items, &there) {
            there.remove(&key);
        }
        prop_assert_eq!(gate(&items, &last, &there), Ok(()));
        let wanted: BTreeMap<String, u64> = last.iter().map(|(k, l)| (k.clone(), l.size)).collect();
        prop_assert_eq!(there, wanted);
    }

    #[test]
    fn shards_are_few_and_even(objects in 0_usize..200_000) {
        let shards = shards(objects);
        prop_assert!(shards.is_power_of_two() && shards <= 2 * objects.div_ceil(SHARD).max(1));
    }

    #[test]
    fn every_key_has_its_shard(key in ".*", shards in 1_usize..300) {
        prop_assert!(shard_of(&key, shards) < shards);
    }
}
