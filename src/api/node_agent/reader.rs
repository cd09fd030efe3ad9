//! Reads JSON in the same way as Velero's node-agent, and reports what the node-agent ignores
//! silently.

use std::collections::BTreeMap;

use berth_core::violation::{Field, Violation, Violations};

use super::json::Json;

/// Collects the faults.
#[derive(Default)]
pub(super) struct Reader {
    pub found: Violations,
    /// Faults on which Velero itself fails: its node-agent does not start.
    fatal: Vec<Violation>,
}

/// The known keys of an object.
#[derive(Default)]
pub(super) struct KnownFields<'j>(Vec<(&'static str, &'j Json)>);

impl<'j> KnownFields<'j> {
    /// Returns `None` for `null`, which Velero treats as absent.
    pub fn get(&self, name: &str) -> Option<&'j Json> {
        let known = self.0.iter().find(|(known, _)| *known == name);
        known.map(|(_, value)| *value).filter(|value| **value != Json::Null)
    }
}

impl Reader {
    pub fn unreadable(&mut self, at: &Field, message: impl Into<String>) {
        let violation = Violation { field: at.clone(), message: message.into() };
        self.found.push(violation.field.clone(), violation.message.clone());
        self.fatal.push(violation);
    }

    pub fn is_unreadable(&self) -> bool {
        !self.fatal.is_empty()
    }

    /// All faults. A field with a wrong type has only that fault, because the other checks had no
    /// value to check.
    pub fn finish(self) -> Violations {
        let mut found = Violations::default();
        for violation in self.found.iter() {
            let mut here = self.fatal.iter().filter(|fatal| fatal.field == violation.field).peekable();
            if here.peek().is_none() || here.any(|fatal| fatal == violation) {
                found.push(violation.field.clone(), violation.message.clone());
            }
        }
        found
    }

    fn wrong_type(&mut self, json: &Json, at: &Field, expected: &str) {
        self.unreadable(at, format!("must be {expected}, is {}", json.kind()));
    }

    /// The known keys, in any spelling, because Velero ignores upper and lower case.
    pub fn object<'j>(
        &mut self,
        json: Option<&'j Json>,
        at: &Field,
        known: &[&'static str],
    ) -> KnownFields<'j> {
        let mut object = KnownFields::default();
        for (key, value) in self.entries(json, at) {
            let fits = |name: &&&'static str| name.eq_ignore_ascii_case(key);
            let exact = known.iter().find(|name| **name == key);
            let Some(name) = exact.or_else(|| known.iter().find(fits)).copied() else {
                self.found.push(at.child(key), unknown(key, known));
                continue;
            };
            if name != key {
                let message = format!("write {name}: Velero reads this all the same, other readers do not");
                self.found.push(at.child(key), message);
            }
            if object.0.iter().any(|(seen, _)| *seen == name) {
                self.found.push(at.child(key), "stands here twice, and only the last one counts: remove one");
                object.0.retain(|(seen, _)| *seen != name);
            }
            object.0.push((name, value));
        }
        object
    }

    /// All keys, for maps with arbitrary keys.
    pub fn entries<'j>(&mut self, json: Option<&'j Json>, at: &Field) -> Vec<(&'j str, &'j Json)> {
        match json {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Object(entries)) => entries.iter().map(|(k, v)| (k.as_str(), v)).collect(),
            Some(other) => {
                self.wrong_type(other, at, "an object");
                Vec::new()
            }
        }
    }

    pub fn list<'j>(&mut self, json: Option<&'j Json>, at: &Field) -> &'j [Json] {
        match json {
            None | Some(Json::Null) => &[],
            Some(Json::List(list)) => list,
            Some(other) => {
                self.wrong_type(other, at, "a list");
                &[]
            }
        }
    }

    pub fn text(&mut self, json: Option<&Json>, at: &Field) -> String {
        match json {
            None | Some(Json::Null) => String::new(),
            Some(Json::Text(text)) => text.clone(),
            Some(other) => {
                self.wrong_type(other, at, "a text");
                String::new()
            }
        }
    }

    pub fn boolean(&mut self, json: Option<&Json>, at: &Field) -> bool {
        match json {
            None | Some(Json::Null) => false,
            Some(Json::Bool(value)) => *value,
            Some(other) => {
                self.wrong_type(other, at, "true or false");
                false
            }
        }
    }

    pub fn number(&mut self, json: Option<&Json>, at: &Field) -> Option<i64> {
        match json {
            None | Some(Json::Null) => None,
            Some(Json::Number(Some(number))) => Some(*number),
            Some(other) => {
                self.wrong_type(other, at, "a whole number");
                None
            }
        }
    }

    pub fn texts(&mut self, json: Option<&Json>, at: &Field) -> Vec<String> {
        let list = self.list(json, at).iter().enumerate();
        list.map(|(i, element)| self.text(Some(element), &at.index(i))).collect()
    }

    pub fn map(&mut self, json: Option<&Json>, at: &Field) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        for (key, value) in self.entries(json, at) {
            let value = self.text(Some(value), &at.child(key));
            if map.insert(key.to_owned(), value).is_some() {
                self.found.push(at.child(key), "stands here twice, and only the last one counts: remove one");
            }
        }
        map
    }
}

fn unknown(key: &str, known: &[&str]) -> String {
    match home(key) {
        Some(home) => format!("does not belong here, where Velero ignores it, but {home}"),
        None => format!("Velero knows no such key here and ignores it: it knows {}", known.join(", ")),
    }
}

/// The correct place of a key that is often misplaced.
fn home(key: &str) -> Option<&'static str> {
    const HOMES: [(&[&str], &str); 9] = [
        (&["globalConfig", "perNodeConfig", "prepareQueueLength"], "under loadConcurrency"),
        (&["number"], "into an element of loadConcurrency.perNodeConfig"),
        (&["ignoreDelayBinding"], "under restorePVC"),
        (&["readOnly", "spcNoRelabeling"], "under backupPVC and the name of a StorageClass"),
        (&["residentThresholdInMB"], "under cachePVC"),
        (
            &[
                "cpuRequest",
                "cpuLimit",
                "memoryRequest",
                "memoryLimit",
                "ephemeralStorageRequest",
                "ephemeralStorageLimit",
            ],
            "under podResources",
        ),
        (&["matchLabels", "matchExpressions"], "under a nodeSelector"),
        (&["storageClass", "tolerations"], "into an element of loadAffinity, loadTolerations or such"),
        (&super::TOP, "at the top"),
    ];
    let is_there = |keys: &[&str]| keys.iter().any(|known| known.eq_ignore_ascii_case(key));
    HOMES.iter().find(|(keys, _)| is_there(keys)).map(|(_, home)| *home)
}
