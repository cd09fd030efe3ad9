//! A restored volume and the claim that it is for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

const DOWNLOAD: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datadownloads/down";
const VOLUME: &str = "/api/v1/persistentvolumes/pv-new";

fn volume(claim: &Value, annotations: &Value, policy: &str) -> Value {
    // One that is retained for a movement is labelled in the same write.
    let labels = match annotations.get("berth.dev/reclaim-policy") {
        Some(_) => json!({"berth.dev/made-for": "d"}),
        None => json!({}),
    };
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": "pv-new", "uid": "pv", "resourceVersion": "4", "annotations": annotations, "labels": labels,
        },
        "spec": {"claimRef": claim, "persistentVolumeReclaimPolicy": policy},
    })
}

/// The claim that was made for the movement, which has the volume.
fn made_claim_with_volume() -> Value {
    let mut there = claim("velero", "down", "uid-down", &json!({"volumeName": "pv-new"}));
    there["metadata"] = made("down", "d")["metadata"].clone();
    there
}

#[tokio::test(start_paused = true)]
async fn a_restored_volume_is_retained_until_its_claim_has_it() {
    let selector = json!({"selector": {"matchLabels": {"velero.io/dynamic-pv-restore": "x"}}});
    let target = |spec: &Value, phase: &str| {
        let mut target = claim("shop", "data", "c", spec);
        target["status"] = json!({"phase": phase});
        target
    };
    let made_claim = json!({"namespace": "velero", "name": "down", "uid": "uid-down"});
    let named = json!({keys::RESTORED: "2026-01-01T00:00:00Z", "berth.dev/restored-volume": "pv-new"});
    let kept = json!({"berth.dev/reclaim-policy": "Delete"});
    let with = |name: &str| json!({"volumeName": name});
    let gone = |path: &str| get(&at(path, "down")).refuses(404);

    // First the volume is noted, because soon no claim names it.
    let api = Scripted::new()
        .next(get(SOURCE).answers(target(&selector, "Pending")))
        .next(gone(PODS))
        .next(get(&at(CLAIMS, "down")).answers(made_claim_with_volume()))
        .next(patch(DOWNLOAD).answers(made("down", "d")));
    assert_eq!(
        movements(&api).bind(&download(&json!({keys::RESTORED: "2026-01-01T00:00:00Z"}))).await,
        Ok(false)
    );
    let written = &api.writes()[0].body["metadata"];
    assert_eq!(
        (&written["annotations"]["berth.dev/restored-volume"], &written["resourceVersion"]),
        (&json!("pv-new"), &json!("7"))
    );

    let begin = |target: Value, volume: Value| {
        Scripted::new().next(get(SOURCE).answers(target)).next(gone(PODS)).next(get(VOLUME).answers(volume))
    };
    let changed = volume(&made_claim, &kept, "Retain");
    let api = begin(target(&selector, "Pending"), volume(&made_claim, &json!({}), "Delete"))
        .next(get(&at(CLAIMS, "down")).answers(made_claim_with_volume()))
        .next(patch(VOLUME).answers(changed.clone()));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(false));
    let written = &api.writes()[0].body;
    assert_eq!(written["spec"], json!({"persistentVolumeReclaimPolicy": "Retain"}));
    assert_eq!(written["metadata"]["annotations"], kept);
    assert_eq!(written["metadata"]["labels"]["velero.io/dynamic-pv-restore"], "x");

    // Only then the claim goes that would take the volume with it.
    let api = begin(target(&selector, "Pending"), changed.clone())
        .next(get(&at(CLAIMS, "down")).answers(made("down", "d")))
        .next(delete(&at(CLAIMS, "down")).answers(deleted()));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(false));

    let api = begin(target(&selector, "Pending"), changed.clone())
        .next(gone(CLAIMS))
        .next(patch(SOURCE).answers(target(&with("pv-new"), "Pending")));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(false));
    assert_eq!(api.writes()[0].body["spec"], with("pv-new"));

    let api = begin(target(&with("pv-new"), "Pending"), changed.clone())
        .next(gone(CLAIMS))
        .next(patch(VOLUME).answers(changed));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(false));
    let to = &api.writes()[0].body["spec"]["claimRef"];
    assert_eq!((&to["namespace"], &to["name"], &to["uid"]), (&json!("shop"), &json!("data"), &json!("c")));

    let given = volume(&json!({"namespace": "shop", "name": "data", "uid": "c"}), &kept, "Retain");
    let api = begin(target(&with("pv-new"), "Pending"), given.clone()).next(gone(CLAIMS));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(false), "the claim is not bound yet");
    let api = begin(target(&with("pv-new"), "Bound"), given.clone())
        .next(gone(CLAIMS))
        .next(patch(VOLUME).answers(given));
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(true));
    let written = &api.writes()[0].body;
    assert_eq!(written["spec"], json!({"persistentVolumeReclaimPolicy": "Delete"}));
    assert!(written["metadata"]["annotations"]["berth.dev/reclaim-policy"].is_null());

    // The phase could not be written then.
    let given = volume(&json!({"namespace": "shop", "name": "data", "uid": "c"}), &json!({}), "Delete");
    let api = begin(target(&with("pv-new"), "Bound"), given);
    assert_eq!(movements(&api).bind(&download(&named)).await, Ok(true));
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn only_a_volume_that_stays_is_named_when_it_was_not_bound_in_time() {
    let claim = json!({"namespace": "velero", "name": "down"});
    let of = |policy: &str, uid: &str| {
        let mut volume = volume(&claim, &json!({}), policy);
        volume["metadata"]["labels"] = json!({"berth.dev/made-for": uid});
        get(VOLUME).answers(volume)
    };
    let named = "its data is in PersistentVolume pv-new";
    for (answer, is_named, wanted) in [
        (of("Retain", "d"), true, named),
        (of("Delete", "d"), false, "PersistentVolume"),
        (of("Retain", "another"), false, "PersistentVolume"),
        (get(VOLUME).refuses(404), false, "PersistentVolume"),
        (
            get(VOLUME).refuses(403),
            true,
            "its data may be in PersistentVolume pv-new, which could not be read",
        ),
    ] {
        let api = Scripted::new().next(answer).next(patch(DOWNLOAD).answers(made("down", "d")));
        let item = download(&json!({"berth.dev/restored-volume": "pv-new"}));
        movements(&api).take(&item, OwnStep::Fail(OwnFault::NotBound), &Mutex::default()).await;
        let message = api.writes()[0].body["status"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message.contains(wanted), is_named, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_somebody_else_has_is_not_given_away() {
    let named = json!({"berth.dev/restored-volume": "pv-new"});
    let theirs = volume(&json!({"namespace": "shop", "name": "other"}), &json!({}), "Delete");
    let api = Scripted::new()
        .next(get(SOURCE).answers(source()))
        .next(get(&at(PODS, "down")).refuses(404))
        .next(get(VOLUME).answers(theirs));
    assert!(matches!(movements(&api).bind(&download(&named)).await, Err(Unmade::Never(_))));
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn the_volume_of_a_deleted_movement_goes_as_it_would_have_gone() {
    let claim = json!({"namespace": "velero", "name": "down"});
    let kept = json!({"berth.dev/reclaim-policy": "Delete"});
    let movement = |is_deleted: bool| {
        let mut item = download(&json!({"berth.dev/restored-volume": "pv-new"}));
        if let Carried::Download(object) = &mut item.object {
            let at = "2026-01-01T00:00:00Z".parse().unwrap();
            Arc::make_mut(object).metadata.deletion_timestamp = is_deleted.then_some(Time(at));
        }
        item
    };
    let all_gone = || {
        let gone = |path: &str| get(&at(path, "down")).refuses(404);
        Scripted::new().next(gone(PODS)).next(gone(CLAIMS))
    };
    let mut its = volume(&claim, &kept, "Retain");
    its["metadata"]["labels"] = json!({"berth.dev/made-for": "d"});
    let api = all_gone().next(get(VOLUME).answers(its.clone())).next(patch(VOLUME).answers(its.clone()));
    assert!(movements(&api).clear(&movement(true)).await.unwrap());
    let written = &api.writes()[0].body;
    assert_eq!(written["spec"], json!({"persistentVolumeReclaimPolicy": "Delete"}));
    assert_eq!(written["metadata"]["resourceVersion"], "4");
    assert!(written["metadata"]["labels"]["berth.dev/made-for"].is_null());

    its["metadata"]["labels"] = json!({"berth.dev/made-for": "another"});
    let api = all_gone().next(get(VOLUME).answers(its));
    assert!(movements(&api).clear(&movement(true)).await.unwrap());
    assert_eq!(api.writes(), []);
    // Its message names the volume as long as it is there.
    let api = all_gone();
    assert!(movements(&api).clear(&movement(false)).await.unwrap());
}

async fn ensure_kept(api: &Scripted) {
    let done = movements(api).bind(&download(&json!({"berth.dev/restored-volume": "pv-new"}))).await;
    assert!(matches!(&done, Err(Unmade::Never(why)) if why.contains("was not made for")), "{done:?}");
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_not_made_for_the_movement_is_not_given_away() {
    let begin = |volume: Value| {
        Scripted::new()
            .next(get(SOURCE).answers(claim("shop", "data", "c", &json!({}))))
            .next(get(&at(PODS, "down")).refuses(404))
            .next(get(VOLUME).answers(volume))
    };
    // A claim of somebody in berth's namespace has the name of the movement.
    let holder = |uid: &str| json!({"namespace": "velero", "name": "down", "uid": uid});
    let theirs = claim("velero", "down", "theirs", &json!({"volumeName": "pv-new"}));
    let api =
        begin(volume(&holder("theirs"), &json!({}), "Delete")).next(get(&at(CLAIMS, "down")).answers(theirs));
    ensure_kept(&api).await;
    // Such a claim is gone, and its volume is still there.
    let api = begin(volume(&holder("theirs"), &json!({}), "Retain"))
        .next(get(&at(CLAIMS, "down")).answers(made_claim_with_volume()));
    ensure_kept(&api).await;
    // Another movement has restored it.
    let mut other = volume(&holder("uid-down"), &json!({"berth.dev/reclaim-policy": "Delete"}), "Retain");
    other["metadata"]["labels"] = json!({"berth.dev/made-for": "another"});
    ensure_kept(&begin(other)).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_claim_is_gone_is_named() {
    let its = volume(
        &json!({"namespace": "velero", "name": "down"}),
        &json!({"berth.dev/reclaim-policy": "Delete"}),
        "Retain",
    );
    let api = Scripted::new()
        .next(get(SOURCE).refuses(404))
        .next(get(VOLUME).answers(its))
        .next(patch(DOWNLOAD).answers(made("down", "d")));
    let item = download(&json!({"berth.dev/restored-volume": "pv-new"}));
    movements(&api).take(&item, OwnStep::Bind, &Mutex::default()).await;
    let status = &api.writes()[0].body["status"];
    assert_eq!(
        (&status["phase"], &status["message"]),
        (&json!("Failed"), &json!("claim shop/data is gone; its data is in PersistentVolume pv-new"))
    );
}
