//! Who serves the types of the cluster: the API server by itself, or aggregated servers, which keep
//! theirs outside its own store.

use std::collections::HashSet;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};

use super::list::{ListError, Lister};

/// The API server labels the APIServices of its own types and of definitions, and removes any other
/// that has this label.
const OF_ITSELF: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The APIServices of a cluster, one for each group version, named `VERSION.GROUP`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ApiServices {
    pub all: HashSet<String>,
    pub aggregated: HashSet<String>,
}

/// `None`: they cannot be listed.
///
/// # Errors
/// When the API server itself is gone.
pub async fn api_services(client: &Client, lister: &Lister) -> Result<Option<ApiServices>, ListError> {
    let api: Api<APIService> = Api::all(client.clone());
    // From the cache, because nobody adds servers from one second to the next.
    let params = ListParams::default().match_any();
    let list = match lister.patiently("apiservices", || api.list_metadata(&params)).await {
        Ok(list) => list,
        // Without the aggregation layer there are none.
        Err(error) if error.code() == Some(404) => return Ok(Some(ApiServices::default())),
        Err(error) if error.is_about_type() => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut services = ApiServices::default();
    for service in list.items {
        let name = service.name_any();
        if !service.labels().contains_key(OF_ITSELF) {
            services.aggregated.insert(name.clone());
        }
        services.all.insert(name);
    }
    Ok(Some(services))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use berth_test_scripted::{Scripted, get, list};
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_servers_are_known_by_their_api_services() {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices";
        let service = |name: &str, labels: serde_json::Value| {
            json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": name, "labels": labels},
            })
        };
        let both = [
            service("v1.far.example.com", json!({})),
            service("v1.near.example.com", json!({OF_ITSELF: "true"})),
        ];
        let api = Scripted::new()
            .next(get(path).from("0").answers(list("5", &both)))
            .next(get(path).refuses(403))
            .next(get(path).refuses(404));
        let client = api.client("velero");
        let lister = Lister::new(client.clone(), 500, Duration::ZERO, Arc::new(Semaphore::new(1)));
        let known = api_services(&client, &lister).await.unwrap().unwrap();
        let far = HashSet::from(["v1.far.example.com".to_owned()]);
        assert_eq!((known.all.len(), known.aggregated), (2, far));
        assert_eq!(api_services(&client, &lister).await.unwrap(), None);
        assert_eq!(api_services(&client, &lister).await.unwrap(), Some(ApiServices::default()));
    }
}
