use std::sync::atomic::{AtomicU32, Ordering};

use berth_core::pod_volume::others::SIGN;
use berth_test_scripted::{Scripted, get, patch as patching};
use tokio::time::sleep;

use super::super::Settings;
use super::super::concurrency::Places;
use super::super::repositories::Repositories;
use super::*;
use crate::client::Clients;
use crate::storage::Opener;

const PATH: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/b";

fn object() -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
        "metadata": {"name": "b", "namespace": "velero", "uid": "u", "resourceVersion": "7"}, "spec": {},
    })
}

/// An API server that has the object, and takes every write to it.
fn server() -> Scripted {
    let api = Scripted::new();
    api.always(get(PATH).answers(object())).always(patching(PATH).answers(object()))
}

/// A job that has one of these places.
pub fn job(api: &Scripted, places: &Arc<Places>) -> Job {
    let client = api.client("velero");
    let settings = Settings::of_tests("/pods");
    let opener = Opener::new(client.clone(), "velero", Vec::new().into());
    let repositories = Repositories::new(client.clone(), "velero", None, opener);
    let clients = Clients { watch: client.clone(), call: client };
    let context = Arc::new(AgentContext::new(clients, settings, repositories));
    Job::new(context, Watched::default(), CancellationToken::new(), true, places.take().unwrap())
}

#[tokio::test(start_paused = true)]
async fn what_a_job_waits_for_stands_in_its_status_and_is_no_run_of_it() {
    let api = server();
    let job = job(&api, &Places::new(1, Arc::default()));
    let work = async {
        for waits_for in ["somebody", ""] {
            waits_for.clone_into(&mut job.waits_for.lock());
            sleep(3 * PROGRESS).await;
        }
        Err(anyhow::anyhow!("why"))
    };
    let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
    assert_eq!(job.carry(&object, work).await, EndWrite::Done);
    let writes = api.writes();
    let told: Vec<&Value> = writes.iter().map(|write| &write.body["status"]["message"]).collect();
    assert_eq!(told, [&json!(null), &json!("somebody"), &json!(""), &json!("why")]);
    // A process that ends while it waits does not end because of it.
    let runs = writes.iter().map(|write| write.body["metadata"]["annotations"][RUNS].as_str());
    assert_eq!(runs.collect::<Vec<_>>(), [Some("1"), Some("0"), Some("1"), None]);
}

/// As its node restarts, for example. Otherwise it would be given up once the pod waits.
#[tokio::test(start_paused = true)]
async fn a_restore_for_which_no_pod_waits_was_not_tried() {
    let api = server();
    let job = job(&api, &Places::new(1, Arc::default()));
    let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
    let work = async { Err(anyhow::Error::from(NotYet)) };
    assert_eq!(job.carry(&object, work).await, EndWrite::Failed);
    let writes = api.writes();
    let runs = writes.iter().map(|write| write.body["metadata"]["annotations"][RUNS].as_str());
    assert_eq!(runs.collect::<Vec<_>>(), [Some("1"), Some("0")]);
}

#[tokio::test(start_paused = true)]
async fn files_and_rate_are_told_with_the_bytes_and_once_a_second() {
    let api = server();
    let job = job(&api, &Places::new(1, Arc::default()));
    let work = async {
        // Never in the moment of a write.
        sleep(PROGRESS / 8).await;
        for _ in 0..13 {
            job.watched.add(1_100_000);
            job.watched.begin_file();
            sleep(PROGRESS / 4).await;
        }
        Ok(End::completed(&json!({"path": "p"})))
    };
    let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
    assert_eq!(job.carry(&object, work).await, EndWrite::Done);
    let writes = api.writes();
    let told = writes.iter().map(|write| {
        let bytes = write.body["status"]["progress"]["bytesDone"].as_u64();
        (bytes, write.body["metadata"]["annotations"][PROGRESS_TEXT].as_str())
    });
    let wanted = [
        // The beginning.
        (None, None),
        (Some(4_400_000), Some("4 files, 4.1 MiB/s")),
        (Some(8_800_000), Some("8 files, 4.1 MiB/s")),
        (Some(13_200_000), Some("12 files, 4.1 MiB/s")),
        (Some(14_300_000), Some("13 files")),
    ];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

/// Another process takes over only what nobody writes.
#[tokio::test(start_paused = true)]
async fn a_job_that_has_nothing_to_write_for_long_says_that_it_lives() {
    let api = server();
    let job = job(&api, &Places::new(1, Arc::default()));
    let work = async {
        sleep(SILENCE / 2).await;
        Ok(End::completed(&json!({"path": "p"})))
    };
    let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
    assert_eq!(job.carry(&object, work).await, EndWrite::Done);
    let writes = api.writes();
    let signs = writes.iter().filter(|write| write.body["metadata"]["annotations"][CARRIED_AT].is_string());
    let wanted = (SILENCE / 2).as_secs() / SIGN.as_secs();
    assert!((wanted - 1..=wanted).contains(&(signs.count() as u64)), "{writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_repository_is_locked_says_so_and_is_tried_again() {
    const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/default";
    // Whether it is still locked, only the next try can tell.
    let api = server().always(get(LOCATION).refuses(500));
    let job = job(&api, &Places::new(1, Arc::default()));
    let tries = AtomicU32::new(0);
    let work = || async {
        if tries.fetch_add(1, Ordering::Relaxed) == 0 {
            let text = || "x".to_owned();
            let fault = Fault::Locked { place: text(), who: text(), since: text(), is_own: false };
            return Err(anyhow::Error::from(fault));
        }
        Ok(End::completed(&json!({"path": "p"})))
    };
    let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
    let carried = job.carry_unlocked(&object, (Some("default"), Some("shop")), work).await;
    assert_eq!(carried, EndWrite::Done);
    assert_eq!(tries.load(Ordering::Relaxed), 2);
    let writes = api.writes();
    let mut told = writes.iter().filter_map(|write| write.body["status"]["message"].as_str());
    assert!(
        told.any(|told| told.starts_with("waits for at most 5 minutes, because the repository at x is")),
        "{writes:#?}"
    );
    let ended = &writes.last().unwrap().body["status"];
    assert_eq!((&ended["phase"], &ended["path"]), (&json!("Completed"), &json!("p")), "{ended}");
}

/// A process whose pod was removed by force may live on while the next one works.
#[tokio::test(start_paused = true)]
async fn only_the_process_that_began_an_object_last_writes_how_it_ends() {
    for is_last in [true, false] {
        let carrier = Arc::new(Mutex::new(Value::Null));
        let (begun, found) = (Arc::clone(&carrier), Arc::clone(&carrier));
        let api = Scripted::new()
            .next(patching(PATH).answers_with(move |sent| {
                *begun.lock() = sent["metadata"]["annotations"][CARRIER].clone();
                object()
            }))
            .next(get(PATH).answers_with(move |_| {
                let mut object = object();
                object["metadata"]["annotations"] = json!({CARRIER: *found.lock()});
                object
            }));
        if is_last {
            api.next(patching(PATH).answers(object()));
        }
        let job = job(&api, &Places::new(1, Arc::default()));
        let work = async {
            if !is_last {
                *carrier.lock() = json!("n1/another");
            }
            Ok(End::completed(&json!({"path": "p"})))
        };
        let object: PodVolumeBackup = serde_json::from_value(object()).unwrap();
        let wanted = if is_last { EndWrite::Done } else { EndWrite::OfAnother };
        assert_eq!(job.carry(&object, work).await, wanted);
        let phases: Vec<Value> =
            api.writes().into_iter().map(|write| write.body["status"]["phase"].clone()).collect();
        assert_eq!(phases.contains(&json!("Completed")), is_last, "{phases:?}");
    }
}

#[test]
fn only_processes_that_did_not_end_an_object_are_counted() {
    for (phase, runs_then, wanted) in
        [("InProgress", "2", 2), ("InProgress", "", 0), ("InProgress", "many", 0), ("New", "7", 0)]
    {
        let object: PodVolumeBackup = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {"name": "b", "annotations": {RUNS: runs_then}},
            "spec": {}, "status": {"phase": phase},
        }))
        .unwrap();
        assert_eq!(runs(&object), wanted, "{phase} {runs_then}");
    }
    assert!(ensure_few(2).is_ok() && ensure_few(3).is_err());
}
