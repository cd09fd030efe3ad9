//! Pods whose files are read while they are frozen.

use std::collections::BTreeMap;

use berth_test_scripted::{patch, post, watch};
use serde_json::Value;

use super::*;
use crate::backup::volumes::VolumeAccess;
use crate::backup::volumes::files::{FilePod, FileVolume};

const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
const REPOSITORIES: &str = "/apis/velero.io/v1/namespaces/velero/backuprepositories";

pub fn access(api: &Scripted, lister: Lister) -> VolumeAccess {
    VolumeAccess {
        client: api.client("velero"),
        watches: api.client("velero"),
        lister,
        namespace: "velero".to_owned(),
        backup: "nightly".to_owned(),
        uid: "b".to_owned(),
        annotations: BTreeMap::new(),
        location: "default".to_owned(),
        run: "r".to_owned(),
        serves_snapshots: false,
        snapshot_timeout: Duration::from_secs(600),
        files_timeout: Duration::from_secs(4 * 3600),
        parallel_files: None,
    }
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "7"},
        "items": items,
    })
}

fn volume_backup(name: &str, pod: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
        "metadata": {
            "name": name, "namespace": "velero", "uid": format!("uid-{name}"),
            "labels": {"velero.io/backup-uid": "b"},
        },
        "spec": {"pod": {"namespace": "shop", "name": "db", "uid": pod}, "volume": "data"},
        "status": {"phase": phase},
    })
}

/// A site with a node-agent, a repository and these PodVolumeBackups.
fn site(there: &[Value]) -> Site {
    let site = Site { reads_files: true, ..Site::new() };
    let agent = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node-agent"},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"},
    });
    let agents = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [agent]});
    let repository = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": {"name": "shop-default-kopia"},
        "status": {"phase": "Ready"},
    });
    site.api.always(get("/api/v1/namespaces/velero/pods").answers(agents));
    site.api.always(get(REPOSITORIES).answers(list("BackupRepository", &[repository])));
    site.api.always(get(FILES).answers(list("PodVolumeBackup", there)));
    site.api.always(watch(FILES).never_answers());
    site
}

fn with_files(mut pod: HeldPod) -> HeldPod {
    pod.used.files = Some(FilePod {
        namespace: "shop".to_owned(),
        name: "db".to_owned(),
        uid: "u".to_owned(),
        node: "n".to_owned(),
        volumes: vec![FileVolume { name: "data".to_owned(), claim: None }],
    });
    pod
}

#[tokio::test(start_paused = true)]
async fn what_is_read_of_a_frozen_pod_is_canceled_before_a_run_that_ends_thaws_it() {
    let there = [
        volume_backup("reading", "u", "InProgress"),
        volume_backup("whole", "u", "Completed"),
        volume_backup("of-another", "v", "InProgress"),
        // As nobody could read it.
        json!({"metadata": {"name": "odd"}, "spec": {"pod": "db"}, "status": {"phase": 1}}),
    ];
    for is_ending in [true, false] {
        let site = site(&there);
        let played = site.played.clone();
        let cancel = move |sent: &Value| {
            played.note(format!("canceled: {}", sent["spec"]["cancel"]));
            volume_backup("reading", "u", "Canceling")
        };
        site.api.once(post(FILES).takes_as("8"));
        let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
        let (batches, taken) = mpsc::channel(1);
        let end = async {
            site.api.played().await;
            site.api.once(patch(&format!("{FILES}/reading")).answers_with(cancel));
            if is_ending {
                site.ending.cancel();
            } else {
                drop(taken);
            }
        };
        tokio::join!(site.run_to(vec![pod], 1, batches), end);
        let happened = site.played.happened();
        let happened: Vec<&str> =
            happened.iter().map(String::as_str).filter(|line| !line.starts_with("on record")).collect();
        assert_eq!(happened, ["freeze in db/main", "canceled: true", "thaw in db/main"]);
        assert!(site.outcomes.is_spoiled("u") && !site.outcomes.is_spoiled("v"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_thawed_too_early_gets_no_files_of_an_earlier_run() {
    for is_spoiled in [false, true] {
        let site = site(&[]);
        if is_spoiled {
            site.outcomes.spoil("u");
        }
        let asked = Arc::new(Mutex::new(Vec::new()));
        let refuse =
            json!({"reason": "AlreadyExists", "code": 409, "status": "Failure", "message": "exists"});
        site.api.next(post(FILES).refuses_with(409, refuse));
        // Its name is that of the one that was asked for.
        let name = crate::backup::volumes::files::files_name("nightly", "b", "u", "data", 0);
        let earlier = volume_backup(&name, "u", "InProgress");
        site.api.next(get(&format!("{FILES}/{name}")).answers(earlier.clone()));
        if is_spoiled {
            let note = Arc::clone(&asked);
            let cancel = move |sent: &Value| {
                note.lock().push(sent["spec"]["cancel"].clone());
                earlier.clone()
            };
            site.api.next(patch(&format!("{FILES}/{name}")).answers_with(cancel));
            site.api.next(post(FILES).takes_as("8"));
        }
        let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
        let (batches, _taken) = mpsc::channel(1);
        tokio::select! {
            () = site.run_to(vec![pod], 1, batches) => {}
            () = site.api.played() => {}
        }
        assert_eq!(*asked.lock(), vec![json!(true); usize::from(is_spoiled)]);
    }
}
