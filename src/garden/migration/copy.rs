//! Copies one object, and compares what is read at both ends. Overwrites only what an earlier copy
//! of this migration wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_garden_core::migration::{CopyAttempt, MigrationItem, SourceObject};
use futures::{StreamExt, TryStreamExt};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{DynObjectStore, Error, GetResult, ObjectStoreExt};
use ring::digest::{Context, SHA256};
use tokio::io::AsyncWriteExt;

use crate::text::chain;

/// Smaller objects are written in one request, larger ones in parts of this size.
const PART: usize = 8 * 1024 * 1024;

/// A directory in a bucket.
#[derive(Clone)]
pub struct BucketDirectory {
    store: Arc<DynObjectStore>,
    /// Without slashes at its ends. May be empty.
    prefix: String,
}

impl BucketDirectory {
    pub fn new(store: Arc<DynObjectStore>, prefix: Option<&str>) -> Self {
        Self { store, prefix: prefix.unwrap_or_default().trim_matches('/').to_owned() }
    }

    pub fn store(&self) -> &Arc<DynObjectStore> {
        &self.store
    }

    /// Is one inside the other, if both are in the same bucket?
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_in = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            outer.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_in(&self.prefix, &other.prefix) || is_in(&other.prefix, &self.prefix)
    }

    /// By key relative to the place.
    pub async fn list(&self) -> object_store::Result<BTreeMap<String, SourceObject>> {
        let prefix = (!self.prefix.is_empty()).then(|| Path::parse(&self.prefix)).transpose()?;
        let mut listed = self.store.list(prefix.as_ref());
        let mut all = BTreeMap::new();
        while let Some(object) = listed.try_next().await? {
            let key = object.location.as_ref();
            let key = match key.strip_prefix(&self.prefix) {
                Some(rest) => rest.trim_start_matches('/'),
                None => continue,
            };
            // Some tools write an empty object as a mark of a folder.
            if key.is_empty() {
                continue;
            }
            let modified = jiff::Timestamp::from_second(object.last_modified.timestamp()).unwrap_or_default();
            all.insert(key.to_owned(), SourceObject { size: object.size, tag: object.e_tag, modified });
        }
        Ok(all)
    }

    pub fn path(&self, key: &str) -> object_store::Result<Path> {
        let path = if self.prefix.is_empty() { key.to_owned() } else { format!("{}/{key}", self.prefix) };
        Ok(Path::parse(path)?)
    }

    /// Is nothing there?
    pub async fn is_free(&self, key: &str) -> object_store::Result<bool> {
        match self.store.head(&self.path(key)?).await {
            Ok(_) => Ok(false),
            Err(Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// SHA-256 of an object, hexadecimal; `None`: there is none.
    async fn checksum(&self, key: &str) -> object_store::Result<Option<String>> {
        match self.store.get(&self.path(key)?).await {
            Ok(found) => Ok(Some(read(found, None).await?)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Copies one object, unless it is there already.
pub async fn copy(
    source: &BucketDirectory,
    destination: &BucketDirectory,
    key: &str,
    item: &MigrationItem,
) -> CopyAttempt {
    match try_copy(source, destination, key, item).await {
        Ok(attempt) => attempt,
        Err(error) => CopyAttempt::Failed(chain(&error)),
    }
}

async fn try_copy(
    source: &BucketDirectory,
    destination: &BucketDirectory,
    key: &str,
    item: &MigrationItem,
) -> object_store::Result<CopyAttempt> {
    if let Some(there) = destination.checksum(key).await? {
        let Some(here) = source.checksum(key).await? else { return Ok(CopyAttempt::Missing) };
        if there == here {
            return Ok(CopyAttempt::Same { checksum: here });
        }
        // An earlier copy of this migration may be replaced if the source has changed since.
        // Anything else is foreign.
        if !item.may_replace(&there) {
            return Ok(CopyAttempt::Taken { source: here, destination: there });
        }
    }
    let found = match source.store.get(&source.path(key)?).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(CopyAttempt::Missing),
        Err(error) => return Err(error),
    };
    let writer = BufWriter::with_capacity(Arc::clone(&destination.store), destination.path(key)?, PART);
    let sent = read(found, Some(writer)).await?;
    Ok(match destination.checksum(key).await? {
        Some(arrived) if arrived == sent => CopyAttempt::Same { checksum: sent },
        Some(arrived) => CopyAttempt::Failed(format!("SHA-256 {sent} was sent, and {arrived} arrived")),
        None => CopyAttempt::Failed("it was sent, and is not there".to_owned()),
    })
}

/// Reads an object to its end, and writes it to the destination if there is one.
async fn read(found: GetResult, mut to: Option<BufWriter>) -> object_store::Result<String> {
    let failed = |source: std::io::Error| Error::Generic { store: "destination", source: Box::new(source) };
    let mut hash = Context::new(&SHA256);
    let mut chunks = found.into_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => {
                // Abort the upload, so that no parts are left.
                if let Some(mut writer) = to {
                    let _ = writer.abort().await;
                }
                return Err(error);
            }
        };
        hash.update(&chunk);
        if let Some(writer) = &mut to {
            writer.put(chunk).await?;
        }
    }
    if let Some(mut writer) = to {
        writer.shutdown().await.map_err(failed)?;
    }
    Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn a_directory_is_in_another_by_whole_names() {
        let at = |prefix: &str| BucketDirectory::new(Arc::new(InMemory::new()), Some(prefix));
        for (one, other, wanted) in [
            ("", "a/velero", true),
            ("a", "a/velero", true),
            ("/a/velero/", "a/velero", true),
            ("a", "ab/velero", false),
            ("old", "a/velero", false),
        ] {
            assert_eq!(at(one).overlaps(&at(other)), wanted, "{one:?} {other:?}");
            assert_eq!(at(other).overlaps(&at(one)), wanted, "{other:?} {one:?}");
        }
    }
}
