//! Claims that are cut together by a group snapshot.

use berth_core::volume::group::MOST_GROUPS;

use super::super::group_objects::GroupPlan;
use super::super::group_objects::group_name;
use super::super::read::FoundClaim;
use super::*;

const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/app/volumegroupsnapshots";
const CLAIMS: &str = "/api/v1/namespaces/app/persistentvolumeclaims";
const GROUP_CLASSES: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotclasses";
const LABEL: &str = "velero.io/volume-group";

/// The group of claims `a` and `b`.
fn plan() -> Arc<GroupPlan> {
    Arc::new(GroupPlan {
        key: "app/g".to_owned(),
        namespace: "app".to_owned(),
        label: LABEL.to_owned(),
        value: "g".to_owned(),
        names: ["a", "b"].map(str::to_owned).into(),
        class: "together".to_owned(),
    })
}

/// Claim `a` or `b`, with its group.
pub fn grouped(volumes: &RunVolumes<'_>, name: &str) -> PlannedClaim {
    let mut planned = planned(volumes, name);
    planned.ask.group = Some(plan());
    planned
}

fn claim(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "app", "uid": format!("uid-{name}"), "labels": labels},
        "spec": {"volumeName": format!("pv-{name}")}, "status": {"phase": "Bound"},
    })
}

/// The claims that have the label.
fn all_of_group() -> Value {
    list("7", &["a", "b"].map(|name| claim(name, json!({LABEL: "g"}))))
}

/// The VolumeSnapshot of a claim that the snapshot controller makes for the group.
fn member(claim: &str) -> Value {
    let mut member = snapshot(&format!("snapshot-{claim}"), claim);
    member["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "name": "of-g", "uid": "uid-g",
    }]);
    member
}

fn group(name: &Value) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot",
        "metadata": {
            "name": name, "namespace": "app", "uid": "uid-g", "labels": {"velero.io/backup-uid": "b"},
        },
        "spec": {"source": {"selector": {"matchLabels": {LABEL: "g"}}}},
        "status": {"error": {"message": "no such driver"}},
    })
}

const CONTENT: &str =
    "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotcontents/groupsnapcontent-uid-g";

/// The content that the snapshot controller makes for the group.
fn content_of_group() -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "groupsnapcontent-uid-g", "uid": "uid-content"},
        "spec": {
            "deletionPolicy": "Delete", "source": {"volumeHandles": ["a", "b"]},
            "volumeGroupSnapshotRef": {"namespace": "app", "name": "of-g", "uid": "uid-g"},
        },
    })
}

fn labelled<'a>(
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: Option<VolumeAccess>,
) -> (RunVolumes<'a>, Jobs) {
    let groups = (LABEL.to_owned(), true);
    RunVolumes::new(VolumeOptions::default(), Vec::new(), groups, log, outcomes, access)
}

#[tokio::test(start_paused = true)]
async fn the_claims_of_a_group_are_cut_by_one_group_snapshot() {
    let members = [member("a"), member("b")];
    let contents = ["a", "b"].map(|claim| content(&format!("snapshot-{claim}"), true, "Delete"));
    let api = serve(&members, &contents);
    api.always(get(IN_APP).answers(list("7", &members))).always(watch(IN_APP).never_answers());
    api.next(get(CLAIMS).answers(all_of_group()));
    api.next(post(GROUPS).answers_with(|sent| group(&sent["metadata"]["name"])));
    // Before anything of the group is named by the archive.
    api.next(get(CONTENT).answers(content_of_group())).next(patch(CONTENT).answers(content_of_group()));
    for claim in ["a", "b"] {
        api.once(patch(&format!("{IN_APP}/snapshot-{claim}")).answers(member(claim)));
    }
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let admitted = volumes.admit(vec![grouped(&volumes, "a"), grouped(&volumes, "b")]).await;
    volumes.take_frozen(admitted, Vec::new()).await;
    for claim in ["a", "b"] {
        let Settle { planned, cut, .. } = jobs.settled.try_recv().unwrap();
        assert_eq!((planned.ask.name.as_str(), cut.unwrap().name), (claim, format!("snapshot-{claim}")));
    }
    let writes = api.writes();
    let made = &writes[0].body;
    assert_eq!(made["spec"]["source"], json!({"selector": {"matchLabels": {LABEL: "g"}}}));
    assert_eq!(made["spec"]["volumeGroupSnapshotClassName"], "together");
    assert_eq!(writes[1].body["spec"], json!({"deletionPolicy": "Retain"}));
    let labels = json!({"velero.io/backup-name": "nightly", "velero.io/backup-uid": "b"});
    let mut of_group = labels.clone();
    // A restore of it would cut the restored claims.
    of_group["velero.io/exclude-from-backup"] = json!("true");
    let found: Vec<&Value> = writes.iter().map(|write| &write.body["metadata"]["labels"]).collect();
    assert_eq!(found, [&of_group, &of_group, &labels, &labels]);
    let noted = outcomes.all().cuts;
    assert!(noted.len() == 2 && noted.values().all(|cut| cut.is_whole), "{noted:?}");
    volumes.tell();
    assert_eq!(log.counts().errors, 0);
    api.finish();
}

/// The snapshot controller and the sidecar of the driver write to them as well.
#[tokio::test(start_paused = true)]
async fn a_group_is_taken_though_other_writes_come_between() {
    let members = [member("a"), member("b")];
    let contents = ["a", "b"].map(|claim| content(&format!("snapshot-{claim}"), true, "Delete"));
    let api = serve(&members, &contents);
    api.always(get(IN_APP).answers(list("7", &members))).always(watch(IN_APP).never_answers());
    api.next(get(CLAIMS).answers(all_of_group()));
    api.next(post(GROUPS).answers_with(|sent| group(&sent["metadata"]["name"])));
    api.next(get(CONTENT).answers(content_of_group())).next(patch(CONTENT).refuses(409));
    api.next(get(CONTENT).answers(content_of_group())).next(patch(CONTENT).answers(content_of_group()));
    let path = |claim: &str| format!("{IN_APP}/snapshot-{claim}");
    api.once(patch(&path("a")).refuses(409)).once(get(&path("a")).answers(member("a")));
    for claim in ["a", "b"] {
        api.once(patch(&path(claim)).answers(member(claim)));
    }
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let admitted = volumes.admit(vec![grouped(&volumes, "a"), grouped(&volumes, "b")]).await;
    volumes.take_frozen(admitted, Vec::new()).await;
    for _ in 0..2 {
        assert!(jobs.settled.try_recv().unwrap().cut.is_ok());
    }
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_snapshots_do_not_come_is_removed() {
    // The storage has cut one of them only.
    let api = serve(&[member("a")], &[]);
    api.always(get(IN_APP).answers(list("7", &[member("a")]))).always(watch(IN_APP).never_answers());
    api.next(get(CLAIMS).answers(all_of_group()));
    api.next(post(GROUPS).answers_with(|sent| group(&sent["metadata"]["name"])));
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let admitted = volumes.admit(vec![grouped(&volumes, "a"), grouped(&volumes, "b")]).await;
    let played = api.played();
    let taken = async {
        played.await;
        let name = api.writes()[0].body["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{GROUPS}/{name}");
        let mut late = group(&json!(name));
        late["status"]["error"]["message"] = json!(format!("no such driver\n{}", "x".repeat(1 << 20)));
        api.next(get(&path).answers(late));
        api.next(get(CONTENT).refuses(404)).next(delete(&path).answers(group(&json!(name))));
    };
    tokio::join!(volumes.take_frozen(admitted, Vec::new()), taken);
    for _ in 0..2 {
        let why = jobs.settled.try_recv().unwrap().cut.unwrap_err().why;
        assert!(why.contains("was not made within") && why.contains("no such driver"), "{why}");
        assert!(why.len() < 500 && !why.contains(char::is_control), "{} bytes", why.len());
    }
    assert!(outcomes.all().cuts.is_empty());
    api.finish();
}

/// Whoever deletes the group would take the snapshots from the archive, or has taken them.
#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_retained_is_not_taken() {
    let mut going = content_of_group();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (retained, told) in [
        (patch(CONTENT).refuses(403), "cannot be retained"),
        (patch(CONTENT).answers(going), "somebody has deleted its VolumeGroupSnapshot"),
    ] {
        let members = [member("a"), member("b")];
        let api = serve(&members, &[]);
        api.always(get(IN_APP).answers(list("7", &members))).always(watch(IN_APP).never_answers());
        api.next(get(CLAIMS).answers(all_of_group()));
        api.next(post(GROUPS).answers_with(|sent| group(&sent["metadata"]["name"])));
        api.next(get(CONTENT).answers(content_of_group())).next(retained);
        // Nothing of it stays.
        api.next(get(CONTENT).answers(content_of_group()));
        api.next(patch(CONTENT).answers(content_of_group()));
        let name = group_name(&digest("this/b/app/g"));
        api.next(delete(&format!("{GROUPS}/{name}")).answers(group(&json!(name))));
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
        let admitted = volumes.admit(vec![grouped(&volumes, "a"), grouped(&volumes, "b")]).await;
        volumes.take_frozen(admitted, Vec::new()).await;
        for _ in 0..2 {
            let why = jobs.settled.try_recv().unwrap().cut.unwrap_err().why;
            assert!(why.contains(told), "{why}");
        }
        assert_eq!(api.writes()[2].body["spec"], json!({"deletionPolicy": "Delete"}));
        assert!(outcomes.all().cuts.is_empty());
        api.finish();
    }
}

/// Its pods are frozen, and the answer would come too late.
#[tokio::test(start_paused = true)]
async fn a_group_whose_create_is_not_answered_is_waited_for_no_longer_than_its_snapshots() {
    let api = serve(&[], &[]);
    api.next(get(CLAIMS).answers(all_of_group()));
    api.always(post(GROUPS).never_answers());
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, _jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let claims = [grouped(&volumes, "a"), grouped(&volumes, "b")];
    // One after which a create would still be tried again.
    let longest = Duration::from_secs(15);
    let begun = Instant::now();
    let asks = claims.iter().map(|planned| (&planned.ask, Ok(None))).collect();
    for cut in volumes.cut_all(asks, longest).await {
        let why = cut.unwrap_err().why;
        assert!(why.contains("was not made within 15 s"), "{why}");
    }
    assert!(begun.elapsed() < longest + Duration::from_secs(1), "pods are frozen");
    api.finish();
}

/// A pod that uses some of the group may not be frozen.
#[tokio::test(start_paused = true)]
async fn claims_that_are_set_apart_get_a_snapshot_each_and_that_is_told() {
    let names = ["a", "b"].map(made);
    let snapshots = ["a", "b"].map(|claim| snapshot(&made(claim), claim));
    let api = serve(&snapshots, &names.clone().map(|name| content(&name, true, "Delete")));
    for snapshot in snapshots {
        api.next(post(IN_APP).answers(snapshot));
    }
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let mut claims = vec![grouped(&volumes, "a"), grouped(&volumes, "b")];
    claims.iter_mut().for_each(PlannedClaim::set_apart);
    let admitted = volumes.admit(claims).await;
    volumes.take_frozen(admitted, Vec::new()).await;
    for name in names {
        assert_eq!(jobs.settled.try_recv().unwrap().cut.unwrap().name, name);
    }
    volumes.tell();
    let told = format!("{:?}", log.told());
    assert!(log.counts().errors == 1 && told.contains("are not taken at one time"), "{told}");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_group_that_come_apart_get_a_snapshot_each_and_that_is_told() {
    let a = made("a");
    let api = serve(&[snapshot(&a, "a")], &[content(&a, true, "Delete")]);
    api.next(post(IN_APP).answers(snapshot(&a, "a")));
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let admitted = volumes.admit(vec![grouped(&volumes, "a")]).await;
    volumes.take_frozen(admitted, Vec::new()).await;
    assert_eq!(jobs.settled.try_recv().unwrap().cut.unwrap().name, a);
    volumes.tell();
    let told = format!("{:?}", log.told());
    assert!(told.contains("no group snapshot was taken of 1 claims") && told.contains("app/a"), "{told}");
    api.finish();
}

/// The snapshot controller would take other claims, or wait for one for ever, and the pods are
/// frozen.
#[tokio::test(start_paused = true)]
async fn where_a_group_has_changed_or_is_refused_its_claims_get_a_snapshot_each_and_that_is_told() {
    let of = |names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| claim(name, json!({LABEL: "g"}))).collect()
    };
    let mut going = of(&["a", "b"]);
    going[1]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let lists = |claims: &[Value]| get(CLAIMS).answers(list("7", claims));
    let mut anew = of(&["a", "b"]);
    anew[1]["status"]["phase"] = json!("Pending");
    let changed = "the claims of the group have changed";
    for (script, told) in [
        (vec![lists(&of(&["a"]))], changed),
        (vec![lists(&of(&["a", "b", "c"]))], changed),
        (vec![lists(&going)], changed),
        (vec![lists(&anew)], changed),
        (vec![get(CLAIMS).refuses(403)], "the claims of the group cannot be listed"),
        (vec![get(CLAIMS).never_answers()], "the claims of the group cannot be listed"),
        (vec![lists(&of(&["a", "b"])), post(GROUPS).refuses(403)], "could not be created"),
        // The cluster has no such kind by now.
        (vec![lists(&of(&["a", "b"])), post(GROUPS).refuses(404)], "could not be created"),
    ] {
        let names = ["a", "b"].map(made);
        let snapshots = ["a", "b"].map(|claim| snapshot(&made(claim), claim));
        let api = serve(&snapshots, &names.clone().map(|name| content(&name, true, "Delete")));
        for line in script {
            api.next(line);
        }
        for snapshot in snapshots {
            api.next(post(IN_APP).answers(snapshot));
        }
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, mut jobs) = labelled(&log, &outcomes, Some(access(&api)));
        let admitted = volumes.admit(vec![grouped(&volumes, "a"), grouped(&volumes, "b")]).await;
        let begun = Instant::now();
        volumes.take_frozen(admitted, Vec::new()).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "pods are frozen");
        for name in names {
            assert_eq!(jobs.settled.try_recv().unwrap().cut.unwrap().name, name);
        }
        volumes.tell();
        let errors = format!("{:?}", log.told());
        assert!(log.counts().errors == 1 && errors.contains(told), "{errors}");
        api.finish();
    }
}

/// An earlier run has cut the whole group, so nothing is of another moment.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_has_cut_of_a_group_is_taken_over() {
    let members = [member("a"), member("b")];
    let contents = ["a", "b"].map(|claim| content(&format!("snapshot-{claim}"), true, "Delete"));
    let api = serve(&members, &contents);
    let (log, mut earlier) = (BackupLog::new(String::new()), VolumeOutcomes::default());
    for claim in ["a", "b"] {
        let (name, uid) = (format!("snapshot-{claim}"), format!("uid-snapshot-{claim}"));
        let cut = StillCut { claim: format!("uid-{claim}"), name, uid, ..StillCut::default() };
        earlier.cuts.insert(format!("app/{claim}"), cut);
        api.always(get(&format!("{IN_APP}/snapshot-{claim}")).answers(member(claim)));
    }
    let outcomes = Outcomes::of(earlier);
    let (volumes, _jobs) = labelled(&log, &outcomes, Some(access(&api)));
    let claims = [grouped(&volumes, "a"), grouped(&volumes, "b")];
    let cuts = volumes.cut_group_later(&claims).await;
    assert!(cuts.iter().all(Result::is_ok) && api.writes().is_empty(), "{cuts:?}");
    volumes.tell();
    assert_eq!(log.counts().errors, 0);
}

#[tokio::test(start_paused = true)]
async fn claims_wait_for_the_others_of_their_group_and_for_no_one_at_the_end() {
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, None);
    let count = |job: VolumeJob| match job.work {
        VolumeWork::Group(claims) => claims.len(),
        VolumeWork::Claim(_) | VolumeWork::Files(_) => 0,
    };
    volumes.take_claim(grouped(&volumes, "a")).await.unwrap();
    assert!(jobs.later.try_recv().is_err());
    volumes.take_claim(grouped(&volumes, "b")).await.unwrap();
    assert_eq!(count(jobs.later.try_recv().unwrap()), 2);
    volumes.take_claim(grouped(&volumes, "a")).await.unwrap();
    let alone = async { count(jobs.later.recv().await.unwrap()) };
    let (alone, ()) = tokio::join!(alone, volumes.settled());
    assert_eq!(alone, 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_is_planned_by_all_claims_that_have_the_label() {
    let own = || json!({LABEL: "g"});
    let excluded = json!({LABEL: "g", "velero.io/exclude-from-backup": "true"});
    let class = |name: &str| json!({"metadata": {"name": name}, "driver": "d"});
    for (others, is_group, told) in [
        (vec![claim("b", own())], true, ""),
        (vec![claim("b", excluded)], false, "claim b belongs to the group"),
        // A group of one.
        (Vec::new(), false, ""),
    ] {
        let api = Scripted::new();
        let mut all = vec![claim("a", own())];
        all.extend(others);
        api.next(get(CLAIMS).answers(list("7", &all)));
        for name in ["a", "b"] {
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")},
                "spec": {"csi": {"driver": "d"}},
            });
            api.always(get(&format!("/api/v1/persistentvolumes/pv-{name}")).answers(volume));
        }
        let classes = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
        api.always(get(classes).answers(list("7", &[class("alone")])));
        api.always(get(GROUP_CLASSES).answers(list("7", &[class("together")])));
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = labelled(&log, &outcomes, Some(access(&api)));
        let found = FoundClaim::read(&claim("a", own()));
        for _ in 0..2 {
            let group = volumes.group_of("app", "app/a", &found).await.unwrap();
            assert_eq!(group, is_group.then(plan));
        }
        volumes.tell();
        let errors = format!("{:?}", log.told());
        assert_eq!(log.counts().errors, u32::from(!told.is_empty()), "{errors}");
        assert!(errors.contains(told), "{errors}");
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn no_claims_are_listed_of_groups_that_no_class_or_no_room_is_there_for() {
    for (classes, groups, told) in [
        (Vec::new(), 0, "there is no VolumeGroupSnapshotClass"),
        (
            vec![json!({"metadata": {"name": "together"}, "driver": "d"})],
            MOST_GROUPS,
            "more than 1000 groups",
        ),
    ] {
        let api = Scripted::new().next(get(GROUP_CLASSES).answers(list("7", &classes)));
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = labelled(&log, &outcomes, Some(access(&api)));
        let known = (0..groups).map(|at| (format!("app/{at}"), Ok(plan())));
        volumes.seen.lock().groups.extend(known);
        let found = FoundClaim::read(&claim("a", json!({LABEL: "g"})));
        assert_eq!(volumes.group_of("app", "app/a", &found).await.unwrap(), None);
        assert_eq!(volumes.seen.lock().groups.len(), groups);
        volumes.tell();
        let errors = format!("{:?}", log.told());
        assert!(log.counts().errors == 1 && errors.contains(told), "{errors}");
        api.finish();
    }
}

/// Each of them waits for the others of its group.
#[tokio::test(start_paused = true)]
async fn no_more_claims_wait_for_others_of_their_groups_than_there_is_room_for() {
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, mut jobs) = labelled(&log, &outcomes, None);
    for at in 0..=UNDER_WAY {
        assert!(jobs.later.try_recv().is_err(), "{at}");
        let mut planned = planned(&volumes, "a");
        planned.ask.group = Some(Arc::new(GroupPlan { key: format!("app/{at:05}"), ..(*plan()).clone() }));
        volumes.take_claim(planned).await.unwrap();
    }
    let sent = jobs.later.try_recv().unwrap();
    let VolumeWork::Group(claims) = &sent.work else { panic!("a group is sent") };
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].ask.group.as_ref().unwrap().key, "app/00000");
    assert!(jobs.later.try_recv().is_err());
    assert_eq!(volumes.seen.lock().parked.len(), UNDER_WAY);
}
