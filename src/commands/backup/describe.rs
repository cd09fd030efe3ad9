//! `berth backup describe`.

use std::time::Duration;

use anyhow::ensure;
use berth_api::keys;
use berth_api::velero::PodVolumeBackup;
use berth_api::velero::{Backup, BackupPhase, DeleteBackupRequest};
use futures::future::join4;
use kube::ResourceExt;
use kube::api::ApiResource;
use serde_json::Value;
use tokio::time::Instant;

use super::super::person::{Person, typed};
use super::super::queue::{QueueSituation, expected_time, read};
use crate::args::Output;
use crate::args::backup::{DescribeArgs, DescribeOutput};
use crate::cli::describe::{self, Described, Fetched, QueueStanding};
use crate::cli::download::{DownloadArtifact, Downloads, Fetcher, Unpacked};
use crate::cli::print::{self, note};
use crate::cli::rights;
use crate::storage::StoredBackups;
use crate::text::chain;

/// For all artifacts of one Backup.
const PATIENCE: Duration = Duration::from_secs(30);
/// Values of an artifact that is taken apart: in memory, one may take a hundred times the bytes of
/// its text.
const VALUES: usize = 1_000_000;

pub async fn run(person: &Person, args: &DescribeArgs) -> anyhow::Result<()> {
    let objects = person.chosen::<Backup>(&args.names, args.selector.as_deref()).await?;
    let backups = super::sorted(&objects);
    ensure!(
        args.output == DescribeOutput::Plaintext || backups.len() == 1,
        "--output: {} backups are found, and json and yaml describe exactly one: name it",
        backups.len()
    );
    // Once for all of them, because all Backups are read for it.
    let queue = if backups.iter().any(is_open) { queue(person).await } else { None };
    for (i, backup) in backups.iter().enumerate() {
        let deletions = deletions(person, backup).await;
        let pod_volumes = pod_volumes(person, backup).await;
        let mut described = fetched(person, args, backup).await;
        described.standing = queue.as_ref().filter(|_| is_open(backup)).and_then(|all| standing(all, backup));
        described.deletions = &deletions;
        described.pod_volumes = &pod_volumes;
        described.details = args.details;
        described.colour = person.colour();
        let mut out = print::stdout();
        match args.output {
            DescribeOutput::Plaintext => {
                use std::io::Write as _;
                let gap = if i > 0 { "\n\n" } else { "" };
                write!(out, "{gap}{}", describe::backup(backup, &described))?;
            }
            DescribeOutput::Json => {
                print::value(&mut out, &describe::backup_json(backup, &described), Output::Json)?
            }
            DescribeOutput::Yaml => {
                print::value(&mut out, &describe::backup_json(backup, &described), Output::Yaml)?
            }
        }
    }
    Ok(())
}

/// Label selector of what belongs to a Backup.
fn belongs(backup: &Backup) -> String {
    let hash = |name: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    format!("{}={}", keys::BACKUP_NAME, keys::label_value(&backup.name_any(), hash))
}

async fn deletions(person: &Person, backup: &Backup) -> Vec<DeleteBackupRequest> {
    let resource = ApiResource::erase::<DeleteBackupRequest>(&());
    match person.list_of(&resource, Some(belongs(backup))).await {
        Ok(found) => typed(&found),
        Err(error) => {
            note!("deletion attempts of {} cannot be shown: {}", backup.name_any(), chain(error.as_ref()));
            Vec::new()
        }
    }
}

async fn pod_volumes(person: &Person, backup: &Backup) -> Vec<Value> {
    let resource = ApiResource::erase::<PodVolumeBackup>(&());
    match person.list_of(&resource, Some(belongs(backup))).await {
        Ok(found) => found.iter().filter_map(|one| serde_json::to_value(one).ok()).collect(),
        Err(error) => {
            note!("pod volumes of {} cannot be shown: {}", backup.name_any(), chain(error.as_ref()));
            Vec::new()
        }
    }
}

/// Does it wait or run?
fn is_open(backup: &Backup) -> bool {
    matches!(
        backup.phase(),
        BackupPhase::New | BackupPhase::Queued | BackupPhase::ReadyToStart | BackupPhase::InProgress
    )
}

async fn queue(person: &Person) -> Option<QueueSituation> {
    let here = person.here().await.ok()?;
    match read(&here).await {
        Ok(situation) => Some(situation),
        Err(error) => {
            note!("the queue cannot be shown: {}", chain(error.as_ref()));
            None
        }
    }
}

/// Where a Backup that waits or runs stands in berth's queue.
fn standing(situation: &QueueSituation, backup: &Backup) -> Option<QueueStanding> {
    let explained = situation.explain(&backup.name_any()).ok()?;
    let now = situation.now;
    let blockers = explained.blockers.iter().map(|blocker| {
        let state = if blocker.running { "runs" } else { "is ahead" };
        let end = blocker.expected_end.map(|end| format!(", expected to end {}", expected_time(end, now)));
        format!(
            "{} {state}, and takes {} too{}",
            blocker.name,
            blocker.namespaces.join(", "),
            end.unwrap_or_default()
        )
    });
    let blockers = blockers.collect();
    let line = explained.line;
    Some(QueueStanding {
        position: line.position,
        priority_class: line.priority_class,
        waits_for: line.waits_for,
        expected_start: line.expected_start.map(|when| expected_time(when, now)),
        expected_end: line.expected_end.map(|when| expected_time(when, now)),
        blockers,
    })
}

/// The artifacts that the description shows, as far as the store has them already.
async fn fetched<'a>(person: &Person, args: &DescribeArgs, backup: &Backup) -> Described<'a> {
    let mut described = Described::default();
    let is_stored = !matches!(
        backup.phase(),
        BackupPhase::New
            | BackupPhase::Queued
            | BackupPhase::ReadyToStart
            | BackupPhase::InProgress
            | BackupPhase::FailedValidation
            | BackupPhase::Deleting
    );
    if !is_stored {
        return described;
    }
    let status = backup.status.clone().unwrap_or_default();
    let is_some = |count: Option<i64>| count.unwrap_or(0) > 0;
    let has_results = is_some(status.errors) || is_some(status.warnings);
    let has_operations = is_some(status.backup_item_operations_attempted);
    let has_volumes = args.details
        || has_operations
        || is_some(status.volume_snapshots_attempted)
        || is_some(status.csi_volume_snapshots_attempted);
    if !(has_results || has_volumes || args.details) {
        return described;
    }
    let client = match person.client().await {
        Ok(client) => client,
        Err(_) => return described,
    };
    let downloads = Downloads { client: &client, namespace: person.namespace(), tls: &args.tls };
    let fetcher = match downloads.fetcher(backup).await {
        Ok(fetcher) => fetcher,
        Err(error) => {
            let failed = Fetched::Failed(chain(error.as_ref()));
            described.results = failed.clone();
            described.volumes = failed.clone();
            described.resources = failed.clone();
            described.operations = failed;
            return described;
        }
    };
    let deadline = Instant::now() + PATIENCE;
    let get = async |wanted: bool, artifact: DownloadArtifact| {
        if wanted {
            artifact_of(person, &downloads, &fetcher, backup, artifact, deadline).await
        } else {
            Fetched::NotAsked
        }
    };
    (described.results, described.volumes, described.resources, described.operations) = join4(
        get(has_results, DownloadArtifact::Results),
        get(has_volumes, DownloadArtifact::VolumeInfos),
        get(args.details, DownloadArtifact::ResourceList),
        get(args.details && has_operations, DownloadArtifact::ItemOperations),
    )
    .await;
    described.locked_until = fetcher.locked_until();
    described
}

async fn artifact_of(
    person: &Person,
    downloads: &Downloads<'_>,
    fetcher: &Fetcher,
    backup: &Backup,
    artifact: DownloadArtifact,
    deadline: Instant,
) -> Fetched {
    let read = async {
        let url = downloads.url(&backup.name_any(), artifact, deadline).await?;
        fetcher.text(&url, deadline).await
    };
    match read.await {
        Ok(Unpacked::Missing) => Fetched::Missing,
        Ok(Unpacked::Read(text)) => read_artifact(&text),
        Err(error) => Fetched::Failed(chain(rights::explained(error, person.namespace()).as_ref())),
    }
}

/// What an artifact says, which somebody else may have written.
fn read_artifact(text: &[u8]) -> Fetched {
    if !StoredBackups::is_light(text, VALUES) {
        return Fetched::Failed(format!("it has more than {VALUES} values, which is more than is shown"));
    }
    match serde_json::from_slice(text) {
        Ok(value) => Fetched::Got(value),
        Err(error) => Fetched::Failed(format!("it is no JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_of_very_many_values_is_not_taken_apart() {
        let objects = |count: usize| format!("[{}0]", r#"{"":0},"#.repeat(count));
        assert!(matches!(read_artifact(objects(1000).as_bytes()), Fetched::Got(_)));
        for (text, why) in [(objects(VALUES), "more than 1000000 values"), ("{".to_owned(), "no JSON")] {
            let read = read_artifact(text.as_bytes());
            assert!(matches!(&read, Fetched::Failed(said) if said.contains(why)), "{why}");
        }
    }
}
