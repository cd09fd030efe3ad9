//! The node-agents' configuration: which ConfigMap it is in, and its contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use berth_api::node_agent::{self, NodeAgentConfig, Parsed};
use berth_core::violation::Violations;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, PodSpec};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::watch::{list, of_namespace};

const FLAG: &str = "--node-agent-configmap";

/// The state of the configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationState {
    /// Name of the ConfigMap; `None`: no node-agent names one.
    pub name: Option<String>,
    pub uid: String,
    /// When the ConfigMap was last written.
    pub changed_at: Option<Timestamp>,
    /// The last usable configuration.
    pub config: Arc<NodeAgentConfig>,
    /// The faults of the ConfigMap now. It may be usable all the same, because Velero ignores many
    /// faults.
    pub faults: Violations,
    /// The ConfigMap cannot be used, so `config` is older.
    pub unusable: bool,
}

impl ConfigurationState {
    /// A reference to the ConfigMap, for Events.
    pub fn reference(&self, namespace: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: self.name.clone(),
            uid: Some(self.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        }
    }

    /// The state with the current contents of the ConfigMap; `None`: it was deleted.
    pub(super) fn with(&self, name: &str, found: Option<&ConfigMapContents>) -> Self {
        let keep = |faults, unusable| Self { name: Some(name.to_owned()), faults, unusable, ..self.clone() };
        let Some(found) = found else {
            let mut faults = Violations::default();
            faults.push(berth_core::violation::Field::root("ConfigMap"), format!("{name} does not exist"));
            return keep(faults, true);
        };
        match node_agent::parse(&found.data) {
            Ok(Parsed { config, violations: faults }) => Self {
                name: Some(name.to_owned()),
                uid: found.uid.clone(),
                changed_at: found.changed_at,
                config: Arc::new(config),
                faults,
                unusable: false,
            },
            Err(faults) => Self { uid: found.uid.clone(), ..keep(faults, true) },
        }
    }
}

/// The parts of a ConfigMap that are needed.
pub(super) struct ConfigMapContents {
    uid: String,
    changed_at: Option<Timestamp>,
    data: BTreeMap<String, String>,
}

impl ConfigMapContents {
    pub(super) fn of(map: ConfigMap) -> Self {
        let written = map.metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
        Self {
            uid: map.uid().unwrap_or_default(),
            changed_at: written.map(|time| time.0).max().or(map.creation_timestamp().map(|time| time.0)),
            data: map.data.unwrap_or_default(),
        }
    }
}

/// The name of the ConfigMap that node-agents with this template read.
fn named_by(spec: &PodSpec) -> Option<String> {
    let containers = spec.containers.iter();
    let mut words = containers
        .flat_map(|c| c.command.iter().chain(&c.args).flatten())
        .skip_while(|w| !w.starts_with(FLAG));
    let first = words.next()?;
    match first.strip_prefix(FLAG)?.strip_prefix('=') {
        Some(name) => Some(name.to_owned()),
        None if first == FLAG => words.next().cloned(),
        None => None,
    }
    .filter(|name| !name.is_empty())
}

/// Reads the current state once: of the ConfigMap that is `given`, or else of the one that a
/// DaemonSet of node-agents names.
///
/// # Errors
/// The API server cannot be read.
pub async fn read_once(
    client: &Client,
    namespace: &str,
    given: Option<&str>,
) -> anyhow::Result<ConfigurationState> {
    let name = match given {
        Some(given) => Some(given.to_owned()),
        None => {
            let sets = list(of_namespace(client, namespace), &ListParams::default()).await?;
            first_named(&sets.into_iter().map(named).collect())
        }
    };
    let Some(name) = name else { return Ok(ConfigurationState::default()) };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = maps.get_opt(&name).await.with_context(|| format!("failed to read ConfigMap {name}"))?;
    Ok(ConfigurationState::default().with(&name, found.map(ConfigMapContents::of).as_ref()))
}

/// A DaemonSet, and the ConfigMap that it names.
pub(super) fn named(set: DaemonSet) -> (String, Option<String>) {
    let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    (set.name_any(), spec.and_then(named_by))
}

/// If there are several DaemonSets (one for Windows), the first by name decides, because all of
/// them should name the same ConfigMap.
pub(super) fn first_named(sets: &BTreeMap<String, Option<String>>) -> Option<String> {
    sets.values().flatten().next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_found_in_all_its_spellings() {
        for (words, expected) in [
            (&["node-agent", "server", "--node-agent-configmap=a"][..], Some("a")),
            (&["node-agent", "server", "--node-agent-configmap", "a", "--x"], Some("a")),
            (&["node-agent", "server", "--node-agent-configmap="], None),
            (&["node-agent", "server", "--node-agent-configmap"], None),
            (&["node-agent", "server"], None),
        ] {
            let spec = serde_json::json!({"containers": [{"name": "node-agent", "args": words}]});
            let spec: PodSpec = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
            assert_eq!(named_by(&spec).as_deref(), expected, "{words:?}");
        }
    }
}
