//! Locations on a real S3-protocol server, with its outages, wrong keys and large uploads.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::velero::BackupPhase;
use berth_core::run::Runs;
use flate2::read::MultiGzDecoder;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{ended, start};
use crate::support::PATIENCE;
use crate::support::peers::S3;
use crate::support::process::without_proxies;
use crate::support::{Berth, ControlPlane, Options, backup, wait_for};

const LOCATION: &str = "away";

/// A bucket of its own for this berth, and a location there.
fn with_s3(berth: &Berth, prefix: &str) -> S3 {
    let s3 = S3::start(berth.plane(), berth.namespace()).unwrap();
    apply(berth, &s3.keys.secret_object(berth.namespace()));
    apply(berth, &s3.location(LOCATION, prefix));
    s3
}

fn apply(berth: &Berth, object: &Value) {
    let args = ["apply", "--server-side", "-n", berth.namespace(), "-f", "-"];
    berth.kubectl().run_with(&args, &object.to_string()).unwrap();
}

/// Waits until the location is in `phase`; gives its message.
fn becomes(berth: &Berth, phase: &str) -> String {
    let mut seen = Value::Null;
    let waited = wait_for(&format!("the location to be {phase}"), PATIENCE, || {
        let args = ["get", "backupstoragelocations", LOCATION, "-n", berth.namespace(), "-o", "json"];
        let mut location: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
        seen = location["status"].take();
        Ok((seen["phase"] == phase).then(|| seen["message"].as_str().unwrap_or_default().to_owned()))
    });
    waited.unwrap_or_else(|error| panic!("{error}; it is {seen}"))
}

#[test]
fn an_s3_location_is_kept_available_and_unavailable() {
    let berth = start("s3-phases", 1);
    let mut s3 = with_s3(&berth, "deep/inside");
    assert_eq!(becomes(&berth, "Available"), "");
    s3.process.kill().unwrap();
    let message = becomes(&berth, "Unavailable");
    assert!(!message.is_empty());

    // What is queued meanwhile waits, and no longer than that. The webhook learns of it through a
    // watch.
    let waits = backup("waits", json!({"includedNamespaces": ["default"], "storageLocation": LOCATION}));
    let dry_run = ["create", "--dry-run=server", "-n", berth.namespace(), "-f", "-"];
    wait_for("the webhook to know", PATIENCE, || {
        let tried = berth.kubectl().answer(&dry_run, &waits.to_string())?;
        Ok(tried.stderr.contains("location away is unavailable just now").then_some(()))
    })
    .unwrap();
    let answer = berth.kubectl().create(berth.namespace(), &[waits]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    assert!(answer.stderr.contains("location away is unavailable just now"), "{}", answer.stderr);
    let of_another = backup("of-another", json!({"includedNamespaces": ["default"]}));
    assert!(berth.kubectl().create(berth.namespace(), &[of_another]).unwrap().status.success());
    assert_eq!(ended(&berth, &["of-another"])["of-another"].phase(), BackupPhase::Completed);
    let args =
        ["get", "backups.velero.io", "waits", "-n", berth.namespace(), "-o", "jsonpath={.status.phase}"];
    assert_eq!(berth.kubectl().run(&args).unwrap(), "Queued");

    s3.start_again().unwrap();
    assert_eq!(becomes(&berth, "Available"), "", "the old message is gone");
    assert_eq!(ended(&berth, &["waits"])["waits"].phase(), BackupPhase::Completed);
}

#[test]
fn wrong_keys_make_a_location_unavailable_and_stay_secret() {
    let berth = start("s3-keys", 1);
    let s3 = with_s3(&berth, "");
    assert_eq!(becomes(&berth, "Available"), "");
    let mut wrong = s3.keys.clone();
    wrong.secret = "not-what-the-server-knows".into();
    apply(&berth, &wrong.secret_object(berth.namespace()));
    let message = becomes(&berth, "Unavailable");
    assert!(message.contains("cloud-credentials"), "it names the Secret: {message}");
    for secret in [&wrong.secret, &wrong.id, &s3.keys.secret] {
        assert!(!message.contains(secret.as_str()), "{secret} is in {message}");
    }
    let log = berth.controller.process.log_text().unwrap();
    for secret in [&wrong.secret, &s3.keys.secret] {
        assert!(!log.contains(secret.as_str()), "{secret} is in the log");
    }
    apply(&berth, &s3.keys.secret_object(berth.namespace()));
    assert_eq!(becomes(&berth, "Available"), "");
}

/// Bytes that no compressor makes smaller, the same on every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(next());
    }
    bytes.truncate(length);
    bytes
}

/// A namespace of large ConfigMaps, by name.
pub fn fill(berth: &Berth, namespace: &str, count: u64) -> BTreeMap<String, String> {
    let kubectl = berth.kubectl();
    kubectl.run(&["create", "namespace", namespace]).unwrap();
    let mut made = BTreeMap::new();
    for i in 0..count {
        let bytes = STANDARD.encode(noise(i + 1, 700_000));
        let name = format!("noise-{i}");
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace}, "binaryData": {"bytes": bytes},
        });
        let answer = kubectl.create(namespace, &[object]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
        made.insert(name, bytes);
    }
    made
}

/// Each of them, as it is, in both of its places, and once in each.
fn holds_all(archive: &[u8], made: &BTreeMap<String, String>) {
    let mut tar = tar::Archive::new(MultiGzDecoder::new(archive));
    let mut copies: BTreeMap<String, usize> = BTreeMap::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        if !path.contains("configmaps") {
            continue;
        }
        let mut text = Vec::new();
        entry.read_to_end(&mut text).unwrap();
        let object: Value = serde_json::from_slice(&text).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(object["binaryData"]["bytes"] == json!(made[&name]), "{path} is not what was stored");
        *copies.entry(name).or_default() += 1;
    }
    let names: Vec<&String> = made.keys().collect();
    assert_eq!(copies.keys().collect::<Vec<_>>(), names);
    assert!(copies.values().all(|copies| *copies == 2), "{copies:?}");
}

/// What only a piece of the archive was read for is not disturbed by what is wrong with the rest.
fn one_object_is_read_by_the_index(berth: &Berth, s3: &S3, archive: &[u8], made: &BTreeMap<String, String>) {
    let mut tar = tar::Archive::new(MultiGzDecoder::new(archive));
    let of = |entry: std::io::Result<tar::Entry<'_, _>>| {
        String::from_utf8(entry.unwrap().path_bytes().into_owned()).unwrap()
    };
    let last =
        tar.entries().unwrap().map(of).filter(|path| path.starts_with("resources/configmaps/namespaces/"));
    let last = last.last().unwrap();
    let last = last.rsplit('/').next().unwrap().strip_suffix(".json").unwrap();
    let contents = |args: &[&str]| {
        let mut command = std::process::Command::new(program());
        command.args(["backup", "contents", "parts", "--namespace", berth.namespace(), "--kubeconfig"]);
        command.arg(berth.plane().kubeconfig()).args(args).env("HOME", berth.plane().folder());
        without_proxies(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text, String::from_utf8(output.stderr).unwrap())
    };
    let is_read = |what: &str| {
        let (is_ok, text, said) = contents(&[&format!("configmaps/noise/{last}"), "-o", "json"]);
        assert!(is_ok, "{what}: {said}");
        let object: Value = serde_json::from_str(&text).unwrap();
        assert!(object["binaryData"]["bytes"] == json!(made[last]), "{what}");
    };
    let path = Path::from("large/backups/parts/parts.tar.gz");
    let index = Path::from("large/backups/parts/parts-index.json.gz");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = s3.store().unwrap();
    let put = |bytes: Vec<u8>| runtime.block_on(store.put(&path, bytes.into())).unwrap();
    is_read("as it was stored");
    let (is_ok, _, said) = contents(&["configmaps/noise/no-such"]);
    assert!(!is_ok && said.contains("has no object configmaps/noise/no-such"), "{said}");
    // Its beginning is damaged.
    put([vec![0; 1 << 20], archive[1 << 20..].to_vec()].concat());
    is_read("without its beginning");
    let (is_ok, _, said) = contents(&[]);
    assert!(!is_ok && said.contains("archive"), "{said}");
    // It is cut off: no archive of that size is there, so it is read as a stream, up to where it
    // ends.
    put(archive[..archive.len() / 2].to_vec());
    let (is_ok, _, said) = contents(&[&format!("configmaps/noise/{last}")]);
    assert!(!is_ok && said.contains("cut off"), "{said}");
    put(archive.to_vec());
    is_read("as it was again");
    // Without an index, and with one that is none.
    runtime.block_on(store.delete(&index)).unwrap();
    is_read("without an index");
    runtime.block_on(store.put(&index, "no index".into())).unwrap();
    is_read("with a damaged index");
}

/// The first time its controller is killed, the second time it is asked to stop.
#[test]
fn a_large_backup_goes_on_from_its_checkpoint_when_its_controller_is_gone() {
    let mut options = Options::new(program(), "s3-goes-on");
    options.controller_args = vec!["--client-page-size=1".into(), "--after-interruption=resume".into()];
    let mut berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let s3 = with_s3(&berth, "large");
    becomes(&berth, "Available");
    let made = fill(&berth, "goes-on", 60);
    let ns = berth.namespace().to_owned();
    let spec = json!({"includedNamespaces": ["goes-on"], "storageLocation": LOCATION});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, is_killed, runs) in [("killed", true, 2), ("drained", false, 1)] {
        let folder = s3.file(&format!("large/backups/{name}"));
        let answer = berth.kubectl().create(&ns, &[backup(name, spec.clone())]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
        wait_for("a checkpoint", PATIENCE, || Ok(folder.join("berth-checkpoint").exists().then_some(())))
            .unwrap();
        if is_killed {
            berth.kill_controller().unwrap();
        } else {
            berth.controller.process.terminate(PATIENCE).unwrap();
        }
        let left = berth.kubectl().backup(&ns, name).unwrap();
        assert_eq!(left.phase(), BackupPhase::InProgress, "{:?}", left.status);
        assert!(!folder.join(format!("{name}.tar.gz")).exists(), "visible before it is whole");
        berth.controller.process.restart().unwrap();
        let done = ended(&berth, &[name]).remove(name).unwrap();
        assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
        let counted: Runs = done.metadata.annotations.unwrap()["berth.dev/runs"].parse().unwrap();
        // One more for each time that a busy machine lost it the Lease.
        assert!(counted.all >= runs, "{counted:?}");
        let path = Path::from(format!("large/backups/{name}/{name}.tar.gz"));
        let archive =
            runtime.block_on(async { s3.store().unwrap().get(&path).await.unwrap().bytes().await.unwrap() });
        holds_all(&archive, &made);
        let progress = done.status.unwrap().progress.unwrap();
        assert_eq!(progress.total_items, progress.items_backed_up);
        assert!(!folder.join("berth-checkpoint").exists(), "nobody needs it any more");
        assert!(folder.join(format!("{name}-index.json.gz")).exists(), "of both runs");
        let mut log = String::new();
        let lines = std::fs::read(folder.join(format!("{name}-logs.gz"))).unwrap();
        MultiGzDecoder::new(&lines[..]).read_to_string(&mut log).unwrap();
        assert!(log.contains("it goes on from a checkpoint, with"), "{log}");
        assert_eq!(log.matches("backup begins").count(), 1, "the log of the run before is in it: {log}");
    }
}

#[test]
fn an_archive_of_several_parts_arrives_whole() {
    let berth = start("s3-parts", 1);
    let s3 = with_s3(&berth, "large");
    becomes(&berth, "Available");
    let kubectl = berth.kubectl();
    let made = fill(&berth, "noise", 20);
    let spec = json!({"includedNamespaces": ["noise"], "storageLocation": LOCATION});
    let answer = kubectl.create(berth.namespace(), &[backup("parts", spec)]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(&berth, &["parts"]).remove("parts").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);

    let path = Path::from("large/backups/parts/parts.tar.gz");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (archive, parts) = runtime.block_on(async {
        let found = s3.store().unwrap().get(&path).await.unwrap();
        // Of an upload in parts S3 keeps how many there were behind the dash.
        let tag = found.meta.e_tag.clone().unwrap_or_default();
        let parts = tag.trim_matches('"').rsplit_once('-').and_then(|(_, parts)| parts.parse::<u32>().ok());
        (found.bytes().await.unwrap(), parts)
    });
    // All of one size but the last, as R2 wants them.
    assert_eq!(parts, u32::try_from(archive.len().div_ceil(8 << 20)).ok(), "{} bytes", archive.len());
    assert!(archive.len() > 20_000_000, "{}", archive.len());
    holds_all(&archive, &made);

    one_object_is_read_by_the_index(&berth, &s3, &archive, &made);

    // An upload that a dead run began never replaces what a later run stores, because the run that
    // takes the folder over aborts it.
    let cluster =
        kubectl.run(&["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"]).unwrap();
    let claim =
        json!({"cluster": cluster.trim(), "namespace": berth.namespace(), "backup": "gone", "run": "dead"});
    let folder = Path::from("large/backups/again");
    let mut dead = runtime.block_on(async {
        let store = s3.store().unwrap();
        store.put(&folder.clone().join("berth-run.json"), claim.to_string().into()).await.unwrap();
        let mut upload = store.put_multipart(&folder.clone().join("again.tar.gz")).await.unwrap();
        upload.put_part(vec![7; 6 << 20].into()).await.unwrap();
        upload
    });
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": LOCATION});
    kubectl.create(berth.namespace(), &[backup("again", spec)]).unwrap();
    let done = ended(&berth, &["again"]).remove("again").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    let archive = folder.join("again.tar.gz");
    let stored = || {
        runtime.block_on(async { s3.store().unwrap().get(&archive).await.unwrap().bytes().await.unwrap() })
    };
    let before = stored();
    // Whether the store says so or not: there is nothing to put together any more.
    let _ = runtime.block_on(dead.complete());
    assert!(stored() == before, "{} bytes in place of {}", stored().len(), before.len());
}
