//! Maintenance of a repository: pruning and checking.

use rustic_core::{CheckOptions, PruneOptions};
use tokio::runtime::Handle;

use crate::fault::Fault;
use crate::lock::{Guard, Lock};
use crate::repository::{Repository, TO_END, blocking, free, until_canceled};
use crate::watched::Watched;

/// How many findings of a check are reported.
const TOLD: usize = 5;

impl Repository {
    /// Prunes, and then checks that everything that snapshots need is there. A pack that no
    /// snapshot needs is only marked; the next maintenance removes it, a day later at the earliest.
    /// Nobody else works on the repository meanwhile.
    ///
    /// # Errors
    /// When somebody else works on the repository, or something that snapshots need is missing.
    pub async fn maintain(&self, reader: &str, watched: &Watched) -> Result<(), Fault> {
        if self.is_read_only() {
            return Err(Fault::ReadOnly(self.store().place().to_owned()));
        }
        let lock = Lock::take_alone(self.store(), self.sealer(), reader, watched).await?;
        let (this, job, guard) = (self.clone(), watched.clone(), lock.guard());
        let work = move |handle: Handle| this.prune_and_check(&job, &guard, &handle);
        let done = until_canceled(watched, self.store().place(), blocking(work), TO_END).await;
        free(lock, &done).await;
        self.judged(done, watched)
    }

    fn prune_and_check(&self, watched: &Watched, guard: &Guard, handle: &Handle) -> Result<(), Fault> {
        let repository = self.opened(watched, Some(guard.clone()), handle)?;
        let options = PruneOptions::default();
        let plan = repository.prune_plan(&options)?;
        repository.prune(&options, plan)?;
        drop(repository);
        // Opened again, to read the index as it is after the prune.
        let repository = self.opened(watched, Some(guard.clone()), handle)?;
        let found = repository.check(CheckOptions::default())?;
        if found.is_ok().is_ok() {
            return Ok(());
        }
        let told: Vec<String> = found.0.iter().take(TOLD).map(|(_, error)| error.to_string()).collect();
        Err(Fault::Repository(format!("the check of {} found: {}", self.store().place(), told.join("; "))))
    }
}
