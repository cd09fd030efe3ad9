//! Names and labels of berth's own objects that several parts use.

/// Label of every installed object, with the value [`PART_OF_BERTH`].
pub const PART_OF: &str = "app.kubernetes.io/part-of";
pub const PART_OF_BERTH: &str = "berth";
/// Label of the pods of berth's node agents.
pub const NODE_AGENTS: &str = "app.kubernetes.io/name=berth-node-agent";
/// ConfigMap with the grants that are decided, but not seen on their objects yet.
pub const LEDGER: &str = "berth-mover-grants";
