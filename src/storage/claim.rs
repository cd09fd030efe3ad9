//! The claim in a backup's folder: one small file beside those of Velero's, which its readers pass over and its deletion takes
//! along. It is written on the condition that there is none, or that it still is the one that was read.

use std::collections::BTreeSet;

use berth_core::claim::{Claim, Folder};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use serde::{Deserialize, Serialize};

use super::conditional::put_if;
use super::layout::{CHECKPOINT, Layout, METADATA};

const FILE: &str = "berth-run.json";
/// Larger than any claim.
const LARGEST: u64 = 16 * 1024;
/// Files of a folder that are looked at. A backup has a dozen.
const MOST: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("the storage location failed")]
    Store(#[source] Error),
    #[error(
        "a backup of this name is in the storage location already: use another name, and remove this Backup by kubectl, because \
         velero backup delete removes the stored one"
    )]
    Published,
    #[error(
        "{folder} in the storage location is taken: {by} writes there, or did: use another name, or a prefix that no other cluster \
         uses, and remove this Backup by kubectl, because velero backup delete removes the files of that one"
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
    #[error("{0} in the storage location was claimed by somebody else meanwhile: use another name or prefix")]
    Lost(Path),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    cluster: String,
    namespace: String,
    backup: String,
    run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// A look at a folder.
#[derive(Debug)]
pub struct Found {
    pub folder: Folder,
    /// Of the claim.
    pub version: Option<UpdateVersion>,
    files: BTreeSet<String>,
}

impl Found {
    pub fn has_checkpoint(&self) -> bool {
        self.files.contains(CHECKPOINT)
    }

    /// Is everything there that a run stores before it asks for leave to publish?
    pub fn is_whole(&self, layout: &Layout) -> bool {
        layout.names().all(|name| self.files.contains(&name))
    }
}

impl Layout {
    /// Of the file that says whose the folder is.
    pub fn claim_path(&self) -> Path {
        self.folder().join(FILE)
    }

    /// What lies in the folder, and whose it is.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn look(&self) -> Result<Found, ClaimError> {
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
        let folder = Folder { published: files.contains(METADATA), claim, others };
        Ok(Found { folder, version, files })
    }

    async fn read_claim(&self) -> Result<Option<(Claim, UpdateVersion)>, ClaimError> {
        let path = self.claim_path();
        let found = match self.store().get(&path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(ClaimError::Store(error)),
        };
        if found.meta.size > LARGEST {
            return Err(ClaimError::Unreadable(path));
        }
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await.map_err(ClaimError::Store)?;
        let Ok(Wire { cluster, namespace, backup, run, before }) = serde_json::from_slice(&bytes) else {
            return Err(ClaimError::Unreadable(path));
        };
        Ok(Some((Claim { cluster, namespace, backup, run, before }, version)))
    }

    /// Makes the folder this run's, where there is no claim, or still the one of version `replaces`.
    ///
    /// # Errors
    /// When somebody else was faster, or the store fails.
    pub async fn claim(&self, ours: &Claim, replaces: Option<UpdateVersion>) -> Result<(), ClaimError> {
        let Claim { cluster, namespace, backup, run, before } = ours.clone();
        let wire = serde_json::to_vec(&Wire { cluster, namespace, backup, run, before });
        let payload =
            PutPayload::from(wire.map_err(|error| {
                ClaimError::Store(Error::Generic { store: "claim", source: error.into() })
            })?);
        let mode = replaces.map_or(PutMode::Create, PutMode::Update);
        match put_if(self.store(), &self.claim_path(), payload, mode).await {
            // Some stores take a condition and do not heed it: what stands there is what counts.
            Ok(_) | Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
            Err(error) => return Err(ClaimError::Store(error)),
        }
        self.confirm(ours).await
    }

    /// # Errors
    /// When the folder is not this run's any more, or that cannot be told.
    pub async fn confirm(&self, ours: &Claim) -> Result<(), ClaimError> {
        match self.read_claim().await? {
            Some((claim, _)) if claim == *ours => Ok(()),
            Some((claim, _)) => Err(self.taken(&claim)),
            None => Err(ClaimError::Lost(self.folder())),
        }
    }

    /// What to say to whoever finds the folder claimed.
    pub fn taken(&self, by: &Claim) -> ClaimError {
        // It is somebody else's text, and goes into a status.
        let short = |text: &str| text.chars().take(63).filter(|c| !c.is_control()).collect::<String>();
        let (namespace, uid, cluster) = (short(&by.namespace), short(&by.backup), short(&by.cluster));
        let by =
            format!("Backup {namespace}/{} with UID {uid} of the cluster with UID {cluster}", self.backup());
        ClaimError::Taken { folder: self.folder(), by }
    }

    /// Removes what a run has stored under its claim, as far as that can be, and, `with_claim` and when nothing else of it is
    /// left, the claim. `false`: there is nothing to be removed, because it is published or the folder is somebody else's.
    /// Whatever a run does not write stays. The claim is looked at before each of them, because a process that was paused may find
    /// that another run has stored its own there. No store removes on a condition: what is left is the moment between an answer and
    /// the next request.
    ///
    /// # Errors
    /// When the folder is somebody else's by now, or the first of those that the store did not remove.
    pub async fn remove(&self, claim: &Claim, with_claim: bool) -> Result<bool, ClaimError> {
        let found = self.look().await?;
        if found.folder.published || found.folder.claim.as_ref() != Some(claim) {
            return Ok(false);
        }
        let mut failed = None;
        // First of all what says that the rest is of use.
        let names = std::iter::once(CHECKPOINT.to_owned()).chain(self.names());
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

    /// What is gone already is no error.
    async fn delete(&self, path: &Path) -> object_store::Result<()> {
        match self.store().delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
