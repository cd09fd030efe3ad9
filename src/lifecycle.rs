//! The life of a backup before and after its run: what Velero's other controllers do. Each one is a
//! module of its own with one function that runs for ever; a controller that
//! `--disable-controllers` names does not run.

use std::collections::BTreeSet;

use crate::client::Clients;
use crate::events::Events;
use crate::settings::Controller;
use crate::storage::Opener;

/// What every controller of this module needs.
#[derive(Clone)]
pub struct Lifecycle {
    pub clients: Clients,
    pub namespace: String,
    pub opener: Opener,
    pub events: Events,
    pub disabled: BTreeSet<Controller>,
}

impl Lifecycle {
    /// Runs every controller that is not disabled, for ever.
    pub async fn run(&self) {
        // One line for each controller: `self.unless_disabled(Controller::Gc, gc::run(self)),`
        tokio::join!(std::future::pending::<()>(),);
    }

    /// Runs one controller, unless it is disabled.
    pub async fn unless_disabled(&self, controller: Controller, work: impl Future<Output = ()>) {
        if !self.disabled.contains(&controller) {
            work.await;
        }
    }
}
