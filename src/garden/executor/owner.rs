//! The mark of a directory's owner, in the store. `berth_core::garden::owner` says what comes of it.

use berth_api::extensions::BackupEntry;
use berth_api::garden::carried;
use berth_api::keys;
use berth_core::garden::fault::Fault;
use berth_core::garden::owner::{Directory, Owner, Refusal, Verdict, judge};
use berth_core::garden::scope::{SOURCE, Scope};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::extension::{Extension as _, Record};
use crate::storage::bucket::{Bucket, Result, StoreError};

/// Beside what else berth notes of an entry: it goes with that, when the data is gone.
const FILE: &str = "owner.json";
/// Larger than any mark.
const LARGEST: usize = 4 * 1024;
/// What the name of an object may have (source: RFC 1123's subdomains).
const NAME: usize = 253;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    entry: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
}

impl Wire {
    /// Nothing but names, as Kubernetes has them.
    fn is_plain(&self) -> bool {
        let mut all = [&self.entry, &self.uid].into_iter().chain(&self.namespace).chain(&self.seed);
        all.all(|text| text.len() <= NAME && text.chars().all(|c| c.is_ascii_graphic()))
    }
}

impl From<Wire> for Owner {
    fn from(Wire { entry, namespace, uid, seed }: Wire) -> Self {
        Self { entry, namespace, uid, seed }
    }
}

impl From<Owner> for Wire {
    fn from(Owner { entry, namespace, uid, seed }: Owner) -> Self {
        Self { entry, namespace, uid, seed }
    }
}

/// What an object says of its directory.
pub struct Claim {
    us: Owner,
    /// Key of the mark.
    mark: String,
    /// It was its own before there were marks, or somebody says so.
    is_known: bool,
    way_out: String,
}

impl Claim {
    /// `None`: it cannot be told yet whose the directory is to be, because an older version made the object and did not say for which
    /// namespace of its hub; or there is no place for a mark. `is_restored`: it comes from another cluster, with its data.
    pub fn of(object: &BackupEntry, record: &Record, scope: &Scope, is_restored: bool) -> Option<Self> {
        let (name, metadata) = (object.name_any(), &object.metadata);
        let entry = scope.prefix().trim_end_matches('/').to_owned();
        let said = |key: &str| object.annotation(key).map(str::to_owned);
        let us = if carried::is_ours(metadata) {
            Owner {
                entry,
                namespace: Some(said(keys::HUB_NAMESPACE)?),
                uid: carried::hub_uid(metadata).unwrap_or_default().to_owned(),
                seed: object.labels().get(keys::CARRIED_FOR).cloned(),
            }
        } else {
            Owner { entry, namespace: None, uid: object.uid().unwrap_or_default(), seed: None }
        };
        let is_said = object.annotation(keys::OWN_DIRECTORY) == Some(name.as_str());
        // The source of a copy names the data of the original.
        let is_known = record.made == Some(true) || is_restored || is_said || name.starts_with(SOURCE);
        let mark = format!("{}{FILE}", scope.notes()?.prefix());
        Some(Self { us, mark, is_known, way_out: format!("{}={name}", keys::OWN_DIRECTORY) })
    }

    /// Marks the directory, where it is nobody's yet. `Some`: why it is not this one's.
    ///
    /// # Errors
    /// What the store says; [`Fault::Configuration`] where something else has the key of the mark.
    pub async fn take(&self, bucket: &Bucket, scope: &Scope) -> Result<Option<Refusal>> {
        match self.judge(bucket, scope).await? {
            Verdict::Ours => Ok(None),
            Verdict::Refused(why) => Ok(Some(why)),
            Verdict::Mark => {
                let written = bucket.create_object(&self.mark, &json!(Wire::from(self.us.clone()))).await;
                // Somebody may have been faster, and what was written may be another's where a store knows no conditions.
                match (self.judge(bucket, scope).await?, written) {
                    (Verdict::Ours, _) => Ok(None),
                    (Verdict::Refused(why @ Refusal::Anothers(..)), _) => Ok(Some(why)),
                    (Verdict::Mark | Verdict::Refused(Refusal::Unmarked(..)), Err(error)) => Err(error),
                    (Verdict::Mark | Verdict::Refused(Refusal::Unmarked(..)), Ok(())) => {
                        let message = format!("{bucket:?}: {} was written, and is not there", self.mark);
                        Err(StoreError::new(Fault::Unavailable, message))
                    }
                }
            }
        }
    }

    /// Why what is in the directory is not this one's to remove. `was_refused`: it was not given the directory; what has no mark is
    /// another's then.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn keeps_away(
        &self,
        bucket: &Bucket,
        scope: &Scope,
        was_refused: bool,
    ) -> Result<Option<Refusal>> {
        match self.judge(bucket, scope).await? {
            Verdict::Refused(why @ Refusal::Anothers(..)) => Ok(Some(why)),
            Verdict::Refused(why @ Refusal::Unmarked(..)) if was_refused => Ok(Some(why)),
            // From before there were marks: its hub, or its gardenlet, says that it is to go.
            Verdict::Refused(Refusal::Unmarked(..)) | Verdict::Ours | Verdict::Mark => Ok(None),
        }
    }

    async fn judge(&self, bucket: &Bucket, scope: &Scope) -> Result<Verdict> {
        let mark = self.read(bucket).await?;
        let holds_data = match &mark {
            Some(_) => true,
            None => !bucket.page(scope.prefix(), None, 1).await?.versions.is_empty(),
        };
        let directory = Directory { mark: mark.as_ref(), holds_data };
        Ok(judge(directory, &self.us, self.is_known, (&self.mark, &self.way_out)))
    }

    async fn read(&self, bucket: &Bucket) -> Result<Option<Owner>> {
        let Some(bytes) = bucket.read_object(&self.mark).await? else { return Ok(None) };
        // Others may write there, too, and what is read is told.
        let is_short = bytes.len() <= LARGEST;
        let read = is_short.then(|| serde_json::from_slice::<Wire>(&bytes).ok()).flatten();
        match read.filter(Wire::is_plain) {
            Some(wire) => Ok(Some(wire.into())),
            None => {
                let message = format!(
                    "{bucket:?}: {} is no mark that this version of berth can read: nothing below {}/ is touched; use the version that \
                     wrote it, or look whose the directory is and remove that object",
                    self.mark, self.us.entry
                );
                Err(StoreError::new(Fault::Configuration, message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
