//! Maintains repositories on a schedule. Each repository is maintained by one agent at a time,
//! which records that in the BackupRepository.

use std::time::Duration;

use berth_api::GoDuration;
use berth_api::keys::{MAINTAINED_AT, REPOSITORY_TYPE};
use berth_api::velero::pod_volume::BackupRepositoryStatus;
use berth_core::limits;
use berth_core::pod_volume::maintenance::{Ended, MaintenanceRun, RepositoryHistory, begun, ended, is_due};
use berth_core::pod_volume::{UPLOADER, whole_seconds};
use berth_pod_volumes::{Fault, Repository, Watched};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::AgentContext;
use super::reports::{backup_repositories, is_ours};
use crate::pace::paced;
use crate::write::{Pauses, Write, WriteResult, patch};

/// How often the agent checks which repositories are due.
const LOOK: Duration = Duration::from_secs(600);
/// Time-out of one maintenance.
const LONGEST: Duration = Duration::from_secs(2 * 3600);
/// How long maintenance waits until nobody else works on the repository, and how often it checks.
const BUSY: Duration = Duration::from_secs(900);
const AGAIN: Duration = Duration::from_secs(20);
/// How long a canceled maintenance may take to end.
const CANCELED: Duration = Duration::from_secs(15);
/// How long berth tries to write the end of a maintenance.
const END: Duration = Duration::from_secs(600);
/// BackupRepositories of one page.
const PAGE: u32 = 500;
/// Pages of one list: more than a cluster has namespaces.
const PAGES: usize = 400;
/// Time-out of the list of one page.
const LIST: Duration = Duration::from_secs(30);
/// How many repositories are maintained after one check. The next check finds the others.
const MOST: usize = 1000;

/// Runs until `stop`.
pub async fn run(context: &AgentContext, stop: &CancellationToken) {
    let client = context.clients.call.clone();
    let api = backup_repositories(client, &context.settings.namespace);
    while !stop.is_cancelled() {
        tokio::select! {
            () = sleep(paced(LOOK)) => {}
            () = stop.cancelled() => return,
        }
        for object in due(&api, Timestamp::now()).await {
            if stop.is_cancelled() {
                return;
            }
            maintain(context, &api, &object, stop).await;
        }
    }
}

/// The repositories that are due, as far as they can be listed.
async fn due(api: &Api<DynamicObject>, now: Timestamp) -> Vec<DynamicObject> {
    let mut params = ListParams::default().labels(&format!("{REPOSITORY_TYPE}={UPLOADER}")).limit(PAGE);
    let mut due = Vec::new();
    for _ in 0..PAGES {
        let page = match timeout(LIST, api.list(&params)).await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                warn!(error = crate::text::chain(&error), "the BackupRepositories cannot be listed");
                break;
            }
            Err(_) => {
                warn!("the BackupRepositories cannot be listed: the API server did not answer in time");
                break;
            }
        };
        let room = MOST.saturating_sub(due.len());
        let is_wanted = |object: &DynamicObject| is_ours(object) && is_due(&seen(object), now);
        due.extend(page.items.into_iter().filter(is_wanted).take(room));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if due.len() < MOST => params = params.continue_token(&token),
            _ => break,
        }
    }
    due
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

fn seen(object: &DynamicObject) -> RepositoryHistory {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    let frequency = spec["maintenanceFrequency"].as_str().map(|text| GoDuration(text.to_owned()));
    let frequency = frequency.and_then(|text| text.get().ok().flatten());
    let entry = |entry: &Value| {
        let at = time(&entry["completeTimestamp"]);
        let fault =
            (entry["result"] == "Failed").then(|| entry["message"].as_str().unwrap_or_default().to_owned());
        Some(MaintenanceRun {
            began: time(&entry["startTimestamp"])?,
            ended: at.map(|at| Ended { at, fault }),
        })
    };
    RepositoryHistory {
        created: object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        frequency: frequency.and_then(|often| SignedDuration::try_from(often).ok()),
        succeeded: time(&status["lastMaintenanceTime"]),
        tried: object.annotations().get(MAINTAINED_AT).and_then(|at| at.parse().ok()),
        entries: status["recentMaintenance"].as_array().into_iter().flatten().filter_map(entry).collect(),
    }
}

async fn maintain(
    context: &AgentContext,
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    stop: &CancellationToken,
) {
    let spec = &object.data["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let (location, namespace, name) =
        (text("backupStorageLocation"), text("volumeNamespace"), object.name_any());
    let began = whole_seconds(Timestamp::now());
    let entries = begun(seen(object).entries, began);
    // If several agents see that it is due, the first write wins.
    let change = json!({
        "metadata": {"annotations": {MAINTAINED_AT: began}},
        "status": BackupRepositoryStatus::maintained(&entries, None),
    });
    let WriteResult::Written(_) = patch(api, Write::on(object), change).await else { return };
    info!(repository = name, "started the maintenance of a repository");
    let watched = Watched::default();
    let done = work(context, &location, &namespace, &watched, stop).await;
    let fault =
        done.err().map(|error| format!("{error:#}").chars().take(limits::STATUS_MESSAGE).collect::<String>());
    match &fault {
        None => info!(repository = name, "completed the maintenance of a repository"),
        Some(fault) => {
            warn!(repository = name, fault, "the maintenance of a repository failed");
            // The repository may have been replaced, or its location may have other credentials by
            // now.
            context.repositories.forget(&location, &namespace);
        }
    }
    let end = Ended { at: whole_seconds(Timestamp::now()), fault };
    write_end(api, &name, object.uid().as_deref(), began, &end).await;
}

async fn work(
    context: &AgentContext,
    location: &str,
    namespace: &str,
    watched: &Watched,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut work = std::pin::pin!(async {
        let repository = context.repositories.get(location, namespace, false).await?;
        alone(&repository, &context.settings.node, watched).await.map_err(anyhow::Error::from)
    });
    tokio::select! {
        done = &mut work => return done,
        () = stop.cancelled() => {}
        () = sleep(LONGEST) => {}
    }
    watched.cancel();
    timeout(CANCELED, work).await.unwrap_or_else(|_| Err(Fault::Canceled.into()))
}

/// Waits for a while until nobody else works on the repository.
async fn alone(repository: &Repository, node: &str, watched: &Watched) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let done = repository.maintain(node, watched).await;
        let is_busy = matches!(done, Err(Fault::InUse { .. } | Fault::Locked { .. }));
        if !is_busy || begun.elapsed() > BUSY || watched.is_canceled() {
            return done;
        }
        sleep(paced(AGAIN)).await;
    }
}

async fn write_end(api: &Api<DynamicObject>, name: &str, uid: Option<&str>, began: Timestamp, end: &Ended) {
    let (since, mut pauses) = (Instant::now(), Pauses::default());
    while since.elapsed() < END {
        match api.get_opt(name).await {
            Ok(Some(object)) if object.uid().as_deref() == uid => {
                let entries = ended(seen(&object).entries, began, end.clone());
                let succeeded = end.fault.is_none().then_some(end.at);
                let status = BackupRepositoryStatus::maintained(&entries, succeeded);
                match patch(api, Write::on(&object), json!({"status": status})).await {
                    WriteResult::Written(_) | WriteResult::Gone(_) => return,
                    _ => {}
                }
            }
            Ok(_) => return,
            Err(_) => {}
        }
        pauses.wait().await;
    }
    warn!(repository = name, "could not write the end of a maintenance");
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repositories_on_later_pages_are_maintained_too() {
        const PATH: &str = "/apis/velero.io/v1/namespaces/velero/backuprepositories";
        let at = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        let page = |namespaces: &[(&str, i64)], token: &str| {
            let items = namespaces.iter().map(|(namespace, succeeded)| {
                json!({
                    "apiVersion": "velero.io/v1", "kind": "BackupRepository",
                    "metadata": {"name": format!("{namespace}-default-restic")},
                    "spec": {"volumeNamespace": namespace, "backupStorageLocation": "default"},
                    "status": {"lastMaintenanceTime": at(*succeeded)},
                })
            });
            json!({
                "apiVersion": "velero.io/v1", "kind": "BackupRepositoryList",
                "metadata": {"resourceVersion": "5", "continue": token}, "items": items.collect::<Vec<_>>(),
            })
        };
        let api = Scripted::new()
            .next(get(PATH).answers(page(&[("a", 0), ("b", 999)], "next")))
            .next(get(PATH).page("next").answers(page(&[("c", 0)], "last")))
            .next(get(PATH).page("last").refuses(410));
        let found = due(&backup_repositories(api.client("velero"), "velero"), at(1000)).await;
        let names: Vec<String> = found.iter().map(kube::ResourceExt::name_any).collect();
        assert_eq!(names, ["a-default-restic", "c-default-restic"], "the others are not due");
        api.finish();
    }

    #[test]
    fn what_is_written_of_maintenances_is_read_again() {
        let at = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        let entries = vec![
            MaintenanceRun { began: at(1), ended: Some(Ended { at: at(2), fault: Some("why".to_owned()) }) },
            MaintenanceRun { began: at(3), ended: Some(Ended { at: at(4), fault: None }) },
            MaintenanceRun { began: at(5), ended: None },
        ];
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": {
                "name": "r", "creationTimestamp": "1970-01-01T01:00:00Z",
                "annotations": {MAINTAINED_AT: at(5)},
            },
            "spec": {"maintenanceFrequency": "24h0m0s"},
            "status": BackupRepositoryStatus::maintained(&entries, Some(at(4))),
        }))
        .unwrap();
        let seen = seen(&object);
        assert_eq!(seen.entries, entries);
        assert_eq!((seen.created, seen.succeeded, seen.tried), (at(1), Some(at(4)), Some(at(5))));
        assert_eq!(seen.frequency, Some(SignedDuration::from_hours(24)));
    }
}
