//! The pod whose volume a PodVolumeRestore restores: the restore runs on the node of that pod.

use berth_api::velero::PodReference;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;

/// Names of the init container that waits until the volumes of a pod are restored; the second is
/// the older name.
const WAITS: [&str; 2] = ["restore-wait", "restic-wait"];

/// The node of the pod, once the pod waits there for the restore, because no node-agent accepts the
/// restore before.
///
/// # Errors
/// The API server cannot be read.
pub async fn node(client: &Client, pod: &PodReference) -> Result<Option<String>, kube::Error> {
    let PodReference { namespace: Some(namespace), name: Some(name), uid } = pod else { return Ok(None) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let is_it = |found: &Pod| {
        let uid = uid.as_ref().filter(|uid| !uid.is_empty());
        uid.is_none_or(|uid| found.metadata.uid.as_ref() == Some(uid))
    };
    let found = pods.get_opt(name).await?;
    Ok(found.filter(is_it).filter(waits).and_then(|pod| pod.spec?.node_name))
}

/// Does the pod wait for the restores of its volumes?
pub fn waits(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    containers.into_iter().flatten().any(|container| {
        WAITS.contains(&container.name.as_str())
            && container.state.as_ref().is_some_and(|state| state.running.is_some())
    })
}
