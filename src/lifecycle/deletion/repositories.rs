//! Removes the snapshots of a backup from berth's own repositories. Only those that have the
//! backup's name as a tag, because what names them lies in the store, where others may be able to
//! write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use berth_api::velero::BackupStorageLocation;
use kube::ResourceExt as _;
use tokio::time::timeout;
use tracing::info;

use super::carrying::{Carrying, Files};
use crate::node_agent::repositories::Missing;

/// How long one repository may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Whom restic shows as the holder of the lock.
const HOST: &str = "berth-controller";

impl Carrying<'_> {
    /// Their data stays until the repositories are pruned.
    pub(super) async fn forget_files(
        &self,
        location: Option<&BackupStorageLocation>,
        all: &BTreeSet<Files>,
    ) -> anyhow::Result<()> {
        let mut repositories: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for files in all {
            repositories.entry(&files.namespace).or_default().push(files.snapshot.clone());
        }
        let tag = format!("backup={}", self.backup_name());
        for (namespace, snapshots) in repositories {
            let location = location.context("the location of the backup is gone")?.name_any();
            let of = || format!("the repository of namespace {namespace}");
            let opened = self.lifecycle.repositories.get(&location, namespace, false);
            let repository = match timeout(PATIENCE, opened).await.with_context(of)? {
                Ok(repository) => repository,
                // And so are its snapshots.
                Err(error) if error.is::<Missing>() => continue,
                Err(error) => return Err(error).with_context(of),
            };
            let forgotten = timeout(PATIENCE, repository.forget(&snapshots, &tag, HOST)).await;
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
