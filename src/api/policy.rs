//! A Backup's resource policy: YAML in the only key of a ConfigMap in the Backup's namespace, as
//! Velero reads it.
//!
//! Its size, depth and aliases are limited before any of it is used. A text that is not YAML of
//! this form is reported with line and column, without quoting it. All other faults are reported
//! with their field path.

mod document;
mod fault;

use std::collections::BTreeMap;

use berth_core::glob::Glob;
use berth_core::label::Selector;
use berth_core::limits;
use berth_core::policy::Policies;
use berth_core::policy::filters::{NameFilter, NamespacePolicy, ResourceFilterRule};
use berth_core::policy::volume::{CsiSource, KINDS, NfsSource, VolumeAction, VolumeConditions, VolumePolicy};
use berth_core::selection::{Filter, Lists};
use berth_core::violation::{Field, Violations};
use serde_saphyr::Options;

use crate::filter::check_lists;
use crate::quantity::Quantity;
use crate::selector::{limit_labels, parse_selector};
use document::{PolicyDocument, ResourceFilterDocument};

/// The only version.
const VERSION: &str = "v1";
const PHASES: [&str; 3] = ["Pending", "Bound", "Lost"];
/// Nesting depth: more than a valid policy needs.
const DEPTH: usize = 16;
/// Number of keys and values.
const NODES: usize = 50_000;
const ALIASES: usize = 100;

/// Parses the data of a ConfigMap; `at` is the path of the ConfigMap in messages.
///
/// # Errors
/// Every fault, each with its field path.
pub fn parse(data: &BTreeMap<String, String>, at: &Field) -> Result<Policies, Violations> {
    let mut found = Violations::default();
    let mut entries = data.iter();
    let (Some((key, text)), None) = (entries.next(), entries.next()) else {
        let way_out = if data.is_empty() { "write one" } else { "leave one" };
        let message = format!(
            "has {} keys, and a policy is the value of the only one: {way_out} (binaryData does not count)",
            data.len()
        );
        found.push(at.child("data"), message);
        return Err(found);
    };
    let at = at.child("data").key(key);
    if text.len() > limits::POLICY {
        let (size, most) = (text.len(), limits::POLICY);
        found.push(at, format!("has {size} bytes, and at most {most} are taken: use patterns"));
        return Err(found);
    }
    let document: PolicyDocument = match serde_saphyr::from_str_with_options(text, options()) {
        Ok(document) => document,
        Err(error) => {
            found.push(at, format!("is not YAML of a resource policy: {}", fault::describe(&error)));
            return Err(found);
        }
    };
    let policies = read(document, &at, &mut found);
    found.into_result(policies)
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH,
            max_nodes: NODES,
            max_events: 3 * NODES,
            max_aliases: ALIASES,
            max_anchors: ALIASES,
            max_merge_keys: ALIASES,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: NODES,
            max_replay_stack_depth: DEPTH,
        },
        with_snippet: false,
    }
}

fn read(document: PolicyDocument, at: &Field, found: &mut Violations) -> Policies {
    let version = document.version.unwrap_or_default();
    let message = format!("{version:?} is not known: write {VERSION}");
    found.require(version == VERSION, &at.child("version"), message);

    let of_cluster = document.cluster_scoped_filter_policy.iter();
    let of_cluster = of_cluster.flat_map(|policy| policy.resource_filters.iter().flatten());
    let of_namespaces = document.namespaced_filter_policies.iter().flatten();
    let of_namespaces = of_namespaces.flat_map(|policy| policy.resource_filters.iter().flatten());
    let selectors = of_cluster
        .chain(of_namespaces)
        .flat_map(|filter| filter.label_selector.iter().chain(filter.or_label_selectors.iter().flatten()));
    limit_labels(selectors.map(|selector| &selector.0), at, "use fewer", found);

    let types = document.include_exclude_policy.map(|lists| {
        let at = at.child("includeExcludePolicy");
        let mut both = |includes: Option<Vec<String>>, excludes: Option<Vec<String>>, scope: &str| {
            let filter =
                Filter { includes: includes.unwrap_or_default(), excludes: excludes.unwrap_or_default() };
            let fields =
                ["included", "excluded"].map(|which| at.child(&format!("{which}{scope}ScopedResources")));
            let [included, excluded] = &fields;
            check_lists(&filter, included, excluded, found);
            for (entries, at) in [(&filter.includes, included), (&filter.excludes, excluded)] {
                let is_all = entries.iter().any(|entry| entry == "*");
                found.require(!is_all, at, "\"*\" is not for policies: write it into the Backup");
            }
            filter
        };
        Lists {
            cluster: both(
                lists.included_cluster_scoped_resources,
                lists.excluded_cluster_scoped_resources,
                "Cluster",
            ),
            namespaced: both(
                lists.included_namespace_scoped_resources,
                lists.excluded_namespace_scoped_resources,
                "Namespace",
            ),
        }
    });

    let cluster_at = at.child("clusterScopedFilterPolicy");
    let cluster = document
        .cluster_scoped_filter_policy
        .map(|policy| rules(policy.resource_filters.unwrap_or_default(), Reach::Cluster, &cluster_at, found));

    let policies = document.namespaced_filter_policies.unwrap_or_default();
    let policies_at = at.child("namespacedFilterPolicies");
    found.limit(policies.len(), limits::POLICIES, &policies_at, "use patterns");
    let namespaced: Vec<NamespacePolicy> = policies
        .into_iter()
        .take(limits::POLICIES)
        .enumerate()
        .map(|(i, policy)| {
            let at = policies_at.index(i);
            let namespaces = globs(&policy.namespaces.unwrap_or_default(), &at.child("namespaces"), found);
            let filters = policy.resource_filters.unwrap_or_default();
            NamespacePolicy { namespaces, rules: rules(filters, Reach::Namespaces, &at, found) }
        })
        .collect();
    compare(&namespaced, &policies_at, found);

    let volumes = document.volume_policies.unwrap_or_default();
    let volumes_at = at.child("volumePolicies");
    found.limit(volumes.len(), limits::POLICIES, &volumes_at, "use fewer");
    let volumes = volumes.into_iter().take(limits::POLICIES).enumerate();
    let volumes = volumes.filter_map(|(i, policy)| volume(policy, &volumes_at.index(i), found)).collect();
    Policies { types, cluster: cluster.unwrap_or_default(), namespaced, volumes }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Cluster,
    Namespaces,
}

fn rules(
    filters: Vec<ResourceFilterDocument>,
    reach: Reach,
    at: &Field,
    found: &mut Violations,
) -> Vec<ResourceFilterRule> {
    let at = at.child("resourceFilters");
    found.require(!filters.is_empty(), &at, "is empty: write one, or remove the policy");
    found.limit(filters.len(), limits::POLICIES, &at, "use fewer");
    let (mut kinds, mut rest): (BTreeMap<String, usize>, Option<usize>) = Default::default();
    let mut rules = Vec::new();
    for (i, filter) in filters.into_iter().enumerate().take(limits::POLICIES) {
        let at = at.index(i);
        let rule = rule(filter, &at, found);
        if rule.kinds.is_empty() {
            let message = "\"*\", or no kinds, is for namespacedFilterPolicies only: name kinds; those that you do not name are taken as usual";
            found.require(reach == Reach::Namespaces, &at.child("kinds"), message);
            if let Some(other) = rest.replace(i) {
                let message = format!("resourceFilters[{other}] is for all other kinds already: remove one");
                found.push(at.child("kinds"), message);
            }
            let message = "go with named kinds only, and \"*\" names none: write the kinds";
            for (field, names) in [("names", &rule.names), ("excludedNames", &rule.excluded)] {
                found.require(names.is_empty(), &at.child(field), message);
            }
        }
        for (j, kind) in rule.kinds.iter().enumerate() {
            if let Some(other) = kinds.insert(kind.clone(), i) {
                let message = format!("{kind:?} stands in resourceFilters[{other}] already: remove one");
                found.push(at.child("kinds").index(j), message);
            }
        }
        rules.push(rule);
    }
    rules
}

fn rule(filter: ResourceFilterDocument, at: &Field, found: &mut Violations) -> ResourceFilterRule {
    let mut kinds = filter.kinds.unwrap_or_default();
    let kinds_at = at.child("kinds");
    found.limit(kinds.len(), limits::NAMES, &kinds_at, "use fewer");
    kinds.truncate(limits::NAMES);
    if kinds.iter().any(|kind| kind == "*") {
        found.require(kinds.len() == 1, &kinds_at, "\"*\" stands alone: remove it, or the others");
        kinds.clear();
    }
    for (i, kind) in kinds.iter().enumerate() {
        let is_legal = (1..=253).contains(&kind.len())
            && kind.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
        let message = format!("{kind:?} is not a kind: write Pod, pods or deployments.apps");
        found.require(is_legal, &kinds_at.index(i), message);
    }
    let either = filter.or_label_selectors.unwrap_or_default();
    let either_at = at.child("orLabelSelectors");
    found.limit(either.len(), limits::SELECTORS, &either_at, "use fewer");
    let one = filter.label_selector.map(|selector| (at.child("labelSelector"), selector));
    if one.as_ref().is_some_and(|(_, selector)| !is_empty(selector)) && !either.is_empty() {
        found.push(either_at.clone(), "does not go together with labelSelector: move that one into the list");
    }
    let many = either.into_iter().take(limits::SELECTORS).enumerate();
    let many = many.map(|(i, selector)| (either_at.index(i), selector));
    let selectors: Vec<Selector> =
        one.into_iter().chain(many).map(|(at, selector)| parse_selector(&selector.0, &at, found)).collect();
    // A selector that matches everything makes the others redundant.
    let selectors = if selectors.iter().any(Selector::is_empty) { Vec::new() } else { selectors };
    let names = NameFilter::parse(&filter.names.unwrap_or_default(), &at.child("names"), found);
    let excluded =
        NameFilter::parse(&filter.excluded_names.unwrap_or_default(), &at.child("excludedNames"), found);
    ResourceFilterRule { kinds, selectors, names, excluded }
}

fn is_empty(selector: &document::PolicySelector) -> bool {
    selector.0.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.0.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn globs(entries: &[String], at: &Field, found: &mut Violations) -> Vec<Glob> {
    found.require(!entries.is_empty(), at, "is empty: name a namespace, or remove the policy");
    found.limit(entries.len(), limits::NAMES, at, "use patterns");
    let mut globs = Vec::new();
    for (i, entry) in entries.iter().enumerate().take(limits::NAMES) {
        match Glob::parse(entry) {
            Ok(glob) => globs.push(glob),
            Err(error) => found.push(at.index(i), error.to_string()),
        }
    }
    globs
}

/// Reports namespaces that several policies name, and more patterns than can be compared with every
/// namespace.
fn compare(policies: &[NamespacePolicy], at: &Field, found: &mut Violations) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut patterns = 0;
    for (i, policy) in policies.iter().enumerate() {
        for glob in &policy.namespaces {
            patterns += usize::from(glob.literal().is_none());
            if let Some(other) = seen.insert(glob.as_str(), i) {
                let message = format!(
                    "{:?} stands in namespacedFilterPolicies[{other}] already: remove one",
                    glob.as_str()
                );
                found.push(at.index(i).child("namespaces"), message);
            }
        }
    }
    if patterns > limits::PATTERNS {
        let most = limits::PATTERNS;
        found.push(
            at.clone(),
            format!(
                "have {patterns} patterns of namespaces, and at most {most} are taken: use names, or fewer policies"
            ),
        );
    }
}

fn volume(
    policy: document::VolumePolicyDocument,
    at: &Field,
    found: &mut Violations,
) -> Option<VolumePolicy> {
    let conditions = conditions(policy.conditions.unwrap_or_default(), &at.child("conditions"), found);
    let kind = policy.action.and_then(|action| action.kind).unwrap_or_default();
    let Some(action) = VolumeAction::ALL.into_iter().find(|action| action.as_str() == kind) else {
        let known = VolumeAction::ALL.map(VolumeAction::as_str).join(", ");
        found.push(at.child("action").child("type"), format!("{kind:?} is not one of {known}"));
        return None;
    };
    Some(VolumePolicy { conditions, action })
}

fn conditions(wire: document::ConditionsDocument, at: &Field, found: &mut Violations) -> VolumeConditions {
    let (at_least, at_most) = capacity(wire.capacity.as_deref(), &at.child("capacity"), found);
    let csi = wire.csi.map(|csi| CsiSource {
        driver: csi.driver.unwrap_or_default(),
        attributes: csi.volume_attributes.unwrap_or_default(),
    });
    let is_of_any = csi.as_ref().is_some_and(|csi| csi.driver.is_empty() && !csi.attributes.is_empty());
    let message = "goes with a driver only: name it";
    found.require(!is_of_any, &at.child("csi").child("volumeAttributes"), message);
    let mut known = |list: Option<Vec<String>>, field: &str, known: &[&str]| {
        let list = list.unwrap_or_default();
        for (i, entry) in list.iter().enumerate() {
            let message = format!("{entry:?} is not one of {}", known.join(", "));
            found.require(known.contains(&entry.as_str()), &at.child(field).index(i), message);
        }
        list
    };
    VolumeConditions {
        at_least,
        at_most,
        storage_classes: wire.storage_class.unwrap_or_default(),
        nfs: wire.nfs.map(|nfs| NfsSource {
            server: nfs.server.unwrap_or_default(),
            path: nfs.path.unwrap_or_default(),
        }),
        csi,
        kinds: known(wire.volume_types, "volumeTypes", &KINDS),
        labels: wire.pvc_labels.unwrap_or_default(),
        phases: known(wire.pvc_phase, "pvcPhase", &PHASES),
    }
}

/// `10Gi,100Gi`; either side may be empty.
fn capacity(text: Option<&str>, at: &Field, found: &mut Violations) -> (i128, i128) {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return (0, 0) };
    let side = |text: &str| match text.trim() {
        "" => Some(0),
        text => Quantity::parse(text).map(Quantity::billionths).filter(|amount| *amount >= 0),
    };
    let sides = text.split_once(',').and_then(|(least, most)| Some((side(least)?, side(most)?)));
    let Some((least, most)) = sides else {
        let message = format!(
            "{text:?} is not two amounts: write \"10Gi,100Gi\", \"10Gi,\" (at least) or \",100Gi\" (at most)"
        );
        found.push(at.clone(), message);
        return (0, 0);
    };
    let message = format!("its first amount is above its second one ({text:?}): swap them");
    found.require(most == 0 || least <= most, at, message);
    (least, most)
}

#[cfg(test)]
mod tests;
