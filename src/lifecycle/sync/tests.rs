//! Rounds against a scripted API server, with a folder as the store.

use std::path::Path;

use berth_api::keys;
use berth_test_scripted::{Scripted, delete, get, patch, post};
use serde_json::{Value, json};

use super::*;
use crate::storage::Opener;

mod orphans;

const VELERO: &str = "/apis/velero.io/v1/namespaces/velero";

struct Place {
    root: tempfile::TempDir,
    lifecycle: Lifecycle,
    past: Past,
}

fn location(root: &Path) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "here", "namespace": "velero", "uid": "l", "resourceVersion": "1"},
        "spec": {
            "provider": "berth.dev/filesystem", "config": {"path": root},
            "objectStorage": {"bucket": "b", "prefix": "p"},
        },
        "status": {"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"},
    })
}

fn backup(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": name, "namespace": "velero", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": {keys::STORAGE_LOCATION: "here"},
        },
        "spec": {"storageLocation": "here"},
        "status": {"phase": "Completed", "formatVersion": "1.1.0"},
    })
}

fn requests(items: &[Value]) -> Value {
    json!({"apiVersion": "velero.io/v1", "kind": "DeleteBackupRequestList", "metadata": {}, "items": items})
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let lifecycle = crate::lifecycle::fake(&Scripted::new().client("velero"));
        Self { root, lifecycle, past: Past::default() }
    }

    fn store(&self, name: &str, file: &str, content: impl AsRef<[u8]>) {
        let folder = self.root.path().join("b/p/backups").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), content).unwrap();
    }

    fn stored(&self, name: &str) {
        self.store(name, "velero-backup.json", backup(name).to_string());
        self.store(name, &format!("{name}.tar.gz"), "");
    }

    /// As if the file had been written eight days ago.
    fn age(&self, name: &str, file: &str) {
        let path = self.root.path().join("b/p/backups").join(name).join(file);
        let before = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 24 * 3600);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
    }

    fn known(&self, name: &str) {
        self.lifecycle.known.assume(&serde_json::from_value(backup(name)).unwrap());
    }

    /// Another leader, to whom the API server answers by this script. Gives the location.
    fn lead(&mut self, api: &Scripted) -> BackupStorageLocation {
        let read: BackupStorageLocation = serde_json::from_value(location(self.root.path())).unwrap();
        let client = api.client("velero");
        self.lifecycle.cluster = Default::default();
        self.lifecycle.clients = crate::client::Clients { watch: client.clone(), call: client.clone() };
        let roots = vec![self.root.path().to_owned()].into();
        self.lifecycle.opener = Opener::new(client, "velero", roots);
        self.lifecycle.known.observe_location(read.clone());
        read
    }

    /// One round, in which the API server answers by this script and is told when it was.
    async fn round(&mut self, api: &Scripted) {
        let path = format!("{VELERO}/backupstoragelocations/here");
        let api = api.once(patch(&path).answers(location(self.root.path())));
        let read = self.lead(&api);
        let sync = Sync { lifecycle: &self.lifecycle };
        sync.round(&read, &mut self.past).await;
        api.finish();
    }

    /// One round of a leader that is killed when it has asked for all of this script. What it knew
    /// is lost.
    async fn killed(&mut self, api: &Scripted) {
        let read = self.lead(api);
        let sync = Sync { lifecycle: &self.lifecycle };
        tokio::select! {
            () = sync.round(&read, &mut self.past) => unreachable!("the last line is never answered"),
            () = api.played() => {}
        }
        api.finish();
        self.past = Past::default();
        self.lifecycle.known = Default::default();
    }
}

/// A store with a backup that has a PodVolumeBackup: that, and the Backup as long as it lacks it.
fn with_a_volume() -> (Place, Value, Value) {
    use std::io::Write as _;
    let place = Place::new();
    place.stored("new");
    let volume = json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": {"name": "new-1"},
        "spec": {"node": "n"}, "status": {"phase": "Completed"},
    });
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(json!([volume]).to_string().as_bytes()).unwrap();
    place.store("new", "new-podvolumebackups.json.gz", gzip.finish().unwrap());
    let mut lacking = backup("new");
    lacking["metadata"]["annotations"] = json!({keys::VOLUMES_MISSING: "true"});
    (place, volume, lacking)
}

#[tokio::test(start_paused = true)]
async fn what_is_new_is_created_and_the_next_round_only_notes_its_time() {
    let mut place = Place::new();
    place.stored("known");
    place.known("known");
    place.stored("new");
    place.stored("going");
    let going = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest", "metadata": {"name": "g"},
        "spec": {"backupName": "going"}, "status": {"phase": "InProgress"},
    });
    // Velero's definition lets one be created that names no Backup.
    let odd = json!({"apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest", "metadata": {"name": "o"}});
    let api = Scripted::new()
        .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[odd, going])))
        .once(post(&format!("{VELERO}/backups")).answers(backup("new")));
    place.round(&api).await;
    let writes = api.writes();
    assert_eq!(writes.len(), 2, "{writes:?}");
    let created = &writes[0].body;
    assert_eq!(created["metadata"]["name"], "new");
    assert!(created["metadata"]["uid"].is_null() && created["metadata"]["resourceVersion"].is_null());
    assert_eq!(created["status"]["phase"], "Completed");
    assert!(!writes[1].body["status"]["lastSyncedTime"].is_null(), "{writes:?}");
    let mark = |api: &Scripted| {
        api.writes().last().unwrap().body["metadata"]["annotations"][keys::ALL_BROUGHT].clone()
    };
    assert_eq!(mark(&api), Value::Null, "one is being deleted and not gone");

    let idle = Scripted::new();
    place.round(&idle).await;
    assert_eq!(idle.asked().len(), 1, "{:?}", idle.asked());
    std::fs::remove_dir_all(place.root.path().join("b/p/backups/going")).unwrap();
    let whole = Scripted::new();
    place.round(&whole).await;
    assert!(mark(&whole).as_str().is_some_and(|at| at.parse::<Timestamp>().is_ok()), "{}", mark(&whole));
    place.stored("late");
    let failing = Scripted::new()
        .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[])))
        .once(post(&format!("{VELERO}/backups")).refuses(500));
    place.round(&failing).await;
    let failed = failing.writes().last().unwrap().body.clone();
    assert_eq!(failed["metadata"]["annotations"], json!({keys::ALL_BROUGHT: null}), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_a_deletion_has_claimed_does_not_come_until_its_claim_is_gone() {
    let mut place = Place::new();
    let claim = |run: &str| {
        json!({"cluster": "c", "namespace": "velero", "backup": "uid-half", "run": run}).to_string()
    };
    place.stored("half");
    place.store("half", "berth-run.json", claim("deletion-of-r"));
    let asked = || get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[]));
    place.round(&Scripted::new().once(asked())).await;
    assert_eq!(place.past.memory.skipped(), [(berth_core::sync::SyncSkipReason::HalfDeleted, 1)].into());
    // Somebody else's claim, and one that nobody can read, are of backups that are whole.
    for (name, text) in [("other", claim("r")), ("odd", "{".to_owned())] {
        place.past.memory = berth_core::sync::Memory::default();
        place.stored(name);
        place.store(name, "berth-run.json", text);
        let api =
            Scripted::new().once(asked()).once(post(&format!("{VELERO}/backups")).answers(backup(name)));
        place.round(&api).await;
    }
    assert_eq!(place.past.memory.skipped(), [(berth_core::sync::SyncSkipReason::HalfDeleted, 1)].into());
    place.past.memory = berth_core::sync::Memory::default();
    std::fs::remove_file(place.root.path().join("b/p/backups/half/berth-run.json")).unwrap();
    let api = Scripted::new().once(asked()).once(post(&format!("{VELERO}/backups")).answers(backup("half")));
    place.round(&api).await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_comes_when_its_archive_is_there_and_one_that_failed_needs_none() {
    use berth_core::sync::SyncSkipReason;
    let asked = || get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[]));
    let created = |name| post(&format!("{VELERO}/backups")).answers(backup(name));
    // With many known ones, nobody lists all files.
    for known in [0, 60] {
        let mut place = Place::new();
        for i in 0..known {
            place.stored(&format!("known-{i}"));
            place.known(&format!("known-{i}"));
        }
        place.store("new", "velero-backup.json", backup("new").to_string());
        place.round(&Scripted::new().once(asked())).await;
        assert_eq!(place.past.memory.skipped(), [(SyncSkipReason::NoArchive, 1)].into(), "{known}");
        place.past.memory = berth_core::sync::Memory::default();
        place.stored("new");
        place.round(&Scripted::new().once(asked()).once(created("new"))).await;
        let mut failed = backup("failed");
        failed["status"]["phase"] = json!("Failed");
        place.store("failed", "velero-backup.json", failed.to_string());
        place.round(&Scripted::new().once(asked()).once(created("failed"))).await;
        assert!(place.past.memory.skipped().is_empty(), "{known}");
    }
}

/// Its cluster has died, and nobody stores the archive any more.
#[tokio::test(start_paused = true)]
async fn a_folder_without_an_archive_keeps_the_mark_of_a_whole_round_away_only_while_it_is_written() {
    use berth_core::sync::SyncSkipReason;
    let mut place = Place::new();
    place.store("dead", "velero-backup.json", backup("dead").to_string());
    place.store("dead", "berth-run.json", "{}");
    let asked = || get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[]));
    for (aged, why) in
        [("velero-backup.json", SyncSkipReason::NoArchive), ("berth-run.json", SyncSkipReason::Abandoned)]
    {
        place.age("dead", aged);
        place.past.memory = berth_core::sync::Memory::default();
        let api = Scripted::new().once(asked());
        place.round(&api).await;
        assert_eq!(place.past.memory.skipped(), [(why, 1)].into());
        let mark = api.writes()[0].body["metadata"]["annotations"][keys::ALL_BROUGHT].clone();
        assert_eq!(mark.is_string(), why == SyncSkipReason::Abandoned, "{mark}");
    }
    place.past.memory = berth_core::sync::Memory::default();
    place.stored("dead");
    let created = post(&format!("{VELERO}/backups")).answers(backup("dead"));
    place.round(&Scripted::new().once(asked()).once(created)).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_refuses_is_not_tried_again_at_once() {
    let mut place = Place::new();
    place.stored("bad");
    let api = Scripted::new()
        .once(get(&format!("{VELERO}/deletebackuprequests")).refuses(404))
        .once(post(&format!("{VELERO}/backups")).refuses(422));
    place.round(&api).await;
    assert_eq!(place.past.memory.skipped().get(&berth_core::sync::SyncSkipReason::Refused), Some(&1));
    place.round(&Scripted::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_whose_files_are_gone_goes_in_the_second_round_as_it_was_seen() {
    let mut place = Place::new();
    place.stored("stays");
    for name in ["stays", "gone"] {
        place.known(name);
    }
    place.round(&Scripted::new()).await;
    // An empty folder in between, as of a volume that is not mounted, begins the count anew.
    let (backups, aside) = (place.root.path().join("b/p/backups"), place.root.path().join("aside"));
    std::fs::rename(&backups, &aside).unwrap();
    place.round(&Scripted::new()).await;
    std::fs::rename(&aside, &backups).unwrap();
    place.round(&Scripted::new()).await;
    let gone = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let api = Scripted::new().once(delete(&format!("{VELERO}/backups/gone")).answers(gone));
    place.round(&api).await;
    let conditions = json!({"uid": "uid-gone", "resourceVersion": "7"});
    assert_eq!(api.writes()[0].body["preconditions"], conditions);
    assert!(place.lifecycle.known.get("gone").is_none() && place.lifecycle.known.get("stays").is_some());
}

#[tokio::test(start_paused = true)]
async fn pod_volume_backups_that_could_not_be_created_come_in_a_later_round() {
    let (mut place, volume, lacking) = with_a_volume();
    let (backups, volumes) = (format!("{VELERO}/backups"), format!("{VELERO}/podvolumebackups"));
    let api = Scripted::new()
        .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[])))
        .once(post(&backups).answers(lacking.clone()))
        .once(post(&volumes).refuses(500))
        // In the same round once more.
        .once(get(&format!("{backups}/new")).answers(lacking.clone()))
        .once(post(&volumes).refuses(500));
    place.round(&api).await;
    assert_eq!(api.writes()[0].body["metadata"]["annotations"][keys::VOLUMES_MISSING], "true");

    let mut whole = backup("new");
    whole["metadata"]["resourceVersion"] = json!("8");
    let api = Scripted::new()
        .once(get(&format!("{backups}/new")).answers(lacking))
        .once(post(&volumes).answers(volume))
        .once(patch(&format!("{backups}/new")).answers(whole));
    place.round(&api).await;
    let writes = api.writes();
    assert_eq!(writes[0].body["metadata"]["ownerReferences"][0]["uid"], "uid-new");
    assert!(writes[1].body["metadata"]["annotations"][keys::VOLUMES_MISSING].is_null());
    place.round(&Scripted::new()).await;
}

/// A bucket of somebody who wants to fill etcd.
#[tokio::test(start_paused = true)]
async fn a_store_with_more_than_the_cluster_may_hold_fills_neither_a_round_nor_etcd() {
    use berth_core::sync::{MOST_STANDING, SyncSkipReason};
    let mut place = Place::new();
    for i in 0..MOST_STANDING - 1 {
        place.known(&format!("known-{i}"));
    }
    for name in ["a", "b", "c"] {
        place.stored(name);
    }
    let api = Scripted::new()
        .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[])))
        .once(post(&format!("{VELERO}/backups")).answers(backup("a")));
    place.round(&api).await;
    assert_eq!(api.writes().len(), 2, "one Backup, and the time of the round");
    assert_eq!(
        place.past.memory.skipped().get(&SyncSkipReason::NoRoom),
        Some(&2),
        "which is told and counted"
    );
    let annotations = &api.writes()[1].body["metadata"]["annotations"];
    assert_eq!(*annotations, json!({keys::ALL_BROUGHT: null}), "not all is brought");
}

/// The garbage collector takes an owner of another cluster for one that is deleted.
#[tokio::test(start_paused = true)]
async fn a_backup_keeps_its_schedule_as_its_owner_only_where_that_very_schedule_is_here() {
    let owner = json!({"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "daily", "uid": "s"});
    for (here, is_kept) in [(Some("s"), true), (Some("another"), false), (None, false)] {
        let mut place = Place::new();
        let mut owned = backup("new");
        owned["metadata"]["ownerReferences"] = json!([owner]);
        place.stored("new");
        place.store("new", "velero-backup.json", owned.to_string());
        let schedule = get(&format!("{VELERO}/schedules/daily"));
        let found = |uid| json!({"apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": "daily", "uid": uid}});
        let api = Scripted::new()
            .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[])))
            .once(match here {
                Some(uid) => schedule.answers(found(uid)),
                None => schedule.refuses(404),
            })
            .once(post(&format!("{VELERO}/backups")).answers(backup("new")));
        place.round(&api).await;
        let created = &api.writes()[0].body["metadata"]["ownerReferences"];
        assert_eq!(*created, if is_kept { json!([owner]) } else { Value::Null }, "{here:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_location_has_its_round_first_and_one_that_is_away_or_going_has_none() {
    let place = Place::new();
    let of = |name: &str, more: Value| -> BackupStorageLocation {
        let mut of = location(place.root.path());
        of["metadata"]["name"] = json!(name);
        crate::patch::merge_into(&mut of, more);
        serde_json::from_value(of).unwrap()
    };
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let (synced, often) =
        (json!({"lastSyncedTime": "2026-01-01T11:59:30Z"}), json!({"backupSyncPeriod": "10s"}));
    let all = vec![
        of("b", json!({})),
        of("a", json!({})),
        of("main", json!({"spec": {"default": true}})),
        of("away", json!({"status": {"phase": "Unavailable"}})),
        of("going", json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z"}})),
        of("never", json!({"spec": {"backupSyncPeriod": "0s"}})),
        of("not yet", json!({"status": synced})),
        of("often", json!({"spec": often, "status": synced})),
        // Of which it does not show yet that it has begun.
        of("begun", json!({})),
    ];
    let begun = Past { begun: Some(now), ..Past::default() };
    let sync = Sync { lifecycle: &place.lifecycle };
    let due = sync.due(all, &BTreeMap::from([("begun".to_owned(), begun)]), now);
    let names: Vec<String> = due.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["main", "a", "b", "often"]);
}

#[tokio::test(start_paused = true)]
async fn a_round_over_thousands_of_known_backups_asks_for_nothing_and_writes_its_time() {
    let mut place = Place::new();
    for i in 0..5000 {
        let name = format!("known-{i}");
        place.store(&name, "velero-backup.json", "");
        place.known(&name);
    }
    for _ in 0..2 {
        let idle = Scripted::new();
        place.round(&idle).await;
        assert_eq!(idle.asked().len(), 1, "{:?}", idle.asked());
    }
    // Of that many, what the store has no longer goes in the second round.
    let gone = ["known-1", "known-4999"];
    for name in gone {
        std::fs::remove_dir_all(place.root.path().join("b/p/backups").join(name)).unwrap();
    }
    place.round(&Scripted::new()).await;
    let removed = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let api = gone.iter().fold(Scripted::new(), |api, name| {
        api.once(delete(&format!("{VELERO}/backups/{name}")).answers(removed.clone()))
    });
    place.round(&api).await;
    assert_eq!(api.writes().len(), 3, "two Backups, and the time of the round");
}

/// A write may have been taken though nobody was there any more to read its answer.
#[tokio::test(start_paused = true)]
async fn a_round_whose_leader_is_killed_at_any_write_is_ended_by_the_next_leader() {
    let (backups, volumes) = (format!("{VELERO}/backups"), format!("{VELERO}/podvolumebackups"));
    let deletions = || get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[]));
    let new = || patch(&format!("{backups}/new"));
    for (answered, is_last_taken) in (0..4).flat_map(|answered| [(answered, false), (answered, true)]) {
        let (mut place, volume, lacking) = with_a_volume();
        let mut whole = backup("new");
        whole["metadata"]["resourceVersion"] = json!("8");
        let writes = [
            (post(&backups), lacking.clone()),
            (post(&volumes), volume.clone()),
            (new(), whole.clone()),
            (patch(&format!("{VELERO}/backupstoragelocations/here")), Value::Null),
        ];
        let api = Scripted::new().next(deletions());
        for (i, (write, answer)) in writes.into_iter().enumerate().take(answered + 1) {
            api.next(if i < answered { write.answers(answer) } else { write.never_answers() });
        }
        place.killed(&api).await;

        // All that the next leader knows is what its watch shows.
        let taken = answered + usize::from(is_last_taken);
        if taken > 0 {
            let shown = if taken < 3 { &lacking } else { &whole };
            place.lifecycle.known.assume(&serde_json::from_value(shown.clone()).unwrap());
        }
        let api = Scripted::new();
        match taken {
            0 => {
                api.once(deletions());
                api.once(post(&backups).answers(lacking));
                api.once(post(&volumes).answers(volume));
            }
            1 => {
                api.once(get(&format!("{backups}/new")).answers(lacking));
                api.once(post(&volumes).answers(volume));
            }
            2 => {
                let owner =
                    json!({"apiVersion": "velero.io/v1", "kind": "Backup", "name": "new", "uid": "uid-new"});
                let mut owned = volume;
                owned["metadata"]["ownerReferences"] = json!([owner]);
                api.once(get(&format!("{backups}/new")).answers(lacking));
                api.once(post(&volumes).already_exists());
                api.once(get(&format!("{volumes}/new-1")).answers(owned));
            }
            _ => {}
        }
        if taken < 3 {
            api.once(new().answers(whole));
        }
        place.round(&api).await;
        place.round(&Scripted::new()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_cluster_that_writes_here_is_noticed_by_what_it_stores_and_told_once() {
    let mut place = Place::new();
    place.stored("own");
    place.known("own");
    place.round(&Scripted::new()).await;
    let ended = (Timestamp::now() + SignedDuration::from_mins(1)).to_string();
    for name in ["theirs-1", "theirs-2"] {
        let mut theirs = backup(name);
        theirs["status"]["completionTimestamp"] = json!(ended);
        place.store(name, "velero-backup.json", theirs.to_string());
        place.store(name, &format!("{name}.tar.gz"), "");
        let claim = json!({"cluster": "away", "namespace": "velero", "backup": "u", "run": "r"});
        place.store(name, "berth-run.json", claim.to_string());
        let cluster = json!({"metadata": {"name": "kube-system", "uid": "c"}});
        let api = Scripted::new()
            .once(get(&format!("{VELERO}/deletebackuprequests")).answers(requests(&[])))
            .once(post(&format!("{VELERO}/backups")).answers(backup(name)))
            .once(get("/api/v1/namespaces/kube-system").answers(cluster));
        place.round(&api).await;
        assert_eq!(place.past.others, ["away".to_owned()].into());
    }
}
