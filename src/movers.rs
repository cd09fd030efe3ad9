//! Data movers: the objects by which Velero's node-agents move volume data, and the pods that do
//! so.
//!
//! - [`node_cache`]: nodes, node-agents, StorageClasses and the node-agents' configuration, from
//!   watches.
//! - [`configuration`]: which ConfigMap the node-agents read, and its contents;
//!   [`configuration_watch`] keeps that in the node cache.
//! - [`volumes`]: the volume of a data mover.
//! - [`placing`]: the nodes on which its pod may run, for admission.
//! - [`snapshot_classes`]: the drivers of which snapshots can be taken, from a watch, for
//!   admission.
//! - [`mover_cache`]: the watch cache of the data movers themselves, for the leader.
//! - [`granting`], [`ledger`]: the leader grants places, and records the grants.
//! - [`objects`]: data movers as untyped API objects, for patches.
//! - [`target`]: the pod whose volume a PodVolumeRestore restores.
//! - [`recovery`]: orphaned data movers, whose node-agent is gone.
//! - [`nudge`]: data movers that were refused, once no leader grants any more.
//! - [`listing`]: a one-time read of all of these, for commands.
//! - [`reporter`]: Events, log messages and metrics about all of these.

pub mod configuration;
pub mod configuration_watch;
pub mod granting;
pub mod ledger;
pub mod listing;
pub mod mover_cache;
pub mod node_cache;
pub mod nudge;
pub mod objects;
pub mod placing;
pub mod recovery;
pub mod reporter;
pub mod snapshot_classes;
pub mod target;
pub mod volumes;

pub use node_cache::NodeCache;
