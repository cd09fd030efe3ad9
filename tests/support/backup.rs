//! Backups as people write them.

use serde_json::{Value, json};

/// A Backup with this spec. Its namespace is kubectl's `--namespace`.
pub fn backup(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": name}, "spec": spec})
}

/// A Backup of these namespaces.
pub fn backup_of(name: &str, namespaces: &[&str]) -> Value {
    backup(name, json!({"includedNamespaces": namespaces}))
}
