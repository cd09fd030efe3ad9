//! How much a Backup may ask for. Velero has no such limits; what is above them is refused with the field and the way
//! out, because reading and comparing it would cost everybody else their time.
//!
//! `manifests/webhook/guard.yaml` says the same while berth is away.

/// Entries of a list of namespaces or of resource types.
pub const NAMES: usize = 1000;
/// Of these, patterns in a list of namespaces.
pub const PATTERNS: usize = 100;
/// Selectors, hooks, and requirements of one selector.
pub const SELECTORS: usize = 100;
/// Values of one requirement.
pub const VALUES: usize = 1000;
/// Bytes of the whole object as JSON. The API server stores up to 1.5 MiB, and what is written to it later has to fit.
pub const OBJECT: usize = 1024 * 1024;
/// Bytes of a resource policy.
pub const POLICY: usize = 128 * 1024;
/// Entries of one section of it: of a policy of volumes, of namespaces, or of a kind.
pub const POLICIES: usize = 100;
/// Violations of one object that are told one by one.
pub const VIOLATIONS: usize = 20;
/// Characters of a field's path, and of what is said of it.
pub const TOLD: usize = 300;
