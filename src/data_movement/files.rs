//! The pod that reads or restores the files of a pod's volume: on the node of that pod, with the
//! folder of that pod's volumes and nothing else of the node.

use berth_api::velero::PodReference;
use berth_core::mover::MoverKind;
use berth_core::pod_volume::target::folderless;
use kube::ResourceExt as _;

use super::pod::{NodeVolumes, PodPlace};
use super::{Item, OwnMovements, Unmade};
use crate::node_agent::volume::{NamedPodError, named};
use crate::text::chain;

/// An annotation of pods that stand for a static pod of their node.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl OwnMovements {
    /// `pod`: the pod that has the volume. Node and folder follow from what the API server says of
    /// that pod, because whoever may write the object chooses what stands in its spec.
    pub(super) async fn for_files(
        &self,
        item: &Item,
        pod: Option<&PodReference>,
    ) -> Result<PodPlace, Unmade> {
        // Its data path is one of the node that its object names.
        let node = item.mover.bound_node.clone().unwrap_or_default();
        let found = named(self.client(), &pod.cloned().unwrap_or_default(), &node).await;
        let found = found.map_err(|error| match error {
            NamedPodError::Call(_) => Unmade::Later(chain(&error)),
            NamedPodError::Absent(why) => Unmade::Never(why),
        })?;
        let of = format!("pod {}/{}", found.namespace().unwrap_or_default(), found.name_any());
        let phase = found.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let is_going = found.metadata.deletion_timestamp.is_some();
        if let Some(why) = folderless(phase, is_going, found.annotations().contains_key(MIRROR)) {
            return Err(Unmade::Never(format!("{of} {why}")));
        }
        let found_uid = found.metadata.uid.unwrap_or_default();
        let is_plain = |one: char| one.is_ascii_alphanumeric() || one == '-';
        if found_uid.is_empty() || !found_uid.chars().all(is_plain) {
            return Err(Unmade::Never(format!("{of} has a UID of which no path can be made")));
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
