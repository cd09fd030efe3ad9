//! The hooks in the annotations of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_core::hook::{Hook, HookRule, Hooks, OnError, PodId, hooks};
use berth_core::limits;
use berth_core::violation::{Field, Violations};
use serde::Deserialize;

use super::command;
use crate::GoDuration;

/// A part of the key of each hook annotation. Few pods have such a key.
pub const MARK: &str = "hook.backup.velero.io/";
/// Prefixes of the keys for hooks before a pod's backup. The second is the older name of the first.
const PRE: [&str; 2] = ["pre.hook.backup.velero.io", "hook.backup.velero.io"];
const POST: [&str; 1] = ["post.hook.backup.velero.io"];

/// The fields of a pod that hooks need.
#[derive(Debug, Deserialize)]
pub struct AnnotatedPod {
    metadata: AnnotatedPodMetadata,
    #[serde(default)]
    spec: Option<AnnotatedPodSpec>,
    #[serde(default)]
    status: Option<AnnotatedPodStatus>,
}

#[derive(Debug, Deserialize)]
struct AnnotatedPodMetadata {
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
struct AnnotatedPodSpec {
    #[serde(default)]
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
}

#[derive(Debug, Deserialize)]
struct AnnotatedPodStatus {
    #[serde(default)]
    phase: Option<String>,
}

impl AnnotatedPod {
    pub fn id(&self) -> PodId {
        let AnnotatedPodMetadata { namespace, name, uid, .. } = &self.metadata;
        PodId { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    /// The container of a hook that names none.
    pub fn first_container(&self) -> Option<String> {
        Some(self.spec.as_ref()?.containers.as_ref()?.first()?.name.clone())
    }

    /// Is the pod Succeeded or Failed, so that no command can run in it?
    pub fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// The hooks of this pod.
    ///
    /// # Errors
    /// Its annotations are malformed, or it has too many hooks. None of them may be run then,
    /// because one that freezes the workload could run without the one that thaws it.
    pub fn hooks(&self, entries: &[HookRule]) -> Result<Hooks, Violations> {
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
        let pod = berth_core::hook::HookPod {
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

/// The hook of the first of these prefixes that has a command.
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
    // The text is not split into words, because no shell runs it.
    let command = match command.starts_with('[') {
        false => vec![command.clone()],
        true => serde_json::from_str(command).unwrap_or_else(|error| {
            found.push(field.clone(), format!("begins like a JSON array of texts and is none: {error}"));
            vec![command.clone()]
        }),
    };
    command::check(&command, &field, found);
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
    let timeout =
        command::timeout(text.map(|text| GoDuration(text.clone())).as_ref(), most, &way_out, &field, found);
    let container = read(prefix, "container").0.cloned();
    Some(Hook { name, container, command, on_error, timeout })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_core::hook::TIMEOUT;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: Value) -> AnnotatedPod {
        let metadata = json!({
            "name": "db-0", "namespace": "shop", "uid": "u", "labels": {"app": "db"}, "annotations": annotations,
        });
        let containers = json!([{"name": "main", "image": "i"}, {"name": "side"}]);
        let pod =
            json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}});
        serde_json::from_value(pod).unwrap_or_else(|e| unreachable!("{e}"))
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
        // Without a command there is no hook, whatever other annotations exist.
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
            // A pod that has ended is not checked.
            let mut ended = pod(annotations);
            ended.status = Some(AnnotatedPodStatus { phase: Some("Succeeded".to_owned()) });
            assert!(ended.hooks(&[]).is_ok_and(|hooks| hooks.is_empty()));
        }
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
