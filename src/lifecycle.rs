//! The life of a backup before and after its run: what Velero's other controllers do. Each one is a
//! module of its own with one function that runs for ever. A controller runs here unless
//! `--disable-controllers` names it, or a Velero beside berth runs it ([`beside`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::backup::metrics::BackupMetrics;
use crate::backup::removals::Removals;
use crate::client::Clients;
use crate::events::Events;
use crate::leader::LeaseAnnotations;
use crate::node_agent::repositories::Repositories;
use crate::queue::BackupCache;
use crate::settings::Controller;
use crate::storage::Opener;
use age::AgeMetrics;
use known::KnownBackups;
use schedule::metrics::ScheduleMetrics;
use sync::metrics::SyncMetrics;
use velero_controllers::VeleroControllers;

pub mod age;
mod deletion;
mod download;
mod gc;
pub mod known;
pub mod schedule;
pub mod status_request;
pub mod sync;
pub mod velero_controllers;

pub use download::{Links, serve as serve_downloads};

/// The namespace by whose UID a cluster is known.
const OF_CLUSTER: &str = "kube-system";
const CALL: Duration = Duration::from_secs(10);

/// What every controller of this module needs.
#[derive(Clone)]
pub struct Lifecycle {
    pub clients: Clients,
    pub namespace: String,
    pub opener: Opener,
    /// berth's own repositories with files of volumes.
    pub repositories: Arc<Repositories>,
    pub events: Events,
    /// Where files of folders can be downloaded, if berth serves them.
    pub links: Option<Links>,
    /// The Secret with the webhooks' certificate, from which keys are derived.
    pub certificate_secret: String,
    pub disabled: BTreeSet<Controller>,
    /// The queue's watch cache.
    pub backups: Arc<BackupCache>,
    pub metrics: BackupMetrics,
    pub schedule_metrics: ScheduleMetrics,
    pub schedule: berth_core::schedule::ScheduleSettings,
    pub notes: LeaseAnnotations,
    /// Which controllers a Velero runs.
    pub velero_controllers: VeleroControllers,
    /// Backups and storage locations, as a watch shows them.
    pub known: Arc<KnownBackups>,
    /// How often to sync locations that set no backupSyncPeriod; zero: never.
    pub sync_period: Duration,
    pub sync_metrics: SyncMetrics,
    /// Most namespaces with a metric of their own.
    pub namespace_metrics: usize,
    pub age_metrics: AgeMetrics,
    /// What the engine removes of deleted Backups.
    pub removals: Removals,
    /// UID of the cluster, once it has been read.
    pub cluster: Arc<OnceCell<String>>,
}

impl Lifecycle {
    /// Runs every controller that is not disabled and that no Velero runs, for ever.
    pub async fn run(&self) {
        // One line for each controller: `self.unless_disabled(Controller::Gc, || gc::run(self)),`
        tokio::join!(
            self.velero_controllers.follow(self),
            self.unless_disabled(Controller::Schedule, || schedule::run(self)),
            self.unless_disabled(Controller::BackupDeletion, || deletion::run(self)),
            self.unless_disabled(Controller::Gc, || gc::run(self)),
            self.unless_disabled(Controller::DownloadRequest, || download::run(self)),
            self.known.follow(&self.clients.watch, &self.namespace),
            age::run(self),
            self.unless_disabled(Controller::BackupSync, || sync::run(self)),
            self.unless_disabled(Controller::ServerStatusRequest, || status_request::run(self)),
        );
    }

    /// UID of the cluster. Read once.
    ///
    /// # Errors
    /// When the API server does not tell it.
    pub async fn cluster_uid(&self) -> anyhow::Result<&str> {
        let read = || async {
            let api: Api<Namespace> = Api::all(self.clients.call.clone());
            let found = timeout(CALL, api.get_metadata(OF_CLUSTER)).await;
            let found = found.context("the API server did not answer in time")??;
            found.metadata.uid.context("namespace kube-system has no UID")
        };
        self.cluster.get_or_try_init(read).await.map(String::as_str)
    }

    /// Runs one controller while it is neither disabled nor run by a Velero. Where a Velero begins
    /// to run it, it is dropped, and it begins anew when the Velero stops.
    pub async fn unless_disabled<W: Future<Output = ()>>(
        &self,
        controller: Controller,
        work: impl Fn() -> W,
    ) {
        if self.disabled.contains(&controller) {
            return;
        }
        let mut velero = self.velero_controllers.subscribe();
        // The sender lives as long as this does.
        while velero.wait_for(|velero| velero.leaves(controller)).await.is_ok() {
            self.velero_controllers.note(controller, true, &self.notes);
            tokio::select! {
                () = work() => {}
                _ = velero.wait_for(|velero| !velero.leaves(controller)) => {}
            }
            self.velero_controllers.note(controller, false, &self.notes);
        }
    }
}

/// The controllers of a life in the cluster of `client`, whose Events are dropped.
#[cfg(test)]
pub use velero_controllers::tests::lifecycle as fake;
