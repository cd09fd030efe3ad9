//! Objects to the API server: server-side apply, so that a second time changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::garden::GARDEN_NAMESPACE;
use berth_api::keys::SEED_ACCESS;
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
use super::{Cluster, INSTALLER, Reference, diff};
use crate::client::is_not_found;
use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::text::chain;

/// How often what has to come about is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A definition is taken up within a second or two.
const ESTABLISHED: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 8;
/// Where Events go about what is in no namespace: a Role for that is there.
const EVENTS_NAMESPACE: &str = "default";

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Changed,
    Unchanged,
}

impl Outcome {
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
pub enum Mode {
    Write,
    /// The API server judges it and writes nothing.
    DryRun,
}

/// One object. Gives what became of it, and the difference.
///
/// # Errors
/// What the API server says.
pub async fn apply(client: &Client, object: &Value, mode: Mode) -> anyhow::Result<(Outcome, String)> {
    let reference = Reference::of(object).context("an object without a name")?;
    let api = reference.api(client);
    let name = reference.to_string();
    let live = live(client, &reference).await?;
    let mut params = PatchParams::apply(INSTALLER).force();
    params.dry_run = mode == Mode::DryRun;
    let applied = match api.patch(&reference.name, &params, &Patch::Apply(object)).await {
        Ok(applied) => serde_json::to_value(applied)?,
        // In a dry run nothing is there that it needs: its namespace, its definition.
        Err(error) if mode == Mode::DryRun && is_not_found(&error) => object.clone(),
        Err(error) => return Err(error).with_context(|| format!("{name} cannot be applied")),
    };
    let before = live.as_ref().map(serde_json::to_value).transpose()?;
    let difference = diff::objects(&name, before.as_ref(), &applied)?;
    let outcome = match live {
        None => Outcome::Created,
        Some(_) if difference.is_empty() => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    };
    Ok((outcome, difference))
}

async fn live(client: &Client, reference: &Reference) -> anyhow::Result<Option<DynamicObject>> {
    match reference.api(client).get_opt(&reference.name).await {
        Ok(live) => Ok(live),
        // The kind itself is not there yet.
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{reference} cannot be read")),
    }
}

/// What is there under the names of these, and was brought by no installation: applied, they would be berth's by force.
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

/// A label says little, because anybody may write it; who wrote an object the API server says. Definitions and namespaces hold what people
/// made and outlive installations: these are told by their label.
fn is_brought(reference: &Reference, found: &DynamicObject) -> bool {
    let outlives = matches!(reference.kind.as_str(), "Namespace" | "CustomResourceDefinition");
    let is_written = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(INSTALLER);
    Presence::of(Some(found.labels())) == Presence::Ours
        && (outlives || found.managed_fields().iter().any(is_written))
}

/// Waits until the API server serves what a definition defines.
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

/// Waits until both Deployments run as they were applied; tells what changes meanwhile.
///
/// # Errors
/// When that takes longer than `patience`.
pub async fn rolled_out(
    cluster: &Cluster,
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

/// What a Deployment lacks; `None` when it runs as it is written.
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

/// Which rights we lack to apply these: `verb resource.group`, each once.
///
/// # Errors
/// When the API server cannot be asked.
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

/// What an earlier installation brought and this one does not.
///
/// # Errors
/// When something cannot be listed.
pub async fn left_over(cluster: &Cluster, objects: &[Value]) -> anyhow::Result<Vec<Reference>> {
    let kept: Vec<Reference> = objects.iter().filter_map(Reference::of).collect();
    // What a running hub gives to its seeds is not an installation's.
    let found = labelled(cluster, &format!("{PART_OF}={PART_OF_BERTH},!{SEED_ACCESS}")).await?;
    let stays = |one: &Reference| {
        // Definitions hold people's objects, the namespace everything.
        matches!(one.kind.as_str(), "Namespace" | "CustomResourceDefinition")
            || kept.iter().any(|other| other.kind == one.kind && other.name == one.name)
    };
    Ok(found.into_iter().filter(|one| !stays(one)).collect())
}

/// Every kind that any installation ever brought; cluster-scoped ones last.
const KINDS: [(&str, &str, bool); 18] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", false),
    ("apps/v1", "Deployment", true),
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

/// What carries the label of an installation, in the order in which it can be removed.
///
/// # Errors
/// When something cannot be listed.
pub async fn installed(cluster: &Cluster) -> anyhow::Result<Vec<Reference>> {
    labelled(cluster, &format!("{PART_OF}={PART_OF_BERTH}")).await
}

async fn labelled(cluster: &Cluster, selector: &str) -> anyhow::Result<Vec<Reference>> {
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
    // An API server that answers from its cache takes a tenth of a second for each, until that is up to date.
    let lists = futures::stream::iter(places).map(|place| async move {
        match place.api(&cluster.client).list(labelled).await {
            Ok(list) => {
                let named = |name| Reference { name, ..place.clone() };
                Ok(list.items.iter().map(|object| named(object.name_any())).collect())
            }
            // No such kind here.
            Err(error) if is_not_found(&error) => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("{}s cannot be listed", place.kind)),
        }
    });
    let found: Vec<Vec<Reference>> = lists.buffered(AT_ONCE).try_collect().await?;
    let mut found = found.concat();
    // A namespace of another berth, or of none; and whatever people gave that label.
    found.retain(|one| match one.kind.as_str() {
        "Namespace" => one.name == cluster.namespace || GARDEN_NAMESPACES.contains(&one.name.as_str()),
        "CustomResourceDefinition" => true,
        _ => one.name == "berth" || one.name.starts_with("berth-"),
    });
    Ok(found)
}

/// Admission objects, apart from the others.
pub fn split_admission(objects: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
    objects.into_iter().partition(|object| !object["kind"].as_str().is_some_and(is_admission))
}
