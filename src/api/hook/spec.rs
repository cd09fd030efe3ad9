//! The hooks in a Backup's spec.

use std::sync::Arc;

use berth_core::hook::{Hook, HookRule, OnError};
use berth_core::limits;
use berth_core::namespace::NamespaceSet;
use berth_core::selection::{ResourceType, is_named};
use berth_core::violation::{Field, Violations};

use super::command;
use crate::filter::{globs, list};
use crate::selector::parse_selector;
use crate::velero::backup::{BackupHooks, BackupResourceHook, HookErrorMode, ResourceHook};

/// Parses the entries of a spec. Every fault is reported with a path below `at`.
pub fn entries(hooks: Option<&BackupHooks>, at: &Field, found: &mut Violations) -> Vec<HookRule> {
    let entries = hooks.and_then(|hooks| hooks.resources.as_deref()).unwrap_or_default();
    let at = at.child("resources");
    found.limit(entries.len(), limits::SELECTORS, &at, "use annotations of the pods, or several Backups");
    let entries = entries.iter().take(limits::SELECTORS).enumerate();
    entries.map(|(i, one)| entry(one, &at.index(i), found)).collect()
}

fn entry(hook: &BackupResourceHook, at: &Field, found: &mut Violations) -> HookRule {
    let included = globs(list(&hook.included_namespaces), &at.child("includedNamespaces"), true, found);
    let excluded = globs(list(&hook.excluded_namespaces), &at.child("excludedNamespaces"), true, found);
    let (includes, excludes) = (list(&hook.included_resources), list(&hook.excluded_resources));
    for (field, entries) in [("includedResources", includes), ("excludedResources", excludes)] {
        found.limit(entries.len(), limits::NAMES, &at.child(field), "use patterns");
    }
    let pods = pods();
    let names_pods = |entries: &[String]| entries.iter().take(limits::NAMES).any(|one| is_named(one, &pods));
    let selector = hook.label_selector.as_ref();
    let selector = selector.map(|one| parse_selector(one, &at.child("labelSelector"), found));
    let mut commands = |field: &str, hooks: &Option<Vec<ResourceHook>>| -> Vec<Arc<Hook>> {
        let (at, hooks) = (at.child(field), hooks.as_deref().unwrap_or_default());
        found.limit(hooks.len(), limits::SELECTORS, &at, "use several Backups");
        let hooks = hooks.iter().take(limits::SELECTORS).enumerate();
        hooks.map(|(i, one)| Arc::new(hook_of(one, &hook.name, &at.index(i).child("exec"), found))).collect()
    };
    let (pre, post) = (commands("pre", &hook.pre), commands("post", &hook.post));
    HookRule {
        namespaces: NamespaceSet::new(included, excluded),
        takes_pods: (includes.is_empty() || names_pods(includes)) && !names_pods(excludes),
        selector: selector.unwrap_or_default(),
        pre,
        post,
    }
}

fn hook_of(hook: &ResourceHook, name: &str, at: &Field, found: &mut Violations) -> Hook {
    let exec = &hook.exec;
    command::check(&exec.command, &at.child("command"), found);
    Hook {
        name: name.to_owned(),
        container: exec.container.clone().filter(|name| !name.is_empty()),
        command: exec.command.clone(),
        on_error: match exec.on_error {
            Some(HookErrorMode::Fail) => OnError::Fail,
            Some(HookErrorMode::Continue) | None => OnError::Continue,
        },
        timeout: {
            let most = limits::HOOK_TIMEOUT;
            let way_out = format!(
                "{} hours, the longest time for which berth keeps a pod frozen",
                most.as_secs() / 3600
            );
            command::timeout(exec.timeout.as_ref(), most, &way_out, &at.child("timeout"), found)
        },
    }
}

/// The resource type as the API server describes it.
pub fn pods() -> ResourceType {
    ResourceType { short_names: vec!["po".to_owned()], ..ResourceType::regular("", "v1", "Pod", true) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::hook::pod::AnnotatedPod;

    fn pod() -> AnnotatedPod {
        let metadata = json!({"name": "db-0", "namespace": "shop", "uid": "u", "labels": {"app": "db"}});
        let containers = json!([{"name": "main", "image": "i"}, {"name": "side"}]);
        let pod =
            json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}});
        serde_json::from_value(pod).unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn read(spec: Value) -> (Vec<HookRule>, Vec<String>) {
        let hooks: BackupHooks = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
        let mut found = Violations::default();
        let entries = entries(Some(&hooks), &Field::root("spec").child("hooks"), &mut found);
        (entries, found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn entries_of_the_spec_are_for_the_pods_of_their_namespaces_types_and_labels() {
        let exec =
            json!([{"exec": {"command": ["/freeze"], "container": "", "onError": "Fail", "timeout": "2m"}}]);
        for (filter, is_for_it) in [
            (json!({}), true),
            (json!({"includedNamespaces": ["sh*"]}), true),
            (json!({"includedNamespaces": ["*"], "excludedNamespaces": ["shop"]}), false),
            (json!({"includedResources": ["po"]}), true),
            (json!({"includedResources": ["Pods", "deployments.apps"]}), true),
            (json!({"includedResources": ["*"]}), true),
            (json!({"includedResources": ["deployments.apps"]}), false),
            (json!({"excludedResources": ["pods"]}), false),
            (json!({"labelSelector": {"matchLabels": {"app": "db"}}}), true),
            (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), false),
        ] {
            let mut entry = json!({"name": "freeze", "pre": exec});
            entry
                .as_object_mut()
                .into_iter()
                .for_each(|entry| entry.extend(filter.as_object().cloned().unwrap_or_default()));
            let (entries, faults) = read(json!({"resources": [entry]}));
            assert!(faults.is_empty(), "{faults:?}");
            let found = pod().hooks(&entries).unwrap_or_default();
            assert_eq!(found.pre.len(), usize::from(is_for_it), "{filter}");
            if let Some(hook) = found.pre.first() {
                assert_eq!((hook.name.as_str(), hook.container.as_deref()), ("freeze", None));
                assert_eq!((hook.on_error, hook.timeout.as_secs()), (OnError::Fail, 120));
            }
        }
    }

    #[test]
    fn every_fault_of_a_spec_is_told_with_its_field() {
        let exec = |command: Value, timeout: &str| json!({"exec": {"command": command, "timeout": timeout}});
        let entry = json!({
            "name": "h", "includedNamespaces": ["Bad_Name"],
            "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            "pre": [exec(json!(["ok"]), "0s"), exec(json!([]), "soon")],
            "post": [exec(json!(["x".repeat(limits::COMMAND + 1)]), "5h")],
        });
        let (_, faults) =
            read(json!({"resources": [{"name": "fine", "pre": [exec(json!(["ok"]), "4h")]}, entry]}));
        let fields: Vec<&str> = faults.iter().filter_map(|fault| fault.split(": ").next()).collect();
        let expected = [
            "includedNamespaces[0]",
            "labelSelector.matchExpressions[0].operator",
            "pre[1].exec.command",
            "pre[1].exec.timeout",
            "post[0].exec.command",
            "post[0].exec.timeout",
        ];
        assert_eq!(fields, expected.map(|field| format!("spec.hooks.resources[1].{field}")), "{faults:#?}");
        let many = vec![json!({"name": "h"}); limits::SELECTORS + 1];
        let (entries, faults) = read(json!({"resources": many}));
        assert!(
            entries.len() == limits::SELECTORS && faults[0].starts_with("spec.hooks.resources: "),
            "{faults:?}"
        );
    }
}
