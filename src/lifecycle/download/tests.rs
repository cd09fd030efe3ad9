//! Answers to DownloadRequests against a scripted API server, and the server of folders in memory.

use std::path::Path;

use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_test_scripted::{Scripted, get as asked, patch as patching};
use http::{Request as Http, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tower::ServiceExt as _;

use super::*;
use crate::storage::{Opener, Roots};
use crate::watch::WatchEvent;

const VELERO: &str = "/apis/velero.io/v1/namespaces/velero";
const URL: &str = "https://here.example";

fn links(api: &Scripted) -> Links {
    Links { client: api.client("velero"), namespace: "velero".into(), secret: "s".into(), url: URL.into() }
}

fn opener(api: &Scripted, root: &Path) -> Opener {
    Opener::new(api.client("velero"), "velero", Roots::from(vec![root.to_path_buf()]))
}

fn lifecycle(api: &Scripted, root: &Path, links: Option<Links>) -> Lifecycle {
    Lifecycle { opener: opener(api, root), links, ..crate::lifecycle::fake(&api.client("velero")) }
}

fn request(kind: &str, name: &str) -> DownloadRequest {
    serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "DownloadRequest",
        "metadata": {"name": "d", "namespace": "velero", "uid": "du", "resourceVersion": "1"},
        "spec": {"target": {"kind": kind, "name": name}},
    }))
    .unwrap()
}

/// What is there: Backup `b` in a folder, its Restore `r`, and the webhooks' Secret.
fn script(root: &Path) -> Scripted {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "velero.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let location = json!({
        "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket", "prefix": "deep"},
        "config": {"path": root},
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "data": {"tls.key": STANDARD.encode("a private key")},
    });
    Scripted::new()
        .always(asked(&format!("{VELERO}/backups/b")).answers(object(
            "Backup",
            "b",
            json!({"storageLocation": "l"}),
        )))
        .always(asked(&format!("{VELERO}/restores/r")).answers(object(
            "Restore",
            "r",
            json!({"backupName": "b"}),
        )))
        .always(asked(&format!("{VELERO}/backupstoragelocations/l")).answers(object(
            "BackupStorageLocation",
            "l",
            location,
        )))
        .always(asked("/api/v1/namespaces/velero/secrets/s").answers(secret))
}

fn now() -> Timestamp {
    Timestamp::now()
}

#[tokio::test(start_paused = true)]
async fn a_request_gets_a_link_to_its_own_file_for_ten_minutes() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path());
    let path = format!("{VELERO}/downloadrequests/d");
    for (kind, name, key) in [
        ("BackupLog", "b", "backups/b/b-logs.gz"),
        ("RestoreResults", "r", "restores/r/restore-r-results.gz"),
        ("CSIBackupVolumeSnapshotContents", "b", "backups/b/b-csi-volumesnapshotcontents.json.gz"),
        ("BackupContents", "b", "backups/b/b.tar.gz"),
        ("BackupContents index", "b", "backups/b/b-index.json.gz"),
        ("BackupLog index", "b", "backups/b/b-logs.gz"),
        ("BackupLog checkpoint", "b", "backups/b/berth-checkpoint"),
        ("BackupContents checkpoint", "b", "backups/b/b.tar.gz"),
    ] {
        let (kind, asks) = kind.split_once(' ').map_or((kind, None), |(kind, asks)| (kind, Some(asks)));
        let mut request = request(kind, name);
        request.metadata.annotations = asks.map(|asks| [(keys::DOWNLOAD.to_owned(), asks.to_owned())].into());
        api.next(patching(&path).answers(serde_json::to_value(&request).unwrap()));
        answer(&lifecycle(&api, root.path(), Some(links(&api))), &request, now(), true).await;
        let status = api.writes().pop().unwrap().body["status"].clone();
        assert_eq!(status["phase"], "Processed");
        let url = status["downloadURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("{URL}/download/l/{key}?expires=")), "{url}");
    }
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_answered_waits_until_it_expires() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path()).always(asked(&format!("{VELERO}/backups/none")).refuses(404));
    for (kind, name, links) in [
        ("BackupLog", "none", Some(links(&api))),
        ("BackupLog", "../b", Some(links(&api))),
        ("BackupLog", "b", None),
    ] {
        let asked = request(kind, name);
        let made = link(&lifecycle(&api, root.path(), links.clone()), &asked, now()).await;
        assert!(made.is_err(), "{name}: {made:?}");
        let path = format!("{VELERO}/downloadrequests/d");
        api.next(patching(&path).answers(serde_json::to_value(&asked).unwrap()));
        answer(&lifecycle(&api, root.path(), links), &asked, now(), true).await;
        let status = api.writes().pop().unwrap().body["status"].clone();
        assert_eq!(status["phase"], "New");
        assert!(status["expiration"].is_string() && status["downloadURL"].is_null(), "{status}");
    }
    api.finish();
}

/// One that is Deleting, and whose files are still there, can be read.
#[tokio::test(start_paused = true)]
async fn no_link_leads_to_files_that_are_being_removed() {
    let root = tempfile::tempdir().unwrap();
    for files_go in [false, true] {
        let mut going = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": "going"},
            "spec": {"storageLocation": "l"}, "status": {"phase": "Deleting"},
        });
        if files_go {
            going["metadata"]["annotations"] = json!({keys::FILES_GO: "true"});
        }
        let api = script(root.path()).always(asked(&format!("{VELERO}/backups/going")).answers(going));
        let lifecycle = lifecycle(&api, root.path(), Some(links(&api)));
        let made = link(&lifecycle, &request("BackupLog", "going"), now()).await;
        assert_eq!(made.is_err(), files_go, "{made:?}");
        if let Err(error) = made {
            assert!(error.to_string().contains("is being deleted"), "{error}");
        }
    }
}

/// A Restore names its Backup, and a Backup its location, and whoever creates one writes that.
#[tokio::test(start_paused = true)]
async fn no_name_in_an_object_leads_to_another_object() {
    let root = tempfile::tempdir().unwrap();
    let object = |kind: &str, spec: Value| json!({"apiVersion": "velero.io/v1", "kind": kind, "metadata": {"name": "odd"}, "spec": spec});
    let api = script(root.path())
        .next(
            asked(&format!("{VELERO}/restores/odd"))
                .answers(object("Restore", json!({"backupName": "../secrets/s"}))),
        )
        .next(
            asked(&format!("{VELERO}/backups/odd"))
                .answers(object("Backup", json!({"storageLocation": "../backups/b"}))),
        );
    let lifecycle = lifecycle(&api, root.path(), Some(links(&api)));
    for kind in ["RestoreLog", "BackupLog"] {
        let said = link(&lifecycle, &request(kind, "odd"), now()).await.unwrap_err().to_string();
        assert!(said.contains("no object has such a name"), "{said}");
    }
    assert_eq!(api.asked().len(), 2, "{:?}", api.asked());
}

#[tokio::test]
async fn a_link_serves_its_file_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("bucket/deep/backups/b");
    std::fs::create_dir_all(&folder).unwrap();
    let bytes: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(folder.join("b-logs.gz"), &bytes).unwrap();
    std::fs::write(root.path().join("bucket/deep/outside"), "x").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", folder.join("b-results.gz")).unwrap();
    let api = script(root.path());
    let links = links(&api);
    let router = serve::router(links.clone(), opener(&api, root.path()));
    let ask = async |url: &str| {
        let path = url.strip_prefix(URL).unwrap_or(url);
        let request = Http::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        (status, to_bytes(answer.into_body(), usize::MAX).await.unwrap())
    };
    let later = now() + VALID;
    let good = links.make("l", "backups/b/b-logs.gz", later).await.unwrap();
    let (status, served) = ask(&good).await;
    assert!(status == StatusCode::OK && served == bytes, "{status}");
    let (status, _) = ask(&links.make("l", "backups/b/b.tar.gz", later).await.unwrap()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for (range, part) in [
        ("bytes=0-0", Some((0..1, "bytes 0-0/2400000"))),
        ("bytes=300000-699999", Some((300_000..700_000, "bytes 300000-699999/2400000"))),
        ("bytes=2399999-", Some((2_399_999..2_400_000, "bytes 2399999-2399999/2400000"))),
        ("bytes=5-99999999999", Some((5..2_400_000, "bytes 5-2399999/2400000"))),
        // What it does not know is answered with all of it.
        ("bytes=-5", None),
        ("bytes=5-4", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
        ("bytes=+1-2", None),
    ] {
        let request = Http::get(good.strip_prefix(URL).unwrap()).header("range", range);
        let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let served = to_bytes(body, usize::MAX).await.unwrap();
        let (status, wanted) = match &part {
            Some((part, _)) => (StatusCode::PARTIAL_CONTENT, &bytes[part.clone()]),
            None => (StatusCode::OK, &bytes[..]),
        };
        assert!(parts.status == status && served == wanted, "{range}: {}", parts.status);
        let told = parts.headers.get("content-range").map(|value| value.to_str().unwrap());
        assert_eq!(told, part.map(|(_, told)| told), "{range}");
    }
    let request = Http::get(good.strip_prefix(URL).unwrap()).header("range", "bytes=2400000-");
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    let (status, _) = ask(&links.make("l", "backups/b/b-results.gz", later).await.unwrap()).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "a link to a file elsewhere");
    let old = links.make("l", "backups/b/b-logs.gz", now() - VALID).await.unwrap();
    let last = if good.ends_with('0') { "1" } else { "0" };
    let forged = format!("{}{last}", &good[..good.len() - 1]);
    for bad in [
        old.as_str(),
        &forged,
        &good.replace("b-logs", "b-results"),
        &good.replace("/l/", "/m/"),
        &good.replace("backups/b/b-logs.gz", "backups/../outside"),
        "/download/l/backups/b/b-logs.gz",
        "/download/l/backups/b/b-logs.gz?expires=x&signature=y",
    ] {
        assert_eq!(ask(bad).await.0, StatusCode::FORBIDDEN, "{bad}");
    }
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_link_costs_the_api_server_nothing_and_a_forged_one_a_read_now_and_then() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path());
    let router = serve::router(links(&api), opener(&api, root.path()));
    let ask = async |query: &str| {
        let path = format!("/download/l/backups/b/b-logs.gz{query}");
        let request = Http::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    let later = (now() + VALID).as_second();
    let forged = format!("?expires={later}&signature={}", "0".repeat(64));
    for unsigned in ["", "?expires=1", "?expires=x&signature=y", &forged.replace("expires=", "expires=-")] {
        assert_eq!(ask(unsigned).await, StatusCode::FORBIDDEN, "{unsigned}");
    }
    assert_eq!(ask(&format!("?expires={later}&signature=00")).await, StatusCode::FORBIDDEN);
    assert!(api.asked().is_empty(), "{:?}", api.asked());
    for _ in 0..100 {
        assert_eq!(ask(&forged).await, StatusCode::FORBIDDEN);
    }
    assert_eq!(api.asked().len(), 1, "{:?}", api.asked());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(ask(&forged).await, StatusCode::FORBIDDEN);
    assert_eq!(api.asked().len(), 2, "the key may be another by now");
}

/// One that waits for its link, created just now.
fn waiting(request_name: &str, backup: &str) -> DownloadRequest {
    let mut waiting = request("BackupLog", backup);
    let metadata = &mut waiting.metadata;
    metadata.name = Some(request_name.to_owned());
    metadata.uid = Some(request_name.to_owned());
    metadata.creation_timestamp = Some(Time(now()));
    let expiration = Some(Time(now() + VALID));
    waiting.status = Some(DownloadRequestStatus { expiration, ..DownloadRequestStatus::default() });
    waiting
}

fn seen_by_the_watch(all: impl IntoIterator<Item = DownloadRequest>) -> DownloadRequests {
    let requests = DownloadRequests::default();
    let all = all.into_iter().map(|request| (request.name_any(), Arc::new(kept(request)))).collect();
    requests.write(|cache| cache.observe(WatchEvent::Replaced(all)));
    requests
}

#[tokio::test(start_paused = true)]
async fn requests_for_a_location_that_hangs_hold_up_no_other() {
    let root = tempfile::tempdir().unwrap();
    let answered = format!("{VELERO}/downloadrequests/z");
    let api = script(root.path())
        .always(asked(&format!("{VELERO}/backups/hangs")).never_answers())
        .next(patching(&answered).answers(serde_json::to_value(request("BackupLog", "b")).unwrap()));
    let lifecycle = lifecycle(&api, root.path(), Some(links(&api)));
    let known = |name: &str, location: &str| {
        let backup = json!({"metadata": {"name": name, "uid": name}, "spec": {"storageLocation": location}});
        serde_json::from_value::<Backup>(backup).unwrap()
    };
    lifecycle.known.list(&[known("hangs", "away"), known("b", "l")]);
    let hanging = (0..20).map(|i| waiting(&format!("a{i:02}"), "hangs"));
    let requests = seen_by_the_watch(hanging.chain([waiting("z", "b")]));
    let played = async {
        tokio::select! {
            () = work(&lifecycle, &requests) => {}
            () = api.played() => {}
        }
    };
    timeout(Duration::from_secs(5), played).await.unwrap();
    assert_eq!(api.writes()[0].path, answered);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_is_tried_less_and_less_often_and_one_that_goes_not_at_all() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path()).always(asked(&format!("{VELERO}/backups/none")).refuses(404));
    let mut going = waiting("g", "b");
    going.metadata.creation_timestamp = Some(Time(now() - SignedDuration::from_hours(2)));
    going.metadata.deletion_timestamp = Some(Time(now()));
    let requests = seen_by_the_watch([waiting("n", "none"), going]);
    let lifecycle = lifecycle(&api, root.path(), Some(links(&api)));
    assert!(timeout(Duration::from_secs(300), work(&lifecycle, &requests)).await.is_err());
    let tries = api.asked().len();
    assert!((6..=12).contains(&tries), "{tries}: {:?}", api.asked());
}

/// Whoever asks for downloads chooses how large the requests are, and how many there are.
#[test]
fn a_request_takes_little_memory_and_no_link_whatever_is_in_it() {
    let large = "x".repeat(1000);
    let mut made = serde_json::to_value(waiting("d", "b")).unwrap();
    made["metadata"]["annotations"] = json!({keys::DOWNLOAD: INDEX});
    for i in 0..1000 {
        made["metadata"]["annotations"][format!("berth.dev/{i}")] = json!(large);
    }
    made["metadata"]["finalizers"] = json!(vec![&large; 1000]);
    made["status"]["downloadURL"] = json!(large);
    let whole: DownloadRequest = serde_json::from_value(made.clone()).unwrap();
    let found = kept(whole.clone());
    assert!(crate::patch::json_size(&found) < 2000, "{found:?}");
    assert_eq!(found.annotations().get(keys::DOWNLOAD).map(String::as_str), Some(INDEX));
    assert_eq!((seen(&found), &found.spec), (seen(&whole), &whole.spec));
    made["spec"]["target"]["name"] = json!("b".repeat(1_000_000));
    let found = kept(serde_json::from_value(made).unwrap());
    assert!(crate::patch::json_size(&found) < 2000);
    assert_eq!(DownloadFile::BackupLog.key(&found.spec.target.name), None, "no object has the name");
}

/// What is logged, in memory.
#[derive(Clone, Default)]
struct Lines(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_link_writes_nothing_into_the_log() {
    let root = tempfile::tempdir().unwrap();
    let api = Scripted::new().always(asked("/api/v1/namespaces/velero/secrets/s").refuses(500));
    let router = serve::router(links(&api), opener(&api, root.path()));
    let lines = Lines::default();
    let to = lines.clone();
    let logging = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
    let guard = tracing::subscriber::set_default(logging);
    let later = (now() + VALID).as_second();
    for _ in 0..20 {
        let path =
            format!("/download/l%0aforged/backups/b/b-logs.gz?expires={later}&signature={}", "0".repeat(64));
        let request = Http::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    drop(guard);
    let told = String::from_utf8(lines.0.lock().clone()).unwrap();
    assert_eq!(told.matches("could not read the key for links").count(), 1, "{told}");
    assert!(!told.contains("forged") && !told.contains("could not serve"), "{told}");
}
