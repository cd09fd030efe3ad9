//! Whether a location can be written: a small upload is begun and given up, so that nothing is
//! left, not even an old version where the bucket keeps those. Without this check a bucket with a
//! wrong policy, or a full volume, is found only when a backup has been read and cannot be stored.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::AccessMode;
use kube::ResourceExt;
use object_store::PutPayload;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::storage::layout::place;
use crate::storage::{Opened, Opener};
use crate::text::chain;

/// Name of the upload, below the folder of the backups, where credentials must be allowed to write.
const NAME: &str = "backups/berth-write-check";
const CONTENT: &str = "berth checks that this location can be written, and gives this upload up.";

/// When each location was last written, and whether that went well.
#[derive(Default)]
pub(super) struct WriteChecks {
    last: Mutex<HashMap<String, (Instant, bool)>>,
    /// Zero: never.
    pub(super) frequency: Duration,
}

impl WriteChecks {
    /// Is it time to write? A location that could not be written is tried at each check, so that it
    /// is Available soon after.
    fn is_due(&self, name: &str, is_elsewhere: bool) -> bool {
        let last = self.last.lock().get(name).copied();
        last.is_none_or(|(at, was_well)| is_elsewhere || !was_well || at.elapsed() >= self.frequency)
    }

    /// Writes if it is time.
    ///
    /// # Errors
    /// When the location cannot be written.
    pub(super) async fn check(
        &self,
        opener: &Opener,
        location: &BackupStorageLocation,
        opened: &Opened,
        is_elsewhere: bool,
    ) -> anyhow::Result<()> {
        let name = location.name_any();
        let is_read_only = location.spec.access_mode == Some(AccessMode::ReadOnly);
        if self.frequency.is_zero() || is_read_only || !self.is_due(&name, is_elsewhere) {
            return Ok(());
        }
        let is_first = !self.last.lock().contains_key(&name);
        // Counts as failed until it is known to be well, also if the caller stops waiting.
        self.last.lock().insert(name.clone(), (Instant::now(), false));
        let prefix = location.spec.object_storage.prefix.as_deref().unwrap_or_default();
        let parts = prefix.split('/').chain(NAME.split('/')).filter(|part| !part.is_empty());
        let path = place(&parts.collect::<Vec<_>>().join("/"));
        if is_first {
            // What an earlier process left between its two requests.
            let left = async { opener.unfinished(location, &path).await?.abort().await };
            if let Err(error) = left.await {
                debug!(location = name, error = chain(&*error), "failed to look for earlier write checks");
            }
        }
        let way_out = "the store can be read but not written: give its keys the right to write below \
            backups/, or room to the volume, or set spec.accessMode to ReadOnly";
        let upload = opened.parts.begin(&path).await.context(way_out)?;
        let written = upload.put(0, 0, PutPayload::from_static(CONTENT.as_bytes())).await;
        if let Err(error) = upload.abort().await {
            debug!(location = name, error = chain(&error), "failed to give up the upload of a write check");
        }
        written.context(way_out)?;
        self.last.lock().insert(name, (Instant::now(), true));
        Ok(())
    }

    /// Forgets the locations that are gone.
    pub(super) fn retain(&self, is_here: impl Fn(&str) -> bool) {
        self.last.lock().retain(|name, _| is_here(name));
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::Scripted;
    use serde_json::{Value, json};

    use super::*;
    use crate::storage::Roots;

    fn location(root: &std::path::Path, more: Value) -> BackupStorageLocation {
        let mut object = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "l"},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "b", "prefix": "/team/"},
                "config": {"path": root},
            },
        });
        crate::patch::merge_into(&mut object, json!({"spec": more}));
        serde_json::from_value(object).unwrap()
    }

    fn files(folder: &std::path::Path) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[tokio::test]
    async fn a_location_is_written_now_and_then_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::from(vec![root.path().to_owned()]);
        let opener = Opener::new(Scripted::new().client("velero"), "velero", roots);
        let location_of = |more| location(root.path(), more);
        let plain = location_of(json!({}));
        let opened = opener.open_with_parts(&plain).await.unwrap();
        let backups = root.path().join("b/team/backups");
        std::fs::create_dir_all(&backups).unwrap();
        // Of a process that died between its two requests.
        std::fs::write(backups.join("berth-write-check#17"), "x").unwrap();
        std::fs::write(backups.join("other#17"), "x").unwrap();
        let checks = WriteChecks { frequency: Duration::from_secs(3600), ..WriteChecks::default() };
        checks.check(&opener, &plain, &opened, false).await.unwrap();
        assert_eq!(files(&backups), ["other#17"]);

        // Nothing can be written where a file is in the way of the folder.
        std::fs::remove_dir_all(&backups).unwrap();
        std::fs::write(&backups, "in the way").unwrap();
        checks.check(&opener, &plain, &opened, false).await.unwrap();
        let error = checks.check(&opener, &plain, &opened, true).await.unwrap_err();
        assert!(chain(&*error).contains("set spec.accessMode to ReadOnly"), "{error:#}");
        checks.check(&opener, &plain, &opened, false).await.unwrap_err();
        let read_only = location_of(json!({"accessMode": "ReadOnly"}));
        checks.check(&opener, &read_only, &opened, true).await.unwrap();
        std::fs::remove_file(&backups).unwrap();
        checks.check(&opener, &plain, &opened, false).await.unwrap();
    }
}
