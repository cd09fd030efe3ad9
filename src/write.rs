//! Every write to an object of the API: one call, one time-out, one of five answers. What an answer
//! means, and whether the write is tried again, is the caller's to say, because only the caller
//! knows what the write was for.
//!
//! `berth install`, `berth uninstall` and the commands of a person (`berth backup`, `berth
//! schedule`, `berth backup-location`, `berth version`) write by kube itself, because a person
//! waits for them and reads what the API server says; the client tries again what the API server
//! puts off. The Lease, the ledger and the webhooks' keys are replaced whole, each by the one
//! process that keeps it. A review of one's own rights, and the dry run that asks for the API
//! server's time, store nothing.

use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use berth_api::keys::FIELD_MANAGER;
use berth_core::limits;
use json_patch::jsonptr::PointerBuf;
use json_patch::{PatchOperation, TestOperation, diff};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Error, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::client::{already_exists, is_conflict, is_denied, is_not_found, is_too_large};
use crate::patch::merge_into;

/// What became of a write.
#[derive(Debug)]
pub enum WriteResult<K> {
    /// The object as it stands now.
    Written(K),
    /// The object is not as it was when the caller decided, or an object of this name is there
    /// already.
    Conflict(Error),
    /// There is no such object.
    Gone(Error),
    /// Anything else that is not a yes: also a connection that was refused or lost, after which the
    /// write may stand. [`crate::queue::refusals`] tells what may pass from what lasts. What a
    /// webhook denies is here whatever its code, because a second look changes nothing about it.
    Refused(Error),
    /// The write may stand nonetheless.
    TimedOut,
}

#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer in time")]
struct Late;

impl<K> WriteResult<K> {
    /// For a caller to whom all answers but a yes are alike.
    ///
    /// # Errors
    /// With what the API server said, or that it said nothing.
    pub fn written(self) -> Result<K, Error> {
        match self {
            Self::Written(object) => Ok(object),
            Self::Conflict(error) | Self::Gone(error) | Self::Refused(error) => Err(error),
            Self::TimedOut => Err(Error::Service(Box::new(Late))),
        }
    }

    fn is_too_large(&self) -> bool {
        matches!(self, Self::Refused(error) if is_too_large(error))
    }
}

impl<K> From<Result<K, Error>> for WriteResult<K> {
    fn from(answer: Result<K, Error>) -> Self {
        match answer {
            Ok(object) => Self::Written(object),
            Err(error) if is_denied(&error) => Self::Refused(error),
            Err(error) if is_conflict(&error) => Self::Conflict(error),
            Err(error) if is_not_found(&error) => Self::Gone(error),
            Err(error) => Self::Refused(error),
        }
    }
}

/// Which object is written, on which conditions, and within which time.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    name: &'a str,
    uid: Option<&'a str>,
    version: Option<&'a str>,
    within: Duration,
}

impl<'a> Write<'a> {
    /// Whatever object has this name then.
    pub fn to(name: &'a str) -> Self {
        Self { name, uid: None, version: None, within: limits::WRITE }
    }

    /// This very object, as it was seen.
    pub fn on(found: &'a impl Resource) -> Self {
        let metadata = found.meta();
        let name = metadata.name.as_deref().unwrap_or_default();
        Self::to(name).uid(metadata.uid.as_deref()).version(metadata.resource_version.as_deref())
    }

    /// Only if the object has this UID.
    #[must_use]
    pub fn uid(self, uid: Option<&'a str>) -> Self {
        Self { uid, ..self }
    }

    /// Only if nobody has written the object since this resourceVersion.
    #[must_use]
    pub fn version(self, version: Option<&'a str>) -> Self {
        Self { version, ..self }
    }

    /// Waits so long for the answer.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// The change with the conditions on which it is to be made.
    fn conditional(&self, mut change: Value) -> Value {
        let conditions = [("uid", self.uid), ("resourceVersion", self.version)];
        for (key, value) in conditions.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            merge_into(&mut change, json!({"metadata": {key: value}}));
        }
        change
    }

    async fn answer<K>(&self, call: impl Future<Output = Result<K, Error>>) -> WriteResult<K> {
        match timeout(self.within, call).await {
            Ok(answer) => answer.into(),
            Err(_) => WriteResult::TimedOut,
        }
    }

    async fn merge<K>(&self, api: &Api<K>, change: &Value) -> WriteResult<K>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.answer(api.patch(self.name, &params(), &Patch::Merge(change))).await
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Merges `change` into the object.
pub async fn patch<K>(api: &Api<K>, write: Write<'_>, change: Value) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    write.merge(api, &write.conditional(change)).await
}

/// As [`patch`]. If the object is too large for the store by that, it is written once more without
/// the record of who wrote which field, because that is room that it needs now.
pub async fn patch_to_fit<K>(api: &Api<K>, write: Write<'_>, change: Value) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut change = write.conditional(change);
    let answer = write.merge(api, &change).await;
    if !answer.is_too_large() || change.pointer("/metadata/managedFields").is_some() {
        return answer;
    }
    merge_into(&mut change, json!({"metadata": {"managedFields": [{}]}}));
    write.merge(api, &change).await
}

/// Merges `change` into the object on the condition that all `fields` (JSON pointers) have the
/// values that they have in `read`, whatever else of it has changed. The API server applies the
/// patch to the object as it stands then, and tries again by itself. So the write lands however
/// often somebody else writes other fields, where a write on a resourceVersion would meet a
/// conflict each time.
///
/// [`WriteResult::Refused`] with code 422: a field has another value, or the object would be
/// invalid. A field that `read` lacks is tested to be absent, for which the object that it is a
/// member of has to exist.
pub async fn patch_where<K>(
    api: &Api<K>,
    write: Write<'_>,
    fields: &[PointerBuf],
    read: &Value,
    change: &Value,
) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let tests = fields.iter().map(|field| {
        let value = read.pointer(field.as_str()).cloned().unwrap_or_default();
        PatchOperation::Test(TestOperation { path: field.clone(), value })
    });
    let mut changed = read.clone();
    json_patch::merge(&mut changed, change);
    let operations = json_patch::Patch(tests.chain(diff(read, &changed).0).collect());
    write.answer(api.patch(write.name, &params(), &Patch::<()>::Json(operations))).await
}

/// As [`patch`], for a kind whose status is a resource of its own.
pub async fn patch_status<K>(api: &Api<K>, write: Write<'_>, change: Value) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let change = Patch::Merge(write.conditional(change));
    write.answer(api.patch_status(write.name, &params(), &change)).await
}

/// As [`patch`], and the API server gives only the metadata back.
pub async fn patch_metadata<K>(
    api: &Api<K>,
    write: Write<'_>,
    change: Value,
) -> WriteResult<PartialObjectMeta<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let change = Patch::Merge(write.conditional(change));
    write.answer(api.patch_metadata(write.name, &params(), &change)).await
}

/// As [`patch`], where lists are merged by the names of what is in them.
pub async fn patch_strategic<K>(api: &Api<K>, write: Write<'_>, change: Value) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let change = Patch::Strategic(write.conditional(change));
    write.answer(api.patch(write.name, &params(), &change)).await
}

/// Server-side apply: what others set besides stays, and what they set of these fields does not.
/// Conditions of `write` do not count.
pub async fn apply<K>(api: &Api<K>, write: Write<'_>, object: &K) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    let params = PatchParams { force: true, ..params() };
    write.answer(api.patch(write.name, &params, &Patch::Apply(object))).await
}

/// Makes the object. [`WriteResult::Conflict`]: an object of this name is there already.
/// [`WriteResult::Gone`]: its namespace or its kind is not there.
pub async fn create<K>(api: &Api<K>, object: &K) -> WriteResult<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    match Write::to("").answer(api.create(&PostParams::default(), object)).await {
        // The API server uses the code for other reasons, too, and then nothing stands.
        WriteResult::Conflict(error) if !already_exists(&error) => WriteResult::Refused(error),
        answer => answer,
    }
}

/// [`WriteResult::Written`]: the API server deletes the object, as soon as its finalizers are gone.
pub async fn delete<K>(api: &Api<K>, write: Write<'_>) -> WriteResult<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = DeleteParams::default();
    if write.uid.is_some() || write.version.is_some() {
        let resource_version = write.version.map(str::to_owned);
        params.preconditions = Some(Preconditions { uid: write.uid.map(str::to_owned), resource_version });
    }
    write.answer(async { api.delete(write.name, &params).await.map(drop) }).await
}

/// Between two tries of one write: each pause is twice as long as the one before, up to five
/// seconds.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

impl Pauses {
    pub const FIRST: Duration = Duration::from_millis(200);
    pub const LONGEST: Duration = Duration::from_secs(5);

    /// How long to wait now: between a half of the pause and all of it, so that those that failed
    /// together do not come again together.
    pub fn pause(&mut self) -> Duration {
        let half = self.0 / 2;
        self.0 = Self::LONGEST.min(self.0 * 2);
        let most = u64::try_from(half.as_millis()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_millis(RandomState::new().hash_one(()) % most)
    }

    pub async fn wait(&mut self) {
        sleep(self.pause()).await;
    }
}

#[cfg(test)]
mod tests;
