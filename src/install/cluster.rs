//! The state of a cluster before an installation, and reasons against one.

use anyhow::{Context as _, bail};
use berth_api::keys::SEEDS_NAMESPACE;
use berth_garden_api::GARDEN_NAMESPACE;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::arguments::{containers, flag_of, flags, installed};
use super::{MemberParts, pod_volumes};
use crate::certificates::ca_bundles::called;
use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::queue::definition;
use crate::settings::{Certificates, Executor};

/// Name of both webhook configurations.
pub const CONFIGURATION: &str = "berth";
/// The first release with matchConditions that need no feature gate.
const LEAST_MINOR: u32 = 30;

/// Namespaces of shared buckets: the stores' credentials, and the seeds' identities.
pub const GARDEN_NAMESPACES: [&str; 2] = [GARDEN_NAMESPACE, SEEDS_NAMESPACE];

/// A cluster and the namespace in it that berth serves.
#[derive(Clone)]
pub struct InstallCluster {
    pub client: Client,
    pub namespace: String,
}

/// The state of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterFindings {
    /// Version of the API server, as in `v1.36.3`.
    pub version: String,
    /// The `x` of 1.x.
    pub minor: Option<u32>,
    /// Does the API server support ValidatingAdmissionPolicies?
    pub has_policies: bool,
    pub has_cert_manager: bool,
    /// The Deployment of a Velero server in that namespace.
    pub velero: Option<Deployment>,
    pub namespace: Presence,
    /// Is the definition of Backups there, and who installed it?
    pub definition: Presence,
    /// Names of the namespaces and definitions of shared buckets, and of the definitions for files
    /// of volumes, that no berth installed.
    pub foreign: Vec<String>,
    /// Why the definition of Backups cannot be used, and the way out.
    pub definition_fault: Option<String>,
    /// Namespace of the berth that the webhook configurations call.
    pub called: Option<String>,
    /// The berth of this namespace.
    pub installed: Option<Installed>,
    /// The Helm release that installed the webhook configurations.
    pub helm_release: Option<String>,
}

/// The settings of an installed berth, read from its Deployments.
#[derive(Clone, Debug)]
pub struct Installed {
    pub executor: Executor,
    pub certificates: Certificates,
    pub member: Option<MemberParts>,
    /// berth's node agents.
    pub agents: Option<DaemonSet>,
    /// The node agents are the last of them ([`pod_volumes::as_deployment`]).
    pub deployments: Vec<Deployment>,
}

impl Installed {
    pub fn deployment(&self, name: &str) -> Option<&Deployment> {
        self.deployments.iter().find(|one| one.name_any() == name)
    }

    /// The value of a flag; the last one counts.
    pub fn flag(&self, flag: &str) -> Option<String> {
        flag_of(&self.deployments, flag)
    }

    /// Was it installed without a Velero?
    pub fn trusts_no_velero(&self) -> bool {
        let args = self.deployments.iter().flat_map(containers).filter_map(|one| one.args.as_deref());
        args.flatten().any(|arg| arg == "--without-velero")
    }

    /// Velero's service account in `namespace`, if its name is not the usual one. Then an admin
    /// chose it, so it keeps Velero's rights even when no Velero is found.
    pub fn velero_account(&self, namespace: &str) -> Option<String> {
        const FLAG: &str = "--lifecycle-identity=";
        let webhook = self.deployment("berth-webhook")?;
        let prefix = format!("{FLAG}system:serviceaccount:{namespace}:");
        let args = installed(webhook);
        let user = flags(&args).into_iter().rev().find(|flag| flag.starts_with(FLAG))?;
        Some(user.strip_prefix(&prefix)?.to_owned())
    }

    /// The image of the first Deployment.
    pub fn image(&self) -> Option<&str> {
        self.deployments.iter().flat_map(containers).find_map(|container| container.image.as_deref())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Absent,
    /// An installation of berth created it.
    Ours,
    /// It was created otherwise.
    Foreign,
}

impl Presence {
    pub(super) fn of(labels: Option<&std::collections::BTreeMap<String, String>>) -> Self {
        match labels {
            None => Self::Absent,
            Some(labels) if labels.get(PART_OF).is_some_and(|part| part == PART_OF_BERTH) => Self::Ours,
            Some(_) => Self::Foreign,
        }
    }
}

impl InstallCluster {
    /// # Errors
    /// When the API server does not answer, or refuses a read.
    pub async fn inspect(&self) -> anyhow::Result<ClusterFindings> {
        let info = self.client.apiserver_version().await.context("the API server does not answer")?;
        let served = |resource: &'static str| async move {
            let found = self.client.list_api_group_resources("admissionregistration.k8s.io/v1").await?;
            Ok::<_, kube::Error>(found.resources.iter().any(|one| one.name == resource))
        };
        let groups = self.client.list_api_groups().await.context("the API groups cannot be listed")?;
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let definition = definitions
            .get_opt(definition::DEFINITION)
            .await
            .context("the definition of Backups cannot be read")?;
        let mut foreign = Vec::new();
        let optional = [berth_garden_api::crd::member(), berth_api::crd::pod_volumes()].concat();
        for name in optional.into_iter().filter_map(|one| one.metadata.name) {
            let found = definitions.get_opt(&name).await.with_context(|| format!("{name} cannot be read"))?;
            if Presence::of(found.as_ref().map(|found| found.labels())) == Presence::Foreign {
                foreign.push(name);
            }
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let presence = async |name: &str| {
            let found =
                namespaces.get_opt(name).await.with_context(|| format!("namespace {name} cannot be read"))?;
            anyhow::Ok(Presence::of(found.as_ref().map(|namespace| namespace.labels())))
        };
        for name in GARDEN_NAMESPACES {
            if presence(name).await? == Presence::Foreign {
                foreign.push(name.to_owned());
            }
        }
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration = configurations
            .get_opt(CONFIGURATION)
            .await
            .context("the webhook configurations cannot be read")?;
        let helm_release = configuration.as_ref().and_then(|configuration| {
            let annotations = configuration.annotations();
            (configuration.labels().get("app.kubernetes.io/managed-by").map(String::as_str) == Some("Helm"))
                .then(|| annotations.get("meta.helm.sh/release-name").cloned().unwrap_or_default())
        });
        Ok(ClusterFindings {
            minor: info.minor.trim_end_matches('+').parse().ok(),
            version: info.git_version,
            has_policies: served("validatingadmissionpolicies").await?,
            has_cert_manager: groups.groups.iter().any(|group| group.name == "cert-manager.io"),
            velero: self.velero().await?,
            namespace: presence(&self.namespace).await?,
            definition: Presence::of(definition.as_ref().map(|definition| definition.labels())),
            foreign,
            definition_fault: definition.as_ref().and_then(definition::fault),
            called: configuration.as_ref().and_then(called),
            installed: self.installed().await?,
            helm_release,
        })
    }

    /// The DaemonSet of berth's node agents, if an installation of berth created it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn agents(&self) -> anyhow::Result<Option<DaemonSet>> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(pod_volumes::AGENT).await;
        let found = found.context("the DaemonSet of the node agents cannot be read")?;
        Ok(found.filter(|found| Presence::of(found.metadata.labels.as_ref()) == Presence::Ours))
    }

    /// The berth of this namespace.
    ///
    /// # Errors
    /// When Deployments cannot be listed.
    pub async fn installed(&self) -> anyhow::Result<Option<Installed>> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let labelled = ListParams::default().labels(&format!("{PART_OF}={PART_OF_BERTH}"));
        let mut deployments = api.list(&labelled).await.context("Deployments cannot be listed")?.items;
        let agents = self.agents().await?;
        deployments.extend(agents.iter().map(pod_volumes::as_deployment));
        if deployments.is_empty() {
            return Ok(None);
        }
        let is = |flag: &str, value: &str| flag_of(&deployments, flag).as_deref() == Some(value);
        let executor = if is("--executor", "velero") { Executor::Velero } else { Executor::Berth };
        let certificates = if is("--certificates", "cert-manager") {
            Certificates::CertManager
        } else {
            Certificates::SelfManaged
        };
        let member = MemberParts::of(&deployments);
        Ok(Some(Installed { executor, certificates, member, agents, deployments }))
    }

    /// The Deployment of a Velero server in this namespace.
    ///
    /// # Errors
    /// When Deployments cannot be listed.
    pub async fn velero(&self) -> anyhow::Result<Option<Deployment>> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.list(&ListParams::default()).await.context("Deployments cannot be listed")?;
        Ok(found.items.into_iter().find(|deployment| {
            deployment.name_any() == "velero"
                || deployment.labels().get("component").is_some_and(|component| component == "velero")
        }))
    }
}

impl ClusterFindings {
    /// # Errors
    /// The reason against an installation into `namespace`, with the way out.
    pub fn ensure_installable(&self, namespace: &str, needs_cert_manager: bool) -> anyhow::Result<()> {
        if let Some(minor) = self.minor.filter(|minor| *minor < LEAST_MINOR) {
            bail!("Kubernetes 1.{minor} is too old: berth's webhooks need 1.{LEAST_MINOR} or later");
        }
        if let Some(release) = &self.helm_release {
            bail!(
                "berth was installed here by Helm: use `helm upgrade {release}`, or uninstall that release first"
            );
        }
        if let Some(other) = self.called.as_ref().filter(|other| *other != namespace) {
            bail!(
                "another berth is installed in namespace {other}, and two of them would not know of each other's backups: use that one (`--namespace {other}`), or end it by `berth uninstall --namespace {other}`"
            );
        }
        if needs_cert_manager && !self.has_cert_manager {
            bail!(
                "cert-manager is not installed in this cluster: install it first, or leave out --certificates"
            );
        }
        if let Some(fault) = self.definition_fault.as_ref().filter(|_| self.definition == Presence::Foreign) {
            bail!(
                "{fault}\nWith a Velero of 1.18 or later: velero install --crds-only --dry-run -o yaml | kubectl apply -f -"
            );
        }
        Ok(())
    }
}
