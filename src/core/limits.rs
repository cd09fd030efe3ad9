//! The largest sizes that berth accepts in a Backup. Velero has no such limits. A larger Backup is
//! refused with the field and the way out, because reading and comparing it would delay all others.
//!
//! `manifests/webhook/guard.yaml` repeats the first limit for lists, so that it holds while berth
//! is down.

use std::time::Duration;

/// Entries of one list of namespaces or resource types. Also types of `orderedResources`, and all
/// names in it together.
pub const NAMES: usize = 1000;
/// Patterns among the entries of one list of namespaces or resource types.
pub const PATTERNS: usize = 100;
/// Label selectors; hooks; requirements of one selector.
pub const SELECTORS: usize = 100;
/// Values of one requirement.
pub const VALUES: usize = 1000;
/// Labels of the Backup itself, and labels in its `spec.metadata`, which come from the template of
/// a Schedule.
pub const OWN_LABELS: usize = 1000;
/// Labels and values in all label selectors of a Backup or a resource policy together; a
/// requirement without values counts as one. A program that needs more can create several Backups.
/// Each label takes up to a fifth of a microsecond to check, while the API server waits.
pub const LABELS: usize = 5000;
/// Bytes of the whole object as JSON. The API server stores up to 1.5 MiB, and berth's later writes
/// must fit as well.
pub const OBJECT: usize = 1024 * 1024;
/// Bytes of a resource policy.
pub const POLICY: usize = 128 * 1024;
/// Entries of one section of a resource policy: volumes, namespaces, or kinds.
pub const POLICIES: usize = 100;
/// Hooks of one pod, before and after its backup together.
pub const HOOKS: usize = 100;
/// Words of a hook's command, and the bytes of all of them. They are sent to the API server in the
/// query of a URL, in which one byte may take three.
pub const COMMAND_WORDS: usize = 256;
pub const COMMAND: usize = 16 * 1024;
/// The longest time-out of a hook, because the workload may stay frozen for so long.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// The longest time-out of a hook from an annotation of its pod. All pods of one namespace with
/// such hooks together may occupy workers of one backup for as long, because everyone who may
/// annotate a pod could otherwise delay all backups.
pub const ANNOTATED_HOOK_TIMEOUT: Duration = Duration::from_secs(600);
pub const ANNOTATED_HOOKS: Duration = Duration::from_secs(3600);
/// Time for all hooks after one pod if its backup ends early or is no longer run.
pub const LAST_HOOKS: Duration = Duration::from_secs(600);
/// Pods of one block. Each of them stays frozen until the last one is, and is stored before they
/// continue.
pub const BLOCK_PODS: usize = 16;
/// How long the first frozen pod of a block waits for the pre hooks of the others. It is enough for
/// fifteen hooks with the default time-out and some more.
pub const BLOCK_STILL: Duration = Duration::from_secs(600);
/// Volume claims of one pod that are stored between its hooks.
pub const BLOCK_CLAIMS: usize = 100;
/// Pods whose hooks are run at the same time on behalf of a run that died.
pub const THAWED_AT_ONCE: usize = 256;
/// Pods that one Backup can record as perhaps frozen. More are not read.
pub const FROZEN: usize = 1024;
/// Faults of one object that are listed; the rest is counted.
pub const VIOLATIONS: usize = 20;
/// Characters of a field's path in a message, and of the message.
pub const MESSAGE: usize = 300;
/// Characters of a message that is written into a status. It may quote the answer of a store or of
/// the API server, which has no limit of its own, and every list of the objects carries it.
pub const STATUS_MESSAGE: usize = 1000;
/// The same of the volume of a pod or of a snapshot: its message names files, and nothing else in
/// the cluster says which they are.
pub const VOLUME_MESSAGE: usize = 4000;
/// Time-out of one write to the API server.
pub const WRITE: Duration = Duration::from_secs(10);
