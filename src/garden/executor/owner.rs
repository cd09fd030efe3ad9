//! The mark of a directory's owner, in the store. `berth_garden_core::owner` decides on it.

use berth_api::keys;
use berth_garden_api::extensions::BackupEntry;
use berth_garden_api::member_objects;
use berth_garden_core::fault::StoreFault;
use berth_garden_core::owner::{
    DirectoryEnd, DirectoryOwner, DirectoryRefusal, DirectoryState, OwnershipDecision, end, judge,
};
use berth_garden_core::scope::{RemovalScope, SOURCE};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::ProviderStatus;
use super::task::Actuator as _;
use crate::storage::bucket::{Bucket, Result, StoreError, Version};

/// Among berth's notes of the entry, which are removed when the data is gone.
const FILE: &str = "owner.json";
/// No mark is larger.
const LARGEST: usize = 4 * 1024;
/// Longest name of an object (source: RFC 1123's subdomains).
const NAME: usize = 253;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireOwner {
    entry: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
}

impl WireOwner {
    /// It contains only names, as Kubernetes has them.
    fn is_plain(&self) -> bool {
        let mut all = [&self.entry, &self.uid].into_iter().chain(&self.namespace).chain(&self.seed);
        all.all(|text| text.len() <= NAME && text.chars().all(|c| c.is_ascii_graphic()))
    }
}

impl From<WireOwner> for DirectoryOwner {
    fn from(WireOwner { entry, namespace, uid, seed }: WireOwner) -> Self {
        Self { entry, namespace, uid, seed }
    }
}

impl From<DirectoryOwner> for WireOwner {
    fn from(DirectoryOwner { entry, namespace, uid, seed }: DirectoryOwner) -> Self {
        Self { entry, namespace, uid, seed }
    }
}

/// What a BackupEntry says of its directory.
pub struct DirectoryClaim {
    us: DirectoryOwner,
    /// Key of the mark.
    mark: String,
    /// It comes from another cluster, with its data; or it is the source of a copy, and names the
    /// data of the original.
    is_restored: bool,
    /// The directory was its own before there were marks, or a person says so.
    was_set_up: bool,
    way_out: String,
    /// Its hub has not said yet in which namespace it is.
    is_incomplete: bool,
}

impl DirectoryClaim {
    /// `None`: there is no place for a mark. `is_restored`: it comes from another cluster, with its
    /// data. An object that was made for a hub stays that hub's, also where the hub is gone and the
    /// label of the Seed was taken off.
    pub fn of(
        object: &BackupEntry,
        record: &ProviderStatus,
        scope: &RemovalScope,
        is_restored: bool,
    ) -> Option<Self> {
        let (name, metadata) = (object.name_any(), &object.metadata);
        let entry = scope.prefix().trim_end_matches('/').to_owned();
        let said = |key: &str| object.annotation(key).map(str::to_owned);
        let namespace = said(keys::HUB_NAMESPACE);
        let is_hubs = member_objects::is_of_a_hub(metadata);
        // Created by an older version, which did not record the namespace.
        let is_incomplete = is_hubs && namespace.is_none();
        let us = if is_hubs {
            DirectoryOwner {
                entry,
                namespace: Some(namespace.unwrap_or_default()),
                uid: member_objects::hub_uid(metadata).unwrap_or_default().to_owned(),
                seed: object.labels().get(keys::CARRIED_FOR).cloned(),
            }
        } else {
            DirectoryOwner { entry, namespace: None, uid: object.uid().unwrap_or_default(), seed: None }
        };
        let is_said = object.annotation(keys::OWN_DIRECTORY) == Some(name.as_str());
        // Objects are counted only after the owner is known.
        let is_recorded = record.made == Some(true) || record.found.is_some();
        let was_set_up = is_said || is_recorded && record.name_taken != Some(true);
        let is_restored = is_restored || name.starts_with(SOURCE);
        let mark = format!("{}{FILE}", scope.notes()?.prefix());
        let way_out = format!("{}={name}", keys::OWN_DIRECTORY);
        Some(Self { us, mark, is_restored, was_set_up, way_out, is_incomplete })
    }

    /// Key of the mark.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Marks the directory, if it has no owner yet. `Some`: why it is not this entry's.
    ///
    /// # Errors
    /// What the store says; [`StoreFault::Configuration`] where something else has the key of the
    /// mark.
    pub async fn take(&self, bucket: &Bucket, scope: &RemovalScope) -> Result<Option<DirectoryRefusal>> {
        match self.judge(bucket, scope).await? {
            OwnershipDecision::Ours => Ok(None),
            OwnershipDecision::Refused(why) => Ok(Some(why)),
            // Marked once the namespace is known, so that the mark is never incomplete.
            OwnershipDecision::Mark if self.is_incomplete => Ok(None),
            OwnershipDecision::Mark => {
                let written =
                    bucket.create_object(&self.mark, &json!(WireOwner::from(self.us.clone()))).await;
                // Another writer may have been faster, and may have been overwritten where the
                // store has no conditional writes.
                match (self.judge(bucket, scope).await?, written) {
                    (OwnershipDecision::Ours, _) => Ok(None),
                    (OwnershipDecision::Refused(why @ DirectoryRefusal::Anothers(..)), _) => Ok(Some(why)),
                    (
                        OwnershipDecision::Mark | OwnershipDecision::Refused(DirectoryRefusal::Unmarked(..)),
                        Err(error),
                    ) => Err(error),
                    (
                        OwnershipDecision::Mark | OwnershipDecision::Refused(DirectoryRefusal::Unmarked(..)),
                        Ok(()),
                    ) => {
                        let message = format!("{bucket:?}: {} was written, and is not there", self.mark);
                        Err(StoreError::new(StoreFault::Unavailable, message))
                    }
                }
            }
        }
    }

    /// What becomes of the directory when its entry is deleted.
    ///
    /// # Errors
    /// As [`Self::take`]; [`StoreFault::Unavailable`] while the hub has not said the namespace, if
    /// it decides.
    pub async fn end(&self, bucket: &Bucket, scope: &RemovalScope) -> Result<DirectoryEnd> {
        let mark = self.read(bucket).await?;
        let directory = self.directory(bucket, scope, mark.as_ref()).await?;
        match end(directory, &self.us, self.was_set_up, (&self.mark, &self.way_out)) {
            DirectoryEnd::LeftAlone(DirectoryRefusal::Anothers(..))
                if self.is_incomplete && self.us.seed.is_some() =>
            {
                let message = format!(
                    "{bucket:?}: {} names another UID, and the hub has not said the namespace of this entry yet; berth tries again",
                    self.mark
                );
                Err(StoreError::new(StoreFault::Unavailable, message))
            }
            end => Ok(end),
        }
    }

    /// All versions of the mark.
    ///
    /// # Errors
    /// What the store says.
    pub async fn versions(&self, bucket: &Bucket) -> Result<Vec<Version>> {
        bucket.versions_of(&self.mark).await
    }

    async fn judge(&self, bucket: &Bucket, scope: &RemovalScope) -> Result<OwnershipDecision> {
        let mark = self.read(bucket).await?;
        let directory = self.directory(bucket, scope, mark.as_ref()).await?;
        let is_known = self.was_set_up || self.is_restored;
        Ok(judge(directory, &self.us, is_known, (&self.mark, &self.way_out)))
    }

    async fn directory<'m>(
        &self,
        bucket: &Bucket,
        scope: &RemovalScope,
        mark: Option<&'m DirectoryOwner>,
    ) -> Result<DirectoryState<'m>> {
        let holds_data = mark.is_some() || bucket.holds(scope.prefix()).await?;
        Ok(DirectoryState { mark, holds_data })
    }

    async fn read(&self, bucket: &Bucket) -> Result<Option<DirectoryOwner>> {
        let Some(bytes) = bucket.read_object(&self.mark).await? else { return Ok(None) };
        // Others may write there, too, and its content is reported.
        let is_short = bytes.len() <= LARGEST;
        let read = is_short.then(|| serde_json::from_slice::<WireOwner>(&bytes).ok()).flatten();
        match read.filter(WireOwner::is_plain) {
            Some(wire) => Ok(Some(wire.into())),
            None => {
                let message = format!(
                    "{bucket:?}: {} is no mark that this version of berth can read: nothing below {}/ is touched; use the version that \
                     wrote it, or look whose the directory is and remove that object",
                    self.mark, self.us.entry
                );
                Err(StoreError::new(StoreFault::Configuration, message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
