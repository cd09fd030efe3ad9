//! `berth backup delete`: asks for the deletion of Backups with everything that is stored of them.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, DeleteBackupRequest};
use berth_core::bytes::size;
use futures::future::join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::super::person::{Person, Selected, confirmed};
use super::super::version;
use crate::args::backup::{DeleteArgs, TlsArgs};
use crate::cli::download::{DownloadArtifact, Downloads};
use crate::cli::print::{self, ColumnHead, note, say};
use crate::cli::{rights, table};
use crate::text::{chain, printable};

/// Backups of which the store is asked what it has, and how long that may take in all.
const STORED: usize = 10;
const PATIENCE: Duration = Duration::from_secs(3);

/// What the store has of a Backup.
#[derive(Clone, Copy, Debug, Default)]
struct StoredBackup {
    /// Of its archive, which has no data of volumes.
    bytes: Option<u64>,
    /// Until then the store keeps it, whoever deletes it.
    locked_until: Option<Timestamp>,
}

pub async fn run(person: &Person, args: &DeleteArgs) -> anyhow::Result<()> {
    let Selected { found: mut backups, missing } = person.selected::<Backup>(&args.which).await?;
    table::sort_backups(&mut backups);
    if backups.is_empty() {
        say!("No backups found");
        return Ok(());
    }
    version::compare(person).await;
    let asks = !args.confirm && std::io::stdin().is_terminal();
    let stored = if asks { stored(person, &backups).await } else { BTreeMap::new() };
    // Whoever reads may have had enough of it, and who has confirmed wants the deletion all the
    // same.
    let _ = tell(&mut std::io::stderr().lock(), &backups, &stored, Timestamp::now());
    if asks && backups.len() > 1 {
        note!("{}", summary(backups.len(), &stored));
    }
    if !confirmed(args.confirm)? {
        return Ok(());
    }
    let mut failed = missing;
    for backup in &backups {
        let name = backup.name_any();
        match delete(person, backup, asks).await {
            Ok(()) => say!(
                "Request to delete backup {name:?} submitted successfully.\nThe backup will be fully deleted after all associated data (disk snapshots, backup files, restores) are removed."
            ),
            // The others are deleted all the same.
            Err(error) => {
                failed += 1;
                let error = rights::explained(error, person.namespace());
                note!("{name}: {}", chain(error.as_ref()));
            }
        }
    }
    let all = backups.len() + missing;
    ensure!(failed == 0, "{failed} of {all} backups could not be asked to be deleted");
    Ok(())
}

/// What is deleted, before anybody is asked.
fn tell(
    out: &mut impl Write,
    backups: &[Backup],
    stored: &BTreeMap<String, StoredBackup>,
    now: Timestamp,
) -> std::io::Result<()> {
    let of = |backup: &Backup| stored.get(&backup.name_any()).copied().unwrap_or_default();
    let rows: Vec<Vec<String>> = backups
        .iter()
        .map(|backup| {
            let progress = backup.status.as_ref().and_then(|status| status.progress);
            let items = progress.and_then(|progress| progress.items_backed_up);
            vec![
                backup.name_any(),
                table::phase(backup).to_owned(),
                items.map(|items| items.to_string()).unwrap_or_default(),
                of(backup).bytes.map(size).unwrap_or_default(),
                table::from_now(table::expiration(backup), now),
                backup.spec.storage_location.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let heads = [
        ColumnHead::Always("NAME"),
        ColumnHead::Always("PHASE"),
        ColumnHead::Always("ITEMS"),
        ColumnHead::IfAny("ARCHIVE"),
        ColumnHead::Always("EXPIRES"),
        ColumnHead::Always("STORAGE LOCATION"),
    ];
    print::table(out, &heads, &rows)?;
    for backup in backups {
        let name = backup.name_any();
        if backup.phase() == BackupPhase::InProgress {
            writeln!(
                out,
                "{name} runs: its deletion is refused until it ends; `berth queue cancel {name}` ends it"
            )?;
        }
        if let Some(until) = of(backup).locked_until {
            let told = format!("the store keeps the files of {name} until {until}, whoever deletes them");
            writeln!(out, "{}", printable(&told))?;
        }
    }
    Ok(())
}

/// How many are deleted, and how large their archives are, as far as that is known.
fn summary(count: usize, stored: &BTreeMap<String, StoredBackup>) -> String {
    let known: Vec<u64> = stored.values().filter_map(|stored| stored.bytes).collect();
    let bytes = size(known.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes)));
    let archives = match known.len() {
        0 => String::new(),
        all if all == count => format!("; their archives have {bytes}"),
        some => format!("; the archives of {some} of them have {bytes}"),
    };
    format!("{count} Backups are deleted with everything that is stored of them{archives}.")
}

/// What the store has of the first of them. Nothing is told to those who may not download.
async fn stored(person: &Person, backups: &[Backup]) -> BTreeMap<String, StoredBackup> {
    let deadline = Instant::now() + PATIENCE;
    let asked = backups.iter().filter_map(|backup| Some((backup, artifact(backup)?))).take(STORED);
    let asked = asked.map(|(backup, artifact)| async move {
        Some((backup.name_any(), stored_of(person, backup, artifact, deadline).await?))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// What the store has of a Backup in any case.
fn artifact(backup: &Backup) -> Option<DownloadArtifact> {
    match backup.phase() {
        BackupPhase::Completed | BackupPhase::PartiallyFailed => Some(DownloadArtifact::Contents),
        BackupPhase::Failed => Some(DownloadArtifact::Log),
        _ => None,
    }
}

async fn stored_of(
    person: &Person,
    backup: &Backup,
    artifact: DownloadArtifact,
    deadline: Instant,
) -> Option<StoredBackup> {
    let (client, tls) = (person.client().await.ok()?, TlsArgs::default());
    let downloads = Downloads { client: &client, namespace: person.namespace(), tls: &tls };
    let fetcher = downloads.fetcher(backup).await.ok()?;
    let url = downloads.url(&backup.name_any(), artifact, deadline).await.ok()?;
    let bytes = fetcher.touch(&url, deadline).await.ok()?;
    let bytes = bytes.filter(|_| artifact == DownloadArtifact::Contents);
    Some(StoredBackup { bytes, locked_until: fetcher.locked_until() })
}

/// Asks for the deletion of a Backup. While a question stood, another one may have got its name,
/// and nobody was asked about that.
async fn delete(person: &Person, backup: &Backup, was_asked: bool) -> anyhow::Result<()> {
    if was_asked {
        let name = backup.name_any();
        let found = person.api::<Backup>().await?.get_opt(&name).await;
        let found = found.with_context(|| format!("failed to get Backup {name}"))?;
        let found = found.context("it is gone already")?;
        ensure!(found.uid() == backup.uid(), "it is another Backup of this name now, and is not deleted");
    }
    person.create::<DeleteBackupRequest>(&request(backup), false).await.map(drop)
}

fn request(backup: &Backup) -> serde_json::Value {
    let name = backup.name_any();
    let hash = |name: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let labels = BTreeMap::from([
        (keys::BACKUP_NAME, keys::label_value(&name, hash)),
        (keys::BACKUP_UID, backup.uid().unwrap_or_default()),
    ]);
    json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"generateName": format!("{name}-"), "namespace": backup.namespace(), "labels": labels},
        "spec": {"backupName": name},
    })
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, post};
    use serde_json::Value;

    use super::*;

    const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";
    const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/deletebackuprequests";

    fn backup(name: &str, uid: &str, status: Value) -> Value {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": name, "namespace": "velero", "uid": uid},
            "spec": {"storageLocation": "default"}, "status": status,
        })
    }

    fn read(backup: Value) -> Backup {
        serde_json::from_value(backup).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_got_the_name_while_the_question_stood_is_not_deleted() {
        let one = read(backup("one", "u1", json!({"phase": "Completed"})));
        for (there, says) in [(Some("u1"), None), (Some("u2"), Some("another Backup")), (None, Some("gone"))]
        {
            let api = Scripted::new();
            match there {
                Some(uid) => api.next(get(ONE).answers(backup("one", uid, json!({})))),
                None => api.next(get(ONE).refuses(404)),
            };
            if says.is_none() {
                api.next(post(REQUESTS).takes_as("1"));
            }
            let done = delete(&Person::of(api.client("velero")), &one, true).await;
            let said = done.err().map(|error| chain(error.as_ref()));
            assert_eq!(said.is_some(), says.is_some(), "{there:?}: {said:?}");
            assert!(says.is_none_or(|says| said.is_some_and(|said| said.contains(says))), "{there:?}");
        }
        // Nobody was asked, so it was looked at a moment ago.
        let api = Scripted::new().next(post(REQUESTS).takes_as("1"));
        delete(&Person::of(api.client("velero")), &one, false).await.unwrap();
        assert_eq!(api.writes()[0].body["metadata"]["labels"]["velero.io/backup-uid"], "u1");
    }

    #[test]
    fn what_goes_is_told_with_its_size_and_until_when_it_is_locked() {
        let status = json!({
            "phase": "Completed", "expiration": "2026-12-25T15:00:00Z", "progress": {"itemsBackedUp": 7},
        });
        let backups =
            [read(backup("one", "u1", status)), read(backup("two", "u2", json!({"phase": "InProgress"})))];
        let until = "2026-12-31T00:00:00Z".parse().ok();
        let stored = [("one".to_owned(), StoredBackup { bytes: Some(3 << 20), locked_until: until })];
        let now: Timestamp = "2026-11-25T15:00:00Z".parse().unwrap();
        let told = |stored: BTreeMap<String, StoredBackup>| {
            let mut out = Vec::new();
            tell(&mut out, &backups, &stored, now).unwrap();
            String::from_utf8(out).unwrap()
        };
        let runs = "two runs: its deletion is refused until it ends; `berth queue cancel two` ends it\n";
        let locked = "the store keeps the files of one until 2026-12-31T00:00:00Z, whoever deletes them\n";
        let table = "\
NAME  PHASE       ITEMS  ARCHIVE  EXPIRES  STORAGE LOCATION
one   Completed   7      3.0 MiB  30d      default
two   InProgress                  n/a      default
";
        assert_eq!(told(stored.into()), format!("{table}{locked}{runs}"));
        let table = "\
NAME  PHASE       ITEMS  EXPIRES  STORAGE LOCATION
one   Completed   7      30d      default
two   InProgress         n/a      default
";
        assert_eq!(told(BTreeMap::new()), format!("{table}{runs}"));
    }
    #[test]
    fn of_several_it_is_told_how_many_and_how_large_they_are_together() {
        let stored = |sizes: &[Option<u64>]| -> BTreeMap<String, StoredBackup> {
            let of = |bytes: &Option<u64>| StoredBackup { bytes: *bytes, locked_until: None };
            sizes.iter().enumerate().map(|(i, bytes)| (format!("b-{i}"), of(bytes))).collect()
        };
        for (sizes, told) in [
            (&[][..], "2 Backups are deleted with everything that is stored of them."),
            (&[None], "2 Backups are deleted with everything that is stored of them."),
            (
                &[Some(1 << 20), None],
                "2 Backups are deleted with everything that is stored of them; the archives of 1 of them have 1.0 MiB.",
            ),
            (
                &[Some(1 << 20), Some(2 << 20)],
                "2 Backups are deleted with everything that is stored of them; their archives have 3.0 MiB.",
            ),
        ] {
            assert_eq!(summary(2, &stored(sizes)), told);
        }
    }
}
