//! The node-agents' configuration: one ConfigMap with one key, whose value is JSON (source: Velero's
//! `pkg/types/node_agent.go`, 1.18). Velero ignores what it does not know; here every fault is told, with its path.

mod read;

use std::collections::{BTreeMap, BTreeSet};

use berth_core::affinity::{Rule, TolerationRule};
use berth_core::label::Selector;
use berth_core::violation::{Field, Violations};
use serde_json::Value;

use read::Reader;

/// What berth uses of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAgentConfig {
    /// `loadAffinity`, in order.
    pub load_affinity: Vec<Rule>,
    /// `loadTolerations`, berth's own: Velero ignores it.
    pub load_tolerations: Vec<TolerationRule>,
    /// By class of the source.
    pub backup_pvc: BTreeMap<String, BackupPvc>,
    pub ignore_delay_binding: bool,
    /// Data paths of a node. 0: not said, which means 1.
    pub global_config: u32,
    pub per_node: Vec<(Selector, u32)>,
    /// How many data movers may be prepared at a time; `None`: as many as like.
    pub prepare_queue_length: Option<usize>,
    /// `cachePVC.storageClass`.
    pub cache_class: Option<String>,
}

/// The claim that Velero makes for a backup's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupPvc {
    pub storage_class: Option<String>,
    pub read_only: bool,
}

/// Reads it as Velero does, and tells what is wrong with it all the same.
///
/// # Errors
/// All faults, if one of them keeps Velero from using it: no key or several, no JSON, a wrong type, a selector that is none.
pub fn parse(data: &BTreeMap<String, String>) -> Result<(NodeAgentConfig, Violations), Violations> {
    let mut unusable = Violations::default();
    let root = Field::root("data");
    let (Some((key, text)), 1) = (data.first_key_value(), data.len()) else {
        let keys: Vec<&str> = data.keys().map(String::as_str).collect();
        let there = if keys.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are {}", keys.join(", "))
        };
        unusable.push(root, format!("must have exactly one key, whose value is JSON: {there}"));
        return Err(unusable);
    };
    let at = root.key(key);
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            unusable.push(at, format!("is not JSON: {error}"));
            return Err(unusable);
        }
    };
    let mut reader = Reader::default();
    let config = reader.config(&value, &at);
    if reader.unusable.is_empty() {
        return Ok((config, reader.faults));
    }
    reader.unusable.append(reader.faults);
    Err(reader.unusable)
}

/// StorageClasses that do not exist.
pub fn check_classes(config: &NodeAgentConfig, known: &BTreeSet<String>, found: &mut Violations) {
    let there = || known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut check = |class: Option<&str>, at: Field| {
        if let Some(class) = class.filter(|class| !known.contains(*class)) {
            found.push(at, format!("there is no StorageClass {class:?} (there are: {})", there()));
        }
    };
    let class_at = |list: &str, i| Field::root(list).index(i).child("storageClass");
    for (i, rule) in config.load_affinity.iter().enumerate() {
        check(rule.storage_class.as_deref(), class_at("loadAffinity", i));
    }
    for (i, rule) in config.load_tolerations.iter().enumerate() {
        check(rule.storage_class.as_deref(), class_at("loadTolerations", i));
    }
    for (source, claim) in &config.backup_pvc {
        let at = Field::root("backupPVC").key(source);
        check(Some(source), at.clone());
        check(claim.storage_class.as_deref(), at.child("storageClass"));
    }
    check(config.cache_class.as_deref(), Field::root("cachePVC").child("storageClass"));
}

#[cfg(test)]
mod tests;
