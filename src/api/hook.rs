//! Hooks as people write them: in a Backup's spec, and as annotations of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::hook::{Entry, Hook, Hooks, OnError, PodId, TIMEOUT, hooks};
use berth_core::limits;
use berth_core::namespace::NamespaceSet;
use berth_core::selection::{ResourceType, is_named};
use berth_core::violation::{Field, Violations};
use serde::Deserialize;

use crate::GoDuration;
use crate::duration::duration;
use crate::filter::{globs, list};
use crate::selector::parse_selector;
use crate::velero::backup::{BackupHooks, BackupResourceHook, HookErrorMode, ResourceHook};

/// In the key of each annotation of a hook; few pods have one.
pub const MARK: &str = "hook.backup.velero.io/";
/// What those keys begin with that run before a pod. The second is how the first was called once.
const PRE: [&str; 2] = ["pre.hook.backup.velero.io", "hook.backup.velero.io"];
const POST: [&str; 1] = ["post.hook.backup.velero.io"];

/// The entries of a spec; every fault is told with its field, which begins with `at`.
pub fn entries(hooks: Option<&BackupHooks>, at: &Field, found: &mut Violations) -> Vec<Entry> {
    let entries = hooks.and_then(|hooks| hooks.resources.as_deref()).unwrap_or_default();
    let at = at.child("resources");
    found.limit(entries.len(), limits::SELECTORS, &at, "use annotations of the pods, or several Backups");
    let entries = entries.iter().take(limits::SELECTORS).enumerate();
    entries.map(|(i, one)| entry(one, &at.index(i), found)).collect()
}

fn entry(hook: &BackupResourceHook, at: &Field, found: &mut Violations) -> Entry {
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
        hooks.map(|(i, one)| Arc::new(command(one, &hook.name, &at.index(i).child("exec"), found))).collect()
    };
    let (pre, post) = (commands("pre", &hook.pre), commands("post", &hook.post));
    Entry {
        namespaces: NamespaceSet::new(included, excluded),
        takes_pods: (includes.is_empty() || names_pods(includes)) && !names_pods(excludes),
        selector: selector.unwrap_or_default(),
        pre,
        post,
    }
}

fn command(hook: &ResourceHook, name: &str, at: &Field, found: &mut Violations) -> Hook {
    let exec = &hook.exec;
    check_command(&exec.command, &at.child("command"), found);
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
            let way_out = format!("{} hours, and nothing is kept still for so long", most.as_secs() / 3600);
            timeout(exec.timeout.as_ref(), most, &way_out, &at.child("timeout"), found)
        },
    }
}

fn check_command(command: &[String], at: &Field, found: &mut Violations) {
    let bytes: usize = command.iter().map(String::len).sum();
    let way_out = "put them into a script that the container has";
    found.require(command.first().is_some_and(|word| !word.is_empty()), at, "names no command");
    found.limit(command.len(), limits::COMMAND_WORDS, at, way_out);
    let message = format!("has {bytes} bytes, and at most {} are taken: {way_out}", limits::COMMAND);
    found.require(bytes <= limits::COMMAND, at, message);
}

/// `way_out`: how long the longest is, and what else to do.
fn timeout(
    text: Option<&GoDuration>,
    most: Duration,
    way_out: &str,
    at: &Field,
    found: &mut Violations,
) -> Duration {
    let timeout = duration(text, at, found).unwrap_or(TIMEOUT);
    found.require(timeout <= most, at, format!("is longer than {way_out}"));
    timeout.min(most)
}

/// As the API server describes them.
pub fn pods() -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        resource: "pods".to_owned(),
        singular: "pod".to_owned(),
        short_names: vec!["po".to_owned()],
        namespaced: true,
    }
}

/// What is asked of a pod.
#[derive(Debug, Deserialize)]
pub struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Spec {
    #[serde(default)]
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    phase: Option<String>,
}

impl Pod {
    pub fn id(&self) -> PodId {
        let Metadata { namespace, name, uid, .. } = &self.metadata;
        PodId { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    /// In which a hook runs that names none.
    pub fn first_container(&self) -> Option<String> {
        Some(self.spec.as_ref()?.containers.as_ref()?.first()?.name.clone())
    }

    /// It has succeeded or failed, and nothing can run in it.
    pub fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// # Errors
    /// What is wrong with its annotations, or that its hooks are too many. None of them is to be run then: one that froze
    /// something might be run without the one that thaws it.
    pub fn hooks(&self, entries: &[Entry]) -> Result<Hooks, Violations> {
        let none = BTreeMap::new();
        let labels = self.metadata.labels.as_ref().unwrap_or(&none);
        let annotations = self.metadata.annotations.as_ref().unwrap_or(&none);
        let has_ended = self.has_ended();
        let (pre, post) = if has_ended {
            (None, None)
        } else {
            let mut found = Violations::default();
            let pre = annotated(annotations, &PRE, &mut found);
            let post = annotated(annotations, &POST, &mut found);
            found.into_result((pre, post))?
        };
        let pod = berth_core::hook::Pod {
            namespace: &self.metadata.namespace,
            labels,
            has_ended,
            pre: pre.map(Arc::new),
            post: post.map(Arc::new),
        };
        hooks(&pod, entries).map_err(|many| {
            let mut found = Violations::default();
            found.push(Field::root("hooks"), many.to_string());
            found
        })
    }
}

/// The hook of the first of these prefixes that names a command.
fn annotated(
    annotations: &BTreeMap<String, String>,
    prefixes: &[&str],
    found: &mut Violations,
) -> Option<Hook> {
    let at = Field::root("metadata").child("annotations");
    let read = |prefix: &str, key: &str| {
        let key = format!("{prefix}/{key}");
        let value = annotations.get(&key).filter(|value| !value.is_empty());
        (value, at.key(&key), key)
    };
    let (prefix, command) = prefixes.iter().find_map(|prefix| Some((*prefix, read(prefix, "command").0?)))?;
    let (_, field, name) = read(prefix, "command");
    // No shell takes it to pieces.
    let command = match command.starts_with('[') {
        false => vec![command.clone()],
        true => serde_json::from_str(command).unwrap_or_else(|error| {
            found.push(field.clone(), format!("begins like a JSON array of texts and is none: {error}"));
            vec![command.clone()]
        }),
    };
    check_command(&command, &field, found);
    let (on_error, field, _) = read(prefix, "on-error");
    let on_error = match on_error.map(String::as_str) {
        Some("Fail") => OnError::Fail,
        Some("Continue") | None => OnError::Continue,
        Some(other) => {
            found.push(field, format!("{other:?} is not one of Continue, Fail"));
            OnError::Continue
        }
    };
    let (text, field, _) = read(prefix, "timeout");
    let most = limits::ANNOTATED_HOOK_TIMEOUT;
    let way_out = format!(
        "{} minutes, which is the most that an annotation may ask for: spec.hooks of a Backup may ask for more",
        most.as_secs() / 60
    );
    let timeout = timeout(text.map(|text| GoDuration(text.clone())).as_ref(), most, &way_out, &field, found);
    let container = read(prefix, "container").0.cloned();
    Some(Hook { name, container, command, on_error, timeout })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: Value) -> Pod {
        let metadata = json!({
            "name": "db-0", "namespace": "shop", "uid": "u", "labels": {"app": "db"}, "annotations": annotations,
        });
        let containers = json!([{"name": "main", "image": "i"}, {"name": "side"}]);
        let pod =
            json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}});
        serde_json::from_value(pod).unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn read(spec: Value) -> (Vec<Entry>, Vec<String>) {
        let hooks: BackupHooks = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
        let mut found = Violations::default();
        let entries = entries(Some(&hooks), &Field::root("spec").child("hooks"), &mut found);
        (entries, found.iter().map(ToString::to_string).collect())
    }

    fn faults(annotations: Value) -> Vec<String> {
        let found = pod(annotations).hooks(&[]).err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn annotations_say_what_runs_where_and_for_how_long() {
        let pod = pod(json!({
            "pre.hook.backup.velero.io/command": "[\"/bin/sh\", \"-c\", \"fsfreeze -f /data\"]",
            "pre.hook.backup.velero.io/container": "side",
            "pre.hook.backup.velero.io/on-error": "Fail",
            "pre.hook.backup.velero.io/timeout": "10m",
            "post.hook.backup.velero.io/command": "/thaw it",
            "post.hook.backup.velero.io/timeout": "",
        }));
        let found = pod.hooks(&[]).unwrap_or_default();
        let (pre, post) = (&found.pre[0], &found.post[0]);
        assert_eq!(pre.command, ["/bin/sh", "-c", "fsfreeze -f /data"]);
        assert_eq!((pre.container.as_deref(), pre.on_error), (Some("side"), OnError::Fail));
        assert_eq!(
            (pre.timeout, pre.name.as_str()),
            (Duration::from_secs(600), "pre.hook.backup.velero.io/command")
        );
        assert_eq!(post.command, ["/thaw it"], "one word, however many are in it");
        assert_eq!(
            (post.container.as_deref(), post.on_error, post.timeout),
            (None, OnError::Continue, TIMEOUT)
        );
        assert_eq!(pod.first_container().as_deref(), Some("main"));
        assert_eq!(pod.id().to_string(), "shop/db-0");
    }

    #[test]
    fn the_older_key_counts_where_the_newer_one_is_not() {
        let old = json!({"hook.backup.velero.io/command": "old", "hook.backup.velero.io/timeout": "5s"});
        let found = pod(old.clone()).hooks(&[]).unwrap_or_default();
        assert_eq!(
            (found.pre[0].command.as_slice(), found.pre[0].timeout.as_secs()),
            (&["old".to_owned()][..], 5)
        );
        let mut both = old;
        both["pre.hook.backup.velero.io/command"] = json!("new");
        let found = pod(both).hooks(&[]).unwrap_or_default();
        assert_eq!(
            (found.pre[0].command.as_slice(), found.pre[0].timeout),
            (&["new".to_owned()][..], TIMEOUT)
        );
        // Without a command there is no hook, whatever else is said of it.
        assert!(faults(json!({"pre.hook.backup.velero.io/timeout": "soon"})).is_empty());
        assert!(
            pod(json!({"pre.hook.backup.velero.io/command": ""})).hooks(&[]).is_ok_and(|one| one.is_empty())
        );
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_annotation_and_runs_nothing() {
        let key = |key: &str| format!("pre.hook.backup.velero.io/{key}");
        let long = "x".repeat(limits::COMMAND + 1);
        for (annotation, value, words) in [
            ("command", "[\"open", "is none"),
            ("command", "[]", "names no command"),
            ("command", "[1, 2]", "is none"),
            ("command", long.as_str(), "at most 16384 are taken"),
            ("on-error", "fail", "not one of Continue, Fail"),
            ("timeout", "30", "is not a duration"),
            ("timeout", "-5s", "is negative"),
            ("timeout", "601s", "longer than 10 minutes"),
        ] {
            let mut annotations = json!({"pre.hook.backup.velero.io/command": "true", "post.hook.backup.velero.io/command": "true"});
            annotations[key(annotation)] = json!(value);
            let told = faults(annotations.clone());
            let field = format!("metadata.annotations[{}]: ", key(annotation));
            assert!(told.len() == 1 && told[0].starts_with(&field) && told[0].contains(words), "{told:?}");
            // Of one that has ended nothing is asked.
            let mut ended = pod(annotations);
            ended.status = Some(Status { phase: Some("Succeeded".to_owned()) });
            assert!(ended.hooks(&[]).is_ok_and(|hooks| hooks.is_empty()));
        }
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
            let found = pod(json!({})).hooks(&entries).unwrap_or_default();
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

    proptest! {
        #[test]
        fn whatever_an_annotation_says_it_is_read_without_harm(
            command in ".*", on_error in ".*", timeout in ".*", array in prop::collection::vec(".*", 0..4),
        ) {
            for command in [command.clone(), format!("[{command}"), json!(array).to_string()] {
                let _ = pod(json!({
                    "pre.hook.backup.velero.io/command": command,
                    "post.hook.backup.velero.io/command": command,
                    "pre.hook.backup.velero.io/on-error": on_error,
                    "post.hook.backup.velero.io/timeout": timeout,
                })).hooks(&[]);
            }
        }
    }
}
