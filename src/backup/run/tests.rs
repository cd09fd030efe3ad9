//! On the clock of this machine, because the workers of an archive are threads, and a paused clock stands still as long as
//! they wait. Nothing here waits for time to pass.

use std::io::Read as _;
use std::path::Path;

use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_test_scripted::{Hold, Line, Scripted, get, list, page, patch};
use tempfile::TempDir;

use super::*;
use crate::storage::Roots;

const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";
const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/default";
const MAPS: &str = "/api/v1/namespaces/app/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
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

fn engine(api: &Scripted, folder: &TempDir) -> Engine {
    let client = api.client("velero");
    Engine {
        discovery: Arc::new(Discovery::new(client.clone())),
        opener: Opener::new(client.clone(), "velero", Roots::from(vec![folder.path().to_owned()])),
        client,
        namespace: "velero".to_owned(),
        workers: 1,
        page_size: 1,
        // What nobody has scripted is not asked for again.
        list_retry: Duration::ZERO,
        requests: Arc::new(Semaphore::new(4)),
        default_ttl: LONG,
        metrics: BackupMetrics::default(),
    }
}

/// A cluster whose only type is ConfigMaps, and a store that is a folder.
struct Site {
    api: Scripted,
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        Self::of(backup("7", "ReadyToStart"))
    }

    fn of(ready: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let maps = json!({
            "resource": "configmaps", "singularResource": "configmap", "scope": "Namespaced",
            "responseKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
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
            .always(get("/version").answers(version))
            .always(get("/api").answers(group("", &[maps])))
            .always(get("/apis").answers(group("apps", &[])))
            .always(get(LOCATION).answers(location(folder.path())))
            .always(get("/api/v1/namespaces/app").answers(namespace))
            .next(get(ONE).answers(ready));
        Self { api, folder }
    }

    /// The second page of the only list is what `last` says.
    fn with_pages(self, last: Line) -> Self {
        let first = page("5", "more", &[map("a")]);
        self.api.always(get(MAPS).answers(first)).once(last);
        self
    }

    async fn run(&self, signals: Signals) -> Option<Backup> {
        tokio::time::timeout(LONG, engine(&self.api, &self.folder).run("one", "u", signals))
            .await
            .unwrap()
            .ok()
            .flatten()
    }

    /// Names of the files that lie in the store, in whatever folder.
    fn stored(&self) -> Vec<String> {
        fn walk(folder: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.push(path.file_name().unwrap().to_string_lossy().into_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(self.folder.path(), &mut found);
        found
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
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("Completed"));
    let story = async {
        late.asked().await;
        assert!(!site.stored().contains(&"velero-backup.json".to_owned()), "visible before it is whole");
        late.let_go();
    };
    let (ran, ()) = tokio::join!(site.run(Signals::default()), story);
    assert_eq!(ran.unwrap().phase(), BackupPhase::Completed);
    let writes = site.api.writes();
    assert_eq!(writes[0].body["metadata"]["resourceVersion"], "7");
    assert_eq!(writes[1].body["metadata"]["resourceVersion"], "8");
    assert_eq!(writes[1].body["status"]["progress"], json!({"totalItems": 2, "itemsBackedUp": 2}));
    assert!(site.stored().contains(&"velero-backup.json".to_owned()));
}

#[tokio::test]
async fn a_run_that_is_stopped_or_canceled_while_it_lists_ends_failed_and_leaves_nothing() {
    let stopped = json!("the controller was stopped while the backup ran");
    for (end, reason) in [(false, stopped), (true, json!(CANCELED))] {
        let never = Hold::new();
        let site = Site::new().with_pages(get(MAPS).page("more").never_answers().held(&never));
        site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("Failed"));
        let signals = Signals::default();
        let story = async {
            never.asked().await;
            if end { signals.canceled.cancel() } else { signals.stop.cancel() }
        };
        let (ran, ()) = tokio::join!(site.run(signals.clone()), story);
        assert_eq!(ran.unwrap().phase(), BackupPhase::Failed);
        assert_eq!(site.written()[1], (json!("Failed"), reason));
        assert_eq!(site.stored(), [""; 0]);
    }
}

#[tokio::test]
async fn a_run_whose_backup_is_deleted_writes_nothing_more_and_leaves_nothing() {
    let never = Hold::new();
    let site = Site::new().with_pages(get(MAPS).page("more").never_answers().held(&never));
    site.api.next(patch(ONE).answers(backup("8", "InProgress")));
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
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(reason.as_str().unwrap().contains("failed to list what is to be backed up"), "{reason}");
    assert!(reason.as_str().unwrap().contains("the API server itself"), "{reason}");
    assert_eq!(site.stored(), [""; 0]);
}

#[tokio::test]
async fn a_token_that_is_refused_for_good_makes_no_backup_with_holes() {
    let site = Site::new();
    site.api.once(get(MAPS).refuses(401)).once(get(NAMESPACES).refuses(401));
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(reason.as_str().unwrap().contains("does not take our token"), "{reason}");
    assert_eq!(site.stored(), [""; 0]);
}

/// A server behind the API server, a conversion webhook, a key: whatever it is that fails, the API server is well.
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
        site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("PartiallyFailed"));
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
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("PartiallyFailed"));
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
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);

    let site = Site::new();
    site.api.once(get("/version").breaks()).once(get(NAMESPACES).breaks());
    assert!(site.run(Signals::default()).await.is_none());
    assert!(site.written().is_empty());
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
        let mut running = ready.clone();
        running["status"]["phase"] = json!("InProgress");
        running["metadata"]["resourceVersion"] = json!("8");
        let site = Site::of(ready);
        let api = &site.api;
        api.once(get("/apis").answers(groups)).always(get(MAPS).answers(list("5", &[])));
        api.next(patch(ONE).answers(running)).next(ends_in(phase.as_str()));
        assert_eq!(site.run(Signals::default()).await.unwrap().phase(), phase);
        assert_eq!(api.writes().last().unwrap().body["status"]["errors"], errors);
        assert!(site.told().contains("kubectl get apiservice v1.dead.example.com"), "{}", site.told());
    }
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
    assert_eq!(site.stored(), [""; 0]);
}

#[tokio::test]
async fn a_type_that_may_not_be_read_is_named_with_the_way_out_and_the_rest_is_backed_up() {
    let site = Site::new();
    site.api.always(get(MAPS).refuses(403));
    site.api.next(patch(ONE).answers(backup("8", "InProgress"))).next(ends_in("PartiallyFailed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let writes = site.api.writes();
    let last = &writes.last().unwrap().body["status"];
    assert_eq!((&last["errors"], &last["warnings"]), (&json!(1), &json!(1)), "{last}");
    let told = site.told();
    for words in ["1 of the 1 types", "missing: configmaps;", "`berth install` again"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// A location that cannot be read for a moment says nothing of the archive in it.
#[tokio::test(start_paused = true)]
async fn what_nobody_runs_ends_as_it_is_stored_once_its_location_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let stored = folder.path().join("bucket/backups/one");
    std::fs::create_dir_all(&stored).unwrap();
    let metadata = json!({"metadata": {"uid": "u"}, "status": {"phase": "Completed"}});
    std::fs::write(stored.join("velero-backup.json"), metadata.to_string()).unwrap();
    let api = Scripted::new()
        .always(get(ONE).answers(backup("8", "InProgress")))
        .next(get(LOCATION).refuses(503))
        .next(get(LOCATION).answers(location(folder.path())))
        .next(ends_in("Completed"));
    engine(&api, &folder).settle("one", "u", &CancellationToken::new()).await.unwrap();
    assert_eq!(api.writes()[0].body["status"]["phase"], "Completed");
}
