//! `loadTolerations`: berth's own field of the ConfigMap, which Velero ignores.

use berth_core::affinity::{Effect, Toleration, TolerationRule};
use berth_core::label;
use berth_core::violation::{Field, Violations};

use super::json::Json;
use super::reader::{KnownFields, Reader};
use super::{NodeAgentConfig, class};

pub(super) fn read(json: Option<&Json>, at: &Field, reader: &mut Reader, config: &mut NodeAgentConfig) {
    // No fault in this field makes Velero fail: a rule that cannot be parsed is dropped.
    let mut own = Reader::default();
    let rules = own.list(json, at).iter().enumerate();
    reader.found.append(own.finish());
    for (i, rule) in rules {
        let (mut own, at) = (Reader::default(), at.index(i));
        let rule = own.object(Some(rule), &at, &["storageClass", "tolerations"]);
        let storage_class = class(rule.get("storageClass"), &at.child("storageClass"), &mut own, config);
        let list_at = at.child("tolerations");
        let mut tolerations = Vec::new();
        for (j, toleration) in own.list(rule.get("tolerations"), &list_at).iter().enumerate() {
            tolerations.extend(self::toleration(toleration, &list_at.index(j), &mut own));
        }
        let is_usable = !own.is_unreadable();
        reader.found.append(own.finish());
        if is_usable {
            config.load_tolerations.push(TolerationRule { storage_class, tolerations });
        }
    }
}

/// A toleration that Kubernetes accepts.
fn toleration(json: &Json, at: &Field, reader: &mut Reader) -> Option<Toleration> {
    let mut own = Reader::default();
    let keys = ["key", "operator", "value", "effect", "tolerationSeconds"];
    let object = own.object(Some(json), at, &keys);
    let text = |name: &str, own: &mut Reader| own.text(object.get(name), &at.child(name));
    let (key, value) = (text("key", &mut own), text("value", &mut own));
    let (operator, effect) = (text("operator", &mut own), text("effect", &mut own));
    let seconds = own.number(object.get("tolerationSeconds"), &at.child("tolerationSeconds"));
    let mut faults = Violations::default();
    if !own.is_unreadable() {
        check(&object, at, (&key, &operator, &value, &effect), &mut faults);
    }
    let is_usable = !own.is_unreadable() && faults.is_empty();
    reader.found.append(own.finish());
    reader.found.append(faults);
    let value = (operator != "Exists").then_some(value);
    is_usable.then(|| Toleration { key, value, effect: Effect::parse(&effect), seconds })
}

/// Kubernetes' rules for tolerations of a pod.
fn check(
    object: &KnownFields<'_>,
    at: &Field,
    (key, operator, value, effect): (&str, &str, &str, &str),
    found: &mut Violations,
) {
    if !key.is_empty() {
        label::check_key(key, &at.child("key"), found);
    } else if operator != "Exists" {
        found.push(at.child("operator"), "must be Exists where there is no key, which means all taints");
    }
    match operator {
        "Exists" => {
            let message = "operator Exists takes no value: remove it";
            found.require(value.is_empty(), &at.child("value"), message);
        }
        "" | "Equal" => label::check_value(value, &at.child("value"), found),
        other => found.push(at.child("operator"), format!("{other:?} is not one of Equal, Exists")),
    }
    if !effect.is_empty() && Effect::parse(effect).is_none() {
        let message = format!("{effect:?} is not one of NoSchedule, PreferNoSchedule, NoExecute");
        found.push(at.child("effect"), message);
    }
    if object.get("tolerationSeconds").is_some() {
        let message = "must be NoExecute where tolerationSeconds is set";
        found.require(effect == "NoExecute", &at.child("effect"), message);
    }
}
