//! Events about what reviews have found. The process that sends Events implements the trait; the
//! watch caches ([`crate::listers`]) are only read.

use berth_core::affinity::AffinityFinding;
use berth_core::mover::placement::MoverRef;

/// Records Events without waiting for the API server.
pub trait EventRecorder: Send + Sync + 'static {
    /// Something is wrong with where this data mover may run.
    fn placement(&self, mover: &MoverRef<'_>, finding: &AffinityFinding);
    /// The write of another queue to this Backup was refused, which is logged, too.
    fn foreign_queue(&self, name: &str, uid: &str, user: &str);
}
