//! Where the pod of a movement may run.

use berth_api::mover_pod::{term, write_term, write_toleration};
use berth_core::affinity::{AffinityInput, MoverOperation, Term, VolumeBindingMode, decide};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};
use kube::api::Api;

use super::pod::PodPlace;
use super::{OwnMovements, Unmade};

impl OwnMovements {
    /// Adds the conditions of `loadAffinity` and `loadTolerations`. The webhook for pods would do
    /// the same, and then changes nothing, but pods are also created while the webhook does not
    /// answer.
    pub(super) fn placed(&self, operation: MoverOperation<'_>, place: PodPlace) -> PodPlace {
        let terms: Vec<Term> = place.terms.iter().map(term).collect();
        let decision = self.node_cache.read(|state| {
            let config = &state.configuration.config;
            decide(&AffinityInput {
                operation,
                rules: &config.load_affinity,
                toleration_rules: &config.load_tolerations,
                terms: &terms,
                tolerations: &[],
                agents_outdated: false,
                // The pods of berth's own movements need no node-agent on their nodes.
                nodes: None,
            })
        });
        PodPlace {
            terms: decision.terms.map_or(place.terms, |terms| terms.iter().map(write_term).collect()),
            tolerations: decision.tolerations.iter().map(write_toleration).collect(),
            ..place
        }
    }

    pub(super) fn binding(&self, class: &str) -> VolumeBindingMode {
        let binding = self.node_cache.read(|state| state.classes.get(class).map(|class| class.binding));
        binding.unwrap_or(VolumeBindingMode::Immediate)
    }

    pub(super) fn waits(&self, class: &str) -> bool {
        self.binding(class) == VolumeBindingMode::WaitForFirstConsumer
    }

    pub(super) async fn topology(&self, volume: &str) -> Result<Vec<NodeSelectorTerm>, Unmade> {
        let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
        let what = "the volume that is backed up cannot be read";
        let found = volumes.get_opt(volume).await.map_err(Unmade::call(what))?;
        let affinity = found.and_then(|volume| volume.spec?.node_affinity?.required);
        Ok(affinity.map(|required| required.node_selector_terms).unwrap_or_default())
    }
}
