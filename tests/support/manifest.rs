//! The project's own manifests, fitted to a control plane of the tests.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use berth::install::render::VELERO_ACCOUNT;
use berth::install::{InstallSettings, render};
use berth::settings::Executor;
use berth_garden_api::GARDEN_NAMESPACE;
use serde_json::{Value, json};

/// Namespace for which the manifests are written.
const WRITTEN_FOR: &str = "velero";

/// Name of the webhook configurations, and what is appended to other cluster-scoped names, so that
/// berths of several namespaces stand side by side.
pub fn suffixed(name: &str, namespace: &str) -> String {
    if namespace == WRITTEN_FOR { name.to_owned() } else { format!("{name}-{namespace}") }
}

/// The CustomResourceDefinitions.
///
/// # Errors
/// When they cannot be rendered.
pub fn definitions() -> anyhow::Result<Vec<Value>> {
    let mut objects = render(&InstallSettings::new(WRITTEN_FOR))?;
    objects.retain(|object| object["kind"] == "CustomResourceDefinition");
    Ok(objects)
}

/// What an installation consists of, but for the definitions and what needs a kubelet: for
/// `namespace`, with webhooks that are called at `webhook_url`, for a berth that runs backups or
/// one that lets Velero run them. Nothing in it judges shared buckets: most are in no namespace,
/// and berths that stand side by side would all be asked about all of them.
///
/// # Errors
/// When they cannot be rendered.
pub fn objects(namespace: &str, webhook_url: &str, beside_velero: bool) -> anyhow::Result<Vec<Value>> {
    Ok(without_garden(objects_with_garden(namespace, webhook_url, beside_velero)?))
}

/// [`objects`] for a namespace without Velero, whose service account is not trusted.
///
/// # Errors
/// When they cannot be rendered.
pub fn objects_without_velero(namespace: &str, webhook_url: &str) -> anyhow::Result<Vec<Value>> {
    Ok(without_garden(fitted(&InstallSettings::new(namespace), webhook_url)?))
}

fn without_garden(mut objects: Vec<Value>) -> Vec<Value> {
    let judges = |rules: &Value| {
        let groups = rules.as_array().into_iter().flatten().flat_map(|rule| rule["apiGroups"].as_array());
        groups.flatten().any(|group| group == "garden.berth.dev" || group == "extensions.gardener.cloud")
    };
    let is_of_garden = |object: &Value| judges(&object["spec"]["matchConstraints"]["resourceRules"]);
    let left_out: BTreeSet<String> =
        objects.iter().filter(|object| is_of_garden(object)).map(name_of).collect();
    // A binding has the name of its policy.
    objects.retain(|object| {
        let is_policy =
            object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"));
        !(is_policy && left_out.contains(&name_of(object)))
    });
    for webhooks in objects.iter_mut().filter_map(|object| object.get_mut("webhooks")?.as_array_mut()) {
        webhooks.retain(|webhook| !judges(&webhook["rules"]));
    }
    objects
}

/// [`objects`], and what judges shared buckets. For one berth of a control plane.
///
/// # Errors
/// When they cannot be rendered.
pub fn objects_with_garden(
    namespace: &str,
    webhook_url: &str,
    beside_velero: bool,
) -> anyhow::Result<Vec<Value>> {
    let executor = if beside_velero { Executor::Velero } else { Executor::Berth };
    let velero_account = Some(VELERO_ACCOUNT.to_owned());
    fitted(&InstallSettings { executor, velero_account, ..InstallSettings::new(namespace) }, webhook_url)
}

fn fitted(settings: &InstallSettings, webhook_url: &str) -> anyhow::Result<Vec<Value>> {
    let namespace = settings.namespace.as_str();
    let mut objects = render(settings)?;
    let left_out = ["CustomResourceDefinition", "Deployment", "PodDisruptionBudget", "NetworkPolicy"];
    objects.retain(|object| !object["kind"].as_str().is_some_and(|kind| left_out.contains(&kind)));
    for object in &mut objects {
        call_directly(object, webhook_url);
        if object["kind"] == "Namespace" && object["metadata"]["name"] == namespace {
            // Stock Velero's pods may be played here, too.
            object["metadata"]["labels"] = json!({});
        }
    }
    if namespace != WRITTEN_FOR {
        let renamed: BTreeSet<String> = objects.iter().filter(|o| is_renamed(o)).map(name_of).collect();
        for object in &mut objects {
            suffix(object, namespace, &renamed);
        }
    }
    Ok(objects)
}

/// What a role is called in that namespace's copy.
pub fn suffixed_role(kind: &str, name: &str, namespace: &str) -> String {
    let is_suffixed = kind.starts_with("Cluster") || name.ends_with("-garden");
    if is_suffixed { suffixed(name, namespace) } else { name.to_owned() }
}

/// Takes one rule out of a role.
///
/// # Errors
/// When the role has no rule like it.
pub fn take_rule(objects: &mut [Value], kind: &str, role: &str, index: usize) -> anyhow::Result<()> {
    let found =
        objects.iter_mut().find(|object| object["kind"] == kind && object["metadata"]["name"] == role);
    let rules =
        found.and_then(|role| role["rules"].as_array_mut()).with_context(|| format!("no {kind} {role}"))?;
    ensure!(index < rules.len(), "{kind} {role} has {} rules", rules.len());
    rules.remove(index);
    Ok(())
}

/// No Service leads to a process on this machine: the API server calls it by URL.
fn call_directly(object: &mut Value, webhook_url: &str) {
    for webhook in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(config) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) else { continue };
        if let Some(service) = config.remove("service") {
            let path = service["path"].as_str().unwrap_or("/");
            config.insert("url".to_owned(), json!(format!("{webhook_url}{path}")));
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn is_renamed(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    kind.starts_with("ClusterRole")
        || kind.ends_with("WebhookConfiguration")
        || kind.starts_with("ValidatingAdmission")
        // All of them have a role in this one.
        || object["metadata"]["namespace"] == GARDEN_NAMESPACE
}

fn suffix(object: &mut Value, namespace: &str, renamed: &BTreeSet<String>) {
    let is_cluster_scoped = is_renamed(object);
    if is_cluster_scoped {
        object["metadata"]["name"] = json!(suffixed(&name_of(object), namespace));
    }
    if object["roleRef"]["kind"] == "ClusterRole" || object["metadata"]["namespace"] == GARDEN_NAMESPACE {
        let role = object["roleRef"]["name"].as_str().unwrap_or_default();
        if renamed.contains(role) {
            object["roleRef"]["name"] = json!(suffixed(role, namespace));
        }
    }
    for rule in object.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        let is_cluster_scoped = rule["resources"].as_array().is_some_and(|resources| {
            resources.iter().filter_map(Value::as_str).any(|r| r.ends_with("webhookconfigurations"))
        });
        let names = rule.get_mut("resourceNames").and_then(Value::as_array_mut);
        for name in names.into_iter().flatten().filter(|_| is_cluster_scoped) {
            *name = json!(suffixed(name.as_str().unwrap_or_default(), namespace));
        }
    }
    if let Some(policy) = object["spec"]["policyName"].as_str() {
        object["spec"]["policyName"] = json!(suffixed(policy, namespace));
    }
}
