//! Aggregated API servers, which keep types of the cluster outside the API server's own store.

use std::collections::HashSet;

use berth_core::selection::ResourceType;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, ListParams};

use super::list::{ListError, Lister};

/// The API server labels the APIServices of its own types and of definitions, and removes any other
/// that has this label.
const OF_OTHERS: &str = "!kube-aggregator.kubernetes.io/automanaged";

/// Names of the APIServices of aggregated servers; `None`: they cannot be listed.
///
/// # Errors
/// When the API server itself is gone.
pub async fn aggregated(
    client: &Client,
    lister: &Lister,
    types: &[ResourceType],
) -> Result<Option<HashSet<String>>, ListError> {
    let is_of_services =
        |kind: &ResourceType| kind.group == "apiregistration.k8s.io" && kind.resource == "apiservices";
    if !types.iter().any(is_of_services) {
        // Without the aggregation layer there are none.
        return Ok(Some(HashSet::new()));
    }
    let api: Api<APIService> = Api::all(client.clone());
    // From the cache, because nobody adds servers from one second to the next.
    let params = ListParams::default().match_any().labels(OF_OTHERS);
    match lister.patiently("apiservices", || api.list_metadata(&params)).await {
        Ok(list) => Ok(Some(list.items.into_iter().filter_map(|service| service.metadata.name).collect())),
        Err(error) if error.is_about_type() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use berth_test_scripted::{Scripted, get};
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;

    fn api_services() -> ResourceType {
        ResourceType {
            group: "apiregistration.k8s.io".to_owned(),
            version: "v1".to_owned(),
            kind: "APIService".to_owned(),
            resource: "apiservices".to_owned(),
            singular: String::new(),
            short_names: Vec::new(),
            namespaced: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_servers_are_known_by_their_api_services() {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices";
        let types = [api_services()];
        let service = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "v1.far.example.com"},
        });
        let all = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "5"}, "items": [service],
        });
        let api = Scripted::new().next(get(path).from("0").answers(all)).next(get(path).refuses(403));
        let client = api.client("velero");
        let lister = Lister::new(client.clone(), 500, Duration::ZERO, Arc::new(Semaphore::new(1)));
        let known = aggregated(&client, &lister, &types).await.unwrap();
        assert_eq!(known, Some(HashSet::from(["v1.far.example.com".to_owned()])));
        assert_eq!(aggregated(&client, &lister, &types).await.unwrap(), None);
        // Where nobody serves such a type there is nobody else.
        assert_eq!(aggregated(&client, &lister, &[]).await.unwrap(), Some(HashSet::new()));
    }
}
