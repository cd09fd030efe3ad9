//! Names and labels of berth's own objects that several parts know: whoever makes them, and whoever installs and removes berth.

/// Label of everything that an installation brings, with [`PART_OF_BERTH`] as its value.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
pub const PART_OF_BERTH: &str = "berth";
/// ConfigMap with the grants that are decided and not seen on their objects yet.
pub const LEDGER: &str = "berth-mover-grants";
