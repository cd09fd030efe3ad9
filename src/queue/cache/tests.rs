use berth_api::keys;
use berth_core::glob::Glob;
use berth_core::namespace::NamespaceSet;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::weight::{ListWeight, MAX_WEIGHT};
use super::*;
use crate::cache::Observed;

fn backup(version: u64, phase: &str) -> Backup {
    let object = serde_json::json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": "b", "uid": "u", "resourceVersion": version.to_string()},
        "spec": {},
        "status": {"phase": phase},
    });
    serde_json::from_value(object).unwrap_or_else(|error| unreachable!("{error}"))
}

fn phase(store: &BackupCache) -> Option<QueuePhase> {
    store.get("b").map(|item| item.entry.phase)
}

#[test]
fn an_answer_that_comes_late_does_not_bring_back_what_has_ended() {
    let store = BackupCache::new(QueueSettings::default());
    store.observe(WatchEvent::Replaced(vec![backup(1, "Queued")]));
    store.observe_write(&backup(2, "ReadyToStart"));
    assert_eq!(phase(&store), Some(QueuePhase::ReadyToStart));
    store.observe(WatchEvent::Applied(backup(3, "Completed")));
    store.observe_write(&backup(2, "ReadyToStart"));
    assert_eq!(phase(&store), None, "its slot would be gone for ever");
}

#[test]
fn an_answer_is_seen_once_its_backup_or_another_one_of_its_name_is() {
    let store = BackupCache::new(QueueSettings::default());
    let answered = |name: &str, seconds: i64| QueueEntry {
        name: name.to_owned(),
        enqueued_at: Timestamp::from_second(seconds).ok(),
        ..QueueEntry::default()
    };
    store.observe(WatchEvent::Replaced(vec![arrived(1, "Queued", "a")]));
    store.observe(WatchEvent::Applied(arrived(2, "Failed", "a")));
    for (name, seconds, is_seen) in [("b1", 9, true), ("b2", 9, true), ("b3", 9, false), ("other", 1, true)] {
        assert_eq!(store.has_seen(&answered(name, seconds)), is_seen, "{name} at {seconds}");
    }
    store.observe(WatchEvent::Deleted("b1".to_owned()));
    assert!(!store.has_seen(&answered("b1", 9)), "its name is free again");
    assert!(store.has_seen(&answered("b1", 1)), "it was here");
    store.observe(WatchEvent::Replaced(Vec::new()));
    assert!(!store.has_seen(&answered("b2", 9)));
}

/// Nobody else would remove what it has stored.
#[test]
fn a_deleted_backup_that_is_not_due_waits_for_a_later_call() {
    let store = BackupCache::new(QueueSettings::default());
    store.observe(WatchEvent::Replaced(vec![backup(1, "WaitingForPluginOperations")]));
    let taken = |is_due: bool| {
        let due = store.take_gone(|gone| gone.uid == "u" && is_due);
        due.into_iter().map(|gone| gone.name).collect::<Vec<_>>()
    };
    assert_eq!(taken(true), [""; 0]);
    store.observe(WatchEvent::Deleted("b".to_owned()));
    assert_eq!(taken(false), [""; 0]);
    assert_eq!(taken(true), ["b"]);
    assert_eq!(taken(true), [""; 0]);
}

#[test]
fn a_backup_that_was_deleted_while_it_ran_is_told_and_one_that_waited_is_not() {
    for (phase, told) in [("Queued", 0), ("ReadyToStart", 0), ("InProgress", 1), ("Completed", 0)] {
        for end in [WatchEvent::Deleted("b".to_owned()), WatchEvent::Replaced(Vec::new())] {
            let store = BackupCache::new(QueueSettings::default());
            store.observe(WatchEvent::Replaced(vec![backup(1, phase)]));
            store.observe(WatchEvent::Replaced(vec![backup(2, phase)]));
            assert!(store.take_gone(|_| true).is_empty(), "{phase}: it is there");
            store.observe(end);
            let gone = store.take_gone(|gone| gone.uid == "u" && gone.is_ours);
            assert_eq!(gone.len(), told, "{phase}");
        }
    }
}

#[test]
fn a_list_does_not_undo_an_answer_that_is_newer() {
    let store = BackupCache::new(QueueSettings::default());
    store.observe(WatchEvent::Replaced(vec![backup(1, "Queued")]));
    store.observe_write(&backup(2, "ReadyToStart"));
    store.observe(WatchEvent::Replaced(vec![backup(1, "Queued")]));
    assert_eq!(phase(&store), Some(QueuePhase::ReadyToStart), "it would be started twice over");
    store.observe(WatchEvent::Replaced(Vec::new()));
    assert_eq!(phase(&store), None);
}

/// As Argo CD's, for example.
#[test]
fn what_was_deleted_and_has_a_finalizer_is_canceled() {
    for phase in ["New", "Queued", "ReadyToStart", "InProgress", "WaitingForPluginOperations", "Finalizing"] {
        let store = BackupCache::new(QueueSettings::default());
        let mut there = backup(1, phase);
        there.metadata.finalizers = Some(vec!["a/b".to_owned()]);
        store.observe(WatchEvent::Replaced(vec![there.clone()]));
        assert!(!store.is_canceled("b", "u"), "{phase}");
        there.metadata.resource_version = Some("2".to_owned());
        there.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        store.observe(WatchEvent::Applied(there));
        assert!(store.is_canceled("b", "u"), "{phase}");
    }
}

#[test]
fn what_cannot_be_written_holds_no_slot_whether_or_not_it_had_begun() {
    for running in ["ReadyToStart", "InProgress"] {
        let store = BackupCache::new(QueueSettings::default());
        store.observe(WatchEvent::Replaced(vec![backup(1, running)]));
        let shown = || store.view(None, Timestamp::now()).backups.len();
        for left in [1, 1, 0] {
            store.refusals.refused("u");
            assert_eq!(shown(), left, "{running}");
        }
    }
}

/// A Backup of one namespace, marked in its second.
fn arrived(i: u64, phase: &str, namespace: &str) -> Backup {
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i.try_into().unwrap());
    let object = serde_json::json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {
            "name": format!("b{i}"), "uid": format!("u{i}"), "resourceVersion": "1", "creationTimestamp": at.to_string(),
            "annotations": {keys::ENQUEUED_AT: at.to_string()},
        },
        "spec": {"includedNamespaces": [namespace]},
        "status": {"phase": phase, "queuePosition": i},
    });
    serde_json::from_value(object).unwrap_or_else(|error| unreachable!("{error}"))
}

#[test]
fn a_newcomer_is_faced_with_few_and_with_all_where_a_slot_may_be_left_for_it() {
    let store = BackupCache::new(QueueSettings { slots: 1, ..QueueSettings::default() });
    let mut backups = vec![arrived(0, "InProgress", "runs")];
    backups.extend((1..100).map(|i| arrived(i, "Queued", "busy")));
    store.observe(WatchEvent::Replaced(backups));
    let namespaces = NamespaceSet::literal(Glob::parse("free"));
    let newcomer = QueueEntry { phase: QueuePhase::Queued, namespaces, ..QueueEntry::default() };
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(200);
    let seen = |few: usize| {
        let view = store.view_facing(&newcomer, now, few);
        let mut names: Vec<String> = view.backups.iter().map(|entry| entry.name.clone()).collect();
        names.sort_unstable();
        (names.join(" "), view.others)
    };
    assert_eq!(seen(99), ("b0 b99".to_owned(), 98), "what runs, and the last one that waits");
    assert_eq!(seen(100).1, 0);
    assert_eq!(store.view_facing(&newcomer, now, 100).backups.len(), 100);
    let view = store.view_facing(&newcomer, now, 0);
    assert!(store.expectations(&view, now, 32).is_empty(), "they are not all that there are");
    store.observe(WatchEvent::Deleted("b99".to_owned()));
    store.observe(WatchEvent::Applied(arrived(98, "Completed", "busy")));
    assert_eq!(seen(0), ("b0 b97".to_owned(), 96));
    store.observe(WatchEvent::Deleted("b0".to_owned()));
    assert_eq!(store.view_facing(&newcomer, now, 0).backups.len(), 97, "b1 may take the slot, or not");
}

#[test]
fn however_many_backups_name_many_namespaces_only_so_many_names_are_kept() {
    let name = |i: u64, n: usize| format!("ns-{i}-{n}");
    let many = |i: u64| -> Backup {
        let mut backup = arrived(i, "Queued", "");
        backup.spec.included_namespaces = Some((0..1000).map(|n| name(i, n)).collect());
        backup
    };
    let kept = |store: &BackupCache| {
        let view = store.view(None, Timestamp::now());
        view.backups.iter().map(|entry| entry.namespaces.weight()).sum::<usize>()
    };
    let count = MAX_WEIGHT as u64 / 1000 + 50;
    let store = BackupCache::new(QueueSettings::default());
    store.observe(WatchEvent::Replaced((0..count).map(many).collect()));
    assert_eq!(kept(&store), MAX_WEIGHT);
    let namespaces = |i: u64| store.get(&format!("b{i}")).map(|item| item.entry.namespaces.clone()).unwrap();
    assert!(!namespaces(0).takes_all());
    assert!(namespaces(count - 1).takes_all(), "it meets every other one");

    // A small set is kept beside them, and whatever comes later is bound like the rest.
    store.observe(WatchEvent::Applied(arrived(count, "Queued", "small")));
    assert!(namespaces(count).contains("small") && !namespaces(count).contains("other"));
    store.observe(WatchEvent::Applied(many(count + 1)));
    assert!(namespaces(count + 1).takes_all());
    assert_eq!(kept(&store), MAX_WEIGHT + 1);

    // A new version of one that has room keeps it, and room that is left is given again.
    store.observe(WatchEvent::Applied(many(0)));
    assert!(!namespaces(0).takes_all());
    store.observe(WatchEvent::Deleted("b0".to_owned()));
    store.observe(WatchEvent::Applied(many(count + 1)));
    assert!(!namespaces(count + 1).takes_all());
}

fn names_many(i: u64, version: u64, held: bool) -> Backup {
    let mut backup = arrived(i, "Queued", "");
    backup.spec.included_namespaces = Some((0..1000).map(|n| format!("ns-{i}-{n}")).collect());
    backup.metadata.resource_version = Some(version.to_string());
    if held {
        backup.metadata.annotations.get_or_insert_default().insert(keys::HOLD.to_owned(), "true".to_owned());
    }
    backup
}

/// 400 Backups that were held for ever made everybody else's large ones run alone.
#[test]
fn what_is_held_takes_no_room_and_gets_it_when_it_is_let_go() {
    let store = BackupCache::new(QueueSettings::default());
    let most = MAX_WEIGHT as u64 / 1000;
    store.observe(WatchEvent::Replaced((0..most).map(|i| names_many(i, 1, true)).collect()));
    store.observe(WatchEvent::Applied(names_many(most, 1, false)));
    let entry = |i: u64| store.get(&format!("b{i}")).map(|item| item.entry).unwrap();
    assert!(!entry(most).namespaces.takes_all());
    assert!(entry(0).namespaces.takes_all() && !entry(0).lacks_room(), "it meets nobody");
    store.observe(WatchEvent::Applied(names_many(0, 2, false)));
    assert!(!entry(0).namespaces.takes_all());
    for i in 1..most {
        store.observe(WatchEvent::Applied(names_many(i, 2, false)));
    }
    assert!(entry(most - 1).lacks_room());
}

/// A list reaches the cache when it is whole. Until then all of its names were in memory.
#[test]
fn the_names_of_a_list_are_bound_as_they_come() {
    let listed = ListWeight::default();
    let kept = |from: u64| {
        let seen = (from..from + 1000).map(|i| {
            let mut seen = CachedBackup::of(&names_many(i, 1, false), &QueueOrder::default());
            listed.bound(&mut seen.observed);
            let Observed::Kept(item) = seen.observed else { unreachable!() };
            item.entry.namespaces.weight()
        });
        seen.sum::<usize>()
    };
    for _ in 0..2 {
        listed.begin();
        assert_eq!(kept(0), MAX_WEIGHT, "whatever was counted of a list that broke off");
    }
    listed.end();
    assert_eq!(kept(0), 1_000_000, "what comes alone is bound by what the cache holds");
}
