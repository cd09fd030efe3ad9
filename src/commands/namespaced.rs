//! A client for the namespace of the Backups, and the Lease of the berth that leads there.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;

use crate::leader::LEASE;

/// The namespace of the Backups, and its client.
pub struct NamespacedClient {
    pub client: Client,
    pub namespace: String,
}

/// The Lease of the leader, for whoever may read it.
pub async fn lease(client: &Client, namespace: &str) -> Option<Lease> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    leases.get_opt(LEASE).await.ok().flatten()
}
