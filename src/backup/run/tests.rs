//! On the clock of this machine, because the workers of an archive are threads, and a paused clock
//! stands still as long as they wait. Nothing here waits for time to pass.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{self, FILESYSTEM_PROVIDER};
use berth_core::run::AfterInterruption;
use berth_test_scripted::{Hold, Line, Scripted, get, list, page, patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::backup::discovery::Discovery;
use crate::backup::engine::VolumeDefaults;
use crate::backup::exec::Exec;
use crate::backup::exec::played::Played;
use crate::backup::metrics::BackupMetrics;
use crate::backup::removals::Removals;
use crate::backup::turns::Turns;
use crate::backup::upload::PART;
use crate::node_agent::repositories::Repositories;
use crate::queue::cycle::CANCELED;
use crate::storage::{Opener, Roots};

mod again;
mod ahead;
mod bounds;
mod broken;
mod dead;
mod deleted;
mod hooked;
mod odd;
mod operations;
mod quiet;
mod served;
mod snapshots;

const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";
const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/default";
const MAPS: &str = "/api/v1/namespaces/app/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const LONG: Duration = Duration::from_secs(60);

fn backup(version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {"includedNamespaces": ["app"], "storageLocation": "default"}, "status": {"phase": phase},
    })
}

fn location(folder: &Path) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": "velero"},
        "spec": {
            "provider": FILESYSTEM_PROVIDER, "config": {"path": folder}, "objectStorage": {"bucket": "bucket"},
        },
    })
}

fn engine(api: &Scripted, folder: &TempDir, setting: AfterInterruption) -> Engine {
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::from(vec![folder.path().to_owned()]));
    Engine {
        discovery: Arc::new(Discovery::new(client.clone())),
        repositories: Arc::new(Repositories::new(client.clone(), "velero", None, opener.clone())),
        opener,
        client,
        namespace: "velero".to_owned(),
        exec: Arc::new(Played::default()),
        workers: 1,
        packers: 1,
        page_size: 1,
        // What nobody has scripted is not asked for again.
        list_retry: Duration::ZERO,
        requests: Arc::new(Semaphore::new(4)),
        default_ttl: LONG,
        volumes: VolumeDefaults {
            watches: api.client("velero"),
            files: false,
            moves: false,
            files_timeout: LONG,
        },
        after_interruption: setting,
        part_size: PART,
        metrics: BackupMetrics::default(),
        since: Instant::now(),
        own: Arc::default(),
        data_of_deleted: Arc::default(),
        removals: Removals::default(),
        cluster: Arc::default(),
        turns: Turns::default(),
    }
}

/// Of the cluster, by whose UID claims know it.
fn cluster() -> Line {
    let namespace = json!({"metadata": {"name": "kube-system", "uid": "here"}});
    get("/api/v1/namespaces/kube-system").answers(namespace)
}

/// There are no snapshots, and nobody backs up files: whoever takes up a backup asks for both.
fn takes_no_data(api: &Scripted) {
    api.always(get("/apis/snapshot.storage.k8s.io/v1/volumesnapshots").refuses(404));
    api.always(get("/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots").refuses(404));
    api.always(get("/apis/velero.io/v1/namespaces/velero/podvolumebackups").answers(list("1", &[])));
}

/// The Backup as it stands after a write of the run that has it.
fn written_as(version: &'static str, phase: &'static str) -> Line {
    patch(ONE).answers_with(move |sent| {
        let mut stands = backup(version, phase);
        stands["metadata"]["annotations"] = json!({});
        let sent = &sent["metadata"]["annotations"];
        if let Some(run) = sent[keys::RUN].as_str().or_else(|| sent[keys::PUBLISHING].as_str()) {
            stands["metadata"]["annotations"][keys::RUN] = json!(run);
        }
        if let Some(run) = sent[keys::PUBLISHING].as_str() {
            stands["metadata"]["annotations"][keys::PUBLISHING] = json!(run);
        }
        stands
    })
}

/// It is InProgress.
fn begins() -> Line {
    written_as("8", "InProgress")
}

/// It may publish.
fn gets_leave() -> Line {
    written_as("9", "InProgress")
}

/// What is left of a run that failed.
const LOG: [&str; 3] = ["berth-run.json", "one-logs.gz", "one-results.gz"];
const METADATA: &str = "velero-backup.json";

/// A cluster whose only type is ConfigMaps, and a store that is a folder.
struct Site {
    api: Scripted,
    folder: TempDir,
    setting: AfterInterruption,
}

impl Site {
    fn new() -> Self {
        Self::of(backup("7", "ReadyToStart"))
    }

    fn of(ready: Value) -> Self {
        Self::with_type(ready, "ConfigMap")
    }

    fn with_type(ready: Value, kind: &str) -> Self {
        let site = Self::with_type_unread(kind);
        site.api.next(get(ONE).answers(ready));
        site
    }

    /// Nobody has said what the Backup is.
    fn with_type_unread(kind: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let singular = kind.to_lowercase();
        let only = json!({
            "resource": format!("{singular}s"), "singularResource": singular, "scope": "Namespaced",
            "responseKind": {"group": "", "version": "v1", "kind": kind},
            "verbs": ["create", "delete", "get", "list"],
        });
        let group = |name: &str, resources: &[Value]| {
            let versions = json!([{"version": "v1", "resources": resources}]);
            json!({"items": [{"metadata": {"name": name}, "versions": versions}]})
        };
        let version = json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "", "goVersion": "", "compiler": "gc", "platform": "linux/amd64",
        });
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "app"}});
        let api = Scripted::new()
            .always(get("/readyz").answers(json!("ok")))
            .always(get(SERVICES).answers(list("1", &[])))
            .always(get("/version").answers(version))
            .always(get("/api").answers(group("", &[only])))
            .always(get("/apis").answers(group("apps", &[])))
            .always(get(LOCATION).answers(location(folder.path())))
            .always(get("/api/v1/namespaces/app").answers(namespace))
            .always(cluster());
        takes_no_data(&api);
        Self { api, folder, setting: AfterInterruption::Resume }
    }

    /// The second page of the only list is what `last` says.
    fn with_pages(self, last: Line) -> Self {
        let first = page("5", "more", &[map("a")]);
        self.api.always(get(MAPS).answers(first)).once(last);
        self
    }

    async fn run(&self, signals: Signals) -> Option<Backup> {
        let engine = engine(&self.api, &self.folder, self.setting);
        tokio::time::timeout(LONG, engine.run("one", "u", signals)).await.unwrap().ok().flatten()
    }

    fn stored(&self) -> Vec<String> {
        stored(self.folder.path())
    }

    /// Errors and warnings of the backup.
    fn told(&self) -> String {
        let results = std::fs::read(self.folder.path().join("bucket/backups/one/one-results.gz")).unwrap();
        let mut told = String::new();
        flate2::read::GzDecoder::new(&results[..]).read_to_string(&mut told).unwrap();
        told
    }

    /// Phase and failure reason of each write, without those of the progress.
    fn written(&self) -> Vec<(Value, Value)> {
        let writes = self.api.writes();
        let phases = writes.iter().filter(|write| write.body["status"]["phase"].is_string());
        phases
            .map(|w| (w.body["status"]["phase"].clone(), w.body["status"]["failureReason"].clone()))
            .collect()
    }
}

/// Names of the files that lie in the store, in whatever folder, in order.
fn stored(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(stored(&path));
        } else {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found.sort_unstable();
    found
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "app"}})
}

fn ends_in(phase: &str) -> Line {
    patch(ONE).answers(backup("9", phase))
}

#[tokio::test]
async fn a_page_that_comes_late_is_waited_for_and_the_backup_completes() {
    let late = Hold::new();
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[map("b")])).held(&late));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    let story = async {
        late.asked().await;
        assert!(!site.stored().contains(&METADATA.to_owned()), "visible before it is whole");
        late.let_go();
    };
    let (ran, ()) = tokio::join!(site.run(Signals::default()), story);
    assert_eq!(ran.unwrap().phase(), BackupPhase::Completed);
    let writes = site.api.writes();
    assert_eq!(writes[0].body["metadata"]["resourceVersion"], "7");
    assert_eq!(writes[1].body["metadata"]["resourceVersion"], "8");
    let [begun, leave, end] = [0, 1, 2].map(|i| &writes[i].body);
    let run = &begun["metadata"]["annotations"][keys::RUN];
    assert!(run.is_string() && *run == leave["metadata"]["annotations"][keys::PUBLISHING], "{leave}");
    assert_eq!(leave["status"]["phase"], Value::Null);
    assert_eq!(end["metadata"]["resourceVersion"], "9");
    assert_eq!(end["status"]["progress"], json!({"totalItems": 2, "itemsBackedUp": 2}));
    let folder = site.folder.path().join("bucket/backups/one");
    let read =
        |name: &str| serde_json::from_slice::<Value>(&std::fs::read(folder.join(name)).unwrap()).unwrap();
    let claim = json!({"cluster": "here", "namespace": "velero", "backup": "u", "run": run});
    assert_eq!(read("berth-run.json"), claim);
    assert_eq!(read(METADATA)["status"]["phase"], "Completed");
    assert_eq!(read(METADATA)["metadata"]["annotations"][keys::RUN], *run);
}

/// The write by which it became InProgress.
#[tokio::test]
async fn lists_are_as_of_the_moment_at_which_the_backup_began_and_what_is_not_is_told() {
    let site = Site::new();
    site.api.once(get(MAPS).from("8").answers(page("8", "more", &[map("a")])));
    site.api.once(get(MAPS).page("more").answers(list("8", &[map("b")])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);
    assert_eq!(site.told(), "{\"errors\":{},\"warnings\":{}}\n");

    let site = Site::new();
    site.api.once(get(MAPS).from("8").refuses(410)).once(get(MAPS).answers(list("9", &[map("a")])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);
    assert!(
        site.told().contains("configmaps are as of resourceVersion 8, but as they were"),
        "{}",
        site.told()
    );
    assert_eq!(site.api.writes().last().unwrap().body["status"]["warnings"], 1);
}

#[tokio::test]
async fn a_run_that_is_stopped_where_runs_are_to_fail_leaves_its_log_and_a_canceled_one_nothing() {
    let stopped = json!("the controller was stopped while the backup ran");
    for (end, reason, left) in [(false, stopped, &LOG[..]), (true, json!(CANCELED), &LOG[..0])] {
        let never = Hold::new();
        let mut site = Site::new().with_pages(get(MAPS).page("more").never_answers().held(&never));
        site.setting = AfterInterruption::Fail;
        site.api.next(begins()).next(ends_in("Failed"));
        let signals = Signals::default();
        let story = async {
            never.asked().await;
            if end { signals.canceled.cancel() } else { signals.stop.cancel() }
        };
        let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
        assert_eq!(ran.unwrap().phase(), BackupPhase::Failed);
        assert_eq!(site.written()[1], (json!("Failed"), reason));
        assert_eq!(site.stored(), left);
    }
}

#[tokio::test]
async fn one_that_is_canceled_before_it_has_claimed_its_folder_leaves_nothing() {
    let begun = Hold::new();
    let site = Site::new();
    // Whether that is asked for is nobody's business.
    site.api.always(get(MAPS).answers(list("5", &[map("a")])));
    site.api.next(begins().held(&begun)).next(ends_in("Failed"));
    let signals = Signals::default();
    let story = async {
        begun.asked().await;
        signals.canceled.cancel();
        begun.let_go();
    };
    let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
    assert_eq!(ran.unwrap().phase(), BackupPhase::Failed);
    assert_eq!(site.written()[1], (json!("Failed"), json!(CANCELED)));
    assert_eq!(site.stored(), [""; 0]);
}

#[tokio::test]
async fn one_that_is_canceled_or_stopped_or_deleted_when_it_has_leave_to_publish_is_published() {
    for i in 0..3 {
        let leave = Hold::new();
        let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[map("b")])));
        site.api.next(begins()).next(gets_leave().held(&leave)).next(ends_in("Completed"));
        let signals = Signals::default();
        let story = async {
            leave.asked().await;
            [&signals.canceled, &signals.stop, &signals.deleted][i].cancel();
            leave.let_go();
        };
        let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
        assert_eq!(ran.unwrap().phase(), BackupPhase::Completed);
        assert!(site.stored().contains(&METADATA.to_owned()));
    }
}

/// It was silent for so long that another one takes its run up, and it does not know.
#[tokio::test]
async fn a_run_that_somebody_has_taken_over_publishes_nothing_and_leaves_the_rest_to_that_one() {
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[map("b")])));
    let mut taken = backup("9", "InProgress");
    taken["metadata"]["annotations"] = json!({keys::RUN: "settling"});
    site.api.next(begins()).next(patch(ONE).refuses(409)).next(get(ONE).answers(taken));
    assert!(site.run(Signals::default()).await.is_none());
    let stored = site.stored();
    assert!(
        !stored.contains(&METADATA.to_owned()) && stored.contains(&"one.tar.gz".to_owned()),
        "{stored:?}"
    );
    assert_eq!(site.written().len(), 1, "it ends nothing that is not its own any more");
}

#[tokio::test]
async fn a_run_whose_backup_is_deleted_writes_nothing_more_and_leaves_nothing() {
    let never = Hold::new();
    let site = Site::new().with_pages(get(MAPS).page("more").never_answers().held(&never));
    site.api.next(begins());
    let signals = Signals::default();
    let story = async {
        never.asked().await;
        signals.deleted.cancel();
    };
    let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
    assert!(ran.is_none());
    assert_eq!(site.written(), [(json!("InProgress"), Value::Null)]);
    assert_eq!(site.stored(), [""; 0]);
}

/// Whether the API server itself is gone is asked by a list of namespaces.
#[tokio::test]
async fn a_list_that_breaks_off_for_good_makes_no_backup_with_holes() {
    let site = Site::new()
        .with_pages(get(MAPS).page("more").breaks_after(r#"{"kind":"List","items":[{"metadata":"#));
    site.api.once(get(NAMESPACES).breaks());
    site.api.next(begins()).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(reason.as_str().unwrap().contains("failed to list what is to be backed up"), "{reason}");
    assert!(reason.as_str().unwrap().contains("the API server answers berth no more"), "{reason}");
    assert_eq!(site.stored(), LOG);
    let log = std::fs::read(site.folder.path().join("bucket/backups/one/one-logs.gz")).unwrap();
    let mut told = String::new();
    flate2::read::MultiGzDecoder::new(&log[..]).read_to_string(&mut told).unwrap();
    assert!(told.contains("level=error msg=\"failed to list what is to be backed up"), "{told}");
}

#[tokio::test]
async fn a_token_that_is_refused_for_good_makes_no_backup_with_holes() {
    let site = Site::new();
    site.api.once(get(MAPS).refuses(401)).once(get(NAMESPACES).refuses(401));
    site.api.next(begins()).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(reason.as_str().unwrap().contains("refuses berth's token"), "{reason}");
    assert_eq!(site.stored(), LOG);
}

/// A server behind the API server, a conversion webhook, a key: whatever it is that fails, the API
/// server is well.
#[tokio::test]
async fn a_type_that_cannot_be_read_costs_itself_and_is_named_with_the_way_out() {
    let ends = [
        get(MAPS).page("more").refuses(503),
        get(MAPS).page("more").refuses(401),
        get(MAPS).page("more").breaks_after(r#"{"kind":"List","items":[{"metadata":"#),
        get(MAPS).page("more").answers(json!(["no", "list"])),
    ];
    for end in ends {
        let site = Site::new().with_pages(end.clone());
        // Asked once more when it is known that the API server is well.
        site.api.once(end).always(get(NAMESPACES).answers(list("5", &[])));
        site.api.next(begins()).next(gets_leave()).next(ends_in("PartiallyFailed"));
        assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
        let last = site.api.writes().last().unwrap().body["status"].clone();
        assert_eq!(last["errors"], 1, "{last}");
        // What the first page brought is stored and counted.
        assert_eq!(last["progress"], json!({"totalItems": 1, "itemsBackedUp": 1}));
        let told = site.told();
        for words in ["failed to list configmaps", "`kubectl get configmaps -A`"] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_read_costs_itself() {
    let nameless = json!({"metadata": {}, "data": {"a": "b"}});
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[nameless, map("b")])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("PartiallyFailed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let last = site.api.writes().last().unwrap().body["status"].clone();
    assert_eq!(last["progress"], json!({"totalItems": 2, "itemsBackedUp": 2}));
    assert!(site.told().contains("1 objects of configmaps are missing"), "{}", site.told());
}

#[tokio::test]
async fn a_read_that_fails_before_it_begins_is_tried_again_and_leaves_it_ready_where_the_api_server_is_gone()
{
    let site = Site::new();
    site.api.once(get("/version").refuses(503)).once(get(NAMESPACES).answers(list("5", &[])));
    site.api.always(get(MAPS).answers(list("5", &[])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);

    // Without the UID of its namespace no run could claim its folder.
    for what in ["/version", "/api/v1/namespaces/kube-system"] {
        let site = Site::new();
        site.api.once(get(what).breaks()).once(get(NAMESPACES).breaks());
        assert!(site.run(Signals::default()).await.is_none(), "{what}");
        assert!(site.written().is_empty(), "{what}");
    }
}

#[tokio::test]
async fn one_that_is_stopped_or_canceled_before_it_begins_stays_ready_or_fails() {
    for is_canceled in [false, true] {
        let never = Hold::new();
        let site = Site::new();
        site.api.once(get("/version").never_answers().held(&never));
        if is_canceled {
            site.api.next(ends_in("Failed"));
        }
        let signals = Signals::default();
        let story = async {
            never.asked().await;
            if is_canceled { signals.canceled.cancel() } else { signals.stop.cancel() }
        };
        let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
        let phase = if is_canceled { BackupPhase::Failed } else { BackupPhase::ReadyToStart };
        assert_eq!(ran.unwrap().phase(), phase);
        assert_eq!(site.written().len(), usize::from(is_canceled));
    }
}

#[tokio::test]
async fn a_group_whose_types_nobody_knows_is_an_error_unless_others_were_asked_for() {
    for (types, phase, errors) in [
        (json!(null), BackupPhase::PartiallyFailed, json!(1)),
        (json!(["configmaps"]), BackupPhase::Completed, Value::Null),
    ] {
        let stale = |group: &str| {
            let versions = json!([{"version": "v1", "freshness": "Stale", "resources": []}]);
            json!({"metadata": {"name": group}, "versions": versions})
        };
        let groups = json!({"items": [stale("dead.example.com"), stale("metrics.k8s.io")]});
        let mut ready = backup("7", "ReadyToStart");
        ready["spec"]["includedNamespaceScopedResources"] = types;
        let site = Site::of(ready);
        let api = &site.api;
        api.once(get("/apis").answers(groups)).always(get(MAPS).answers(list("5", &[])));
        api.next(begins()).next(gets_leave()).next(ends_in(phase.as_str()));
        assert_eq!(site.run(Signals::default()).await.unwrap().phase(), phase);
        assert_eq!(api.writes().last().unwrap().body["status"]["errors"], errors);
        assert!(site.told().contains("kubectl get apiservice v1.dead.example.com"), "{}", site.told());
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_fails_validation_and_one_that_can_be_counts() {
    const POLICY: &str = "/api/v1/namespaces/velero/configmaps/p";
    let map = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}, "data": data});
    let mut ready = backup("7", "ReadyToStart");
    ready["spec"]["resourcePolicy"] = json!({"kind": "configmap", "name": "p"});
    for (line, words) in [
        (get(POLICY).refuses(404), "spec.resourcePolicy.name: ConfigMap velero/p does not exist"),
        (get(POLICY).answers(map(Value::Null)), "ConfigMap velero/p.data: "),
        (get(POLICY).answers(map(json!({"a": "version: v2"}))), "ConfigMap velero/p.data[a].version: "),
    ] {
        let site = Site::of(ready.clone());
        site.api.once(line).next(ends_in("FailedValidation"));
        assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::FailedValidation);
        let end = site.api.writes()[0].body.clone();
        let status = &end["status"];
        assert!(status["validationErrors"][0].as_str().unwrap().starts_with(words), "{status}");
        assert_eq!(end["metadata"]["labels"], json!({keys::STORAGE_LOCATION: "default"}));
        assert_eq!((&status["version"], &status["formatVersion"]), (&json!(1), &json!("1.1.0")));
        assert!(status["expiration"].is_string(), "{status}");
        assert_eq!(site.stored(), [""; 0]);
    }
    let site = Site::of(ready);
    let policy =
        "version: v1\nincludeExcludePolicy: {excludedNamespaceScopedResources: [configmaps, widgets]}";
    site.api.once(get(POLICY).answers(map(json!({"policy": policy}))));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    // No list of ConfigMaps is asked for.
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);
    let told = site.told();
    assert!(told.contains("includeExcludePolicy.excludedNamespaceScopedResources names no type"), "{told}");
}

#[tokio::test]
async fn one_that_was_canceled_just_before_it_begins_does_not_begin() {
    let site = Site::new();
    // Whoever leads has written meanwhile: first only a label, then its end.
    site.api
        .next(patch(ONE).refuses(409))
        .next(get(ONE).answers(backup("8", "ReadyToStart")))
        .next(patch(ONE).refuses(409))
        .next(get(ONE).answers(backup("9", "Failed")));
    assert!(site.run(Signals::default()).await.is_none());
    let versions =
        site.api.writes().into_iter().map(|write| write.body["metadata"]["resourceVersion"].clone());
    assert_eq!(versions.collect::<Vec<_>>(), ["7", "8"]);
    assert_eq!(site.stored(), [""; 0], "nobody may take the place of what is there");
}

#[tokio::test]
async fn one_that_the_api_server_lets_not_begin_fails_and_says_so() {
    let site = Site::new();
    site.api.next(patch(ONE).refuses(422)).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(
        reason.as_str().unwrap().starts_with("the API server refused to let the backup begin"),
        "{reason}"
    );
    // As every Backup that has ended: whoever deletes what has expired goes by these.
    let end = &site.api.writes()[1].body;
    assert_eq!(end["metadata"]["labels"], json!({keys::STORAGE_LOCATION: "default"}));
    assert_eq!((&end["status"]["version"], &end["status"]["formatVersion"]), (&json!(1), &json!("1.1.0")));
    assert!(end["status"]["expiration"].is_string(), "{end}");
    assert_eq!(site.stored(), [""; 0]);
}

#[tokio::test]
async fn a_type_that_may_not_be_read_is_named_with_the_way_out_and_the_rest_is_backed_up() {
    let site = Site::new();
    site.api.always(get(MAPS).refuses(403));
    site.api.next(begins()).next(gets_leave()).next(ends_in("PartiallyFailed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let writes = site.api.writes();
    let last = &writes.last().unwrap().body["status"];
    assert_eq!((&last["errors"], &last["warnings"]), (&json!(1), &json!(1)), "{last}");
    let told = site.told();
    for words in ["1 of the 1 types", "missing: configmaps;", "`berth install` again"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}
