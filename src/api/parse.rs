//! Parses JSON types into validated values, and reports all faults at once.

use std::collections::BTreeMap;

use berth_core::glob::is_subdomain;
use berth_core::hook::HookRule;
use berth_core::label::{Selector, check_key};
use berth_core::limits;
use berth_core::namespace::NamespaceSet;
use berth_core::selection::{Filter, Lists, ResourceFilter};
use berth_core::violation::{Field, Violations, tellable};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::duration::duration;
use crate::filter::{both_ways, check_lists, globs, list};
use crate::selector::{limit_labels, parse_selector, parts};
use crate::velero::BackupSpec;
use crate::{hook, keys};

/// A Backup's spec, validated: the input of the queue and the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedBackupSpec {
    pub namespaces: NamespaceSet,
    pub resources: ResourceFilter,
    /// An object must match one of these. Empty: all objects match.
    pub selectors: Vec<Selector>,
    /// `None`: the server's default.
    pub ttl: Option<std::time::Duration>,
    /// Objects that are backed up first within their type, by the type's plural name: `name` or
    /// `namespace/name`, in this order.
    pub ordered: BTreeMap<String, Vec<String>>,
    /// Key of the claim label whose value names the volume group of a claim.
    pub group_key: String,
    /// Hooks for pods.
    pub hooks: Vec<HookRule>,
}

/// Parses a spec by the rules of Velero's own validation.
///
/// # Errors
/// Every fault, each with its field path.
pub fn backup(spec: &BackupSpec) -> Result<ValidatedBackupSpec, Violations> {
    read(spec, parse_selector)
}

/// Returns the faults that [`backup`] reports, without building values, because selectors may be
/// large.
pub fn check(spec: &BackupSpec) -> Violations {
    let only_check = |selector: &LabelSelector, at: &Field, found: &mut Violations| {
        let (labels, expressions) = parts(selector, at, found);
        Selector::check(labels, expressions, at, found);
        Selector::default()
    };
    read(spec, only_check).err().unwrap_or_default()
}

fn read(
    spec: &BackupSpec,
    selector: impl Fn(&LabelSelector, &Field, &mut Violations) -> Selector,
) -> Result<ValidatedBackupSpec, Violations> {
    let at = Field::root("spec");
    let mut found = Violations::default();
    let namespaces = namespaces(spec, &at, &mut found);
    let resources = resources(spec, &at, &mut found);
    // Selectors above the limit are not checked further.
    let are_few = limit_labels(all_selectors(spec), &at, "use several Backups", &mut found);
    let selectors = if are_few { selectors(spec, &at, &mut found, selector) } else { Vec::new() };
    let ttl = duration(spec.ttl.as_ref(), &at.child("ttl"), &mut found);
    duration(spec.csi_snapshot_timeout.as_ref(), &at.child("csiSnapshotTimeout"), &mut found);
    duration(spec.item_operation_timeout.as_ref(), &at.child("itemOperationTimeout"), &mut found);
    if let Some(policy) = &spec.resource_policy {
        let is_config_map = policy.kind.eq_ignore_ascii_case("configmap");
        let at = at.child("resourcePolicy");
        found.require(is_config_map, &at.child("kind"), "must be ConfigMap");
        // The name becomes a part of a URL.
        let message = "is not the name of a ConfigMap: lower case letters, digits, '-' and '.'";
        found.require(is_subdomain(&policy.name), &at.child("name"), message);
    }
    let labels =
        spec.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref()).map_or(0, BTreeMap::len);
    found.limit(labels, limits::OWN_LABELS, &at.child("metadata").child("labels"), "use fewer");
    let ordered = ordered(spec, &at.child("orderedResources"), &mut found);
    let group_key = spec.volume_group_snapshot_label_key.as_deref().filter(|key| !key.is_empty());
    let group_key = group_key.unwrap_or(keys::VOLUME_GROUP);
    check_key(group_key, &at.child("volumeGroupSnapshotLabelKey"), &mut found);
    let group_key = group_key.to_owned();
    let hooks = hook::entries(spec.hooks.as_ref(), &at.child("hooks"), &mut found);
    found.into_result(ValidatedBackupSpec {
        namespaces,
        resources,
        selectors,
        ttl,
        ordered,
        group_key,
        hooks,
    })
}

/// The name of the ConfigMap with the resource policy, if it is a valid name.
pub fn resource_policy(spec: &BackupSpec) -> Option<&str> {
    let policy = spec.resource_policy.as_ref()?;
    let is_config_map = policy.kind.eq_ignore_ascii_case("configmap");
    (is_config_map && is_subdomain(&policy.name)).then_some(policy.name.as_str())
}

/// Names that cannot exist are not reported here; the backup reports names that it does not find.
fn ordered(spec: &BackupSpec, at: &Field, found: &mut Violations) -> BTreeMap<String, Vec<String>> {
    let mut ordered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let kinds = spec.ordered_resources.as_ref().map_or(0, BTreeMap::len);
    if kinds > limits::NAMES {
        found.limit(kinds, limits::NAMES, at, "name fewer types");
        return ordered;
    }
    let mut count = 0;
    for (kind, names) in spec.ordered_resources.iter().flatten() {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        // One more than the limit, so that the excess is noticed.
        let names = names.take(limits::NAMES + 1 - count);
        let names: Vec<String> = names.map(|name| tellable(name).into_owned()).collect();
        count += names.len();
        if count > limits::NAMES {
            let message = format!("names more than {} objects: name fewer", limits::NAMES);
            found.push(at.clone(), message);
            return BTreeMap::new();
        }
        if !names.is_empty() {
            ordered.insert(kind.trim().to_owned(), names);
        }
    }
    ordered
}

/// Parses the namespaces alone, for the queue: a spec with other faults still has a place, and
/// fails when its turn comes.
///
/// # Errors
/// Why the namespaces cannot be parsed.
pub fn backup_namespaces(spec: &BackupSpec) -> Result<NamespaceSet, Violations> {
    let mut found = Violations::default();
    let set = namespaces(spec, &Field::root("spec"), &mut found);
    found.into_result(set)
}

fn namespaces(spec: &BackupSpec, at: &Field, found: &mut Violations) -> NamespaceSet {
    let (includes, excludes) = (list(&spec.included_namespaces), list(&spec.excluded_namespaces));
    let (in_at, ex_at) = (at.child("includedNamespaces"), at.child("excludedNamespaces"));
    if includes.len() > 1 && includes.iter().any(|n| n == "*") {
        found.push(in_at.clone(), "\"*\" stands alone or not at all: remove it, or the other names");
    }
    let (included, excluded) = (globs(includes, &in_at, true, found), globs(excludes, &ex_at, false, found));
    both_ways(includes, excludes, &ex_at, found);
    NamespaceSet::new(included, excluded)
}

/// The resource types that a spec takes. What is wrong with it is [`check`]'s to say.
pub fn resource_filter(spec: &BackupSpec) -> ResourceFilter {
    resources(spec, &Field::root("spec"), &mut Violations::default())
}

fn resources(spec: &BackupSpec, at: &Field, found: &mut Violations) -> ResourceFilter {
    let old = [
        ("includedResources", list(&spec.included_resources).is_empty()),
        ("excludedResources", list(&spec.excluded_resources).is_empty()),
        ("includeClusterResources", spec.include_cluster_resources.is_none()),
    ];
    let scoped = [
        ("includedClusterScopedResources", &spec.included_cluster_scoped_resources),
        ("excludedClusterScopedResources", &spec.excluded_cluster_scoped_resources),
        ("includedNamespaceScopedResources", &spec.included_namespace_scoped_resources),
        ("excludedNamespaceScopedResources", &spec.excluded_namespace_scoped_resources),
    ];
    let set_old: Vec<&str> = old.iter().filter(|(_, empty)| !empty).map(|(name, _)| *name).collect();
    if let Some(first_old) = set_old.first() {
        for (name, entries) in scoped {
            if !list(entries).is_empty() {
                let message = format!("does not go together with {first_old}: use one style of filter");
                found.push(at.child(name), message);
            }
        }
        let resources = Filter {
            includes: list(&spec.included_resources).to_vec(),
            excludes: list(&spec.excluded_resources).to_vec(),
        };
        let excludes_at = at.child("excludedResources");
        check_lists(&resources, &at.child("includedResources"), &excludes_at, found);
        let is_none = resources.excludes.iter().any(|entry| entry == "*");
        found.require(!is_none, &excludes_at, "\"*\" would leave nothing to back up: remove it");
        return ResourceFilter::Old { resources, include_cluster_resources: spec.include_cluster_resources };
    }
    let mut filter = |included: usize, excluded: usize| {
        let get = |i: usize| scoped.get(i).map(|(_, l)| list(l).to_vec()).unwrap_or_default();
        let name = |i: usize| at.child(scoped.get(i).map_or("", |(name, _)| name));
        let filter = Filter { includes: get(included), excludes: get(excluded) };
        check_lists(&filter, &name(included), &name(excluded), found);
        if filter.excludes.iter().any(|e| e == "*") && !filter.includes.is_empty() {
            found.push(name(excluded), "\"*\" leaves nothing of what is included: remove one");
        }
        filter
    };
    ResourceFilter::Scoped { cluster: filter(0, 1), namespaced: filter(2, 3), policy: Lists::default() }
}

/// All label selectors of the spec, including those of its hooks.
fn all_selectors(spec: &BackupSpec) -> impl Iterator<Item = &LabelSelector> {
    let hooks = spec.hooks.iter().flat_map(|hooks| hooks.resources.iter().flatten());
    let of_hooks = hooks.filter_map(|hook| hook.label_selector.as_ref());
    spec.label_selector.iter().chain(spec.or_label_selectors.iter().flatten()).chain(of_hooks)
}

fn selectors(
    spec: &BackupSpec,
    at: &Field,
    found: &mut Violations,
    read_one: impl Fn(&LabelSelector, &Field, &mut Violations) -> Selector,
) -> Vec<Selector> {
    let or_at = at.child("orLabelSelectors");
    let either = spec.or_label_selectors.as_deref().unwrap_or_default();
    if spec.label_selector.is_some() && !either.is_empty() {
        found.push(or_at.clone(), "does not go together with labelSelector: move that one into the list");
    }
    found.limit(either.len(), limits::SELECTORS, &or_at, "use several Backups");
    let one = spec.label_selector.iter().map(|selector| (at.child("labelSelector"), selector));
    let many =
        either.iter().take(limits::SELECTORS).enumerate().map(|(i, selector)| (or_at.index(i), selector));
    let read: Vec<Selector> = one.chain(many).map(|(at, s)| read_one(s, &at, found)).collect();
    // A selector that matches everything makes the others redundant.
    if read.iter().any(Selector::is_empty) { Vec::new() } else { read }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(spec: serde_json::Value) -> Vec<String> {
        let spec: BackupSpec = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
        let found = backup(&spec).err().unwrap_or_default();
        assert_eq!(check(&spec), found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_spec_takes_everything() {
        let wanted = backup(&BackupSpec::default()).unwrap_or_else(|e| unreachable!("{e}"));
        assert!(wanted.namespaces.takes_all());
        assert!(wanted.selectors.is_empty());
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let faults = faults(serde_json::json!({
            "includedNamespaces": ["ok", "Bad_Name", "x**"],
            "excludedNamespaces": ["*", "ok"],
            "includedResources": ["pods"],
            "excludedNamespaceScopedResources": ["secrets"],
            "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Is"}]},
            "orLabelSelectors": [{"matchLabels": {"a b": "c"}}],
            "excludedResources": ["*"],
            "ttl": "1h-5m",
            "csiSnapshotTimeout": "ten minutes",
            "resourcePolicy": {"kind": "Secret", "name": "../secrets/x"},
            "volumeGroupSnapshotLabelKey": "a b",
        }));
        let fields: Vec<&str> = faults.iter().filter_map(|f| f.split(": ").next()).collect();
        assert_eq!(
            fields,
            [
                "spec.includedNamespaces[1]",
                "spec.includedNamespaces[2]",
                "spec.excludedNamespaces[0]",
                "spec.excludedNamespaces[1]",
                "spec.excludedNamespaceScopedResources",
                "spec.excludedResources",
                "spec.orLabelSelectors",
                "spec.labelSelector.matchExpressions[0].operator",
                "spec.orLabelSelectors[0].matchLabels.a b",
                "spec.ttl",
                "spec.csiSnapshotTimeout",
                "spec.resourcePolicy.kind",
                "spec.resourcePolicy.name",
                "spec.volumeGroupSnapshotLabelKey",
            ],
            "{faults:#?}"
        );
    }

    #[test]
    fn lists_above_the_limits_are_refused_by_field_and_looked_at_no_further() {
        let many = |count: usize, text: &str| vec![text.to_owned(); count];
        let values = serde_json::json!({"key": "a", "operator": "In", "values": many(1001, "v")});
        let begun = std::time::Instant::now();
        let faults = faults(serde_json::json!({
            "includedNamespaces": many(190_000, "A"),
            "excludedNamespaces": many(190_000, "B"),
            "includedResources": many(190_000, "pods"),
            "excludedResources": many(190_000, "pods"),
            "orLabelSelectors": vec![serde_json::json!({"matchExpressions": [values]}); 101],
        }));
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(
            faults.first().map(String::as_str),
            Some(
                "spec.includedNamespaces: has 190000 entries, and at most 1000 are taken: use patterns, or several Backups"
            )
        );
        assert_eq!(faults.len(), limits::VIOLATIONS);
    }

    #[test]
    fn labels_and_values_of_all_selectors_together_have_a_limit() {
        use serde_json::json;
        let full = |count: usize, value: &str| {
            let values = vec![value; limits::VALUES];
            let one = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
            vec![one; count]
        };
        let exist = |count: usize| json!({"matchExpressions": vec![json!({"key": "a", "operator": "Exists"}); count]});
        let labels = |count: usize| {
            let labels: BTreeMap<String, &str> = (0..count).map(|i| (format!("a{i}"), "b")).collect();
            json!({"matchLabels": labels})
        };
        let and = |mut some: Vec<serde_json::Value>, more: serde_json::Value| {
            some.push(more);
            some
        };
        let either = |selectors: Vec<serde_json::Value>| json!({"orLabelSelectors": selectors});
        let four = full(4, "v");
        let expressions: Vec<_> = four.iter().map(|one| one["matchExpressions"][0].clone()).collect();
        let beside_hooks = |hooks: Vec<serde_json::Value>| {
            let hook = |selector: serde_json::Value| json!({"name": "h", "labelSelector": selector});
            let hooks: Vec<_> = hooks.into_iter().map(hook).collect();
            json!({"labelSelector": {"matchExpressions": expressions}, "hooks": {"resources": hooks}})
        };
        for (spec, count) in [
            (either(full(5, "v")), 5000),
            (either(and(full(5, "v"), labels(1))), 5001),
            (either(and(full(5, "v"), exist(1))), 5001),
            (either(and(full(5, "v"), json!({}))), 5000),
            (either(vec![exist(50); 100]), 5000),
            (either(vec![exist(51); 100]), 5100),
            (either(and(vec![labels(51); 98], labels(2))), 5000),
            (either(vec![labels(51); 99]), 5049),
            (json!({"labelSelector": {"matchExpressions": vec![expressions[0].clone(); 6]}}), 6000),
            (beside_hooks(full(1, "v")), 5000),
            (beside_hooks(and(full(1, "v"), labels(1))), 5001),
            // None of these is a valid value, but they are not checked.
            (either(full(6, "-")), 6000),
        ] {
            let said = format!(
                "spec: its label selectors have {count} labels and values in all, and at most 5000 are taken: use several Backups"
            );
            let expected = if count > limits::LABELS { vec![said] } else { Vec::new() };
            assert_eq!(faults(spec), expected, "{count}");
        }
    }

    #[test]
    fn labels_and_types_that_go_first_have_a_limit_each() {
        use serde_json::json;
        let some = |count: usize, value: &str| {
            json!((0..count).map(|i| (format!("a{i}"), value)).collect::<BTreeMap<String, &str>>())
        };
        for (spec, field, way_out) in [
            (json!({"metadata": {"labels": some(1000, "b")}}), "metadata.labels", None),
            (json!({"metadata": {"labels": some(1001, "b")}}), "metadata.labels", Some("use fewer")),
            (json!({"orderedResources": some(1000, "n")}), "orderedResources", None),
            (json!({"orderedResources": some(1001, "n")}), "orderedResources", Some("name fewer types")),
            // None of these is a valid name, but they are not checked.
            (json!({"orderedResources": some(1001, ",")}), "orderedResources", Some("name fewer types")),
        ] {
            let said =
                |way: &str| format!("spec.{field}: has 1001 entries, and at most 1000 are taken: {way}");
            assert_eq!(faults(spec), way_out.map(said).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_list_of_too_many_patterns_takes_nothing_that_has_to_be_compared() {
        let patterns: Vec<String> = (0..=limits::PATTERNS).map(|i| format!("*{i}*")).collect();
        let spec = BackupSpec { included_namespaces: Some(patterns), ..BackupSpec::default() };
        let why = backup_namespaces(&spec).err().map(|found| found.to_string()).unwrap_or_default();
        assert_eq!(
            why,
            "spec.includedNamespaces: has 101 patterns, and at most 100 are taken: use names, or several Backups"
        );
    }

    #[test]
    fn a_filter_that_leaves_nothing_or_is_no_type_is_refused() {
        let nothing = faults(serde_json::json!({"excludedResources": ["*"]}));
        assert_eq!(nothing, ["spec.excludedResources: \"*\" would leave nothing to back up: remove it"]);
        let long = faults(serde_json::json!({"includedResources": ["a".repeat(254)]}));
        assert!(long[0].starts_with("spec.includedResources[0]: "), "{long:?}");
    }

    #[test]
    fn what_goes_first_is_read_by_type_and_in_its_order() {
        let spec = serde_json::json!({"orderedResources": {"pods": " ns/b, ns/a ,,ns/b", "persistentvolumes": "pv", "secrets": " , "}});
        let spec: BackupSpec = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
        let wanted = backup(&spec).unwrap_or_else(|e| unreachable!("{e}"));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = BTreeMap::from([
            ("persistentvolumes".to_owned(), names(&["pv"])),
            ("pods".to_owned(), names(&["ns/b", "ns/a", "ns/b"])),
        ]);
        assert_eq!((wanted.ordered, wanted.group_key), (expected, keys::VOLUME_GROUP.to_owned()));
        let many = |count: usize| vec!["n"; count].join(",");
        for (first, second, expected) in [(600, 400, 0), (600, 401, 1), (400_000, 1, 1)] {
            let spec = serde_json::json!({"orderedResources": {"a": many(first), "b": many(second)}});
            assert_eq!(faults(spec).len(), expected, "{first} {second}");
        }
    }

    #[test]
    fn what_velero_accepts_is_accepted() {
        for spec in [
            serde_json::json!({"includedNamespaces": ["*"], "ttl": "0s", "hooks": {}, "metadata": {}}),
            serde_json::json!({"includedNamespaces": ["team-*", "ns[1-3]"], "excludedNamespaces": ["team-x"]}),
            serde_json::json!({"includedResources": ["*"], "includeClusterResources": true}),
            serde_json::json!({"includedResources": ["*.k8s.io", "ingresses.networking"]}),
            serde_json::json!({"excludedClusterScopedResources": ["*"], "includedNamespaceScopedResources": ["cm", "deploy*.apps"]}),
            serde_json::json!({"labelSelector": {"matchLabels": {"app.kubernetes.io/name": "web"}}}),
            serde_json::json!({"resourcePolicy": {"kind": "configmap", "name": "my.policy-1"}, "volumeGroupSnapshotLabelKey": ""}),
        ] {
            assert_eq!(faults(spec.clone()), Vec::<String>::new(), "{spec}");
        }
    }
}
