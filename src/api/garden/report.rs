//! Reports of a member cluster: what the status of the hub's object should say.

use berth_api::keys;
use berth_garden_core::member::StatusProblem;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;

use super::member_objects::annotation;
use super::operation::{OperationState, OperationType};
use super::{Condition, LastError, LastOperation, Removed};
use crate::extensions::ExtensionStatus;

/// Gardener's codes (source: `pkg/apis/core/v1beta1`) that berth uses.
pub const CONFIGURATION_PROBLEM: &str = "ERR_CONFIGURATION_PROBLEM";
pub const UNAUTHORIZED: &str = "ERR_INFRA_UNAUTHORIZED";

/// What is reported to the hub.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberReport {
    pub last_operation: LastOperation,
    pub last_error: Option<LastError>,
    /// Generation of the hub's object, if the operation succeeded.
    pub observed_generation: Option<i64>,
}

impl MemberReport {
    /// No operation is under way.
    pub fn is_settled(&self) -> bool {
        self.last_operation.state != OperationState::Processing
    }
}

/// Has the executor done all that was asked for (source: Gardener's
/// `pkg/utils/kubernetes/health/extensions.go`)?
pub fn is_healthy(metadata: &ObjectMeta, status: &ExtensionStatus) -> bool {
    let Some(last) = &status.last_operation else { return false };
    // Some clients write it in whole seconds.
    let asked = annotation(metadata, keys::OPERATION_TIMESTAMP).and_then(|at| at.parse::<Timestamp>().ok());
    let is_late = asked.is_some_and(|at| at.as_second() > last.last_update_time.0.as_second());
    status.last_error.is_none()
        && status.observed_generation == metadata.generation
        && annotation(metadata, keys::OPERATION).is_none()
        && last.state == OperationState::Succeeded
        && !is_late
}

/// Report of an object that is kept. `generation`: of the hub's object. `before`: what the hub's
/// status says now.
pub fn kept(
    metadata: &ObjectMeta,
    status: Option<&ExtensionStatus>,
    generation: Option<i64>,
    before: Option<&LastOperation>,
    now: Timestamp,
) -> MemberReport {
    let waiting = |description: &str| MemberReport {
        last_operation: LastOperation {
            description: description.to_owned(),
            last_update_time: Time(now),
            progress: 0,
            state: OperationState::Processing,
            kind: kind_of(before, OperationState::Processing),
        },
        last_error: None,
        observed_generation: None,
    };
    let Some((status, last)) = status.and_then(|s| Some((s, s.last_operation.as_ref()?))) else {
        return waiting("handed to the member cluster; no controller has taken it up yet");
    };
    if is_healthy(metadata, status) {
        return MemberReport {
            last_operation: LastOperation { kind: kind_of(before, last.state), ..last.clone() },
            last_error: None,
            observed_generation: generation,
        };
    }
    let is_old = status.observed_generation != metadata.generation;
    if last.state == OperationState::Succeeded && status.last_error.is_none() || is_old {
        return waiting("handed to the member cluster");
    }
    MemberReport {
        last_operation: LastOperation { kind: kind_of(before, last.state), ..last.clone() },
        last_error: status.last_error.clone(),
        observed_generation: None,
    }
}

/// Report of an object that is being removed; `None`: nothing new.
pub fn going(status: Option<&ExtensionStatus>) -> Option<MemberReport> {
    let status = status?;
    let last = status.last_operation.as_ref().filter(|op| op.kind == OperationType::Delete)?;
    // Success is reported once the executor has removed its finalizer, because only then it is
    // certain.
    let last = match last.state {
        OperationState::Succeeded => return None,
        _ => last.clone(),
    };
    Some(MemberReport {
        last_operation: last,
        last_error: status.last_error.clone(),
        observed_generation: None,
    })
}

/// Report of an object whose data is gone.
pub fn gone(status: Option<&ExtensionStatus>, now: Timestamp) -> MemberReport {
    let last = status.and_then(|s| s.last_operation.as_ref());
    let last_operation = LastOperation {
        description: last.map_or_else(|| "removed".to_owned(), |op| op.description.clone()),
        last_update_time: last.map_or(Time(now), |op| op.last_update_time.clone()),
        progress: 100,
        state: OperationState::Succeeded,
        kind: OperationType::Delete,
    };
    MemberReport { last_operation, last_error: None, observed_generation: None }
}

/// Report of an object that may be forgotten, and whose place in the member a foreign object has.
pub fn let_be(description: &str, now: Timestamp) -> MemberReport {
    let last_operation = LastOperation {
        description: description.to_owned(),
        last_update_time: Time(now),
        progress: 100,
        state: OperationState::Succeeded,
        kind: OperationType::Delete,
    };
    MemberReport { last_operation, last_error: None, observed_generation: None }
}

/// Report of an entry that moves to another cluster. `running`: backups that still write there.
/// `generation`: of the hub's object.
pub fn leaving(running: usize, generation: Option<i64>, now: Timestamp) -> MemberReport {
    let (state, progress, description) = match running {
        0 => (OperationState::Succeeded, 100, "this cluster writes there no more".to_owned()),
        1 => (OperationState::Processing, 50, "it is read-only here, and 1 backup still runs".to_owned()),
        many => {
            (OperationState::Processing, 50, format!("it is read-only here, and {many} backups still run"))
        }
    };
    let last_operation = LastOperation {
        description,
        last_update_time: Time(now),
        progress,
        state,
        kind: OperationType::Migrate,
    };
    let observed_generation = generation.filter(|_| state == OperationState::Succeeded);
    MemberReport { last_operation, last_error: None, observed_generation }
}

/// Report of an entry that should move while this cluster cannot be kept from writing.
pub fn stays(problem: &StatusProblem, now: Timestamp) -> MemberReport {
    let failed = failed(problem, false, None, now);
    let last_operation = LastOperation { kind: OperationType::Migrate, ..failed.last_operation };
    MemberReport { last_operation, ..failed }
}

/// What was removed from the store so far.
pub fn removed(status: Option<&ExtensionStatus>) -> Option<Removed> {
    let told: &Value = status?.provider_status.as_ref()?;
    serde_json::from_value(told.clone()).ok()
}

/// Until when, at least, the store keeps what is left. `None`: nothing is locked, or the end is
/// unknown.
pub fn locked_until(status: Option<&ExtensionStatus>) -> Option<Time> {
    let told = status?.provider_status.as_ref()?.get("retainedUntil")?;
    serde_json::from_value(told.clone()).ok()
}

/// Report of an object that could not be written to the member.
pub fn failed(
    problem: &StatusProblem,
    deleting: bool,
    before: Option<&LastOperation>,
    now: Timestamp,
) -> MemberReport {
    let kind = if deleting { OperationType::Delete } else { kind_of(before, OperationState::Error) };
    MemberReport {
        last_operation: LastOperation {
            description: problem.description.clone(),
            last_update_time: Time(now),
            progress: 50,
            state: OperationState::Error,
            kind,
        },
        last_error: Some(LastError {
            description: problem.description.clone(),
            codes: codes(problem),
            last_update_time: Some(Time(now)),
            ..LastError::default()
        }),
        observed_generation: None,
    }
}

fn codes(problem: &StatusProblem) -> Vec<String> {
    problem.is_configuration.then(|| CONFIGURATION_PROBLEM.to_owned()).into_iter().collect()
}

/// Create until it has succeeded; then Reconcile.
fn kind_of(before: Option<&LastOperation>, state: OperationState) -> OperationType {
    match before {
        None => OperationType::Create,
        Some(op) if op.kind != OperationType::Create => OperationType::Reconcile,
        Some(op) if op.state == OperationState::Succeeded && state != op.state => OperationType::Reconcile,
        Some(_) => OperationType::Create,
    }
}

/// Does the report say the same as the status, except for times?
pub fn says_the_same(a: &MemberReport, last: Option<&LastOperation>, error: Option<&LastError>) -> bool {
    let operation = last.is_some_and(|b| {
        let a = &a.last_operation;
        (&a.description, a.progress, a.state, a.kind) == (&b.description, b.progress, b.state, b.kind)
    });
    let words = |error: Option<&LastError>| error.map(|e| (e.description.clone(), e.codes.clone()));
    operation && words(a.last_error.as_ref()) == words(error)
}

/// `conditions` with `wanted` in its place; `None`: they say so already. The time of transition
/// changes with the status.
pub fn with_condition(conditions: &[Condition], mut wanted: Condition) -> Option<Vec<Condition>> {
    let found = conditions.iter().position(|c| c.kind == wanted.kind);
    let mut all = conditions.to_vec();
    match found.and_then(|i| all.get_mut(i)) {
        None => all.push(wanted),
        Some(old) => {
            let say =
                |c: &Condition| (c.status.clone(), c.reason.clone(), c.message.clone(), c.codes.clone());
            if say(old) == say(&wanted) {
                return None;
            }
            if old.status == wanted.status {
                wanted.last_transition_time = old.last_transition_time.clone();
            }
            *old = wanted;
        }
    }
    Some(all)
}

/// `conditions` without that of `kind`; `None`: there is none.
pub fn without_condition(conditions: &[Condition], kind: &str) -> Option<Vec<Condition>> {
    let left: Vec<_> = conditions.iter().filter(|condition| condition.kind != kind).cloned().collect();
    (left.len() < conditions.len()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn object(state: OperationState, observed: i64) -> (ObjectMeta, ExtensionStatus) {
        let last_operation = LastOperation {
            description: "made".into(),
            last_update_time: Time(NOW),
            progress: 100,
            state,
            kind: OperationType::Create,
        };
        let metadata = ObjectMeta { generation: Some(2), ..ObjectMeta::default() };
        let status = ExtensionStatus {
            last_operation: Some(last_operation),
            observed_generation: Some(observed),
            ..ExtensionStatus::default()
        };
        (metadata, status)
    }

    #[test]
    fn success_is_told_when_all_that_was_asked_for_is_done() {
        let (metadata, status) = object(OperationState::Succeeded, 2);
        let told = kept(&metadata, Some(&status), Some(7), None, NOW);
        assert_eq!(told.last_operation.state, OperationState::Succeeded);
        assert_eq!(told.observed_generation, Some(7));

        let told = |metadata: &ObjectMeta, status: &ExtensionStatus| {
            kept(metadata, Some(status), Some(7), None, NOW).last_operation.state
        };
        let (metadata, old) = object(OperationState::Succeeded, 1);
        assert_eq!(told(&metadata, &old), OperationState::Processing, "not of this generation");
        let mut asked = metadata.clone();
        asked.annotations = Some([(keys::OPERATION.to_owned(), "reconcile".to_owned())].into());
        assert_eq!(told(&asked, &status), OperationState::Processing, "asked for, and not taken up");
        let mut late = metadata.clone();
        let after = NOW + jiff::SignedDuration::from_secs(1);
        late.annotations = Some([(keys::OPERATION_TIMESTAMP.to_owned(), after.to_string())].into());
        assert_eq!(told(&late, &status), OperationState::Processing, "from before it was asked for");
    }

    #[test]
    fn a_fault_goes_up_with_its_codes() {
        let (metadata, mut status) = object(OperationState::Error, 2);
        let error = LastError { description: "no".into(), codes: vec!["X".into()], ..LastError::default() };
        status.last_error = Some(error.clone());
        let told = kept(&metadata, Some(&status), Some(7), None, NOW);
        assert_eq!((told.last_operation.state, told.last_error), (OperationState::Error, Some(error)));
        assert_eq!(told.observed_generation, None);
    }

    #[test]
    fn what_is_going_is_told_and_that_it_is_gone_only_when_it_is() {
        let (_, status) = object(OperationState::Pending, 2);
        assert_eq!(going(Some(&status)), None, "that is about something else");
        let of = |state| {
            let (_, mut status) = object(state, 2);
            status.last_operation.as_mut().unwrap().kind = OperationType::Delete;
            status.provider_status = Some(serde_json::json!({"objects": 3, "bytes": 4}));
            status
        };
        let pending = going(Some(&of(OperationState::Pending))).unwrap();
        assert_eq!(pending.last_operation.state, OperationState::Pending);
        assert_eq!(going(Some(&of(OperationState::Succeeded))), None);
        let status = of(OperationState::Succeeded);
        assert_eq!(gone(Some(&status), NOW).last_operation.progress, 100);
        assert_eq!(removed(Some(&status)), Some(Removed { objects: 3, bytes: 4 }));
    }

    #[test]
    fn a_lock_is_told_with_its_date() {
        let told = |provider_status: Value| {
            let status =
                ExtensionStatus { provider_status: Some(provider_status), ..ExtensionStatus::default() };
            locked_until(Some(&status)).map(|time| time.0.as_second())
        };
        assert_eq!(told(serde_json::json!({"retainedUntil": "1970-01-01T00:01:00Z"})), Some(60));
        for other in [serde_json::json!({"retainedUntil": null}), serde_json::json!({}), Value::Null] {
            assert_eq!(told(other.clone()), None, "{other}");
        }
        assert_eq!(locked_until(None), None);
    }

    #[test]
    fn an_entry_is_let_go_when_nothing_writes_there() {
        let told = leaving(2, Some(3), NOW);
        assert_eq!((told.last_operation.state, told.observed_generation), (OperationState::Processing, None));
        assert!(told.last_operation.description.contains("2 backups"), "{told:?}");
        let told = leaving(0, Some(3), NOW);
        assert_eq!(
            (told.last_operation.state, told.observed_generation),
            (OperationState::Succeeded, Some(3))
        );
        let told = stays(&StatusProblem::of_configuration("no"), NOW);
        assert_eq!((told.last_operation.state, told.observed_generation), (OperationState::Error, None));
        assert_eq!(told.last_operation.kind, OperationType::Migrate);
    }

    #[test]
    fn conditions_change_their_time_with_their_status() {
        let condition = |status: &str, message: &str, at: i64| Condition {
            kind: "LocationAvailable".into(),
            status: status.into(),
            last_transition_time: Time(Timestamp::from_second(at).unwrap()),
            last_update_time: Time(Timestamp::from_second(at).unwrap()),
            reason: "R".into(),
            message: message.into(),
            codes: Vec::new(),
        };
        let had = [condition("True", "a", 1)];
        assert_eq!(with_condition(&had, condition("True", "a", 9)), None);
        let told = with_condition(&had, condition("True", "b", 9)).unwrap();
        assert_eq!(told[0].last_transition_time, had[0].last_transition_time);
        let told = with_condition(&had, condition("False", "b", 9)).unwrap();
        assert_eq!(told[0].last_transition_time.0.as_second(), 9);

        let other = Condition { kind: "LegacyLocation".into(), ..condition("True", "c", 9) };
        let both = with_condition(&had, other.clone()).unwrap();
        assert_eq!(both, [had[0].clone(), other.clone()], "none displaces another");
        assert_eq!(without_condition(&both, "LegacyLocation"), Some(had.to_vec()));
        assert_eq!(without_condition(&had, "LegacyLocation"), None);
    }
}
