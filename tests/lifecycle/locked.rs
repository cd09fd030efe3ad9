//! Deletion, expiry and sync where the bucket keeps versions and locks them. The server is moto,
//! which knows both.

use berth_api::velero::BackupPhase;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::deletion::{create, delete, errors, is_deleted, requests, start};
use super::sync::{LOCATION, apply, is_there, wait_rounds, wait_there};
use crate::queue::ended;
use crate::support::moto::{Answer, Moto, texts};
use crate::support::{Berth, ControlPlane, PATIENCE, backup, wait_for};

const REGION: &str = "us-east-1";
const BUCKET: &str = "vault";
const PREFIX: &str = "deep/locked";
/// Of a lock that does not end while the test runs.
const LATER: &str = "2099-01-01T00:00:00Z";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    key: String,
    id: String,
    is_marker: bool,
}

/// The bucket, as somebody else uses it who has all rights.
struct Vault {
    moto: Moto,
    runtime: Runtime,
}

impl Vault {
    /// `None`: it cannot run here.
    fn start(plane: &ControlPlane) -> Option<Self> {
        let moto = Moto::start(plane, "locked").unwrap()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let vault = Self { moto, runtime };
        let headers = [("x-amz-bucket-object-lock-enabled", "true")];
        let path = format!("/{BUCKET}");
        let made = vault.runtime.block_on(vault.moto.call(Method::PUT, REGION, &path, &headers, "")).unwrap();
        assert_eq!(made.status, 200, "{}", made.text);
        Some(vault)
    }

    fn call(&self, method: Method, path: &str, body: &str) -> Answer {
        let path = format!("/{BUCKET}{path}");
        self.runtime.block_on(self.moto.call(method, REGION, &path, &[], body)).unwrap()
    }

    /// All versions of a backup's files, and what hides them.
    fn versions(&self, backup: &str) -> Vec<Version> {
        let answer = self.call(Method::GET, &format!("?versions=&prefix={PREFIX}/backups/{backup}/"), "");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let (mut found, mut key) = (Vec::new(), String::new());
        for (at, text) in texts(&answer.text).unwrap() {
            match at.as_str() {
                "Version/Key" | "DeleteMarker/Key" => key = text,
                "Version/VersionId" | "DeleteMarker/VersionId" => {
                    let is_marker = at.starts_with("DeleteMarker");
                    found.push(Version { key: key.clone(), id: text, is_marker });
                }
                _ => {}
            }
        }
        found
    }

    fn remove(&self, version: &Version) -> u16 {
        self.call(Method::DELETE, &format!("/{}?versionId={}", version.key, version.id), "").status
    }

    /// Locks all that is there of a backup, or ends its lock.
    fn lock(&self, backup: &str, until: &str) {
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>GOVERNANCE</Mode>\
             <RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        for version in self.versions(backup).iter().filter(|version| !version.is_marker) {
            let path = format!("/{}?retention=&versionId={}", version.key, version.id);
            let answer = self.call(Method::PUT, &path, &body);
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    }

    /// Deletes all files of a backup as any other program would.
    fn hide(&self, backup: &str) {
        for version in self.versions(backup) {
            assert_eq!(self.call(Method::DELETE, &format!("/{}", version.key), "").status, 204);
        }
    }

    /// Takes away what hides them and was not there before.
    fn show(&self, backup: &str, before: &[Version]) {
        for version in self.versions(backup).iter().filter(|version| !before.contains(version)) {
            assert!(version.is_marker, "{version:?} is new");
            assert_eq!(self.remove(version), 204, "{version:?}");
        }
    }

    fn has_all(&self, backup: &str, before: &[Version]) {
        let now = self.versions(backup);
        assert!(!before.is_empty());
        for version in before {
            assert!(now.contains(version), "{version:?} is lost: {now:?}");
        }
    }
}

fn request(berth: &Berth, backup: &str) -> Value {
    requests(berth).into_iter().find(|request| request["spec"]["backupName"] == backup).unwrap()
}

fn uid(berth: &Berth, name: &str) -> Option<String> {
    berth.kubectl().backup(berth.namespace(), name).unwrap().uid()
}

#[test]
fn what_the_store_locks_stays_with_its_date_and_goes_when_the_lock_has_ended() {
    let plane = ControlPlane::shared().unwrap();
    let Some(vault) = Vault::start(plane) else { return };
    let berth = start("deletion-locked", &[], &[("BERTH_PACE", "60")]);
    let (kubectl, ns) = (berth.kubectl(), berth.namespace());
    let location = vault.moto.location(LOCATION, BUCKET, PREFIX);
    apply(&berth, &[vault.moto.keys.secret_object(ns), location]);
    berth.await_location(LOCATION).unwrap();
    let of = |name: &str, ttl: &str| {
        backup(name, json!({"includedNamespaces": ["default"], "storageLocation": LOCATION, "ttl": ttl}))
    };
    // It expires when its files are locked, and not before.
    let mut expiring = of("expiring", "1s");
    expiring["metadata"]["annotations"] = json!({"berth.dev/keep": "until it is locked"});
    create(&berth, &[of("free", "24h"), of("asked", "24h"), expiring]);
    let names = ["free", "asked", "expiring"];
    let done = ended(&berth, &names);
    for name in names {
        assert_eq!(done[name].phase(), BackupPhase::Completed, "{:?}", done[name].status);
    }
    let before = names.map(|name| vault.versions(name));
    for name in ["asked", "expiring"] {
        vault.lock(name, LATER);
        let versions = vault.versions(name);
        let mut files = versions.iter().filter(|version| !version.is_marker);
        assert!(files.all(|file| vault.remove(file) == 403), "it is locked: {versions:?}");
    }

    // What is not locked is hidden.
    delete(&berth, "free");
    is_deleted(&berth, "free");
    assert!(vault.versions("free").iter().any(|version| version.is_marker));

    // A request for what is locked tells the date, whoever has created it, and changes nothing.
    delete(&berth, "asked");
    kubectl.run(&["annotate", "backups.velero.io", "expiring", "-n", ns, "berth.dev/keep-"]).unwrap();
    for (name, before) in names.iter().zip(&before).skip(1) {
        let said = errors(&berth, name);
        assert!(said.contains(&format!("until {LATER}, whoever deletes them")), "{said}");
        assert_eq!(request(&berth, name)["metadata"]["annotations"]["berth.dev/locked-until"], LATER);
        assert_eq!(kubectl.phase(ns, name).unwrap(), BackupPhase::Completed);
        assert_eq!(vault.versions(name), *before, "{name}");
    }

    // A Backup that somebody removes by mistake comes back with it.
    let lost = uid(&berth, "asked");
    kubectl.run(&["delete", "backups.velero.io", "asked", "-n", ns]).unwrap();
    wait_for("the removed Backup to come back", PATIENCE, || {
        let found = kubectl.backups(ns)?;
        Ok(found.get("asked").is_some_and(|backup| backup.uid() != lost).then_some(()))
    })
    .unwrap();
    // It also comes back after another program has deleted the files, once these are shown again.
    vault.hide("asked");
    kubectl.run(&["delete", "backups.velero.io", "asked", "-n", ns]).unwrap();
    wait_rounds(&berth, 2);
    assert!(!is_there(&berth, "asked"), "its files are hidden");
    vault.show("asked", &before[1]);
    wait_there(&berth, "asked", true);
    assert_eq!(vault.versions("asked"), before[1]);

    // The lock of one ends by itself.
    let end = Timestamp::now() + SignedDuration::from_secs(3);
    vault.lock("asked", &end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    wait_for("the lock to end", PATIENCE, || Ok((Timestamp::now() > end).then_some(()))).unwrap();
    delete(&berth, "asked");
    is_deleted(&berth, "asked");
    // The other lock is shortened. Nobody sees that before the request goes, as it does after a
    // day.
    vault.lock("expiring", "2020-01-01T00:00:00Z");
    let failed = request(&berth, "expiring")["metadata"]["name"].as_str().unwrap().to_owned();
    kubectl.run(&["delete", "deletebackuprequests.velero.io", &failed, "-n", ns]).unwrap();
    is_deleted(&berth, "expiring");

    // Neither comes back, because nothing of them is shown, and yet the bucket has lost nothing.
    wait_rounds(&berth, 2);
    for (name, before) in names.iter().zip(&before) {
        assert!(!is_there(&berth, name), "{name}");
        vault.has_all(name, before);
    }
}
