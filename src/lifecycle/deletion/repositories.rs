//! Removes the snapshots of a backup from berth's own repositories. Only those that have the
//! backup's name as a tag, because what names them lies in the store, where others may be able to
//! write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::velero::BackupStorageLocation;
use berth_pod_volumes::Unneeded;
use kube::ResourceExt as _;
use tokio::time::timeout;
use tracing::{info, warn};

use super::carrying::{Carrying, Files};
use crate::node_agent::repositories::MissingRepository;

/// How long one repository may take: less than a step, whose end would not tell which one it was.
const PATIENCE: Duration = Duration::from_secs(240);
/// Whom restic shows as the holder of the lock.
const HOST: &str = "berth-controller";

impl Carrying<'_> {
    /// Their data stays until the repositories are pruned. `is_noted`: a checkpoint has named the
    /// repositories, and nothing else does.
    pub(super) async fn forget_files(
        &self,
        location: Option<&BackupStorageLocation>,
        all: &BTreeSet<Files>,
        is_noted: bool,
    ) -> anyhow::Result<()> {
        let mut repositories: BTreeMap<&str, (BTreeSet<&str>, BTreeSet<&str>)> = BTreeMap::new();
        for files in all {
            let (snapshots, uids) = repositories.entry(&files.namespace).or_default();
            snapshots.extend(files.snapshot.as_deref());
            uids.extend(files.backup_uid.as_deref());
        }
        for (namespace, (snapshots, uids)) in repositories {
            let location = match location {
                Some(location) => location.name_any(),
                None if snapshots.is_empty() => continue,
                None => bail!("the location of the backup is gone"),
            };
            let of = || format!("the repository of namespace {namespace}");
            let opened = self.lifecycle.repositories.get(&location, namespace, false);
            let opened = timeout(PATIENCE, opened).await.with_context(of).flatten();
            let repository = match opened {
                Ok(repository) => repository,
                // And so are its snapshots.
                Err(error) if error.is::<MissingRepository>() => continue,
                // No PodVolumeBackup of it tells a snapshot: they failed, maybe because of that.
                // The Backup goes nevertheless.
                Err(error) if snapshots.is_empty() && !is_noted => {
                    let error = format!("{error:#}");
                    warn!(backup = self.backup_name(), namespace, error, "the repository cannot be opened");
                    continue;
                }
                Err(error) => return Err(error).with_context(of),
            };
            let unneeded = Unneeded {
                tag: format!("backup={}", self.backup_name()),
                ids: snapshots.into_iter().map(str::to_owned).collect(),
                tags: uids.into_iter().map(|uid| format!("backup-uid={uid}")).collect(),
            };
            let forgotten = timeout(PATIENCE, repository.forget(unneeded, HOST)).await;
            match forgotten.with_context(of)? {
                Ok(count) => {
                    info!(backup = self.backup_name(), namespace, count, "forgot snapshots of files")
                }
                Err(fault) => {
                    self.lifecycle.repositories.forget(&location, namespace);
                    return Err(fault).with_context(of);
                }
            }
        }
        Ok(())
    }
}
