//! What is taken while pods are frozen, and what a run takes over of an earlier one.

use std::time::Duration;

use berth_test_scripted::{Scripted, delete, get, list, patch, post, watch};
use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::outcomes::{StillCut, VolumeOutcomes};
use super::snapshots::snapshot_name;
use super::*;
use crate::backup::list::Lister;

mod beside;
mod groups;

pub use groups::grouped;

const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const IN_APP: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots";
const PATIENCE: Duration = Duration::from_secs(600);

fn access(api: &Scripted) -> VolumeAccess {
    let requests = Arc::new(Semaphore::new(4));
    VolumeAccess {
        client: api.client("velero"),
        watches: api.client("velero"),
        lister: Lister::new(api.client("velero"), 500, Duration::ZERO, requests),
        namespace: "velero".to_owned(),
        backup: "nightly".to_owned(),
        uid: "b".to_owned(),
        annotations: BTreeMap::new(),
        location: "default".to_owned(),
        run: "this".to_owned(),
        serves_snapshots: true,
        limits: WaitLimits::new(Instant::now(), (Some(PATIENCE), None), PATIENCE).0,
        parallel_files: None,
    }
}

fn ask(name: &str) -> Ask {
    Ask {
        claim: format!("app/{name}"),
        namespace: "app".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        class: "class".to_owned(),
        ..Ask::default()
    }
}

pub fn planned(volumes: &RunVolumes<'_>, name: &str) -> PlannedClaim {
    let item = ArchiveItem {
        namespace: Some("app".to_owned()),
        name: name.to_owned(),
        json: Bytes::from_static(b"{}"),
        lacks_type: false,
    };
    let under_way = volumes.under_way.token();
    PlannedClaim { kind: Arc::new(claims()), page: PageId::default(), item, ask: ask(name), under_way }
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "name": name, "namespace": "app", "uid": format!("uid-{name}"),
            "labels": {"velero.io/backup-uid": "b"},
        },
        "spec": {"source": {"persistentVolumeClaimName": claim}},
        "status": {"boundVolumeSnapshotContentName": format!("content-{name}"), "readyToUse": false},
    })
}

/// The content of a snapshot, which is cut or is not.
fn content(name: &str, is_cut: bool, policy: &str) -> Value {
    let handle = if is_cut { json!("handle") } else { Value::Null };
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": format!("content-{name}"), "uid": format!("uid-content-{name}")},
        "spec": {
            "deletionPolicy": policy, "driver": "d", "source": {},
            "volumeSnapshotRef": {"namespace": "app", "name": name, "uid": format!("uid-{name}")},
        },
        "status": {"snapshotHandle": handle, "readyToUse": false},
    })
}

/// An API server that has these snapshots, and nothing happens to them.
fn serve(snapshots: &[Value], contents: &[Value]) -> Scripted {
    let api = Scripted::new();
    api.always(get(SNAPSHOTS).answers(list("7", snapshots))).always(watch(SNAPSHOTS).never_answers());
    api.always(get(CONTENTS).answers(list("7", contents))).always(watch(CONTENTS).never_answers());
    api
}

fn made(claim: &str) -> String {
    snapshot_name(claim, &format!("uid-{claim}"), "this")
}

fn of<'a>(
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: Option<VolumeAccess>,
) -> (RunVolumes<'a>, Jobs) {
    RunVolumes::new(VolumeOptions::default(), Vec::new(), (String::new(), true), log, outcomes, access)
}

/// Their node-agents take hours, and the frozen pods would wait with them.
#[tokio::test(start_paused = true)]
async fn frozen_pods_do_not_wait_for_files_of_other_pods() {
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = of(&log, &outcomes, None);
    for _ in 0..JOBS {
        let pod = FilePod {
            namespace: "app".to_owned(),
            name: "db".to_owned(),
            uid: "u".to_owned(),
            node: "n".to_owned(),
            moment: berth_core::volume::Moment::Any,
            volumes: Vec::new(),
        };
        volumes.take_later(pod).await.unwrap();
    }
    let admitted = volumes.admit(vec![planned(&volumes, "a")]).await;
    let taken = tokio::time::timeout(PATIENCE, volumes.take_frozen(admitted, Vec::new())).await;
    assert!(taken.is_ok() && jobs.settled.try_recv().is_ok());
}

/// Those of other blocks are not ready.
#[tokio::test(start_paused = true)]
async fn a_block_waits_for_room_before_its_pods_are_frozen() {
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = of(&log, &outcomes, None);
    let many = (0..=UNDER_WAY).map(|_| planned(&volumes, "a")).collect();
    let first = volumes.admit(many).await;
    volumes.take_frozen(first, Vec::new()).await;
    let second = async { tokio::time::timeout(PATIENCE, volumes.admit(vec![planned(&volumes, "b")])).await };
    assert!(second.await.is_err(), "the first ones wait to be stored");
    while jobs.settled.try_recv().is_ok() {}
    let second = async { tokio::time::timeout(PATIENCE, volumes.admit(vec![planned(&volumes, "b")])).await };
    assert!(second.await.is_ok());
}

/// Else a run that ends meanwhile has stored the one, and the next run cuts the other one later.
#[tokio::test(start_paused = true)]
async fn no_claim_of_a_block_is_stored_before_all_of_them_are_cut_and_noted() {
    let (a, b) = (made("a"), made("b"));
    for is_cut in [true, false] {
        let api = serve(
            &[snapshot(&a, "a"), snapshot(&b, "b")],
            &[content(&a, true, "Delete"), content(&b, is_cut, "Delete")],
        );
        api.always(post(IN_APP).answers_with(|sent| {
            let claim = sent["spec"]["source"]["persistentVolumeClaimName"].as_str().unwrap_or_default();
            snapshot(&made(claim), claim)
        }));
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, mut jobs) = of(&log, &outcomes, Some(access(&api)));
        let admitted = volumes.admit(vec![planned(&volumes, "a"), planned(&volumes, "b")]).await;
        let taken = volumes.take_frozen(admitted, Vec::new());
        let in_time = tokio::time::timeout(PATIENCE / 2, taken).await.is_ok();
        assert_eq!(in_time, is_cut);
        assert_eq!(jobs.settled.try_recv().is_ok(), is_cut, "one is cut in any case");
        let expected: Vec<(String, StillCut)> = ["a", "b"]
            .map(|claim| {
                let cut = StillCut {
                    claim: format!("uid-{claim}"),
                    name: made(claim),
                    uid: format!("uid-{}", made(claim)),
                    policy: "Delete".to_owned(),
                    is_whole: true,
                };
                (format!("app/{claim}"), cut)
            })
            .into_iter()
            .filter(|_| is_cut)
            .collect();
        assert_eq!(outcomes.all().cuts.into_iter().collect::<Vec<_>>(), expected);
    }
}

/// What an earlier run has noted of claim `b`.
fn noted(uid: &str) -> Outcomes {
    let cut = StillCut {
        claim: "uid-b".to_owned(),
        name: "velero-b-old".to_owned(),
        uid: uid.to_owned(),
        policy: "Delete".to_owned(),
        is_whole: true,
    };
    Outcomes::of(VolumeOutcomes { cuts: [("app/b".to_owned(), cut)].into(), ..VolumeOutcomes::default() })
}

#[tokio::test(start_paused = true)]
async fn a_run_that_goes_on_takes_over_what_was_cut_while_pods_were_frozen() {
    let old = || snapshot("velero-b-old", "b");
    // The earlier run may have kept it.
    let api = serve(&[old()], &[content("velero-b-old", true, "Retain")]);
    api.next(get(&format!("{IN_APP}/velero-b-old")).answers(old()));
    let (log, outcomes) = (BackupLog::new(String::new()), noted("uid-velero-b-old"));
    assert_eq!(outcomes.noted_snapshots(|_| true), BTreeSet::from(["app/velero-b-old".to_owned()]));
    let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
    assert_eq!(volumes.unmet(), BTreeSet::from(["app/velero-b-old".to_owned()]), "nobody has asked for it");
    volumes.seen.lock().cut.insert("app/b".to_owned());
    assert!(volumes.unmet().is_empty());
    volumes.note_past(Some("app"), "db", &["a".to_owned(), "b".to_owned()]);
    let cut = volumes.cut_later(&ask("b")).await.unwrap();
    assert_eq!((cut.name.as_str(), cut.policy.as_str()), ("velero-b-old", "Delete"));
    assert_eq!(log.counts().errors, 0);
    // What is stored needs nothing more.
    outcomes.retain(|claim| claim == "app/b");
    assert!(outcomes.all().cuts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_anew_though_pods_were_frozen_for_it_is_told() {
    let path = format!("{IN_APP}/velero-b-old");
    let of_another_claim = snapshot("velero-b-old", "a");
    let mut strange = snapshot("velero-b-old", "b");
    strange["metadata"]["labels"] = json!({});
    let gone = "the snapshot of claim b that was cut while its pods were frozen is gone";
    for (outcomes, found, is_past, told) in [
        (noted("uid-velero-b-old"), Some(get(&path).refuses(404)), false, gone),
        (noted("another"), Some(get(&path).answers(snapshot("velero-b-old", "b"))), false, gone),
        (noted("uid-velero-b-old"), Some(get(&path).answers(of_another_claim)), false, gone),
        (noted("uid-velero-b-old"), Some(get(&path).answers(strange)), false, gone),
        (
            noted("uid-velero-b-old"),
            Some(get(&path).refuses(404)),
            true,
            "cut while pod db was frozen is gone",
        ),
        // A checkpoint of an earlier version notes nothing.
        (Outcomes::default(), None, true, "claim b is taken while pod db is not frozen"),
        (Outcomes::default(), None, false, ""),
    ] {
        let new = made("b");
        let api = serve(&[snapshot(&new, "b")], &[content(&new, true, "Delete")]);
        if let Some(found) = found {
            api.next(found);
        }
        api.next(post(IN_APP).answers(snapshot(&new, "b")));
        let log = BackupLog::new(String::new());
        let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
        if is_past {
            volumes.note_past(Some("app"), "db", &["b".to_owned()]);
        }
        let cut = volumes.cut_later(&ask("b")).await.unwrap();
        assert_eq!(cut.name, new);
        let errors: Vec<String> = log.told().into_iter().map(|told| format!("{told:?}")).collect();
        assert_eq!(errors.len(), usize::from(!told.is_empty()), "{errors:?}");
        assert!(
            errors.iter().all(|error| error.contains(told) && error.contains("lasts: true")),
            "{errors:?}"
        );
        api.finish();
    }
}

/// A run that freezes its pods once more takes what is missing then, and the rest with it.
#[tokio::test(start_paused = true)]
async fn a_block_of_which_one_claim_has_no_snapshot_is_not_whole() {
    let a = made("a");
    let api = serve(&[snapshot(&a, "a")], &[content(&a, true, "Delete")]);
    // In the order in which they are asked for.
    api.next(post(IN_APP).answers(snapshot(&a, "a"))).next(post(IN_APP).refuses(403));
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
    let admitted = volumes.admit(vec![planned(&volumes, "a"), planned(&volumes, "b")]).await;
    volumes.take_frozen(admitted, Vec::new()).await;
    let noted = outcomes.all().cuts;
    assert_eq!(noted.keys().collect::<Vec<_>>(), ["app/a"], "its pods may be stored when the run ends");
    assert!(!noted["app/a"].is_whole);
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_beside_missing_data_is_taken_over_only_where_its_pods_are_stored() {
    let old = || snapshot("velero-b-old", "b");
    let path = format!("{IN_APP}/velero-b-old");
    let of_old = format!("{CONTENTS}/content-velero-b-old");
    for (is_past, is_whole, is_kept) in
        [(false, true, true), (true, false, true), (true, true, true), (false, false, false)]
    {
        let new = made("b");
        let api = serve(
            &[old(), snapshot(&new, "b")],
            &[content("velero-b-old", true, "Delete"), content(&new, true, "Delete")],
        );
        api.next(get(&path).answers(old()));
        if !is_kept {
            // Removed before the pods are frozen, as long as nothing else has its name.
            api.next(get(&path).answers(old()));
            api.next(get(&of_old).answers(content("velero-b-old", true, "Delete")));
            api.next(patch(&of_old).answers(content("velero-b-old", true, "Delete")));
            api.next(delete(&path).answers(old()));
        }
        let (log, outcomes) = (BackupLog::new(String::new()), noted("uid-velero-b-old"));
        let mut all = outcomes.all();
        all.cuts.values_mut().for_each(|cut| cut.is_whole = is_whole);
        let outcomes = Outcomes::of(all);
        let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
        if is_past {
            volumes.note_past(Some("app"), "db", &["b".to_owned()]);
        }
        let mut admitted = volumes.admit(vec![planned(&volumes, "b")]).await;
        volumes.look_back(&mut admitted).await;
        let asked = api.asked().len();
        // From here on its pods are frozen.
        if !is_kept {
            api.next(post(IN_APP).answers(snapshot(&new, "b")));
        }
        volumes.take_frozen(admitted, Vec::new()).await;
        let noted = outcomes.all().cuts["app/b"].clone();
        assert_eq!(noted.name == "velero-b-old", is_kept, "{is_past} {is_whole}");
        assert!(noted.is_whole, "nothing else is of the block");
        assert_eq!(log.counts().errors, 0);
        let since = api.asked().split_off(asked);
        assert!(!since.iter().any(|line| line.contains("velero-b-old")), "{since:?}");
        api.finish();
    }
}

/// The driver may have removed it from the storage by then, and an archive would name it.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_somebody_deletes_before_it_is_kept_does_not_become_the_backups() {
    let name = made("a");
    let (path, of_content) = (format!("{IN_APP}/{name}"), format!("{CONTENTS}/content-{name}"));
    let (mut ready, mut of_ready) = (snapshot(&name, "a"), content(&name, true, "Delete"));
    ready["status"]["readyToUse"] = json!(true);
    of_ready["status"]["readyToUse"] = json!(true);
    let mut going = of_ready.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let api = serve(std::slice::from_ref(&ready), &[of_ready]);
    api.next(post(IN_APP).answers(ready.clone()));
    // What the watches show is older than this.
    api.next(patch(&of_content).answers(going.clone()));
    // Nothing of it stays.
    api.next(get(&path).answers(ready.clone())).next(get(&of_content).answers(going.clone()));
    api.next(patch(&of_content).answers(going)).next(delete(&path).answers(ready));
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
    let cut = volumes.cut_later(&ask("a")).await.unwrap();
    let why = volumes.ready(&ask("a"), &cut).await.unwrap_err();
    assert!(why.contains("somebody deleted its VolumeSnapshot"), "{why}");
    let policies: Vec<Value> =
        api.writes().iter().map(|write| write.body["spec"]["deletionPolicy"].clone()).collect();
    assert_eq!(policies, [Value::Null, json!("Retain"), json!("Delete"), Value::Null]);
    api.finish();
}

/// Its process was stopped for long, and the next leader has taken the snapshot over meanwhile.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_late_leaves_a_snapshot_that_another_run_has_kept() {
    for (annotated, labelled, is_kept) in [(true, false, true), (false, true, true), (false, false, false)] {
        let name = made("a");
        let (path, of_content) = (format!("{IN_APP}/{name}"), format!("{CONTENTS}/content-{name}"));
        let api = serve(&[snapshot(&name, "a")], &[content(&name, true, "Delete")]);
        api.next(post(IN_APP).answers(snapshot(&name, "a")));
        let (mut found, mut of_found) = (snapshot(&name, "a"), content(&name, true, "Delete"));
        if annotated {
            found["metadata"]["annotations"] = json!({"velero.io/csi-volumesnapshot-handle": "handle"});
        }
        if labelled {
            of_found["metadata"]["labels"] = json!({"velero.io/backup-name": "nightly"});
            of_found["spec"]["deletionPolicy"] = json!("Retain");
        }
        api.next(get(&path).answers(found.clone())).next(get(&of_content).answers(of_found.clone()));
        if !is_kept {
            api.next(patch(&of_content).answers(of_found)).next(delete(&path).answers(found));
        }
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
        let cut = volumes.cut_later(&ask("a")).await.unwrap();
        let why = volumes.ready(&ask("a"), &cut).await.unwrap_err();
        assert!(why.contains("was not ready within"), "{why}");
        api.finish();
    }
}

/// Its process may be stopped for long between the two writes that keep a snapshot, and the next
/// leader keeps the same one meanwhile.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_kept_to_the_end_is_removed_only_by_the_run_that_has_the_backup() {
    const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/backups/nightly";
    let had_by = |run: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {
                "name": "nightly", "namespace": "velero", "uid": "b", "annotations": {"berth.dev/run": run},
            },
        })
    };
    let mut of_that_name = had_by("this");
    of_that_name["metadata"]["uid"] = json!("another");
    for (answer, is_removed) in [
        (get(BACKUP).answers(had_by("this")), true),
        (get(BACKUP).answers(had_by("next")), false),
        (get(BACKUP).answers(of_that_name), false),
        // Its archive may be stored by now.
        (get(BACKUP).refuses(404), false),
        (get(BACKUP).refuses(403), false),
        (get(BACKUP).refuses(503), false),
        (get(BACKUP).never_answers(), false),
    ] {
        let name = made("a");
        let (path, of_content) = (format!("{IN_APP}/{name}"), format!("{CONTENTS}/content-{name}"));
        let (mut ready, mut of_ready) = (snapshot(&name, "a"), content(&name, true, "Delete"));
        ready["status"]["readyToUse"] = json!(true);
        of_ready["status"]["readyToUse"] = json!(true);
        let mut kept = of_ready.clone();
        kept["metadata"]["labels"] = json!({"velero.io/backup-name": "nightly"});
        kept["spec"]["deletionPolicy"] = json!("Retain");
        let api = serve(std::slice::from_ref(&ready), &[of_ready]);
        api.next(post(IN_APP).answers(ready.clone()));
        api.next(patch(&of_content).answers(kept.clone())).next(patch(&path).refuses(403));
        api.next(get(&path).answers(ready.clone())).next(get(&of_content).answers(kept.clone()));
        api.always(answer);
        if is_removed {
            api.next(patch(&of_content).answers(kept)).next(delete(&path).answers(ready));
        }
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
        let cut = volumes.cut_later(&ask("a")).await.unwrap();
        let why = volumes.ready(&ask("a"), &cut).await.unwrap_err();
        assert!(why.contains("it could not be kept"), "{why}");
        api.finish();
    }
}

/// Whoever may change a VolumeSnapshot may have put another one in its place, and that one would go
/// with the movement.
#[tokio::test(start_paused = true)]
async fn a_movement_gets_the_snapshot_that_was_taken_and_no_other_one_of_that_name() {
    let path = format!("{IN_APP}/velero-a");
    for is_there in [true, false] {
        let asked = patch(&path);
        let mut another = snapshot("velero-a", "a");
        another["metadata"]["uid"] = json!("another");
        let api = if is_there {
            Scripted::new().next(asked.answers(snapshot("velero-a", "a")))
        } else {
            Scripted::new().next(asked.refuses(409)).next(get(&path).answers(another))
        };
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
        volumes.part_with(&ask("a"), ("velero-a", "uid-velero-a"), "uid-upload").await.unwrap();
        let writes = api.writes();
        let sent = &writes[0].body["metadata"];
        let labels = json!({"velero.io/backup-uid": null, "berth.dev/made-for": "uid-upload"});
        assert_eq!((&sent["uid"], &sent["labels"]), (&json!("uid-velero-a"), &labels));
        api.finish();
    }
}
