//! The project's own manifests, fitted to a control plane of the tests.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::project;

/// Namespace for which the manifests are written.
const WRITTEN_FOR: &str = "velero";

/// Name of the webhook configurations, and what is appended to other cluster-scoped names, so that berths of several
/// namespaces stand side by side.
pub fn suffixed(name: &str, namespace: &str) -> String {
    if namespace == WRITTEN_FOR { name.to_owned() } else { format!("{name}-{namespace}") }
}

/// The CustomResourceDefinitions.
///
/// # Errors
/// When a file cannot be read.
pub fn definitions() -> anyhow::Result<Vec<Value>> {
    read_folder(&project().join("manifests/crd"))
}

/// The Namespace and every object of `manifests/{rbac,webhook}`, for `namespace`, with webhooks that are called at
/// `webhook_url`, for a berth that runs backups or one that lets Velero run them.
///
/// # Errors
/// When a file cannot be read.
pub fn objects(namespace: &str, webhook_url: &str, beside_velero: bool) -> anyhow::Result<Vec<Value>> {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})];
    for folder in ["rbac", "webhook"] {
        objects.extend(read_folder(&project().join("manifests").join(folder))?);
    }
    for object in &mut objects {
        call_directly(object, webhook_url);
        if beside_velero {
            let_velero_run(object);
        }
    }
    if namespace != WRITTEN_FOR {
        let renamed: BTreeSet<String> = objects.iter().filter(|o| is_renamed(o)).map(name_of).collect();
        for object in &mut objects {
            move_to(object, namespace, &renamed);
        }
    }
    Ok(objects)
}

fn read_folder(folder: &Path) -> anyhow::Result<Vec<Value>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| {
        file.extension().is_some_and(|e| e == "yaml") && !file.ends_with("kustomization.yaml")
    });
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let failed = || format!("failed to read {}", file.display());
        let text = std::fs::read_to_string(&file).with_context(failed)?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(failed)?;
        objects.extend(documents.into_iter().filter(|document| !document.is_null()));
    }
    Ok(objects)
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

/// With `--executor=velero` the guard takes Velero for the one that runs backups.
fn let_velero_run(object: &mut Value) {
    let variables = object.pointer_mut("/spec/variables").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten().filter(|variable| variable["name"] == "executor") {
        variable["expression"] =
            json!(format!("request.userInfo.username in ['system:serviceaccount:{WRITTEN_FOR}:velero']"));
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
}

fn move_to(object: &mut Value, namespace: &str, renamed: &BTreeSet<String>) {
    let is_cluster_scoped = is_renamed(object);
    if is_cluster_scoped {
        object["metadata"]["name"] = json!(suffixed(&name_of(object), namespace));
    }
    if object["roleRef"]["kind"] == "ClusterRole" {
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
    rewrite(object, "", false, namespace);
}

/// Wherever the namespace is named: as a namespace, in a selector of namespaces, in the user name of a service account.
fn rewrite(value: &mut Value, key: &str, in_selector: bool, namespace: &str) {
    let in_selector = in_selector || key == "namespaceSelector";
    match value {
        Value::Object(fields) => rewrite_fields(fields, in_selector, namespace),
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, key, in_selector, namespace)),
        Value::String(text) if text == WRITTEN_FOR && (in_selector || key == "namespace") => {
            namespace.clone_into(text)
        }
        Value::String(text) => {
            for group in ["serviceaccount", "serviceaccounts"] {
                let user = |namespace: &str| format!("system:{group}:{namespace}");
                *text = text.replace(&user(WRITTEN_FOR), &user(namespace));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn rewrite_fields(fields: &mut Map<String, Value>, in_selector: bool, namespace: &str) {
    for (key, value) in fields {
        rewrite(value, key, in_selector, namespace);
    }
}
