//! What the queue reads off a Backup, the same at admission and in the controller.

use std::collections::BTreeMap;

use berth_core::namespace::NamespaceSet;
use berth_core::queue::{Entry, Order};
use jiff::Timestamp;

use crate::keys::{self, is_set};
use crate::parse::backup_namespaces;
use crate::velero::BackupSpec;

/// The parts of a Backup that decide on its place.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    pub spec: &'a BackupSpec,
}

impl Source<'_> {
    /// Everything but name, UID, phase, position and times of its life. A list of namespaces that cannot be read
    /// meets nobody; such a backup fails validation.
    pub fn entry(&self, order: &Order) -> Entry {
        Entry {
            held: is_set(self.annotations, keys::HOLD),
            canceled: is_set(self.annotations, keys::CANCEL),
            first: self.time(keys::FIRST),
            class: self.class().map(str::to_owned),
            tenant: self.tenant(order),
            schedule: self.labels.get(keys::SCHEDULE).cloned(),
            supersedes: is_set(self.annotations, keys::SUPERSEDE),
            location: self.spec.storage_location.clone().unwrap_or_default(),
            enqueued_at: self.time(keys::ENQUEUED_AT),
            includes: self.includes(),
            namespaces: self.namespaces().unwrap_or_default(),
            ..Entry::default()
        }
    }

    /// As [`Entry::includes`].
    pub fn includes(&self) -> Vec<String> {
        let mut includes = self.spec.included_namespaces.clone().unwrap_or_default();
        includes.sort_unstable();
        if includes.is_empty() { vec!["*".to_owned()] } else { includes }
    }

    /// Its priority class, by annotation or label.
    pub fn class(&self) -> Option<&str> {
        let named = self.annotations.get(keys::PRIORITY_CLASS);
        named.or_else(|| self.labels.get(keys::PRIORITY_CLASS)).map(String::as_str)
    }

    /// Whose share it uses.
    pub fn tenant(&self, order: &Order) -> Option<String> {
        self.labels.get(&order.share.as_ref()?.label).cloned()
    }

    /// `None` for a list that cannot be read.
    pub fn namespaces(&self) -> Option<NamespaceSet> {
        backup_namespaces(self.spec)
    }

    fn time(&self, key: &str) -> Option<Timestamp> {
        self.annotations.get(key)?.parse().ok()
    }
}
