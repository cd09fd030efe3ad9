//! The life of a backup before and after its run: what Velero's other controllers do. Each one is a
//! module of its own with one function that runs for ever; a controller that
//! `--disable-controllers` names does not run.

mod deletion;
mod download;
mod gc;

use std::collections::BTreeSet;

use crate::backup::metrics::BackupMetrics;
use crate::client::Clients;
use crate::events::Events;
use crate::settings::Controller;
use crate::storage::Opener;

pub use download::{Links, serve as serve_downloads};

/// What every controller of this module needs.
#[derive(Clone)]
pub struct Lifecycle {
    pub clients: Clients,
    pub namespace: String,
    pub opener: Opener,
    pub events: Events,
    pub metrics: BackupMetrics,
    /// Where files of folders can be downloaded, if berth serves them.
    pub links: Option<Links>,
    pub disabled: BTreeSet<Controller>,
}

impl Lifecycle {
    /// Runs every controller that is not disabled, for ever.
    pub async fn run(&self) {
        // One line for each controller: `self.unless_disabled(Controller::Gc, gc::run(self)),`
        tokio::join!(
            self.unless_disabled(Controller::BackupDeletion, deletion::run(self)),
            self.unless_disabled(Controller::Gc, gc::run(self)),
            self.unless_disabled(Controller::DownloadRequest, download::run(self)),
            std::future::pending::<()>(),
        );
    }

    /// Runs one controller, unless it is disabled.
    pub async fn unless_disabled(&self, controller: Controller, work: impl Future<Output = ()>) {
        if !self.disabled.contains(&controller) {
            work.await;
        }
    }
}
