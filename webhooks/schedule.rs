//! Schedules at admission: every fault of the expression and of the template in one answer, before
//! a night without a backup shows it. Who creates one is told its next few times, and which of them
//! meet what other Schedules take.

use std::collections::BTreeMap;

use berth_api::place::QueueFields;
use berth_api::velero::schedule::{
    SCHEDULE_ANNOTATIONS, ScheduleAnnotations, check_expression, check_name, history_of,
};
use berth_api::velero::{BackupSpec, Schedule};
use berth_core::cron::Cron;
use berth_core::guard::{Roles, ScheduleChange, judge_schedule};
use berth_core::limits;
use berth_core::schedule::preview::{NEAR, Others, Preview, TIMES, preview};
use berth_core::violation::{Field, Violations, tellable};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::backup::{check, status, told};
use crate::listers::Listers;
use crate::review::{AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

/// How many other Schedules that are met are told by name.
const TOLD: usize = 5;

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// The parts of a Schedule that are judged.
#[derive(Default, Deserialize)]
struct IncomingSchedule<'a> {
    #[serde(default)]
    metadata: ScheduleMetadata,
    #[serde(default)]
    spec: IncomingScheduleSpec,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct ScheduleMetadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IncomingScheduleSpec {
    #[serde(default)]
    schedule: String,
    #[serde(default)]
    template: BackupSpec,
    #[serde(default)]
    paused: Option<bool>,
    #[serde(default)]
    use_owner_references_in_backup: Option<bool>,
}

impl<'a> IncomingSchedule<'a> {
    fn parse(object: &'a RawValue) -> Result<Self, ReviewError> {
        Ok(serde_json::from_str(object.get())?)
    }

    /// What its Backups have.
    fn source(&self) -> QueueFields<'_> {
        let template = self.spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        QueueFields {
            labels: template.or(self.metadata.labels.as_ref()).unwrap_or(&NONE),
            annotations: self.annotations(),
            spec: &self.spec.template,
        }
    }

    fn annotations(&self) -> &BTreeMap<String, String> {
        self.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    /// What is judged. Everything else of an admitted Schedule may change freely.
    fn judged(&self) -> impl PartialEq + '_ {
        let annotations = SCHEDULE_ANNOTATIONS.map(|key| self.annotations().get(key));
        let class = self.source().class().map(str::to_owned);
        (&self.spec.schedule, &self.spec.template, class, annotations)
    }

    fn owns(&self) -> bool {
        self.spec.use_owner_references_in_backup == Some(true)
    }

    /// What this write changes of that which not everybody may change who may write Schedules.
    fn change(&self, old: Option<&Self>) -> Result<ScheduleChange, ReviewError> {
        let after = status(self.status)?;
        let before = old.map_or_else(|| Ok(json!({})), |old| status(old.status))?;
        let is_new = old.is_none() && after == json!({"phase": "New"});
        Ok(ScheduleChange {
            is_create: old.is_none(),
            status_changed: after != before && !is_new,
            status_lost: after == json!({}),
            owns_now: self.owns() && !old.is_some_and(Self::owns),
        })
    }

    /// Faults that lie in the Schedule alone.
    fn check(&self, size: usize) -> Violations {
        let mut found = Violations::default();
        check_expression(&self.spec.schedule, &mut found);
        check_name(self.metadata.name.as_deref().unwrap_or_default(), &mut found);
        ScheduleAnnotations::of(self.annotations(), &mut found);
        history_of(self.annotations(), &mut found);
        let most = limits::OBJECT;
        let message = format!(
            "the Schedule has {size} bytes and at most {most} are taken, because its Backups have its template: use several Schedules"
        );
        found.require(size <= most, &Field::root("spec"), message);
        let labels = self.metadata.labels.as_ref().unwrap_or(&NONE);
        let field = Field::root("metadata").child("labels");
        found.limit(labels.len(), limits::OWN_LABELS, &field, "use fewer, because its Backups have them");
        found
    }
}

/// Judges a write to a Schedule. What a controller writes to it, and what was there before, is not
/// judged again.
///
/// # Errors
/// When the object cannot be read.
pub async fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    if !request.is_write() {
        return Ok(ReviewVerdict::allow());
    }
    let object = request.object.ok_or(ReviewError::NoObject)?;
    let incoming = IncomingSchedule::parse(object)?;
    let old = request.old_object.map(IncomingSchedule::parse).transpose()?;
    // Whether the caller may delete Backups the policy asks the API server.
    let roles = Roles { deleter: true, ..state.roles(&request.user_info.username) };
    if let Err(refusal) = judge_schedule(roles, &incoming.change(old.as_ref())?) {
        let mut found = Violations::default();
        found.push(Field::root(refusal.field), refusal.message);
        return Ok(ReviewVerdict::refuse(RefusalReason::Forbidden, found));
    }
    let mut verdict = ReviewVerdict::allow();
    if old.as_ref().is_none_or(|old| old.judged() != incoming.judged()) {
        let mut found = incoming.check(object.get().len());
        let of_template = check(state, incoming.source()).await;
        found.append(of_template.found.moved("spec", "spec.template"));
        if !found.is_empty() {
            verdict = ReviewVerdict::refuse(RefusalReason::Invalid, found);
        }
        verdict.warnings = of_template.warnings;
        verdict.warnings.extend(told(&of_template.gaps.moved("spec", "spec.template")));
    }
    let times = |incoming: &IncomingSchedule<'_>| {
        (incoming.spec.schedule.clone(), incoming.spec.paused == Some(true))
    };
    let (text, is_paused) = times(&incoming);
    let is_told = verdict.refused.is_none() && old.is_none_or(|old| times(&old) != times(&incoming));
    if let Some(cron) = Cron::parse(&text).ok().filter(|_| is_told) {
        let now = state.now();
        let next = next_times(&cron, object, state.listers().schedules(), now);
        verdict.warnings.extend(tell(&cron, &next.times, is_paused));
        verdict.warnings.extend(tell_met(&next));
    }
    Ok(verdict)
}

/// The next times, and whom they meet as far as the other Schedules are known.
fn next_times(cron: &Cron, object: &RawValue, others: Option<Others>, now: Timestamp) -> Preview {
    let alone = || Preview { times: cron.upcoming(now, TIMES), ..Preview::default() };
    let Ok(mut schedule) = serde_json::from_str::<Schedule>(object.get()) else { return alone() };
    schedule.metadata.creation_timestamp.get_or_insert(Time(now));
    schedule.spec.paused = None;
    let Some(own) = schedule.planned() else { return alone() };
    preview(&own, &others.unwrap_or_default(), now)
}

/// What other Schedules take at nearly the same times.
fn tell_met(next: &Preview) -> Vec<String> {
    let mut told = Vec::new();
    for met in next.meets.iter().take(TOLD) {
        let at =
            if met.at.len() == next.times.len() { "each of these times".to_owned() } else { in_utc(&met.at) };
        told.push(format!(
            "berth: Schedule {}, which also takes {}, runs within {} minutes of {at}: one waits for the other",
            tellable(&met.schedule),
            tellable(&met.namespaces.join(", ")),
            NEAR.as_mins(),
        ));
    }
    let more = next.meets.len().saturating_sub(TOLD);
    if more > 0 {
        told.push(format!("berth: so do {more} other Schedules, at some of these times"));
    }
    if next.left_out > 0 {
        told.push(format!("berth: {} other Schedules were not compared: they are too many", next.left_out));
    }
    told
}

fn in_utc(times: &[Timestamp]) -> String {
    let in_utc = times.iter().map(|time| time.strftime("%F %T").to_string());
    format!("{} UTC", in_utc.collect::<Vec<_>>().join(", "))
}

/// The next few times, in UTC and in the zone of the expression.
fn tell(cron: &Cron, times: &[Timestamp], is_paused: bool) -> Vec<String> {
    if times.is_empty() {
        return vec!["berth: spec.schedule names no time within the next five years".to_owned()];
    }
    let when = if is_paused { "once it is not paused, at" } else { "at" };
    let mut told = vec![format!("berth: runs {when} {}", in_utc(times))];
    if let Some((name, zone)) = cron.zone().filter(|(name, _)| !matches!(*name, "" | "UTC" | "Local")) {
        let local = times.iter().map(|time| time.to_zoned(zone.clone()).strftime("%a %F %T").to_string());
        told.push(format!("berth: that is {} in {name}", local.collect::<Vec<_>>().join(", ")));
    }
    told
}
