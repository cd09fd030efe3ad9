//! Snapshots that nobody needs any more.

use std::collections::BTreeSet;

use rustic_core::repofile::SnapshotId;
use tokio::runtime::Handle;

use crate::fault::Fault;
use crate::lock::Lock;
use crate::repository::{Repository, TO_END, blocking, free, until_canceled};
use crate::watched::Watched;

impl Repository {
    /// Removes snapshots, by their whole IDs. One that is gone already is passed over, and so is
    /// one that lacks the tag, because it is somebody else's. Their data stays until the repository
    /// is pruned. How many were removed.
    ///
    /// # Errors
    /// When somebody holds the exclusive lock, or the store fails. Some may be removed then.
    pub async fn forget(&self, snapshots: &[String], tag: &str, reader: &str) -> Result<usize, Fault> {
        if self.is_read_only() {
            return Err(Fault::ReadOnly(self.store().place().to_owned()));
        }
        let watched = Watched::default();
        let lock = Lock::take(self.store(), self.sealer(), reader, &watched).await?;
        let (this, job) = (self.clone(), watched.clone());
        let (wanted, tag) = (snapshots.to_vec(), tag.to_owned());
        let work = move |handle: Handle| this.remove(wanted, &tag, &job, &handle);
        let done = until_canceled(&watched, blocking(work), TO_END).await;
        free(lock, &done).await;
        done
    }

    fn remove(
        &self,
        wanted: Vec<String>,
        tag: &str,
        watched: &Watched,
        handle: &Handle,
    ) -> Result<usize, Fault> {
        let repository = self.opened(watched, None, handle)?;
        let there = repository.list::<SnapshotId>()?.map(|id| id.to_hex().as_str().to_owned());
        let there: BTreeSet<String> = there.collect();
        let ids: Vec<String> = wanted.into_iter().filter(|id| there.contains(id)).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let found = repository.get_snapshots(&ids)?;
        let mut removed = 0;
        for snapshot in found.iter().filter(|snapshot| snapshot.tags.contains(tag)) {
            let path = self.store().folder("snapshots").join(snapshot.id.to_hex().as_str());
            handle.block_on(self.store().remove(&path))?;
            removed += 1;
        }
        Ok(removed)
    }
}
