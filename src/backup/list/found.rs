//! An object that a list or a get has brought, and the trait that receives objects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_api::keys::EXCLUDE_FROM_BACKUP;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ListError;

/// An object of a list: its raw bytes, and what filters ask about it.
pub struct ListedObject {
    pub json: Bytes,
    pub namespace: Option<String>,
    pub name: String,
    pub lacks_type: bool,
    /// It has the label that keeps it out of backups.
    pub excluded: bool,
    /// It has a deletionTimestamp.
    pub deleting: bool,
}

/// A namespace of the cluster, as it was when the backup began.
#[derive(Clone)]
pub struct Namespace {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub json: Bytes,
    pub lacks_type: bool,
    pub deleting: bool,
    /// It has the label that keeps it out of backups.
    pub excluded: bool,
}

#[derive(Deserialize)]
struct ObjectHead<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: HeadMetadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMetadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    labels: Option<ExcludeLabel<'a>>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ExcludeLabel<'a> {
    // The same key as berth_api::keys::EXCLUDE_FROM_BACKUP; serde needs a literal.
    #[serde(rename = "velero.io/exclude-from-backup", borrow, default)]
    exclude: Option<Cow<'a, str>>,
}

impl ListedObject {
    /// # Errors
    /// When this is no Kubernetes object.
    pub fn parse(json: Bytes) -> Result<Self, serde_json::Error> {
        debug_assert_eq!(EXCLUDE_FROM_BACKUP, "velero.io/exclude-from-backup");
        let head: ObjectHead<'_> = serde_json::from_slice(&json)?;
        let (namespace, name) =
            (head.metadata.namespace.map(Cow::into_owned), head.metadata.name.into_owned());
        let excluded =
            head.metadata.labels.and_then(|labels| labels.exclude).is_some_and(|value| value == "true");
        let (lacks_type, deleting) = (head.kind.is_none(), head.metadata.deletion_timestamp.is_some());
        Ok(Self { json, namespace, name, lacks_type, excluded, deleting })
    }
}

/// Receives the objects of a list, one after the other.
pub trait ObjectSink: Send {
    fn take(&mut self, found: ListedObject) -> impl Future<Output = Result<(), ListError>> + Send;

    /// Waits until the sink accepts objects. Called while no request is under way.
    ///
    /// # Errors
    /// What ends the list.
    fn ready(&mut self) -> impl Future<Output = Result<(), ListError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether [`ObjectSink::ready`] would return at once.
    fn is_ready(&self) -> bool {
        true
    }

    /// Receives an object that cannot be read. The default ends the list.
    ///
    /// # Errors
    /// What ends it.
    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        Err(ListError::Object(error))
    }
}
