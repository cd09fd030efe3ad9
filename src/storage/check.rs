//! Keeps the phase of every BackupStorageLocation current.

#[cfg(test)]
mod tests;
mod writing;

use std::collections::HashMap;
use std::time::Duration;

use berth_api::velero::{
    BackupStorageLocation, BackupStorageLocationPhase as Phase, BackupStorageLocationStatus,
};
use berth_core::limits;
use berth_core::location::{Marked, no_longer_default};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use object_store::ObjectStore;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::Opener;
use super::layout::place;
use super::secrets::credentials_of;
use crate::client::{ListResult, list};
use crate::events::{EventReason, Events};
use crate::text::{beginning, chain};
use crate::write::{Write, WriteResult, patch};
use writing::WriteChecks;

/// How often the list of locations is read; each location is checked when its own period has
/// passed.
const TICK: Duration = Duration::from_secs(2);
/// Time-out of one check.
const PATIENCE: Duration = Duration::from_secs(30);
/// Checks that run at the same time, so that a store that does not answer delays no other.
const CHECKS_AT_ONCE: usize = 16;
/// Folders that a location may have (source: Velero's object store layout).
const TOP_LEVEL: [&str; 6] = ["backups", "restores", "restic", "metadata", "plugins", "kopia"];

/// Checks locations. Runs only while this process leads.
pub struct LocationChecker {
    client: Client,
    namespace: String,
    pub api: Api<BackupStorageLocation>,
    pub opener: Opener,
    /// The period of locations that set no validationFrequency.
    pub frequency: Duration,
    writing: WriteChecks,
    events: Option<Events>,
}

impl LocationChecker {
    pub fn new(client: Client, namespace: &str, opener: Opener, frequency: Duration) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        let (writing, events) = (WriteChecks::default(), None);
        Self { client, namespace: namespace.to_owned(), api, opener, frequency, writing, events }
    }

    /// Also writes to each location that is not ReadOnly, as often as this. Zero: never.
    #[must_use]
    pub fn writing(mut self, frequency: Duration) -> Self {
        self.writing.frequency = frequency;
        self
    }

    /// Also keeps a single default location, and sends Events when one is the default no longer, or
    /// can be used no longer or again.
    #[must_use]
    pub fn keeping_one_default(mut self, events: Events) -> Self {
        self.events = Some(events);
        self
    }

    /// Runs for ever.
    pub async fn run(&self) {
        // The spec that was checked last, because a changed one is checked at once.
        let mut checked: HashMap<String, serde_json::Value> = HashMap::new();
        let mut told = Vec::new();
        loop {
            match list::<BackupStorageLocation>(&self.client, &self.namespace).await {
                Ok(ListResult { items, unreadable }) => {
                    for (name, why) in unreadable.iter().filter(|one| !told.contains(*one)) {
                        warn!(%name, %why, "could not read a storage location, so nothing uses it: correct its fields");
                    }
                    told = unreadable;
                    let is_here = |name: &str| items.iter().any(|location| location.name_any() == name);
                    checked.retain(|name, _| is_here(name));
                    self.writing.retain(is_here);
                    self.keep_one_default(&items).await;
                    let mut due = Vec::new();
                    for location in &items {
                        let spec = serde_json::to_value(&location.spec).unwrap_or_default();
                        let before = checked.insert(location.name_any(), spec.clone());
                        let is_elsewhere = before.as_ref().is_some_and(|before| *before != spec);
                        if before.is_none() || is_elsewhere || self.is_due(location, Timestamp::now()) {
                            due.push((location, is_elsewhere));
                        }
                    }
                    let checks = futures::stream::iter(due);
                    checks
                        .for_each_concurrent(CHECKS_AT_ONCE, |(location, is_elsewhere)| {
                            self.check(location, is_elsewhere)
                        })
                        .await;
                }
                Err(error) => warn!(
                    error = chain(&error),
                    "failed to list the storage locations: none is checked before that succeeds"
                ),
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn is_due(&self, location: &BackupStorageLocation, now: Timestamp) -> bool {
        let status = location.status.clone().unwrap_or_default();
        let (Some(last), Some(phase)) = (status.last_validation_time, status.phase) else { return true };
        let is_away = phase == Phase::Unavailable;
        let frequency = match &location.spec.validation_frequency {
            None => self.frequency,
            // 0 means once, and an unreadable value means the default. An Unavailable location is
            // checked by the default period at least, because backups wait for it.
            Some(text) => match text.get() {
                Ok(None) if is_away => self.frequency,
                Ok(None) => return false,
                Ok(Some(frequency)) if is_away => frequency.min(self.frequency),
                Ok(Some(frequency)) => frequency,
                Err(_) => self.frequency,
            },
        };
        // A time in the future is of a clock that was wrong.
        let frequency = SignedDuration::try_from(frequency).unwrap_or(SignedDuration::MAX);
        last.0 > now || now.duration_since(last.0) >= frequency
    }

    /// Checks a location. `is_elsewhere`: its spec names another place than at the last check.
    async fn check(&self, location: &BackupStorageLocation, is_elsewhere: bool) {
        let name = location.name_any();
        let found = timeout(PATIENCE, self.look(location, is_elsewhere)).await;
        let message = match found {
            Ok(Ok(())) => String::new(),
            Ok(Err(error)) => told(&error, location),
            Err(_) => format!("the store did not answer within {} s", PATIENCE.as_secs()),
        };
        let phase = if message.is_empty() { Phase::Available } else { Phase::Unavailable };
        let before = location.status.as_ref().and_then(|s| s.phase);
        if before != Some(phase) {
            info!(%name, ?phase, %message, "checked a storage location, whose phase is another one now");
        }
        let why = Some(message.as_str()).filter(|why| !why.is_empty());
        let status = BackupStorageLocationStatus::checked(phase, why, Timestamp::now());
        match patch(&self.api, Write::on(location).uid(None), json!({"status": status})).await {
            WriteResult::Written(_) => self.tell(location, before, phase, message),
            WriteResult::Conflict(_) | WriteResult::Gone(_) => {}
            WriteResult::Refused(error) => {
                warn!(%name, error = chain(&error), "failed to write the phase of a storage location: the next check tries again");
            }
            WriteResult::TimedOut => {
                warn!(%name, "failed to write the phase of a storage location in time: the next check tries again")
            }
        }
    }

    /// Tells of a change, because the status shows only what is so now.
    fn tell(&self, location: &BackupStorageLocation, before: Option<Phase>, now: Phase, message: String) {
        let Some(events) = &self.events else { return };
        let (what, note) = match (before, now) {
            (Some(Phase::Unavailable), Phase::Available) => {
                (EventReason::LocationAvailable, "the storage location can be used again".to_owned())
            }
            (None | Some(Phase::Available), Phase::Unavailable) => {
                (EventReason::LocationUnavailable, message)
            }
            _ => return,
        };
        events.tell_about(what, location.object_ref(&()), note);
    }

    async fn look(&self, location: &BackupStorageLocation, is_elsewhere: bool) -> anyhow::Result<()> {
        // The status of the former place does not apply to the new one.
        let status = location.status.clone().filter(|_| !is_elsewhere);
        let location = &BackupStorageLocation { status, ..location.clone() };
        let opened = self.opener.open_with_parts(location).await?;
        let store = &opened.store;
        let prefix = location.spec.object_storage.prefix.as_deref().unwrap_or_default().trim_matches('/');
        let found = store.list_with_delimiter(Some(&place(prefix))).await?;
        let tops = found.common_prefixes.iter().filter_map(|path| path.filename());
        let strange: Vec<&str> = tops.filter(|top| !TOP_LEVEL.contains(top)).take(3).collect();
        anyhow::ensure!(
            strange.is_empty(),
            "something else lives in this place: {} (only {} belong here); give the location a prefix of its own",
            strange.join(", "),
            TOP_LEVEL.join(", "),
        );
        self.writing.check(&self.opener, location, &opened, is_elsewhere).await
    }

    /// Of several default locations the most recently created stays, as with Velero: otherwise it
    /// would depend on their names where backups go that name no location.
    async fn keep_one_default(&self, locations: &[BackupStorageLocation]) {
        let Some(events) = &self.events else { return };
        let marked = locations.iter().filter(|location| location.spec.default == Some(true));
        let marked: Vec<Marked> = marked
            .map(|location| Marked {
                name: location.name_any(),
                created_at: location.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
            })
            .collect();
        let (stays, others) = no_longer_default(&marked);
        for location in locations.iter().filter(|location| others.contains(&location.name_any().as_str())) {
            let (name, stays) = (location.name_any(), stays.unwrap_or_default());
            let change = json!({"spec": {"default": false}});
            match patch(&self.api, Write::on(location), change).await {
                WriteResult::Written(_) => {
                    let note =
                        format!("it is the default location no longer, because {stays} is, which is later");
                    warn!(%name, "{note}");
                    events.tell_about(EventReason::DefaultChanged, location.object_ref(&()), note);
                }
                WriteResult::Conflict(_) | WriteResult::Gone(_) => {}
                WriteResult::Refused(error) => {
                    warn!(%name, error = chain(&error), "failed to take the mark of the default off a storage location, and another one has it, too: trying again");
                }
                WriteResult::TimedOut => {
                    warn!(%name, "failed to take the mark of the default off a storage location in time: trying again")
                }
            }
        }
    }
}

/// What the status says of an error. It is kept for each Backup that waits for the location.
fn told(error: &anyhow::Error, location: &BackupStorageLocation) -> String {
    with_way_out(beginning(&chain(error.as_ref()), limits::STATUS_MESSAGE).into_owned(), location)
}

/// Adds the name of the Secret whose keys the store refuses.
fn with_way_out(message: String, location: &BackupStorageLocation) -> String {
    let refused = message.contains("403 Forbidden") || message.contains("401 Unauthorized");
    if !refused {
        return message;
    }
    let (name, key) = credentials_of(location);
    format!("the store refuses the keys of Secret {name}, key {key}, or they may not do this: {message}")
}
