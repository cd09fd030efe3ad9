//! The process of a data mover pod. It moves the data of one DataUpload or DataDownload between the
//! volume that the pod mounts and the repository, or the files of one PodVolumeBackup or
//! PodVolumeRestore, as a node agent does ([`super::files`]), and ends. The leader creates the pod,
//! and allows the process to start by the phase Prepared ([`berth_core::mover::own`]).

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use berth_api::keys::{BACKUP_NAME, BACKUP_UID, PVC_UID, RESTORED};
use berth_api::velero::{
    DataDownload, DataMover, DataMoverStatus, DataUpload, PodVolumeBackup, PodVolumeRestore,
};
use berth_core::mover::MoverKind;
use berth_core::mover::grant::MoverPhase;
use berth_core::pod_volume::{number, same, tags};
use berth_pod_volumes::{Data, Device, Saved, Source, Watched, descend};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::concurrency::Place;
use super::job::{End, EndWrite, Job, ensure_few, is_of_another, runs, write_canceled};
use super::repositories::Repositories;
use super::{AgentContext, Settings, volume};
use crate::client::Clients;
use crate::pace::paced;
use crate::storage::Opener;
use crate::text::chain;

/// Where the volume is mounted in the pod.
pub const VOLUME: &str = "/volume";
/// Where the pod has a volume that is a block device.
pub const DEVICE: &str = "/volume/device";
/// Where the pod has the folders of pods of its node, as far as it sees any.
pub const NODE_PODS: &str = "/host_pods";
/// The suffix of the task of a block device. The path alone is no sign, because any volume may have
/// a file of that name.
pub const OF_DEVICE: &str = "/Block";
/// How often the object is read: before the work for its phase, and during the work for a
/// cancellation.
const LOOK: Duration = Duration::from_secs(2);

/// Moves the data of `task`: kind, name and UID of an object, separated by slashes, and
/// [`OF_DEVICE`] if its volume is a block device.
///
/// # Errors
/// When the end could not be written, the process was told to stop before, or another process works
/// on the movement. The kubelet should then start the container again, if the pod is still there.
pub async fn run(
    clients: Clients,
    settings: Settings,
    opener: Opener,
    task: &str,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (of, is_device) = task.strip_suffix(OF_DEVICE).map_or((task, false), |of| (of, true));
    let mut parts = of.split('/');
    let (Some(kind), Some(name), Some(uid), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        bail!("--carry={task}: it must be KIND/NAME/UID or KIND/NAME/UID{OF_DEVICE}");
    };
    let repositories = Repositories::new(
        clients.call.clone(),
        &settings.namespace,
        settings.secret.clone(),
        opener.patient(),
    )
    .reporting();
    let context = Arc::new(AgentContext::new(clients, settings, repositories));
    let write = match MoverKind::ALL.into_iter().find(|known| known.as_str() == kind) {
        Some(MoverKind::DataUpload) => carry::<DataUpload>(context, name, uid, is_device, &stop).await,
        Some(MoverKind::DataDownload) => carry::<DataDownload>(context, name, uid, is_device, &stop).await,
        Some(MoverKind::PodVolumeBackup) if !is_device => {
            carry::<PodVolumeBackup>(context, name, uid, is_device, &stop).await
        }
        Some(MoverKind::PodVolumeRestore) if !is_device => {
            carry::<PodVolumeRestore>(context, name, uid, is_device, &stop).await
        }
        _ => bail!("--carry={task}: a data mover pod carries no such object"),
    };
    ensure!(write != EndWrite::Failed, "{kind} {name} has not ended, as far as could be written");
    ensure!(write != EndWrite::OfAnother, "another process carries {kind} {name} by now");
    // If the kubelet does not remove the pod, for example because it restarts with its machine, it
    // starts the container again.
    ensure!(!stop.is_cancelled(), "told to end: the next process goes on with {kind} {name}");
    Ok(())
}

/// An object whose data a data mover pod moves.
trait CarriedMovement:
    DataMover
    + kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
{
    /// Location and namespace of the repository that has the data, or receives it.
    fn repository(&self) -> (Option<&str>, Option<&str>);

    /// `is_device`: the volume is a block device.
    fn work(&self, job: &Job, is_device: bool) -> impl Future<Output = anyhow::Result<End>> + Send;
}

/// The volume that the pod mounts. `of`: the namespace of the movement.
async fn open(of: &str, is_device: bool, writes: bool) -> anyhow::Result<Data> {
    let below = Path::new(VOLUME).strip_prefix("/")?;
    let open = move || -> anyhow::Result<Data> {
        Ok(match is_device {
            true => Data::Device(Device::open(Path::new(DEVICE), writes)?),
            false => Data::Folder(descend(Path::new("/"), below)?),
        })
    };
    let path = if is_device { DEVICE } else { VOLUME };
    volume::blocking(of, open).await.with_context(|| format!("{path} cannot be opened"))
}

async fn carry<K: CarriedMovement>(
    context: Arc<AgentContext>,
    name: &str,
    uid: &str,
    is_device: bool,
    stop: &CancellationToken,
) -> EndWrite {
    let api: Api<K> = Api::namespaced(context.clients.call.clone(), &context.settings.namespace);
    let Some(object) = begun(&api, name, uid, stop).await else { return EndWrite::Done };
    if object.phase() == MoverPhase::Canceling {
        return write_canceled(&api, name, uid).await;
    }
    let watched = Watched::default();
    let job = Job::new(context, watched.clone(), stop.clone(), true, Place::only());
    let work = || object.work(&job, is_device);
    tokio::select! {
        write = job.carry_unlocked(&object, object.repository(), work) => write,
        () = follow(&api, (name, uid, &job.id), &job.has_begun, &watched, stop) => EndWrite::Failed,
    }
}

/// Waits until the object may be started, and returns it. `None`: the movement has ended, or this
/// process is told to stop.
async fn begun<K: CarriedMovement>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    stop: &CancellationToken,
) -> Option<K> {
    info!(kind = K::KIND.as_str(), name, "waiting for the phase Prepared");
    while !stop.is_cancelled() {
        match api.get_opt(name).await {
            Ok(Some(found)) if found.meta().uid.as_deref() == Some(uid) => match found.phase() {
                // All data is restored, and the leader may be binding the volume to its claim.
                _ if found.annotations().contains_key(RESTORED) => return None,
                MoverPhase::Prepared | MoverPhase::InProgress | MoverPhase::Canceling => return Some(found),
                phase if phase.is_final() => return None,
                _ => {}
            },
            Ok(_) => return None,
            Err(error) => warn!(name, error = chain(&error), "the object cannot be read"),
        }
        tokio::select! {
            () = sleep(paced(LOOK)) => {}
            () = stop.cancelled() => {}
        }
    }
    None
}

/// Cancels the work if the object was canceled or is gone, or if another process works on it. Never
/// returns.
async fn follow<K: CarriedMovement>(
    api: &Api<K>,
    (name, uid, carrier): (&str, &str, &str),
    has_begun: &AtomicBool,
    watched: &Watched,
    stop: &CancellationToken,
) {
    loop {
        tokio::select! {
            () = sleep(paced(LOOK)) => {}
            () = stop.cancelled() => {
                watched.cancel();
                std::future::pending::<()>().await;
            }
        }
        // Until this process has written its name into the object, the object names an earlier
        // process. The flag is read before the object; the object alone is no sign, because another
        // process may have taken it over before the first answer, for example while this process
        // could not reach the API server.
        let has_begun = has_begun.load(Ordering::Acquire);
        let is_wanted = match api.get_opt(name).await {
            Ok(Some(found)) if found.meta().uid.as_deref() == Some(uid) => {
                let is_another = has_begun && is_of_another(&found, carrier);
                let mover = found.mover();
                let is_canceled = mover.canceled || mover.phase == MoverPhase::Canceling;
                !is_canceled && !mover.phase.is_final() && !is_another
            }
            Ok(_) => false,
            Err(_) => true,
        };
        if !is_wanted && !watched.is_canceled() {
            info!(name, "the movement is canceled, or another process works on it: stopping");
            watched.cancel();
        }
    }
}

fn named<'a>(value: &'a Option<String>, field: &str) -> anyhow::Result<&'a str> {
    let value = value.as_deref().filter(|value| !value.is_empty());
    value.with_context(|| format!("{field} is empty"))
}

impl CarriedMovement for DataUpload {
    fn repository(&self) -> (Option<&str>, Option<&str>) {
        (self.spec.backup_storage_location.as_deref(), self.spec.source_namespace.as_deref())
    }

    async fn work(&self, job: &Job, is_device: bool) -> anyhow::Result<End> {
        ensure_few(runs(self))?;
        let data = open(&self.namespace().unwrap_or_default(), is_device, false).await?;
        let path = if is_device { DEVICE } else { VOLUME };
        let namespace = named(&self.spec.source_namespace, "spec.sourceNamespace")?;
        let location = named(&self.spec.backup_storage_location, "spec.backupStorageLocation")?;
        let claim = named(&self.spec.source_pvc, "spec.sourcePVC")?;
        let label = |key: &str| self.labels().get(key).map(String::as_str);
        let owner = self.owner_references().iter().find(|owner| owner.kind == "Backup");
        // A label contains only the beginning of a long name.
        let backup = owner.map(|owner| owner.name.as_str()).or_else(|| label(BACKUP_NAME));
        let given = [
            ("backup", backup),
            ("backup-uid", label(BACKUP_UID)),
            ("ns", Some(namespace)),
            ("pvc", Some(claim)),
            ("pvc-uid", label(PVC_UID)),
        ];
        let given = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let source = Source {
            data,
            host: namespace.to_owned(),
            tags: tags(given)?,
            reader: job.context.settings.node.clone(),
            same: same(label(PVC_UID), namespace, "", claim),
        };
        Ok(match job.store(location, namespace, source).await? {
            Ok(Saved { snapshot, bytes, added, .. }) => {
                let (bytes, added) = (number(bytes), number(added));
                End::completed(&DataMoverStatus::stored(&snapshot, path, bytes, added))
            }
            Err(why) => End::failed(&DataMoverStatus::read_at(path), why),
        })
    }
}

impl CarriedMovement for DataDownload {
    fn repository(&self) -> (Option<&str>, Option<&str>) {
        (self.spec.backup_storage_location.as_deref(), self.spec.source_namespace.as_deref())
    }

    /// The leader writes Completed, when it has bound the volume to its claim.
    async fn work(&self, job: &Job, is_device: bool) -> anyhow::Result<End> {
        ensure_few(runs(self))?;
        let data = open(&self.namespace().unwrap_or_default(), is_device, true).await?;
        let namespace = named(&self.spec.source_namespace, "spec.sourceNamespace")?;
        let location = named(&self.spec.backup_storage_location, "spec.backupStorageLocation")?;
        let snapshot = named(&self.spec.snapshot_id, "spec.snapshotID")?;
        let restored = match job.bring(location, namespace, snapshot, data).await? {
            Ok(restored) => restored,
            Err(why) => return Ok(End::failed(&json!({}), why)),
        };
        Ok(End {
            change: json!({
                "metadata": {"annotations": {RESTORED: Timestamp::now()}},
                "status": DataMoverStatus::restored(number(restored.bytes)),
            }),
            message: None,
        })
    }
}

impl CarriedMovement for PodVolumeBackup {
    fn repository(&self) -> (Option<&str>, Option<&str>) {
        let namespace = self.spec.pod.as_ref().and_then(|pod| pod.namespace.as_deref());
        (self.spec.backup_storage_location.as_deref(), namespace)
    }

    async fn work(&self, job: &Job, _: bool) -> anyhow::Result<End> {
        job.backup(Arc::new(self.clone())).await
    }
}

impl CarriedMovement for PodVolumeRestore {
    fn repository(&self) -> (Option<&str>, Option<&str>) {
        (self.spec.backup_storage_location.as_deref(), self.spec.source_namespace.as_deref())
    }

    async fn work(&self, job: &Job, _: bool) -> anyhow::Result<End> {
        let object = Arc::new(self.clone());
        job.once_pod_waits(|| job.restore(Arc::clone(&object))).await
    }
}

#[cfg(test)]
mod tests {
    use berth_api::keys::CARRIER;
    use berth_test_scripted::{Scripted, get, patch};
    use serde_json::Value;

    use super::*;

    const UPLOAD: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads/up";

    fn upload(uid: &str, phase: &str) -> Value {
        json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": {"name": "up", "namespace": "velero", "uid": uid, "resourceVersion": "7"},
            "spec": {"datamover": "berth", "sourceNamespace": "shop", "sourcePVC": "data"},
            "status": {"phase": phase},
        })
    }

    async fn ran(api: &Scripted, task: &str, stop: &CancellationToken) -> anyhow::Result<()> {
        ran_where(api, task, stop, Path::new("/pods")).await
    }

    /// `pods`: the folders of pods that the pod sees.
    async fn ran_where(
        api: &Scripted,
        task: &str,
        stop: &CancellationToken,
        pods: &Path,
    ) -> anyhow::Result<()> {
        let client = api.client("velero");
        let settings = Settings::of_tests(pods);
        let opener = Opener::new(client.clone(), "velero", Vec::new().into());
        run(Clients { watch: client.clone(), call: client }, settings, opener, task, stop.clone()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_begins_when_it_may_and_writes_how_it_ends() {
        let api = Scripted::new()
            .next(get(UPLOAD).answers(upload("u", "Accepted")))
            .next(get(UPLOAD).refuses(500))
            .next(get(UPLOAD).answers(upload("u", "Prepared")))
            .next(patch(UPLOAD).answers(upload("u", "InProgress")))
            .next(get(UPLOAD).answers(upload("u", "InProgress")))
            .next(patch(UPLOAD).answers(upload("u", "Failed")));
        ran(&api, "DataUpload/up/u", &CancellationToken::new()).await.unwrap();
        let writes: Vec<Value> = api.writes().into_iter().map(|write| write.body).collect();
        let begun = &writes[0];
        assert_eq!(
            (&begun["status"]["phase"], &begun["status"]["node"]),
            (&json!("InProgress"), &json!("n1"))
        );
        assert_eq!(begun["metadata"]["annotations"]["berth.dev/runs"], "1");
        // This machine has no such folder.
        let ended = &writes[1]["status"];
        assert_eq!(ended["phase"], "Failed", "{ended}");
        assert!(ended["message"].as_str().unwrap().starts_with("/volume cannot be opened"), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_a_block_volume_opens_the_device() {
        let api = Scripted::new()
            .next(get(UPLOAD).answers(upload("u", "Prepared")))
            .next(patch(UPLOAD).answers(upload("u", "InProgress")))
            .next(get(UPLOAD).answers(upload("u", "InProgress")))
            .next(patch(UPLOAD).answers(upload("u", "Failed")));
        ran(&api, "DataUpload/up/u/Block", &CancellationToken::new()).await.unwrap();
        let ended = api.writes()[1].body["status"].clone();
        assert!(ended["message"].as_str().unwrap().starts_with("/volume/device cannot be opened"), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_ends_at_once_when_nobody_wants_it() {
        for object in [upload("u", "Failed"), upload("u", "Canceled"), upload("another", "Prepared")] {
            let api = Scripted::new().next(get(UPLOAD).answers(object));
            ran(&api, "DataUpload/up/u", &CancellationToken::new()).await.unwrap();
            assert_eq!(api.writes(), []);
        }
        let api = Scripted::new().next(get(UPLOAD).refuses(404));
        ran(&api, "DataUpload/up/u", &CancellationToken::new()).await.unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let ended = ran(&Scripted::new(), "DataUpload/up/u", &stop).await;
        assert!(ended.is_err(), "or the kubelet would not start it again");
    }

    /// A user, not berth, wrote the phase, and set no cancellation in the spec.
    #[tokio::test(start_paused = true)]
    async fn a_movement_that_is_being_canceled_is_not_begun_again() {
        let api = Scripted::new()
            .next(get(UPLOAD).answers(upload("u", "Canceling")))
            .next(get(UPLOAD).answers(upload("u", "Canceling")))
            .next(patch(UPLOAD).answers(upload("u", "Canceled")));
        ran(&api, "DataUpload/up/u", &CancellationToken::new()).await.unwrap();
        let phases: Vec<Value> =
            api.writes().into_iter().map(|write| write.body["status"]["phase"].clone()).collect();
        assert_eq!(phases, [json!("Canceled")]);
    }

    /// The situation after the pod was removed by force and created again while its node lives.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_not_the_last_one_stops_and_writes_no_end() {
        let carried = |carrier: &str| {
            let mut object = upload("u", "InProgress");
            object["metadata"]["annotations"] = json!({CARRIER: carrier});
            object
        };
        let (watched, stop) = (Watched::default(), CancellationToken::new());
        let (has_begun, is_early) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begins, early) = (Arc::clone(&has_begun), Arc::clone(&is_early));
        let (older, next, seen) = (carried("n0/old"), carried("n2/next"), watched.clone());
        let api = Scripted::new()
            // The name of an earlier process, which this one replaces while it reads the object.
            .next(get(UPLOAD).answers_with(move |_| {
                begins.store(true, Ordering::Release);
                older.clone()
            }))
            // This process has never read the object while it had its own name.
            .next(get(UPLOAD).refuses(500))
            .next(get(UPLOAD).answers_with(move |_| {
                early.store(seen.is_canceled(), Ordering::Release);
                next.clone()
            }));
        let client = api.client("velero");
        let objects: Api<DataUpload> = Api::namespaced(client, "velero");
        let stopped = async {
            api.played().await;
            assert!(watched.is_canceled(), "both would write the volume");
        };
        tokio::select! {
            () = follow(&objects, ("up", "u", "n1/this"), &has_begun, &watched, &stop) => {}
            () = stopped => {}
        }
        assert!(!is_early.load(Ordering::Acquire), "an earlier process stops nobody");
        let api = Scripted::new()
            .next(get(UPLOAD).answers(upload("u", "Prepared")))
            .next(patch(UPLOAD).answers(upload("u", "InProgress")))
            .next(get(UPLOAD).answers(carried("n2/next")));
        let ended = ran(&api, "DataUpload/up/u", &CancellationToken::new()).await;
        assert!(
            ended.is_err(),
            "or the kubelet would not start it again where its pod is the one that stays"
        );
        assert_eq!(api.writes().len(), 1, "that it was begun");
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_has_all_its_data_is_not_written_once_more() {
        let mut restored = upload("u", "InProgress");
        restored["kind"] = json!("DataDownload");
        restored["metadata"]["annotations"] = json!({"berth.dev/restored": "2026-01-01T00:00:00Z"});
        let path = UPLOAD.replace("datauploads", "datadownloads");
        let api = Scripted::new().next(get(&path).answers(restored));
        ran(&api, "DataDownload/up/u", &CancellationToken::new()).await.unwrap();
        assert_eq!(api.writes(), []);
    }

    /// The pod sees the folder of the volume, as a node agent would.
    #[tokio::test(start_paused = true)]
    async fn a_pod_reads_the_files_of_a_volume_where_its_node_has_them() {
        const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/b";
        const POD: &str = "/api/v1/namespaces/shop/pods/web-0";
        let backup = |phase: &str| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {
                    "name": "b", "namespace": "velero", "uid": "u", "resourceVersion": "7",
                    "annotations": {"berth.dev/by-mover": "true"},
                },
                "spec": {
                    "node": "n1", "uploaderType": "restic", "volume": "data",
                    "pod": {"namespace": "shop", "name": "web-0", "uid": "p"},
                },
                "status": {"phase": phase},
            })
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "p"},
            "spec": {"nodeName": "n1", "containers": [], "volumes": [{"name": "data", "emptyDir": {}}]},
            "status": {"phase": "Running"},
        });
        let api = Scripted::new()
            .next(get(BACKUP).answers(backup("Accepted")))
            .next(get(BACKUP).answers(backup("Prepared")))
            .next(patch(BACKUP).answers(backup("InProgress")))
            .once(get(POD).answers(pod))
            .next(get(BACKUP).answers(backup("InProgress")))
            .next(patch(BACKUP).answers(backup("Failed")));
        ran(&api, "PodVolumeBackup/b/u", &CancellationToken::new()).await.unwrap();
        let writes: Vec<Value> = api.writes().into_iter().map(|write| write.body).collect();
        assert_eq!(writes[0]["status"]["phase"], "InProgress");
        // This machine has no such folder.
        let ended = &writes[1]["status"];
        assert_eq!(ended["phase"], "Failed", "{ended}");
        let why = ended["message"].as_str().unwrap();
        assert!(why.contains("/pods/p/volumes cannot be read"), "{why}");
    }

    /// It takes a data path of the node from others.
    #[tokio::test(start_paused = true)]
    async fn a_restore_for_which_its_pod_waits_no_more_ends() {
        const RESTORE: &str = "/apis/velero.io/v1/namespaces/velero/podvolumerestores/r";
        const POD: &str = "/api/v1/namespaces/shop/pods/web-0";
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("p/volumes/kubernetes.io~empty-dir/data")).unwrap();
        let restore = json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
            "metadata": {
                "name": "r", "namespace": "velero", "uid": "u", "resourceVersion": "7",
                "annotations": {"berth.dev/by-mover": "true"}, "labels": {"velero.io/restore-uid": "of"},
            },
            "spec": {
                "uploaderType": "restic", "volume": "data", "sourceNamespace": "shop", "snapshotID": "s",
                "pod": {"namespace": "shop", "name": "web-0", "uid": "p"},
            },
            "status": {"phase": "InProgress", "node": "n1"},
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "p"},
            "spec": {"nodeName": "n1", "containers": [], "volumes": [{"name": "data", "emptyDir": {}}]},
            "status": {"phase": "Running"},
        });
        let api = Scripted::new()
            .always(get(RESTORE).answers(restore.clone()))
            .always(patch(RESTORE).answers(restore))
            .always(get(POD).answers(pod));
        let task = "PodVolumeRestore/r/u";
        ran_where(&api, task, &CancellationToken::new(), root.path()).await.unwrap();
        let ended = api.writes().last().unwrap().body["status"].clone();
        assert_eq!(ended["phase"], "Failed", "{ended}");
        let why = ended["message"].as_str().unwrap();
        assert!(why.contains("has not for 30 minutes"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_movement_is_refused() {
        for task in [
            "DataUpload/up",
            "PodVolumeBackup/b/u/Block",
            "PodVolumeRestore/b/u/Block",
            "Backup/b/u",
            "DataUpload/up/u/more",
            "DataUpload/up/Block",
            "",
        ] {
            assert!(ran(&Scripted::new(), task, &CancellationToken::new()).await.is_err(), "{task}");
        }
    }
}
