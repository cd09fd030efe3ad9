//! The fields of a Backup that decide its place in the queue, read in the same way at admission and
//! in the controller.

use std::collections::BTreeMap;

use berth_core::limits;
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{Includes, QueueEntry, QueueOrder};
use jiff::Timestamp;
use serde::Deserialize;

use crate::keys::{self, is_set};
use crate::parse::backup_namespaces;
use crate::velero::BackupSpec;

/// The parts of a Backup that decide its place.
#[derive(Clone, Copy)]
pub struct QueueFields<'a> {
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    pub spec: &'a BackupSpec,
}

/// The fields of a spec that [`QueueFields`] needs. Parsing the others may take long, and they do
/// not change the place.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacedSpec {
    included_namespaces: Option<Vec<String>>,
    excluded_namespaces: Option<Vec<String>>,
    storage_location: Option<String>,
}

impl From<PlacedSpec> for BackupSpec {
    fn from(placed: PlacedSpec) -> Self {
        let PlacedSpec { included_namespaces, excluded_namespaces, storage_location } = placed;
        Self { included_namespaces, excluded_namespaces, storage_location, ..Self::default() }
    }
}

impl QueueFields<'_> {
    /// Builds a [`QueueEntry`] without name, UID, phase, position and timestamps.
    pub fn entry(&self, order: &QueueOrder) -> QueueEntry {
        let (namespaces, refused) = match backup_namespaces(self.spec) {
            Ok(set) => (set, Vec::new()),
            Err(violations) => (NamespaceSet::default(), violations.lines()),
        };
        QueueEntry {
            held: is_set(self.annotations, keys::HOLD),
            canceled: is_set(self.annotations, keys::CANCEL),
            first: self.time(keys::FIRST),
            class: self.class().map(str::to_owned),
            tenant: self.tenant(order),
            schedule: self.labels.get(keys::SCHEDULE).cloned(),
            is_made: self.annotations.contains_key(keys::SCHEDULE_UID),
            supersedes: is_set(self.annotations, keys::SUPERSEDE),
            location: self.spec.storage_location.clone().unwrap_or_default(),
            enqueued_at: self.time(keys::ENQUEUED_AT),
            waits_since: self.time(keys::WAITS_SINCE),
            includes: self.includes(),
            namespaces,
            refused,
            ..QueueEntry::default()
        }
    }

    /// The value of [`QueueEntry::includes`].
    pub fn includes(&self) -> Includes {
        let includes = self.spec.included_namespaces.as_deref().unwrap_or_default();
        Includes::of(includes.iter().take(limits::NAMES).map(String::as_str))
    }

    /// Its priority class, from the annotation or label.
    pub fn class(&self) -> Option<&str> {
        let named = self.annotations.get(keys::PRIORITY_CLASS);
        named.or_else(|| self.labels.get(keys::PRIORITY_CLASS)).map(String::as_str)
    }

    /// The tenant whose share it uses. Where schedules are the tenants, that is the Schedule that
    /// berth has made it for, because whoever creates Backups may write the label of somebody
    /// else's; no value of a label has a slash.
    pub fn tenant(&self, order: &QueueOrder) -> Option<String> {
        let label = order.share.as_ref()?.label.as_str();
        let proven = self.annotations.get(keys::SCHEDULE_UID).filter(|_| label == keys::SCHEDULE);
        proven.map(|uid| format!("schedule/{uid}")).or_else(|| self.labels.get(label).cloned())
    }

    fn time(&self, key: &str) -> Option<Timestamp> {
        self.annotations.get(key)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use berth_core::queue::FairShare;
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn whoever_labels_a_backup_with_a_schedule_uses_no_share_of_it() {
        let tenant = |share: &str, label: (&str, &str), mark: Option<&str>| {
            let hour = SignedDuration::from_hours(1);
            let share = FairShare { label: share.to_owned(), workers: 1, half_life: hour, most: hour };
            let order = QueueOrder { share: Some(share), ..QueueOrder::default() };
            let labels = BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]);
            let annotations = mark.map(|uid| (keys::SCHEDULE_UID.to_owned(), uid.to_owned()));
            let annotations = annotations.into_iter().collect();
            let spec = BackupSpec::default();
            QueueFields { labels: &labels, annotations: &annotations, spec: &spec }.tenant(&order)
        };
        let own = tenant(keys::SCHEDULE, (keys::SCHEDULE, "daily"), Some("u1")).unwrap();
        // Its name and its UID can be read, and what somebody patches later changes nothing.
        for label in [(keys::SCHEDULE, "daily"), (keys::SCHEDULE, "u1"), ("a", "b")] {
            assert_ne!(tenant(keys::SCHEDULE, label, None), Some(own.clone()), "{label:?}");
            assert_eq!(tenant(keys::SCHEDULE, label, Some("u1")), Some(own.clone()), "{label:?}");
        }
        assert_eq!(tenant("team", ("team", "a"), Some("u1")).as_deref(), Some("a"));
        assert_eq!(tenant("team", ("a", "b"), Some("u1")), None);
    }

    #[test]
    fn a_place_follows_from_what_is_read_for_it_alone() {
        let none = BTreeMap::new();
        let entry = |spec: &BackupSpec| {
            QueueFields { labels: &none, annotations: &none, spec }.entry(&QueueOrder::default())
        };
        for spec in [
            serde_json::json!({}),
            serde_json::json!({"includedNamespaces": ["b", "a-*"], "excludedNamespaces": ["a-b"], "storageLocation": "s",
                "includedResources": ["pods"], "labelSelector": {"matchLabels": {"a": "b"}}, "ttl": "1h0m0s"}),
            serde_json::json!({"includedNamespaces": ["A"], "excludedNamespaces": null, "orLabelSelectors": []}),
        ] {
            let whole: BackupSpec = serde_json::from_value(spec.clone()).unwrap();
            let placed: PlacedSpec = serde_json::from_value(spec).unwrap();
            let (whole, placed) = (entry(&whole), entry(&placed.into()));
            assert_eq!((&whole.namespaces, &whole.includes), (&placed.namespaces, &placed.includes));
            assert_eq!((&whole.refused, &whole.location), (&placed.refused, &placed.location));
            assert_eq!(format!("{whole:?}"), format!("{placed:?}"));
        }
    }
}
