//! Hooks: the commands that run in a pod before and after its data is stored. Annotations of the
//! pod take precedence over the entries of the Backup's spec, separately for hooks before and hooks
//! after.
//!
//! A pod whose hooks have begun is recorded on its Backup until its post hooks were tried. The
//! process that recovers a dead run finds there which pods may still be frozen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::label::Selector;
use crate::limits;
use crate::namespace::NamespaceSet;

/// Time-out of a hook that sets none.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest word of a command that is removed from messages, in characters. Shorter words occur in
/// every text.
const SECRET: usize = 4;

/// What the failure of a hook before a pod's backup means for that pod. A hook after it fails too
/// late to matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The pod is stored all the same. This is also the default, as in Velero's server (its
    /// documentation says otherwise), because a restore can leave out an object that was stored,
    /// but cannot restore one that was not.
    #[default]
    Continue,
    /// The pod is not stored.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPhase {
    Pre,
    Post,
}

impl fmt::Display for HookPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pre => "pre",
            Self::Post => "post",
        })
    }
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The name in messages: that of its entry in the spec, or the key of its annotation.
    pub name: String,
    /// `None`: the first container.
    pub container: Option<String>,
    pub command: Vec<String>,
    pub on_error: OnError,
    pub timeout: Duration,
}

impl Hook {
    /// Removes the words of the command from a message, because they may be passwords, and shells
    /// and container runtimes quote what they cannot run.
    pub fn unquoted(&self, text: &str) -> String {
        // Each word as written, line by line, and as written between quotes.
        let quoted = self.command.iter().filter_map(|word| {
            let quoted = format!("{word:?}");
            quoted.strip_prefix('"').and_then(|word| word.strip_suffix('"')).map(str::to_owned)
        });
        let lines = self.command.iter().flat_map(|word| word.lines()).map(|line| line.trim().to_owned());
        let mut words: Vec<String> =
            quoted.chain(lines).filter(|word| word.chars().count() >= SECRET).collect();
        // A word that contains another one goes first.
        words.sort_unstable_by_key(|word| Reverse(word.len()));
        words.iter().fold(text.to_owned(), |text, word| text.replace(word.as_str(), "…"))
    }
}

/// An entry of a Backup's spec: hooks for the pods that match.
#[derive(Clone, Debug, PartialEq)]
pub struct HookRule {
    pub namespaces: NamespaceSet,
    /// The resource filter of the entry includes pods. Only pods have hooks.
    pub takes_pods: bool,
    pub selector: Selector,
    pub pre: Vec<Arc<Hook>>,
    pub post: Vec<Arc<Hook>>,
}

impl HookRule {
    fn is_for(&self, pod: &HookPod<'_>) -> bool {
        self.takes_pods && self.namespaces.contains(pod.namespace) && self.selector.matches(pod.labels)
    }
}

/// The part of a pod that these decisions need.
pub struct HookPod<'a> {
    pub namespace: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// The pod is Succeeded or Failed, so no command can run in it.
    pub has_ended: bool,
    /// Hooks from the annotations of the pod.
    pub pre: Option<Arc<Hook>>,
    pub post: Option<Arc<Hook>>,
}

/// The hooks of one pod, before and after, each in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    pub pre: Vec<Arc<Hook>>,
    pub post: Vec<Arc<Hook>>,
    /// At least one hook comes from an annotation.
    pub is_annotated: bool,
}

impl Hooks {
    pub fn is_empty(&self) -> bool {
        self.pre.is_empty() && self.post.is_empty()
    }

    /// Is the pod left out if its hooks cannot be run at all?
    pub fn may_leave_out(&self) -> bool {
        self.pre.iter().any(|hook| hook.on_error == OnError::Fail)
    }
}

/// More hooks than anyone can have intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has more than {} hooks, before and after it together, from all entries of spec.hooks that fit it: put some of them into one command",
    limits::HOOKS
)]
pub struct TooMany;

/// The hooks of one pod.
///
/// # Errors
/// There are more than a pod may have.
pub fn hooks(pod: &HookPod<'_>, entries: &[HookRule]) -> Result<Hooks, TooMany> {
    if pod.has_ended {
        return Ok(Hooks::default());
    }
    let of = |annotated: &Option<Arc<Hook>>, listed: fn(&HookRule) -> &[Arc<Hook>]| -> Vec<Arc<Hook>> {
        match annotated {
            Some(hook) => vec![Arc::clone(hook)],
            None => {
                let mine = entries.iter().filter(|entry| entry.is_for(pod)).flat_map(listed);
                mine.take(limits::HOOKS + 1).cloned().collect()
            }
        }
    };
    let found = Hooks {
        pre: of(&pod.pre, |entry| entry.pre.as_slice()),
        post: of(&pod.post, |entry| entry.post.as_slice()),
        is_annotated: pod.pre.is_some() || pod.post.is_some(),
    };
    if found.pre.len() + found.post.len() > limits::HOOKS { Err(TooMany) } else { Ok(found) }
}

/// A recorded pod. Its UID distinguishes it from a later pod of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The record as text: `namespace/name/uid`, comma separated.
pub fn write_frozen<'p>(pods: impl IntoIterator<Item = &'p PodId>) -> String {
    let written = pods.into_iter().map(|pod| format!("{}/{}/{}", pod.namespace, pod.name, pod.uid));
    written.collect::<Vec<_>>().join(",")
}

/// Parses the record; each pod once. Malformed entries are skipped.
pub fn read_frozen(text: &str) -> BTreeSet<PodId> {
    let pod = |text: &str| {
        let mut parts = text.split('/');
        let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
        let is_one = parts.next().is_none() && ![namespace, name, uid].iter().any(|part| part.is_empty());
        is_one.then(|| PodId { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() })
    };
    text.split(',').take(limits::FROZEN).filter_map(pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use crate::violation::{Field, Violations};
    use proptest::prelude::*;

    fn hook(name: &str) -> Arc<Hook> {
        Arc::new(Hook {
            name: name.to_owned(),
            container: None,
            command: vec!["true".to_owned()],
            on_error: OnError::default(),
            timeout: TIMEOUT,
        })
    }

    fn entry(name: &str, namespaces: &[&str], label: Option<(&str, &str)>) -> HookRule {
        let globs = namespaces.iter().filter_map(|text| Glob::parse(text).ok()).collect();
        let mut found = Violations::default();
        HookRule {
            namespaces: NamespaceSet::new(globs, Vec::new()),
            takes_pods: true,
            selector: Selector::parse(label.into_iter(), std::iter::empty(), &Field::root("s"), &mut found),
            pre: vec![hook(&format!("{name}-pre"))],
            post: vec![hook(&format!("{name}-post"))],
        }
    }

    fn names(hooks: &[Arc<Hook>]) -> Vec<&str> {
        hooks.iter().map(|hook| hook.name.as_str()).collect()
    }

    #[test]
    fn entries_that_match_run_in_their_order_and_annotations_outrank_those_of_their_side() {
        let entries = [
            entry("all", &[], None),
            entry("shop", &["sh*"], None),
            entry("elsewhere", &["bank"], None),
            entry("labelled", &[], Some(("app", "db"))),
            entry("other-label", &[], Some(("app", "web"))),
            HookRule { takes_pods: false, ..entry("of-claims", &[], None) },
        ];
        let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
        let pod = |pre: Option<&str>, post: Option<&str>, has_ended: bool| HookPod {
            namespace: "shop",
            labels: &labels,
            has_ended,
            pre: pre.map(hook),
            post: post.map(hook),
        };
        let (pre, post) =
            (["all-pre", "shop-pre", "labelled-pre"], ["all-post", "shop-post", "labelled-post"]);
        for (annotated, expected_pre, expected_post) in [
            ((None, None), &pre[..], &post[..]),
            ((Some("a"), None), &["a"], &post),
            ((None, Some("b")), &pre, &["b"]),
            ((Some("a"), Some("b")), &["a"], &["b"]),
        ] {
            let found = hooks(&pod(annotated.0, annotated.1, false), &entries).unwrap_or_default();
            assert_eq!(
                (names(&found.pre), names(&found.post)),
                (expected_pre.to_vec(), expected_post.to_vec())
            );
        }
        assert_eq!(hooks(&pod(Some("a"), Some("b"), true), &entries), Ok(Hooks::default()));
    }

    #[test]
    fn a_pod_has_so_many_hooks_and_no_more() {
        let labels = BTreeMap::new();
        let pod = HookPod { namespace: "a", labels: &labels, has_ended: false, pre: None, post: None };
        let of = |pre: usize, post: usize| HookRule {
            pre: vec![hook("x"); pre],
            post: vec![hook("x"); post],
            ..entry("many", &[], None)
        };
        for (pre, post, is_fine) in
            [(limits::HOOKS, 0, true), (limits::HOOKS, 1, false), (0, limits::HOOKS, true), (51, 50, false)]
        {
            assert_eq!(hooks(&pod, &[of(pre, post)]).is_ok(), is_fine, "{pre} and {post}");
        }
        let many = vec![of(100, 100); 100];
        assert_eq!(hooks(&pod, &many), Err(TooMany));
    }

    #[test]
    fn what_is_said_of_a_hook_has_none_of_the_words_of_its_command() {
        for (command, said, expected) in [
            (
                &["/bin/dump", "-p", "s3cret"][..],
                "exec: \"/bin/dump\": no such file",
                "exec: \"…\": no such file",
            ),
            (&["dump", "-ps3cret", "s3cret"], "usage of dump: -ps3cret s3cret", "usage of …: … …"),
            (
                &["sh", "-c", "set -e\ndump s3cret\nend"],
                "sh: 2: dump s3cret : not found",
                "sh: 2: … : not found",
            ),
            (&["sh", "-c", "echo \"s3cret\""], "[sh -c echo \\\"s3cret\\\"]", "[sh -c …]"),
            (&["a", "of", "the"], "the end of a", "the end of a"),
            (&["", "    ", "\n\n"], "a    b", "a…b"),
            (&["s3crét"], "s3crét s3cr", "… s3cr"),
            (&[], "it failed", "it failed"),
        ] {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            let hook = Hook { command, ..Hook::clone(&hook("x")) };
            assert_eq!(hook.unquoted(said), expected, "{:?}", hook.command);
        }
    }

    #[test]
    fn only_one_that_says_so_leaves_its_pod_out() {
        let says = |on_error: OnError| {
            let hook = Arc::new(Hook { on_error, ..Hook::clone(&hook("x")) });
            Hooks { pre: vec![Arc::clone(&hook)], ..Hooks::default() }
        };
        assert!(says(OnError::Fail).may_leave_out() && !says(OnError::Continue).may_leave_out());
        let after = Hooks { post: says(OnError::Fail).pre, ..Hooks::default() };
        assert!(!after.may_leave_out());
    }

    #[test]
    fn what_is_no_pod_is_passed_over() {
        for (text, count) in [
            ("", 0),
            ("shop/db-0/1-2", 1),
            ("shop/db-0/1,shop/db-0/1,shop/db-1/2", 2),
            ("shop/db-0", 0),
            ("shop/db-0/1/2,/,//,a//b", 0),
        ] {
            assert_eq!(read_frozen(text).len(), count, "{text}");
        }
        assert!(read_frozen(&"a/b/c,".repeat(1_000_000)).len() <= limits::FROZEN);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            pods in prop::collection::btree_set(("[a-z0-9-]{1,63}", "[a-z0-9.-]{1,253}", "[0-9a-f-]{1,36}"), 0..40)
        ) {
            let pods: BTreeSet<PodId> =
                pods.into_iter().map(|(namespace, name, uid)| PodId { namespace, name, uid }).collect();
            prop_assert_eq!(read_frozen(&write_frozen(&pods)), pods);
        }

        #[test]
        fn whatever_stands_there_is_read_without_harm(text in ".*") {
            let _ = read_frozen(&text);
        }

        /// For every pod and every spec: no hook of another namespace, never more than the limit,
        /// and an annotation replaces all entries.
        #[test]
        fn a_pod_has_the_hooks_of_its_annotation_or_of_its_entries(
            sides in prop::collection::vec((any::<bool>(), 0..4_usize, 0..4_usize), 0..6),
            annotated in any::<bool>(),
        ) {
            let labels = BTreeMap::new();
            let entries: Vec<HookRule> = sides
                .iter()
                .map(|(here, pre, post)| HookRule {
                    pre: vec![hook("pre"); *pre],
                    post: vec![hook("post"); *post],
                    ..entry("e", &[if *here { "here" } else { "elsewhere" }], None)
                })
                .collect();
            let annotation = annotated.then(|| hook("annotation"));
            let pod = HookPod { namespace: "here", labels: &labels, has_ended: false, pre: annotation, post: None };
            let found = hooks(&pod, &entries).unwrap_or_default();
            let mine = |count: fn(&(bool, usize, usize)) -> usize| {
                sides.iter().filter(|side| side.0).map(count).sum::<usize>()
            };
            prop_assert_eq!(found.post.len(), mine(|side| side.2));
            if annotated {
                prop_assert_eq!(names(&found.pre), ["annotation"]);
            } else {
                prop_assert_eq!(found.pre.len(), mine(|side| side.1));
            }
        }
    }
}
