//! Removes what a bucket or an entry covers, and reports progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_garden_api::Removed;
use berth_garden_core::lock::look_again;
use berth_garden_core::scope::RemovalScope;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::outcome::{OperationError, OperationOutcome};
use super::purge::{Purge, RetainedVersions, count_versions};
use super::task::{Actuator, OperationTask};
use crate::storage::bucket::Bucket;

/// How often progress is reported.
const TOLD: Duration = Duration::from_secs(2);

/// Removes what `scope` covers, and reports progress.
pub async fn empty<K: Actuator>(
    task: &mut OperationTask<'_, K>,
    bucket: &Arc<Bucket>,
    scope: &RemovalScope,
) -> Result<OperationOutcome, OperationError> {
    // Counted first, so that the sum is right however often the removal is interrupted.
    let found = match task.record.found {
        Some(found) => found,
        None => {
            let (found, _) = count_versions(bucket, scope, None).await?;
            task.record.found = Some(found);
            task.record.set_removed(Removed::default());
            task.report(0, format!("{} objects with {} bytes to remove", found.objects, found.bytes)).await?;
            found
        }
    };
    let before = task.record.removed();
    let mut purge = Purge::new(Arc::clone(bucket), scope.clone());
    let mut told = Instant::now();
    loop {
        let stepped = purge.step().await;
        let removed = sum(before, purge.removed);
        task.record.set_removed(removed);
        match stepped {
            Ok(true) if told.elapsed() < TOLD => {}
            Ok(true) => {
                let description = format!("{} of {} objects are removed", removed.objects, found.objects);
                task.report(progress(removed, found), description).await?;
                told = Instant::now();
            }
            Ok(false) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(kept) = purge.kept().await? {
        return Ok(waits(task, kept));
    }
    bucket.sweep(scope.prefix()).await?;
    task.record.retained_until = None;
    let removed = largest(task.record.removed(), found);
    task.record.set_removed(removed);
    Ok(OperationOutcome::Done {
        description: format!("{} objects with {} bytes were removed", removed.objects, removed.bytes),
    })
}

pub fn waits<K: Actuator>(task: &mut OperationTask<'_, K>, kept: RetainedVersions) -> OperationOutcome {
    let now = Timestamp::now();
    task.record.retained_until = kept.until.map(Time);
    let until = match kept.until {
        Some(until) if kept.is_indefinite => format!("until {until}, some by a legal hold longer"),
        Some(until) => format!("until {until}"),
        None => "by a legal hold, until it is lifted".to_owned(),
    };
    let description = format!("the store keeps {} locked objects {until}; they go then", kept.versions);
    OperationOutcome::Waits { description, again: look_again(kept.until, now) }
}

/// Per cent of what was found; 100 only when nothing is left.
fn progress(removed: Removed, found: Removed) -> i32 {
    let share = removed.objects.saturating_mul(100).checked_div(found.objects).unwrap_or_default();
    i32::try_from(share.min(99)).unwrap_or(99)
}

fn sum(a: Removed, b: Removed) -> Removed {
    Removed { objects: a.objects.saturating_add(b.objects), bytes: a.bytes.saturating_add(b.bytes) }
}

/// Objects that a killed process removed without reporting them are in the count of what was found.
fn largest(removed: Removed, found: Removed) -> Removed {
    Removed { objects: removed.objects.max(found.objects), bytes: removed.bytes.max(found.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_complete_only_at_the_end() {
        let objects = |objects| Removed { objects, bytes: 0 };
        let all = [(0, 0), (0, 10), (5, 10), (10, 10), (20, 10), (u64::MAX, 10)];
        let shown: Vec<i32> = all.map(|(removed, found)| progress(objects(removed), objects(found))).into();
        assert_eq!(shown, [0, 0, 50, 99, 99, 99]);
    }

    #[test]
    fn what_was_found_counts_as_removed_when_nothing_is_left() {
        let some = Removed { objects: 3, bytes: 9 };
        let more = Removed { objects: 5, bytes: 7 };
        assert_eq!(largest(some, more), Removed { objects: 5, bytes: 9 });
        assert_eq!(sum(some, more), Removed { objects: 8, bytes: 16 });
    }
}
