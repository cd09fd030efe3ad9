//! Removes snapshots that are not needed any more.

use rustic_core::repofile::SnapshotFile;
use tokio::runtime::Handle;

use crate::fault::Fault;
use crate::lock::Lock;
use crate::repository::{Repository, TO_END, blocking, free, until_canceled};
use crate::watched::Watched;

/// Which snapshots are removed.
#[derive(Clone, Debug, Default)]
pub struct Unneeded {
    /// A tag that all of them have. Snapshots without it belong to somebody else.
    pub tag: String,
    /// Whole IDs of snapshots.
    pub ids: Vec<String>,
    /// Snapshots with one of these tags are removed as well, because a job that failed has not
    /// recorded the ID of its snapshot.
    pub tags: Vec<String>,
}

/// A job that is canceled when its caller stops waiting for it.
struct Awaited(Watched);

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Unneeded {
    fn has(&self, snapshot: &SnapshotFile) -> bool {
        let id = snapshot.id.to_hex();
        let is_named = self.ids.iter().any(|wanted| wanted == id.as_str());
        let is_tagged = || self.tags.iter().any(|tag| snapshot.tags.contains(tag));
        snapshot.tags.contains(&self.tag) && (is_named || is_tagged())
    }
}

impl Repository {
    /// Removes snapshots, and returns how many. Those that are gone already are skipped. Their data
    /// stays until the repository is pruned. If the caller stops waiting, the job ends soon and
    /// leaves no lock.
    ///
    /// # Errors
    /// When somebody holds the exclusive lock, or the store fails. Some snapshots may be removed by
    /// then.
    pub async fn forget(&self, unneeded: Unneeded, reader: &str) -> Result<usize, Fault> {
        if self.is_read_only() {
            return Err(Fault::ReadOnly(self.store().place().to_owned()));
        }
        let awaited = Awaited(Watched::default());
        let (this, watched, reader) = (self.clone(), awaited.0.clone(), reader.to_owned());
        let job = tokio::spawn(async move { this.forget_watched(unneeded, &reader, &watched).await });
        job.await.unwrap_or(Err(Fault::Panic))
    }

    async fn forget_watched(
        &self,
        unneeded: Unneeded,
        reader: &str,
        watched: &Watched,
    ) -> Result<usize, Fault> {
        let lock = Lock::take(self.store(), self.sealer(), reader, watched).await?;
        let (this, job) = (self.clone(), watched.clone());
        let work = move |handle: Handle| this.remove(&unneeded, &job, &handle);
        let done = until_canceled(watched, self.store().place(), blocking(work), TO_END).await;
        free(lock, &done).await;
        self.judged(done, watched)
    }

    fn remove(&self, unneeded: &Unneeded, watched: &Watched, handle: &Handle) -> Result<usize, Fault> {
        let repository = self.opened(watched, None, handle)?;
        // rustic_core sets the IDs of snapshots only after it has called this filter, so it
        // compares tags alone.
        let found = repository.get_matching_snapshots(|snapshot| snapshot.tags.contains(&unneeded.tag))?;
        let mut removed = 0;
        for snapshot in found.iter().filter(|snapshot| unneeded.has(snapshot)) {
            if watched.is_canceled() {
                return Err(Fault::Canceled);
            }
            let path = self.store().folder("snapshots").join(snapshot.id.to_hex().as_str());
            handle.block_on(self.store().remove(&path))?;
            removed += 1;
        }
        Ok(removed)
    }
}
