//! The mark by which only one of two runs that migrate from a location continues: an annotation of
//! the location, written on the resourceVersion that was read.
//! [`berth_garden_core::migration::claim`] decides how long it is valid.

use std::time::Instant;

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_garden_core::migration::claim::{MigrationClaimStep, RENEW, is_held, step};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::Api;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;

use crate::pace::{counted, paced, passed};
use crate::text::chain;
use crate::write::{Pauses, Write, WriteResult, patch};

/// How often the removal of the mark is tried if other writers are faster: for six seconds, because
/// the mark is no longer valid after [`berth_garden_core::migration::claim::DEAD`].
const RELEASES: usize = 6;

#[derive(Debug, thiserror::Error)]
pub enum MigrationClaimError {
    #[error("failed to write the annotation by which location {0} is held")]
    Api(String, #[source] Box<kube::Error>),
    #[error("{by} is migrating from location {location} already: let one of the two end")]
    Busy { location: String, by: String },
    #[error(
        "location {location} is no longer held for this run ({why}); it removed nothing since: run it again when no other does"
    )]
    Lost { location: String, why: String },
}

pub struct MigrationClaim {
    api: Api<BackupStorageLocation>,
    location: String,
    run: String,
    last: Mutex<LastRenewal>,
}

/// When the mark was last renewed, by two clocks, because one of them stops while the machine is
/// suspended.
struct LastRenewal {
    mark: String,
    since: (Instant, Timestamp),
}

impl MigrationClaim {
    /// Waits until it is clear whether the mark of another run is still renewed.
    pub async fn take(
        api: Api<BackupStorageLocation>,
        location: &str,
        run: &str,
        tell: &impl Fn(&str),
    ) -> Result<Self, MigrationClaimError> {
        let mut first: Option<(String, Instant)> = None;
        let mut pauses = Pauses::default();
        loop {
            let since = now();
            let found = get(&api, location).await?;
            let mark = found.annotations().get(keys::MIGRATED_BY);
            let watched = first.as_ref().map(|(_, at)| passed(at.elapsed())).unwrap_or_default();
            let seen = first.as_ref().map(|(mark, _)| mark.as_str());
            match step(mark.map(String::as_str), seen, length(watched)) {
                MigrationClaimStep::Refuse => {
                    let by = mark.map(String::as_str).unwrap_or_default().to_owned();
                    return Err(MigrationClaimError::Busy { location: location.to_owned(), by });
                }
                MigrationClaimStep::Watch => {
                    if let (None, Some(mark)) = (&first, mark) {
                        tell(&format!("{mark} was migrating from here: waiting for a sign of life"));
                        first = Some((mark.clone(), Instant::now()));
                    }
                    sleep(paced(RENEW.unsigned_abs())).await;
                }
                MigrationClaimStep::Take => {
                    let mark = format!("{run} {}", since.1);
                    if write(&api, &found, Some(&mark)).await? {
                        let last = Mutex::new(LastRenewal { mark, since });
                        return Ok(Self { api, location: location.to_owned(), run: run.to_owned(), last });
                    }
                    sleep(paced(pauses.pause())).await;
                }
            }
        }
    }

    pub fn run(&self) -> &str {
        &self.run
    }

    /// Is the mark still this run's? Checked before anything is removed.
    pub fn ensure(&self) -> Result<(), MigrationClaimError> {
        let (instant, time) = self.last.lock().since;
        let now = Timestamp::now();
        let by_time = now.duration_since(counted(time, now));
        if is_held(length(passed(instant.elapsed()))) && is_held(by_time) {
            return Ok(());
        }
        Err(self.lost(format!("it said nothing for {by_time:.0}")))
    }

    /// Renews the mark. Fails if another run has it, or if it was removed.
    pub async fn renew(&self) -> Result<(), MigrationClaimError> {
        let mut pauses = Pauses::default();
        loop {
            let since = now();
            let found = get(&self.api, &self.location).await?;
            let expected = self.last.lock().mark.clone();
            match found.annotations().get(keys::MIGRATED_BY) {
                Some(mark) if *mark == expected => {}
                Some(other) => return Err(self.lost(format!("{other} took over"))),
                None => return Err(self.lost(format!("annotation {} was removed", keys::MIGRATED_BY))),
            }
            let mark = format!("{} {}", self.run, since.1);
            if write(&self.api, &found, Some(&mark)).await? {
                *self.last.lock() = LastRenewal { mark, since };
                return Ok(());
            }
            sleep(paced(pauses.pause())).await;
        }
    }

    /// Keeps renewing the mark; returns when that fails for good.
    pub async fn keep(&self) -> MigrationClaimError {
        loop {
            sleep(paced(RENEW.unsigned_abs())).await;
            match self.renew().await {
                Ok(()) => {}
                Err(MigrationClaimError::Api(_, error)) => {
                    if self.ensure().is_err() {
                        return self.lost(chain(&*error));
                    }
                }
                Err(error) => return error,
            }
        }
    }

    /// Removes the mark, so that the next run need not wait. If that fails, the next run waits.
    /// Servers that validate the location write to it, too.
    pub async fn release(self) {
        let mut pauses = Pauses::default();
        for attempt in 0..RELEASES {
            if attempt > 0 {
                sleep(paced(pauses.pause())).await;
            }
            let Ok(found) = get(&self.api, &self.location).await else { return };
            let is_ours = found.annotations().get(keys::MIGRATED_BY) == Some(&self.last.lock().mark);
            if !is_ours || !matches!(write(&self.api, &found, None).await, Ok(false)) {
                return;
            }
        }
    }

    fn lost(&self, why: String) -> MigrationClaimError {
        MigrationClaimError::Lost { location: self.location.clone(), why }
    }
}

fn now() -> (Instant, Timestamp) {
    (Instant::now(), Timestamp::now())
}

fn length(elapsed: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX)
}

async fn get(
    api: &Api<BackupStorageLocation>,
    location: &str,
) -> Result<BackupStorageLocation, MigrationClaimError> {
    api.get(location).await.map_err(|error| MigrationClaimError::Api(location.to_owned(), Box::new(error)))
}

/// `false`: the location has changed since it was read.
async fn write(
    api: &Api<BackupStorageLocation>,
    found: &BackupStorageLocation,
    mark: Option<&str>,
) -> Result<bool, MigrationClaimError> {
    let change = json!({"metadata": {"annotations": {keys::MIGRATED_BY: mark}}});
    match patch(api, Write::on(found).uid(None), change).await {
        WriteResult::Conflict(_) => Ok(false),
        answer => match answer.written() {
            Ok(_) => Ok(true),
            Err(error) => Err(MigrationClaimError::Api(found.name_any(), Box::new(error))),
        },
    }
}

#[cfg(test)]
mod tests;
