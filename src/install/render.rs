//! Renders the objects of an installation from settings: like `kubectl kustomize manifests/…`,
//! without kubectl and for any namespace.

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::ENGINE;
use super::{BackedUpTypes, MemberParts, Reviews, pod_volumes, sources};
use crate::settings::{Certificates, Executor};

/// Namespace in the manifests.
const WRITTEN_FOR: &str = "velero";
/// Group of the definitions that Velero installs itself.
pub const VELERO_GROUP: &str = "velero.io";
/// Velero's service account, as `velero install` creates it.
pub const VELERO_ACCOUNT: &str = "velero";

/// The settings of an installation.
#[derive(Clone, Debug)]
pub struct InstallSettings {
    pub namespace: String,
    /// Install the namespace itself.
    pub bring_namespace: bool,
    /// Install Velero's CustomResourceDefinitions.
    pub bring_definitions: bool,
    /// Names of the namespaces and CustomResourceDefinitions of shared buckets, and of the
    /// definitions for files of volumes, that no berth installed.
    pub foreign: Vec<String>,
    pub executor: Executor,
    pub certificates: Certificates,
    /// `None`: the image in the manifests.
    pub image: Option<String>,
    /// Velero's service account in the namespace, which gets Velero's rights. `None`: no Velero is
    /// installed, and no account gets them.
    pub velero_account: Option<String>,
    /// Arguments added to the webhook's and the controller's Deployment.
    pub args: Vec<String>,
    /// Which clients may send reviews, and the timeout of a review.
    pub reviews: Reviews,
    /// The agent, if the cluster is a member of shared buckets.
    pub member: Option<MemberParts>,
    /// berth's node agents, which read the files of volumes.
    pub pod_volumes: bool,
    /// The agents see nothing of their nodes, and leave those files to data mover pods.
    pub files_by_movers: bool,
    /// The types that the engine may read. `None`: all types.
    pub engine: Option<BackedUpTypes>,
}

impl InstallSettings {
    /// The default settings, for a cluster without Velero.
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            bring_namespace: true,
            bring_definitions: true,
            foreign: Vec::new(),
            executor: Executor::Berth,
            certificates: Certificates::SelfManaged,
            image: None,
            velero_account: None,
            args: Vec::new(),
            reviews: Reviews::default(),
            member: None,
            pod_volumes: false,
            files_by_movers: false,
            engine: None,
        }
    }

    /// The service account that the admission policy treats as Velero.
    fn velero(&self) -> Option<&str> {
        let runs = (self.executor == Executor::Velero).then_some(VELERO_ACCOUNT);
        self.velero_account.as_deref().or(runs)
    }
}

/// Every object of an installation, in the order in which they are applied.
///
/// # Errors
/// When the manifests in this binary are faulty.
pub fn render(settings: &InstallSettings) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    build("base", &mut objects)?;
    let mut components = vec!["components/alone"];
    if settings.executor == Executor::Velero {
        components.push("components/beside-velero");
    }
    if settings.velero().is_none() {
        components.push("components/without-velero");
    }
    components.push(match settings.certificates {
        Certificates::SelfManaged => "components/self-managed",
        Certificates::CertManager => "components/cert-manager",
    });
    components.extend(settings.member.iter().flat_map(MemberParts::components));
    if settings.pod_volumes {
        components.extend(pod_volumes::COMPONENTS);
        components.extend(settings.files_by_movers.then_some(pod_volumes::BY_MOVERS));
    }
    for component in components {
        build(component, &mut objects)?;
    }
    objects.retain(|object| {
        let name = &object["metadata"]["name"];
        let is_foreign = settings.foreign.iter().any(|one| name == one.as_str());
        match object["kind"].as_str() {
            Some("Namespace") if name == WRITTEN_FOR => settings.bring_namespace,
            Some("CustomResourceDefinition") if object["spec"]["group"] == VELERO_GROUP => {
                settings.bring_definitions && !is_foreign
            }
            Some("Namespace" | "CustomResourceDefinition") => !is_foreign,
            _ => true,
        }
    });
    let engine = settings.engine.as_ref().map(|types| types.rules(&objects));
    for object in &mut objects {
        if is_workload(object) {
            configure(object, settings)?;
        }
        if let Some(rules) = engine.as_ref().filter(|_| object["rules"].is_array())
            && object["metadata"]["name"] == ENGINE
        {
            object["rules"] = rules.clone();
        }
        if let Some(account) = settings.velero().filter(|_| object["kind"] == "ValidatingAdmissionPolicy") {
            judge_velero_by(object, account);
        }
        settings.reviews.configure(object)?;
        move_to(object, "", &settings.namespace);
    }
    objects.sort_by_key(|object| rank(object["kind"].as_str().unwrap_or_default()));
    Ok(objects)
}

/// Sort key: definitions first, admission objects last, because they make the API server call
/// berth.
fn rank(kind: &str) -> u8 {
    match kind {
        "Namespace" | "CustomResourceDefinition" => 0,
        "Deployment" | "DaemonSet" => 2,
        _ if is_admission(kind) => 3,
        _ => 1,
    }
}

/// Does it run pods of berth?
pub fn is_workload(object: &Value) -> bool {
    matches!(object["kind"].as_str(), Some("Deployment" | "DaemonSet"))
}

/// Is it an admission object: a webhook configuration, or an admission policy or its binding?
pub fn is_admission(kind: &str) -> bool {
    kind.ends_with("WebhookConfiguration") || kind.starts_with("ValidatingAdmissionPolicy")
}

/// The fields of a kustomization that the manifests use.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    /// The objects that a JSON patch applies to.
    target: Option<PatchTarget>,
    /// A JSON patch, or an object with `$patch: delete`.
    patch: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatchTarget {
    kind: String,
    /// `None`: all objects of the kind.
    name: Option<String>,
}

impl PatchTarget {
    fn is(&self, object: &Value) -> bool {
        object["kind"] == self.kind.as_str()
            && self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == name.as_str())
    }
}

/// Adds the resources of a folder to `objects`, then patches all of them.
fn build(folder: &str, objects: &mut Vec<Value>) -> anyhow::Result<()> {
    let path = format!("{folder}/kustomization.yaml");
    let text = sources::read(&path).with_context(|| format!("there is no {path}"))?;
    let kustomization: Kustomization =
        serde_saphyr::from_str(text).with_context(|| format!("{path} cannot be read"))?;
    for resource in &kustomization.resources {
        let path = join(folder, resource);
        match sources::read(&path) {
            None => build(&path, objects)?,
            Some(text) => {
                let documents: Vec<Value> =
                    serde_saphyr::from_multiple(text).with_context(|| format!("{path} cannot be read"))?;
                objects.extend(documents.into_iter().filter(|document| !document.is_null()));
            }
        }
    }
    for patch in &kustomization.patches {
        apply(patch, objects).with_context(|| format!("a patch of {path} does not fit"))?;
    }
    Ok(())
}

fn apply(patch: &Patch, objects: &mut Vec<Value>) -> anyhow::Result<()> {
    let body: Value = serde_saphyr::from_str(&patch.patch)?;
    let before = objects.len();
    match &patch.target {
        None if body["$patch"] == "delete" => {
            let same = |object: &Value| {
                object["kind"] == body["kind"] && object["metadata"]["name"] == body["metadata"]["name"]
            };
            objects.retain(|object| !same(object));
            if objects.len() == before {
                bail!("there is no {} {}", body["kind"], body["metadata"]["name"]);
            }
        }
        Some(target) => {
            let operations: json_patch::Patch = serde_json::from_value(body)?;
            let mut matched = objects.iter_mut().filter(|object| target.is(object)).peekable();
            matched.peek().with_context(|| format!("there is no {}", target.kind))?;
            for object in matched {
                json_patch::patch(object, &operations)?;
            }
        }
        None => bail!("neither a target nor a deletion"),
    }
    Ok(())
}

/// `folder/../other` as one path.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn configure(deployment: &mut Value, settings: &InstallSettings) -> anyhow::Result<()> {
    let container = deployment
        .pointer_mut("/spec/template/spec/containers/0")
        .context("a Deployment without a container")?;
    if let Some(image) = &settings.image {
        container["image"] = json!(image);
    }
    let args = container["args"].as_array_mut().context("a container without arguments")?;
    if let Some(account) = settings.velero().filter(|account| *account != VELERO_ACCOUNT)
        && args.first().is_some_and(|duty| duty == "webhook")
    {
        let user = format!("system:serviceaccount:{}:{account}", settings.namespace);
        args.push(json!(format!("--lifecycle-identity={user}")));
        if settings.executor == Executor::Velero {
            args.push(json!(format!("--executor-identity={user}")));
        }
    }
    // Agents have no queue.
    if args.first().is_some_and(|duty| duty == "node-agent") {
        return Ok(());
    }
    if args.first().is_some_and(|duty| duty == "garden") {
        return settings
            .member
            .as_ref()
            .and_then(MemberParts::hub)
            .map_or(Ok(()), |hub| hub.configure(deployment));
    }
    args.extend(settings.args.iter().map(|arg| json!(arg)));
    Ok(())
}

/// Sets Velero's service account in an admission policy.
fn judge_velero_by(policy: &mut Value, account: &str) {
    let variables = policy.pointer_mut("/spec/variables").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        if let Value::String(expression) = &mut variable["expression"] {
            *expression = expression.replace(&format!(":{VELERO_ACCOUNT}'"), &format!(":{account}'"));
        }
    }
}

/// Replaces the namespace everywhere: in `namespace` fields and names of namespaces, namespace
/// selectors, DNS names, user names of service accounts, and cert-manager's `namespace/name`.
fn move_to(value: &mut Value, key: &str, namespace: &str) {
    if value["kind"] == "Namespace" && value["metadata"]["name"] == WRITTEN_FOR {
        value["metadata"]["name"] = json!(namespace);
    }
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| move_to(value, key, namespace)),
        Value::Array(items) => items.iter_mut().for_each(|item| move_to(item, key, namespace)),
        Value::String(text) if (key == "namespace" || key == "values") && text == WRITTEN_FOR => {
            namespace.clone_into(text)
        }
        Value::String(text) if key == "expression" => {
            *text = text.replace(
                &format!("system:serviceaccount:{WRITTEN_FOR}:"),
                &format!("system:serviceaccount:{namespace}:"),
            )
        }
        Value::String(text) if key == "dnsNames" => {
            *text = text.replacen(&format!(".{WRITTEN_FOR}."), &format!(".{namespace}."), 1)
        }
        Value::String(text) if key == "cert-manager.io/inject-ca-from" => {
            *text = text.replacen(&format!("{WRITTEN_FOR}/"), &format!("{namespace}/"), 1)
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::member::HubCredentialsSecret;

    fn kinds(objects: &[Value]) -> Vec<&str> {
        objects.iter().filter_map(|object| object["kind"].as_str()).collect()
    }

    fn courier() -> Option<MemberParts> {
        Some(MemberParts::Courier(HubCredentialsSecret {
            secret: "hub".to_owned(),
            digest: Some("0123456789".to_owned()),
        }))
    }

    #[test]
    fn nothing_is_left_of_the_namespace_that_the_manifests_are_written_for() {
        for (executor, certificates) in
            [(Executor::Berth, Certificates::SelfManaged), (Executor::Velero, Certificates::CertManager)]
        {
            let settings = InstallSettings {
                executor,
                certificates,
                member: courier(),
                ..InstallSettings::new("elsewhere")
            };
            for object in render(&settings).unwrap_or_default() {
                if object["kind"] == "CustomResourceDefinition" {
                    continue;
                }
                let text = object.to_string().replace("velero.io", "").replace("berth-beside-velero", "");
                // Velero's own service account, in that namespace.
                let text = text.replace("+ ':velero'", "").replace("--executor=velero", "");
                let text = text.replace("'system:serviceaccount:elsewhere:velero'", "");
                let text = text.replace("--without-velero", "");
                assert!(!text.contains("velero"), "{text}");
            }
        }
    }

    #[test]
    fn definitions_come_first_and_admission_last() {
        let objects = render(&InstallSettings::new("velero")).unwrap_or_default();
        let kinds = kinds(&objects);
        assert_eq!(kinds.first(), Some(&"Namespace"));
        let deployment = kinds.iter().position(|kind| *kind == "Deployment");
        let admission = kinds.iter().position(|kind| is_admission(kind));
        assert!(deployment < admission, "{kinds:?}");
        assert!(kinds.iter().skip(admission.unwrap_or_default()).all(|kind| is_admission(kind)), "{kinds:?}");
    }

    #[test]
    fn what_velero_runs_needs_no_engine() {
        let settings = InstallSettings { executor: Executor::Velero, ..InstallSettings::new("velero") };
        let text = json!(render(&settings).unwrap_or_default()).to_string();
        assert!(!text.contains("berth-engine"));
        assert!(text.contains("--executor=velero") && text.contains("request.namespace + ':velero'"));
    }

    #[test]
    fn a_velero_with_another_service_account_is_known_by_that() {
        let settings = InstallSettings {
            executor: Executor::Velero,
            velero_account: Some("velero-server".to_owned()),
            ..InstallSettings::new("velero")
        };
        let text = json!(render(&settings).unwrap_or_default()).to_string();
        assert_eq!(text.matches("request.namespace + ':velero-server'").count(), 4, "{text}");
        assert!(!text.contains("':velero'"));
        for flag in ["executor", "lifecycle"] {
            assert!(text.contains(&format!("--{flag}-identity=system:serviceaccount:velero:velero-server")));
        }
    }

    #[test]
    fn every_webhook_is_waited_for_as_long_as_is_said() {
        let timeouts = |timeout| {
            let reviews = Reviews { timeout, ..Reviews::default() };
            let objects = render(&InstallSettings { reviews, ..InstallSettings::new("velero") }).unwrap();
            let webhooks = objects.iter().filter_map(|object| object["webhooks"].as_array()).flatten();
            webhooks.map(|webhook| webhook["timeoutSeconds"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert!(timeouts(None).len() > 5 && timeouts(None).iter().all(|seconds| *seconds == 2));
        assert!(timeouts(Some(7)).len() > 5 && timeouts(Some(7)).iter().all(|seconds| *seconds == 7));
    }

    #[test]
    fn the_image_is_of_this_version_unless_said() {
        let images = |image: Option<&str>| {
            let image = image.map(str::to_owned);
            let objects =
                render(&InstallSettings { image, member: courier(), ..InstallSettings::new("a") }).unwrap();
            let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
            let named = deployments.map(|d| d["spec"]["template"]["spec"]["containers"][0]["image"].clone());
            named.collect::<Vec<_>>()
        };
        assert_eq!(images(None), vec![json!(concat!("berth:", env!("CARGO_PKG_VERSION"))); 3]);
        for image in ["mirror/berth:1", "mirror/berth:1@sha256:ab", "mirror/berth@sha256:ab"] {
            assert_eq!(images(Some(image)), vec![json!(image); 3]);
        }
    }
}
