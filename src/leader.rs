//! Leader election by a Lease. Only the holder starts Backups, or acts on the shared buckets of a
//! member cluster.
//!
//! A record expires by the candidate's own monotonic clock since the record last changed, never by
//! the times in it, so that clocks may differ. Every write carries the resourceVersion that was
//! read, so that one of two candidates gets 409.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::client::{is_conflict, is_not_found};
use crate::text::chain;

/// Name of the Lease that the leading controller holds.
pub const LEASE: &str = "berth-controller";

/// A candidate for the Lease `name`.
pub struct LeaseCandidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    notes: LeaseAnnotations,
}

/// A leader that could not renew the Lease for longer stops all work.
const SILENT: Duration = Duration::from_secs(60);

/// Why there is no leader, by a single read of the Lease and the caller's clock. `None`: there is a
/// leader.
pub fn no_leader_reason(lease: Option<&Lease>, now: Timestamp) -> Option<String> {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let held = spec.filter(|spec| spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty()));
    let Some(renewed) = held.and_then(|spec| spec.renew_time.as_ref()) else {
        return Some("no berth leads".to_owned());
    };
    let silent = Duration::try_from(now.duration_since(renewed.0)).unwrap_or_default();
    (silent >= SILENT).then(|| format!("berth was last heard of at {:.0}", renewed.0))
}

/// Annotations with facts about the leader, which it writes to the Lease at each renewal.
#[derive(Clone, Default)]
pub struct LeaseAnnotations(Arc<Mutex<BTreeMap<String, String>>>);

impl LeaseAnnotations {
    pub fn put(&self, key: &str, value: String) {
        self.0.lock().insert(key.to_owned(), value);
    }
}

/// The holder identity in a Lease: the pod's name, and a part that changes with each restart.
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().or_else(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
    });
    let started = Timestamp::now().as_microsecond();
    format!("{}_{}_{started:x}", host.unwrap_or_else(|| "berth".to_owned()), std::process::id())
}

impl LeaseCandidate {
    pub fn new(client: Client, namespace: &str, name: &str, identity: String, duration: Duration) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.to_owned(), identity, duration, notes: LeaseAnnotations::default() }
    }

    pub fn notes(&self) -> &LeaseAnnotations {
        &self.notes
    }

    fn retry(&self) -> Duration {
        self.duration / 6
    }

    /// Waits until this candidate holds the Lease.
    pub async fn acquire(&self) {
        let mut seen: Option<(Option<String>, Instant)> = None;
        let mut told = String::new();
        loop {
            match self.try_acquire(&mut seen, &mut told).await {
                Ok(true) => {
                    info!(identity = %self.identity, "leading");
                    return;
                }
                Ok(false) => {}
                Err(error) => warn!(error = chain(&error), "failed to read the Lease"),
            }
            sleep(self.retry()).await;
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(Option<String>, Instant)>,
        told: &mut String,
    ) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            return self.write(self.record(None)).await;
        };
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
        let version = lease.metadata.resource_version.clone();
        if seen.as_ref().is_none_or(|(known, _)| *known != version) {
            *seen = Some((version, Instant::now()));
        }
        let silent = seen.as_ref().map(|(_, at)| at.elapsed()).unwrap_or_default();
        // The holder's leaseDurationSeconds counts if it is longer than the candidate's own.
        let theirs = lease.spec.as_ref().and_then(|s| s.lease_duration_seconds).unwrap_or_default();
        let patience = self.duration.max(Duration::from_secs(u64::try_from(theirs).unwrap_or_default()));
        if !holder.is_empty() && holder != self.identity && silent < patience {
            if *told != holder {
                info!(%holder, "waiting: another one leads");
                *told = holder;
            }
            return Ok(false);
        }
        self.write(self.record(Some(&lease))).await
    }

    /// Runs [`LeaseCandidate::keep`] in a task of its own, so that the Lease is renewed, or given
    /// up in time, even while the leader is busy. Dropping it ends the task.
    pub fn keep_beside(self: &Arc<Self>) -> AbortOnDropHandle<()> {
        let candidate = Arc::clone(self);
        AbortOnDropHandle::new(tokio::spawn(async move { candidate.keep().await }))
    }

    /// Renews the Lease; returns when it is lost or could not be renewed in time.
    pub async fn keep(&self) {
        let deadline = self.duration * 2 / 3;
        let mut renewed = Instant::now();
        loop {
            sleep(self.retry()).await;
            let left = deadline.saturating_sub(renewed.elapsed());
            // Counted from before the write, because the others see it long before a slow answer
            // arrives.
            let asked = Instant::now();
            match timeout(left, self.renew()).await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => {
                    warn!("the lease was taken by another one");
                    return;
                }
                Ok(Err(error)) => warn!(error = chain(&error), "failed to renew the lease"),
                Err(_) => {}
            }
            if renewed.elapsed() >= deadline {
                warn!("the lease could not be renewed in time");
                return;
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let lease = self.api.get(&self.name).await?;
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref());
        if holder != Some(self.identity.as_str()) {
            return Ok(false);
        }
        self.write(self.record(Some(&lease))).await
    }

    /// Releases the Lease, so that the next leader need not wait.
    pub async fn release(&self) {
        let released = async {
            let mut lease = self.api.get(&self.name).await?;
            if let Some(spec) =
                lease.spec.as_mut().filter(|s| s.holder_identity.as_ref() == Some(&self.identity))
            {
                spec.holder_identity = Some(String::new());
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if let Ok(Err(error)) = timeout(Duration::from_secs(3), released).await {
            debug!(error = chain(&error), "failed to release the lease");
        }
    }

    fn record(&self, found: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let old = found.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ours = old.holder_identity.as_ref() == Some(&self.identity);
        let seconds = i32::try_from(self.duration.as_secs().max(1)).unwrap_or(i32::MAX);
        let mut metadata = found.map_or_else(
            || ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            |lease| lease.metadata.clone(),
        );
        metadata.annotations.get_or_insert_default().extend(self.notes.0.lock().clone());
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds),
                acquire_time: if ours { old.acquire_time.clone() } else { Some(now.clone()) },
                renew_time: Some(now),
                lease_transitions: Some(old.lease_transitions.unwrap_or(0).saturating_add(i32::from(!ours))),
                ..old
            }),
        }
    }

    /// `false`: another candidate was faster.
    async fn write(&self, lease: Lease) -> Result<bool, kube::Error> {
        let params = PostParams::default();
        let written = if lease.metadata.resource_version.is_some() {
            self.api.replace(&self.name, &params, &lease).await
        } else {
            self.api.create(&params, &lease).await
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
