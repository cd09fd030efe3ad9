//! Applies objects by server-side apply, so that a second installation changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys::SEED_ACCESS;
use berth_garden_api::GARDEN_NAMESPACE;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::cluster::{GARDEN_NAMESPACES, Presence};
use super::render::is_admission;
use super::{INSTALLER, InstallCluster, Reference, diff};
use crate::client::is_not_found;
use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::text::chain;

/// How often an awaited condition is read.
const LOOK: Duration = Duration::from_millis(100);
/// Time-out for a definition to be established, which takes a second or two.
const ESTABLISHED: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 8;
/// How many lists are asked for at the same time. An API server that answers from its cache takes
/// 0.1 s for each, until the cache is current, and does nothing meanwhile.
pub const LISTS_AT_ONCE: usize = 32;
/// Namespace of Events about cluster-scoped objects, for which an installation has a Role.
const EVENTS_NAMESPACE: &str = "default";

/// The result of applying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    Created,
    Changed,
    Unchanged,
}

impl ApplyOutcome {
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// How objects are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    Write,
    /// Server-side dry run: the API server validates the object and writes nothing.
    DryRun,
}

/// Applies one object. Returns the result, and the difference.
///
/// # Errors
/// The API server's error.
pub async fn apply(
    client: &Client,
    object: &Value,
    mode: ApplyMode,
) -> anyhow::Result<(ApplyOutcome, String)> {
    let reference = Reference::of(object).context("an object without a name")?;
    let api = reference.api(client);
    let name = reference.to_string();
    let live = live(client, &reference).await?;
    let mut params = PatchParams::apply(INSTALLER).force();
    params.dry_run = mode == ApplyMode::DryRun;
    let applied = match api.patch(&reference.name, &params, &Patch::Apply(object)).await {
        Ok(applied) => serde_json::to_value(applied)?,
        // In a dry run its namespace or its definition may not exist.
        Err(error) if mode == ApplyMode::DryRun && is_not_found(&error) => object.clone(),
        Err(error) => return Err(error).with_context(|| format!("{name} cannot be applied")),
    };
    let before = live.as_ref().map(serde_json::to_value).transpose()?;
    let difference = diff::objects(&name, before.as_ref(), &applied)?;
    let outcome = match live {
        None => ApplyOutcome::Created,
        Some(_) if difference.is_empty() => ApplyOutcome::Unchanged,
        Some(_) => ApplyOutcome::Changed,
    };
    Ok((outcome, difference))
}

/// Applies objects of which none needs another one, some at a time. `tell` gets the results in the
/// order of the objects.
///
/// # Errors
/// The first of the API server's errors.
pub async fn apply_at_once<'o>(
    client: &Client,
    objects: impl IntoIterator<Item = &'o Value>,
    mode: ApplyMode,
    mut tell: impl FnMut(&Value, ApplyOutcome, &str),
) -> anyhow::Result<()> {
    let applied = futures::stream::iter(objects).map(|object| async move {
        let (outcome, difference) = apply(client, object, mode).await?;
        anyhow::Ok((object, outcome, difference))
    });
    let mut applied = std::pin::pin!(applied.buffered(AT_ONCE));
    while let Some((object, outcome, difference)) = applied.try_next().await? {
        tell(object, outcome, &difference);
    }
    Ok(())
}

async fn live(client: &Client, reference: &Reference) -> anyhow::Result<Option<DynamicObject>> {
    match reference.api(client).get_opt(&reference.name).await {
        Ok(live) => Ok(live),
        // The kind is not defined yet.
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{reference} cannot be read")),
    }
}

/// Existing objects with the same names that no installation created. Applying would take them over
/// by force.
///
/// # Errors
/// When one cannot be read.
pub async fn strangers(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<Reference>> {
    let references = objects.iter().filter_map(Reference::of);
    let looked = futures::stream::iter(references).map(|reference| async move {
        let found = live(client, &reference).await?;
        anyhow::Ok(found.is_some_and(|found| !is_brought(&reference, &found)).then_some(reference))
    });
    let found: Vec<Option<Reference>> = looked.buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Did an installation create this object? The field manager says so, because anybody may write a
/// label. Definitions and namespaces outlive installations, so for these the label counts.
fn is_brought(reference: &Reference, found: &DynamicObject) -> bool {
    let outlives = matches!(reference.kind.as_str(), "Namespace" | "CustomResourceDefinition");
    let is_written = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(INSTALLER);
    Presence::of(Some(found.labels())) == Presence::Ours
        && (outlives || found.managed_fields().iter().any(is_written))
}

/// Waits until the API server serves the kind of a definition.
///
/// # Errors
/// When it does not within a minute.
pub async fn established(client: &Client, definition: &Value) -> anyhow::Result<()> {
    let reference = Reference::of(definition).context("a definition without a name")?;
    let api = reference.api(client);
    let is_established = |object: &DynamicObject| {
        let conditions = object.data["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Established" && one["status"] == "True")
    };
    let waiting = async {
        while !api.get(&reference.name).await.is_ok_and(|object| is_established(&object)) {
            sleep(LOOK).await;
        }
    };
    timeout(ESTABLISHED, waiting)
        .await
        .with_context(|| format!("the API server did not take up {reference}: see its conditions"))
}

/// Waits until the Deployments run as applied, and reports the progress.
///
/// # Errors
/// When that takes longer than `patience`.
pub async fn rolled_out(
    cluster: &InstallCluster,
    objects: &[Value],
    patience: Duration,
    mut tell: impl FnMut(String),
) -> anyhow::Result<()> {
    let deployments: Vec<Reference> =
        objects.iter().filter(|object| object["kind"] == "Deployment").filter_map(Reference::of).collect();
    let mut told = String::new();
    let waiting = async {
        loop {
            let mut words = Vec::new();
            for reference in &deployments {
                match reference.api(&cluster.client).get(&reference.name).await {
                    Ok(object) => {
                        words.extend(missing(&object).map(|word| format!("{} {word}", reference.name)))
                    }
                    Err(error) => words.push(format!("{reference} cannot be read ({})", chain(&error))),
                }
            }
            if words.is_empty() {
                return;
            }
            let words = words.join(", ");
            if words != told {
                tell(format!("waiting: {words}"));
                told = words;
            }
            sleep(LOOK).await;
        }
    };
    match timeout(patience, waiting).await {
        Ok(()) => Ok(()),
        Err(_) => bail!(
            "not ready after {} s: {told}. See `kubectl describe pods --namespace {} -l {PART_OF}={PART_OF_BERTH}`, and `berth check`",
            patience.as_secs(),
            cluster.namespace
        ),
    }
}

/// What a Deployment's rollout waits for; `None` when it is complete.
fn missing(deployment: &DynamicObject) -> Option<String> {
    let number = |pointer: &str| deployment.data.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    let wanted = deployment.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let seen = number("/status/observedGeneration") >= deployment.metadata.generation.unwrap_or_default();
    let (updated, available, all) =
        (number("/status/updatedReplicas"), number("/status/availableReplicas"), number("/status/replicas"));
    if seen && updated == wanted && available >= wanted && all == wanted {
        return None;
    }
    let updated = if seen { updated } else { 0 };
    Some(format!("{} of {wanted} ready", updated.min(available)))
}

/// The rights that the user lacks to apply these objects: `verb resource.group`, each once.
///
/// # Errors
/// When the API server does not answer.
pub async fn missing_rights(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut wanted: Vec<(String, String, Option<String>, &str)> = Vec::new();
    for reference in objects.iter().filter_map(Reference::of) {
        let resource = reference.resource();
        for verb in ["get", "create", "patch"] {
            let right = (resource.group.clone(), resource.plural.clone(), reference.namespace.clone(), verb);
            if !wanted.contains(&right) {
                wanted.push(right);
            }
        }
    }
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let asked = futures::stream::iter(wanted).map(|(group, resource, namespace, verb)| {
        let api = api.clone();
        async move {
            let point = if group.is_empty() { String::new() } else { format!(".{group}") };
            let place = namespace.as_ref().map_or_else(String::new, |namespace| format!(" in {namespace}"));
            let said = format!("{verb} {resource}{point}{place}");
            let attributes = ResourceAttributes {
                group: Some(group),
                resource: Some(resource),
                namespace,
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            };
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let answer = api.create(&PostParams::default(), &review).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok::<_, kube::Error>((!allowed).then_some(said))
        }
    });
    let missing: Vec<Option<String>> =
        asked.buffered(AT_ONCE).try_collect().await.context("the API server does not tell our rights")?;
    Ok(missing.into_iter().flatten().collect())
}

/// Objects of an earlier installation that this one does not have.
///
/// # Errors
/// When something cannot be listed.
pub async fn left_over(cluster: &InstallCluster, objects: &[Value]) -> anyhow::Result<Vec<Reference>> {
    let kept: Vec<Reference> = objects.iter().filter_map(Reference::of).collect();
    // The rights that a running hub gives to its seeds are not part of an installation.
    let found = labelled(cluster, &format!("{PART_OF}={PART_OF_BERTH},!{SEED_ACCESS}")).await?;
    let stays = |one: &Reference| {
        // Deleting a definition or a namespace would delete users' objects.
        matches!(one.kind.as_str(), "Namespace" | "CustomResourceDefinition")
            || kept.iter().any(|other| other.kind == one.kind && other.name == one.name)
    };
    Ok(found.into_iter().filter(|one| !stays(one)).collect())
}

/// Every kind that any version of berth installed; cluster-scoped ones last.
const KINDS: [(&str, &str, bool); 19] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", false),
    ("apps/v1", "Deployment", true),
    ("apps/v1", "DaemonSet", true),
    ("policy/v1", "PodDisruptionBudget", true),
    ("networking.k8s.io/v1", "NetworkPolicy", true),
    ("v1", "Service", true),
    ("cert-manager.io/v1", "Certificate", true),
    ("cert-manager.io/v1", "Issuer", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", true),
    ("rbac.authorization.k8s.io/v1", "Role", true),
    ("v1", "ServiceAccount", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", false),
    ("scheduling.k8s.io/v1", "PriorityClass", false),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", false),
    ("v1", "Namespace", false),
];

/// Objects with the label of an installation, in the order in which they can be removed.
///
/// # Errors
/// When something cannot be listed.
pub async fn installed(cluster: &InstallCluster) -> anyhow::Result<Vec<Reference>> {
    labelled(cluster, &format!("{PART_OF}={PART_OF_BERTH}")).await
}

async fn labelled(cluster: &InstallCluster, selector: &str) -> anyhow::Result<Vec<Reference>> {
    let labelled = &ListParams::default().labels(selector);
    let mut places = Vec::new();
    for (api_version, kind, is_namespaced) in KINDS {
        let namespaces: BTreeSet<Option<&str>> = match is_namespaced {
            true => [cluster.namespace.as_str(), GARDEN_NAMESPACE, EVENTS_NAMESPACE].map(Some).into(),
            false => [None].into(),
        };
        places.extend(namespaces.into_iter().map(|namespace| Reference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: String::new(),
        }));
    }
    let lists = futures::stream::iter(places).map(|place| async move {
        match place.api(&cluster.client).list(labelled).await {
            Ok(list) => {
                let named = |name| Reference { name, ..place.clone() };
                Ok(list.items.iter().map(|object| named(object.name_any())).collect())
            }
            // The cluster does not have this kind.
            Err(error) if is_not_found(&error) => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("{}s cannot be listed", place.kind)),
        }
    });
    let found: Vec<Vec<Reference>> = lists.buffered(LISTS_AT_ONCE).try_collect().await?;
    let mut found = found.concat();
    // Leaves out namespaces of another berth, and objects that users gave the label.
    found.retain(|one| match one.kind.as_str() {
        "Namespace" => one.name == cluster.namespace || GARDEN_NAMESPACES.contains(&one.name.as_str()),
        "CustomResourceDefinition" => true,
        _ => one.name == "berth" || one.name.starts_with("berth-"),
    });
    Ok(found)
}

/// Splits objects into admission objects and all others.
pub fn split_admission(objects: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
    objects.into_iter().partition(|object| !object["kind"].as_str().is_some_and(is_admission))
}
