//! The engine's rights to read: all types, or the types that the cluster serves by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};

use crate::backup::discovery::Discovery;
use crate::backup::log::BackupLog;
use crate::settings::EngineRights;

/// Name of the ClusterRole by which the engine reads objects for backups, and of its binding.
pub const ENGINE: &str = "berth-engine";
/// Name of the ClusterRole by which the engine runs hooks in pods, and of its binding.
pub const HOOKS: &str = "berth-hooks";

/// The types that a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUpTypes {
    /// Plurals, by API group.
    resources: BTreeMap<String, BTreeSet<String>>,
    /// Did every API server list its types?
    pub is_whole: bool,
}

impl BackedUpTypes {
    /// # Errors
    /// When the API server does not answer.
    pub async fn served(client: &Client) -> anyhow::Result<Self> {
        let log = BackupLog::new(String::new());
        let served = Discovery::new(client.clone()).types(&log, Duration::ZERO).await;
        let served = served.context("the API's types cannot be listed")?;
        let mut resources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for kind in served.types {
            resources.entry(kind.group).or_default().insert(kind.resource);
        }
        Ok(Self { resources, is_whole: log.counts().warnings == 0 && served.unknown.is_empty() })
    }

    /// The types by the flag, or else as installed.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses a read.
    pub async fn wanted(said: Option<EngineRights>, client: &Client) -> anyhow::Result<Option<Self>> {
        let is_listed = match said {
            Some(said) => said == EngineRights::Listed,
            None => are_listed(client).await.context("the ClusterRole berth-engine cannot be read")?,
        };
        if !is_listed {
            return Ok(None);
        }
        let mut types = Self::served(client).await?;
        if !types.is_whole {
            // The types of an API server that does not answer keep their rights, because nothing
            // lists them again when it is back.
            let installed = role(client).await.context("the ClusterRole berth-engine cannot be read")?;
            types.keep(installed.and_then(|role| role.rules).unwrap_or_default());
        }
        Ok(Some(types))
    }

    fn keep(&mut self, installed: Vec<PolicyRule>) {
        for rule in installed {
            let resources = rule.resources.unwrap_or_default();
            for group in rule.api_groups.unwrap_or_default() {
                let named = resources.iter().filter(|resource| *resource != "*").cloned();
                self.resources.entry(group).or_default().extend(named);
            }
        }
        self.resources.retain(|_, resources| !resources.is_empty());
    }

    pub fn count(&self) -> usize {
        self.resources.values().map(BTreeSet::len).sum()
    }

    /// The rules of the engine's role: these types, and the kinds of the definitions in the
    /// installation.
    pub fn rules(&self, objects: &[Value]) -> Value {
        let mut all = self.resources.clone();
        for definition in objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition") {
            let spec = &definition["spec"];
            if let (Some(group), Some(plural)) = (spec["group"].as_str(), spec["names"]["plural"].as_str()) {
                all.entry(group.to_owned()).or_default().insert(plural.to_owned());
            }
        }
        let rule = |(group, resources): (&String, &BTreeSet<String>)| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list"]});
        all.iter().map(rule).collect()
    }
}

/// Does the engine's role exist and list types by name?
///
/// # Errors
/// When it cannot be read.
pub async fn are_listed(client: &Client) -> Result<bool, kube::Error> {
    let is_for_all = |rule: &PolicyRule| rule.resources.iter().flatten().any(|resource| resource == "*");
    Ok(role(client).await?.is_some_and(|role| !role.rules.iter().flatten().any(is_for_all)))
}

async fn role(client: &Client) -> Result<Option<ClusterRole>, kube::Error> {
    Api::all(client.clone()).get_opt(ENGINE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_keeps_the_rights_to_its_types() {
        let of = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let rule = |group: &str, resources: &[&str]| PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(resources.iter().map(|&name| name.to_owned()).collect()),
            ..PolicyRule::default()
        };
        let mut types =
            BackedUpTypes { resources: BTreeMap::from([(String::new(), of(&["pods"]))]), is_whole: false };
        types.keep(vec![rule("", &["secrets"]), rule("metrics.k8s.io", &["pods"]), rule("all", &["*"])]);
        let kept = [(String::new(), of(&["pods", "secrets"])), ("metrics.k8s.io".to_owned(), of(&["pods"]))];
        assert_eq!(types.resources, BTreeMap::from(kept));
    }

    #[test]
    fn each_group_has_a_rule_with_what_is_served_and_what_comes_with_the_installation() {
        let of = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let resources =
            [(String::new(), of(&["pods", "secrets"])), ("apps".to_owned(), of(&["deployments"]))];
        let types = BackedUpTypes { resources: BTreeMap::from(resources), is_whole: true };
        let definition = |group: &str, plural: &str| json!({"kind": "CustomResourceDefinition", "spec": {"group": group, "names": {"plural": plural}}});
        let objects =
            [definition("velero.io", "backups"), definition("apps", "deployments"), json!({"kind": "Role"})];
        let verbs = json!(["get", "list"]);
        let expected = json!([
            {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": verbs},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": verbs},
            {"apiGroups": ["velero.io"], "resources": ["backups"], "verbs": verbs},
        ]);
        assert_eq!((types.rules(&objects), types.count()), (expected, 3));
    }
}
