//! Removes the snapshots of a backup from berth's own repositories. Only those that have the
//! backup's name as a tag, because what names them lies in the store, where others may be able to
//! write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use berth_api::velero::BackupStorageLocation;
use berth_pod_volumes::Unneeded;
use kube::ResourceExt as _;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::carrying::{Carrying, Files};
use crate::node_agent::repositories::MissingRepository;

/// How long one repository may take, and all together: less than a step, whose end would not tell
/// which one it was.
const PATIENCE: Duration = Duration::from_secs(200);
const ALL: Duration = Duration::from_secs(280);
/// How many of the repositories that fail are told.
const TOLD: usize = 5;
/// Whom restic shows as the holder of the lock.
const HOST: &str = "berth-controller";

/// Snapshots of one repository, and the UIDs of the Backup that others of it have as a tag.
type OfOne<'f> = (BTreeSet<&'f str>, BTreeSet<&'f str>);

impl Carrying<'_> {
    /// Their data stays until the repositories are pruned. `is_noted`: a checkpoint has named the
    /// repositories, and nothing else does. One that fails does not keep what is in the others.
    pub(super) async fn forget_files(
        &self,
        location: Option<&BackupStorageLocation>,
        all: &BTreeSet<Files>,
        is_noted: bool,
    ) -> anyhow::Result<()> {
        let mut repositories: BTreeMap<&str, OfOne<'_>> = BTreeMap::new();
        for files in all {
            let (snapshots, uids) = repositories.entry(&files.namespace).or_default();
            snapshots.extend(files.snapshot.as_deref());
            uids.extend(files.backup_uid.as_deref());
        }
        let location = location.map(|location| location.name_any());
        let (begun, mut failed) = (Instant::now(), Vec::new());
        for (namespace, of_one) in repositories {
            let until = (begun + ALL).min(Instant::now() + PATIENCE);
            if !failed.is_empty() && begun.elapsed() >= ALL {
                failed.push(format!("no time was left for the repository of namespace {namespace}"));
                continue;
            }
            let forgotten = self.forget_in(location.as_deref(), namespace, of_one, is_noted, until);
            if let Err(error) = forgotten.await {
                let error = error.context(format!("the repository of namespace {namespace}"));
                failed.push(format!("{error:#}"));
            }
        }
        let more = failed.len().saturating_sub(TOLD);
        failed.truncate(TOLD);
        if more > 0 {
            failed.push(format!("and {more} more repositories"));
        }
        if failed.is_empty() { Ok(()) } else { Err(anyhow!(failed.join("; "))) }
    }

    async fn forget_in(
        &self,
        location: Option<&str>,
        namespace: &str,
        (snapshots, uids): OfOne<'_>,
        is_noted: bool,
        until: Instant,
    ) -> anyhow::Result<()> {
        let location = match location {
            Some(location) => location,
            None if snapshots.is_empty() => return Ok(()),
            None => bail!("the location of the backup is gone"),
        };
        let opened = timeout_at(until, self.lifecycle.repositories.get(location, namespace, false));
        let repository = match opened.await.context("it could not be opened in time").flatten() {
            Ok(repository) => repository,
            // And so are its snapshots.
            Err(error) if error.is::<MissingRepository>() => return Ok(()),
            // No PodVolumeBackup of it tells a snapshot: they failed, maybe because of that. The
            // Backup goes nevertheless.
            Err(error) if snapshots.is_empty() && !is_noted => {
                let error = format!("{error:#}");
                warn!(backup = self.backup_name(), namespace, error, "the repository cannot be opened");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let unneeded = Unneeded {
            tag: format!("backup={}", self.backup_name()),
            ids: snapshots.into_iter().map(str::to_owned).collect(),
            tags: uids.into_iter().map(|uid| format!("backup-uid={uid}")).collect(),
        };
        match timeout_at(until, repository.forget(unneeded, HOST)).await.context("it did not end in time")? {
            Ok(count) => {
                info!(backup = self.backup_name(), namespace, count, "forgot snapshots of files");
                Ok(())
            }
            Err(fault) => {
                self.lifecycle.repositories.forget(location, namespace);
                Err(fault.into())
            }
        }
    }
}
