//! What is removed of what was made, and what stays.

use super::*;

#[tokio::test(start_paused = true)]
async fn all_that_was_made_goes_and_then_the_snapshot_that_was_taken_for_it() {
    let going = |path: &str| {
        let mut going = made("up", "u");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        get(&at(path, "up")).answers(going)
    };
    let mut of_cluster = made("up", "u");
    of_cluster["metadata"]["namespace"] = Value::Null;
    of_cluster["metadata"]["ownerReferences"] = json!([]);
    let api = Scripted::new()
        .next(get(&at(PODS, "up")).answers(made("up", "u")))
        .next(delete(&at(PODS, "up")).answers(deleted()))
        .next(going(CLAIMS))
        .next(get(&at(SNAPSHOTS, "up")).refuses(404))
        .next(get(&at(CONTENTS, "up")).answers(of_cluster))
        .next(delete(&at(CONTENTS, "up")).answers(deleted()));
    assert!(!movements(&api).clear(&upload()).await.unwrap(), "they are not gone yet");
    assert_eq!(api.writes()[0].body["preconditions"], json!({"uid": "uid-up"}));

    let all_gone = || {
        let gone = |path: &str| get(&at(path, "up")).refuses(404);
        Scripted::new().next(gone(PODS)).next(gone(CLAIMS)).next(gone(SNAPSHOTS)).next(gone(CONTENTS))
    };
    // It is handed over to the movement, or not yet.
    for label in [json!({"berth.dev/made-for": "u"}), json!({"velero.io/backup-uid": "b"})] {
        let api = all_gone()
            .next(get(ORIGINAL).answers(original(&label)))
            .next(get(&at(CONTENTS, "content")).answers(content("s", "Filesystem")))
            .next(patch(&at(CONTENTS, "content")).answers(content("s", "Filesystem")))
            .next(delete(ORIGINAL).answers(deleted()));
        assert!(movements(&api).clear(&upload()).await.unwrap());
    }
    // Somebody has named a snapshot of his own, or that of another movement of the same claim, for
    // a Backup that had the same name.
    for label in [
        json!({}),
        json!({"velero.io/backup-name": "nightly"}),
        json!({"velero.io/backup-name": "nightly", "berth.dev/made-for": "another"}),
        json!({"velero.io/backup-name": "nightly", "velero.io/backup-uid": "another"}),
    ] {
        let api = all_gone().next(get(ORIGINAL).answers(original(&label)));
        assert!(movements(&api).clear(&upload()).await.unwrap());
        assert_eq!(api.writes(), [], "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_movement_or_nobody_made_is_not_removed() {
    let api = Scripted::new()
        .next(get(&at(PODS, "down")).answers(made("down", "another")))
        .next(get(&at(CLAIMS, "down")).answers(made("down", "another")));
    assert!(movements(&api).clear(&download(&json!({}))).await.unwrap());
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn contents_of_movements_that_are_gone_are_removed_and_no_others() {
    let left = |name: &str, uid: &str, namespace: &str, policy: &str| {
        let mut content = content("x", "Filesystem");
        content["metadata"] = json!({"name": name, "uid": name, "labels": {"berth.dev/made-for": uid}});
        content["spec"]["deletionPolicy"] = json!(policy);
        content["spec"]["volumeSnapshotRef"] = json!({"namespace": namespace});
        content
    };
    let found = list(
        "5",
        &[
            left("gone", "g", "velero", "Retain"),
            left("known", "u", "velero", "Retain"),
            left("elsewhere", "g", "other", "Retain"),
            left("deletes", "g", "velero", "Delete"),
        ],
    );
    let api = Scripted::new()
        .next(get(AGENTS).answers(made("berth-node-agent", "nobody")))
        .next(get(PODS).answers(list("5", &[])))
        .next(get(CLAIMS).answers(list("5", &[])))
        .next(get(SNAPSHOTS).answers(list("5", &[])))
        .next(get(CONTENTS).answers(found))
        .next(get(&at(UPLOADS, "gone")).refuses(404))
        .next(get(&at(DOWNLOADS, "gone")).refuses(404))
        .next(get(&at(BACKUPS, "gone")).refuses(404))
        .next(get(&at(RESTORES, "gone")).refuses(404))
        .next(delete(&at(CONTENTS, "gone")).answers(deleted()));
    movements(&api).sweep(&BTreeSet::from(["u"])).await;
    assert_eq!(api.writes().len(), 1);
    // Where they are not installed, the controller may not list contents.
    let api = Scripted::new().next(get(AGENTS).refuses(404));
    movements(&api).sweep(&BTreeSet::new()).await;
}

/// Those that are known fill the first page in each look.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_found_behind_a_page_of_what_is_needed() {
    let object = |name: &str| {
        let mut object = made(name, name);
        object.as_object_mut().unwrap().retain(|key, _| key == "metadata");
        object
    };
    let api = Scripted::new()
        .next(get(AGENTS).answers(made("berth-node-agent", "nobody")))
        .next(get(PODS).answers(page("5", "two", &[object("known")])))
        .next(get(PODS).page("two").answers(page("5", "three", &[])))
        .next(get(PODS).page("three").answers(list("5", &[object("gone")])))
        .next(get(&at(UPLOADS, "gone")).refuses(404))
        .next(get(&at(DOWNLOADS, "gone")).refuses(404))
        .next(get(&at(BACKUPS, "gone")).refuses(404))
        .next(get(&at(RESTORES, "gone")).refuses(404))
        .next(delete(&at(PODS, "gone")).answers(deleted()))
        .next(get(CLAIMS).answers(list("5", &[])))
        .next(get(SNAPSHOTS).answers(list("5", &[])))
        .next(get(CONTENTS).answers(list("5", &[])));
    movements(&api).sweep(&BTreeSet::from(["known"])).await;
    assert_eq!(api.writes().len(), 1);
}

/// An API server whose pages lead nowhere holds no movement up.
#[tokio::test(start_paused = true)]
async fn a_look_at_what_is_left_ends_however_many_pages_there_are() {
    let empty = || page("5", "again", &[]);
    let api = Scripted::new()
        .next(get(AGENTS).answers(made("berth-node-agent", "nobody")))
        .always(get(PODS).answers(empty()))
        .always(get(PODS).page("again").answers(empty()))
        .next(get(CLAIMS).answers(list("5", &[])))
        .next(get(SNAPSHOTS).answers(list("5", &[])))
        .next(get(CONTENTS).answers(list("5", &[])));
    movements(&api).sweep(&BTreeSet::new()).await;
    let asked = api.asked().iter().filter(|asked| asked.contains("/pods")).count();
    assert_eq!(asked, 40);
    api.finish();
    // Nor does one that does not answer.
    let api = Scripted::new()
        .next(get(AGENTS).answers(made("berth-node-agent", "nobody")))
        .next(get(PODS).never_answers());
    let begun = Instant::now();
    movements(&api).sweep(&BTreeSet::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 120);
}

/// A former leader with an old view makes claim and pod of a movement once more that has ended
/// since then, and that nobody clears a second time.
#[tokio::test(start_paused = true)]
async fn what_is_made_again_for_a_movement_that_has_ended_is_removed_and_nothing_else() {
    let object = |name: &str| {
        let mut object = made(name, name);
        object["metadata"]["resourceVersion"] = json!("4");
        // In a list the API server does not say it of each.
        object.as_object_mut().unwrap().retain(|key, _| key == "metadata");
        object
    };
    let mut unowned = object("unowned");
    unowned["metadata"]["ownerReferences"] = json!([]);
    let mut going = object("going");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let found = || {
        let names = ["known", "ended", "new", "clearing", "again"];
        let objects: Vec<Value> =
            names.map(object).into_iter().chain([unowned.clone(), going.clone()]).collect();
        list("5", &objects)
    };
    let movement = |name: &str, uid: &str, phase: &str, annotations: Value| {
        get(&at(UPLOADS, name)).answers(json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": {"name": name, "namespace": "velero", "uid": uid, "annotations": annotations},
            "spec": {"datamover": "berth"}, "status": {"phase": phase},
        }))
    };
    let absent = |kind: &str, name: &str| get(&at(kind, name)).refuses(404);
    let read = |api: Scripted, path: &str| {
        api.next(get(path).answers(found()))
            .next(movement("ended", "ended", "Completed", json!({})))
            .next(absent(DOWNLOADS, "ended"))
            .next(absent(BACKUPS, "ended"))
            .next(absent(RESTORES, "ended"))
            .next(delete(&at(path, "ended")).answers(deleted()))
            // Another leader has accepted it since this one saw anything.
            .next(movement("new", "new", "Accepted", json!({})))
            // Its own step removes what it has.
            .next(movement("clearing", "clearing", "Failed", json!({keys::MADE: "t"})))
            // It was deleted, and another one has its name.
            .next(movement("again", "another", "InProgress", json!({})))
            .next(absent(DOWNLOADS, "again"))
            .next(absent(BACKUPS, "again"))
            .next(absent(RESTORES, "again"))
            .next(delete(&at(path, "again")).refuses(409))
    };
    let api = Scripted::new().next(get(AGENTS).answers(made("berth-node-agent", "nobody")));
    let api =
        read(read(api, PODS), CLAIMS).next(get(SNAPSHOTS).refuses(404)).next(get(CONTENTS).refuses(404));
    movements(&api).sweep(&BTreeSet::from(["known"])).await;
    let writes = api.writes();
    let wanted = json!({"uid": "uid-ended", "resourceVersion": "4"});
    for path in [PODS, CLAIMS] {
        let removed = writes.iter().find(|write| write.path == at(path, "ended")).unwrap();
        assert_eq!(removed.body["preconditions"], wanted, "{path}");
    }
    assert_eq!(writes.len(), 4);
    // What cannot be read is left for the next look.
    let api = Scripted::new()
        .next(get(AGENTS).answers(made("berth-node-agent", "nobody")))
        .next(get(PODS).answers(list("5", &[object("ended")])))
        .next(get(&at(UPLOADS, "ended")).refuses(500))
        .next(get(CLAIMS).answers(list("5", &[])))
        .next(get(SNAPSHOTS).answers(list("5", &[])))
        .next(get(CONTENTS).answers(list("5", &[])));
    movements(&api).sweep(&BTreeSet::new()).await;
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn a_movement_that_is_deleted_stays_until_nothing_is_left_of_what_was_made() {
    let told = Mutex::default();
    let held = |finalizers: &[&str]| {
        let mut item = download(&json!({}));
        if let Carried::Download(object) = &mut item.object {
            let finalizers = finalizers.iter().map(|&one| one.to_owned()).collect();
            Arc::make_mut(object).metadata.finalizers = Some(finalizers);
        }
        item
    };
    let path = UPLOAD.replace("datauploads/up", "datadownloads/down");
    let api = Scripted::new()
        .next(patch(&path).answers(made("down", "d")))
        .next(get(&at(PODS, "down")).refuses(404))
        .next(get(&at(CLAIMS, "down")).refuses(404))
        .next(patch(&path).answers(made("down", "d")));
    let own = movements(&api);
    own.take(&held(&["some/other"]), OwnStep::Accept, &told).await;
    own.take(&held(&["some/other", "berth.dev/data-mover"]), OwnStep::Clear, &told).await;
    let writes = api.writes();
    assert_eq!(writes[0].body["metadata"]["finalizers"], json!(["some/other", "berth.dev/data-mover"]));
    let cleared = &writes[1].body["metadata"];
    assert_eq!(cleared["finalizers"], json!(["some/other"]));
    assert!(cleared["annotations"].as_object().unwrap()["berth.dev/made"].is_null());
}

#[tokio::test(start_paused = true)]
async fn what_is_canceled_before_it_is_accepted_is_cleared_because_of_its_snapshot() {
    let api = Scripted::new().next(patch(UPLOAD).answers(made("up", "u")));
    movements(&api).take(&upload(), OwnStep::Cancel, &Mutex::default()).await;
    let written = &api.writes()[0].body;
    assert_eq!(written["status"]["phase"], "Canceled");
    assert!(written["metadata"]["annotations"]["berth.dev/made"].is_string(), "{written}");
    assert_eq!(written["metadata"]["resourceVersion"], "7");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_lost_is_noted_before_it_is_removed() {
    let told = Mutex::default();
    let lost = |noted: &str| {
        let mut item = Item { pod: Some(seen_pod(PodStage::Lost, "Evicted")), ..upload() };
        if let Carried::Upload(object) = &mut item.object {
            let annotations = Arc::make_mut(object).metadata.annotations.get_or_insert_default();
            annotations.insert(keys::LOST_PODS.to_owned(), noted.to_owned());
        }
        item
    };
    let item = lost("another");
    assert_eq!(item.seen().lost_pods, 1);
    let api = Scripted::new().next(patch(UPLOAD).answers(made("up", "u")));
    movements(&api).take(&item, OwnStep::Replace, &told).await;
    let written = &api.writes()[0].body["metadata"];
    assert_eq!(
        (&written["annotations"]["berth.dev/lost-pods"], &written["resourceVersion"]),
        (&json!("another pod"), &json!("7"))
    );
    let item = lost("another pod");
    assert_eq!(item.seen().lost_pods, 1, "it was not lost before itself");
    let api = Scripted::new().next(delete(&at(PODS, "up")).answers(deleted()));
    movements(&api).take(&item, OwnStep::Replace, &told).await;
    assert_eq!(api.writes()[0].body["preconditions"], json!({"uid": "pod"}));
}
