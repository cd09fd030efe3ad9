//! `berth backup delete`: asks for the deletion of Backups with everything that is stored of them.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, DeleteBackupRequest};
use futures::future::join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::super::person::{Person, confirmed};
use crate::args::backup::{DeleteArgs, TlsArgs};
use crate::cli::download::{DownloadArtifact, Downloads};
use crate::cli::print;
use crate::cli::print::ColumnHead;
use crate::cli::{rights, table};
use crate::text::{chain, printable};

/// Backups of which the store is asked until when it keeps them, and how long that may take in all.
const LOCKS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(3);

pub async fn run(person: &Person, args: &DeleteArgs) -> anyhow::Result<()> {
    let mut backups = person.selected::<Backup>(&args.which).await?;
    table::sort_backups(&mut backups);
    if backups.is_empty() {
        println!("No backups found");
        return Ok(());
    }
    tell(&backups)?;
    if !args.confirm && std::io::stdin().is_terminal() {
        tell_locks(person, &backups).await;
    }
    if !confirmed(args.confirm)? {
        return Ok(());
    }
    let mut failed = 0;
    for backup in &backups {
        let name = backup.name_any();
        match person.create::<DeleteBackupRequest>(&request(backup), false).await {
            Ok(_) => println!(
                "Request to delete backup {name:?} submitted successfully.\nThe backup will be fully deleted after all associated data (disk snapshots, backup files, restores) are removed."
            ),
            // The others are deleted all the same.
            Err(error) => {
                failed += 1;
                let error = rights::explained(error, person.namespace());
                eprintln!("{name}: {}", chain(error.as_ref()));
            }
        }
    }
    anyhow::ensure!(failed == 0, "{failed} of {} backups could not be asked to be deleted", backups.len());
    Ok(())
}

/// What is deleted, before anybody is asked.
fn tell(backups: &[Backup]) -> std::io::Result<()> {
    let now = Timestamp::now();
    let rows: Vec<Vec<String>> = backups
        .iter()
        .map(|backup| {
            let progress = backup.status.as_ref().and_then(|status| status.progress);
            let items = progress.and_then(|progress| progress.items_backed_up);
            vec![
                backup.name_any(),
                table::phase(backup).to_owned(),
                items.map(|items| items.to_string()).unwrap_or_default(),
                table::from_now(table::expiration(backup), now),
                backup.spec.storage_location.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let heads = ["NAME", "PHASE", "ITEMS", "EXPIRES", "STORAGE LOCATION"].map(ColumnHead::Always);
    let mut err = std::io::stderr().lock();
    print::table(&mut err, &heads, &rows)?;
    for backup in backups {
        let name = backup.name_any();
        if backup.phase() == BackupPhase::InProgress {
            use std::io::Write as _;
            writeln!(
                err,
                "{name} runs: its deletion is refused until it ends; `berth queue cancel {name}` ends it"
            )?;
        }
    }
    Ok(())
}

/// Tells until when the store keeps what is deleted. Nothing is told to those who may not download.
async fn tell_locks(person: &Person, backups: &[Backup]) {
    let deadline = Instant::now() + PATIENCE;
    let has_log = |backup: &&Backup| {
        matches!(backup.phase(), BackupPhase::Completed | BackupPhase::PartiallyFailed | BackupPhase::Failed)
    };
    let asked = backups.iter().filter(has_log).take(LOCKS);
    let asked =
        asked.map(|backup| async move { (backup.name_any(), locked_until(person, backup, deadline).await) });
    for (name, until) in join_all(asked).await {
        if let Some(until) = until {
            let told = format!("the store keeps the files of {name} until {until}, whoever deletes them");
            eprintln!("{}", printable(&told));
        }
    }
}

async fn locked_until(person: &Person, backup: &Backup, deadline: Instant) -> Option<Timestamp> {
    let (client, tls) = (person.client().await.ok()?, TlsArgs::default());
    let downloads = Downloads { client: &client, namespace: person.namespace(), tls: &tls };
    let fetcher = downloads.fetcher(backup).await.ok()?;
    let url = downloads.url(&backup.name_any(), DownloadArtifact::Log, deadline).await.ok()?;
    fetcher.touch(&url, deadline).await.ok()?;
    fetcher.locked_until()
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
