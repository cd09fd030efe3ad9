//! Node selectors, and how they relate to each other; the labels of pods.

use std::collections::BTreeMap;

use berth_core::affinity::{Expression, LoadAffinityRule};
use berth_core::label::{self, RawRequirement, Selector};
use berth_core::violation::{Field, Violations};

use super::json::Json;
use super::reader::Reader;

/// `None`: Kubernetes would refuse a pod with this selector.
pub(super) fn read(json: Option<&Json>, at: &Field, reader: &mut Reader) -> Option<Selector> {
    let object = reader.object(json, at, &["matchLabels", "matchExpressions"]);
    let labels = reader.map(object.get("matchLabels"), &at.child("matchLabels"));
    let list_at = at.child("matchExpressions");
    let mut expressions: Vec<(String, String, Vec<String>)> = Vec::new();
    for (i, expression) in reader.list(object.get("matchExpressions"), &list_at).iter().enumerate() {
        let at = list_at.index(i);
        let expression = reader.object(Some(expression), &at, &["key", "operator", "values"]);
        let key = reader.text(expression.get("key"), &at.child("key"));
        let operator = reader.text(expression.get("operator"), &at.child("operator"));
        expressions.push((key, operator, reader.texts(expression.get("values"), &at.child("values"))));
    }
    let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let raw = expressions.iter().map(|(key, operator, values)| RawRequirement { key, operator, values });
    let mut faults = Violations::default();
    let selector = Selector::parse(labels, raw, at, &mut faults);
    if !faults.is_empty() {
        reader.found.append(faults);
        return None;
    }
    if let Some(key) = selector.contradiction() {
        let about = selector.requirements().filter(|(k, _)| *k == key);
        let about: Vec<String> = about.map(|(key, operator)| format!("{key} {operator}")).collect();
        let message = format!("matches no node, because these exclude each other: {}", about.join(", "));
        reader.found.push(at.clone(), message);
    }
    Some(selector)
}

/// Reports elements that repeat another one, or that make others redundant.
pub(super) fn compare(rules: &[(Field, LoadAffinityRule)], found: &mut Violations) {
    let meaning = |rule: &LoadAffinityRule| -> (Option<String>, Vec<Expression>) {
        let mut expressions = rule.expressions();
        expressions.sort();
        expressions.dedup();
        (rule.storage_class.clone(), expressions)
    };
    let meanings: Vec<_> = rules.iter().map(|(at, rule)| (at, meaning(rule))).collect();
    for (i, (at, this)) in meanings.iter().enumerate() {
        let earlier = meanings.iter().take(i).find(|(_, other)| other == this);
        if let Some((other, _)) = earlier {
            found.push((*at).clone(), format!("says the same as {other}: remove one"));
        } else if this.1.is_empty() {
            let idle = meanings.iter().filter(|(_, other)| other.0 == this.0 && !other.1.is_empty());
            let idle: Vec<String> = idle.map(|(at, _)| at.to_string()).collect();
            let message = format!(
                "matches every node and so makes its alternatives pointless ({}): give it requirements, or \
                 remove it or them",
                idle.join(", ")
            );
            found.require(idle.is_empty(), &at.child("nodeSelector"), message);
        }
    }
}

/// The labels for the pods of movers, without those with which Kubernetes would refuse a pod.
pub(super) fn pod_labels(json: Option<&Json>, at: &Field, reader: &mut Reader) -> BTreeMap<String, String> {
    const VELEROS: [&str; 5] = [
        "velero.io/data-upload",
        "velero.io/data-download",
        "velero.io/pod-volume-backup",
        "velero.io/pod-volume-restore",
        "velero.io/exposer-pod-group",
    ];
    let mut labels = reader.map(json, at);
    labels.retain(|key, value| {
        let at = at.child(key);
        let mut faults = Violations::default();
        label::check_key(key, &at, &mut faults);
        label::check_value(value, &at, &mut faults);
        let is_valid = faults.is_empty();
        reader.found.append(faults);
        let message = "is the label by which Velero finds its data movers: use another key";
        reader.found.require(!VELEROS.contains(&key.as_str()), &at, message);
        is_valid
    });
    labels
}
