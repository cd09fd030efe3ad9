//! Pods whose files are read while they are frozen.

use std::collections::BTreeMap;

use berth_core::volume::Moment;
use berth_test_scripted::{Watch, patch, post, watch};
use serde_json::Value;

use super::*;
use crate::backup::volumes::files::{FileClaim, FilePod, FileVolume, files_name};
use crate::backup::volumes::{VolumeAccess, WaitLimits};

const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
const AGENTS: &str = "/api/v1/namespaces/velero/pods";
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
        limits: WaitLimits::new(Instant::now(), (None, None), Duration::from_secs(4 * 3600)).0,
        parallel_files: Some(4),
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
            "labels": {"velero.io/backup-uid": "b"}, "annotations": {"berth.dev/run": "r"},
        },
        "spec": {"pod": {"namespace": "shop", "name": "db", "uid": pod}, "volume": "data"},
        "status": {"phase": phase},
    })
}

/// The pods of Velero's node-agents on these nodes.
fn agents(nodes: &[&str]) -> Value {
    let agent = |node: &&str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("agent-of-{node}")},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"},
        })
    };
    let items: Vec<Value> = nodes.iter().map(agent).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
}

/// A site with a repository and these PodVolumeBackups.
fn without_agents(there: &[Value]) -> Site {
    let site = Site { reads_files: true, ..Site::new() };
    let repository = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": {"name": "shop-default-kopia"},
        "status": {"phase": "Ready"},
    });
    site.api.always(get(REPOSITORIES).answers(list("BackupRepository", &[repository])));
    site.api.always(get(FILES).answers(list("PodVolumeBackup", there)));
    site.api.always(watch(FILES).never_answers());
    site
}

/// The same with a node-agent.
fn site(there: &[Value]) -> Site {
    let site = without_agents(there);
    site.api.always(get(AGENTS).answers(agents(&["n"])));
    site
}

fn with_files(mut pod: HeldPod) -> HeldPod {
    pod.used.files = Some(FilePod {
        namespace: "shop".to_owned(),
        name: "db".to_owned(),
        uid: "u".to_owned(),
        node: "n".to_owned(),
        moment: Moment::Still,
        volumes: vec![FileVolume { name: "data".to_owned(), claim: None }],
    });
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_volume_backup_is_asked_for_as_velero_does() {
    let site = site(&[]);
    site.api.once(post(FILES).takes_as("8"));
    let mut pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
    let [key, name, uid] = ["shop/claim", "claim", "c"].map(str::to_owned);
    pod.used.files.as_mut().unwrap().volumes[0].claim = Some(FileClaim { key, name, uid });
    let (batches, _taken) = mpsc::channel(1);
    tokio::select! {
        () = site.run_to(vec![pod], 1, batches) => {}
        () = site.api.played() => {}
    }
    let sent = site.api.writes()[0].body.clone();
    let labels = json!({
        "velero.io/backup-name": "nightly", "velero.io/backup-uid": "b", "velero.io/pvc-uid": "c",
    });
    assert_eq!(sent["metadata"]["labels"], labels);
    let annotations = json!({"berth.dev/run": "r", "velero.io/pvc-name": "claim"});
    assert_eq!(sent["metadata"]["annotations"], annotations);
    let owner = json!([{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "nightly", "uid": "b", "controller": true}]);
    assert_eq!(sent["metadata"]["ownerReferences"], owner);
    let spec = json!({
        "node": "n", "pod": {"kind": "Pod", "namespace": "shop", "name": "db", "uid": "u"}, "volume": "data",
        "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia",
        "tags": {
            "backup": "nightly", "backup-uid": "b", "pod": "db", "pod-uid": "u", "ns": "shop", "volume": "data",
            "pvc-uid": "c",
        },
        "uploaderSettings": {"ParallelFilesUpload": "4"},
    });
    assert_eq!(sent["spec"], spec);
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
    // Which of two ways is seen first is a matter of chance.
    for is_ending in [true, true, true, true, true, true, true, false] {
        let site = site(&there);
        let played = site.played.clone();
        let cancel = move |sent: &Value| {
            played.note(format!("canceled: {}", sent["spec"]["cancel"]));
            volume_backup("reading", "u", "Canceling")
        };
        site.api.once(post(FILES).takes_as("8"));
        let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
        let (batches, taken) = mpsc::channel(1);
        let mut taken = Some(taken);
        let end = async {
            site.api.played().await;
            site.api.once(patch(&format!("{FILES}/reading")).answers_with(cancel));
            if is_ending {
                site.ending.cancel();
            } else {
                taken = None;
            }
        };
        tokio::join!(site.run_to(vec![pod], 1, batches), end);
        let happened = site.played.happened();
        let happened: Vec<&str> =
            happened.iter().map(String::as_str).filter(|line| !line.starts_with("on record")).collect();
        assert_eq!(happened, ["freeze in db/main", "canceled: true", "thaw in db/main"]);
        assert!(site.outcomes.is_spoiled("u") && !site.outcomes.is_spoiled("v"));
        // The next run would take the pod for one whose files are read.
        assert!(taken.is_none_or(|mut taken| came(&mut taken).is_empty()));
    }
}

/// Other files of its block are read anew.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_frozen_once_more_gets_files_that_an_earlier_run_has_read_if_it_had_read_all() {
    for is_whole in [false, true] {
        let site = site(&[]);
        if is_whole {
            site.outcomes.note_block(Vec::new(), std::iter::once("u"));
        }
        site.api.next(post(FILES).already_exists());
        let name = files_name("nightly", "b", "u", "data", 0);
        let earlier = volume_backup(&name, "u", "Completed");
        site.api.next(get(&format!("{FILES}/{name}")).answers(earlier.clone()));
        if !is_whole {
            site.api.next(patch(&format!("{FILES}/{name}")).answers(earlier));
            site.api.next(post(FILES).takes_as("8"));
        }
        let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
        let (batches, _taken) = mpsc::channel(1);
        tokio::select! {
            () = site.run_to(vec![pod], 1, batches) => {}
            () = site.api.played() => {}
        }
        assert_eq!(site.log.counts().errors, 0);
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
        site.api.next(post(FILES).already_exists());
        // Its name is that of the one that was asked for.
        let name = files_name("nightly", "b", "u", "data", 0);
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

/// Else a run that goes on would take over the rest, and read what is missing at another moment.
#[tokio::test(start_paused = true)]
async fn pods_of_a_block_of_which_files_are_missing_do_not_count_as_read() {
    // Velero waits for one that is canceled until all time is over.
    for phase in ["Completed", "Failed", "Canceled"] {
        let (site, shown) = (site(&[]), Watch::new());
        site.api.once(watch(FILES).streams(&shown)).once(post(FILES).takes_as("8"));
        let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
        let end = async {
            site.api.played().await;
            let mut ended = volume_backup(&files_name("nightly", "b", "u", "data", 0), "u", phase);
            ended["metadata"]["resourceVersion"] = json!("9");
            shown.added(&ended);
        };
        let (stored, ()) = tokio::join!(site.run(vec![pod], 1), end);
        assert_eq!(stored, names(["db"]));
        assert_eq!(site.outcomes.is_whole("u"), phase == "Completed");
        assert_eq!(site.lasting() > 0, phase != "Completed");
    }
}

/// Each run that was handed over has left one that was canceled.
#[tokio::test(start_paused = true)]
async fn files_are_asked_for_once_more_however_often_they_were_and_nothing_is_asked_about_the_failed_ones() {
    let name = |attempt| files_name("nightly", "b", "u", "data", attempt);
    let there: Vec<Value> = (0..20).map(|attempt| volume_backup(&name(attempt), "u", "Canceled")).collect();
    let site = site(&there);
    site.api.once(post(FILES).takes_as("8"));
    // The watch shows them by then.
    let pod = with_files(site.pod("db", &[hook("freeze", "wait 1000")], &[hook("thaw", "ok")]));
    let (batches, _taken) = mpsc::channel(1);
    tokio::select! {
        () = site.run_to(vec![pod], 1, batches) => {}
        () = site.api.played() => {}
    }
    let writes = site.api.writes();
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].body["metadata"]["name"], name(20));
    assert_eq!(site.log.counts().errors, 0);
}

/// A Velero server may take minutes for it.
#[tokio::test(start_paused = true)]
async fn no_pod_is_frozen_while_the_repository_of_its_files_is_not_ready() {
    let site = site(&[]);
    let late = list("BackupRepository", &[json!({"metadata": {"name": "shop-default-kopia"}})]);
    site.api.once(get(REPOSITORIES).answers(late).after(Duration::from_secs(50)));
    site.api.once(post(FILES).takes_as("8"));
    let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
    let (batches, _taken) = mpsc::channel(1);
    let story = async {
        tokio::time::sleep(Duration::from_secs(49)).await;
        assert_eq!(site.played.happened(), [""; 0]);
        site.api.played().await;
        assert_eq!(site.played.happened().last().unwrap(), "freeze in db/main");
    };
    tokio::select! {
        () = site.run_to(vec![pod], 1, batches) => {}
        () = story => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_files_of_all_pods_together_take_no_longer_than_those_of_a_backup_may() {
    let site = site(&[]);
    site.api.once(post(FILES).takes_as("8"));
    let name = files_name("nightly", "b", "u", "data", 0);
    site.api.once(patch(&format!("{FILES}/{name}")).answers(volume_backup(&name, "u", "Canceling")));
    // The second pod is frozen when the time is over: its files are not even asked for.
    let pods =
        ["db", "web"].map(|pod| with_files(site.pod(pod, &[hook("freeze", "ok")], &[hook("thaw", "ok")])));
    let begun = Instant::now();
    let stored = site.run(pods.into(), 1).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(4 * 3600) && took < Duration::from_secs(4 * 3600 + 120), "{took:?}");
    assert_eq!(stored, names(["db", "web"]));
    let told = site.log.told();
    assert_eq!(told.iter().filter(|told| told.lasts).count(), 2, "{told:?}");
    site.api.played().await;
}

/// Its node-agent writes its progress meanwhile, and would go on with a pod that is thawed.
#[tokio::test(start_paused = true)]
async fn files_that_are_late_are_canceled_though_another_write_comes_between() {
    let site = site(&[]);
    site.api.once(post(FILES).takes_as("8"));
    let name = files_name("nightly", "b", "u", "data", 0);
    let path = format!("{FILES}/{name}");
    site.api.next(patch(&path).refuses(409));
    site.api.next(get(&path).answers(volume_backup(&name, "u", "InProgress")));
    site.api.next(patch(&path).answers(volume_backup(&name, "u", "Canceling")));
    let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
    assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
    let cancels = site.api.writes().into_iter().filter(|write| write.body["spec"]["cancel"] == true);
    assert_eq!(cancels.count(), 2);
    site.api.played().await;
}

/// As when somebody removes their DaemonSet: nobody ends what it was asked for.
#[tokio::test(start_paused = true)]
async fn a_node_agent_that_goes_when_it_was_asked_for_files_costs_these_in_time_and_is_told() {
    let site = without_agents(&[]);
    // Velero's are listed first, then berth's; from then on there is none.
    site.api.once(get(AGENTS).answers(agents(&["n"]))).always(get(AGENTS).answers(agents(&[])));
    site.api.once(post(FILES).takes_as("8"));
    let name = files_name("nightly", "b", "u", "data", 0);
    site.api.once(patch(&format!("{FILES}/{name}")).answers(volume_backup(&name, "u", "")));
    let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
    let begun = Instant::now();
    let stored = site.run(vec![pod], 1).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(4 * 3600) && took < Duration::from_secs(4 * 3600 + 120), "{took:?}");
    assert_eq!(stored, names(["db"]));
    assert!(site.played.happened().iter().any(|line| line == "thaw in db/main"));
    let told: Vec<String> =
        site.log.told().iter().filter(|told| told.lasts).map(|told| format!("{told:?}")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    for words in [&*name, "has not ended", "no node-agent runs on node n"] {
        assert!(told[0].contains(words), "{words}: {told:?}");
    }
    let cancels = site.api.writes().into_iter().filter(|write| write.body["spec"]["cancel"] == true);
    assert_eq!(cancels.count(), 1, "nobody who comes later begins it");
}

/// Why its files are late is asked for its message only.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_files_are_late_is_not_frozen_longer_because_node_agents_cannot_be_listed() {
    let site = without_agents(&[]);
    // Velero's are listed first, then berth's; from then on nobody answers.
    site.api.once(get(AGENTS).answers(agents(&["n"]))).once(get(AGENTS).answers(agents(&[])));
    site.api.always(get(AGENTS).never_answers());
    site.api.once(post(FILES).takes_as("8"));
    let name = files_name("nightly", "b", "u", "data", 0);
    site.api.once(patch(&format!("{FILES}/{name}")).answers(volume_backup(&name, "u", "")));
    let pod = with_files(site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]));
    let most = Duration::from_secs(4 * 3600 + 120);
    let stored = tokio::time::timeout(most, site.run(vec![pod], 1)).await.expect("its pod stays frozen");
    assert_eq!(stored, names(["db"]));
    assert!(site.played.happened().iter().any(|line| line == "thaw in db/main"));
    let told = site.log.told();
    assert_eq!(told.iter().filter(|told| told.lasts).count(), 1, "{told:?}");
}
