//! The life of a backup before and after its run: what Velero's other controllers do. Each one is a
//! module of its own with one function that runs for ever; a controller that
//! `--disable-controllers` names does not run.

pub mod age;
pub mod known;
pub mod status_request;
pub mod sync;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Clients;
use crate::events::Events;
use crate::settings::Controller;
use crate::storage::Opener;
use age::AgeMetrics;
use known::Known;
use sync::metrics::SyncMetrics;

/// What every controller of this module needs.
#[derive(Clone)]
pub struct Lifecycle {
    pub clients: Clients,
    pub namespace: String,
    pub opener: Opener,
    pub events: Events,
    pub disabled: BTreeSet<Controller>,
    /// Backups and storage locations, as a watch shows them.
    pub known: Arc<Known>,
    /// How often to sync locations that set no backupSyncPeriod; zero: never.
    pub sync_period: Duration,
    pub sync_metrics: SyncMetrics,
    /// Most namespaces with a metric of their own.
    pub namespace_metrics: usize,
    pub age_metrics: AgeMetrics,
}

impl Lifecycle {
    /// Runs every controller that is not disabled, for ever.
    pub async fn run(&self) {
        // One line for each controller: `self.unless_disabled(Controller::Gc, gc::run(self)),`
        tokio::join!(
            self.known.follow(&self.clients.watch, &self.namespace),
            age::run(self),
            self.unless_disabled(Controller::BackupSync, sync::run(self)),
            self.unless_disabled(Controller::ServerStatusRequest, status_request::run(self)),
        );
    }

    /// Runs one controller, unless it is disabled.
    pub async fn unless_disabled(&self, controller: Controller, work: impl Future<Output = ()>) {
        if !self.disabled.contains(&controller) {
            work.await;
        }
    }
}
