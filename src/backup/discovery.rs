//! Which types this cluster serves, and its version. Types are read at each backup, because a
//! definition created a moment ago counts. What has not changed since the last time is not sent
//! again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::selection::ResourceType;
use futures::StreamExt as _;
use http::{StatusCode, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use kube::core::discovery::v2::APIResourceDiscovery;
use kube::core::discovery::v2::{ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscovery, APIGroupDiscoveryList};
use parking_lot::Mutex;

use super::log::{BackupLog, ResultsHeading};
use super::reading::ReadRetries;
use crate::text::chain;

/// How long the version is cached; a server is not upgraded more often.
const VERSION_LASTS: Duration = Duration::from_secs(60);
/// Concurrent requests to a server without aggregated discovery.
const REQUESTS_AT_ONCE: usize = 8;
/// Groups whose objects are computed and not stored, so no backup can miss them.
const MEASUREMENTS: [&str; 3] = ["metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io"];

/// What a cluster serves.
pub struct ServedTypes {
    pub types: Vec<ResourceType>,
    pub unknown: Vec<Unknown>,
}

/// A version of an API group whose server does not answer which types it has, and did not answer
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub group: String,
    pub version: String,
    pub why: String,
}

impl Unknown {
    /// Whether a backup that takes all types may miss objects of this group.
    pub fn may_hold_objects(&self) -> bool {
        !MEASUREMENTS.contains(&self.group.as_str())
    }
}

/// Reads the discovery documents and caches them by the ETags that the server gave them.
pub struct Discovery {
    client: Client,
    core: DiscoveryDocument,
    groups: DiscoveryDocument,
    version: Mutex<Option<(Instant, Info)>>,
}

/// One document of aggregated discovery, as it was last read.
struct DiscoveryDocument {
    path: &'static str,
    seen: Mutex<Option<(http::HeaderValue, Arc<APIGroupDiscoveryList>)>>,
}

impl Discovery {
    pub fn new(client: Client) -> Self {
        let document = |path| DiscoveryDocument { path, seen: Mutex::default() };
        Self { client, core: document("/api"), groups: document("/apis"), version: Mutex::default() }
    }

    /// Types that can be listed, got, created and deleted, in their preferred versions: pods,
    /// claims and volumes first, then in the server's order. `retry`: how long the server of one
    /// group is asked again, where each group is asked.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn types(&self, log: &BackupLog, retry: Duration) -> Result<ServedTypes, kube::Error> {
        let (core, groups) = tokio::try_join!(self.core.read(&self.client), self.groups.read(&self.client))?;
        // A server without aggregated discovery answers with another document, which parses as "no
        // groups at all".
        if core.items.is_empty() || groups.items.is_empty() {
            return one_by_one(&self.client, retry).await;
        }
        let mut served = ServedTypes { types: Vec::new(), unknown: Vec::new() };
        for group in core.items.iter().chain(&groups.items) {
            of_group(group, log, &mut served);
        }
        served.types.sort_by_key(|kind| match (kind.group.as_str(), kind.resource.as_str()) {
            ("", "pods") => 0,
            ("", "persistentvolumeclaims") => 1,
            ("", "persistentvolumes") => 2,
            _ => 3,
        });
        Ok(served)
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

impl DiscoveryDocument {
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

fn of_group(group: &APIGroupDiscovery, log: &BackupLog, served: &mut ServedTypes) {
    let name = group.metadata.as_ref().and_then(|m| m.name.clone()).unwrap_or_default();
    let mut found: Vec<ResourceType> = Vec::new();
    // The first version is the preferred one; a type that only a later version serves is taken from
    // there.
    for of_version in &group.versions {
        let version = of_version.version.as_deref().unwrap_or_default();
        let is_stale = of_version.freshness.as_deref() == Some("Stale");
        if is_stale && of_version.resources.is_empty() {
            let why = "its server does not answer".to_owned();
            served.unknown.push(Unknown { group: name.clone(), version: version.to_owned(), why });
        } else if is_stale {
            log.warning(
                &ResultsHeading::Cluster,
                "",
                &format!("discovery of {name}/{version} is out of date: its server did not answer"),
            );
        }
        for resource in &of_version.resources {
            if let Some(kind) = of_resource(&name, version, resource) {
                add(&mut found, kind);
            }
        }
    }
    served.types.append(&mut found);
}

/// Adds a type in the first version that serves it.
fn add(found: &mut Vec<ResourceType>, kind: ResourceType) {
    if !found.iter().any(|known| known.resource == kind.resource && known.group == kind.group) {
        found.push(kind);
    }
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

/// Legacy discovery: one request per group version.
async fn one_by_one(client: &Client, retry: Duration) -> Result<ServedTypes, kube::Error> {
    let core = client.list_core_api_resources("v1").await?;
    let versions: Vec<String> =
        client.list_api_groups().await?.groups.iter().flat_map(preferred_first).collect();
    let mut served = ServedTypes { types: Vec::new(), unknown: Vec::new() };
    add_all(&mut served.types, "v1", core);
    let mut lists = futures::stream::iter(versions)
        .map(|version| async move {
            let list = of_version(client, &version, retry).await;
            (version, list)
        })
        .buffered(REQUESTS_AT_ONCE);
    while let Some((group_version, list)) = lists.next().await {
        match list {
            Ok(list) => add_all(&mut served.types, &group_version, list),
            Err(why) => {
                let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
                served.unknown.push(Unknown { group: group.to_owned(), version: version.to_owned(), why });
            }
        }
    }
    Ok(served)
}

fn preferred_first(group: &APIGroup) -> Vec<String> {
    let mut known = HashSet::new();
    let versions = group.preferred_version.iter().chain(&group.versions);
    versions.map(|version| version.group_version.clone()).filter(|one| known.insert(one.clone())).collect()
}

/// Types of a group version, or why they cannot be read.
async fn of_version(client: &Client, version: &str, retry: Duration) -> Result<APIResourceList, String> {
    let mut patience = ReadRetries::new(retry);
    loop {
        match client.list_api_group_resources(version).await {
            Ok(list) => return Ok(list),
            Err(error) => patience.wait(version, error.into()).await.map_err(|error| chain(&error))?,
        }
    }
}

fn add_all(found: &mut Vec<ResourceType>, group_version: &str, list: APIResourceList) {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
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
        if let Some(kind) = of_resource(group, version, &as_new) {
            add(found, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};
    use serde_json::{Value, json};

    use super::*;

    fn resource(name: &str) -> Value {
        let verbs = json!(["create", "delete", "get", "list"]);
        json!({"name": name, "singularName": "", "namespaced": true, "kind": "Kind", "verbs": verbs})
    }

    fn resources(of: &str, names: &[&str]) -> Value {
        let resources: Vec<Value> = names.iter().map(|name| resource(name)).collect();
        json!({"kind": "APIResourceList", "groupVersion": of, "resources": resources})
    }

    fn names(served: &ServedTypes) -> Vec<String> {
        served.types.iter().map(|kind| format!("{}/{}", kind.api_version(), kind.resource)).collect()
    }

    /// A server without aggregated discovery.
    #[tokio::test(start_paused = true)]
    async fn a_type_that_only_a_later_version_serves_is_found_and_a_silent_group_is_told() {
        let version = |of: &str| json!({"groupVersion": of, "version": of.rsplit('/').next()});
        let group = |name: &str, versions: &[&str]| {
            let preferred = version(versions[0]);
            let versions: Vec<Value> = versions.iter().map(|of| version(of)).collect();
            json!({"name": name, "versions": versions, "preferredVersion": preferred})
        };
        let groups = [group("batch", &["batch/v1", "batch/v1beta1"]), group("dead", &["dead/v1"])];
        let api = Scripted::new()
            .always(get("/api").answers(json!({"kind": "APIVersions", "versions": ["v1"]})))
            .always(get("/apis").answers(json!({"kind": "APIGroupList", "groups": groups})))
            .once(get("/api/v1").answers(resources("v1", &["pods", "pods/log"])))
            .once(get("/apis/batch/v1").refuses(503))
            .once(get("/apis/batch/v1").answers(resources("batch/v1", &["jobs"])))
            .once(get("/apis/batch/v1beta1").answers(resources("batch/v1beta1", &["jobs", "cronjobs"])))
            .always(get("/apis/dead/v1").refuses(503));
        let discovery = Discovery::new(api.client("velero"));
        let log = BackupLog::new(String::new());
        let served = discovery.types(&log, Duration::from_secs(60)).await.unwrap();
        assert_eq!(names(&served), ["v1/pods", "batch/v1/jobs", "batch/v1beta1/cronjobs"]);
        let [unknown] = served.unknown.as_slice() else { panic!("{:?}", served.unknown) };
        assert_eq!((unknown.group.as_str(), unknown.version.as_str()), ("dead", "v1"));
        assert!(unknown.why.contains("503") && unknown.may_hold_objects(), "{unknown:?}");
    }

    #[test]
    fn a_stale_group_is_unknown_only_where_its_types_are() {
        let known = json!({
            "resource": "gadgets", "scope": "Namespaced", "responseKind": {"kind": "Gadget"},
            "verbs": ["create", "delete", "get", "list"],
        });
        let versions = json!([
            {"version": "v2", "freshness": "Stale", "resources": []},
            {"version": "v1", "freshness": "Stale", "resources": [known]},
        ]);
        let group = json!({"metadata": {"name": "example.com"}, "versions": versions});
        let group: APIGroupDiscovery = serde_json::from_value(group).unwrap();
        let log = BackupLog::new(String::new());
        let mut served = ServedTypes { types: Vec::new(), unknown: Vec::new() };
        of_group(&group, &log, &mut served);
        assert_eq!(names(&served), ["example.com/v1/gadgets"]);
        assert_eq!(served.unknown.iter().map(|one| one.version.as_str()).collect::<Vec<_>>(), ["v2"]);
        assert_eq!(log.counts().warnings, 1);
    }
}
