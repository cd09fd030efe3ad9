//! The YAML of a resource policy. Unknown fields are refused, as by Velero.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The fault of a selector in both forms.
pub const BESIDE: &str = "labels and matchLabels exclude each other: move labels into matchLabels";

/// `null` is an empty list.
type List<T = String> = Option<Vec<T>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyDocument {
    pub version: Option<String>,
    pub volume_policies: List<VolumePolicyDocument>,
    pub include_exclude_policy: Option<IncludeExclude>,
    pub cluster_scoped_filter_policy: Option<ClusterPolicy>,
    pub namespaced_filter_policies: List<NamespacePolicyDocument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IncludeExclude {
    pub included_cluster_scoped_resources: List,
    pub excluded_cluster_scoped_resources: List,
    pub included_namespace_scoped_resources: List,
    pub excluded_namespace_scoped_resources: List,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterPolicy {
    pub resource_filters: List<ResourceFilterDocument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespacePolicyDocument {
    pub namespaces: List,
    pub resource_filters: List<ResourceFilterDocument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceFilterDocument {
    pub kinds: List,
    pub label_selector: Option<PolicySelector>,
    pub or_label_selectors: List<PolicySelector>,
    pub names: List,
    pub excluded_names: List,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumePolicyDocument {
    pub conditions: Option<ConditionsDocument>,
    pub action: Option<ActionDocument>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionsDocument {
    pub capacity: Option<String>,
    pub storage_class: List,
    pub nfs: Option<NfsDocument>,
    pub csi: Option<CsiDocument>,
    pub volume_types: List,
    pub pvc_labels: Option<BTreeMap<String, String>>,
    pub pvc_phase: List,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NfsDocument {
    pub server: Option<String>,
    pub path: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CsiDocument {
    pub driver: Option<String>,
    pub volume_attributes: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionDocument {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Parameters for the plugin that performs the action.
    #[serde(rename = "parameters")]
    pub _parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// A selector in Kubernetes' form, or, as in early Velero 1.18, labels alone.
pub struct PolicySelector(pub LabelSelector);

impl<'de> Deserialize<'de> for PolicySelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PolicySelectorVisitor)
    }
}

struct PolicySelectorVisitor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: String,
    operator: String,
    values: List,
}

impl<'de> Visitor<'de> for PolicySelectorVisitor {
    type Value = PolicySelector;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a selector: matchLabels, matchExpressions, or labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<PolicySelector, A::Error> {
        let (mut selector, mut labels) = (LabelSelector::default(), BTreeMap::new());
        let mut is_selector = false;
        while let Some(key) = entries.next_key::<String>()? {
            match key.as_str() {
                "matchLabels" => {
                    is_selector = true;
                    selector.match_labels = entries.next_value()?;
                }
                "matchExpressions" => {
                    is_selector = true;
                    let read: List<Requirement> = entries.next_value()?;
                    let read = read.unwrap_or_default().into_iter().map(|one| LabelSelectorRequirement {
                        key: one.key,
                        operator: one.operator,
                        values: one.values,
                    });
                    selector.match_expressions = Some(read.collect());
                }
                _ => {
                    labels.insert(key, entries.next_value::<String>()?);
                }
            }
        }
        if is_selector && !labels.is_empty() {
            return Err(A::Error::custom(BESIDE));
        }
        if !is_selector {
            selector.match_labels = Some(labels);
        }
        Ok(PolicySelector(selector))
    }
}
