use super::*;

fn kind(qualified: &str, kind: &str, namespaced: bool) -> ResourceType {
    let (resource, group) = qualified.split_once('.').unwrap_or((qualified, ""));
    ResourceType {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        resource: resource.into(),
        singular: kind.to_ascii_lowercase(),
        short_names: match kind {
            "ConfigMap" => vec!["cm".into()],
            "Deployment" => vec!["deploy".into()],
            _ => Vec::new(),
        },
        namespaced,
    }
}

/// In the order in which a server lists them.
fn cluster() -> Vec<ResourceType> {
    vec![
        kind("pods", "Pod", true),
        kind("configmaps", "ConfigMap", true),
        kind("events", "Event", true),
        kind("namespaces", "Namespace", false),
        kind("nodes", "Node", false),
        kind("persistentvolumes", "PersistentVolume", false),
        kind("services", "Service", true),
        kind("deployments.apps", "Deployment", true),
        kind("events.events.k8s.io", "Event", true),
        kind("ingresses.networking.k8s.io", "Ingress", true),
        kind("storageclasses.storage.k8s.io", "StorageClass", false),
        kind("customresourcedefinitions.apiextensions.k8s.io", "CustomResourceDefinition", false),
        kind("volumesnapshots.snapshot.storage.k8s.io", "VolumeSnapshot", true),
        kind("volumesnapshotcontents.snapshot.storage.k8s.io", "VolumeSnapshotContent", false),
        kind("nodes.longhorn.io", "Node", true),
        kind("clusters.management.cattle.io", "Cluster", false),
        kind("services.serving.knative.dev", "Service", true),
    ]
}

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|e| (*e).to_owned()).collect()
}

type Pair<'a> = (&'a [&'a str], &'a [&'a str]);

fn scoped(cluster: Pair<'_>, namespaced: Pair<'_>) -> ResourceFilter {
    with_policy(cluster, namespaced, (&[], &[]), (&[], &[]))
}

fn with_policy(
    cluster: Pair<'_>,
    namespaced: Pair<'_>,
    of_cluster: Pair<'_>,
    in_namespaces: Pair<'_>,
) -> ResourceFilter {
    let filter = |(i, e): Pair<'_>| Filter { includes: list(i), excludes: list(e) };
    let policy = Lists { cluster: filter(of_cluster), namespaced: filter(in_namespaces) };
    ResourceFilter::Scoped { cluster: filter(cluster), namespaced: filter(namespaced), policy }
}

fn old(includes: &[&str], excludes: &[&str], cluster: Option<bool>) -> ResourceFilter {
    let resources = Filter { includes: list(includes), excludes: list(excludes) };
    ResourceFilter::Old { resources, include_cluster_resources: cluster }
}

fn fate(filter: &ResourceFilter, all_namespaces: bool, qualified: &str) -> TypeSelection {
    let types = cluster();
    let selection = filter.resolve(&types, all_namespaces);
    let kind = types.iter().find(|kind| kind.qualified() == qualified);
    selection.fate(kind.unwrap_or_else(|| unreachable!("{qualified}")))
}

#[test]
fn types_are_taken_as_documented() {
    use TypeSelection::{Excluded, Listed, Needed, Unnamed};
    let automatic = scoped((&[], &[SNAPSHOT_CONTENTS]), (&[], &[SNAPSHOTS]));
    let (cm, deploy, sc, ns, pv) = (
        "configmaps",
        "deployments.apps",
        "storageclasses.storage.k8s.io",
        "namespaces",
        "persistentvolumes",
    );
    let none = scoped((&[], &[]), (&[], &[]));
    for (filter, kind, all, expected) in [
        (&none, sc, true, Listed),
        (&none, sc, false, Needed),
        (&none, ns, false, Listed),
        (&none, cm, false, Listed),
        // The excludes that a server adds to the spec change nothing.
        (&automatic, sc, true, Listed),
        (&automatic, sc, false, Needed),
        (&automatic, cm, true, Listed),
        // Everything, listed explicitly, is everything.
        (&scoped((&[], &[]), (&["*"], &[])), sc, true, Listed),
        (&scoped((&[], &[]), (&["*"], &["cm"])), sc, true, Needed),
        (&scoped((&[], &["nodes"]), (&[], &[])), sc, true, Needed),
        (&scoped((&[], &[]), (&["cm"], &[])), cm, false, Listed),
        (&scoped((&[], &[]), (&["ConfigMap"], &[])), cm, false, Listed),
        (&scoped((&[], &[]), (&["cm"], &[])), deploy, false, Unnamed),
        (&scoped((&[], &[]), (&["cm"], &[])), sc, true, Needed),
        (&scoped((&["*"], &[]), (&[], &["*"])), sc, false, Listed),
        (&scoped((&["*"], &[]), (&[], &["*"])), cm, false, Excluded),
        (&scoped((&["storageclasses"], &[]), (&[], &[])), sc, false, Listed),
        (&scoped((&["storageclasses"], &[]), (&[], &[])), pv, true, Needed),
        (&scoped((&[], &["pv*", "persist*"]), (&[], &[])), pv, true, Excluded),
        (&scoped((&[], &["*"]), (&[], &[])), ns, true, Excluded),
        (&old(&["deployments.apps"], &[], None), deploy, false, Listed),
        (&old(&["*.apps"], &[], None), deploy, false, Listed),
        (&old(&["deploy*"], &[], None), deploy, false, Listed),
        (&old(&["deploy*"], &[], None), cm, false, Unnamed),
        (&old(&["deploy*"], &[], None), pv, true, Unnamed),
        (&old(&["deploy*"], &[], Some(true)), pv, true, Needed),
        (&old(&[], &["configmaps"], None), cm, true, Excluded),
        (&old(&["*"], &[], None), sc, true, Listed),
        (&old(&["*"], &[], None), sc, false, Needed),
        (&old(&["*"], &[], Some(true)), sc, false, Listed),
        (&old(&["*"], &[], Some(false)), sc, true, Excluded),
        (&old(&["*"], &[], Some(false)), ns, true, Excluded),
        (&old(&["*"], &[], None), ns, false, Listed),
        (&old(&["cm"], &[], None), ns, true, Unnamed),
    ] {
        assert_eq!(fate(filter, all, kind), expected, "{filter:?} {kind} {all}");
    }
    for filter in [none, old(&["*"], &[], Some(true)), scoped((&["*"], &[]), (&["*"], &[]))] {
        for kind in [SNAPSHOTS, SNAPSHOT_CONTENTS, SECOND_EVENTS] {
            assert_eq!(fate(&filter, true, kind), Excluded, "{filter:?} {kind}");
        }
    }
}

/// Contract: "its four lists are added to the spec's lists where the spec does not already match
/// the type one way or the other".
#[test]
fn a_policy_counts_where_the_spec_says_nothing_of_a_type() {
    use TypeSelection::{Excluded, Listed, Needed, Unnamed};
    let (cm, deploy, sc, pv, ns) = (
        "configmaps",
        "deployments.apps",
        "storageclasses.storage.k8s.io",
        "persistentvolumes",
        "namespaces",
    );
    let no: Pair<'_> = (&[], &[]);
    for (filter, kind, expected) in [
        // An exclude removes a type that the spec does not mention, even if the spec mentions none.
        (with_policy(no, no, no, (&[], &["cm"])), cm, Excluded),
        (with_policy(no, no, no, (&[], &["cm"])), deploy, Listed),
        (with_policy(no, (&["deploy"], &[]), no, (&[], &["cm"])), cm, Excluded),
        (with_policy(no, (&["cm"], &[]), no, (&[], &["cm"])), cm, Listed),
        (with_policy(no, (&["*"], &[]), no, (&[], &["cm"])), cm, Listed),
        (with_policy(no, (&["cm"], &[]), no, (&[], &["c*", "deploy"])), cm, Listed),
        // An include adds to the spec's; alone it selects exactly its types.
        (with_policy(no, no, no, (&["cm"], &[])), cm, Listed),
        (with_policy(no, no, no, (&["cm"], &[])), deploy, Unnamed),
        (with_policy(no, (&["deploy"], &[]), no, (&["cm"], &[])), cm, Listed),
        (with_policy(no, (&["deploy"], &[]), no, (&["cm"], &[])), deploy, Listed),
        (with_policy(no, (&[], &["cm"]), no, (&["cm"], &[])), cm, Excluded),
        (with_policy(no, (&[], &["*"]), no, (&["cm"], &[])), cm, Excluded),
        // The same for cluster-scoped types; there, an empty filter means everything only if all
        // lists are empty.
        (with_policy(no, no, no, no), sc, Listed),
        (with_policy(no, no, (&[], &["pv*", "persistentvolumes"]), no), pv, Excluded),
        (with_policy(no, no, (&[], &["persistentvolumes"]), no), sc, Needed),
        (with_policy(no, no, (&["storageclasses"], &[]), no), sc, Listed),
        (with_policy(no, no, (&["storageclasses"], &[]), no), pv, Needed),
        (with_policy((&[], &["storageclasses"]), no, (&["storageclasses"], &[]), no), sc, Excluded),
        (with_policy((&["*"], &[]), no, (&[], &["storageclasses"]), no), sc, Listed),
        (with_policy(no, no, no, (&[], &["cm"])), sc, Needed),
        (with_policy(no, (&["*"], &[]), no, (&[], &["cm"])), sc, Listed),
        (with_policy(no, no, no, (&["cm"], &[])), sc, Needed),
        (with_policy(no, no, no, (&["cm"], &[])), ns, Listed),
        (with_policy(no, no, no, (&[SNAPSHOTS], &[])), SNAPSHOTS, Excluded),
        (with_policy(no, no, (&[], &[SNAPSHOT_CONTENTS]), (&[], &[SNAPSHOTS])), sc, Listed),
    ] {
        assert_eq!(fate(&filter, true, kind), expected, "{filter:?} {kind}");
    }
    let idle = with_policy(no, no, (&["pods"], &[]), (&[], &["widgets"])).resolve(&cluster(), true).idle;
    let expected = [
        ("includeExcludePolicy.includedClusterScopedResources", list(&["pods"])),
        ("includeExcludePolicy.excludedNamespaceScopedResources", list(&["widgets"])),
    ];
    assert_eq!(idle, expected);
}

#[test]
fn an_entry_stands_for_what_kubectl_would_take_it_for() {
    let types = cluster();
    let first = |entry: &str| by_name(entry, &types).map(ResourceType::qualified);
    for (entry, expected) in [
        ("services", Some("services")),
        ("Service", Some("services")),
        ("services.serving.knative.dev", Some("services.serving.knative.dev")),
        ("services.serving", Some("services.serving.knative.dev")),
        ("nodes", Some("nodes")),
        ("nodes.longhorn.io", Some("nodes.longhorn.io")),
        ("ingresses.networking", Some("ingresses.networking.k8s.io")),
        ("ingresses.extensions", None),
        ("deploy", Some("deployments.apps")),
        ("deploy.apps", Some("deployments.apps")),
        ("DEPLOYMENTS.APPS", Some("deployments.apps")),
        ("deployments.apps.v1", None),
        ("pod", Some("pods")),
        (".apps", None),
        ("no-such", None),
    ] {
        assert_eq!(first(entry).as_deref(), expected, "{entry}");
    }
    let names = |entry: &str| named(entry, &types).iter().map(|kind| kind.qualified()).collect::<Vec<_>>();
    assert_eq!(names("*.cattle.io"), ["clusters.management.cattle.io"]);
    assert_eq!(names("s*s"), ["services"]);
    assert_eq!(names("nodes*"), ["nodes", "nodes.longhorn.io"]);
    assert_eq!(names("nodes["), [""; 0]);
}

#[test]
fn a_full_name_goes_before_another_types_short_name() {
    let mut other = kind("others.example.com", "Other", true);
    other.short_names = vec!["pods".into(), "x".into()];
    let mut types = cluster();
    types.insert(0, other);
    let first = |entry: &str| by_name(entry, &types).map(ResourceType::qualified);
    assert_eq!(first("pods").as_deref(), Some("pods"));
    assert_eq!(first("x").as_deref(), Some("others.example.com"));
}

#[test]
fn entries_that_name_no_type_are_known_and_the_automatic_ones_are_not_among_them() {
    let no_snapshots: Vec<_> =
        cluster().into_iter().filter(|kind| kind.group != "snapshot.storage.k8s.io").collect();
    let filter = scoped(
        (&["widgets", "pods", "nodes"], &[SNAPSHOT_CONTENTS]),
        (&["cm", "nodes"], &[SNAPSHOTS, "*.example.com"]),
    );
    let expected = vec![
        ("spec.includedClusterScopedResources", list(&["widgets", "pods"])),
        ("spec.includedNamespaceScopedResources", list(&["nodes"])),
        ("spec.excludedNamespaceScopedResources", list(&["*.example.com"])),
    ];
    assert_eq!(filter.resolve(&no_snapshots, true).idle, expected);
    let none = scoped((&["*"], &[]), (&[], &["*"])).resolve(&cluster(), true).idle;
    assert!(none.is_empty(), "{none:?}");
}
