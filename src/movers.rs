//! Data movers: the pods in which Velero's node-agents carry volume data, and the objects that ask for them.
//!
//! - [`node_cache`]: nodes, node-agents, StorageClasses and the node-agents' configuration, as they are now.
//! - [`volumes`]: which volume a mover is for.
//! - [`placing`]: where its pod may run; asked by admission.
//! - [`mover_cache`]: the movers themselves, for the leader.
//! - [`ledger`], [`granting`]: who may prepare next, exactly.
//! - [`objects`]: the movers as objects of the API, whatever their kind.
//! - [`target`]: the pod that a restored volume is for.
//! - [`recovery`]: what a node-agent left behind that died.
//! - [`wake`]: what was refused, where nobody grants any more.
//! - [`look`]: one look at all of it, for commands.
//! - [`telling`]: what people should know of all that.

pub mod configuration;
pub mod granting;
pub mod ledger;
pub mod look;
pub mod mover_cache;
pub mod node_cache;
pub mod objects;
pub mod placing;
pub mod recovery;
pub mod target;
pub mod telling;
pub mod volumes;
pub mod wake;

pub use node_cache::NodeCache;
