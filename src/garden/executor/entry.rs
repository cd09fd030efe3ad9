//! BackupEntry: a directory in a bucket. To make one is to know it; to remove one is to remove all that is in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::extensions::{BackupBucket, BackupEntry};
use berth_api::garden::Removed;
use berth_api::keys;
use berth_core::garden::fault::Fault;
use berth_core::garden::lock::look_again;
use berth_core::garden::name::tombstone;
use berth_core::garden::owner::End;
use berth_core::garden::scope::Scope;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use tracing::warn;

use super::extension::{Extension, Outcome, Problem, store_config};
use super::owner::Claim;
use super::purge::{Kept, Pick, Purge, survey};
use super::secret;
use super::task::Task;
use crate::client::is_conflict;
use crate::storage::bucket::{Bucket, StoreError, Version};

/// How often it is told how far a removal is.
const TOLD: Duration = Duration::from_secs(2);

pub async fn set_up(task: &mut Task<'_, BackupEntry>) -> Result<Outcome, Problem> {
    let scope = scope(task)?;
    task.record.prefix = Some(scope.prefix().to_owned());
    let name = task.object.spec.bucket_name.clone();
    let bucket = open(task).await?;
    if !bucket.exists().await? {
        let message = format!("there is no bucket {name} yet, or no longer; the directory has nowhere to be");
        return Err(StoreError::new(Fault::NoSuchBucket, message).into());
    }
    let refused = match Claim::of(&task.object, &task.record, &scope, task.is_restored()) {
        Some(claim) => claim.take(&bucket, &scope).await?,
        None => None,
    };
    if let Some(why) = refused {
        task.record.name_taken = Some(true);
        return Err(Problem::configuration(format!("{} of bucket {name} {why}", scope.prefix())));
    }
    task.record.made = Some(true);
    task.record.name_taken = None;
    Ok(Outcome::Done { description: format!("directory {} of bucket {name}", scope.prefix()) })
}

pub async fn tear_down(task: &mut Task<'_, BackupEntry>) -> Result<Outcome, Problem> {
    let scope = scope(task)?;
    let bucket_name = task.object.spec.bucket_name.clone();
    if let Some(why) =
        task.object.annotation(keys::FORGET_DATA).filter(|why| *why != "false").map(str::to_owned)
    {
        return forget(task, &scope, why).await;
    }
    let bucket = Arc::new(open(task).await?);
    match remove(task, &bucket, &scope).await {
        Err(Problem::Store(error)) if error.fault == Fault::NoSuchBucket => {
            let bucket = bucket_here(task).await?;
            let was_seen = bucket.is_some_and(|bucket| bucket.record().made == Some(true));
            task.believe_it_gone(&bucket_name, was_seen)?;
            Ok(Outcome::Done {
                description: format!("there is no bucket {bucket_name}: its objects were gone already"),
            })
        }
        done => done,
    }
}

/// Nothing of a stranger's, nor what was noted of it.
async fn remove(
    task: &mut Task<'_, BackupEntry>,
    bucket: &Arc<Bucket>,
    scope: &Scope,
) -> Result<Outcome, Problem> {
    let (Some(claim), Some(notes)) = (Claim::of(&task.object, &task.record, scope, false), scope.notes())
    else {
        return Err(Problem::configuration(format!("{} has no place for a mark", scope.prefix())));
    };
    // Before it is read whose it is: so these are of nobody who came after that.
    let marks = claim.versions(bucket, scope).await?;
    match claim.end(bucket, scope).await? {
        End::LeftAlone(why) => {
            task.record.name_taken = Some(true);
            let directory = scope.prefix();
            warn!(name = task.object.name_any(), bucket = ?bucket, directory, %why, "left alone");
            let description = format!("{directory} was left alone, for it {why}");
            return Ok(Outcome::Done { description });
        }
        End::Nothing => {
            task.record.name_taken = None;
            let description = format!("{} was never set up, and nothing is in it", scope.prefix());
            return Ok(Outcome::Done { description });
        }
        End::Remove => {}
    }
    task.record.name_taken = None;
    // A lock may keep an earlier version of the mark when nothing else is left to tell.
    task.record.made = Some(true);
    match empty(task, bucket, scope).await? {
        Outcome::Done { description } => {
            let kept = clear(bucket, &notes, (claim.mark(), marks)).await?;
            Ok(kept.map_or(Outcome::Done { description }, |kept| waits(task, kept)))
        }
        waiting => Ok(waiting),
    }
}

async fn bucket_here(task: &Task<'_, BackupEntry>) -> Result<Option<BackupBucket>, kube::Error> {
    let buckets: Api<BackupBucket> = Api::all(task.client());
    buckets.get_opt(&task.object.spec.bucket_name).await
}

/// Removes what nobody counts, and the mark with its key last: until then it is seen whose the rest is. Only those `versions` of
/// the mark, because whoever comes next may have marked the directory by then. Gives what the store keeps.
async fn clear(
    bucket: &Arc<Bucket>,
    scope: &Scope,
    (mark, versions): (&str, Vec<Version>),
) -> Result<Option<Kept>, StoreError> {
    for pick in [Pick::AllBut(mark.to_owned()), Pick::These(versions)] {
        let mut purge = Purge::picking(Arc::clone(bucket), scope.clone(), pick);
        while purge.step().await? {}
        if let Some(kept) = purge.kept().await? {
            return Ok(Some(kept));
        }
    }
    bucket.sweep(scope.prefix()).await?;
    Ok(None)
}

fn scope(task: &Task<'_, BackupEntry>) -> Result<Scope, Problem> {
    let scope = Scope::of_entry(&task.object.name_any(), task.record.prefix.as_deref());
    scope.map_err(|error| Problem::configuration(error.to_string()))
}

async fn open(task: &Task<'_, BackupEntry>) -> Result<Bucket, Problem> {
    let spec = &task.object.spec;
    let secret = secret::get(&task.client(), &spec.secret_ref).await?;
    let config = match &spec.provider_config {
        Some(config) => Some(config.clone()),
        // The same store as the bucket's, if that is known here. Whether the bucket is well does not matter.
        None => bucket_here(task).await?.and_then(|bucket| bucket.spec.provider_config),
    };
    let config = store_config(config.as_ref())?;
    Ok(Bucket::open(&spec.kind, &spec.bucket_name, &spec.region, &config, &secret, task.roots())?)
}

/// Removes what `scope` covers, telling how far it is. For buckets, too.
pub async fn empty<K: Extension>(
    task: &mut Task<'_, K>,
    bucket: &Arc<Bucket>,
    scope: &Scope,
) -> Result<Outcome, Problem> {
    // Counted before: so the sum is right however often it was interrupted.
    let found = match task.record.found {
        Some(found) => found,
        None => {
            let (found, _) = survey(bucket, scope, None).await?;
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
    Ok(Outcome::Done {
        description: format!("{} objects with {} bytes were removed", removed.objects, removed.bytes),
    })
}

fn waits<K: Extension>(task: &mut Task<'_, K>, kept: Kept) -> Outcome {
    let now = Timestamp::now();
    task.record.retained_until = kept.until.map(Time);
    let until = match kept.until {
        Some(until) if kept.is_indefinite => format!("until {until}, some by a legal hold longer"),
        Some(until) => format!("until {until}"),
        None => "by a legal hold, until somebody lifts it".to_owned(),
    };
    let description = format!("the store keeps {} locked objects {until}; they go then", kept.versions);
    Outcome::Waits { description, again: look_again(kept.until, now) }
}

/// Of what was found, per cent; all of it only when nothing is left.
fn progress(removed: Removed, found: Removed) -> i32 {
    let share = removed.objects.saturating_mul(100).checked_div(found.objects).unwrap_or_default();
    i32::try_from(share.min(99)).unwrap_or(99)
}

fn sum(a: Removed, b: Removed) -> Removed {
    Removed { objects: a.objects.saturating_add(b.objects), bytes: a.bytes.saturating_add(b.bytes) }
}

/// What a killed process removed, and did not come to tell, was found before.
fn largest(removed: Removed, found: Removed) -> Removed {
    Removed { objects: removed.objects.max(found.objects), bytes: removed.bytes.max(found.bytes) }
}

/// Whatever is in the store stays there: recorded where it outlives the object, for nobody else knows of it then.
async fn forget(task: &mut Task<'_, BackupEntry>, scope: &Scope, why: String) -> Result<Outcome, Problem> {
    let (spec, name) = (&task.object.spec, task.object.name_any());
    let uid = task.object.uid().unwrap_or_default();
    let data = [
        ("entry", name.clone()),
        ("uid", uid.clone()),
        ("provider", spec.kind.clone()),
        ("region", spec.region.clone()),
        ("bucket", spec.bucket_name.clone()),
        ("prefix", scope.prefix().to_owned()),
        ("objects", task.record.removed().objects.to_string()),
        ("bytes", task.record.removed().bytes.to_string()),
        ("left", "true".to_owned()),
        ("reason", why.clone()),
        ("at", Timestamp::now().to_string()),
    ];
    let record = ConfigMap {
        metadata: ObjectMeta {
            name: Some(tombstone(&name, &uid)),
            labels: Some([(keys::TOMBSTONE.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(task.client(), &spec.secret_ref.namespace);
    match api.create(&PostParams::default(), &record).await {
        Ok(_) => {}
        Err(error) if is_conflict(&error) => {}
        Err(error) => return Err(error.into()),
    }
    warn!(%name, bucket = %spec.bucket_name, prefix = scope.prefix(), %why, "data is left in the store");
    let description =
        format!("data below {} of bucket {} was left in the store: {why}", scope.prefix(), spec.bucket_name);
    task.record.forgotten = Some(why);
    Ok(Outcome::Done { description })
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
