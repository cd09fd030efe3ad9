//! Finds the folder of a pod's volume, from what the API says of the volume and which of the
//! kubelet's plugins mounted it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use berth_api::velero::PodReference;
use berth_core::pod_volume::target::mismatch;
use berth_core::pod_volume::{Backing, folder, plugin};
use berth_core::volume::NEVER;
use berth_pod_volumes::{Folder, Hung, descend, is_mounted};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::api::Api;
use kube::{Client, ResourceExt};
use tokio::time::{Instant, timeout};

use super::Settings;
use crate::movers::target::waits;
use crate::write::Pauses;

/// The kubelet's folder, in each pod's folder, in which its plugins mount volumes.
const VOLUMES: &str = "volumes";
/// The annotation that names the CSI driver that now serves the volumes of an in-tree plugin.
const MIGRATED: &str = "pv.kubernetes.io/migrated-to";

/// A mounted volume.
pub struct LocatedVolume {
    pub folder: Folder,
    /// Its path, for messages.
    pub path: PathBuf,
    /// The same path below the folder of all pods, if something must be mounted on it.
    mount: Option<PathBuf>,
    pub claim_uid: Option<String>,
    /// The namespace of the pod.
    pub namespace: String,
    pub uid: String,
    /// Has the pod an init container that waits for restores?
    pub waits: bool,
    /// Does the pod run, so that its volumes are mounted? If not, why.
    pub state: Result<(), String>,
}

/// Time-out of a look at a volume, because a file system may never answer.
const LOOK: Duration = Duration::from_secs(60);

/// Runs calls of file systems that should take no time. `of`: the namespace of the volumes.
///
/// # Errors
/// When the work fails, or takes too long.
pub async fn blocking<T: Send + 'static>(
    of: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    Hung::ensure_few(of)?;
    let mut work = tokio::task::spawn_blocking(work);
    match timeout(LOOK, &mut work).await {
        Ok(done) => done?,
        Err(_) => {
            let hung = Hung::new(of);
            tokio::spawn(async move {
                let _ = work.await;
                drop(hung);
            });
            bail!("the file system does not answer")
        }
    }
}

/// Does the pod run, so that its volumes are there?
fn state(pod: &Pod) -> Result<(), String> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let name = format!("pod {}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    match phase {
        _ if pod.metadata.deletion_timestamp.is_some() => Err(format!("{name} is being deleted")),
        "Running" => Ok(()),
        _ => Err(format!("{name} does not run")),
    }
}

/// Checks that this very pod still runs after its volume was read.
///
/// # Errors
/// Why it does not.
pub async fn still(client: &Client, pod: &PodReference, uid: &str) -> Result<(), String> {
    let (namespace, name) =
        (pod.namespace.as_deref().unwrap_or_default(), pod.name.as_deref().unwrap_or_default());
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (begun, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        match api.get_opt(name).await {
            Ok(Some(found)) if found.metadata.uid.as_deref() == Some(uid) => return state(&found),
            Ok(_) => return Err(format!("pod {namespace}/{name} was deleted while its volume was read")),
            Err(error) if begun.elapsed() > STILL => {
                return Err(format!("pod {namespace}/{name} cannot be read any more ({error})"));
            }
            Err(_) => pauses.wait().await,
        }
    }
}

/// How long berth tries to read the pod after its volume was read.
const STILL: Duration = Duration::from_secs(300);

/// Why there is no such pod as an object names.
#[derive(Debug, thiserror::Error)]
pub enum NamedPodError {
    #[error("the pod that has the volume cannot be read")]
    Call(#[source] kube::Error),
    #[error("{0}")]
    Absent(String),
}

/// The pod whose volume an object names, as the API server has it, on this node.
///
/// # Errors
/// Why there is none.
pub async fn named(client: &Client, pod: &PodReference, node: &str) -> Result<Pod, NamedPodError> {
    let of = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let (Some(namespace), Some(name)) = (of(&pod.namespace), of(&pod.name)) else {
        return Err(NamedPodError::Absent("spec.pod names no pod".to_owned()));
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(NamedPodError::Call)?;
    let found = found.ok_or_else(|| NamedPodError::Absent(format!("there is no pod {namespace}/{name}")))?;
    let uid = found.metadata.uid.as_deref().unwrap_or_default();
    let on = found.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    match mismatch(pod.uid.as_deref(), node, uid, on) {
        Some(why) => Err(NamedPodError::Absent(format!("pod {namespace}/{name} {why}"))),
        None => Ok(found),
    }
}

/// # Errors
/// Why there is no folder to read or to write.
pub async fn find(
    client: &Client,
    settings: &Settings,
    pod: &PodReference,
    name: &str,
) -> anyhow::Result<LocatedVolume> {
    let found = named(client, pod, &settings.node).await?;
    let (namespace, pod_name) = (&found.namespace().unwrap_or_default(), &found.name_any());
    let uid = found.metadata.uid.clone().unwrap_or_default();
    let (waits, state) = (waits(&found), state(&found));
    let volumes = found.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume.name == name);
    let volume = volume.with_context(|| format!("pod {namespace}/{pod_name} has no volume {name}"))?;
    let kind = kind(volume)?;
    ensure!(!NEVER.contains(&kind.as_str()), "files of {kind} volumes are not taken");
    let (parts, claim_uid) = match claim_of(volume, pod_name) {
        Some(claim) => {
            let (volume, uid) = persistent(client, namespace, &claim).await?;
            (volume, Some(uid))
        }
        None => {
            let backing = Backing::Inline { name, is_csi: volume.csi.is_some() };
            (folder(backing).into_iter().map(str::to_owned).collect(), None)
        }
    };
    let of = || format!("volume {name} of pod {namespace}/{pod_name}");
    let (pods, pod_uid) = (settings.pods.clone(), uid.clone());
    let looked = blocking(namespace, move || look(&pods, &pod_uid, &parts)).await;
    let (folder, below) = looked.with_context(of)?;
    let is_mount = !settings.allows_unmounted && is_mount(volume);
    let (path, mount) = (settings.pods.join(&below), is_mount.then_some(below));
    let namespace = namespace.clone();
    let found = LocatedVolume { folder, path, mount, claim_uid, namespace, uid, waits, state };
    found.ensure_mounted(settings).await.with_context(of)?;
    Ok(found)
}

impl LocatedVolume {
    /// Checks that the volume is still mounted, because its folder exists without it, too.
    ///
    /// # Errors
    /// When nothing is mounted on the folder, or that cannot be read.
    pub async fn ensure_mounted(&self, settings: &Settings) -> anyhow::Result<()> {
        let Some(mount) = self.mount.clone() else { return Ok(()) };
        let pods = settings.pods.clone();
        let mounted = blocking(&self.namespace, move || Ok(is_mounted(&pods, &mount)?)).await;
        let is_there = mounted.with_context(|| format!("{} cannot be read", self.path.display()))?;
        ensure!(is_there, "nothing is mounted on {}", self.path.display());
        Ok(())
    }
}

/// The type of the volume: the only field beside its name.
fn kind(volume: &Volume) -> anyhow::Result<String> {
    let fields = serde_json::to_value(volume)?;
    let fields = fields.as_object().into_iter().flatten();
    let kind = fields.map(|(key, _)| key.clone()).find(|key| key != "name");
    kind.context("the volume is of a kind that the agent does not know")
}

/// Does the kubelet mount volumes of this type? Then the folder exists, and is empty, even if the
/// mount failed or is not visible here. Volumes of other types are folders of the node, or may be
/// mounted or not.
fn is_mount(volume: &Volume) -> bool {
    volume.empty_dir.is_none() && volume.git_repo.is_none() && volume.flex_volume.is_none()
}

fn claim_of(volume: &Volume, pod: &str) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name)))
}

/// The folder of a claim's volume, and the UID of the claim.
async fn persistent(client: &Client, namespace: &str, claim: &str) -> anyhow::Result<(Vec<String>, String)> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let found = claims.get(claim).await.with_context(|| format!("claim {claim} cannot be read"))?;
    let uid = found.metadata.uid.unwrap_or_default();
    let spec = found.spec.unwrap_or_default();
    let name = spec.volume_name.filter(|name| !name.is_empty());
    let name = name.with_context(|| format!("claim {claim} is not bound"))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get(&name).await.with_context(|| format!("volume {name} cannot be read"))?;
    let annotations = volume.metadata.annotations.unwrap_or_default();
    let spec = volume.spec.unwrap_or_default();
    ensure!(spec.host_path.is_none(), "volume {name} is a folder of its node: files of those are not taken");
    ensure!(spec.volume_mode.as_deref() != Some("Block"), "volume {name} is a block device without files");
    let is_csi = spec.csi.is_some() || annotations.contains_key(MIGRATED);
    let parts = folder(Backing::Persistent { volume: &name, is_csi });
    Ok((parts.into_iter().map(str::to_owned).collect(), uid))
}

/// Opens `UID/volumes/PLUGIN/PARTS` below the folder of all pods, and returns that path, too. No
/// link leads out of it.
fn look(pods: &Path, uid: &str, parts: &[String]) -> anyhow::Result<(Folder, PathBuf)> {
    let volumes = Path::new(uid).join(VOLUMES);
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('/');
    let parts_are_plain = parts.iter().all(|part| is_plain(part)) && is_plain(uid);
    ensure!(parts_are_plain, "the path of the volume contains an invalid name");
    let plugins = descend(pods, &volumes)
        .and_then(|folder| folder.names())
        .with_context(|| format!("{} cannot be read", pods.join(&volumes).display()))?;
    let candidates = plugins.iter().filter_map(|plugin: &OsString| {
        let path = parts.iter().fold(volumes.join(plugin), |path, part| path.join(part));
        Some((descend(pods, &path).ok()?, path))
    });
    Ok(plugin(candidates)?)
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};

    use super::*;

    #[tokio::test]
    async fn a_folder_without_its_volume_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("v")).unwrap();
        let found = |from: &Path, below: Option<&str>| {
            let settings = Settings::of_tests(from);
            let found = LocatedVolume {
                folder: descend(root.path(), Path::new("v")).unwrap(),
                path: from.join("v"),
                mount: below.map(PathBuf::from),
                claim_uid: None,
                namespace: String::new(),
                uid: String::new(),
                waits: false,
                state: Ok(()),
            };
            async move { found.ensure_mounted(&settings).await.map_err(|error| error.to_string()) }
        };
        assert_eq!(found(Path::new("/"), Some("proc")).await, Ok(()));
        assert_eq!(found(root.path(), None).await, Ok(()));
        let why = found(root.path(), Some("v")).await.unwrap_err();
        assert!(why.starts_with("nothing is mounted on "), "{why}");
        assert!(found(root.path(), Some("none")).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_hang_are_counted() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let hung: Vec<Hung> = (0..3).map(|_| Hung::new("hangs")).collect();
        let work = move || {
            let _ = ends.recv();
            Ok::<(), anyhow::Error>(())
        };
        let look = tokio::spawn(blocking("hangs", work));
        // While a thread blocks, a paused clock does not advance by itself.
        while !look.is_finished() {
            tokio::time::advance(LOOK).await;
        }
        assert!(look.await.unwrap().unwrap_err().to_string().contains("does not answer"));
        let refused = blocking("hangs", || Ok(())).await.unwrap_err();
        assert!(refused.to_string().contains("too many"), "{refused}");
        assert!(blocking("others", || Ok(())).await.is_ok());
        drop((end, hung));
    }

    #[test]
    fn only_folders_of_the_node_may_be_without_a_mount() {
        for (kind, is_it) in [
            (serde_json::json!({"emptyDir": {}}), false),
            (serde_json::json!({"gitRepo": {"repository": "r"}}), false),
            (serde_json::json!({"flexVolume": {"driver": "d"}}), false),
            (serde_json::json!({"nfs": {"server": "s", "path": "/"}}), true),
            (serde_json::json!({"csi": {"driver": "d"}}), true),
            (serde_json::json!({"persistentVolumeClaim": {"claimName": "c"}}), true),
            (serde_json::json!({"ephemeral": {}}), true),
        ] {
            let mut volume = kind.clone();
            volume["name"] = "v".into();
            assert_eq!(is_mount(&serde_json::from_value(volume).unwrap()), is_it, "{kind}");
        }
    }

    #[test]
    fn only_a_pod_that_runs_has_its_volumes() {
        let pod = |value: serde_json::Value| serde_json::from_value::<Pod>(value).unwrap();
        let running =
            serde_json::json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "Running"}});
        assert_eq!(state(&pod(running.clone())), Ok(()));
        let mut deleted = running.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(state(&pod(deleted)), Err("pod n/p is being deleted".to_owned()));
        for phase in ["Pending", "Succeeded", "Failed", ""] {
            let mut other = running.clone();
            other["status"]["phase"] = phase.into();
            assert!(state(&pod(other)).is_err(), "{phase}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_another_node_and_one_that_was_made_again_have_no_volume_here() {
        const PATH: &str = "/api/v1/namespaces/shop/pods/web-0";
        let pod = |uid: &str, node: &str| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "web-0", "namespace": "shop", "uid": uid},
                "spec": {"nodeName": node, "containers": [], "volumes": [{"name": "data", "emptyDir": {}}]},
            })
        };
        let wanted = PodReference {
            namespace: Some("shop".to_owned()),
            name: Some("web-0".to_owned()),
            uid: Some("u".to_owned()),
        };
        let settings = Settings::of_tests("/none");
        for (answer, why) in [
            (get(PATH).answers(pod("u", "n2")), "pod shop/web-0 is not on node \"n1\""),
            (get(PATH).answers(pod("v", "n1")), "pod shop/web-0 is another one by now"),
            (get(PATH).refuses(404), "there is no pod shop/web-0"),
        ] {
            let api = Scripted::new().next(answer);
            let found = find(&api.client("velero"), &settings, &wanted, "data").await;
            assert_eq!(found.err().map(|error| error.to_string()).as_deref(), Some(why));
            api.finish();
        }
    }

    #[test]
    fn what_a_newer_api_server_calls_a_volume_is_refused() {
        let of = |value| kind(&serde_json::from_value(value).unwrap()).ok();
        assert_eq!(of(serde_json::json!({"name": "v", "emptyDir": {}})).as_deref(), Some("emptyDir"));
        assert_eq!(of(serde_json::json!({"name": "v", "unheard": {}})), None);
    }

    #[test]
    fn a_volume_is_found_below_whichever_plugin_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for path in ["u/volumes/kubernetes.io~csi/pv/mount", "u/volumes/kubernetes.io~empty-dir/tmp", "out/x"]
        {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::os::unix::fs::symlink(at("out"), at("u/volumes/kubernetes.io~empty-dir/link")).unwrap();
        let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let path = |of: &[&str]| look(root.path(), "u", &parts(of)).map(|(_, path)| path).ok();
        assert_eq!(path(&["pv", "mount"]), Some("u/volumes/kubernetes.io~csi/pv/mount".into()));
        assert_eq!(path(&["tmp"]), Some("u/volumes/kubernetes.io~empty-dir/tmp".into()));
        for wrong in [&["link"][..], &["link", "x"], &["none"], &["..", "out"], &["../../../out"], &[""]] {
            assert_eq!(path(wrong), None, "{wrong:?}");
        }
        assert!(look(root.path(), "..", &parts(&["tmp"])).is_err());
    }
}
