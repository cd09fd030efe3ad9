//! One object of the hub, a bucket or an entry, and what there is of it here.

use std::fmt::Debug;
use std::sync::Arc;

use berth_api::extensions::{Extension, ExtensionStatus};
use berth_api::garden::carried::{self, Freight, MIGRATE, hub_uid};
use berth_api::garden::report::{self, Problem, Report};
use berth_api::garden::{LastError, LastOperation, Removed};
use berth_api::keys;
use berth_core::garden::handover::{Held, Step, Told, next};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tracing::info;

use super::Courier;
use super::secrets::Credentials;
use super::write::{Desk, Failure, keep_secret};
use crate::text::chain;

/// How long nobody wonders that an object is not taken up.
const TAKE_UP: SignedDuration = SignedDuration::from_secs(5);

/// What is to be handed over.
pub struct Parcel<'a, E> {
    pub name: &'a str,
    pub told: Told,
    pub found: Option<Arc<E>>,
    /// Name of the Secret that the object refers to.
    pub secret: String,
    /// `None`: the hub has no such object, or no bucket for it.
    pub credentials: Option<Result<Credentials, Problem>>,
    /// Leave to go on without credentials.
    pub forgets: bool,
    /// Data is not to go yet, for the sake of something else.
    pub waits: bool,
    /// Of the hub's object.
    pub uid: Option<String>,
    /// Why what is here cannot become what the hub wants.
    pub elsewhere: Option<Problem>,
}

/// What came of it, as far as the hub should hear.
#[derive(Default)]
pub struct Outcome {
    pub report: Option<Report>,
    pub removed: Option<Removed>,
}

/// What the hub says of an object already.
#[derive(Clone, Copy)]
pub struct Before<'a> {
    pub generation: Option<i64>,
    pub last_operation: Option<&'a LastOperation>,
    pub last_error: Option<&'a LastError>,
    /// In grace, the hub speaks.
    pub is_deleted: bool,
}

impl<E> Parcel<'_, E>
where
    E: Extension + Resource<DynamicType = ()>,
{
    fn held(&self) -> Held {
        let Some(found) = &self.found else { return Held::Absent };
        let is_its = || hub_uid(found.meta()).is_none_or(|uid| self.uid.as_deref() == Some(uid));
        match carried::held(found.meta(), found.common(), E::FINALIZER) {
            // What is gone is what another one of this name had.
            Held::Done { gone: true } => Held::Done { gone: is_its() },
            held => held,
        }
    }

    /// The hub's object and what is here have nothing to do with each other, for what is here is somebody else's or somewhere
    /// else: why.
    fn is_strange(&self) -> Option<Failure> {
        let found = self.found.as_ref()?;
        if !carried::is_ours(found.meta()) {
            return Some(Failure::foreign::<E>(&found.name_any()));
        }
        // What is done with goes as it is; what was given up, too.
        let is_kept = matches!(self.held(), Held::Live { let_go: false })
            || self.told == Told::Remove && matches!(self.held(), Held::Going { .. });
        self.elsewhere.clone().filter(|_| is_kept).map(Failure::Elsewhere)
    }

    fn status(&self) -> Option<&ExtensionStatus> {
        self.found.as_ref()?.common()
    }
}

impl Courier {
    /// Takes the next step, and says what the hub should hear.
    pub(super) async fn hand_over<E>(
        &self,
        parcel: Parcel<'_, E>,
        desk: &Desk<'_, E>,
        wanted: impl Fn(Freight<'_>) -> Option<E>,
        before: Before<'_>,
    ) -> Result<Outcome, Failure>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let deleting = parcel.told == Told::Remove;
        let now = Timestamp::now();
        // In grace the hub speaks, and would say its own again.
        let is_heard = !before.is_deleted || deleting;
        let failed = |problem: &Problem| Outcome {
            report: is_heard.then(|| report::failed(problem, deleting, before.last_operation, now)),
            removed: None,
        };
        let strange = parcel.is_strange().filter(|_| matches!(parcel.told, Told::Keep | Told::Remove));
        if strange.is_some() && deleting && parcel.forgets {
            let report = report::let_be("it was left alone, and so was its data", now);
            return Ok(Outcome { report: Some(report), removed: None });
        }
        let stepped = match strange {
            Some(strange) => Err(strange),
            None => self.step(&parcel, desk, wanted).await,
        };
        match stepped {
            Ok(None) => {}
            Ok(Some(problem)) => return Ok(failed(&problem)),
            Err(failure) if failure.passes() => return Err(failure),
            Err(failure) => {
                // The hub's status is where people look.
                let problem = match &failure {
                    Failure::Foreign { .. } => Problem::of_configuration(chain(&failure)),
                    Failure::Elsewhere(problem) => problem.clone(),
                    Failure::Api { .. } | Failure::Unanswered { .. } => {
                        Problem { description: chain(&failure), codes: Vec::new() }
                    }
                };
                tracing::warn!(name = parcel.name, error = problem.description, "could not be carried down");
                return Ok(failed(&problem));
            }
        }
        // As it is after the step.
        let parcel = Parcel { found: desk.known.get(parcel.name), ..parcel };
        let outcome = match (parcel.told, parcel.held()) {
            (Told::Keep, Held::Live { let_go: false }) if !before.is_deleted => {
                let metadata = parcel.found.as_ref().map(|found| found.meta().clone()).unwrap_or_default();
                let kept =
                    report::kept(&metadata, parcel.status(), before.generation, before.last_operation, now);
                // Most are taken up and done at once: one word less for the hub.
                let made = metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
                let is_fresh = before.last_operation.is_none() && now.duration_since(made) < TAKE_UP;
                Outcome { report: (!is_fresh || kept.is_settled()).then_some(kept), removed: None }
            }
            (Told::Remove, Held::Going { .. }) => {
                Outcome { report: report::going(parcel.status()), removed: report::removed(parcel.status()) }
            }
            (Told::Remove, Held::Done { gone: true }) => {
                let (report, removed) = report::gone(parcel.status(), now);
                info!(name = parcel.name, objects = removed.objects, bytes = removed.bytes, "removed");
                Outcome { report: Some(report), removed: Some(removed) }
            }
            _ => Outcome::default(),
        };
        Ok(outcome)
    }

    /// `Some`: why it could not be taken, for a person to put right.
    async fn step<E>(
        &self,
        parcel: &Parcel<'_, E>,
        desk: &Desk<'_, E>,
        wanted: impl Fn(Freight<'_>) -> Option<E>,
    ) -> Result<Option<Problem>, Failure>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let ordered = matches!(parcel.told, Told::Keep | Told::Remove);
        if parcel.found.as_ref().is_some_and(|found| !carried::is_ours(found.meta())) {
            return Ok(None);
        }
        let held = parcel.held();
        let step = next(parcel.told, held);
        // New keys are needed most by what cannot go without them.
        let digest = match (&parcel.credentials, held) {
            (Some(Ok(credentials)), _) if ordered && !matches!(held, Held::Done { .. }) => {
                let labels = [(keys::CARRIED_FOR, self.settings.seed.as_str())];
                keep_secret(&self.secrets(), &parcel.secret, &labels, credentials).await?;
                Some(digest_of(credentials))
            }
            // Without the hub's, a copy that is there does as well: it goes with what is here.
            (Some(Err(problem)), Held::Absent) if step == Step::Apply && !parcel.forgets => {
                if self.member.secrets.get(&parcel.secret).is_none() {
                    return Ok(Some(problem.clone()));
                }
                None
            }
            _ => None,
        };
        let digest = digest.unwrap_or_else(|| {
            let found =
                parcel.found.as_ref().and_then(|found| found.annotations().get(keys::CREDENTIALS_DIGEST));
            found.cloned().unwrap_or_default()
        });
        let wanted = wanted(Freight {
            seed: &self.settings.seed,
            namespace: &self.settings.garden_namespace,
            digest: &digest,
        });
        match (step, &parcel.found) {
            (Step::Apply, found) => {
                if let Some(wanted) = wanted {
                    self.apply(desk, found.as_deref(), wanted).await?;
                }
            }
            (Step::Delete, Some(found)) => {
                let has_data = held == Held::Live { let_go: false };
                if has_data && parcel.waits {
                    return Ok(None);
                }
                if let Some(wanted) = wanted.filter(|_| has_data) {
                    self.apply(desk, Some(found), wanted).await?;
                }
                let found = desk.known.get(parcel.name).unwrap_or_else(|| Arc::clone(found));
                desk.annotate(&found, json!({keys::CONFIRM_DELETION: "true"})).await?;
                info!(name = parcel.name, kind = %E::kind(&()), "to be removed");
                desk.delete(&found).await?;
            }
            (Step::LetGo, Some(found)) => {
                info!(name = parcel.name, kind = %E::kind(&()), "given up: somebody else has it in hand");
                let asked = json!({
                    keys::OPERATION: MIGRATE,
                    keys::OPERATION_TIMESTAMP: Timestamp::now().to_string(),
                });
                desk.annotate(found, asked).await?;
            }
            (Step::Release, Some(found)) => self.release(parcel, desk, found).await?,
            // Its spec is frozen; what people annotate meanwhile, and new keys, must reach it.
            (Step::Leave, Some(found))
                if parcel.told == Told::Remove && matches!(held, Held::Going { .. }) =>
            {
                self.pass_on(desk, found, wanted).await?;
            }
            _ => {}
        }
        Ok(None)
    }

    async fn apply<E>(&self, desk: &Desk<'_, E>, found: Option<&E>, mut wanted: E) -> Result<(), Failure>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let differs = found
            .is_none_or(|found| found.wants_else(&wanted) || carried::lacks(found.meta(), wanted.meta()));
        if differs {
            if found.is_none() {
                // What somebody else made a moment ago the watch may not show yet.
                desk.ensure_ours(&wanted.name_any()).await?;
            }
            carried::ask_to_reconcile(wanted.meta_mut(), Timestamp::now());
            desk.apply(&wanted).await?;
        }
        Ok(())
    }

    async fn pass_on<E>(&self, desk: &Desk<'_, E>, found: &E, wanted: Option<E>) -> Result<(), Failure>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        let Some(mut wanted) = wanted else { return Ok(()) };
        wanted.meta_mut().finalizers = None;
        if carried::lacks(found.meta(), wanted.meta()) {
            carried::ask_to_reconcile(wanted.meta_mut(), Timestamp::now());
            // Leave is for the hub's object that it is labelled for, which may have come back with another UID.
            let metadata = json!({"labels": wanted.labels(), "annotations": wanted.annotations()});
            desk.patch(found, metadata, json!({})).await?;
        }
        Ok(())
    }

    /// Its Secret first: what refers to it is the one reason to keep that.
    async fn release<E>(&self, parcel: &Parcel<'_, E>, desk: &Desk<'_, E>, found: &E) -> Result<(), Failure>
    where
        E: Extension + Resource<DynamicType = ()> + Clone + Debug,
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        if let Some(secret) = self.member.secrets.get(&parcel.secret) {
            self.secrets().delete(&secret).await?;
        }
        let others: Vec<&String> =
            found.finalizers().iter().filter(|f| *f != keys::GARDEN_FINALIZER).collect();
        if others.len() < found.finalizers().len() {
            desk.patch(found, json!({"finalizers": others}), json!({})).await?;
        }
        Ok(())
    }

    fn secrets(&self) -> Desk<'_, Secret> {
        Desk {
            api: kube::Api::namespaced(self.clients.call.clone(), &self.settings.garden_namespace),
            known: &self.member.secrets,
        }
    }
}

/// Ten hexadecimal digits: enough to notice other keys, too few to be worth anything.
pub fn digest_of(credentials: &Credentials) -> String {
    let mut all = Vec::new();
    for (key, value) in credentials {
        for part in [key.as_bytes(), value.as_slice()] {
            all.extend(part.len().to_be_bytes());
            all.extend(part);
        }
    }
    digest(&SHA256, &all).as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}
