use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use berth_test_scripted::{Scripted, delete, get, post};
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::args::value::GoTime;

#[test]
fn of_a_log_that_grows_the_rest_is_printed_and_another_one_from_its_beginning() {
    let printed = PrintedLog(b"one\n".to_vec());
    for (log, rest, goes_on) in
        [("one\n", "", true), ("one\ntwo\n", "two\n", true), ("other\n", "other\n", false), ("", "", false)]
    {
        assert_eq!(printed.rest(log.as_bytes()), (rest.as_bytes(), goes_on), "{log}");
    }
    assert_eq!(PrintedLog::default().rest(b"one\n"), (&b"one\n"[..], true));
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// A checkpoint with log lines, and much more behind them.
fn checkpoint(digest: &str, lines: &[u8]) -> Vec<u8> {
    let remembered = gzip("{}");
    let head = json!({
        "version": 3, "run": "r", "scope": "", "upload": "", "digest": digest,
        "lengths": [remembered.len(), lines.len(), 0, 0, 0, 100_000],
    });
    [format!("{head}\n").as_bytes(), &remembered, lines, &[0; 100_000]].concat()
}

/// The path, and how many bytes, from the first one on.
fn asked_for(connection: &TcpStream) -> (String, usize) {
    let (mut path, mut most) = (String::new(), 0);
    for line in BufReader::new(connection).lines() {
        let line = line.unwrap().to_lowercase();
        if let Some(rest) = line.strip_prefix("get ") {
            rest.split(' ').next().unwrap().clone_into(&mut path);
        }
        if let Some(last) = line.strip_prefix("range: bytes=0-") {
            most = last.parse::<usize>().unwrap() + 1;
        }
        if line.is_empty() {
            break;
        }
    }
    (path, most)
}

/// A store that has a checkpoint, or nothing.
#[derive(Clone, Default)]
struct Store {
    checkpoint: Arc<Mutex<Vec<u8>>>,
    /// Paths, and how many bytes were sent.
    asked: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Store {
    /// Returns its address.
    fn serve(&self) -> String {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let store = self.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let (path, most) = asked_for(&connection);
                let mut content: Vec<u8> = store.checkpoint.lock().clone();
                if path != "/checkpoint" {
                    content.clear();
                }
                let end = content.len().min(most);
                store.asked.lock().push((path, end));
                let status = if content.is_empty() { "404 Not Found" } else { "206 Partial Content" };
                let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {end}\r\n\r\n");
                connection.write_all(&[head.as_bytes(), &content[..end]].concat()).unwrap();
            }
        });
        address
    }
}

#[tokio::test]
async fn the_log_of_a_checkpoint_is_read_once_and_nothing_behind_it() {
    let store = Store::default();
    let url = format!("{}/checkpoint", store.serve());
    let fetcher = Fetcher::new(&[], false).unwrap();
    let mut known = String::new();
    assert!(newer(&fetcher, &url, &mut known).await.unwrap().is_none(), "there is no checkpoint yet");
    // Several members, as of a run that continues.
    let lines = [gzip("one\n"), gzip("two\n")].concat();
    for (digest, lines, log) in [
        ("a", &lines[..], Some("one\ntwo\n")),
        ("a", &lines[..], None),
        // A log that is too long for a checkpoint.
        ("b", &lines[..0], None),
        ("c", &lines[..], Some("one\ntwo\n")),
    ] {
        *store.checkpoint.lock() = checkpoint(digest, lines);
        let read = newer(&fetcher, &url, &mut known).await.unwrap();
        assert_eq!(read.map(|log| String::from_utf8(log).unwrap()).as_deref(), log, "{digest}");
    }
    assert!(store.asked.lock().iter().all(|(_, end)| *end <= 8192), "{:?}", store.asked.lock());
    *store.checkpoint.lock() = b"no checkpoint\n".to_vec();
    assert!(newer(&fetcher, &url, &mut known).await.is_err());
}
const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/downloadrequests";

/// Whoever asks for a file of a backup gets a link to it.
fn links(address: &str) -> Scripted {
    let gone = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let made = |sent: &Value, name: &str| {
        let mut made = sent.clone();
        made["metadata"] = json!({"name": name, "namespace": "velero", "resourceVersion": "1"});
        made
    };
    let api = Scripted::new().always(post(REQUESTS).answers_with(move |sent| {
        let is_checkpoint = sent["metadata"]["annotations"].is_object();
        made(sent, if is_checkpoint { "checkpoint" } else { "log" })
    }));
    ["checkpoint", "log"].into_iter().fold(api, |api, name| {
        let target = json!({"kind": "BackupLog", "name": "b"});
        let request = json!({
            "apiVersion": "velero.io/v1", "kind": "DownloadRequest",
            "metadata": {"name": name, "namespace": "velero", "resourceVersion": "2"},
            "spec": {"target": target},
            "status": {"phase": "Processed", "downloadURL": format!("{address}/{name}")},
        });
        let path = format!("{REQUESTS}/{name}");
        api.always(get(&path).answers(request)).always(delete(&path).answers(gone.clone()))
    })
}

/// berth's engine stores the log when the operations have ended, which may take hours.
#[tokio::test]
async fn of_a_backup_that_waits_for_operations_the_log_is_in_the_checkpoint() {
    let store = Store::default();
    let api = links(&store.serve());
    let person = Person::of(api.client("velero"));
    let fetch = FetchArgs { timeout: GoTime(Duration::from_secs(60)), tls: TlsArgs::default() };
    let print = async |phase: &str| {
        let backup = json!({"metadata": {"name": "b"}, "spec": {}, "status": {"phase": phase}});
        let backup: Backup = serde_json::from_value(backup).unwrap();
        store.asked.lock().clear();
        let printed = print_stored(&person, &backup, &fetch, PrintedLog::default()).await;
        let asked: Vec<String> = store.asked.lock().iter().map(|(path, _)| path.clone()).collect();
        (printed.map_err(|error| error.to_string()), asked)
    };
    let waits = "WaitingForPluginOperations";
    let (printed, _) = print(waits).await;
    assert!(printed.unwrap_err().contains("yet, because the backup waits for operations"));
    *store.checkpoint.lock() = checkpoint("a", &gzip("one\n"));
    for phase in [waits, "WaitingForPluginOperationsPartiallyFailed"] {
        let (printed, asked) = print(phase).await;
        printed.unwrap();
        assert_eq!(asked, ["/log", "/checkpoint", "/checkpoint"], "{phase}");
    }
    // Of one that has ended, what a dead run left is not its log.
    let (printed, asked) = print("Completed").await;
    assert_eq!(printed.unwrap_err(), "the store has not the log of Backup b");
    assert_eq!(asked, ["/log"]);
}

#[tokio::test]
async fn the_checkpoint_is_looked_at_while_the_backup_runs_and_while_it_waits_for_operations() {
    let backup = |uid: &str, phase: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": "b", "namespace": "velero", "uid": uid}, "spec": {}, "status": {"phase": phase},
        })
    };
    let followed: Backup = serde_json::from_value(backup("u", "InProgress")).unwrap();
    for (uid, phase, expected) in [
        ("u", "Queued", false),
        ("u", "InProgress", true),
        ("u", "WaitingForPluginOperations", true),
        ("u", "WaitingForPluginOperationsPartiallyFailed", true),
        ("u", "Completed", false),
        ("another", "InProgress", false),
    ] {
        let one = "/apis/velero.io/v1/namespaces/velero/backups/b";
        let api = Scripted::new().next(get(one).answers(backup(uid, phase)));
        let found = has_checkpoint(&Person::of(api.client("velero")), &followed).await;
        assert_eq!(found, expected, "{uid}, {phase}");
    }
}
