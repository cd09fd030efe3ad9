//! Checks versions, definitions, Deployments and rights.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::Value;

use super::{Finding, stranger};
use crate::install::arguments::containers;
use crate::install::cluster::Presence;
use crate::install::engine::{self, ENGINE, HOOKS};
use crate::install::member::{AGENT, MemberParts};
use crate::install::{
    BackedUpTypes, ClusterFindings, InstallCluster, InstallSettings, Installed, apply, pod_volumes, render,
};
use crate::text::few;

const AT_ONCE: usize = 8;
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn api_server(found: &ClusterFindings) -> Finding {
    if found.has_policies {
        return Finding::ok("API server", format!("Kubernetes {}", found.version));
    }
    Finding::warning(
        "API server",
        format!(
            "Kubernetes {} knows no ValidatingAdmissionPolicy: while berth is away nothing guards phases and places",
            found.version
        ),
        "upgrade to Kubernetes 1.30 or later",
    )
}

pub(super) fn definition(found: &ClusterFindings, namespace: &str) -> Finding {
    const CHECK: &str = "definitions";
    match (&found.definition_fault, found.definition) {
        (Some(fault), Presence::Ours) => {
            Finding::fault(CHECK, fault, format!("berth install --namespace {namespace}"))
        }
        (Some(fault), _) => Finding::fault(
            CHECK,
            fault,
            "with a Velero of 1.18 or later: velero install --crds-only --dry-run -o yaml | kubectl apply -f -",
        ),
        (None, Presence::Absent) => {
            Finding::warning(CHECK, "there are no Backups here yet", "`berth install` brings them")
        }
        (None, Presence::Ours) => Finding::ok(CHECK, "berth's own"),
        (None, Presence::Foreign) => Finding::ok(CHECK, "Velero's, with the phases of the queue"),
    }
}

/// Can berth be installed in this cluster?
pub(super) async fn before(
    cluster: &InstallCluster,
    found: &ClusterFindings,
) -> anyhow::Result<Vec<Finding>> {
    const CHECK: &str = "installation";
    let mut findings: Vec<Finding> = stranger(found, &cluster.namespace).into_iter().collect();
    let objects = render(&InstallSettings::new(&cluster.namespace))?;
    let missing = apply::missing_rights(&cluster.client, &objects).await?;
    if !missing.is_empty() {
        let message = format!("you lack rights to install: {}", missing.join(", "));
        findings.push(Finding::fault(
            "your rights",
            message,
            "have somebody grant them, or be a cluster admin",
        ));
    }
    let install = format!("berth install --namespace {}", cluster.namespace);
    findings.push(match &found.velero {
        None => Finding::warning(
            CHECK,
            format!("berth is not installed in namespace {}", cluster.namespace),
            install,
        ),
        Some(velero) => Finding::warning(
            CHECK,
            format!(
                "berth is not installed in namespace {}; there is a Velero (Deployment {})",
                cluster.namespace,
                velero.name_any()
            ),
            format!("{install} --adjust-velero"),
        ),
    });
    Ok(findings)
}

pub(super) async fn after(
    cluster: &InstallCluster,
    found: &ClusterFindings,
    installed: &Installed,
) -> anyhow::Result<Vec<Finding>> {
    let mut findings: Vec<Finding> = stranger(found, &cluster.namespace).into_iter().collect();
    findings.push(versions(installed, &cluster.namespace));
    findings.extend(image(installed, &cluster.namespace));
    for name in ["berth-webhook", "berth-controller"] {
        findings.push(deployment(installed, name, &cluster.namespace));
    }
    if let Some(member) = &installed.member {
        findings.push(deployment(installed, AGENT, &cluster.namespace));
        findings.extend(hub(cluster, member).await?);
    }
    findings.extend(installed.agents.as_ref().map(node_agents));
    findings.extend(rights(cluster, installed).await?);
    Ok(findings)
}

fn versions(installed: &Installed, namespace: &str) -> Finding {
    const CHECK: &str = "versions";
    let mut images: Vec<&str> =
        installed.deployments.iter().flat_map(containers).filter_map(|c| c.image.as_deref()).collect();
    images.sort_unstable();
    images.dedup();
    let said = images.join(", ");
    if images.len() > 1 {
        return Finding::warning(
            CHECK,
            format!("berth's programs run different images: {said}"),
            format!("berth install --namespace {namespace}, with the --image that you want"),
        );
    }
    let name = said.split('@').next().and_then(|image| image.rsplit('/').next()).unwrap_or_default();
    let tag = name.split_once(':').map(|(_, tag)| tag.trim_start_matches('v').to_owned());
    match tag {
        Some(tag) if tag.starts_with(|c: char| c.is_ascii_digit()) && tag != VERSION => Finding::warning(
            CHECK,
            format!("this is berth {VERSION}, the cluster runs {said}"),
            format!(
                "berth install --namespace {namespace} brings it to {VERSION}; or use a berth of that version here"
            ),
        ),
        _ => Finding::ok(CHECK, format!("berth {VERSION} here, {said} there")),
    }
}

/// An image without a digest is a finding, because anybody who may write to the registry can change
/// the tag's image.
fn image(installed: &Installed, namespace: &str) -> Option<Finding> {
    const CHECK: &str = "image";
    let image = installed.image()?;
    if image.contains('@') {
        return Some(Finding::ok(CHECK, "named by its digest"));
    }
    let message = format!(
        "{image} is named by a tag: whoever may write to its registry can put another program in its place"
    );
    let fix = format!(
        "berth install --namespace {namespace} --image {image}@sha256:…, with the digest that the registry tells"
    );
    Some(Finding::warning(CHECK, message, fix))
}

fn deployment(installed: &Installed, name: &'static str, namespace: &str) -> Finding {
    let Some(found) = installed.deployment(name) else {
        return Finding::fault(
            name,
            "its Deployment is missing",
            format!("berth install --namespace {namespace}"),
        );
    };
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = found.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    let look = format!("kubectl describe pods --namespace {namespace} -l app.kubernetes.io/name={name}");
    match ready {
        0 => Finding::fault(name, format!("none of {wanted} replicas is ready"), look),
        _ if ready < wanted => {
            Finding::warning(name, format!("{ready} of {wanted} replicas are ready"), look)
        }
        1 => Finding::warning(
            name,
            "one replica: while its node is drained or upgraded, Backups are queued late",
            format!("kubectl scale --namespace {namespace} --replicas=2 deployment/{name}"),
        ),
        _ => Finding::ok(name, format!("{ready} replicas are ready")),
    }
}

/// Nodes come and go, so agents that are missing on some are no fault.
fn node_agents(agents: &DaemonSet) -> Finding {
    const CHECK: &str = pod_volumes::AGENT;
    match (pod_volumes::not_ready_message(agents), pod_volumes::ready(agents)) {
        (None, ready) => {
            Finding::ok(CHECK, format!("ready on {} nodes", ready.map_or(0, |(ready, _)| ready)))
        }
        (Some(told), ready) => {
            let look = format!(
                "kubectl describe pods --namespace {} -l app.kubernetes.io/name={CHECK}",
                agents.metadata.namespace.as_deref().unwrap_or_default()
            );
            match ready {
                Some((0, _)) => Finding::fault(CHECK, told, look),
                _ => Finding::warning(CHECK, told, look),
            }
        }
    }
}

/// Can the agent's pods use the Secret with the access to the hub?
async fn hub(cluster: &InstallCluster, member: &MemberParts) -> anyhow::Result<Option<Finding>> {
    const CHECK: &str = "hub";
    let Some(hub) = member.hub() else { return Ok(None) };
    Ok(Some(match hub.fault(cluster).await? {
        None => Finding::ok(CHECK, format!("Secret {} has the way to it", hub.secret)),
        Some(fault) => {
            let install =
                format!("berth install --namespace {} --hub-kubeconfig=FILE --seed=NAME", cluster.namespace);
            Finding::fault(CHECK, fault, install)
        }
    }))
}

/// One right that a service account needs.
struct Right {
    user: String,
    role: String,
    attributes: ResourceAttributes,
}

impl Right {
    /// As in `deployments.apps`.
    fn resource(&self) -> String {
        let resource = self.attributes.resource.as_deref().unwrap_or_default();
        match self.attributes.group.as_deref() {
            None | Some("") => resource.to_owned(),
            Some(group) => format!("{resource}.{group}"),
        }
    }

    fn said(&self) -> String {
        let verb = self.attributes.verb.as_deref().unwrap_or_default();
        let name = self.attributes.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let account = self.user.rsplit(':').next().unwrap_or_default();
        format!("{account} may not {verb} {}{name}", self.resource())
    }
}

/// Do the service accounts have the rights that the manifests give them?
async fn rights(cluster: &InstallCluster, installed: &Installed) -> anyhow::Result<Vec<Finding>> {
    const CHECK: &str = "rights";
    let unknown = |error: &kube::Error| {
        let message = format!("cannot be looked at: {}", crate::text::chain(error));
        let fix = "run this as somebody who may read clusterroles and create subjectaccessreviews";
        Ok(vec![Finding::warning(CHECK, message, fix)])
    };
    let is_listed = match engine::are_listed(&cluster.client).await {
        Ok(is_listed) => is_listed,
        Err(error) => return unknown(&error),
    };
    let engine = if is_listed { Some(BackedUpTypes::served(&cluster.client).await?) } else { None };
    let settings = InstallSettings {
        executor: installed.executor,
        certificates: installed.certificates,
        member: installed.member.clone(),
        pod_volumes: installed.agents.is_some(),
        files_by_movers: installed.agents.as_ref().is_some_and(pod_volumes::leaves_files),
        engine: engine.clone(),
        ..InstallSettings::new(&cluster.namespace)
    };
    let wanted = granted(&render(&settings)?, &cluster.namespace);
    let count = wanted.len();
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let asked = futures::stream::iter(wanted).map(|right| {
        let api = api.clone();
        async move {
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(right.user.clone()),
                    groups: Some(vec![
                        "system:serviceaccounts".to_owned(),
                        "system:authenticated".to_owned(),
                    ]),
                    resource_attributes: Some(right.attributes.clone()),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            let answer = api.create(&PostParams::default(), &review).await?;
            Ok::<_, kube::Error>((!answer.status.is_some_and(|status| status.allowed)).then_some(right))
        }
    });
    let missing: Vec<Right> =
        match asked.buffered(AT_ONCE).try_filter_map(|one| async { Ok(one) }).try_collect().await {
            Ok(missing) => missing,
            Err(error) => return unknown(&error),
        };
    let (of_engine, missing): (Vec<Right>, Vec<Right>) =
        missing.into_iter().partition(|right| is_listed && right.role == ENGINE);
    let (of_hooks, missing): (Vec<Right>, Vec<Right>) =
        missing.into_iter().partition(|right| right.role == HOOKS);
    let install = format!("berth install --namespace {}", cluster.namespace);
    let mut findings = vec![if missing.is_empty() {
        Finding::ok(
            CHECK,
            format!("the service accounts have all {} of theirs", count - of_engine.len() - of_hooks.len()),
        )
    } else {
        let said: Vec<String> = missing.iter().map(Right::said).collect();
        Finding::fault(CHECK, said.join("; "), install.clone())
    }];
    if !of_hooks.is_empty() {
        // A warning, because an admin may have removed the role on purpose.
        let fix = format!("{install} brings the ClusterRole {HOOKS}, where the API server has policies");
        findings.push(Finding::warning("hooks", "none is run: each one is an error of its backup", fix));
    }
    findings
        .extend(engine.map(|types| listed(&types, &of_engine, &format!("{install} --engine-rights=listed"))));
    Ok(findings)
}

/// The finding for served types that the engine may not read.
fn listed(types: &BackedUpTypes, missing: &[Right], fix: &str) -> Finding {
    const CHECK: &str = "engine rights";
    let mut names: Vec<String> = missing.iter().map(Right::resource).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Finding::ok(CHECK, format!("to read each of the {} types that are backed up", types.count()));
    }
    let message = format!(
        "the engine may not read {} of the {} types that are backed up, and they are missing in backups: {}",
        names.len(),
        types.count(),
        few(&names)
    );
    Finding::fault(CHECK, message, fix)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Every right that the roles among `objects` give to service accounts.
fn granted(objects: &[Value], namespace: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    for binding in objects.iter().filter(|object| object["roleRef"].is_object()) {
        // Roles in several namespaces may have the same name.
        let is_role = |role: &&Value| {
            role["kind"] == binding["roleRef"]["kind"]
                && role["metadata"]["name"] == binding["roleRef"]["name"]
                && (role["kind"] == "ClusterRole"
                    || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        };
        let role = objects.iter().find(is_role).unwrap_or(&Value::Null);
        let within = binding["metadata"]["namespace"].as_str().map(str::to_owned);
        // Groups are skipped, because they are a hub's seeds.
        for subject in list(&binding["subjects"]).iter().filter(|one| one["kind"] == "ServiceAccount") {
            let account = subject["name"].as_str().unwrap_or_default();
            for attributes in list(&role["rules"]).iter().flat_map(each_of) {
                rights.push(Right {
                    user: format!("system:serviceaccount:{namespace}:{account}"),
                    role: role["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    attributes: ResourceAttributes { namespace: within.clone(), ..attributes },
                });
            }
        }
    }
    rights
}

/// Every combination of what a rule lists.
fn each_of(rule: &Value) -> Vec<ResourceAttributes> {
    let texts = |field: &str| -> Vec<Option<String>> {
        list(&rule[field]).iter().map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let (groups, resources, verbs) = (texts("apiGroups"), texts("resources"), texts("verbs"));
    let mut names = texts("resourceNames");
    if names.is_empty() {
        names.push(None);
    }
    let mut all = Vec::new();
    for group in &groups {
        for resource in &resources {
            for verb in &verbs {
                for name in &names {
                    all.push(ResourceAttributes {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        name: name.clone(),
                        ..ResourceAttributes::default()
                    });
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::MemberParts;
    use crate::install::hub::HUB_SECRET;
    use crate::install::member::HubCredentialsSecret;

    #[test]
    fn service_accounts_have_the_rights_of_their_own_namespaces() -> anyhow::Result<()> {
        let hub = HubCredentialsSecret { secret: HUB_SECRET.to_owned(), digest: None };
        let settings =
            InstallSettings { member: Some(MemberParts::Courier(hub)), ..InstallSettings::new("velero") };
        let rights = granted(&render(&settings)?, "velero");
        let of_agent: Vec<&Right> = rights.iter().filter(|right| right.user.ends_with(AGENT)).collect();
        let may = |verb: &str, resource: &str, namespace: &str| {
            of_agent.iter().any(|right| {
                let of = &right.attributes;
                of.verb.as_deref() == Some(verb)
                    && of.resource.as_deref() == Some(resource)
                    && of.namespace.as_deref() == Some(namespace)
            })
        };
        assert!(may("create", "configmaps", "garden") && may("create", "leases", "velero"));
        assert!(!may("create", "configmaps", "velero") && !may("create", "leases", "garden"));
        assert!(rights.iter().all(|right| right.user.starts_with("system:serviceaccount:velero:berth-")));
        Ok(())
    }
}
