//! From JSON to values, by Go's rules: what has the wrong type cannot be read, what is unknown is ignored, and told.

use std::collections::BTreeMap;

use berth_core::affinity::{Effect, Rule, Toleration, TolerationRule};
use berth_core::label::{RawRequirement, Selector};
use berth_core::violation::{Field, Violations};
use serde_json::{Map, Value};

use super::{BackupPvc, NodeAgentConfig};

/// Collects two kinds of faults.
#[derive(Default)]
pub(super) struct Reader {
    /// Velero reads it all the same.
    pub faults: Violations,
    /// Velero does not start with it.
    pub unusable: Violations,
}

const TOP: [&str; 11] = [
    "loadConcurrency",
    "loadAffinity",
    "loadTolerations",
    "backupPVC",
    "restorePVC",
    "podResources",
    "priorityClassName",
    "privilegedFsBackup",
    "cachePVC",
    "podAnnotations",
    "podLabels",
];
const RESOURCES: [&str; 6] = [
    "cpuRequest",
    "cpuLimit",
    "memoryRequest",
    "memoryLimit",
    "ephemeralStorageRequest",
    "ephemeralStorageLimit",
];

impl Reader {
    pub fn config(&mut self, value: &Value, at: &Field) -> NodeAgentConfig {
        let mut config = NodeAgentConfig::default();
        let Some(top) = self.object(Some(value), at, &TOP) else { return config };
        self.concurrency(top.get("loadConcurrency"), &at.child("loadConcurrency"), &mut config);
        config.load_affinity = self.affinity(top.get("loadAffinity"), &at.child("loadAffinity"));
        config.load_tolerations = self.tolerations(top.get("loadTolerations"), &at.child("loadTolerations"));
        config.backup_pvc = self.backup_pvc(top.get("backupPVC"), &at.child("backupPVC"));
        let restore = at.child("restorePVC");
        if let Some(found) = self.object(top.get("restorePVC"), &restore, &["ignoreDelayBinding"]) {
            config.ignore_delay_binding = self.flag(found, "ignoreDelayBinding", &restore);
        }
        let cache = at.child("cachePVC");
        if let Some(found) =
            self.object(top.get("cachePVC"), &cache, &["storageClass", "residentThresholdInMB"])
        {
            self.number(found.get("residentThresholdInMB"), &cache.child("residentThresholdInMB"));
            config.cache_class = self.text(found, "storageClass", &cache);
            if config.cache_class.is_none() {
                self.faults.push(cache.child("storageClass"), "is missing: without it there is no cache");
            }
        }
        self.resources(top.get("podResources"), &at.child("podResources"));
        self.text(top, "priorityClassName", at);
        self.flag(top, "privilegedFsBackup", at);
        self.texts(top.get("podAnnotations"), &at.child("podAnnotations"));
        self.texts(top.get("podLabels"), &at.child("podLabels"));
        config
    }

    fn concurrency(&mut self, value: Option<&Value>, at: &Field, config: &mut NodeAgentConfig) {
        const KNOWN: [&str; 3] = ["globalConfig", "perNodeConfig", "prepareQueueLength"];
        let Some(found) = self.object(value, at, &KNOWN) else { return };
        let global = self.number(found.get("globalConfig"), &at.child("globalConfig"));
        config.global_config = global.and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
        let length = self.number(found.get("prepareQueueLength"), &at.child("prepareQueueLength"));
        config.prepare_queue_length = length.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let per_node = at.child("perNodeConfig");
        for (i, value) in self.list(found.get("perNodeConfig"), &per_node).iter().enumerate() {
            let at = per_node.index(i);
            let Some(rule) = self.object(Some(value), &at, &["nodeSelector", "number"]) else { continue };
            let selector = self.selector(rule.get("nodeSelector"), &at.child("nodeSelector"));
            let number = self.number(rule.get("number"), &at.child("number")).unwrap_or_default();
            match u32::try_from(number) {
                Ok(number) if number > 0 => {
                    config.per_node.extend(selector.map(|selector| (selector, number)))
                }
                _ => self.faults.push(at.child("number"), "must be above 0: it is ignored"),
            }
        }
    }

    fn affinity(&mut self, value: Option<&Value>, at: &Field) -> Vec<Rule> {
        let mut rules: Vec<(usize, Rule)> = Vec::new();
        for (i, value) in self.list(value, at).iter().enumerate() {
            let at = at.index(i);
            let Some(element) = self.object(Some(value), &at, &["nodeSelector", "storageClass"]) else {
                continue;
            };
            let selector_at = at.child("nodeSelector");
            let Some(selector) = self.selector(element.get("nodeSelector"), &selector_at) else { continue };
            let rule = Rule { storage_class: self.text(element, "storageClass", &at), selector };
            if let Some(key) = rule.selector.contradiction() {
                let message = format!("no node can match: the requirements of {key} exclude each other");
                self.faults.push(selector_at, message);
            }
            let is_twin = |other: &Rule| {
                other.storage_class == rule.storage_class && equal(&other.selector, &rule.selector)
            };
            if let Some((twin, _)) = rules.iter().find(|(_, other)| is_twin(other)) {
                self.faults.push(at, format!("says the same as loadAffinity[{twin}]: remove one"));
            }
            rules.push((i, rule));
        }
        for (i, rule) in rules.iter().filter(|(_, rule)| rule.selector.is_empty()) {
            if rules.iter().filter(|(_, other)| other.storage_class == rule.storage_class).count() > 1 {
                let message = "takes every node, so that its alternatives say nothing: remove it or them";
                self.faults.push(at.index(*i).child("nodeSelector"), message);
            }
        }
        rules.into_iter().map(|(_, rule)| rule).collect()
    }

    fn tolerations(&mut self, value: Option<&Value>, at: &Field) -> Vec<TolerationRule> {
        let mut rules = Vec::new();
        for (i, value) in self.list(value, at).iter().enumerate() {
            let at = at.index(i);
            let Some(element) = self.object(Some(value), &at, &["tolerations", "storageClass"]) else {
                continue;
            };
            let list = at.child("tolerations");
            let values = self.list(element.get("tolerations"), &list).to_vec();
            let read = values.iter().enumerate();
            let tolerations = read.filter_map(|(i, value)| self.toleration(value, &list.index(i))).collect();
            rules
                .push(TolerationRule { storage_class: self.text(element, "storageClass", &at), tolerations });
        }
        rules
    }

    /// Velero does not read these, so a fault leaves one out and nothing more.
    fn toleration(&mut self, value: &Value, at: &Field) -> Option<Toleration> {
        const KNOWN: [&str; 5] = ["key", "operator", "value", "effect", "tolerationSeconds"];
        let found = self.object(Some(value), at, &KNOWN)?;
        let key = self.text(found, "key", at).unwrap_or_default();
        let operator = self.text(found, "operator", at).unwrap_or_else(|| "Equal".to_owned());
        let value = self.text(found, "value", at);
        let effect = self.text(found, "effect", at);
        let seconds = self.number(found.get("tolerationSeconds"), &at.child("tolerationSeconds"));
        let mut refuse = |field: &str, message: &str| self.faults.push(at.child(field), message.to_owned());
        let value = match (operator.as_str(), value) {
            ("Exists", None) => None,
            ("Exists", Some(_)) => {
                refuse("value", "operator Exists takes none");
                return None;
            }
            ("Equal", value) if !key.is_empty() => Some(value.unwrap_or_default()),
            ("Equal", _) => {
                refuse("key", "is missing: only operator Exists goes without");
                return None;
            }
            _ => {
                refuse("operator", "is neither Equal nor Exists");
                return None;
            }
        };
        let effect = match effect.as_deref().map(Effect::parse) {
            None => None,
            Some(Some(effect)) => Some(effect),
            Some(None) => {
                refuse("effect", "is none of NoSchedule, PreferNoSchedule, NoExecute");
                return None;
            }
        };
        if seconds.is_some() && effect != Some(Effect::NoExecute) {
            refuse("tolerationSeconds", "goes with effect NoExecute only");
            return None;
        }
        Some(Toleration { key, value, effect, seconds })
    }

    fn backup_pvc(&mut self, value: Option<&Value>, at: &Field) -> BTreeMap<String, BackupPvc> {
        const KNOWN: [&str; 4] = ["storageClass", "readOnly", "spcNoRelabeling", "annotations"];
        let mut claims = BTreeMap::new();
        let Some(found) = self.map(value, at) else { return claims };
        for (class, value) in found {
            let at = at.key(class);
            let Some(claim) = self.object(Some(value), &at, &KNOWN) else { continue };
            let read_only = self.flag(claim, "readOnly", &at);
            if self.flag(claim, "spcNoRelabeling", &at) && !read_only {
                self.faults.push(at.child("spcNoRelabeling"), "goes with readOnly only");
            }
            self.texts(claim.get("annotations"), &at.child("annotations"));
            let storage_class = self.text(claim, "storageClass", &at);
            claims.insert(class.clone(), BackupPvc { storage_class, read_only });
        }
        claims
    }

    fn resources(&mut self, value: Option<&Value>, at: &Field) {
        let Some(found) = self.object(value, at, &RESOURCES) else { return };
        for name in RESOURCES {
            let text = self.text(found, name, at);
            if text.as_ref().is_some_and(|text| !is_quantity(text)) {
                self.faults.push(at.child(name), "is no quantity: Velero ignores all of podResources then");
            }
        }
    }

    /// `None`: with such a one the API server would refuse every pod that Velero makes.
    fn selector(&mut self, value: Option<&Value>, at: &Field) -> Option<Selector> {
        let Some(found) = self.object(value, at, &["matchLabels", "matchExpressions"]) else {
            return Some(Selector::default());
        };
        let labels = self.texts(found.get("matchLabels"), &at.child("matchLabels"));
        let list = at.child("matchExpressions");
        let mut raw: Vec<(String, String, Vec<String>)> = Vec::new();
        for (i, value) in self.list(found.get("matchExpressions"), &list).iter().enumerate() {
            let at = list.index(i);
            let Some(one) = self.object(Some(value), &at, &["key", "operator", "values"]) else { continue };
            let values_at = at.child("values");
            let values = self.list(one.get("values"), &values_at).to_vec();
            let values = values.iter().enumerate();
            let values = values.filter_map(|(i, value)| self.as_text(value, &values_at.index(i))).collect();
            let text = |reader: &mut Self, name| reader.text(one, name, &at).unwrap_or_default();
            raw.push((text(self, "key"), text(self, "operator"), values));
        }
        let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let expressions = raw.iter().map(|(key, operator, values)| RawRequirement { key, operator, values });
        let mut found = Violations::default();
        let selector = Selector::parse(labels, expressions, at, &mut found);
        let is_sound = found.is_empty();
        self.unusable.append(found);
        is_sound.then_some(selector)
    }

    /// Tells unknown fields.
    fn object<'v>(
        &mut self,
        value: Option<&'v Value>,
        at: &Field,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let found = self.map(value, at)?;
        for key in found.keys().filter(|key| !known.contains(&key.as_str())) {
            let message = match key.as_str() {
                "prepareQueueLength" => "is ignored here: it belongs into loadConcurrency".to_owned(),
                _ => format!("is ignored: known here are {}", known.join(", ")),
            };
            self.faults.push(at.child(key), message);
        }
        Some(found)
    }

    fn map<'v>(&mut self, value: Option<&'v Value>, at: &Field) -> Option<&'v Map<String, Value>> {
        match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(found)) => Some(found),
            Some(_) => {
                self.unusable.push(at.clone(), "must be an object");
                None
            }
        }
    }

    fn list<'v>(&mut self, value: Option<&'v Value>, at: &Field) -> &'v [Value] {
        match value {
            None | Some(Value::Null) => &[],
            Some(Value::Array(found)) => found,
            Some(_) => {
                self.unusable.push(at.clone(), "must be a list");
                &[]
            }
        }
    }

    /// Empty is absent.
    fn text(&mut self, map: &Map<String, Value>, key: &str, at: &Field) -> Option<String> {
        self.as_text(map.get(key)?, &at.child(key)).filter(|text| !text.is_empty())
    }

    fn as_text(&mut self, value: &Value, at: &Field) -> Option<String> {
        match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            _ => {
                self.unusable.push(at.clone(), "must be a string");
                None
            }
        }
    }

    fn texts(&mut self, value: Option<&Value>, at: &Field) -> BTreeMap<String, String> {
        let entries = self.map(value, at).into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.clone(), self.as_text(value, &at.key(key))?))).collect()
    }

    fn flag(&mut self, map: &Map<String, Value>, key: &str, at: &Field) -> bool {
        match map.get(key) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(value)) => *value,
            Some(_) => {
                self.unusable.push(at.child(key), "must be true or false");
                false
            }
        }
    }

    fn number(&mut self, value: Option<&Value>, at: &Field) -> Option<i64> {
        match value {
            None | Some(Value::Null) => None,
            Some(value) if value.is_i64() => value.as_i64(),
            Some(_) => {
                self.unusable.push(at.clone(), "must be a whole number");
                None
            }
        }
    }
}

/// Whatever the order of their requirements.
fn equal(one: &Selector, other: &Selector) -> bool {
    let sorted = |selector: &Selector| {
        let mut all: Vec<String> =
            selector.requirements().map(|(key, operator)| format!("{key} {operator}")).collect();
        all.sort();
        all
    };
    sorted(one) == sorted(other)
}

/// As Kubernetes writes amounts: digits with at most one point, then a suffix or an exponent.
fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty());
    let is_exponent = exponent.is_some_and(|rest| rest.parse::<i8>().is_ok());
    number.bytes().any(|b| b.is_ascii_digit())
        && number.matches('.').count() <= 1
        && (is_exponent || SUFFIXES.contains(&suffix))
}
