//! The work of a job on a repository: backing up a folder or a device, or restoring a snapshot into
//! one.

use berth_pod_volumes::{Data, Fault, Restored, Saved, Source};

use super::super::AgentContext;
use super::Job;
use crate::text::chain;

impl Job {
    /// Backs up a folder or a device. The inner error says why the job has no complete snapshot,
    /// although the repository may have one.
    pub(in crate::node_agent) async fn store(
        &self,
        location: &str,
        namespace: &str,
        source: Source,
    ) -> anyhow::Result<Result<Saved, String>> {
        let repositories = &self.context.repositories;
        // The place is read before the repository is opened, so that no change in between is
        // missed.
        let place = repositories.place(location).await;
        let repository = repositories.get(location, namespace, true).await?;
        let place = place?;
        match repository.backup(source, &self.watched).await {
            Ok(saved) => match repositories.ensure_kept(location, &place).await {
                Ok(()) => Ok(Ok(saved)),
                Err(error) => {
                    let why = chain(error.as_ref());
                    Ok(Err(format!("{why}, so snapshot {} may not be where it belongs", saved.snapshot)))
                }
            },
            Err(fault) => self.unfinished(fault, location, namespace),
        }
    }

    /// Restores a snapshot into a folder or a device. The inner error says which files are missing.
    pub(in crate::node_agent) async fn bring(
        &self,
        location: &str,
        namespace: &str,
        snapshot: &str,
        data: Data,
    ) -> anyhow::Result<Result<Restored, String>> {
        let AgentContext { settings, repositories, .. } = &*self.context;
        let repository = repositories.get(location, namespace, false).await?;
        match repository.restore(snapshot, data, &settings.node, &self.watched).await {
            Ok(restored) => Ok(Ok(restored)),
            Err(fault) => self.unfinished(fault, location, namespace),
        }
    }

    /// Moves an error into the inner result if the work was done in part.
    fn unfinished<T>(
        &self,
        fault: Fault,
        location: &str,
        namespace: &str,
    ) -> anyhow::Result<Result<T, String>> {
        if let Fault::Unfinished(unfinished) = fault {
            return Ok(Err(unfinished.to_string()));
        }
        // The repository may have been replaced since it was opened.
        if matches!(fault, Fault::Store(_) | Fault::Repository(_) | Fault::Lock(_) | Fault::Missing(_)) {
            self.context.repositories.forget(location, namespace);
        }
        Err(fault.into())
    }
}
