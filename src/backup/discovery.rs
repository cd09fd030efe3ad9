//! Which types this cluster serves, and its version. Types are asked for at each backup: a definition created a
//! moment ago counts. What has not changed since the last time is not sent again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::selection::ResourceType;
use http::{StatusCode, header};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use kube::core::discovery::v2::APIResourceDiscovery;
use kube::core::discovery::v2::{ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscovery, APIGroupDiscoveryList};
use parking_lot::Mutex;

use super::log::{About, BackupLog};

/// A server is not upgraded more often.
const VERSION_LASTS: Duration = Duration::from_secs(60);

/// Asks, and remembers the answers by the tags that the server gave them.
pub struct Discovery {
    client: Client,
    core: Document,
    groups: Document,
    version: Mutex<Option<(Instant, Info)>>,
}

/// One document of aggregated discovery, as it was last seen.
struct Document {
    path: &'static str,
    seen: Mutex<Option<(http::HeaderValue, Arc<APIGroupDiscoveryList>)>>,
}

impl Discovery {
    pub fn new(client: Client) -> Self {
        let document = |path| Document { path, seen: Mutex::default() };
        Self { client, core: document("/api"), groups: document("/apis"), version: Mutex::default() }
    }

    /// Types that can be listed, got, created and deleted, in their preferred versions: pods, claims and volumes
    /// first, then as the server orders them.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn types(&self, log: &BackupLog) -> Result<Vec<ResourceType>, kube::Error> {
        let (core, groups) = tokio::try_join!(self.core.read(&self.client), self.groups.read(&self.client))?;
        // A server without aggregated discovery answers with another document, which reads as "no groups at all".
        if core.items.is_empty() || groups.items.is_empty() {
            return one_by_one(&self.client, log).await;
        }
        let mut found: Vec<ResourceType> =
            core.items.iter().chain(&groups.items).flat_map(|g| of_group(g, log)).collect();
        found.sort_by_key(|kind| match (kind.group.as_str(), kind.resource.as_str()) {
            ("", "pods") => 0,
            ("", "persistentvolumeclaims") => 1,
            ("", "persistentvolumes") => 2,
            _ => 3,
        });
        Ok(found)
    }

    /// The server's version, at most a minute old.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn version(&self) -> Result<Info, kube::Error> {
        let known = self.version.lock().clone();
        if let Some((_, info)) = known.filter(|(at, _)| at.elapsed() < VERSION_LASTS) {
            return Ok(info);
        }
        let info = self.client.apiserver_version().await?;
        *self.version.lock() = Some((Instant::now(), info.clone()));
        Ok(info)
    }
}

impl Document {
    async fn read(&self, client: &Client) -> Result<Arc<APIGroupDiscoveryList>, kube::Error> {
        let seen = self.seen.lock().clone();
        let mut request =
            http::Request::get(self.path).header(header::ACCEPT, ACCEPT_AGGREGATED_DISCOVERY_V2);
        if let Some((tag, _)) = &seen {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let answer = client.send(request.body(Body::empty()).map_err(kube::Error::HttpError)?).await?;
        let status = answer.status();
        if let Some((_, document)) = seen.filter(|_| status == StatusCode::NOT_MODIFIED) {
            return Ok(document);
        }
        let tag = answer.headers().get(header::ETAG).cloned();
        let body = answer.into_body().collect_bytes().await?;
        if !status.is_success() {
            let refused =
                Status { code: status.as_u16(), message: self.path.to_owned(), ..Status::default() };
            return Err(kube::Error::Api(Box::new(refused)));
        }
        let document: Arc<APIGroupDiscoveryList> =
            Arc::new(serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?);
        *self.seen.lock() = tag.map(|tag| (tag, Arc::clone(&document)));
        Ok(document)
    }
}

fn of_group(group: &APIGroupDiscovery, log: &BackupLog) -> Vec<ResourceType> {
    let name = group.metadata.as_ref().and_then(|m| m.name.clone()).unwrap_or_default();
    let mut found: Vec<ResourceType> = Vec::new();
    // The first version is the preferred one; a type that only a later one serves is taken from there.
    for version in &group.versions {
        if version.freshness.as_deref() == Some("Stale") {
            let version = version.version.as_deref().unwrap_or_default();
            log.warning(
                &About::Cluster,
                "",
                &format!("discovery of {name}/{version} is out of date: its server did not answer"),
            );
        }
        for resource in &version.resources {
            if let Some(kind) = of_resource(&name, version.version.as_deref().unwrap_or_default(), resource)
                && !found.iter().any(|known| known.resource == kind.resource)
            {
                found.push(kind);
            }
        }
    }
    found
}

fn of_resource(group: &str, version: &str, resource: &APIResourceDiscovery) -> Option<ResourceType> {
    let can = |verb: &str| resource.verbs.iter().any(|known| known == verb);
    if !["list", "get", "create", "delete"].into_iter().all(can) {
        return None;
    }
    Some(ResourceType {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: resource.response_kind.as_ref().and_then(|kind| kind.kind.clone())?,
        resource: resource.resource.clone()?,
        singular: resource.singular_resource.clone().unwrap_or_default(),
        short_names: resource.short_names.clone(),
        namespaced: resource.scope.as_deref() == Some("Namespaced"),
    })
}

/// The old way: a request per group version. A group that fails is an error in the log, not the end.
async fn one_by_one(client: &Client, log: &BackupLog) -> Result<Vec<ResourceType>, kube::Error> {
    let mut lists = vec![("v1".to_owned(), client.list_core_api_resources("v1").await?)];
    for group in client.list_api_groups().await?.groups {
        let Some(preferred) = group.preferred_version.or_else(|| group.versions.first().cloned()) else {
            continue;
        };
        match client.list_api_group_resources(&preferred.group_version).await {
            Ok(list) => lists.push((preferred.group_version, list)),
            Err(error) => {
                log.error(
                    &About::Cluster,
                    "",
                    &format!("discovery of {} failed: {error}", preferred.group_version),
                );
            }
        }
    }
    let mut found = Vec::new();
    for (group_version, list) in lists {
        let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
        for resource in list.resources.into_iter().filter(|r| !r.name.contains('/')) {
            let as_new = APIResourceDiscovery {
                resource: Some(resource.name),
                response_kind: Some(kube::core::discovery::v2::GroupVersionKind {
                    kind: Some(resource.kind),
                    ..Default::default()
                }),
                scope: Some(if resource.namespaced { "Namespaced" } else { "Cluster" }.to_owned()),
                singular_resource: Some(resource.singular_name),
                verbs: resource.verbs,
                short_names: resource.short_names.unwrap_or_default(),
                ..Default::default()
            };
            found.extend(of_resource(group, version, &as_new));
        }
    }
    Ok(found)
}
