//! What the sync of each location has done, and what it found.

use berth_api::velero::{BackupStorageLocation, BackupStorageLocationPhase as Phase};
use berth_core::sync::SyncSkipReason;
use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::followed::Followed;

/// Most locations with metrics of their own.
const LOCATIONS: usize = 1000;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByLocation {
    pub location: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BySkip {
    pub location: String,
    /// See [`SyncSkipReason::word`].
    pub reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByVelerosName {
    backup_location_name: String,
}

/// The sync of storage locations, as the leader does it.
#[derive(Clone, Default)]
pub struct SyncMetrics {
    pub created: Family<ByLocation, Counter>,
    pub removed: Family<ByLocation, Counter>,
    pub failed: Family<ByLocation, Counter>,
    pub last: Family<ByLocation, Gauge>,
    skipped: Family<BySkip, Gauge>,
    /// Velero's own.
    status: Followed<ByVelerosName>,
}

impl SyncMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        let sync = registry.sub_registry_with_prefix("berth_sync");
        sync.register("backups_created", "Backups created from what a store has", all.created.clone());
        sync.register("backups_removed", "Backups removed because no store has them", all.removed.clone());
        sync.register("failed_rounds", "Rounds that ended because the store failed", all.failed.clone());
        let last = all.last.clone();
        sync.register("last_round_timestamp_seconds", "When the last complete round ended", last);
        sync.register("folders_skipped", "Folders of a store that have no Backup", all.skipped.clone());
        let velero = registry.sub_registry_with_prefix("velero_backup");
        velero.register(
            "location_status_gauge",
            "1 where the storage location is Available, else 0",
            all.status.family.clone(),
        );
        all
    }

    /// Shows the phases of all locations, and nothing any more of those that are gone.
    pub fn show_phases(&self, locations: &[BackupStorageLocation]) {
        self.status.show(locations.iter().take(LOCATIONS).map(|location| {
            let is_available = location.status.as_ref().and_then(|s| s.phase) == Some(Phase::Available);
            (ByVelerosName { backup_location_name: location.name_any() }, i64::from(is_available))
        }));
    }

    /// After a complete round.
    pub fn round(&self, location: &str, skipped: impl Fn(SyncSkipReason) -> usize, now: Timestamp) {
        let label = ByLocation { location: location.to_owned() };
        self.last.get_or_create(&label).set(now.as_second());
        for why in SyncSkipReason::ALL {
            let label = BySkip { location: location.to_owned(), reason: why.word() };
            self.skipped.get_or_create(&label).set(i64::try_from(skipped(why)).unwrap_or(i64::MAX));
        }
    }

    /// A location that is gone.
    pub fn forget_location(&self, location: &str) {
        let label = ByLocation { location: location.to_owned() };
        for family in [&self.created, &self.removed, &self.failed] {
            family.remove(&label);
        }
        self.last.remove(&label);
        for why in SyncSkipReason::ALL {
            self.skipped.remove(&BySkip { location: location.to_owned(), reason: why.word() });
        }
    }

    /// Clears the gauges, because another leader sets them now.
    pub fn forget(&self) {
        self.last.clear();
        self.skipped.clear();
        self.status.show([]);
    }

    /// For the reference, which shows a family only if it has a value.
    pub fn show_any(&self, any: &str) {
        let label = ByLocation { location: any.to_owned() };
        for family in [&self.created, &self.removed, &self.failed] {
            drop(family.get_or_create(&label));
        }
        self.round(any, |_| 0, Timestamp::UNIX_EPOCH);
        self.status.show([(ByVelerosName { backup_location_name: any.to_owned() }, 0)]);
    }
}
