//! Many Backups that wait for their operations while nothing happens.

use berth_test_scripted::watch;
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;

use super::*;
use crate::backup::operations::shown::UploadCache;
use crate::backup::runner::Runner;
use crate::events::Events;
use crate::queue::{BackupCache, QueueSettings};
use crate::watch::WatchEvent;

const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";
const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";
const WAITING: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// A Backup that waits for the one operation that it has begun.
fn waits(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": name, "namespace": "velero", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "annotations": {keys::RUN: "of-an-earlier-leader"},
        },
        "spec": {"storageLocation": "default", "snapshotMoveData": true},
        "status": {"phase": "WaitingForPluginOperations", "backupItemOperationsAttempted": 1},
    })
}

fn upload_of(backup: &str) -> Value {
    let uid = format!("uid-{backup}");
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": {
            "name": format!("of-{backup}"), "namespace": "velero", "uid": format!("uid-of-{backup}"),
            "creationTimestamp": jiff::Timestamp::now().to_string(),
            "labels": {"velero.io/backup-uid": uid},
            "ownerReferences": [{"apiVersion": "velero.io/v1", "kind": "Backup", "name": backup, "uid": uid}],
        },
        "spec": {}, "status": {"phase": "InProgress"},
    })
}

/// The promise is ten calls a minute, for all of them together.
#[tokio::test(start_paused = true)]
async fn a_hundred_backups_that_wait_cost_a_look_at_each_and_then_no_calls_but_one_watch() {
    let names: Vec<String> = (0..WAITING).map(|i| format!("b{i}")).collect();
    let uploads: Vec<Value> = names.iter().map(|name| upload_of(name)).collect();
    let api = Scripted::new()
        .always(get(UPLOADS).answers(list("9", &uploads)))
        .always(watch(UPLOADS).never_answers());
    for name in &names {
        api.always(get(&format!("{BACKUPS}/{name}")).answers(waits(name)));
    }
    let store = Arc::new(BackupCache::new(QueueSettings { slots: 1, ..QueueSettings::default() }));
    let backups = names.iter().map(|name| serde_json::from_value::<Backup>(waits(name)).unwrap());
    store.observe(WatchEvent::Replaced(backups.collect()));
    let (folder, cache) = (tempfile::tempdir().unwrap(), Arc::new(UploadCache::default()));
    let client = api.client("velero");
    let runner = Runner {
        engine: engine(&api, &folder, AfterInterruption::Resume),
        store,
        uploads: Arc::clone(&cache),
        events: Events::new(client.clone(), "velero", Counter::default()).0,
        stop: CancellationToken::new(),
        drain: Duration::ZERO,
    };
    let asked = async {
        sleep(MINUTE).await;
        let first = api.asked();
        sleep(10 * MINUTE).await;
        let later = api.asked().split_off(first.len());
        (first, later)
    };
    let (first, later) = tokio::select! {
        () = runner.run() => unreachable!("nobody stops it"),
        () = cache.follow(&client, "velero") => unreachable!("it watches for ever"),
        asked = asked => asked,
    };
    // A new leader looks at each once: it may have ended while nobody led.
    let looks = first.iter().filter(|line| line.contains(BACKUPS)).count();
    assert_eq!(looks, WAITING, "{first:?}");
    assert!(later.len() <= 10 * 10, "{later:?}");
    let calls: Vec<&String> = later.iter().filter(|line| !line.starts_with("WATCH ")).collect();
    assert!(calls.is_empty(), "nothing has changed: {calls:?}");
    assert!(api.writes().is_empty());
}
