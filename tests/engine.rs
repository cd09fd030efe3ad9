//! What the engine stores, read as a stranger would read it.

use std::path::PathBuf;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::archive::{entries, items, side, side_text};
use crate::queue::{ended, start};
use crate::support::{Berth, backup};

fn object(kind: &str, namespace: &str, name: &str, more: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        for (key, value) in more {
            match object.get_mut(key) {
                Some(Value::Object(known)) => known.extend(value.as_object().unwrap().clone()),
                _ => {
                    object.insert(key.clone(), value.clone());
                }
            }
        }
    }
    object
}

fn create(berth: &Berth, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let answer = berth.kubectl().answer(&["create", "-f", "-"], &list.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// Runs one backup to its end; its folder in the store.
fn run(berth: &Berth, name: &str, spec: Value) -> (berth_api::velero::Backup, PathBuf) {
    let answer = berth.kubectl().create(berth.namespace(), &[backup(name, spec)]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let mut done = ended(berth, &[name]);
    (done.remove(name).unwrap(), berth.archives().join("backups").join(name))
}

#[test]
fn a_backup_is_stored_in_veleros_format() {
    let berth = start("format", 1);
    let tricky = "quotes \" and \\ and <&> and \u{1F980} and 9223372036854775807";
    create(
        &berth,
        &[
            object("Namespace", "", "fmt-a", json!({})),
            object("Namespace", "", "fmt-b", json!({})),
            object("ConfigMap", "fmt-a", "plain", json!({"data": {"text": tricky}})),
            object("Secret", "fmt-a", "secret", json!({"stringData": {"k": "v"}})),
            object(
                "ConfigMap",
                "fmt-a",
                "kept-out",
                json!({"metadata": {"labels": {"velero.io/exclude-from-backup": "true"}}}),
            ),
            object("ConfigMap", "fmt-b", "elsewhere", json!({})),
        ],
    );
    let (done, folder) = run(&berth, "whole", json!({"includedNamespaces": ["fmt-a"], "ttl": "1h"}));
    let status = done.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    assert_eq!((status.errors, status.warnings, status.queue_position), (None, None, None));
    assert_eq!(status.format_version.as_deref(), Some("1.1.0"));
    assert_eq!(status.progress.unwrap().items_backed_up, Some(3));
    let life = status.expiration.unwrap().0.duration_since(status.start_timestamp.unwrap().0);
    assert_eq!(life.as_secs(), 3600);
    assert_eq!(done.metadata.labels.unwrap()["velero.io/storage-location"], "default");
    assert!(done.metadata.annotations.unwrap()["velero.io/source-cluster-k8s-gitversion"].starts_with('v'));

    let archive = folder.join("whole.tar.gz");
    assert_eq!(
        items(&archive),
        ["configmaps/namespaces/fmt-a/plain", "namespaces/cluster/fmt-a", "secrets/namespaces/fmt-a/secret"]
    );
    let entries = entries(&archive);
    assert_eq!(entries["metadata/version"], b"1.1.0\n");
    let plain = &entries["resources/configmaps/namespaces/fmt-a/plain.json"];
    assert_eq!(plain, &entries["resources/configmaps/v1-preferredversion/namespaces/fmt-a/plain.json"]);
    let plain: Value = serde_json::from_slice(plain).unwrap();
    assert_eq!(
        (&plain["apiVersion"], &plain["kind"], &plain["data"]["text"]),
        (&json!("v1"), &json!("ConfigMap"), &json!(tricky))
    );

    let list =
        json!({"v1/ConfigMap": ["fmt-a/plain"], "v1/Namespace": ["fmt-a"], "v1/Secret": ["fmt-a/secret"]});
    assert_eq!(side(&folder, "whole-resource-list.json.gz"), list);
    assert_eq!(side(&folder, "whole-results.gz"), json!({"errors": {}, "warnings": {}}));
    for empty in ["volumeinfo", "podvolumebackups", "volumesnapshots", "itemoperations"] {
        assert_eq!(side_text(&folder, &format!("whole-{empty}.json.gz")), "[]\n");
    }
    let log = side_text(&folder, "whole-logs.gz");
    assert!(
        log.starts_with("time=\"") && log.contains("level=info") && log.contains("backup=format/whole"),
        "{log}"
    );
    let stored: Value =
        serde_json::from_slice(&std::fs::read(folder.join("velero-backup.json")).unwrap()).unwrap();
    assert_eq!((&stored["kind"], &stored["status"]["phase"]), (&json!("Backup"), &json!("Completed")));
    assert_eq!(stored["spec"]["storageLocation"], "default");
    assert_eq!(stored["spec"]["csiSnapshotTimeout"], "10m0s");
    let files: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    // Velero's nine, and the claim.
    assert_eq!(files.len(), 10, "{files:?}");
    assert!(files.contains(&"berth-run.json".to_owned()), "{files:?}");
}

#[test]
fn filters_and_selectors_choose_what_is_taken() {
    let berth = start("filters", 1);
    let label = |app: &str| json!({"metadata": {"labels": {"app": app}}});
    create(
        &berth,
        &[
            object("Namespace", "", "flt-a", json!({})),
            object("Namespace", "", "flt-b", label("web")),
            object(
                "Namespace",
                "",
                "flt-out",
                json!({"metadata": {"labels": {"velero.io/exclude-from-backup": "true"}}}),
            ),
            object("ConfigMap", "flt-a", "web", label("web")),
            object("ConfigMap", "flt-a", "db", label("db")),
            object("Secret", "flt-b", "web", label("web")),
            object("ConfigMap", "flt-out", "web", label("web")),
        ],
    );
    let taken = |name: &str, spec: Value| {
        let (done, folder) = run(&berth, name, spec);
        assert_eq!(done.phase(), BackupPhase::Completed, "{name}: {:?}", done.status);
        (items(&folder.join(format!("{name}.tar.gz"))), done)
    };
    let (by_pattern, done) = taken(
        "by-pattern",
        json!({"includedNamespaces": ["flt-*"], "includedNamespaceScopedResources": ["cm"]}),
    );
    let a_and_b = [
        "configmaps/namespaces/flt-a/db",
        "configmaps/namespaces/flt-a/web",
        "namespaces/cluster/flt-a",
        "namespaces/cluster/flt-b",
    ];
    assert_eq!(by_pattern, a_and_b);
    assert_eq!(done.metadata.annotations.unwrap()["berth.dev/resolved-namespaces"], "flt-a,flt-b");
    assert_eq!(done.spec.excluded_namespaces.unwrap(), ["flt-out"]);
    let selector = json!({"matchLabels": {"app": "web"}});
    let (selected, _) =
        taken("selected", json!({"includedNamespaces": ["flt-*"], "labelSelector": selector}));
    let web = [
        "configmaps/namespaces/flt-a/web",
        "namespaces/cluster/flt-a",
        "namespaces/cluster/flt-b",
        "secrets/namespaces/flt-b/web",
    ];
    assert_eq!(selected, web);
    let either = json!([{"matchLabels": {"app": "db"}}, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}]);
    let (either, _) = taken(
        "either",
        json!({"includedNamespaces": ["flt-a"], "orLabelSelectors": either, "excludedNamespaceScopedResources": ["secrets"]}),
    );
    assert_eq!(
        either,
        ["configmaps/namespaces/flt-a/db", "configmaps/namespaces/flt-a/web", "namespaces/cluster/flt-a"]
    );
    let (old, _) = taken(
        "old-style",
        json!({"includedNamespaces": ["flt-a", "flt-b"], "includedResources": ["secrets"]}),
    );
    assert_eq!(old, ["secrets/namespaces/flt-b/web"]);
}

#[test]
fn custom_resources_come_with_their_definition_and_cluster_scoped_ones_too() {
    let berth = start("custom", 1);
    let crd = |scope: &str, plural: &str, kind: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.engine.example.com")},
            "spec": {"group": "engine.example.com", "scope": scope, "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        })
    };
    create(
        &berth,
        &[
            crd("Namespaced", "widgets", "Widget"),
            crd("Cluster", "planets", "Planet"),
            object("Namespace", "", "cst", json!({})),
        ],
    );
    berth
        .kubectl()
        .run(&[
            "wait",
            "--for=condition=Established",
            "crd/widgets.engine.example.com",
            "crd/planets.engine.example.com",
        ])
        .unwrap();
    let custom = |kind: &str, namespace: &str, name: &str| {
        let mut made = object(kind, namespace, name, json!({"spec": {"huge": 9007199254740993_i64}}));
        made["apiVersion"] = json!("engine.example.com/v1");
        made
    };
    create(&berth, &[custom("Widget", "cst", "w"), custom("Planet", "", "earth")]);
    let (done, folder) = run(&berth, "widgets", json!({"includedNamespaces": ["cst"]}));
    assert_eq!(done.phase(), BackupPhase::Completed);
    let archive = folder.join("widgets.tar.gz");
    let found = items(&archive);
    assert_eq!(
        found,
        [
            "customresourcedefinitions.apiextensions.k8s.io/cluster/widgets.engine.example.com",
            "namespaces/cluster/cst",
            "widgets.engine.example.com/namespaces/cst/w",
        ]
    );
    let widget = entries(&archive)
        .remove("resources/widgets.engine.example.com/v1-preferredversion/namespaces/cst/w.json")
        .unwrap();
    assert!(String::from_utf8(widget).unwrap().contains("9007199254740993"), "64-bit integers survive");
    let (_, folder) = run(
        &berth,
        "planets",
        json!({"includedClusterScopedResources": ["planets.engine.example.com"], "excludedNamespaceScopedResources": ["*"]}),
    );
    let found = items(&folder.join("planets.tar.gz"));
    assert!(found.contains(&"planets.engine.example.com/cluster/earth".to_owned()), "{found:?}");
    // Without any filter everything cluster-scoped is there, as Velero documents.
    let (done, folder) = run(&berth, "everything", json!({}));
    assert_eq!(done.phase(), BackupPhase::Completed);
    let found = items(&folder.join("everything.tar.gz"));
    for wanted in [
        "planets.engine.example.com/cluster/earth",
        "priorityclasses.scheduling.k8s.io/cluster/system-node-critical",
        "clusterroles.rbac.authorization.k8s.io/cluster/system:node",
    ] {
        assert!(found.contains(&wanted.to_owned()), "{wanted}");
    }
}

#[test]
fn many_and_large_objects_come_through_a_small_page_and_several_workers() {
    let mut options = crate::support::Options::new(crate::admission::program(), "large");
    options.item_block_workers = 3;
    options.controller_args = vec!["--client-page-size=7".into()];
    let berth = Berth::start(crate::support::ControlPlane::shared().unwrap(), options).unwrap();
    let text: String = (0..600_000_u32)
        .map(|i| char::from(b'a' + u8::try_from(i.wrapping_mul(2_654_435_761) >> 24 & 15).unwrap()))
        .collect();
    let mut objects =
        vec![object("Namespace", "", "lrg", json!({})), object("Namespace", "", "lrg2", json!({}))];
    objects.extend(
        (0..100).map(|i| object("ConfigMap", "lrg", &format!("c{i}"), json!({"data": {"i": i.to_string()}}))),
    );
    objects.extend(
        (0..3).map(|i| object("ConfigMap", "lrg2", &format!("big{i}"), json!({"data": {"text": text}}))),
    );
    create(&berth, &objects);
    let (done, folder) = run(
        &berth,
        "many",
        json!({"includedNamespaces": ["lrg", "lrg2"], "includedNamespaceScopedResources": ["configmaps"]}),
    );
    assert_eq!(done.phase(), BackupPhase::Completed);
    assert_eq!(items(&folder.join("many.tar.gz")).len(), 105);
    assert_eq!(done.status.unwrap().progress.unwrap().total_items, Some(105));
}

#[test]
fn a_namespace_that_is_named_but_missing_is_an_error_in_the_backup() {
    let berth = start("missing", 1);
    let (done, folder) = run(
        &berth,
        "partly",
        json!({"includedNamespaces": ["default", "not-there"], "hooks": {"resources": [{"name": "h"}]}}),
    );
    let status = done.status.unwrap();
    assert_eq!(
        (status.phase, status.errors, status.warnings),
        (Some(BackupPhase::PartiallyFailed), Some(1), Some(1))
    );
    let results = side(&folder, "partly-results.gz");
    let error = results["errors"]["namespaces"]["not-there"][0].as_str().unwrap();
    assert!(error.contains("namespace not-there does not exist"), "{results}");
    assert!(results["warnings"]["velero"][0].as_str().unwrap().contains("spec.hooks"), "{results}");
}
