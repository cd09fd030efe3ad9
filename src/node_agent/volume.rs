//! The folder of a pod's volume: what the API says of the volume, and which plugin of the kubelet mounted it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use berth_api::velero::PodReference;
use berth_core::pod_volume::{Backing, folder, plugin};
use berth_core::volume::NEVER;
use berth_pod_volumes::{Folder, descend};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::Client;
use kube::api::Api;

/// What the kubelet calls the folder in which its plugins mount the volumes of a pod.
const VOLUMES: &str = "volumes";
/// A CSI driver serves the volumes of the plugin that is named by it.
const MIGRATED: &str = "pv.kubernetes.io/migrated-to";

/// A volume that is mounted.
pub struct Found {
    pub folder: Folder,
    /// As people see it.
    pub path: PathBuf,
    pub claim_uid: Option<String>,
}

/// # Errors
/// With why there is no folder to read or to write.
pub async fn find(client: &Client, pods: &Path, pod: &PodReference, name: &str) -> anyhow::Result<Found> {
    let (Some(namespace), Some(pod_name)) = (&pod.namespace, &pod.name) else {
        bail!("spec.pod names no pod");
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(pod_name).await.context("the pod cannot be read")?;
    let found = found.with_context(|| format!("there is no pod {namespace}/{pod_name}"))?;
    let uid = found.metadata.uid.clone().unwrap_or_default();
    let is_it = pod.uid.as_ref().is_none_or(|wanted| wanted.is_empty() || *wanted == uid);
    ensure!(is_it, "pod {namespace}/{pod_name} is another one by now");
    let volumes = found.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume.name == name);
    let volume = volume.with_context(|| format!("pod {namespace}/{pod_name} has no volume {name}"))?;
    let kind = kind(volume)?;
    if let Some(never) = kind.filter(|kind| NEVER.contains(&kind.as_str())) {
        bail!("files of {never} volumes are not taken");
    }
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
    let pods = pods.to_owned();
    let looked = tokio::task::spawn_blocking(move || look(&pods, &uid, &parts)).await?;
    let (folder, path) = looked.with_context(|| format!("volume {name} of pod {namespace}/{pod_name}"))?;
    Ok(Found { folder, path, claim_uid })
}

/// What the volume is: the one field beside its name.
fn kind(volume: &Volume) -> anyhow::Result<Option<String>> {
    let fields = serde_json::to_value(volume)?;
    let fields = fields.as_object().into_iter().flatten();
    Ok(fields.map(|(key, _)| key.clone()).find(|key| key != "name"))
}

fn claim_of(volume: &Volume, pod: &str) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name)))
}

/// The folder of a claim's volume, and the UID of the claim.
async fn persistent(
    client: &Client,
    namespace: &str,
    claim: &str,
) -> anyhow::Result<(Vec<String>, String)> {
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

/// Opens `UID/volumes/PLUGIN/PARTS` below the folder of all pods. No link leads out of it.
fn look(pods: &Path, uid: &str, parts: &[String]) -> anyhow::Result<(Folder, PathBuf)> {
    let volumes = Path::new(uid).join(VOLUMES);
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('/');
    let parts_are_plain = parts.iter().all(|part| is_plain(part)) && is_plain(uid);
    ensure!(parts_are_plain, "a name in its path is none that a folder can have");
    let plugins = descend(pods, &volumes)
        .and_then(|folder| folder.names())
        .with_context(|| format!("{} cannot be read", pods.join(&volumes).display()))?;
    let candidates = plugins.iter().filter_map(|plugin: &OsString| {
        let path = parts.iter().fold(volumes.join(plugin), |path, part| path.join(part));
        Some((descend(pods, &path).ok()?, pods.join(path)))
    });
    Ok(plugin(candidates)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_found_below_whichever_plugin_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for path in ["u/volumes/kubernetes.io~csi/pv/mount", "u/volumes/kubernetes.io~empty-dir/tmp", "out/x"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::os::unix::fs::symlink(at("out"), at("u/volumes/kubernetes.io~empty-dir/link")).unwrap();
        let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let path = |of: &[&str]| look(root.path(), "u", &parts(of)).map(|(_, path)| path).ok();
        assert_eq!(path(&["pv", "mount"]), Some(at("u/volumes/kubernetes.io~csi/pv/mount")));
        assert_eq!(path(&["tmp"]), Some(at("u/volumes/kubernetes.io~empty-dir/tmp")));
        for wrong in [&["link"][..], &["link", "x"], &["none"], &["..", "out"], &["../../../out"], &[""]] {
            assert_eq!(path(wrong), None, "{wrong:?}");
        }
        assert!(look(root.path(), "..", &parts(&["tmp"])).is_err());
    }
}
