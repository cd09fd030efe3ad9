//! The claim in a backup's folder: one small file beside Velero's, which Velero's readers ignore
//! and its deletion removes. It is written on the condition that there is no claim, or still the
//! version that was read.

use std::collections::BTreeSet;

use berth_core::claim::{FolderClaim, FolderContents};
use futures::{StreamExt, TryStreamExt};
use http::Extensions;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use serde::{Deserialize, Serialize};

use super::conditional::put_if;
use super::layout::{BackupArtifact, BackupLayout, CHECKPOINT, METADATA};

pub(super) const FILE: &str = "berth-run.json";
/// In bytes. Larger than any claim.
const LARGEST: u64 = 16 * 1024;
/// Most files of a folder that are listed. A backup has a dozen.
const MOST: usize = 1000;
/// How often a folder is listed again whose claim goes meanwhile.
const LOOKS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("the storage location failed")]
    Store(#[source] Error),
    #[error(
        "a backup of this name is in the storage location already: use another name, and remove this Backup by kubectl, because \
         its deletion by a Velero, unlike one by berth, removes the stored one"
    )]
    Published,
    #[error(
        "{folder} in the storage location is taken: {by} writes there, or did: use another name, or a prefix that no other cluster \
         uses, and remove this Backup by kubectl, because its deletion by a Velero, unlike one by berth, removes those files"
    )]
    Taken { folder: Path, by: String },
    #[error(
        "{0} in the storage location holds files of which nobody can tell whose they are: remove them, or use another name"
    )]
    Unclaimed(Path),
    #[error(
        "{0} in the storage location is no claim that this version of berth can read: use another name, or remove it"
    )]
    Unreadable(Path),
    #[error(
        "{0} in the storage location was claimed by another backup meanwhile: use another name or prefix"
    )]
    Lost(Path),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireClaim {
    cluster: String,
    namespace: String,
    backup: String,
    run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// The state of a folder.
#[derive(Debug)]
pub struct ClaimedFolder {
    pub folder: FolderContents,
    /// Version of the claim.
    pub version: Option<UpdateVersion>,
    files: BTreeSet<String>,
}

impl ClaimedFolder {
    pub fn has_checkpoint(&self) -> bool {
        self.files.contains(CHECKPOINT)
    }

    pub fn has_archive(&self, layout: &BackupLayout) -> bool {
        self.files.contains(&layout.archive_name())
    }

    /// Is it a finished backup that has lost its `velero-backup.json`? A run has a checkpoint until
    /// it has published the backup.
    pub fn is_finished(&self, layout: &BackupLayout) -> bool {
        let has = |artifact| self.files.contains(&layout.artifact_name(artifact));
        let is_stored = has(BackupArtifact::Results) && has(BackupArtifact::Logs);
        is_stored && self.has_archive(layout) && !self.has_checkpoint()
    }

    /// Are all files there that a run stores before it may publish the backup?
    pub fn is_whole(&self, layout: &BackupLayout) -> bool {
        layout.names().all(|name| self.files.contains(&name))
    }
}

impl BackupLayout {
    /// The path of the claim.
    pub fn claim_path(&self) -> Path {
        self.folder().join(FILE)
    }

    /// Lists the folder and reads its claim.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn look(&self) -> Result<ClaimedFolder, ClaimError> {
        for _ in 0..LOOKS {
            let found = self.look_once().await?;
            // The claim goes last: what was listed beside it is gone, too.
            if found.folder.claim.is_some() || !found.files.contains(FILE) {
                return Ok(found);
            }
        }
        self.look_once().await
    }

    async fn look_once(&self) -> Result<ClaimedFolder, ClaimError> {
        let folder = self.folder();
        let listed = self.store().list(Some(&folder)).take(MOST).map_ok(|object| object.location);
        let listed: Vec<Path> = listed.try_collect().await.map_err(ClaimError::Store)?;
        if listed.len() >= MOST {
            return Err(ClaimError::Unclaimed(folder));
        }
        let name = |path: &Path| {
            let (path, folder): (&str, &str) = (path.as_ref(), folder.as_ref());
            path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/').to_owned()
        };
        let files: BTreeSet<String> = listed.iter().map(name).collect();
        let claim = if files.contains(FILE) { self.read_claim().await? } else { None };
        let (claim, version) = claim.unzip();
        let others = files.iter().any(|name| name != FILE && name != METADATA);
        let folder = FolderContents { published: files.contains(METADATA), claim, others };
        Ok(ClaimedFolder { folder, version, files })
    }

    pub(super) async fn read_claim(&self) -> Result<Option<(FolderClaim, UpdateVersion)>, ClaimError> {
        Ok(self.read_claim_told().await?.map(|(claim, version, _)| (claim, version)))
    }

    /// As [`Self::read_claim`], with what else the store's answer said.
    pub(super) async fn read_claim_told(
        &self,
    ) -> Result<Option<(FolderClaim, UpdateVersion, Extensions)>, ClaimError> {
        let path = self.claim_path();
        let mut found = match self.store().get(&path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(ClaimError::Store(error)),
        };
        if found.meta.size > LARGEST {
            return Err(ClaimError::Unreadable(path));
        }
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let told = std::mem::take(&mut found.extensions);
        let bytes = found.bytes().await.map_err(ClaimError::Store)?;
        let Ok(WireClaim { cluster, namespace, backup, run, before }) = serde_json::from_slice(&bytes) else {
            return Err(ClaimError::Unreadable(path));
        };
        Ok(Some((FolderClaim { cluster, namespace, backup, run, before }, version, told)))
    }

    /// Claims the folder for this run, in place of no claim, or of version `replaces`.
    ///
    /// # Errors
    /// When another run was faster, or the store fails.
    pub async fn claim(&self, ours: &FolderClaim, replaces: Option<UpdateVersion>) -> Result<(), ClaimError> {
        let FolderClaim { cluster, namespace, backup, run, before } = ours.clone();
        let wire = serde_json::to_vec(&WireClaim { cluster, namespace, backup, run, before });
        let payload =
            PutPayload::from(wire.map_err(|error| {
                ClaimError::Store(Error::Generic { store: "claim", source: error.into() })
            })?);
        let mode = replaces.map_or(PutMode::Create, PutMode::Update);
        match put_if(self.store(), &self.claim_path(), payload, mode).await {
            // Read again, because some stores accept a condition and ignore it.
            Ok(_) | Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
            Err(error) => return Err(ClaimError::Store(error)),
        }
        self.confirm(ours).await
    }

    /// # Errors
    /// When another run claims the folder by now, or the store fails.
    pub async fn confirm(&self, ours: &FolderClaim) -> Result<(), ClaimError> {
        match self.read_claim().await? {
            Some((claim, _)) if claim == *ours => Ok(()),
            Some((claim, _)) => Err(self.taken(&claim)),
            None => Err(ClaimError::Lost(self.folder())),
        }
    }

    /// The message for another run that finds this claim.
    pub fn taken(&self, by: &FolderClaim) -> ClaimError {
        // Shortened to safe text, because the claim is foreign data and the message goes into a
        // status.
        let short = |text: &str| text.chars().take(63).filter(|c| !c.is_control()).collect::<String>();
        let (namespace, uid, cluster) = (short(&by.namespace), short(&by.backup), short(&by.cluster));
        let by =
            format!("Backup {namespace}/{} with UID {uid} of the cluster with UID {cluster}", self.backup());
        ClaimError::Taken { folder: self.folder(), by }
    }

    /// Removes the files that a run has stored under its claim, as far as the store allows it, and
    /// with `with_claim` the claim itself once no other file of the run is left. `false`: nothing
    /// may be removed, because the backup is published or another run has claimed the folder. Files
    /// that no run writes stay. The claim is read before each removal, because while this process
    /// was paused another run may have stored its files there. No store removes conditionally, so a
    /// race remains between that read and the removal.
    ///
    /// # Errors
    /// When another run claims the folder by now, or the error of the first file that the store did
    /// not remove.
    pub async fn remove(&self, claim: &FolderClaim, with_claim: bool) -> Result<bool, ClaimError> {
        let found = self.look().await?;
        if found.folder.published || found.folder.claim.as_ref() != Some(claim) {
            return Ok(false);
        }
        let mut failed = None;
        // The checkpoint goes first, because it makes the other files usable.
        let index = self.artifact_name(BackupArtifact::Index);
        let names = [CHECKPOINT.to_owned(), index].into_iter().chain(self.names());
        for name in names.filter(|name| found.files.contains(name)) {
            self.confirm(claim).await?;
            if let Err(error) = self.delete(&self.folder().join(name)).await {
                failed.get_or_insert(error);
            }
        }
        if failed.is_none() && with_claim {
            self.confirm(claim).await?;
            failed = self.delete(&self.claim_path()).await.err();
        }
        failed.map_or(Ok(true), |error| Err(ClaimError::Store(error)))
    }

    /// Removes the index that an earlier run of the backup has stored, if there is one, because a
    /// later run that makes none would leave it beside an archive of its own.
    ///
    /// # Errors
    /// When another run claims the folder by now, or the store fails.
    pub async fn remove_index(&self, claim: &FolderClaim) -> Result<(), ClaimError> {
        let path = self.folder().join(self.artifact_name(BackupArtifact::Index));
        match self.store().head(&path).await {
            Ok(_) => {}
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(ClaimError::Store(error)),
        }
        self.confirm(claim).await?;
        self.delete(&path).await.map_err(ClaimError::Store)
    }

    /// Removes a file; a missing one is no error.
    pub(super) async fn delete(&self, path: &Path) -> object_store::Result<()> {
        match self.store().delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
