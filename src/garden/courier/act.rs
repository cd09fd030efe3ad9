//! Does the steps that core plans, one at a time, and looks again after each.

mod location;

use std::fmt::Debug;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::Backup;
use berth_garden_api::extensions::Extension;
use berth_garden_api::member_objects::{self, MIGRATE, hub_uid};
use berth_garden_api::{BackupBucket, BackupEntry, hub_state, status};
use berth_garden_core::entry_life::{HubState, Intent, intent};
use berth_garden_core::member::handoff::Handoff;
use berth_garden_core::member::object::ObjectReport;
use berth_garden_core::member::{
    self, EntryReport, Facts, MemberDecision, MemberStep, ObjectStep, StatusProblem,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::Courier;
use super::cache::ObjectCache;
use super::freeze::{FrozenEntry, FrozenObject};
use super::write::{CourierError, WriteTarget};
use crate::garden::active_backups::count_active;
use crate::garden::deletion_permits::now;
use crate::text::chain;

/// How long the hub may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Steps of one pass at one object. What remains is done in the next pass.
const MOST_STEPS: usize = 200;

impl Courier {
    pub(super) async fn bucket(&self, name: &str) -> Result<(), CourierError> {
        let mut facts = Facts::default();
        for _ in 0..MOST_STEPS {
            let frozen = self.freeze_bucket(name);
            let step = match member::bucket(&frozen.view(&self.settings.seed, &facts)) {
                MemberDecision::Do(step) => step,
                MemberDecision::Await => return Err(frozen.object.unanswered()),
                MemberDecision::Report(report) => {
                    let Some(hub) = &frozen.hub else { return Ok(()) };
                    let found = frozen.object.found.as_deref();
                    let change = status::bucket_change(hub, &report, found, Timestamp::now());
                    let Some(change) = change else { return Ok(()) };
                    frozen.object.log(&report);
                    return self.hub_buckets().patch_status(hub, change).await;
                }
            };
            let acted = match &step {
                MemberStep::Object(step) => self.act(&frozen.object, &self.buckets(), *step).await,
                MemberStep::AskHub => {
                    let state = |hub: &BackupBucket| hub_state::bucket(hub, &self.settings.seed).state;
                    self.ask_hub(frozen.hub.as_deref(), &self.hub_buckets(), state, &mut facts).await
                }
                MemberStep::Revoke => self.revoke(&frozen.object),
                // Of entries.
                MemberStep::BeginQuiet
                | MemberStep::ForgetQuiet
                | MemberStep::CountBackups(_)
                | MemberStep::Location(_) => Ok(()),
            };
            note(&step, acted, name, &mut facts)?;
        }
        Err(CourierError::Unfinished)
    }

    pub(super) async fn entry(&self, name: &str) -> Result<(), CourierError> {
        let mut facts = Facts::default();
        for _ in 0..MOST_STEPS {
            let frozen = self.freeze_entry(name, &facts);
            let step = match member::entry(&frozen.view(&facts)) {
                MemberDecision::Do(step) => step,
                MemberDecision::Await => return Err(frozen.object.unanswered()),
                MemberDecision::Report(report) => return self.report_entry(&frozen, &report).await,
            };
            let acted = self.act_entry(&frozen, &step, &mut facts).await;
            note(&step, acted, name, &mut facts)?;
        }
        Err(CourierError::Unfinished)
    }

    async fn report_entry(&self, frozen: &FrozenEntry, report: &EntryReport) -> Result<(), CourierError> {
        let Some(hub) = &frozen.hub else { return Ok(()) };
        let locations: Vec<_> = frozen.locations.iter().map(|one| &**one).collect();
        let is_ours = hub.spec.seed_name == self.settings.seed;
        let found = frozen.object.found.as_deref();
        let change = status::entry_change(hub, is_ours, report, found, &locations, Timestamp::now());
        let Some(change) = change else { return Ok(()) };
        frozen.object.log(&report.object);
        self.hub_entries(hub).patch_status(hub, change).await?;
        if let Some(Handoff::Leaving { running: 0, .. }) = report.handoff {
            info!(name = hub.name_any(), to = hub.spec.seed_name, "gave up an entry: nothing writes there");
        }
        Ok(())
    }

    async fn act_entry(
        &self,
        frozen: &FrozenEntry,
        step: &MemberStep,
        facts: &mut Facts,
    ) -> Result<(), CourierError> {
        let name = &frozen.object.name;
        match step {
            MemberStep::Object(step) => return self.act(&frozen.object, &self.entries(), *step).await,
            MemberStep::Location(step) => return self.act_location(frozen, step, facts).await,
            MemberStep::AskHub => {
                let Some(hub) = &frozen.hub else { return Ok(()) };
                let state = |hub: &BackupEntry| hub_state::entry(hub, &self.settings.seed).object.state;
                return self.ask_hub(Some(&**hub), &self.hub_entries(hub), state, facts).await;
            }
            MemberStep::Revoke => return self.revoke(&frozen.object),
            MemberStep::BeginQuiet => {
                let marks = frozen.locations.iter();
                let marks = marks.filter_map(|one| one.annotations().get(keys::MIGRATED_BY).cloned());
                self.quiet.begin(name, marks.collect());
            }
            MemberStep::ForgetQuiet => self.quiet.forget(name),
            MemberStep::CountBackups(locations) => {
                let found = count_active(&self.clients.call, &self.settings.namespace, locations).await;
                let failed = |error| CourierError::of::<Backup>("list", "of an entry that moves away", error);
                facts.running = Some(found.map_err(failed)?);
            }
        }
        Ok(())
    }

    /// # Errors
    /// When the hub does not answer: then nothing is removed.
    async fn ask_hub<K>(
        &self,
        shown: Option<&K>,
        hub: &WriteTarget<'_, K>,
        state: impl Fn(&K) -> HubState,
        facts: &mut Facts,
    ) -> Result<(), CourierError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
    {
        let Some(shown) = shown else { return Ok(()) };
        let (name, uid) = (shown.name_any(), shown.uid().unwrap_or_default());
        let asked = now();
        let answer = timeout(ANSWER, hub.api.get_opt(&name)).await;
        let answer = answer.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
        let answer = answer.map_err(|error| CourierError::of::<K>("ask the hub again for", &name, error))?;
        let is_removal = answer.is_some_and(|present| {
            present.uid() == shown.uid() && intent(Some(&state(&present)), false) == Intent::Remove
        });
        if is_removal {
            self.permits.grant(&uid, asked);
        } else {
            self.permits.revoke(&uid);
        }
        facts.confirmed = Some(is_removal);
        Ok(())
    }

    fn revoke<E: Resource<DynamicType = ()>>(&self, object: &FrozenObject<E>) -> Result<(), CourierError> {
        if let Some(uid) = object.found.as_ref().and_then(|found| hub_uid(found.meta())) {
            self.permits.revoke(uid);
        }
        Ok(())
    }

    async fn act<E>(
        &self,
        object: &FrozenObject<E>,
        target: &WriteTarget<'_, E>,
        step: ObjectStep,
    ) -> Result<(), CourierError>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let (kind, name) = (E::kind(&()), &object.name);
        match (step, &object.found, &object.wanted) {
            (ObjectStep::CopyCredentials, ..) => {
                if let Some(copy) = &object.copy {
                    self.secrets().keep(copy).await?;
                }
            }
            (ObjectStep::DeleteCopy, ..) => {
                if let Some(copy) = self.member.secrets.get(&object.copy_name) {
                    self.secrets().delete(&copy).await?;
                }
            }
            (ObjectStep::Apply, found, Some(wanted)) => {
                if found.is_none() {
                    // The watch may not show yet what others created a moment ago.
                    target.ensure_ours(name).await?;
                }
                let mut wanted = wanted.clone();
                member_objects::ask_to_reconcile(wanted.meta_mut(), Timestamp::now());
                target.apply(&wanted).await?;
            }
            (ObjectStep::Confirm, Some(found), _) => {
                target.annotate(found, json!({keys::CONFIRM_DELETION: "true"})).await?;
            }
            (ObjectStep::Delete, Some(found), _) => {
                info!(name, %kind, "deleting an object with its data");
                target.delete(found).await?;
            }
            (ObjectStep::LetGo, Some(found), _) => {
                info!(name, %kind, "asking the executor to give an object up: another seed acts on it");
                let asked = json!({
                    keys::OPERATION: MIGRATE,
                    keys::OPERATION_TIMESTAMP: Timestamp::now().to_string(),
                });
                target.annotate(found, asked).await?;
            }
            (ObjectStep::Release, Some(found), _) => {
                let all = found.finalizers();
                let others: Vec<_> = all.iter().filter(|one| *one != keys::GARDEN_FINALIZER).collect();
                if others.len() < all.len() {
                    target.patch(found, json!({"finalizers": others}), json!({})).await?;
                }
            }
            (ObjectStep::PassOn, Some(found), Some(wanted)) => {
                let mut metadata = wanted.meta().clone();
                member_objects::ask_to_reconcile(&mut metadata, Timestamp::now());
                // The labels, too: the permit is for the hub's object that they name, which may
                // have come back with another UID.
                let marks = json!({"labels": metadata.labels, "annotations": metadata.annotations});
                target.patch(found, marks, json!({})).await?;
            }
            // It has gone, or the hub's object has.
            _ => {}
        }
        Ok(())
    }

    fn buckets(&self) -> WriteTarget<'_, berth_garden_api::extensions::BackupBucket> {
        WriteTarget { api: Api::all(self.clients.call.clone()), cache: &self.member.buckets }
    }

    fn entries(&self) -> WriteTarget<'_, berth_garden_api::extensions::BackupEntry> {
        WriteTarget { api: Api::all(self.clients.call.clone()), cache: &self.member.entries }
    }

    fn hub_buckets(&self) -> WriteTarget<'_, BackupBucket> {
        WriteTarget { api: Api::all(self.hub_clients.call.clone()), cache: &self.hub.buckets }
    }

    fn hub_entries(&self, entry: &BackupEntry) -> WriteTarget<'_, BackupEntry> {
        let namespace = entry.namespace().unwrap_or_default();
        WriteTarget {
            api: Api::namespaced(self.hub_clients.call.clone(), &namespace),
            cache: &self.hub.entries,
        }
    }

    fn secrets(&self) -> WriteTarget<'_, Secret> {
        self.here(&self.settings.garden_namespace, &self.member.secrets)
    }

    /// Objects of a namespace of the member cluster.
    pub(super) fn here<'a, K>(&self, namespace: &str, cache: &'a ObjectCache<K>) -> WriteTarget<'a, K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        WriteTarget { api: Api::namespaced(self.clients.call.clone(), namespace), cache }
    }
}

impl<E> FrozenObject<E>
where
    E: Extension + Resource<DynamicType = ()>,
{
    fn unanswered(&self) -> CourierError {
        CourierError::Unanswered { name: self.unanswered.clone().unwrap_or_default() }
    }

    fn log(&self, report: &ObjectReport) {
        let (kind, name) = (E::kind(&()), &self.name);
        match report {
            ObjectReport::Failed { problem, .. } => {
                warn!(%kind, name, error = problem.description, "reported a problem to the hub");
            }
            ObjectReport::Gone => {
                let removed = status::removed(report, self.found.as_deref()).unwrap_or_default();
                info!(%kind, name, objects = removed.objects, bytes = removed.bytes, "removed");
            }
            ObjectReport::Nothing | ObjectReport::LeftAlone | ObjectReport::Kept | ObjectReport::Going => {}
        }
    }
}

/// Takes in what became of a step. What fails of the location keeps nothing else from going on, and
/// what fails of the object is reported to the hub, whose status is where people look.
fn note(
    step: &MemberStep,
    acted: Result<(), CourierError>,
    name: &str,
    facts: &mut Facts,
) -> Result<(), CourierError> {
    facts.done.insert(step.clone());
    match (step, acted) {
        (_, Ok(())) => Ok(()),
        (_, Err(failure)) if failure.passes() => Err(failure),
        (MemberStep::Location(_), Err(failure)) => {
            let why = chain(&failure);
            warn!(name, error = why, "could not update a storage location");
            facts.location_failed = Some(why);
            Ok(())
        }
        (MemberStep::Object(_), Err(failure)) => {
            let why = chain(&failure);
            warn!(name, error = why, "could not update an object of a bucket or an entry");
            facts.object_failed = Some(match failure {
                CourierError::Foreign { .. } => StatusProblem::of_configuration(why),
                CourierError::Api { .. } | CourierError::Unanswered { .. } | CourierError::Unfinished => {
                    StatusProblem::of_call(why)
                }
            });
            Ok(())
        }
        (_, Err(failure)) => Err(failure),
    }
}
