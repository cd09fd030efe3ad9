//! `berth backup delete`: asks for the deletion of Backups with everything that is stored of them.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, DeleteBackupRequest};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::super::person::{Person, confirmed};
use crate::args::backup::DeleteArgs;
use crate::cli::print;
use crate::cli::print::ColumnHead;
use crate::cli::{rights, table};
use crate::text::chain;

pub async fn run(person: &Person, args: &DeleteArgs) -> anyhow::Result<()> {
    let mut backups = person.selected::<Backup>(&args.which).await?;
    table::sort_backups(&mut backups);
    if backups.is_empty() {
        println!("No backups found");
        return Ok(());
    }
    tell(&backups)?;
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
