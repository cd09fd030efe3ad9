//! Uninstallation. Backups, locations and stores stay untouched; objects in use stay, and are
//! listed.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupStorageLocation};
use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::core::{DynamicObject, NamespaceResourceScope, PartialObjectMeta};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::apply::LISTS_AT_ONCE;
use super::{InstallCluster, Reference, member_objects};
use crate::certificates::{AUTHORITY, SECRET};
use crate::client::is_not_found;
use crate::leader::LEASE;
use crate::objects::{LEDGER, PART_OF, PART_OF_BERTH};

const LOOK: Duration = Duration::from_millis(100);
/// Objects of one page of a list, and pages that are looked at. What is behind them counts as
/// there, because whatever was not looked at must not be removed.
const PAGE: u32 = 500;
const PAGES: usize = 200;

/// Deletes one object. Returns whether it existed.
///
/// # Errors
/// When the API server refuses it.
pub async fn delete(cluster: &InstallCluster, reference: &Reference) -> anyhow::Result<bool> {
    let params =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    match reference.api(&cluster.client).delete(&reference.name, &params).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{reference} cannot be removed")),
    }
}

/// Waits until no pod of berth is left, because pods hand over their work before they end.
///
/// # Errors
/// When a pod is still there after `patience`.
pub async fn pods_gone(cluster: &InstallCluster, patience: Duration) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let labelled = ListParams::default().labels(&format!("{PART_OF}={PART_OF_BERTH}"));
    let waiting = async {
        while !api.list(&labelled).await.context("Pods cannot be listed")?.items.is_empty() {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(patience, waiting).await.unwrap_or_else(|_| {
        anyhow::bail!(
            "berth's pods are still there after {} s; run `berth uninstall` again when they have ended",
            patience.as_secs()
        )
    })
}

/// Waits until no controller pod is terminating: each first hands over its Backups and undoes what
/// their hooks began.
///
/// # Errors
/// When one is still there after `patience`.
pub async fn leaving_gone(cluster: &InstallCluster, patience: Duration) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let controllers = ListParams::default().labels("app.kubernetes.io/name=berth-controller");
    let waiting = async {
        loop {
            let pods = api.list(&controllers).await.context("Pods cannot be listed")?;
            if pods.items.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()) {
                return anyhow::Ok(());
            }
            sleep(LOOK).await;
        }
    };
    timeout(patience, waiting).await.unwrap_or_else(|_| {
        anyhow::bail!(
            "the previous controller is still there after {} s: it runs the hooks after pods, or lets its backups end where it has --drain-timeout; run the same command again when its pods have ended",
            patience.as_secs()
        )
    })
}

/// Removes berth's holds, which have no meaning without berth. Returns the released objects.
///
/// # Errors
/// When an object cannot be listed or written.
pub async fn release_holds(cluster: &InstallCluster) -> anyhow::Result<Vec<String>> {
    let (mut backups, locations) =
        futures::try_join!(release::<Backup>(cluster), release::<BackupStorageLocation>(cluster))?;
    backups.extend(locations);
    Ok(backups)
}

async fn release<K>(cluster: &InstallCluster) -> anyhow::Result<Vec<String>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let kind = K::kind(&());
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = match api.list_metadata(&ListParams::default()).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("{kind}s cannot be listed")),
    };
    let mut released = Vec::new();
    for object in found.items.iter().filter(|object| object.annotations().contains_key(keys::HOLD)) {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": {"annotations": {keys::HOLD: null}}});
        let name = object.name_any();
        match api.patch_metadata(&name, &params, &Patch::Merge(patch)).await {
            Ok(_) => released.push(format!("{} {name}", kind.to_lowercase())),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("{kind} {name} cannot be released")),
        }
    }
    Ok(released)
}

/// The Secret of the authority that cert-manager issues for berth, and keeps when the Certificate
/// is deleted.
pub fn authority(cluster: &InstallCluster) -> Reference {
    Reference::to::<Secret>(&cluster.namespace, "berth-webhook-ca")
}

/// The Secret of berth's own authority.
pub fn own_authority(cluster: &InstallCluster) -> Reference {
    Reference::to::<Secret>(&cluster.namespace, AUTHORITY)
}

/// Deletes what berth wrote while it ran: its Leases, its ledger, its keys; and the Secret with the
/// access to the hub.
///
/// # Errors
/// When an object cannot be deleted.
pub async fn delete_written(cluster: &InstallCluster) -> anyhow::Result<Vec<Reference>> {
    let namespace = &cluster.namespace;
    let mut written = vec![
        Reference::to::<Lease>(namespace, LEASE),
        Reference::to::<ConfigMap>(namespace, LEDGER),
        Reference::to::<Secret>(namespace, SECRET),
        own_authority(cluster),
        authority(cluster),
    ];
    written.extend(member_objects::written(cluster, None).await?);
    let mut deleted = Vec::new();
    for reference in written {
        if delete(cluster, &reference).await? {
            deleted.push(reference);
        }
    }
    Ok(deleted)
}

/// How many objects of a definition there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectCount {
    Exactly(usize),
    /// The list has more pages than are looked at.
    MoreThan(usize),
}

impl ObjectCount {
    pub fn is_none(self) -> bool {
        self == Self::Exactly(0)
    }
}

impl fmt::Display for ObjectCount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(out, "{count}"),
            Self::MoreThan(count) => write!(out, "more than {count}"),
        }
    }
}

/// Counts the objects of a definition in all namespaces.
///
/// # Errors
/// When they cannot be listed.
pub async fn instances(cluster: &InstallCluster, definition: &Reference) -> anyhow::Result<ObjectCount> {
    let object = match definition.api(&cluster.client).get_opt(&definition.name).await? {
        Some(object) => object,
        None => return Ok(ObjectCount::Exactly(0)),
    };
    let text =
        |pointer: &str| object.data.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
    let kind = Reference {
        api_version: format!("{}/{}", text("/spec/group"), text("/spec/versions/0/name")),
        kind: text("/spec/names/kind").to_owned(),
        namespace: None,
        name: String::new(),
    };
    let api = kind.api(&cluster.client);
    let mut count = 0;
    let counted = look_through(&api, |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    let counted = counted.await.with_context(|| format!("objects of {definition} cannot be listed"))?;
    Ok(match counted {
        LookOutcome::Cut => ObjectCount::MoreThan(count),
        LookOutcome::Whole | LookOutcome::Enough => ObjectCount::Exactly(count),
    })
}

/// Other objects in a namespace: `kind/name` of the first few. Empty: the namespace can be deleted.
///
/// # Errors
/// When a kind cannot be listed.
pub async fn inhabitants(cluster: &InstallCluster, namespace: &str) -> anyhow::Result<Vec<String>> {
    const MOST: usize = 5;
    // Aggregated discovery, because a just deleted definition may be in one of several answers and
    // missing in the next.
    let discovery = Discovery::new(cluster.client.clone()).run_aggregated().await;
    let discovery = discovery.context("the API's types cannot be listed")?;
    ensure!(discovery.groups().next().is_some(), "the API server tells none of its types");
    let mut kinds = Vec::new();
    for group in discovery.groups().filter(|group| group.name() != "metrics.k8s.io") {
        kinds.extend(group.recommended_resources().into_iter().filter(|(resource, capabilities)| {
            let is_listed =
                capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
            is_listed && resource.kind != "Event"
        }));
    }
    let lists = stream::iter(kinds).map(|(resource, _)| {
        let client = cluster.client.clone();
        async move {
            let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
            let mut found = Vec::new();
            let looked = look_through(&api, |object| {
                if is_inhabitant(&resource.kind, object) {
                    found.push(format!("{}/{}", resource.kind.to_lowercase(), object.name_any()));
                }
                if found.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let looked = looked.await.with_context(|| format!("{} cannot be listed", resource.plural))?;
            if looked == LookOutcome::Cut {
                found.push(format!("more {} than can be looked at", resource.plural));
            }
            anyhow::Ok(found)
        }
    });
    let mut lists = std::pin::pin!(lists.buffered(LISTS_AT_ONCE));
    let mut found = Vec::new();
    while let Some(listed) = lists.next().await {
        found.extend(listed?);
        if found.len() >= MOST {
            found.truncate(MOST);
            break;
        }
    }
    Ok(found)
}

/// Would a deletion of its namespace remove what somebody may still need?
fn is_inhabitant(kind: &str, object: &PartialObjectMeta<DynamicObject>) -> bool {
    // Objects that every namespace has.
    let is_usual = matches!(
        (kind, object.metadata.name.as_deref()),
        ("ConfigMap", Some("kube-root-ca.crt")) | ("ServiceAccount", Some("default"))
    );
    let follows = object.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    !is_usual && !follows && object.metadata.deletion_timestamp.is_none()
}

/// How a look through a list ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookOutcome {
    /// Every object was looked at.
    Whole,
    /// Whoever looked has seen enough.
    Enough,
    /// Pages are left.
    Cut,
}

/// Looks at the metadata of a kind's objects, a page at a time, until `see` breaks. A kind that the
/// cluster does not have has no objects.
async fn look_through(
    api: &Api<DynamicObject>,
    mut see: impl FnMut(&PartialObjectMeta<DynamicObject>) -> ControlFlow<()>,
) -> kube::Result<LookOutcome> {
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..PAGES {
        let page = match api.list_metadata(&params).await {
            Err(error) if is_not_found(&error) => return Ok(LookOutcome::Whole),
            page => page?,
        };
        if page.items.iter().try_for_each(&mut see).is_break() {
            return Ok(LookOutcome::Enough);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(LookOutcome::Whole),
        }
    }
    Ok(LookOutcome::Cut)
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, list, page};
    use serde_json::{Value, json};

    use super::*;

    const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/backups.velero.io";
    const BACKUPS: &str = "/apis/velero.io/v1/backups";
    const CONFIG_MAPS: &str = "/api/v1/namespaces/velero/configmaps";

    fn cluster(api: &Scripted) -> InstallCluster {
        InstallCluster { client: api.client("velero"), namespace: "velero".to_owned() }
    }

    fn definition() -> Reference {
        Reference {
            api_version: "apiextensions.k8s.io/v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            namespace: None,
            name: "backups.velero.io".to_owned(),
        }
    }

    fn definition_object() -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "backups.velero.io"},
            "spec": {
                "group": "velero.io", "names": {"kind": "Backup"}, "versions": [{"name": "v1"}],
            },
        })
    }

    /// The types of an API server that has ConfigMaps alone.
    fn with_types(api: Scripted) -> Scripted {
        let document = |items: Value| json!({"apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList", "items": items});
        let config_maps = json!({
            "resource": "configmaps", "responseKind": {"kind": "ConfigMap"}, "scope": "Namespaced",
            "verbs": ["get", "list"],
        });
        let core = json!([{"versions": [{"version": "v1", "resources": [config_maps]}]}]);
        api.next(get("/apis").answers(document(json!([])))).next(get("/api").answers(document(core)))
    }

    fn object(name: &str) -> Value {
        json!({"metadata": {"name": name}})
    }

    fn owned(name: &str) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        json!({"metadata": {"name": name, "ownerReferences": [owner]}})
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_of_a_definition_are_counted_on_every_page() {
        let api = Scripted::new()
            .next(get(DEFINITION).answers(definition_object()))
            .next(get(BACKUPS).answers(page("7", "more", &[object("a"), object("b")])))
            .next(get(BACKUPS).page("more").answers(list("7", &[object("c")])));
        let count = instances(&cluster(&api), &definition()).await.unwrap();
        assert_eq!(count, ObjectCount::Exactly(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_without_an_end_is_counted_up_to_its_bound() {
        let endless = page("7", "more", &[object("a")]);
        let api = Scripted::new()
            .next(get(DEFINITION).answers(definition_object()))
            .next(get(BACKUPS).answers(endless.clone()))
            .always(get(BACKUPS).page("more").answers(endless));
        let count = instances(&cluster(&api), &definition()).await.unwrap();
        assert_eq!(count, ObjectCount::MoreThan(PAGES));
        assert_eq!(count.to_string(), "more than 200");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_first_page_has_only_what_follows_others_may_have_inhabitants() {
        let api = with_types(Scripted::new())
            .next(get(CONFIG_MAPS).answers(page("7", "more", &[owned("a"), object("kube-root-ca.crt")])))
            .next(get(CONFIG_MAPS).page("more").answers(list("7", &[object("mine")])));
        assert_eq!(inhabitants(&cluster(&api), "velero").await.unwrap(), ["configmap/mine"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_more_than_can_be_looked_at_is_not_empty() {
        let endless = page("7", "more", &[owned("a")]);
        let api = with_types(Scripted::new())
            .next(get(CONFIG_MAPS).answers(endless.clone()))
            .always(get(CONFIG_MAPS).page("more").answers(endless));
        let found = inhabitants(&cluster(&api), "velero").await.unwrap();
        assert_eq!(found, ["more configmaps than can be looked at"]);
    }
}
