//! The pod whose volume a PodVolumeRestore is for: it is carried on that one's node.

use berth_api::velero::PodReference;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;

/// What holds a pod until its volumes are restored; the older name, too.
const WAITS: [&str; 2] = ["restore-wait", "restic-wait"];

/// Its node, as soon as it waits there for the restore: before, no node-agent accepts it.
///
/// # Errors
/// When the API server does not tell.
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

fn waits(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    containers.into_iter().flatten().any(|container| {
        WAITS.contains(&container.name.as_str())
            && container.state.as_ref().is_some_and(|state| state.running.is_some())
    })
}
