//! An object that a list or a get has brought, and who takes it.

use std::borrow::Cow;

use berth_api::keys::EXCLUDE_FROM_BACKUP;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ListError;

/// An object on its way: its bytes, and what a rule may ask about it.
pub struct ListedObject {
    pub json: Bytes,
    pub namespace: Option<String>,
    pub name: String,
    pub lacks_type: bool,
    /// It says of itself that it stays out of backups.
    pub excluded: bool,
    /// It is being deleted.
    pub deleting: bool,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    labels: Option<Labels<'a>>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Labels<'a> {
    // The key as berth_api::keys::EXCLUDE_FROM_BACKUP has it; serde wants it spelled out.
    #[serde(rename = "velero.io/exclude-from-backup", borrow, default)]
    exclude: Option<Cow<'a, str>>,
}

impl ListedObject {
    /// # Errors
    /// When this is no Kubernetes object.
    pub fn parse(json: Bytes) -> Result<Self, serde_json::Error> {
        debug_assert_eq!(EXCLUDE_FROM_BACKUP, "velero.io/exclude-from-backup");
        let head: Head<'_> = serde_json::from_slice(&json)?;
        let (namespace, name) =
            (head.metadata.namespace.map(Cow::into_owned), head.metadata.name.into_owned());
        let excluded =
            head.metadata.labels.and_then(|labels| labels.exclude).is_some_and(|value| value == "true");
        let (lacks_type, deleting) = (head.kind.is_none(), head.metadata.deletion_timestamp.is_some());
        Ok(Self { json, namespace, name, lacks_type, excluded, deleting })
    }
}

/// Who takes the objects of a list, one after the other.
pub trait ObjectSink: Send {
    fn take(&mut self, found: ListedObject) -> impl Future<Output = Result<(), ListError>> + Send;

    /// Waited for before objects come, while no request is under way.
    ///
    /// # Errors
    /// What ends the list.
    fn ready(&mut self) -> impl Future<Output = Result<(), ListError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Need that not be waited for any more?
    fn is_ready(&self) -> bool {
        true
    }

    /// One of the objects is none. Ends the list, unless its taker can do without.
    ///
    /// # Errors
    /// What ends it.
    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        Err(ListError::Object(error))
    }
}
