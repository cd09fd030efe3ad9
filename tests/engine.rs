//! What the engine stores, read as a stranger would read it.

mod revision;

use std::path::PathBuf;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::archive::{entries, items, paths, side, side_text};
use crate::queue::{ended, start};
use crate::support::shared::{Shared, SharedBerth};
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, wait_for};

/// One for the tests that need nothing but the engine: each has namespaces of its own backed up, by
/// Backups with names of their own.
fn engine() -> SharedBerth {
    static ENGINE: Shared<Berth> = Shared::unstarted();
    let mut options = Options::new(program(), "engine");
    options.concurrent_backups = 4;
    ENGINE.berth(|| Berth::start(ControlPlane::shared()?, options)).unwrap()
}

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
    let berth = engine();
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
        log.starts_with("time=\"") && log.contains("level=info") && log.contains("backup=engine/whole"),
        "{log}"
    );
    assert!(log.contains("objects are as of resourceVersion "), "{log}");
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
    let berth = engine();
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
    let options = Options::new(program(), "custom");
    // Of its own: a backup of everything would meet what other tests ask for in vain.
    let berth = Berth::start(ControlPlane::start().unwrap(), options).unwrap();
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
    berth.kubectl().await_definitions().unwrap();
    let custom = |kind: &str, namespace: &str, name: &str| {
        let more =
            json!({"metadata": {"labels": {"orbit": "custom"}}, "spec": {"huge": 9007199254740993_i64}});
        let mut made = object(kind, namespace, name, more);
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
    // Definitions do not carry the labels of what they define, and come along all the same.
    let (done, folder) =
        run(&berth, "labelled", json!({"labelSelector": {"matchLabels": {"orbit": "custom"}}}));
    assert_eq!(done.phase(), BackupPhase::Completed);
    assert_eq!(
        items(&folder.join("labelled.tar.gz")),
        [
            "customresourcedefinitions.apiextensions.k8s.io/cluster/planets.engine.example.com",
            "customresourcedefinitions.apiextensions.k8s.io/cluster/widgets.engine.example.com",
            "namespaces/cluster/cst",
            "planets.engine.example.com/cluster/earth",
            "widgets.engine.example.com/namespaces/cst/w",
        ]
    );
    // Without any filter everything cluster-scoped is there, as Velero documents.
    let (done, folder) = run(&berth, "everything", json!({}));
    assert_eq!(done.phase(), BackupPhase::Completed, "{}", side(&folder, "everything-results.gz"));
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
    let mut options = Options::new(program(), "large");
    options.item_block_workers = 3;
    options.controller_args = vec!["--client-page-size=7".into()];
    let berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
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
fn what_is_asked_for_and_not_given_is_an_error_in_the_backup() {
    let berth = start("missing", 1);
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let spec = json!({
        "containers": [{"name": "main", "image": "example.com/db", "volumeMounts": mounts}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let annotated = |name: &str, volume: &str| {
        let metadata = json!({"annotations": {"backup.velero.io/backup-volumes": volume}});
        object("Pod", "asking", name, json!({"metadata": metadata, "spec": spec}))
    };
    create(
        &berth,
        &[
            object("Namespace", "", "asking", json!({})),
            annotated("db-0", "data"),
            annotated("web", "no-such-volume"),
        ],
    );
    let native = json!({"includedNamespaces": ["asking"], "volumeSnapshotLocations": ["default"]});
    let refused = berth.kubectl().create(berth.namespace(), &[backup("refused", native)]).unwrap();
    let field = "spec.volumeSnapshotLocations: ";
    assert!(!refused.status.success() && refused.stderr.contains(field), "{}", refused.stderr);
    let (done, folder) = run(&berth, "partly", json!({"includedNamespaces": ["asking", "not-there"]}));
    let status = done.status.unwrap();
    assert_eq!(
        (status.phase, status.errors, status.warnings),
        (Some(BackupPhase::PartiallyFailed), Some(2), Some(1))
    );
    let results = side(&folder, "partly-results.gz");
    let error = results["errors"]["namespaces"]["not-there"][0].as_str().unwrap();
    assert!(error.contains("namespace not-there does not exist"), "{results}");
    let error = results["errors"]["namespaces"]["asking"][0].as_str().unwrap();
    let words = "volume data of pod db-0 is not backed up by files: the pod does not run";
    assert!(error.contains(words), "{results}");
    let warning = results["warnings"]["namespaces"]["asking"][0].as_str().unwrap();
    assert!(warning.contains("pod web has no volume no-such-volume"), "{results}");
    let counted = wait_for("the end to be counted", PATIENCE, || {
        let metrics = berth.controller.metrics()?;
        // What is written last.
        Ok(metrics.contains("velero_backup_items_errors{schedule=\"\"} 2").then_some(metrics))
    });
    let counted = counted.unwrap();
    for line in [
        "attempt_total{schedule=\"\"} 1",
        "success_total{schedule=\"\"} 0",
        "last_status{schedule=\"\"} 0",
        "partial_failure_total{schedule=\"\"} 1",
    ] {
        assert!(counted.contains(&format!("velero_backup_{line}")), "{line}: {counted}");
    }
}

/// On a control plane of its own: every backup of everything meets these types.
#[test]
fn types_whose_servers_are_gone_cost_themselves_and_the_rest_is_stored() {
    let mut options = Options::new(program(), "gone");
    options.controller_args = vec!["--list-retry-timeout=2s".into()];
    let berth = Berth::start(ControlPlane::start().unwrap(), options).unwrap();
    let version = |name: &str, is_stored: bool| {
        json!({"name": name, "served": true, "storage": is_stored,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.broken.example.com"},
        "spec": {"group": "broken.example.com", "scope": "Namespaced", "versions": [version("v1", true), version("v2", false)],
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"}},
    });
    let service = json!({"spec": {"ports": [{"port": 443}]}});
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.dead.example.com"},
        "spec": {"group": "dead.example.com", "version": "v1", "service": {"name": "nobody", "namespace": "gone-types"},
            "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true},
    });
    create(
        &berth,
        &[
            object("Namespace", "", "gone-types", json!({})),
            object("ConfigMap", "gone-types", "kept", json!({})),
            object("Service", "gone-types", "nobody", service),
            definition,
            api_service,
        ],
    );
    let kubectl = berth.kubectl();
    kubectl.run(&["wait", "--for=condition=Established", "crd/gadgets.broken.example.com"]).unwrap();
    let mut gadget = object("Gadget", "gone-types", "g", json!({}));
    gadget["apiVersion"] = json!("broken.example.com/v1");
    create(&berth, &[gadget]);
    // No server listens there.
    let client = json!({"url": "https://127.0.0.1:1/convert"});
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}});
    let patch = json!({"spec": {"conversion": conversion}}).to_string();
    kubectl.run(&["patch", "crd", "gadgets.broken.example.com", "--type=merge", "-p", &patch]).unwrap();
    let patience = crate::support::PATIENCE;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(berth.plane().impatient_client()).unwrap();
    let ask = |path: &str, accept: &str| {
        let request = http::Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
        runtime.block_on(client.request::<Value>(request))
    };
    crate::support::wait_for("the type to be unreadable", patience, || {
        let list = ask("/apis/broken.example.com/v2/namespaces/gone-types/gadgets", "application/json");
        // 429 while its cache is being rebuilt, 500 at other times.
        Ok(matches!(list, Err(kube::Error::Api(_))).then_some(()))
    })
    .unwrap();
    crate::support::wait_for("the types of the group to be missed", patience, || {
        let found = ask("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")?;
        let mut groups = found["items"].as_array().into_iter().flatten();
        let dead = groups.find(|group| group["metadata"]["name"] == "dead.example.com");
        Ok(dead.filter(|group| group["versions"][0]["freshness"] == "Stale").map(|_| ()))
    })
    .unwrap();
    let (done, folder) = run(&berth, "rest", json!({}));
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(2)), "{status:?}");
    let found = items(&folder.join("rest.tar.gz"));
    for wanted in [
        "configmaps/namespaces/gone-types/kept",
        "apiservices.apiregistration.k8s.io/cluster/v1.dead.example.com",
        "customresourcedefinitions.apiextensions.k8s.io/cluster/gadgets.broken.example.com",
    ] {
        assert!(found.contains(&wanted.to_owned()), "{wanted}");
    }
    let log = side_text(&folder, "rest-logs.gz");
    let told = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(
        told(&["level=error", "dead.example.com/v1", "`kubectl get apiservice v1.dead.example.com`"]),
        "{log}"
    );
    assert!(told(&["level=error", "failed to list gadgets.broken.example.com", "`kubectl get"]), "{log}");
}

#[test]
fn what_the_objects_of_a_namespace_need_is_stored_with_them_and_each_once() {
    let berth = engine();
    let rbac = "rbac.authorization.k8s.io";
    let volume = json!({"spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "hostPath": {"path": "/tmp/related"}, "persistentVolumeReclaimPolicy": "Retain",
    }});
    let claim = |volume: &str| {
        json!({"metadata": {"labels": {"keep": "me"}}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "", "volumeName": volume,
        }})
    };
    let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "priorityClassName": "system-cluster-critical",
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }});
    let role = json!({"apiVersion": format!("{rbac}/v1"), "rules": []});
    let binding = |account: &str| {
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "rel-a"}],
        })
    };
    create(
        &berth,
        &[
            object("Namespace", "", "rel-a", json!({})),
            object("Namespace", "", "rel-b", json!({})),
            object("PersistentVolume", "", "rel-used", volume.clone()),
            object("PersistentVolume", "", "rel-other", volume),
            object("PersistentVolumeClaim", "rel-a", "data", claim("rel-used")),
            object("PersistentVolumeClaim", "rel-b", "lost", claim("rel-gone")),
            object("Pod", "rel-a", "web", pod),
            object("ServiceAccount", "rel-a", "rel-robot", json!({})),
            object("ClusterRole", "", "rel-robot", role.clone()),
            object("ClusterRole", "", "rel-absent", role),
            object("ClusterRoleBinding", "", "rel-robot", binding("rel-robot")),
            object("ClusterRoleBinding", "", "rel-absent", binding("rel-absent")),
        ],
    );
    for (kind, namespace, name, phase) in [
        ("persistentvolumeclaim", "rel-a", "data", "Bound"),
        ("persistentvolumeclaim", "rel-b", "lost", "Bound"),
        ("pod", "rel-a", "web", "Running"),
    ] {
        let patch = json!({"status": {"phase": phase}}).to_string();
        let status = ["--subresource=status", "--type=merge", "--patch", &patch];
        berth
            .kubectl()
            .run(&[&["patch", kind, name, "--namespace", namespace][..], &status].concat())
            .unwrap();
    }
    let role = "clusterroles.rbac.authorization.k8s.io/cluster/rel-robot";
    let binding = "clusterrolebindings.rbac.authorization.k8s.io/cluster/rel-robot";
    let namespace = "namespaces/cluster/rel-a";
    let claim = "persistentvolumeclaims/namespaces/rel-a/data";
    let volume = "persistentvolumes/cluster/rel-used";
    let pod = "pods/namespaces/rel-a/web";
    let class = "priorityclasses.scheduling.k8s.io/cluster/system-cluster-critical";
    let account = "serviceaccounts/namespaces/rel-a/rel-robot";
    let selected = |label: (&str, &str)| {
        let mut labels = json!({});
        labels[label.0] = json!(label.1);
        json!({"labelSelector": {"matchLabels": labels}})
    };
    for (name, more, expected) in [
        ("all", json!({}), vec![binding, role, namespace, claim, volume, pod, class, account]),
        // Listed and needed.
        (
            "both",
            json!({"includedClusterScopedResources": ["clusterroles", "clusterrolebindings", "persistentvolumes"]}),
            vec![binding, role, namespace, claim, volume, pod, class, account],
        ),
        ("namespaced", json!({"includeClusterResources": false}), vec![claim, pod, account]),
        (
            "less",
            json!({"excludedClusterScopedResources": ["pv", "clusterrolebindings"]}),
            vec![role, namespace, claim, pod, class, account],
        ),
        // A pod needs its claims, and a claim the pods that write to it, whatever their labels are.
        ("pods", selected(("app", "web")), vec![namespace, claim, volume, pod, class]),
        ("claims", selected(("keep", "me")), vec![namespace, claim, volume, pod, class]),
    ] {
        let mut spec = json!({"includedNamespaces": ["rel-a"], "snapshotVolumes": false});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (done, folder) = run(&berth, name, spec);
        let status = done.status.unwrap();
        assert_eq!(
            (status.phase, status.errors, status.warnings),
            (Some(BackupPhase::Completed), None, None),
            "{name}"
        );
        let mut found = items(&folder.join(format!("{name}.tar.gz")));
        let list = side(&folder, &format!("{name}-resource-list.json.gz"));
        let listed: usize =
            list.as_object().unwrap().values().map(|names| names.as_array().unwrap().len()).sum();
        let progress = status.progress.unwrap();
        let counts = (progress.items_backed_up, progress.total_items);
        assert_eq!(counts, (Some(i64::try_from(found.len()).unwrap()), counts.0), "{name}");
        assert_eq!(listed, found.len(), "{name}: {list}");
        if name == "both" {
            // Other tests have such objects, too.
            assert!(found.contains(&"persistentvolumes/cluster/rel-other".to_owned()), "{found:?}");
            found.retain(|item| expected.contains(&item.as_str()));
        }
        assert_eq!(found, expected, "{name}");
    }
    let (done, folder) =
        run(&berth, "gone", json!({"includedNamespaces": ["rel-b"], "snapshotVolumes": false}));
    assert_eq!(done.status.unwrap().warnings, Some(1));
    let results = side(&folder, "gone-results.gz");
    let warning = results["warnings"]["cluster"][0].as_str().unwrap();
    assert!(warning.contains("persistentvolumes") && warning.contains("rel-gone"), "{results}");
}

#[test]
fn policies_choose_and_what_actions_change_or_leave_out_is_stored_so() {
    let berth = engine();
    let rules = |name: &str, policy: &str| {
        object(
            "ConfigMap",
            berth.namespace(),
            name,
            json!({"data": {"policy": format!("version: v1\n{policy}")}}),
        )
    };
    let choosing = r#"
volumePolicies:
- conditions: {nfs: {}}
  action: {type: skip}
includeExcludePolicy:
  excludedNamespaceScopedResources: [persistentvolumeclaims, secrets]
namespacedFilterPolicies:
- namespaces: ["pol-*"]
  resourceFilters:
  - kinds: ["*"]
  - kinds: [ConfigMap]
    names: ["keep-*"]
    excludedNames: ["*-tmp"]
"#;
    let volume = json!({"spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "nfs": {"server": "filer.example.com", "path": "/pol"}, "persistentVolumeReclaimPolicy": "Retain",
    }});
    let claim = json!({
        "metadata": {"labels": {"app": "db", "velero.io/restore-name": "before"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
            "volumeName": "pol-pv",
            "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"},
        },
    });
    let pod = |key: &str, value: &str| {
        json!({"metadata": {"annotations": {key: value, "mine": "x"}}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }})
    };
    let must = "backup.velero.io/must-include-additional-items";
    create(
        &berth,
        &[
            rules("choosing", choosing),
            rules("asking", "volumePolicies: [{action: {type: snapshot}}]"),
            object("Namespace", "", "pol-a", json!({})),
            object("ConfigMap", "pol-a", "keep-1", json!({})),
            object("ConfigMap", "pol-a", "keep-2", json!({})),
            object("ConfigMap", "pol-a", "keep-tmp", json!({})),
            object("ConfigMap", "pol-a", "other", json!({})),
            object("Secret", "pol-a", "secret", json!({})),
            object("PersistentVolume", "", "pol-pv", volume),
            object("PersistentVolumeClaim", "pol-a", "data", claim),
            object("Pod", "pol-a", "must", pod(must, "true")),
            object("Pod", "pol-a", "skipped", pod("velero.io/skip-from-backup", "true")),
        ],
    );
    let patch = json!({"status": {"phase": "Bound"}}).to_string();
    let of = ["patch", "pvc", "data", "--namespace", "pol-a", "--subresource=status", "--type=merge"];
    berth.kubectl().run(&[&of[..], &["--patch", &patch]].concat()).unwrap();
    let policy = |name: &str| json!({"kind": "configmap", "name": name});
    let (done, folder) = run(
        &berth,
        "chosen",
        json!({
            "includedNamespaces": ["pol-a"], "resourcePolicy": policy("choosing"),
            "orderedResources": {"configmaps": "pol-a/keep-2,pol-a/keep-1"},
        }),
    );
    let status = done.status.unwrap();
    // Nothing lacks its data that was to have it.
    let counts = (status.phase, status.errors, status.warnings);
    assert_eq!(counts, (Some(BackupPhase::Completed), None, None), "{}", side(&folder, "chosen-results.gz"));
    let archive = folder.join("chosen.tar.gz");
    assert_eq!(
        items(&archive),
        [
            "configmaps/namespaces/pol-a/keep-1",
            "configmaps/namespaces/pol-a/keep-2",
            "namespaces/cluster/pol-a",
            "persistentvolumeclaims/namespaces/pol-a/data",
            "persistentvolumes/cluster/pol-pv",
            "pods/namespaces/pol-a/must",
        ]
    );
    let order = paths(&archive);
    let place = |name: &str| order.iter().position(|path| path.ends_with(&format!("/{name}.json"))).unwrap();
    assert!(place("keep-2") < place("keep-1"), "{order:?}");
    let entries = entries(&archive);
    let stored = |path: &str| -> Value {
        let plain = &entries[&format!("resources/{path}.json")];
        let (kind, rest) = path.split_once('/').unwrap();
        assert_eq!(plain, &entries[&format!("resources/{kind}/v1-preferredversion/{rest}.json")]);
        serde_json::from_slice(plain).unwrap()
    };
    let claim = stored("persistentvolumeclaims/namespaces/pol-a/data");
    assert_eq!(claim["metadata"]["labels"], json!({"app": "db"}));
    assert_eq!(
        (&claim["kind"], &claim["spec"]["volumeName"]),
        (&json!("PersistentVolumeClaim"), &json!("pol-pv"))
    );
    assert!(claim["spec"]["dataSource"].is_null() && claim["spec"]["dataSourceRef"].is_null(), "{claim}");
    let pod = stored("pods/namespaces/pol-a/must");
    assert_eq!(pod["metadata"]["annotations"], json!({"mine": "x"}));

    // What asks for data is an error, and what is no policy begins nothing.
    let (done, folder) =
        run(&berth, "asked", json!({"includedNamespaces": ["pol-a"], "resourcePolicy": policy("asking")}));
    assert_eq!(done.phase(), BackupPhase::PartiallyFailed);
    let results = side(&folder, "asked-results.gz");
    let error = results["errors"]["velero"][0].as_str().unwrap();
    assert!(
        error.contains(
            "1 claims are stored without the data of their volumes, which the backup asks for (pol-a/data)"
        ) && error.contains("its volume belongs to no CSI driver"),
        "{results}"
    );
    let (done, _) = run(&berth, "nowhere", json!({"resourcePolicy": policy("nowhere")}));
    assert_eq!(done.phase(), BackupPhase::FailedValidation);
    let errors = done.status.unwrap().validation_errors.unwrap();
    assert!(errors[0].contains("ConfigMap engine/nowhere does not exist"), "{errors:?}");
}
