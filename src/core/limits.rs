//! How much a Backup may ask for. Velero has no such limits; what is above them is refused with the field and the way
//! out, because reading and comparing it would cost everybody else their time.
//!
//! `manifests/webhook/guard.yaml` says the first one, of lists, while berth is away, too.

use std::time::Duration;

/// Entries of a list of namespaces or of resource types; types of `orderedResources`, and names of all of these together.
pub const NAMES: usize = 1000;
/// Of these, patterns in a list of namespaces.
pub const PATTERNS: usize = 100;
/// Selectors, hooks, and requirements of one selector.
pub const SELECTORS: usize = 100;
/// Values of one requirement.
pub const VALUES: usize = 1000;
/// Labels of a Backup itself, and those in its spec.metadata, which it has from a Schedule's template.
pub const OWN_LABELS: usize = 1000;
/// Labels and values of all label selectors of a Backup, or of a resource policy, together; a requirement without values counts as one.
/// Nobody writes so many by hand, and a program that does can make several Backups: each is read by itself, a fifth of a microsecond
/// at most, while the API server waits.
pub const LABELS: usize = 5000;
/// Bytes of the whole object as JSON. The API server stores up to 1.5 MiB, and what is written to it later has to fit.
pub const OBJECT: usize = 1024 * 1024;
/// Bytes of a resource policy.
pub const POLICY: usize = 128 * 1024;
/// Entries of one section of it: of a policy of volumes, of namespaces, or of a kind.
pub const POLICIES: usize = 100;
/// Hooks of one pod, before and after it together.
pub const HOOKS: usize = 100;
/// Words of a hook's command, and the bytes of all of them. They go to the API server as a part of an address, in which one byte
/// may take three.
pub const COMMAND_WORDS: usize = 256;
pub const COMMAND: usize = 16 * 1024;
/// How long a hook may take: whatever it keeps still is still for so long.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// How long a hook may take that an annotation of its pod asks for, and how long all pods of a namespace with such hooks may keep
/// workers of one backup busy: whoever may annotate a pod holds up everybody's backups for so long.
pub const ANNOTATED_HOOK_TIMEOUT: Duration = Duration::from_secs(600);
pub const ANNOTATED_HOOKS: Duration = Duration::from_secs(3600);
/// How long the hooks after one pod may take in all when its backup ends early, or nobody runs it any more.
pub const LAST_HOOKS: Duration = Duration::from_secs(600);
/// Pods of one block: each of them is still until the last one is, and what it uses is on its way to the store.
pub const BLOCK_PODS: usize = 16;
/// How long the first pod of a block that was frozen waits for hooks before the others to begin. It is enough for fifteen hooks that take
/// the half minute that a hook has which does not say.
pub const BLOCK_STILL: Duration = Duration::from_secs(600);
/// Claims of one pod that are taken between its hooks.
pub const BLOCK_CLAIMS: usize = 100;
/// Pods whose hooks are run at one time for a run that is no more.
pub const THAWED_AT_ONCE: usize = 256;
/// Pods that one Backup has on record as maybe frozen. More are not read.
pub const FROZEN: usize = 1024;
/// Violations of one object that are told one by one.
pub const VIOLATIONS: usize = 20;
/// Characters of a field's path, and of what is said of it.
pub const TOLD: usize = 300;
/// How long the API server may take for one write.
pub const WRITE: Duration = Duration::from_secs(10);
