//! The work of a job on a repository: backing up a folder or a device, or restoring a snapshot into
//! one.

use std::time::Duration;

use berth_api::velero::PodVolumeBackup;
use berth_pod_volumes::{Data, Fault, Restored, Saved, Source, Unneeded};
use kube::ResourceExt as _;
use kube::api::Api;
use tokio::time::timeout;
use tracing::{info, warn};

use super::super::AgentContext;
use super::Job;
use crate::text::chain;

/// Time-out of the look whether the object of a snapshot is still there.
const CALL: Duration = Duration::from_secs(30);
/// How long it is tried to forget a snapshot whose object is gone.
const FORGETTING: Duration = Duration::from_secs(300);

impl Job {
    /// Has the object been removed while its snapshot was stored, as with its Backup? Whoever
    /// removes what a Backup has left has looked for its snapshots before this one was there, so it
    /// is forgotten here. `of_backup`: the tag of all snapshots of the Backup. `false` also where
    /// nobody can tell.
    pub(in crate::node_agent) async fn is_left_behind(
        &self,
        object: &PodVolumeBackup,
        (location, namespace): (&str, &str),
        snapshot: &str,
        of_backup: Option<String>,
    ) -> bool {
        let AgentContext { clients, settings, repositories, .. } = &*self.context;
        let api: Api<PodVolumeBackup> = Api::namespaced(clients.call.clone(), &settings.namespace);
        let name = object.name_any();
        let Ok(Ok(found)) = timeout(CALL, api.get_metadata_opt(&name)).await else { return false };
        if found.is_some_and(|found| found.metadata.uid == object.metadata.uid) {
            return false;
        }
        let forgetting = async {
            let Some(tag) = of_backup else { return Ok(0) };
            let repository = repositories.get(location, namespace, false).await?;
            let unneeded = Unneeded { tag, ids: vec![snapshot.to_owned()], tags: Vec::new() };
            anyhow::Ok(repository.forget(unneeded, &settings.node).await?)
        };
        match timeout(FORGETTING, forgetting).await {
            Ok(Ok(count)) => {
                info!(name, snapshot, count, "forgot the snapshot of a PodVolumeBackup that was removed")
            }
            Ok(Err(error)) => {
                let error = chain(error.as_ref());
                warn!(
                    name,
                    snapshot, error, "could not forget the snapshot of a PodVolumeBackup that was removed"
                );
            }
            Err(_) => warn!(
                name,
                snapshot, "could not forget the snapshot of a PodVolumeBackup that was removed in time"
            ),
        }
        true
    }

    /// Stores a folder or a device. The inner error says why there is no snapshot to go by, though
    /// there may be one.
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use berth_pod_volumes::{Watched, descend};
    use berth_test_scripted::{Scripted, get};
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::super::super::Settings;
    use super::super::super::concurrency::Places;
    use super::super::super::repositories::Repositories;
    use super::*;
    use crate::client::Clients;
    use crate::storage::Opener;

    const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/l";
    const OBJECT: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/b";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_whose_object_is_gone_is_forgotten_and_no_other_one() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        for folder in ["bucket", "volume"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        std::fs::write(volume.join("file"), "x").unwrap();
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "l", "namespace": "velero"},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket"},
                "config": {"path": root.path()},
            },
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
            "data": {"repository-password": "c2VjcmV0"},
        });
        let object = |uid: &str| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {"name": "b", "namespace": "velero", "uid": uid}, "spec": {},
            })
        };
        let api = Scripted::new()
            .always(get(LOCATION).answers(location))
            .once(get("/api/v1/namespaces/velero/secrets/berth-repository-l.shop").answers(secret));
        let client = api.client("velero");
        let opener = Opener::new(client.clone(), "velero", vec![root.path().to_owned()].into());
        let repositories = Repositories::new(client.clone(), "velero", None, opener);
        let clients = Clients { watch: client.clone(), call: client };
        let context = Arc::new(AgentContext::new(clients, Settings::of_tests("/pods"), repositories));
        let places = Places::new(3, Arc::default());
        // Each has counters of its own.
        let job = || {
            let (context, place) = (Arc::clone(&context), places.take().unwrap());
            Job::new(context, Watched::default(), CancellationToken::new(), true, place)
        };
        let tag = || "backup=one".to_owned();
        let saves = async || {
            let source = Source {
                data: descend(root.path(), Path::new("volume")).unwrap().into(),
                host: "shop".to_owned(),
                tags: vec![tag()],
                reader: "n1".to_owned(),
                same: "same=claim/c".to_owned(),
            };
            job().store("l", "shop", source).await.unwrap().unwrap().snapshot
        };
        let snapshots = || {
            let path = root.path().join("bucket/restic/shop/snapshots");
            std::fs::read_dir(path).map_or(0, Iterator::count)
        };
        let (_other, own) = (saves().await, saves().await);
        let (job, read) = (job(), serde_json::from_value(object("u")).unwrap());
        let is_left_behind = || job.is_left_behind(&read, ("l", "shop"), &own, Some(tag()));
        for (answer, is_gone, left) in [
            (get(OBJECT).answers(object("u")), false, 2),
            (get(OBJECT).refuses(500), false, 2),
            // Another one of its name.
            (get(OBJECT).answers(object("v")), true, 1),
            // It is forgotten already.
            (get(OBJECT).refuses(404), true, 1),
        ] {
            api.once(answer);
            assert_eq!(is_left_behind().await, is_gone);
            assert_eq!(snapshots(), left);
        }
    }
}
