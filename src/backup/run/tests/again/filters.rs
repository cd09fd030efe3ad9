//! What a resource policy says of a backup that goes on, where types and namespaces are others by
//! then.

use super::ordered::archived;
use super::*;

const POLICY: &str = "/api/v1/namespaces/velero/configmaps/policy";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/app/widgets";

/// A Backup of such namespaces, with a policy.
fn with_policy(namespaces: &str, policy: &str) -> (Site, Standing) {
    let spec = json!({
        "includedNamespaces": [namespaces], "storageLocation": "default",
        "resourcePolicy": {"kind": "configmap", "name": "policy"},
    });
    let mut ready = backup("7", "ReadyToStart");
    ready["spec"] = spec.clone();
    let site = Site::of(ready);
    let standing = Standing::serve(&site);
    standing.0.lock()["spec"] = spec;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy", "namespace": "velero"},
        "data": {"policy": format!("version: v1\n{policy}")},
    });
    site.api.always(get(POLICY).answers(map));
    site.api.always(get(MAPS).answers(list("5", &[large("a"), large("b")])));
    (site, standing)
}

/// A group as discovery has it: with its widgets, or with a server that does not answer.
fn group(name: &str, is_there: bool) -> Value {
    let widgets = json!({
        "resource": "widgets", "singularResource": "widget", "shortNames": ["wd"], "scope": "Namespaced",
        "responseKind": {"group": name, "version": "v1", "kind": "Widget"},
        "verbs": ["create", "delete", "get", "list"],
    });
    let resources = if is_there { vec![widgets] } else { Vec::new() };
    let freshness = if is_there { "Current" } else { "Stale" };
    let version = json!({"version": "v1", "freshness": freshness, "resources": resources});
    json!({"metadata": {"name": name}, "versions": [version]})
}

/// The next run gathers these.
fn serves(site: &Site, groups: &[Value]) {
    site.api.once(get("/apis").answers(json!({"items": groups})));
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "app"}})
}

#[tokio::test]
async fn a_rule_is_for_the_type_that_it_was_for_when_the_backup_began_whatever_types_there_are_now() {
    for called in ["Widget", "wd", "widget"] {
        for now in
            [vec![group("example.com", false)], vec![group("acme.example", true), group("example.com", true)]]
        {
            let never = Hold::new();
            let policy = format!(
                "namespacedFilterPolicies:\n- namespaces: [app]\n  resourceFilters:\n  - {{kinds: [ConfigMap]}}\n  - {{kinds: [{called}], names: ['w*']}}"
            );
            let (site, standing) = with_policy("app", &policy);
            serves(&site, &[group("example.com", true)]);
            site.api.once(get(WIDGETS).never_answers().held(&never));
            let story = async {
                never.asked().await;
                standing.has_packed(2).await;
            };
            site.is_drained_after(story).await;
            serves(&site, &now);
            site.api.once(get(WIDGETS).answers(list("5", &[widget("other"), widget("w1")])));
            let (told, asked) = site.recovers(BackupPhase::Completed).await;
            assert!(told.contains("it goes on from a checkpoint"), "{told}");
            assert!(!asked.iter().any(|asked| asked.contains("acme.example")), "{asked:?}");
            let expected = [
                "resources/configmaps/namespaces/app/a.json",
                "resources/configmaps/namespaces/app/b.json",
                "resources/widgets.example.com/namespaces/app/w1.json",
            ];
            assert_eq!(archived(&site), expected, "{called}, where there is {now:?}");
        }
    }
}

/// Whoever may label a namespace would see to it that its Secrets are stored.
#[tokio::test]
async fn a_rule_is_for_the_namespace_that_it_was_for_when_the_backup_began_whatever_label_that_has_now() {
    let namespace = |name: &str, labels: Value| {
        let metadata = json!({"name": name, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    };
    let of_other = |name: &str| {
        let metadata = json!({"name": name, "namespace": "app2"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    let never = Hold::new();
    let policy = "namespacedFilterPolicies:\n- namespaces: ['*2']\n  resourceFilters:\n  - {kinds: [ConfigMap], names: ['public-*']}";
    let (site, standing) = with_policy("app*", policy);
    let others = "/api/v1/namespaces/app2/configmaps";
    let now = list("5", &[namespace("app", json!({})), namespace("app2", json!({}))]);
    site.api.once(get(NAMESPACES).answers(now));
    site.api.once(get(others).never_answers().held(&never));
    let story = async {
        never.asked().await;
        standing.has_packed(2).await;
    };
    site.is_drained_after(story).await;
    let excluded = json!({keys::EXCLUDE_FROM_BACKUP: "true"});
    let now = list("9", &[namespace("app", json!({})), namespace("app2", excluded)]);
    site.api.once(get(NAMESPACES).answers(now));
    site.api.once(get(others).answers(list("9", &[of_other("private"), of_other("public-x")])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint"), "{told}");
    let expected = [
        "resources/configmaps/namespaces/app/a.json",
        "resources/configmaps/namespaces/app/b.json",
        "resources/configmaps/namespaces/app2/public-x.json",
    ];
    assert_eq!(archived(&site), expected);
}
