//! What is made for a movement and removed, and that nothing else is touched.

mod binding;
mod clearing;
mod files;
mod making;

use berth_core::mover::grant::MoverPhase;
use berth_core::mover::own::{OwnFault, PodStage};
use berth_test_scripted::{Ask, Scripted, delete, get, list, page, patch, post};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::*;
use crate::install::pod_volumes::AGENT;
use crate::install::{InstallSettings, render};

const UPLOAD: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads/up";
const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";
const DOWNLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datadownloads";
const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
const RESTORES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumerestores";
const AGENTS: &str = "/apis/apps/v1/namespaces/velero/daemonsets/berth-node-agent";
const PODS: &str = "/api/v1/namespaces/velero/pods";
const CLAIMS: &str = "/api/v1/namespaces/velero/persistentvolumeclaims";
const SOURCE: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/velero/volumesnapshots";
const ORIGINAL: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/snap";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";

fn movements(api: &Scripted) -> OwnMovements {
    let client = api.client("velero");
    let (events, _) = Events::new(client.clone(), "velero", Counter::default());
    let clients = Clients { watch: client.clone(), call: client };
    let (namespace, metrics) = ("velero".to_owned(), OwnMetrics::default());
    let host_pods = "/var/lib/kubelet/pods".into();
    OwnMovements { clients, namespace, host_pods, node_cache: Arc::default(), events, metrics }
}

fn item(object: Carried) -> Item {
    Item { mover: object.mover(), object, pod: None, canceled_at: None, restored_at: None }
}

fn upload() -> Item {
    let object = json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": {
            "name": "up", "namespace": "velero", "uid": "u", "resourceVersion": "7",
            "labels": {"velero.io/backup-name": "nightly"},
            "ownerReferences": [{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "nightly", "uid": "b"}],
        },
        "spec": {
            "datamover": "berth", "sourceNamespace": "shop", "sourcePVC": "data",
            "csiSnapshot": {"volumeSnapshot": "snap", "storageClass": "fast"},
        },
        "status": {"phase": "Accepted"},
    });
    item(Carried::Upload(Arc::new(serde_json::from_value(object).unwrap())))
}

fn download(annotations: &Value) -> Item {
    let object = json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
        "metadata": {
            "name": "down", "namespace": "velero", "uid": "d", "resourceVersion": "7", "annotations": annotations,
        },
        "spec": {"datamover": "berth", "targetVolume": {"namespace": "shop", "pvc": "data"}},
        "status": {"phase": "InProgress"},
    });
    item(Carried::Download(Arc::new(serde_json::from_value(object).unwrap())))
}

fn agents() -> Value {
    let settings = InstallSettings { pod_volumes: true, ..InstallSettings::new("velero") };
    let is_it = |one: &Value| one["kind"] == "DaemonSet" && one["metadata"]["name"] == AGENT;
    render(&settings).unwrap().into_iter().find(is_it).unwrap()
}

fn claim(namespace: &str, name: &str, uid: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "3"}, "spec": spec,
    })
}

fn source() -> Value {
    let spec = json!({"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}});
    claim("shop", "data", "c", &spec)
}

fn original(labels: &Value) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "shop", "uid": "s", "labels": labels},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
        "status": {"boundVolumeSnapshotContentName": "content"},
    })
}

fn content(of: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content", "uid": "vsc"},
        "spec": {
            "deletionPolicy": "Delete", "driver": "csi.test", "volumeSnapshotClassName": "snaps",
            "sourceVolumeMode": mode, "volumeSnapshotRef": {"uid": of},
        },
        "status": {"snapshotHandle": "h", "restoreSize": 5},
    })
}

/// The metadata of something that was made for the movement with this UID.
fn made(name: &str, of: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": name, "namespace": "velero", "uid": format!("uid-{name}"), "labels": {"berth.dev/made-for": of},
            "ownerReferences": [{"apiVersion": "velero.io/v2alpha1", "kind": "K", "name": name, "uid": of}],
        },
    })
}

fn deleted() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"})
}

fn seen_pod(stage: PodStage, why: &str) -> SeenPod {
    SeenPod { of: "u".to_owned(), uid: "pod".to_owned(), stage, since: None, node: None, why: why.to_owned() }
}

fn at(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_made_of_a_copy_that_takes_nothing_from_the_storage() {
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).refuses(404))
        .next(get(SOURCE).answers(source()))
        .next(get(ORIGINAL).answers(original(&json!({}))))
        .next(get(&at(CONTENTS, "content")).answers(content("s", "Filesystem")))
        .next(post(CONTENTS).takes_as("1"))
        .next(post(SNAPSHOTS).takes_as("1"))
        .next(post(CLAIMS).takes_as("1"))
        .next(post(PODS).takes_as("1"));
    assert_eq!(movements(&api).make(&upload()).await, Ok(()));
    let writes = api.writes();
    let [copy, snapshot, claim, pod] = writes.as_slice() else { panic!("{writes:#?}") };
    assert_eq!(
        copy.body["spec"],
        json!({
            "deletionPolicy": "Retain", "driver": "csi.test", "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "namespace": "velero", "name": "up",
            },
            "volumeSnapshotClassName": "snaps", "sourceVolumeMode": "Filesystem",
        })
    );
    assert_eq!(copy.body["metadata"], json!({"name": "up", "labels": {"berth.dev/made-for": "u"}}));
    assert_eq!(
        snapshot.body["spec"],
        json!({"source": {"volumeSnapshotContentName": "up"}, "volumeSnapshotClassName": "snaps"})
    );
    let owner = json!([{
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "up", "uid": "u", "controller": true,
    }]);
    for made in [snapshot, claim, pod] {
        assert_eq!(made.body["metadata"]["ownerReferences"], owner, "{}", made.path);
    }
    let spec = &claim.body["spec"];
    assert_eq!((&spec["storageClassName"], &spec["dataSource"]["name"]), (&json!("fast"), &json!("up")));
    assert_eq!(spec["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(pod.body["spec"]["restartPolicy"], "OnFailure");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_leader_has_made_is_gone_on_with() {
    let mut there = made("up", "u");
    there["apiVersion"] = json!("v1");
    there["kind"] = json!("PersistentVolumeClaim");
    let mut pod = there.clone();
    pod["kind"] = json!("Pod");
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).answers(there))
        .next(get(SOURCE).refuses(404))
        .next(post(PODS).already_exists())
        .next(get(&at(PODS, "up")).answers(pod));
    assert_eq!(movements(&api).make(&upload()).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_is_somebody_elses_is_not_used_and_says_so() {
    let mut theirs = source();
    theirs["metadata"] = made("up", "somebody")["metadata"].clone();
    let begin = || Scripted::new().next(get(AGENTS).answers(agents()));
    let of_snapshot = |content: Value| {
        begin()
            .next(get(&at(CLAIMS, "up")).refuses(404))
            .next(get(SOURCE).answers(source()))
            .next(get(ORIGINAL).answers(original(&json!({}))))
            .next(get(&at(CONTENTS, "content")).answers(content))
    };
    for (api, wanted) in [
        (begin().next(get(&at(CLAIMS, "up")).answers(theirs)), "was not made for this movement"),
        (of_snapshot(content("another", "Filesystem")), "names the content of another one"),
        (Scripted::new().next(get(AGENTS).refuses(404)), "berth install --pod-volumes"),
    ] {
        let unmade = movements(&api).make(&upload()).await;
        let Err(Unmade::Never(why)) = unmade else { panic!("{unmade:?}") };
        assert!(why.contains(wanted), "{why}");
        assert_eq!(api.writes(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restore_needs_a_claim_without_a_volume() {
    let restore = |target: Ask, answer: Option<Value>| {
        let api =
            Scripted::new().next(get(AGENTS).answers(agents())).next(get(&at(CLAIMS, "down")).refuses(404));
        match answer {
            Some(answer) => api.next(target.answers(answer)),
            None => api.next(target.refuses(404)),
        }
    };
    let bound = claim("shop", "data", "c", &json!({"volumeName": "pv"}));
    let api = restore(get(SOURCE), Some(bound));
    let unmade = movements(&api).make(&download(&json!({}))).await;
    assert!(
        matches!(&unmade, Err(Unmade::Never(why)) if why.contains("has volume pv already")),
        "{unmade:?}"
    );
    // A restore makes it a moment later.
    let api = restore(get(SOURCE), None);
    assert!(matches!(movements(&api).make(&download(&json!({}))).await, Err(Unmade::Later(_))));
    let api =
        restore(get(SOURCE), Some(source())).next(post(CLAIMS).takes_as("1")).next(post(PODS).takes_as("1"));
    assert_eq!(movements(&api).make(&download(&json!({}))).await, Ok(()));
    let claim = &api.writes()[0].body;
    assert!(claim["spec"]["dataSource"].is_null() && claim["spec"]["selector"].is_null(), "{claim:#}");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
}

#[tokio::test(start_paused = true)]
async fn what_is_decided_is_written_on_what_was_seen() {
    let told = Mutex::default();
    let api = Scripted::new()
        .next(patch(UPLOAD).answers(made("up", "u")))
        .next(patch(UPLOAD).answers(made("up", "u")))
        .next(patch(UPLOAD).refuses(409));
    let own = movements(&api);
    let pod = seen_pod(PodStage::Ended, "OOMKilled");
    let failed = Item { pod: Some(pod), ..upload() };
    own.take(&failed, OwnStep::Accept, &told).await;
    own.take(&failed, OwnStep::Fail(OwnFault::PodEnded), &told).await;
    own.take(&failed, OwnStep::Begin, &told).await;
    let writes: Vec<Value> = api.writes().into_iter().map(|write| write.body).collect();
    assert!(
        writes.iter().all(|one| one["metadata"]["resourceVersion"] == "7" && one["metadata"]["uid"] == "u")
    );
    let phases: Vec<&Value> = writes.iter().map(|one| &one["status"]["phase"]).collect();
    assert_eq!(phases, [&json!("Accepted"), &json!("Failed"), &json!("Prepared")]);
    assert!(writes[0]["metadata"]["annotations"]["berth.dev/made"].is_string());
    assert!(writes[1]["status"]["message"].as_str().unwrap().ends_with(": OOMKilled"), "{}", writes[1]);
}

#[tokio::test(start_paused = true)]
async fn a_movement_that_has_ended_is_counted_when_nothing_is_left_of_it() {
    let mut item = download(&json!({}));
    let status = json!({
        "phase": "Failed", "message": "why", "progress": {"bytesDone": 7, "totalBytes": 9},
        "startTimestamp": "2026-01-01T00:00:00Z", "completionTimestamp": "2026-01-01T00:01:00Z",
    });
    if let Carried::Download(object) = &mut item.object {
        Arc::make_mut(object).status = serde_json::from_value(status).unwrap();
    }
    item.mover = item.object.mover();
    let path = UPLOAD.replace("datauploads/up", "datadownloads/down");
    let gone = |path: &str| get(&at(path, "down")).refuses(404);
    let api = Scripted::new()
        .next(gone(PODS))
        .next(gone(CLAIMS))
        .next(patch(&path).refuses(409))
        .next(gone(PODS))
        .next(gone(CLAIMS))
        .next(patch(&path).answers(made("down", "d")));
    let own = movements(&api);
    let mut registry = Registry::default();
    own.metrics.register(&mut registry);
    let registry = Arc::new(registry);
    let told = Mutex::default();
    own.take(&item, OwnStep::Clear, &told).await;
    let text = crate::metrics::encode(&registry).unwrap();
    assert!(!text.contains("own_ended_total{"), "it is cleared once more: {text}");
    own.take(&item, OwnStep::Clear, &told).await;
    let text = crate::metrics::encode(&registry).unwrap();
    for line in [
        r#"own_ended_total{kind="DataDownload",phase="Failed"} 1"#,
        r#"own_bytes_total{kind="DataDownload"} 7"#,
        r#"own_seconds_sum{kind="DataDownload"} 60.0"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    own.metrics.show([(item.mover.kind, item.mover.phase)]);
    let text = crate::metrics::encode(&registry).unwrap();
    assert!(text.contains(r#"own{kind="DataDownload",phase="Failed"} 1"#), "{text}");
}

#[test]
fn a_pod_tells_how_far_it_is_and_why_it_is_no_further() {
    let read = |status: Value, deleted: bool| {
        let mut pod = json!({
            "metadata": {
                "name": "up", "uid": "pod", "creationTimestamp": "2025-12-31T00:00:00Z",
                "labels": {"velero.io/data-upload": "up"}, "ownerReferences": [{
                    "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "up", "uid": "u", "controller": true,
                }],
            },
            "spec": {"nodeName": "n1", "containers": []}, "status": status,
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let (name, seen) = SeenPod::read(&serde_json::from_value(pod).unwrap());
        let SeenPod { of, uid, stage, since, node, why } = seen.unwrap();
        let wanted = if deleted { "2026-01-01T00:00:00Z" } else { "2025-12-31T00:00:00Z" };
        assert_eq!(since, Some(wanted.parse().unwrap()));
        assert_eq!(
            (name.as_str(), of.as_str(), uid.as_str(), node.as_deref()),
            ("up", "u", "pod", Some("n1"))
        );
        (stage, why)
    };
    let container = |state: Value| json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let waits = container(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}));
    let ended = container(json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}}));
    let nowhere = json!([{"type": "PodScheduled", "status": "False", "message": "no node fits"}]);
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "message": "its node goes"}]);
    for (status, deleted, stage, why) in [
        (json!({}), false, PodStage::Waiting, ""),
        (
            json!({"phase": "Pending", "containerStatuses": waits}),
            false,
            PodStage::Waiting,
            "ErrImagePull: no such image",
        ),
        (json!({"phase": "Pending", "conditions": nowhere}), false, PodStage::Waiting, "no node fits"),
        (json!({"phase": "Running"}), false, PodStage::Running, ""),
        (json!({"phase": "Running"}), true, PodStage::Waiting, ""),
        (json!({"phase": "Succeeded"}), false, PodStage::Ended, ""),
        (
            json!({"phase": "Failed", "containerStatuses": ended}),
            false,
            PodStage::Ended,
            "OOMKilled: exit code 137",
        ),
        (json!({"phase": "Failed", "reason": "Evicted"}), false, PodStage::Lost, "Evicted"),
        (json!({"phase": "Failed", "conditions": disrupted}), false, PodStage::Lost, ""),
        (json!({"phase": "Failed", "reason": "Evicted"}), true, PodStage::Waiting, "Evicted"),
    ] {
        assert_eq!(read(status.clone(), deleted), (stage, why.to_owned()), "{status}");
    }
    let (_, why) = read(json!({"phase": "Failed", "message": "long ".repeat(100_000)}), false);
    assert_eq!(why.chars().count(), 501, "a kubelet may say anything");
    assert!(SeenPod::read(&Pod::default()).1.is_none());
}

/// Its movement would fail at once if it were counted from its creation.
#[test]
fn a_pod_that_waits_again_after_it_ran_waits_since_then() {
    let since = |ready: &str, at: &str| {
        let pod = json!({
            "metadata": {
                "name": "up", "uid": "pod", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"velero.io/data-upload": "up"}, "ownerReferences": [{
                    "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "up", "uid": "u", "controller": true,
                }],
            },
            "status": {
                "phase": "Pending", "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at}],
            },
        });
        let (_, seen) = SeenPod::read(&serde_json::from_value(pod).unwrap());
        seen.unwrap().since.unwrap().to_string()
    };
    assert_eq!(since("False", "2026-01-01T05:00:00Z"), "2026-01-01T05:00:00Z");
    assert_eq!(since("True", "2026-01-01T05:00:00Z"), "2026-01-01T00:00:00Z");
    assert_eq!(since("False", "2025-01-01T05:00:00Z"), "2026-01-01T00:00:00Z");
}

#[test]
fn since_when_a_movement_is_canceled_is_known_as_long_as_it_is() {
    let mut known = SeenSince::default();
    let mut look = |canceled: bool, second: i64| {
        let mut items = [upload()];
        items[0].mover.canceled = canceled;
        note_since(&mut items, &mut known, Timestamp::from_second(second).unwrap());
        items[0].seen().canceled_at.map(Timestamp::as_second)
    };
    let seen = [(false, 1), (true, 2), (true, 3), (false, 4), (true, 5)].map(|(is, at)| look(is, at));
    assert_eq!(seen, [None, Some(2), Some(2), None, Some(5)]);
}

/// The node's clock is late, or nobody led for a while.
#[test]
fn a_restored_volume_has_its_time_from_when_the_leader_sees_it() {
    let mut known = SeenSince::default();
    let mut look = |minute: i64| {
        let mut items = [download(&json!({keys::RESTORED: "2020-01-01T00:00:00Z"}))];
        let now = Timestamp::from_second(1_767_225_600 + 60 * minute).unwrap();
        note_since(&mut items, &mut known, now);
        plan(&[items[0].seen()], &DataPaths::default(), now)
    };
    let steps = [0, 9, 10].map(&mut look);
    assert_eq!(steps, [[OwnStep::Bind], [OwnStep::Bind], [OwnStep::Fail(OwnFault::NotBound)]]);
}

#[test]
fn only_berths_own_movements_are_looked_at_until_nothing_of_them_is_left() {
    let is_wanted = |datamover: &str, phase: &str, annotations: Value| {
        let object = json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": {"name": "up", "annotations": annotations},
            "spec": {"datamover": datamover}, "status": {"phase": phase},
        });
        super::is_wanted(&serde_json::from_value::<DataUpload>(object).unwrap())
    };
    assert!(is_wanted("berth", "", json!({})) && is_wanted("berth", "InProgress", json!({})));
    assert!(is_wanted("berth", "Completed", json!({"berth.dev/made": "t"})));
    let mut held = upload();
    if let Carried::Upload(object) = &mut held.object {
        Arc::make_mut(object).metadata.finalizers = Some(vec![keys::MOVER_FINALIZER.to_owned()]);
        let status = json!({"phase": "Canceled"});
        Arc::make_mut(object).status = serde_json::from_value(status).unwrap();
        assert!(super::is_wanted(&**object), "its snapshot may be there");
    }
    assert!(held.seen().has_objects);
    assert!(!is_wanted("berth", "Completed", json!({})) && !is_wanted("velero", "New", json!({})));
    let seen = upload();
    assert_eq!((seen.seen().phase, seen.seen().has_objects), (MoverPhase::Accepted, false));
}
