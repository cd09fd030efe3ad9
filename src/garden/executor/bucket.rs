//! BackupBucket: a bucket of the object's name.

use std::sync::Arc;

use berth_api::keys;
use berth_garden_api::Removed;
use berth_garden_api::extensions::{BackupBucket, BackupEntry};
use berth_garden_core::fault::StoreFault;
use berth_garden_core::scope::RemovalScope;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tracing::warn;

use super::emptying::empty;
use super::outcome::{OperationError, OperationOutcome};
use super::purge::count_versions;
use super::task::{Actuator, OperationTask};
use crate::storage::bucket::{BucketRemoval, Created, StoreError};

/// Pages of a bucket's objects that are counted before the bucket is refused to be removed: it is
/// enough to know that there are many.
const COUNTED_PAGES: usize = 10;
/// How long to wait before looking again whether entries have left a bucket.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);
const ENTRIES: u32 = 500;
/// How often a bucket is reconciled that is as it should be (as Gardener does).
const RESYNC: SignedDuration = SignedDuration::from_hours(12);

impl Actuator for BackupBucket {
    const RESYNC: Option<SignedDuration> = Some(RESYNC);
    const IS_SLOW: bool = true;

    async fn set_up(task: &mut OperationTask<'_, Self>) -> Result<OperationOutcome, OperationError> {
        let name = task.object.name_any();
        let bucket = task.open(&name, None).await?;
        let was_made = *task.record.made.get_or_insert(false);
        let is_there = was_made && bucket.exists().await?;
        if was_made && !is_there && task.object.annotation(keys::MAKE_ANEW) != Some(&*name) {
            let message = format!(
                "bucket {name} was made, and is not in the store any more: has the store another address, or do these keys open another \
                 one? Put that right; if what was in it is lost, annotate {}={name}, and an empty one is made",
                keys::MAKE_ANEW
            );
            return Err(StoreError::new(StoreFault::NoSuchBucket, message).into());
        }
        let created = if is_there { Created::Already } else { bucket.create().await? };
        let mut warnings = bucket.configure().await?;
        if created == Created::New && was_made {
            warnings
                .push("it had gone from the store, with all that was in it, and was made anew".to_owned());
        }
        task.record.made = Some(true);
        task.record.name_taken = None;
        for warning in &warnings {
            warn!(%name, warning, "bucket");
        }
        let done = if created == Created::New { "was made" } else { "is there" };
        let sentences = std::iter::once(format!("bucket {name} {done}")).chain(warnings);
        Ok(OperationOutcome::Done { description: sentences.collect::<Vec<_>>().join("; ") })
    }

    async fn tear_down(task: &mut OperationTask<'_, Self>) -> Result<OperationOutcome, OperationError> {
        let name = task.object.name_any();
        if task.record.name_taken == Some(true) {
            return Ok(OperationOutcome::Done {
                description: format!("bucket {name} is somebody else's, and was left alone"),
            });
        }
        if let Some(why) = task.forget_reason() {
            task.record.forgotten = Some(why);
            return Ok(OperationOutcome::Done {
                description: format!("bucket {name} was left in the store, with what is in it"),
            });
        }
        let entries = entries_in(task, &name).await?;
        if !entries.is_empty() {
            let shown = entries.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
            let description = format!("{} BackupEntries are in it, and go first: {shown}", entries.len());
            let again = Timestamp::now().saturating_add(AGAIN).unwrap_or(Timestamp::MAX);
            return Ok(OperationOutcome::Waits { description, again });
        }
        let bucket = Arc::new(task.open(&name, None).await?);
        match bucket.delete().await {
            Err(error) if error.fault == StoreFault::NotEmpty => {}
            removed => return gone(task, &name, removed?),
        }
        // Uploads that were never completed are no objects, but keep the bucket from being removed.
        let everything = RemovalScope::of_bucket(&name, &name)
            .map_err(|error| OperationError::configuration(error.to_string()))?;
        let (found, is_all) = count_versions(&bucket, &everything, Some(COUNTED_PAGES)).await?;
        if found.objects > 0 {
            let Some(named) = task.object.annotation(keys::EMPTY_BUCKET).map(str::to_owned) else {
                let least = if is_all { "" } else { "at least " };
                let message = format!(
                    "bucket {name} holds {least}{} objects with {} bytes and is not removed; take them out, or, to lose them, \
                     annotate {}={name}",
                    found.objects,
                    found.bytes,
                    keys::EMPTY_BUCKET
                );
                return Err(StoreError::new(StoreFault::NotEmpty, message).into());
            };
            let scope = RemovalScope::of_bucket(&name, &named)
                .map_err(|error| OperationError::configuration(error.to_string()))?;
            if let waits @ OperationOutcome::Waits { .. } = empty(task, &bucket, &scope).await? {
                return Ok(waits);
            }
        } else {
            bucket.sweep(everything.prefix()).await?;
        }
        // It was there, even if another program removes it now.
        task.record.made = Some(true);
        gone(task, &name, bucket.delete().await?)
    }
}

fn gone(
    task: &OperationTask<'_, BackupBucket>,
    name: &str,
    removed: BucketRemoval,
) -> Result<OperationOutcome, OperationError> {
    let how = match removed {
        BucketRemoval::Now => "was removed",
        BucketRemoval::WasAbsent => {
            // If berth tried to create it and failed, no other program created it.
            task.believe_it_gone(name, task.record.made.is_some())?;
            "was gone already"
        }
    };
    let emptied = match task.record.removed() {
        Removed { objects: 0, .. } => String::new(),
        Removed { objects, bytes } => format!(", after {objects} objects with {bytes} bytes in it"),
    };
    Ok(OperationOutcome::Done { description: format!("bucket {name} {how}{emptied}") })
}

/// Read from the API server, because an entry that the watch has not shown yet would lose its data.
async fn entries_in(
    task: &OperationTask<'_, BackupBucket>,
    bucket: &str,
) -> Result<Vec<String>, kube::Error> {
    let api: Api<BackupEntry> = Api::all(task.client());
    let (mut params, mut found) = (ListParams::default().limit(ENTRIES), Vec::new());
    loop {
        let page = api.list(&params).await?;
        let here = page.items.iter().filter(|entry| entry.spec.bucket_name == bucket);
        found.extend(here.map(kube::ResourceExt::name_any));
        match page.metadata.continue_ {
            Some(next) if !next.is_empty() => params.continue_token = Some(next),
            _ => return Ok(found),
        }
    }
}
