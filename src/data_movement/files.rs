//! The pod that reads or restores the files of a pod's volume: on the node of that pod, with the
//! folder of that pod's volumes and nothing else of the node.

use berth_api::velero::PodReference;
use berth_core::mover::MoverKind;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;

use super::make::empty;
use super::pod::{NodeVolumes, PodPlace};
use super::{Item, OwnMovements, Unmade};

/// An annotation of pods that stand for a static pod of their node. The folder of that one is named
/// after another UID.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl OwnMovements {
    /// `pod`: the pod that has the volume. Node and folder follow from what the API server says of
    /// that pod, because whoever may write the object chooses what stands in its spec.
    pub(super) async fn for_files(
        &self,
        item: &Item,
        pod: Option<&PodReference>,
    ) -> Result<PodPlace, Unmade> {
        let PodReference { namespace, name, uid } = pod.cloned().unwrap_or_default();
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        if namespace.is_empty() || name.is_empty() {
            return Err(empty("spec.pod"));
        }
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), &namespace);
        let what = "the pod that has the volume cannot be read";
        let found = pods.get_opt(&name).await.map_err(Unmade::call(what))?;
        let of = format!("pod {namespace}/{name}");
        let found = found.ok_or_else(|| Unmade::Never(format!("there is no {of}")))?;
        let folderless = folderless(&found);
        let found_uid = found.metadata.uid.unwrap_or_default();
        if uid.is_some_and(|uid| !uid.is_empty() && uid != found_uid) {
            return Err(Unmade::Never(format!("{of} is another one by now")));
        }
        if let Some(why) = folderless {
            return Err(Unmade::Never(format!("{of} {why}")));
        }
        let is_plain = |one: char| one.is_ascii_alphanumeric() || one == '-';
        if found_uid.is_empty() || !found_uid.chars().all(is_plain) {
            return Err(Unmade::Never(format!("{of} has a UID of which no path can be made")));
        }
        // Its data path is one of the node that its object names.
        let node = item.mover.bound_node.clone().unwrap_or_default();
        if node.is_empty() || found.spec.and_then(|spec| spec.node_name).as_ref() != Some(&node) {
            return Err(Unmade::Never(format!("{of} is not on node {node:?}")));
        }
        let folder = self.host_pods.join(&found_uid).join("volumes").display().to_string();
        Ok(PodPlace {
            node: Some(node),
            node_volumes: Some(NodeVolumes { folder, pod: found_uid }),
            is_read_only: item.mover.kind == MoverKind::PodVolumeBackup,
            ..PodPlace::default()
        })
    }
}

/// Why the node has no folder of the volumes of this pod, or not for long. A pod that mounts what
/// is not there is never started, and would take a data path until its time is over.
fn folderless(pod: &Pod) -> Option<&'static str> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Some("has ended");
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted");
    }
    let is_mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
    is_mirror.then_some("is a static pod of its node, of whose volumes no files are taken by data mover pods")
}
