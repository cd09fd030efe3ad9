//! Moves backups from a cluster's own bucket into its directory of a shared bucket. Each step may
//! be the last before a crash: what is done is on record ([`record`]), and every step is
//! idempotent.
//!
//! A location keeps its name, because Backups name it; one write changes what it leads to. Only one
//! run may work at a time. [`claim`] ensures that, and so does the record where the store has
//! conditional writes. Both are checked before anything is removed.

mod claim;
mod copy;
mod error;
mod location;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{BackupStorageLocation, BackupStorageLocationSpec};
use berth_garden_core::migration::standing::{FoundRecord, Leads, Resume, resume_for};
use berth_garden_core::migration::{
    CopyAttempt, CopyCounts, CopyStatus, Items, MigrationPhase, Retirement, SourceObject, ensure_not_emptied,
    expire, gate, leftovers, record as note, relist, retirement,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use object_store::ObjectStoreExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::garden::active_backups::{SETTLED, count_active};
use crate::leader::identity;
use crate::storage::{Opener, Roots};
use claim::MigrationClaim;
use copy::{BucketDirectory, copy};
use error::api_error;
use location::{HELD_FOR, entry_uid, leads_to};
use record::{MigrationHead, MigrationRecord};

pub use error::MigrationError;

/// Objects that are copied between two writes of the record. After a crash so many are compared
/// again.
const SAVE: usize = 64;
/// Listings before the cut-over. Without a limit a program that keeps writing at the source would
/// keep the migration from ending.
const LISTINGS: usize = 5;
/// Attempts at one object in one run.
const ATTEMPTS: u32 = 3;
const LOOK: Duration = Duration::from_secs(1);

pub struct Migration {
    pub client: Client,
    pub namespace: String,
    /// Name of the location whose backups are moved.
    pub from: String,
    /// Name of the entry and of its location.
    pub entry: String,
    pub at_once: usize,
    /// How long to wait for running backups, and for the location at its new place.
    pub patience: Duration,
    /// Folders of this machine that may be stores.
    pub roots: Roots,
}

/// What there is to do, or what was done.
pub struct Summary {
    pub phase: Option<MigrationPhase>,
    pub counts: CopyCounts,
    /// Objects that are at the destination already, by key.
    pub there: usize,
}

struct MigrationPlaces {
    source: BucketDirectory,
    destination: BucketDirectory,
}

impl Migration {
    fn opener(&self) -> Opener {
        Opener::new(self.client.clone(), &self.namespace, self.roots.clone())
    }

    /// Says what would be done, and writes nothing.
    pub async fn dry_run(&self) -> Result<Summary, MigrationError> {
        let (from, to) = (self.own_location().await?, self.entry_location().await?);
        let opener = self.opener();
        let shared = open(&opener, &to).await?;
        let found = MigrationRecord::open(Arc::clone(shared.store()), &self.entry).await?;
        let found = match found {
            Some(record) => self.goes_on(record.head(), &from, &to)?.map(|_| record),
            None => None,
        };
        let source = found.as_ref().map_or(&from.spec, |record| &record.head().source);
        let places = self.places(&opener, source, &to.spec).await?;
        let listing = list(&places.source, "source").await?;
        let there = list(&places.destination, "destination").await?;
        let mut items = found.as_ref().map(MigrationRecord::items).unwrap_or_default();
        relist(&mut items, listing);
        let there = items.keys().filter(|key| there.contains_key(*key)).count();
        Ok(Summary { phase: found.map(|record| record.head().phase), counts: CopyCounts::of(&items), there })
    }

    /// Continues to the cut-over, or with `retire` to an empty source. Calls `tell` at each phase.
    pub async fn run(&self, retire: bool, tell: &impl Fn(&str)) -> Result<Summary, MigrationError> {
        // Faults are reported before the run waits for anything.
        self.own_location().await?;
        self.entry_location().await?;
        let claim = MigrationClaim::take(self.locations(), &self.from, &identity(), tell).await?;
        let done = tokio::select! {
            done = self.run_alone(retire, &claim, tell) => done,
            lost = claim.keep() => Err(lost.into()),
        };
        claim.release().await;
        done
    }

    async fn run_alone(
        &self,
        retire: bool,
        claim: &MigrationClaim,
        tell: &impl Fn(&str),
    ) -> Result<Summary, MigrationError> {
        let to = self.entry_location().await?;
        let opener = self.opener();
        let shared = open(&opener, &to).await?;
        let from = self.own_location().await?;
        let (mut record, phase) = match MigrationRecord::open(Arc::clone(shared.store()), &self.entry).await?
        {
            Some(record) => match self.goes_on(record.head(), &from, &to)? {
                Some(phase) => (record, phase),
                None => {
                    tell(&set_aside(record.head(), &self.entry, &entry_uid(&to)));
                    (
                        self.plan(&opener, (&from, &to), Some(record), claim, tell).await?,
                        MigrationPhase::Planned,
                    )
                }
            },
            None => (self.plan(&opener, (&from, &to), None, claim, tell).await?, MigrationPhase::Planned),
        };
        record.take_over(claim.run()).await?;
        if phase != record.head().phase {
            tell("the location is not there yet: what came since is copied first");
            record.enter(phase).await?;
        }
        let head = record.head().clone();
        let places = self.places(&opener, &head.source, &head.destination).await?;
        // Objects copied from a directory into itself would be removed with it, and so would be
        // what others have below it.
        if places.source.overlaps(&places.destination) && record.is_in(places.source.store()).await? {
            return Err(MigrationError::OneBucket(self.from.clone()));
        }
        let begun_at = record.head().phase;
        loop {
            let phase = record.head().phase;
            match phase {
                MigrationPhase::Planned => {}
                MigrationPhase::Copying => self.copy_all(&places, &mut record, tell).await?,
                MigrationPhase::Quiescing => self.quiesce(tell).await?,
                MigrationPhase::Delta => {
                    // A person may have let backups continue since.
                    if phase == begun_at {
                        self.quiesce(tell).await?;
                    }
                    self.copy_the_rest(&places, &mut record, claim, tell).await?;
                }
                MigrationPhase::CutOver => {
                    self.cut_over(&head.destination, tell).await?;
                    if !retire {
                        break;
                    }
                    self.retire(&places, &mut record, claim, tell).await?;
                }
                MigrationPhase::Retired => break,
            }
            match phase.next() {
                Some(next) => record.enter(next).await?,
                None => break,
            }
        }
        let counts = CopyCounts::of(&record.items());
        Ok(Summary { phase: Some(record.head().phase), counts, there: 0 })
    }

    async fn plan(
        &self,
        opener: &Opener,
        (from, to): (&BackupStorageLocation, &BackupStorageLocation),
        earlier: Option<MigrationRecord>,
        claim: &MigrationClaim,
        tell: &impl Fn(&str),
    ) -> Result<MigrationRecord, MigrationError> {
        let places = self.places(opener, &from.spec, &to.spec).await?;
        let mut items = Items::new();
        relist(&mut items, list(&places.source, "source").await?);
        let counts = CopyCounts::of(&items);
        tell(&format!("{} objects with {} bytes to copy", counts.none, counts.bytes));
        let (source, destination) = (from.spec.clone(), to.spec.clone());
        let head = MigrationHead::new(
            &entry_uid(to),
            &self.from,
            source,
            destination,
            claim.run(),
            Timestamp::now(),
        );
        let store = Arc::clone(places.destination.store());
        Ok(MigrationRecord::create(store, &self.entry, head, items, earlier).await?)
    }

    /// The phase to continue from; `None`: the record is of something else, and a new one is begun.
    fn goes_on(
        &self,
        head: &MigrationHead,
        from: &BackupStorageLocation,
        to: &BackupStorageLocation,
    ) -> Result<Option<MigrationPhase>, MigrationError> {
        let leads = if leads_to(&from.spec, &head.destination) {
            Leads::ToDestination
        } else if leads_to(&from.spec, &head.source) {
            Leads::ToSource
        } else {
            Leads::Elsewhere
        };
        let found = FoundRecord {
            is_of_entry: head.entry_uid == entry_uid(to),
            is_of_location: head.location == self.from,
            is_in_place: leads_to(&head.destination, &to.spec),
            leads,
            phase: head.phase,
        };
        let bucket = |spec: &BackupStorageLocationSpec| spec.object_storage.bucket.clone();
        match resume_for(&found) {
            Resume::GoOn(phase) => Ok(Some(phase)),
            Resume::Earlier | Resume::Over => Ok(None),
            Resume::Another => Err(MigrationError::Other(head.location.clone())),
            Resume::Moved => Err(MigrationError::Moved(bucket(&head.destination), self.entry.clone())),
            Resume::Astray => {
                Err(MigrationError::Astray(self.from.clone(), bucket(&head.source), self.entry.clone()))
            }
        }
    }

    async fn copy_all(
        &self,
        places: &MigrationPlaces,
        record: &mut MigrationRecord,
        tell: &impl Fn(&str),
    ) -> Result<(), MigrationError> {
        let all: u64 = CopyCounts::of(&record.items()).none;
        let (mut done, mut failed) = (0, BTreeMap::new());
        for i in 0..record.shards() {
            while let Some(items) = record.shard(i) {
                let waiting = items.iter().filter(|(key, item)| {
                    item.status == CopyStatus::None && failed.get(*key).is_none_or(|tries| *tries < ATTEMPTS)
                });
                let batch: Vec<_> =
                    waiting.take(SAVE).map(|(key, item)| (key.clone(), item.clone())).collect();
                if batch.is_empty() {
                    break;
                }
                // Mark these objects as started before writing any of them; otherwise a crashed
                // run's partial copies look like foreign objects. This batch uses the marks saved
                // earlier, because others may still write to the destination.
                let begun: Vec<String> = stream::iter(&batch)
                    .filter(|(_, item)| std::future::ready(item.is_to_begin()))
                    .map(async |(key, _)| {
                        places.destination.is_free(key).await.unwrap_or_default().then(|| key.clone())
                    })
                    .buffer_unordered(self.at_once)
                    .filter_map(std::future::ready)
                    .collect()
                    .await;
                for key in &begun {
                    if let Some(item) = items.get_mut(key) {
                        item.begun = true;
                    }
                }
                if !begun.is_empty() {
                    record.save_shard(i).await?;
                }
                let Some(items) = record.shard(i) else { break };
                let attempts: Vec<_> = stream::iter(batch)
                    .map(async |(key, item)| {
                        let attempt = copy(&places.source, &places.destination, &key, &item).await;
                        (key, attempt)
                    })
                    .buffer_unordered(self.at_once)
                    .collect()
                    .await;
                for (key, attempt) in attempts {
                    let Some(item) = items.get_mut(&key) else { continue };
                    // The object disappeared before anything was written.
                    item.begun &= attempt != CopyAttempt::Missing || !begun.contains(&key);
                    let may_retry = note(item, attempt);
                    if item.status == CopyStatus::None {
                        let tries = failed.entry(key).or_insert(0);
                        *tries = if may_retry { *tries + 1 } else { ATTEMPTS };
                    } else {
                        failed.remove(&key);
                        done += 1;
                    }
                }
                record.save_shard(i).await?;
                tell(&format!("{done} of {all} objects are copied"));
            }
        }
        let Some(first) = failed.keys().next() else { return Ok(()) };
        let why = record.items().get(first).and_then(|item| item.error.clone()).unwrap_or_default();
        Err(MigrationError::NotCopied { count: failed.len(), first: format!("{first}: {why}") })
    }

    /// Holds new backups, waits for running ones, and then makes the source read-only. Backups that
    /// started before they saw that are awaited afterwards.
    async fn quiesce(&self, tell: &impl Fn(&str)) -> Result<(), MigrationError> {
        self.annotate_hold(Some(HELD_FOR)).await?;
        self.wait_until_none_runs(tell).await?;
        self.patch(json!({"spec": {"accessMode": AccessMode::ReadOnly}})).await?;
        sleep(SETTLED).await;
        self.wait_until_none_runs(tell).await
    }

    async fn wait_until_none_runs(&self, tell: &impl Fn(&str)) -> Result<(), MigrationError> {
        let from = BTreeSet::from([self.from.clone()]);
        let began = Instant::now();
        loop {
            let running = count_active(&self.client, &self.namespace, &from).await;
            let running = running.map_err(api_error("list the Backups"))?;
            if running == 0 {
                return Ok(());
            }
            if began.elapsed() > self.patience {
                return Err(MigrationError::Running(running, self.patience.as_secs()));
            }
            tell(&format!("{running} backups still run"));
            sleep(LOOK).await;
        }
    }

    async fn copy_the_rest(
        &self,
        places: &MigrationPlaces,
        record: &mut MigrationRecord,
        claim: &MigrationClaim,
        tell: &impl Fn(&str),
    ) -> Result<(), MigrationError> {
        let mut last = Vec::new();
        for _ in 0..LISTINGS {
            let mut items = record.items();
            let source = list(&places.source, "source").await?;
            ensure_not_emptied(&items, &source).map_err(MigrationError::Emptied)?;
            let news = relist(&mut items, source);
            if news > 0 {
                tell(&format!("{news} more objects since"));
                record.replace(items).await?;
            }
            self.copy_all(places, record, tell).await?;
            let mut items = record.items();
            let source = list(&places.source, "source").await?;
            expire(&mut items, &source).map_err(MigrationError::Emptied)?;
            // Written before anything is removed, because another run may have finished the
            // migration and emptied the source while this process was suspended.
            record.confirm().await?;
            record.replace(items.clone()).await?;
            let there = list(&places.destination, "destination").await?;
            remove(&places.destination, "destination", &leftovers(&items, &there), claim).await?;
            let there = there.into_iter().map(|(key, listed)| (key, listed.size)).collect();
            match gate(&items, &source, &there) {
                Ok(()) => return Ok(()),
                Err(obstacles) => last = obstacles.iter().map(|obstacle| format!("  {obstacle}")).collect(),
            }
        }
        Err(MigrationError::Gate(last.join("\n")))
    }

    /// Removes only objects that are on record as copied, have not changed since, and are at the
    /// destination now.
    async fn retire(
        &self,
        places: &MigrationPlaces,
        record: &mut MigrationRecord,
        claim: &MigrationClaim,
        tell: &impl Fn(&str),
    ) -> Result<(), MigrationError> {
        let (source, destination) = (&places.source, &places.destination);
        let (here, there) = (list(source, "source").await?, list(destination, "destination").await?);
        let Retirement { remove: gone, changed, missing } = retirement(&record.items(), &here, &there);
        record.confirm().await?;
        remove(source, "source", &gone, claim).await?;
        tell(&format!("{} objects are removed at the source", gone.len()));
        let stays = |keys: &[String], why: &str| {
            keys.first().map(|first| format!("  {} objects {why}: {first}", keys.len()))
        };
        let kept: Vec<String> = [
            stays(&changed, "that are not as they were copied"),
            stays(
                &missing,
                "that are not at the new place as they were copied (if they expired there, remove them)",
            ),
        ]
        .into_iter()
        .flatten()
        .collect();
        if kept.is_empty() {
            return Ok(());
        }
        Err(MigrationError::NotRetired(self.from.clone(), kept.join("\n")))
    }

    async fn places(
        &self,
        opener: &Opener,
        source: &BackupStorageLocationSpec,
        destination: &BackupStorageLocationSpec,
    ) -> Result<MigrationPlaces, MigrationError> {
        if leads_to(source, destination) {
            return Err(MigrationError::Same(self.from.clone()));
        }
        let at = |spec: &BackupStorageLocationSpec| BackupStorageLocation::new(&self.from, spec.clone());
        Ok(MigrationPlaces {
            source: open(opener, &at(source)).await?,
            destination: open(opener, &at(destination)).await?,
        })
    }
}

/// Is this run still the only one? Checked with the API server first, and by the clock for each
/// object.
async fn remove(
    directory: &BucketDirectory,
    which: &'static str,
    keys: &[String],
    claim: &MigrationClaim,
) -> Result<(), MigrationError> {
    if !keys.is_empty() {
        claim.renew().await?;
    }
    for key in keys {
        claim.ensure()?;
        let removed = match directory.path(key) {
            Ok(path) => directory.store().delete(&path).await,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(MigrationError::Remove(key.clone(), which, error)),
        }
    }
    Ok(())
}

fn set_aside(head: &MigrationHead, entry: &str, uid: &str) -> String {
    let why = if head.entry_uid == uid {
        "of a migration that is over".to_owned()
    } else {
        format!("of an earlier entry {entry} (UID {:?}, now {uid:?})", head.entry_uid)
    };
    let from = &head.source.object_storage;
    format!(
        "the record in _berth/{entry}/migration is {why}, from bucket {} {}: it begins anew, and nothing is removed on its word",
        from.bucket,
        from.prefix.as_deref().unwrap_or_default()
    )
}

async fn open(opener: &Opener, location: &BackupStorageLocation) -> Result<BucketDirectory, MigrationError> {
    let store = opener.open_existing(location).await;
    let store = store.map_err(|error| MigrationError::Open(location.name_any(), error))?;
    Ok(BucketDirectory::new(store, location.spec.object_storage.prefix.as_deref()))
}

async fn list(
    directory: &BucketDirectory,
    which: &'static str,
) -> Result<BTreeMap<String, SourceObject>, MigrationError> {
    directory.list().await.map_err(|error| MigrationError::List(which, error))
}
