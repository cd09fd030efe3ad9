//! Which clients may send reviews to the webhooks, and how long an API server waits for an answer.

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use serde_json::{Value, json};

use super::cluster::{CONFIGURATION, ClusterFindings, InstallCluster};
use crate::args::{ANYWHERE, ReviewArgs};

const WEBHOOK: &str = "berth-webhook";
/// Volume, mount and file of the authority that signs the API servers' client certificates.
const VOLUME: &str = "client-ca";
const FOLDER: &str = "/client-ca";
pub(super) const FLAG: &str = "--client-ca=/client-ca/ca.crt";

/// The settings. `Default`: as in the manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reviews {
    /// In seconds.
    pub timeout: Option<u8>,
    /// Allowed addresses as CIDR. Empty: all.
    pub from: Vec<String>,
    /// ConfigMap of the namespace, with `ca.crt`.
    pub client_authority: Option<String>,
}

impl Reviews {
    /// The settings by the flags, or else as installed.
    pub fn wanted(args: &ReviewArgs, installed: Option<Self>) -> Self {
        let installed = installed.unwrap_or_default();
        let said = |given: &String| Some(given.clone()).filter(|given| !given.is_empty());
        Self {
            timeout: args.webhook_timeout.or(installed.timeout),
            from: match args.reviews_from.as_slice() {
                [] => installed.from,
                [one] if one == ANYWHERE => Vec::new(),
                several => several.to_vec(),
            },
            client_authority: match &args.client_ca_configmap {
                Some(given) => said(given),
                None => installed.client_authority,
            },
        }
    }

    /// Reads the installed settings.
    ///
    /// # Errors
    /// When an object cannot be read.
    pub async fn of(cluster: &InstallCluster, found: &ClusterFindings) -> anyhow::Result<Option<Self>> {
        let Some(installed) = &found.installed else { return Ok(None) };
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
        let configuration = configurations
            .get_opt(CONFIGURATION)
            .await
            .context("the webhook configurations cannot be read")?;
        let timeout = configuration.and_then(|one| one.webhooks?.first()?.timeout_seconds);
        let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let policy = policies
            .get_opt(WEBHOOK)
            .await
            .with_context(|| format!("the NetworkPolicy {WEBHOOK} cannot be read"))?;
        let rules = policy.and_then(|policy| policy.spec?.ingress).unwrap_or_default();
        let peers = rules.into_iter().filter_map(|rule| rule.from).flatten();
        let volumes = installed
            .deployment(WEBHOOK)
            .and_then(|deployment| deployment.spec.as_ref()?.template.spec.as_ref()?.volumes.as_ref());
        let volume = volumes.into_iter().flatten().find(|volume| volume.name == VOLUME);
        Ok(Some(Self {
            timeout: timeout.and_then(|seconds| u8::try_from(seconds).ok()),
            from: peers.filter_map(|peer| Some(peer.ip_block?.cidr)).collect(),
            client_authority: volume
                .and_then(|volume| volume.config_map.as_ref().map(|map| map.name.clone())),
        }))
    }

    /// Writes the settings into an object of the installation, if they apply to it.
    ///
    /// # Errors
    /// When the object is not as in the manifests.
    pub fn configure(&self, object: &mut Value) -> anyhow::Result<()> {
        let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten() {
            if let Some(seconds) = self.timeout {
                webhook["timeoutSeconds"] = json!(seconds);
            }
        }
        if object["metadata"]["name"] != WEBHOOK {
            return Ok(());
        }
        match (object["kind"].as_str(), &self.client_authority) {
            (Some("NetworkPolicy"), _) if !self.from.is_empty() => {
                let blocks: Vec<Value> =
                    self.from.iter().map(|cidr| json!({"ipBlock": {"cidr": cidr}})).collect();
                let rule = object.pointer_mut("/spec/ingress/0").context("a NetworkPolicy without a rule")?;
                rule["from"] = json!(blocks);
            }
            (Some("Deployment"), Some(authority)) => {
                let pod = &mut object["spec"]["template"]["spec"];
                pod["volumes"] = json!([{"name": VOLUME, "configMap": {"name": authority}}]);
                let container =
                    pod.pointer_mut("/containers/0").context("a Deployment without a container")?;
                container["volumeMounts"] = json!([{"name": VOLUME, "mountPath": FOLDER, "readOnly": true}]);
                let args = container["args"].as_array_mut().context("a container without arguments")?;
                args.push(json!(FLAG));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(timeout: Option<u8>, from: &[&str], authority: Option<&str>) -> ReviewArgs {
        ReviewArgs {
            webhook_timeout: timeout,
            reviews_from: from.iter().map(|&one| one.to_owned()).collect(),
            client_ca_configmap: authority.map(str::to_owned),
        }
    }

    #[test]
    fn what_is_not_said_stays_and_every_restriction_can_be_taken_back() {
        let installed = Reviews {
            timeout: Some(5),
            from: vec!["10.0.0.0/28".into()],
            client_authority: Some("callers".into()),
        };
        let wanted = |args| Reviews::wanted(&args, Some(installed.clone()));
        assert_eq!(wanted(args(None, &[], None)), installed);
        assert_eq!(
            wanted(args(Some(2), &[ANYWHERE], Some(""))),
            Reviews { timeout: Some(2), ..Reviews::default() }
        );
        let other = wanted(args(None, &["10.1.0.0/28", "fd00::/64"], Some("others")));
        assert_eq!((other.from.len(), other.client_authority.as_deref()), (2, Some("others")));
    }
}
