//! Which types this cluster serves, asked afresh for each backup: a definition created a moment ago counts.

use berth_core::selection::ResourceType;
use kube::Client;
use kube::core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery};

use super::log::{About, BackupLog};

/// Types that can be listed, got, created and deleted, in their preferred versions: pods, claims and volumes
/// first, then as the server orders them.
///
/// # Errors
/// When the API server does not answer.
pub async fn types(client: &Client, log: &BackupLog) -> Result<Vec<ResourceType>, kube::Error> {
    let (core, groups) =
        tokio::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated())?;
    // A server without aggregated discovery answers with another document, which reads as "no groups at all".
    if core.items.is_empty() || groups.items.is_empty() {
        return one_by_one(client, log).await;
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
