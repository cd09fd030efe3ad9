//! The folder of a backup that is deleted: whose it is, its claim, and the removal of its files.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use berth_api::keys::{self, FILESYSTEM_PROVIDER};
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;
use berth_core::deletion::{BackupIdentity, DELETION, FolderOwner, ForeignFolderReason, Inherited, owner};
use jiff::Timestamp;
use kube::ResourceExt as _;
use object_store::DynObjectStore;
use tracing::{info, warn};

use super::carrying::{Carrying, DeletionFindings};
use super::seen::seen_backup;
use crate::storage::{BackupLayout, ClaimError};
use crate::text::chain;

impl Carrying<'_> {
    /// A bucket is opened once, because that reads the Secret with its keys, which the store itself
    /// reads again where they change. Whether a folder is there is looked at each time, because its
    /// volume may go.
    pub(super) async fn open(
        &mut self,
        location: &BackupStorageLocation,
    ) -> anyhow::Result<Arc<DynObjectStore>> {
        let is_bucket = location.spec.provider != FILESYSTEM_PROVIDER;
        if let Some((spec, store)) = self.opened.as_ref().filter(|_| is_bucket)
            && *spec == location.spec
        {
            return Ok(Arc::clone(store));
        }
        let opened = self.lifecycle.opener.open_existing(location).await;
        let store = opened.map_err(|error| anyhow!(chain(&error)))?;
        self.opened = Some((location.spec.clone(), Arc::clone(&store)));
        Ok(store)
    }

    /// `asked`: the UID that the request records, which is needed when the Backup is gone.
    pub(super) async fn look_at_folder(
        &mut self,
        found: &mut DeletionFindings,
        asked: Option<&str>,
    ) -> anyhow::Result<FolderOwner> {
        let location = found.location.as_ref().context("the location is gone")?;
        let store = self.open(location).await?;
        let prefix = location.spec.object_storage.prefix.as_deref();
        let layout = BackupLayout::new(store, prefix, self.backup_name());
        let survey = match layout.survey().await {
            Ok(survey) => survey,
            Err(ClaimError::Unreadable(_)) => return Ok(FolderOwner::Stranger(ForeignFolderReason::Unknown)),
            Err(error) => return Err(anyhow!(chain(&error))),
        };
        let uid = found.backup.as_ref().and_then(|backup| backup.uid());
        let uid = uid.or_else(|| asked.map(str::to_owned)).unwrap_or_default();
        let time = |key: &str| {
            let text = found.backup.as_ref()?.data.pointer(&format!("/status/{key}"))?.as_str()?;
            text.parse::<Timestamp>().ok()
        };
        let known = BackupIdentity {
            cluster: self.lifecycle.cluster_uid().await?.to_owned(),
            namespace: self.lifecycle.namespace.clone(),
            uid,
            started: time("startTimestamp"),
            completed: time("completionTimestamp"),
        };
        let inherits = location.annotations().get(keys::INHERITS).map(String::as_str).unwrap_or_default();
        // A store lists a thousand files to say whether it has any, so nobody asks who need not
        // know.
        let is_emptied = found.backup.as_ref().is_some_and(|backup| seen_backup(backup).is_emptied());
        let whose = match owner(&known, &survey.stored, Inherited(inherits)) {
            FolderOwner::Nobody
                if !is_emptied && layout.has_no_backup().await.map_err(|error| anyhow!(chain(&error)))? =>
            {
                FolderOwner::NobodyInEmpty
            }
            whose => whose,
        };
        (found.layout, found.survey) = (Some(layout), Some(survey));
        Ok(whose)
    }

    /// Writes the claim of this deletion over the version of the claim that was read.
    pub(super) async fn claim(&self, found: &DeletionFindings) -> anyhow::Result<()> {
        let (Some(layout), Some(survey)) = (&found.layout, &found.survey) else { return Ok(()) };
        let backup = found.backup.as_ref().and_then(|backup| backup.uid());
        let backup = backup.or_else(|| found.request.labels().get(keys::BACKUP_UID).cloned());
        let ours = FolderClaim {
            cluster: self.lifecycle.cluster_uid().await?.to_owned(),
            namespace: self.lifecycle.namespace.clone(),
            backup: backup.context("neither the request nor a Backup says which UID the request is for")?,
            run: format!("{DELETION}{}", found.request.uid().unwrap_or_default()),
            before: None,
        };
        let claimed = layout.claim(&ours, survey.version.clone()).await;
        claimed.map_err(|error| anyhow!(chain(&error))).context("failed to claim the folder")
    }

    /// `false`: some files are left, and the next step continues the removal.
    pub(super) async fn remove_files(&self, found: &DeletionFindings) -> anyhow::Result<bool> {
        let claim = found.survey.as_ref().and_then(|survey| survey.stored.claim.as_ref());
        let (Some(layout), Some(location), Some(claim)) = (&found.layout, &found.location, claim) else {
            return Ok(false);
        };
        // Unfinished uploads of a dead run are in no list of files, and cost money.
        let unfinished = self.lifecycle.opener.unfinished(location, &layout.archive()).await;
        let aborted = match unfinished {
            Ok(unfinished) => unfinished.abort().await,
            Err(error) => Err(error),
        };
        if let Err(error) = aborted {
            warn!(
                backup = self.backup_name(),
                error = format!("{error:#}"),
                "could not abort unfinished uploads of a backup that is deleted"
            );
        }
        let removed = layout.remove_folder(claim, found.survey.as_ref()).await;
        let removed = removed.map_err(|error| anyhow!(chain(&error)));
        let is_gone = removed.context("failed to remove the files of the backup")?;
        if is_gone {
            info!(backup = self.backup_name(), folder = %layout.folder(), "removed the files of a backup");
        }
        Ok(is_gone)
    }
}
