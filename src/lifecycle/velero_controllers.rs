//! Which of the controllers of a backup's life a Velero beside berth runs. berth leaves those to
//! it, because two would act on the same objects.
//!
//! That is read off Velero's Deployment (by the right of the engine to list everything) again and
//! again, so that a controller begins here when it is switched off there, and ends here when it is
//! switched on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::Lifecycle;
use crate::events::EventReason;
use crate::install::{InstallCluster, velero};
use crate::leader::LeaseAnnotations;
use crate::pace::paced;
use crate::settings::Controller;
use crate::text::chain;

/// Pause between two looks.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause after a look that failed, as long as nothing is known.
const RETRY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of the Velero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Velero {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// It could not be read, and never before either.
    Unreadable,
    /// It runs these; none if there is no Velero.
    Runs(BTreeSet<Controller>),
}

impl Velero {
    /// May berth run this controller? While the Velero cannot be read, only one that does no harm
    /// where a Velero runs it, too.
    pub fn leaves(&self, controller: Controller) -> bool {
        match self {
            Self::Unknown => false,
            Self::Unreadable => is_harmless_twice(controller),
            Self::Runs(on) => !on.contains(&controller),
        }
    }
}

/// Does it do no harm if a Velero runs this controller, too? What is created for a Schedule, and
/// what a request asks for, is written to a status, and the other one sees it there.
fn is_harmless_twice(controller: Controller) -> bool {
    use Controller::{BackupDeletion, BackupSync, DownloadRequest, Gc, Schedule, ServerStatusRequest};
    match controller {
        Schedule | DownloadRequest | ServerStatusRequest => true,
        Gc | BackupDeletion | BackupSync => false,
    }
}

/// What is known of the Velero, and which controllers run here.
#[derive(Clone, Default)]
pub struct VeleroControllers {
    velero: Arc<watch::Sender<Velero>>,
    here: Arc<Mutex<BTreeSet<Controller>>>,
}

impl VeleroControllers {
    /// Wakes at each change.
    pub fn subscribe(&self) -> watch::Receiver<Velero> {
        self.velero.subscribe()
    }

    /// Notes in the Lease that a controller begins or ends here.
    pub fn note(&self, controller: Controller, runs: bool, notes: &LeaseAnnotations) {
        let mut here = self.here.lock();
        if runs {
            here.insert(controller)
        } else {
            here.remove(&controller)
        };
        let names: Vec<&str> = here.iter().map(|one| one.as_str()).collect();
        notes.put(keys::CONTROLLERS, names.join(","));
    }

    /// Looks at Velero's Deployment for ever.
    pub async fn follow(&self, lifecycle: &Lifecycle) {
        let cluster =
            InstallCluster { client: lifecycle.clients.call.clone(), namespace: lifecycle.namespace.clone() };
        let mut told = None;
        loop {
            let why = match timeout(PATIENCE, cluster.velero()).await {
                Ok(Ok(found)) => {
                    self.see(found.as_ref(), lifecycle);
                    told = None;
                    None
                }
                Ok(Err(error)) => Some(chain(&*error)),
                Err(_) => Some("the API server takes too long".to_owned()),
            };
            let is_unread = self.velero.send_if_modified(|known| {
                let is_unread = why.is_some() && *known == Velero::Unknown;
                if is_unread {
                    *known = Velero::Unreadable;
                }
                is_unread
            });
            if why.is_some() && why != told {
                let why = why.clone().unwrap_or_default();
                warn!(%why, is_unread, "failed to read whether a Velero runs controllers beside berth");
                told = Some(why);
            }
            let is_known = matches!(*self.velero.borrow(), Velero::Runs(_));
            sleep(paced(if is_known { PERIOD } else { RETRY })).await;
        }
    }

    fn see(&self, found: Option<&Deployment>, lifecycle: &Lifecycle) {
        let runs = Velero::Runs(match &*self.velero.borrow() {
            Velero::Runs(before) => running(found, before),
            Velero::Unknown | Velero::Unreadable => running(found, &BTreeSet::from(Controller::ALL)),
        });
        let changed = self.velero.send_if_modified(|known| {
            let changed = *known != runs;
            known.clone_from(&runs);
            changed
        });
        let Velero::Runs(on) = runs else { return };
        if !changed {
            return;
        }
        let names = |is_on: bool| {
            let all = Controller::ALL.into_iter().filter(|one| !lifecycle.disabled.contains(one));
            let some: Vec<&str> =
                all.filter(|one| on.contains(one) == is_on).map(Controller::as_str).collect();
            some.join(", ")
        };
        let (theirs, ours) = (names(true), names(false));
        let Some(found) = found.filter(|_| !theirs.is_empty()) else {
            info!(%ours, "no Velero runs controllers beside berth: running them");
            return;
        };
        let name = found.name_any();
        info!(deployment = %name, %theirs, %ours, "a Velero runs controllers beside berth: leaving them to it");
        let note = format!(
            "berth leaves to this Velero: {theirs}. Start it with --disable-controllers for those that berth is to run"
        );
        lifecycle.events.tell_about(EventReason::LeftToVelero, found.object_ref(&()), note);
    }
}

/// The controllers that this Velero runs. While its pods are being replaced some of them may run
/// what the Deployment has switched off, so those of `before` count, too.
fn running(found: Option<&Deployment>, before: &BTreeSet<Controller>) -> BTreeSet<Controller> {
    let Some(found) = found else { return BTreeSet::new() };
    let on = velero::still_on(found, &Controller::ALL.map(Controller::as_str));
    let is_on = |one: &Controller| on.contains(&one.as_str());
    let has_pods = found.spec.as_ref().and_then(|spec| spec.replicas) != Some(0);
    let restores_only = velero::restores_only(found);
    let without = |one: &Controller| {
        use Controller::{BackupDeletion, Gc, Schedule};
        restores_only && matches!(one, Schedule | Gc | BackupDeletion)
    };
    let now = Controller::ALL.into_iter().filter(|one| has_pods && is_on(one) && !without(one)).collect();
    if is_settled(found) { now } else { &now | before }
}

/// Are all of its pods those of its present arguments?
fn is_settled(found: &Deployment) -> bool {
    let status = found.status.clone().unwrap_or_default();
    // Nothing was ever started from it.
    let Some(observed) = status.observed_generation else { return true };
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let pods = status.replicas.unwrap_or(0);
    let is_seen = found.metadata.generation.is_none_or(|generation| observed >= generation);
    is_seen && pods <= wanted && (wanted == 0 || status.updated_replicas.unwrap_or(0) == pods)
}

#[cfg(test)]
pub(super) mod tests;
