//! Decides on which nodes the pod of a data mover may run: collects everything that one decision
//! needs.

use std::sync::Arc;

use berth_core::affinity::{AffinityDecision, AffinityInput, MoverOperation, VolumeBindingMode, decide};
use berth_core::mover::MoverKind;
use berth_core::mover::placement::{MoverRef, PodConstraints};

use super::volumes::MoverVolumes;
use super::{NodeCache, node_cache};

/// Decides about mover pods.
pub struct Placing {
    pub node_cache: Arc<NodeCache>,
    pub volumes: MoverVolumes,
}

impl Placing {
    /// Returns `None` if no rules are configured.
    ///
    /// # Errors
    /// Why the volume is not known: the pod stays as it is.
    pub async fn decide(
        &self,
        mover: &MoverRef<'_>,
        pod: &PodConstraints,
    ) -> Result<Option<AffinityDecision>, String> {
        let is_idle = |state: &node_cache::NodeCacheState| {
            state.configuration.config.load_affinity.is_empty()
                && state.configuration.config.load_tolerations.is_empty()
                && !state.agents_outdated()
        };
        if self.node_cache.read(is_idle) {
            return Ok(None);
        }
        match mover.kind {
            MoverKind::DataUpload => self.upload(mover, pod).await,
            MoverKind::DataDownload => self.download(mover, pod).await,
            MoverKind::PodVolumeBackup | MoverKind::PodVolumeRestore => {
                let Some(node) = pod.node.as_deref() else { return Ok(None) };
                Ok(Some(self.judge(pod, MoverOperation::PodVolume { class: None, node }, false)))
            }
        }
    }

    async fn upload(
        &self,
        mover: &MoverRef<'_>,
        pod: &PodConstraints,
    ) -> Result<Option<AffinityDecision>, String> {
        let upload = self.volumes.upload(mover.name, mover.uid).await?;
        if upload.uid != mover.uid {
            return Ok(None);
        }
        let claim_class = self.volumes.class(&self.volumes.namespace, mover.name).await?;
        let mapped_class = self.node_cache.read(|state| {
            let source = upload.source_class.as_deref()?;
            state.configuration.config.mapped_class(source).map(str::to_owned)
        });
        // The topology of the volume is needed only to separate it from what a node-agent may have
        // chosen by an older configuration.
        let (outdated, waits) = self.node_cache.read(|state| {
            let class = upload.source_class.as_deref().and_then(|class| state.classes.get(class));
            (
                state.agents_outdated(),
                class.map(|class| class.binding == VolumeBindingMode::WaitForFirstConsumer),
            )
        });
        let topology = match (outdated, waits) {
            (true, Some(true)) => self.volumes.topology(&upload).await.ok(),
            (true, Some(false)) => Some(Vec::new()),
            // The class is not known here, so neither is the topology of its volumes.
            (true, None) | (false, _) => None,
        };
        Ok(Some(self.judge(
            pod,
            MoverOperation::Backup {
                claim_class: claim_class.as_deref(),
                mapped_class: mapped_class.as_deref(),
                source_class: upload.source_class.as_deref(),
                topology: topology.as_deref(),
            },
            upload.own,
        )))
    }

    async fn download(
        &self,
        mover: &MoverRef<'_>,
        pod: &PodConstraints,
    ) -> Result<Option<AffinityDecision>, String> {
        let download = self.volumes.download(mover.name, mover.uid).await?;
        if download.uid != mover.uid {
            return Ok(None);
        }
        let class = self.volumes.class(&download.namespace, &download.claim).await?;
        let (binding, ignore_delay_binding) = self.node_cache.read(|state| {
            let class = class.as_deref().and_then(|class| state.classes.get(class));
            (
                class.map_or(VolumeBindingMode::Immediate, |class| class.binding),
                state.configuration.config.ignore_delay_binding,
            )
        });
        Ok(Some(self.judge(
            pod,
            MoverOperation::Restore {
                class: class.as_deref(),
                binding,
                ignore_delay_binding,
                selected_node: pod.selected_node.as_deref(),
            },
            download.own,
        )))
    }

    /// `own`: a pod of berth's, which needs no node-agent on its node.
    fn judge(&self, pod: &PodConstraints, operation: MoverOperation<'_>, own: bool) -> AffinityDecision {
        self.node_cache.read(|state| {
            let config = &state.configuration.config;
            decide(&AffinityInput {
                operation,
                rules: &config.load_affinity,
                toleration_rules: &config.load_tolerations,
                terms: &pod.terms,
                tolerations: &pod.tolerations,
                agents_outdated: state.agents_outdated() && !own,
                nodes: Some(&state.nodes).filter(|_| !own),
            })
        })
    }
}
