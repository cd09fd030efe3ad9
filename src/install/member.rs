//! The agent of a member of shared buckets: the wanted settings, and the installed ones.

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::arguments::{containers, flag_of};
use super::hub::{HUB_SECRET, HubAccess, KUBECONFIG, SEED};
use crate::args::MemberArgs;

/// Name of the agent's Deployment, Lease and roles.
pub const AGENT: &str = "berth-garden-agent";
/// Annotation of the agent's pods with a digest of the Secret. The pods read the Secret once, so a
/// changed one needs new pods.
const DIGEST: &str = "garden.berth.dev/hub-digest";

/// The parts that a member cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberParts {
    /// The agent alone, for this cluster's objects.
    Agent,
    /// The agent, which also syncs with a hub.
    Courier(HubCredentialsSecret),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCredentialsSecret {
    /// Name of the Secret.
    pub secret: String,
    /// The digest of the Secret, if berth wrote it.
    pub digest: Option<String>,
}

impl MemberParts {
    /// The wanted settings: by the flags, or else as installed. `access`: from `--hub-kubeconfig`.
    pub fn wanted(args: &MemberArgs, access: Option<&HubAccess>, installed: Option<&Self>) -> Option<Self> {
        if args.garden_member == Some(false) {
            return None;
        }
        if let Some(access) = access {
            return Some(Self::Courier(HubCredentialsSecret {
                secret: HUB_SECRET.to_owned(),
                digest: Some(access.digest()),
            }));
        }
        if let Some(name) = &args.hub_secret {
            let is_same = |member: &&Self| member.hub().is_some_and(|hub| hub.secret == *name);
            let new = || Self::Courier(HubCredentialsSecret { secret: name.clone(), digest: None });
            return Some(installed.filter(is_same).cloned().unwrap_or_else(new));
        }
        installed.cloned().or_else(|| (args.garden_member == Some(true)).then_some(Self::Agent))
    }

    /// Reads the settings from the agent's Deployment.
    pub fn of(deployments: &[Deployment]) -> Option<Self> {
        let agent = deployments.iter().find(|deployment| deployment.name_any() == AGENT)?;
        if flag_of(std::slice::from_ref(agent), "--hub-kubeconfig").is_none() {
            return Some(Self::Agent);
        }
        let template = agent.spec.as_ref().map(|spec| &spec.template);
        let env = containers(agent).flat_map(|container| container.env.iter().flatten());
        let secret = env
            .filter(|variable| variable.name == "SEED")
            .find_map(|variable| Some(variable.value_from.as_ref()?.secret_key_ref.as_ref()?.name.clone()));
        let annotations = template.and_then(|template| template.metadata.as_ref()?.annotations.as_ref());
        Some(Self::Courier(HubCredentialsSecret {
            secret: secret.unwrap_or_else(|| HUB_SECRET.to_owned()),
            digest: annotations.and_then(|annotations| annotations.get(DIGEST).cloned()),
        }))
    }

    pub fn hub(&self) -> Option<&HubCredentialsSecret> {
        match self {
            Self::Agent => None,
            Self::Courier(hub) => Some(hub),
        }
    }

    /// Folders of `manifests/`, in the order of installation.
    pub fn components(&self) -> &'static [&'static str] {
        const ALL: [&str; 3] =
            ["components/garden-member/crd", "components/garden-member", "components/garden-courier"];
        match self {
            Self::Agent => &ALL[..2],
            Self::Courier(_) => &ALL,
        }
    }
}

impl HubCredentialsSecret {
    /// Sets the Secret in the agent's Deployment.
    ///
    /// # Errors
    /// When the Deployment is not as in the manifests.
    pub fn configure(&self, deployment: &mut Value) -> anyhow::Result<()> {
        let mut names = 0;
        name_secret(deployment, &self.secret, &mut names);
        if names != 2 {
            bail!("the agent's Deployment names its Secret {names} times");
        }
        if let Some(digest) = &self.digest {
            let metadata = deployment
                .pointer_mut("/spec/template/metadata")
                .context("a Deployment without a template of pods")?;
            metadata["annotations"][DIGEST] = json!(digest);
        }
        Ok(())
    }

    /// The command that creates the Secret by hand.
    pub fn recipe(&self, namespace: &str) -> String {
        format!(
            "kubectl create secret generic {} --namespace {namespace} --from-file={KUBECONFIG}=FILE --from-literal={SEED}=NAME",
            self.secret
        )
    }
}

fn name_secret(value: &mut Value, name: &str, names: &mut usize) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| name_secret(value, name, names)),
        Value::Array(items) => items.iter_mut().for_each(|item| name_secret(item, name, names)),
        Value::String(text) if text == HUB_SECRET => {
            name.clone_into(text);
            *names += 1;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{InstallSettings, render};
    use crate::settings::Executor;

    fn args(garden_member: Option<bool>, hub_secret: Option<&str>) -> MemberArgs {
        MemberArgs {
            garden_member,
            hub_kubeconfig: None,
            seed: None,
            hub_secret: hub_secret.map(str::to_owned),
            beside_gardener: false,
        }
    }

    fn courier(secret: &str, digest: Option<&str>) -> MemberParts {
        MemberParts::Courier(HubCredentialsSecret {
            secret: secret.to_owned(),
            digest: digest.map(str::to_owned),
        })
    }

    #[test]
    fn what_is_not_said_stays() {
        let wanted = |member, secret, installed: Option<&MemberParts>| {
            MemberParts::wanted(&args(member, secret), None, installed)
        };
        let there = courier(HUB_SECRET, Some("d"));
        assert_eq!(wanted(None, None, None), None);
        assert_eq!(wanted(Some(true), None, None), Some(MemberParts::Agent));
        for said in [None, Some(true)] {
            assert_eq!(wanted(said, None, Some(&MemberParts::Agent)), Some(MemberParts::Agent));
            assert_eq!(wanted(said, None, Some(&there)), Some(there.clone()));
        }
        assert_eq!(wanted(Some(false), None, Some(&there)), None);
        assert_eq!(wanted(None, Some("mine"), Some(&there)), Some(courier("mine", None)));
        assert_eq!(wanted(None, Some(HUB_SECRET), Some(&there)), Some(there.clone()));
        assert_eq!(wanted(None, Some(HUB_SECRET), None), Some(courier(HUB_SECRET, None)));
    }

    #[test]
    fn what_is_installed_is_known_by_the_deployment_that_is_rendered() -> anyhow::Result<()> {
        for member in [
            None,
            Some(MemberParts::Agent),
            Some(courier(HUB_SECRET, Some("d"))),
            Some(courier("mine", None)),
        ] {
            let settings = InstallSettings { member: member.clone(), ..InstallSettings::new("velero") };
            let deployments = render(&settings)?
                .into_iter()
                .filter(|object| object["kind"] == "Deployment")
                .map(serde_json::from_value)
                .collect::<Result<Vec<Deployment>, _>>()?;
            assert_eq!(MemberParts::of(&deployments), member);
        }
        Ok(())
    }

    #[test]
    fn the_agent_has_flags_and_a_secret_of_its_own() {
        let settings = InstallSettings {
            executor: Executor::Velero,
            image: Some("mirror/berth:1".to_owned()),
            args: vec!["--concurrent-backups=3".to_owned()],
            member: Some(courier("hub", Some("0123456789"))),
            ..InstallSettings::new("elsewhere")
        };
        let objects = render(&settings).unwrap_or_default();
        let of = |name: &str| {
            let is_it = |one: &&Value| one["kind"] == "Deployment" && one["metadata"]["name"] == name;
            objects.iter().find(is_it).cloned().unwrap_or_default()
        };
        let agent = of(AGENT);
        let template = &agent["spec"]["template"];
        let container = &template["spec"]["containers"][0];
        assert_eq!(
            container["args"],
            json!([
                "garden",
                "agent",
                "--namespace=$(POD_NAMESPACE)",
                "--hub-kubeconfig=/var/run/berth/hub/kubeconfig",
                "--seed=$(SEED)",
            ])
        );
        assert_eq!(container["image"], "mirror/berth:1");
        assert_eq!(container["env"][1]["valueFrom"]["secretKeyRef"], json!({"name": "hub", "key": "seed"}));
        assert_eq!(template["spec"]["volumes"][0]["secret"]["secretName"], "hub");
        assert_eq!(template["metadata"]["annotations"]["garden.berth.dev/hub-digest"], "0123456789");
        let webhook = of("berth-webhook").to_string();
        assert!(
            webhook.contains("--executor=velero") && webhook.contains("--concurrent-backups=3"),
            "{webhook}"
        );
    }

    #[test]
    fn definitions_of_somebody_else_are_not_brought() {
        let names = |foreign: &[&str]| -> Vec<String> {
            let foreign = foreign.iter().map(|name| (*name).to_owned()).collect();
            let settings = InstallSettings {
                member: Some(MemberParts::Agent),
                foreign,
                ..InstallSettings::new("velero")
            };
            let objects = render(&settings).unwrap_or_default();
            let of_gardener =
                objects.iter().filter(|one| one["spec"]["group"] == "extensions.gardener.cloud");
            of_gardener.filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned)).collect()
        };
        let both = ["backupbuckets.extensions.gardener.cloud", "backupentries.extensions.gardener.cloud"];
        assert_eq!(names(&[]), both);
        assert_eq!(names(&both[..1]), both[1..]);
        assert_eq!(names(&both), [""; 0]);
    }
}
