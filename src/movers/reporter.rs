//! Reports faults of the node-agents' configuration, and pods that were created while no webhook
//! answered.

use std::collections::HashSet;
use std::sync::Arc;

use berth_api::mover_pod::{constraints, owner};
use berth_api::node_agent;
use berth_core::mover::grant::Mover;
use berth_core::mover::placement::MoverRef;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::node_cache::NodeCacheState;
use super::objects::reference;
use super::placing::Placing;
use crate::events::{EventReason, Events};
use crate::metrics::MoverMetrics;
use crate::watch::{WatchEvent, of_namespace, reflect};

/// Label of the pods of both kinds that the scheduler places.
const PLACED: &str = "velero.io/exposer-pod-group";
/// Size of the queue. Pods beyond it are checked later or not at all, because they are checked one
/// by one.
const WAITING: usize = 256;

/// Faults of the current configuration, including unknown StorageClasses.
pub fn faults(state: &NodeCacheState) -> Vec<String> {
    let mut faults = state.configuration.faults.clone();
    if !state.configuration.unusable {
        faults.append(node_agent::check_classes(&state.configuration.config, &state.reclaim_policies()));
    }
    faults.iter().map(ToString::to_string).collect()
}

/// Reports every new set of faults, as an Event on the ConfigMap and in the log. Never returns.
pub async fn configuration(placing: &Placing, namespace: &str, events: &Events, metrics: &MoverMetrics) {
    let mut changed = placing.node_cache.changed();
    let mut told: Vec<String> = Vec::new();
    loop {
        if placing.node_cache.is_synced() {
            let (found, about, unusable) = placing.node_cache.read(|state| {
                let configuration = &state.configuration;
                (faults(state), configuration.reference(namespace), configuration.unusable)
            });
            metrics.configuration_faults.set(i64::try_from(found.len()).unwrap_or(i64::MAX));
            metrics.configuration_rejected.set(i64::from(unusable));
            if found != told {
                let use_ = if unusable { "not in use; the last good one is: " } else { "in use, but: " };
                for fault in found.iter().filter(|fault| !told.contains(fault)) {
                    warn!(configmap = about.name, %fault, "the node-agents' configuration is faulty");
                }
                if !found.is_empty() {
                    let note = format!("{use_}{}", found.join("; "));
                    events.tell_about(EventReason::ConfigurationRejected, about, note);
                } else {
                    info!("the node-agents' configuration is in order");
                }
                told = found;
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Checks every pod of a data mover that is created from now on, because a webhook should have been
/// called for it. Never returns.
pub async fn missed(
    client: &Client,
    namespace: &str,
    placing: &Placing,
    events: &Events,
    metrics: &MoverMetrics,
) {
    let began = Timestamp::now();
    let (waiting, mut created) = mpsc::channel::<Arc<Pod>>(WAITING);
    let seen = std::cell::RefCell::new(HashSet::new());
    let watching = reflect(
        of_namespace(client, namespace),
        watcher::Config::default().labels(PLACED),
        |pod: Pod| Arc::new(pod),
        |change| {
            let note = |pod: Arc<Pod>| {
                let is_new = pod.creation_timestamp().is_some_and(|at| at.0 >= began);
                if is_new && seen.borrow_mut().insert(pod.uid()) {
                    // A full queue means that hundreds were created at once: the report about the
                    // others suffices.
                    let _ = waiting.try_send(pod);
                }
            };
            match change {
                WatchEvent::Replaced(all) => {
                    let there: HashSet<_> = all.iter().map(|pod| pod.uid()).collect();
                    seen.borrow_mut().retain(|uid| there.contains(uid));
                    all.into_iter().for_each(note);
                }
                WatchEvent::Applied(pod) => note(pod),
                WatchEvent::Deleted(_) => {}
            }
        },
    );
    let looking = async {
        while let Some(found) = created.recv().await {
            let Some(owner) = owner(&found.metadata) else { continue };
            let mover = MoverRef { kind: owner.kind, name: &owner.name, uid: &owner.uid };
            let Ok(Some(decision)) = placing.decide(&mover, &constraints(&found)).await else { continue };
            if decision.terms.is_none() && decision.tolerations.is_empty() {
                continue;
            }
            let (kind, name) = (owner.kind, &owner.name);
            warn!(%kind, %name, "the pod of a data mover was created while no webhook answered");
            metrics.missed.inc();
            let note = format!(
                "its pod was created while no webhook answered, and may run where Velero put it: by {} it would be elsewhere",
                decision.reason
            );
            let about = Mover::new(owner.kind, &*owner.name, &*owner.uid, began);
            events.tell_about(EventReason::MissedAffinity, reference(namespace, &about), note);
        }
    };
    tokio::join!(watching, looking);
}
