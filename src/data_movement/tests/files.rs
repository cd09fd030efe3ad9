//! PodVolumeBackups and PodVolumeRestores that a node agent has handed over.

use super::*;

const POD: &str = "/api/v1/namespaces/shop/pods/web-0";

fn object(kind: &str, pod: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": kind,
        "metadata": {
            "name": "files", "namespace": "velero", "uid": "f", "resourceVersion": "7",
            "annotations": {"berth.dev/by-mover": "true"},
        },
        "spec": {
            "node": "n1", "uploaderType": "restic", "volume": "data",
            "pod": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": pod},
        },
        "status": {"phase": "Accepted", "node": "n1"},
    })
}

fn backup() -> Item {
    let object = object("PodVolumeBackup", "p");
    item(Carried::Backup(Arc::new(serde_json::from_value(object).unwrap())))
}

fn restore(pod: &str) -> Item {
    let object = object("PodVolumeRestore", pod);
    item(Carried::Restore(Arc::new(serde_json::from_value(object).unwrap())))
}

/// The pod that has the volume.
fn web(uid: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": uid, "annotations": {}, "deletionTimestamp": null,
        },
        "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"},
    })
}

#[tokio::test(start_paused = true)]
async fn the_pod_is_on_the_node_of_the_files_and_sees_the_volumes_of_one_pod() {
    for (item, path, reads) in
        [(backup(), BACKUPS, true), (restore("p"), RESTORES, false), (restore(""), RESTORES, false)]
    {
        let api = Scripted::new()
            .next(get(AGENTS).answers(agents()))
            .next(get(POD).answers(web("p", "n1")))
            .next(post(PODS).takes_as("1"));
        assert_eq!(movements(&api).make(&item).await, Ok(()), "{path}");
        let writes = api.writes();
        let [pod] = writes.as_slice() else { panic!("{writes:#?}") };
        let (kind, spec) = (item.mover.kind.as_str(), &pod.body["spec"]);
        let owner = json!([{
            "apiVersion": "velero.io/v1", "kind": kind, "name": "files", "uid": "f", "controller": true,
        }]);
        assert_eq!(pod.body["metadata"]["ownerReferences"], owner);
        let volumes = json!([{
            "name": "berth-moved-volume",
            "hostPath": {"path": "/var/lib/kubelet/pods/p/volumes", "type": "Directory"},
        }]);
        assert_eq!(spec["volumes"], volumes, "{path}: nothing else of the node");
        let mounts = json!([{
            "name": "berth-moved-volume", "mountPath": "/host_pods/p/volumes", "readOnly": reads,
            "mountPropagation": "HostToContainer",
        }]);
        assert_eq!(spec["containers"][0]["volumeMounts"], mounts, "{path}");
        let args = spec["containers"][0]["args"].as_array().unwrap();
        let carried = json!(format!("--carry={kind}/files/f"));
        assert_eq!(args[args.len() - 2..], [json!("--host-pods-path=/host_pods"), carried]);
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let node = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
        assert_eq!(*terms, node);
        assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]), "the volume's pod runs there, too");
    }
}

/// Whoever may write a PodVolumeBackup chooses what stands in it.
#[tokio::test(start_paused = true)]
async fn no_folder_is_mounted_but_that_of_the_pod_that_is_named() {
    for (answer, wanted) in [
        (get(POD).refuses(404), "there is no pod shop/web-0"),
        (get(POD).answers(web("another", "n1")), "pod shop/web-0 is another one by now"),
        (get(POD).answers(web("p", "n2")), "pod shop/web-0 is not on node \"n1\""),
        (get(POD).answers(web("p", "")), "pod shop/web-0 is not on node \"n1\""),
    ] {
        let api = Scripted::new().next(get(AGENTS).answers(agents())).next(answer);
        let unmade = movements(&api).make(&backup()).await;
        assert_eq!(unmade, Err(Unmade::Never(wanted.to_owned())));
        assert_eq!(api.writes(), []);
    }
    let odd = web("../../../etc", "n1");
    let api = Scripted::new().next(get(AGENTS).answers(agents())).next(get(POD).answers(odd));
    let unmade = movements(&api).make(&restore("")).await;
    assert!(matches!(&unmade, Err(Unmade::Never(why)) if why.contains("UID")), "{unmade:?}");
    let api = Scripted::new().next(get(AGENTS).answers(agents())).next(get(POD).refuses(500));
    assert!(matches!(movements(&api).make(&backup()).await, Err(Unmade::Later(_))));
}

/// Whoever may end a pod could have the pods for its volumes take the data paths of its node.
#[tokio::test(start_paused = true)]
async fn no_pod_is_made_for_a_folder_that_the_node_does_not_have() {
    let with = |at: &str, value: Value| {
        let mut pod = web("p", "n1");
        *pod.pointer_mut(at).unwrap() = value;
        pod
    };
    for (pod, wanted) in [
        (with("/status", json!({"phase": "Succeeded"})), "has ended"),
        (with("/status", json!({"phase": "Failed"})), "has ended"),
        (with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")), "is being deleted"),
        (with("/metadata/annotations", json!({"kubernetes.io/config.mirror": "h"})), "is a static pod"),
    ] {
        for item in [backup(), restore("p")] {
            let api = Scripted::new().next(get(AGENTS).answers(agents())).next(get(POD).answers(pod.clone()));
            let unmade = movements(&api).make(&item).await;
            let wanted = format!("pod shop/web-0 {wanted}");
            assert!(matches!(&unmade, Err(Unmade::Never(why)) if why.starts_with(&wanted)), "{unmade:?}");
            assert_eq!(api.writes(), []);
        }
    }
}

/// The pod has its object as owner, so Kubernetes removes it with the object.
#[tokio::test(start_paused = true)]
async fn nothing_but_the_pod_is_made_and_removed_and_no_deletion_waits_for_it() {
    let told = Mutex::default();
    let path = at(BACKUPS, "files");
    let api = Scripted::new()
        .next(patch(&path).answers(made("files", "f")))
        .next(get(&at(PODS, "files")).answers(made("files", "f")))
        .next(delete(&at(PODS, "files")).answers(deleted()))
        .next(get(&at(PODS, "files")).refuses(404))
        .next(patch(&path).answers(made("files", "f")));
    let own = movements(&api);
    own.take(&backup(), OwnStep::Accept, &told).await;
    own.take(&backup(), OwnStep::Clear, &told).await;
    own.take(&backup(), OwnStep::Clear, &told).await;
    let writes = api.writes();
    let accepted = &writes[0].body;
    assert_eq!(accepted["status"]["phase"], "Accepted");
    assert!(accepted["metadata"]["annotations"]["berth.dev/made"].is_string());
    assert_eq!(accepted["metadata"]["finalizers"], json!([]));
    let cleared = &writes[2].body["metadata"];
    assert!(cleared["annotations"].as_object().unwrap()["berth.dev/made"].is_null());
}

#[test]
fn only_what_was_handed_over_is_looked_at_and_is_bound_to_its_node() {
    let mut unmarked = object("PodVolumeBackup", "p");
    unmarked["metadata"]["annotations"] = json!({});
    assert!(!is_wanted(&serde_json::from_value::<PodVolumeBackup>(unmarked).unwrap()));
    for item in [backup(), restore("p")] {
        assert_eq!(item.seen().bound_node, Some("n1"));
        assert!(item.mover.own && !item.mover.third_party);
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_were_moved_are_counted_as_other_movements_are() {
    let mut ended = object("PodVolumeBackup", "p");
    ended["status"] = json!({
        "phase": "Completed", "progress": {"bytesDone": 7, "totalBytes": 7},
        "startTimestamp": "2026-01-01T00:00:00Z", "completionTimestamp": "2026-01-01T00:01:00Z",
    });
    let ended = item(Carried::Backup(Arc::new(serde_json::from_value(ended).unwrap())));
    let api = Scripted::new()
        .next(get(&at(PODS, "files")).refuses(404))
        .next(patch(&at(BACKUPS, "files")).answers(made("files", "f")));
    let own = movements(&api);
    let mut registry = Registry::default();
    own.metrics.register(&mut registry);
    own.take(&ended, OwnStep::Clear, &Mutex::default()).await;
    let text = crate::metrics::encode(&Arc::new(registry)).unwrap();
    for line in [
        r#"own_ended_total{kind="PodVolumeBackup",phase="Completed"} 1"#,
        r#"own_bytes_total{kind="PodVolumeBackup"} 7"#,
        r#"own_seconds_sum{kind="PodVolumeBackup"} 60.0"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}
