//! What an object of Gardener's extensions API asks its controller to do, and when (source:
//! Gardener's `pkg/api/core/v1beta1/helper` and `pkg/utils/kubernetes/health`, for what a gardenlet
//! writes and waits for).

use jiff::{SignedDuration, Timestamp};

/// Type of an operation on a bucket or an entry, on the wire too. In the order in which the
/// executor looks for what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationType {
    /// Let go, touching nothing: another cluster takes over.
    Migrate,
    /// As `Migrate`. The executor reports no operation of this type.
    LiveMigrate,
    Delete,
    /// Taken over from another cluster.
    Restore,
    Create,
    Reconcile,
}

impl OperationType {
    pub const ALL: [Self; 6] =
        [Self::Create, Self::Reconcile, Self::Delete, Self::Migrate, Self::Restore, Self::LiveMigrate];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Reconcile => "Reconcile",
            Self::Delete => "Delete",
            Self::Migrate => "Migrate",
            Self::Restore => "Restore",
            Self::LiveMigrate => "LiveMigrate",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// The operation that the executor does for it.
    pub fn executed(self) -> Self {
        if self == Self::LiveMigrate { Self::Migrate } else { self }
    }
}

/// State of an operation, on the wire too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationState {
    /// Under way, unless the process that did it is gone.
    Processing,
    Succeeded,
    /// Is tried again.
    Error,
    /// Is not tried again before something changes.
    Failed,
    /// Waits for a time, or for a permit.
    Pending,
    Aborted,
}

impl OperationState {
    pub const ALL: [Self; 6] =
        [Self::Processing, Self::Succeeded, Self::Error, Self::Failed, Self::Pending, Self::Aborted];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "Processing",
            Self::Succeeded => "Succeeded",
            Self::Error => "Error",
            Self::Failed => "Failed",
            Self::Pending => "Pending",
            Self::Aborted => "Aborted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

/// `status.lastOperation`, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReport {
    pub kind: OperationType,
    pub state: OperationState,
    /// For people.
    pub description: String,
}

impl OperationReport {
    pub fn is(&self, kind: OperationType, state: OperationState) -> bool {
        self.kind == kind && self.state == state
    }
}

/// Value of the annotation `gardener.cloud/operation`. Others are not for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAnnotation {
    Reconcile,
    Migrate,
    Restore,
    /// Its state is still being written: not to be touched before it is to be restored.
    WaitForState,
}

impl OperationAnnotation {
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "reconcile" => Some(Self::Reconcile),
            "migrate" => Some(Self::Migrate),
            "restore" => Some(Self::Restore),
            "wait-for-state" => Some(Self::WaitForState),
            _ => None,
        }
    }
}

/// `status.lastOperation` of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedOperation {
    pub operation: OperationType,
    pub state: OperationState,
    pub at: Timestamp,
}

/// An object, as far as this goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationView {
    pub generation: i64,
    pub observed_generation: Option<i64>,
    pub is_deleted: bool,
    /// Besides the deletion, its removal was confirmed.
    pub is_confirmed: bool,
    pub request: Option<OperationAnnotation>,
    /// When something was last asked for.
    pub requested_at: Option<Timestamp>,
    pub last: Option<ObservedOperation>,
    /// When an operation that failed or waits is to be tried again. Absent: now.
    pub not_before: Option<Timestamp>,
    /// How often an object is reconciled that is as it should be. Absent: never.
    pub resync: Option<SignedDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextOperation {
    Do(OperationType),
    /// It is deleted, and that is not confirmed: its data stays.
    Unconfirmed,
    /// Nothing, before that time or a change.
    Rest(Option<Timestamp>),
}

/// By how much the clock of a client may be ahead. A request from the future is done once, and not
/// again and again until this clock has reached its time.
pub const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What to do with it now.
pub fn next(view: &OperationView, now: Timestamp) -> NextOperation {
    let operation = operation(view);
    if operation == OperationType::Delete && !view.is_confirmed {
        return NextOperation::Unconfirmed;
    }
    if view.request == Some(OperationAnnotation::WaitForState) && !view.is_deleted {
        return NextOperation::Rest(None);
    }
    let Some(last) = view.last else { return NextOperation::Do(operation) };
    let is_asked = view.request.is_some()
        || view.observed_generation != Some(view.generation)
        || view.requested_at.is_some_and(|at| is_newer(at, last.at, now));
    let is_let_go = last.operation == OperationType::Migrate && last.state == OperationState::Succeeded;
    if is_let_go && !matches!(operation, OperationType::Migrate | OperationType::Restore) {
        return NextOperation::Rest(None);
    }
    if is_asked || last.operation != operation && operation != OperationType::Reconcile {
        return NextOperation::Do(operation);
    }
    match last.state {
        OperationState::Processing | OperationState::Aborted => NextOperation::Do(operation),
        OperationState::Error | OperationState::Pending => match view.not_before.filter(|at| *at > now) {
            Some(at) => NextOperation::Rest(Some(at)),
            None => NextOperation::Do(operation),
        },
        OperationState::Failed => NextOperation::Rest(None),
        // Its data is gone and the object is still there: the executor died before it released it.
        OperationState::Succeeded if operation == OperationType::Delete => NextOperation::Do(operation),
        OperationState::Succeeded => {
            let due = view.resync.map(|every| last.at.saturating_add(every).unwrap_or(Timestamp::MAX));
            match due {
                Some(due) if due <= now => NextOperation::Do(operation),
                due => NextOperation::Rest(due),
            }
        }
    }
}

fn operation(view: &OperationView) -> OperationType {
    match (view.request, view.last) {
        (Some(OperationAnnotation::Migrate), _) => OperationType::Migrate,
        _ if view.is_deleted => OperationType::Delete,
        (Some(OperationAnnotation::Restore), _) => OperationType::Restore,
        (_, None) => OperationType::Create,
        (_, Some(last)) if last.state != OperationState::Succeeded => last.operation,
        _ => OperationType::Reconcile,
    }
}

/// Was it asked for after `done`? In whole seconds, as clients compare when they wait for it.
fn is_newer(asked: Timestamp, done: Timestamp, now: Timestamp) -> bool {
    asked.as_second() > done.as_second() && asked <= now.saturating_add(SKEW).unwrap_or(Timestamp::MAX)
}

/// Time of an operation that ends now. Not before the time of the request, because a client that
/// waits for it would wait on.
pub fn done_at(requested_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
    requested_at.filter(|at| is_newer(*at, now, now)).unwrap_or(now)
}

/// Pause after so many failures.
pub fn pause(failures: u32) -> SignedDuration {
    const LONGEST: i64 = 300;
    let seconds = 2_i64.saturating_pow(failures.min(16)).min(LONGEST);
    SignedDuration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn last(operation: OperationType, state: OperationState) -> Option<ObservedOperation> {
        Some(ObservedOperation { operation, state, at: at(100) })
    }

    fn well() -> OperationView {
        OperationView {
            generation: 1,
            observed_generation: Some(1),
            last: last(OperationType::Create, OperationState::Succeeded),
            ..OperationView::default()
        }
    }

    #[test]
    fn every_type_and_state_is_read_as_it_is_written() {
        for one in OperationType::ALL {
            assert_eq!(OperationType::parse(one.as_str()), Some(one));
        }
        for one in OperationState::ALL {
            assert_eq!(OperationState::parse(one.as_str()), Some(one));
        }
        assert_eq!(OperationType::parse("create"), None);
    }

    #[test]
    fn the_operation_is_found_in_gardeners_order() {
        use OperationType::{Create, Delete, Migrate, Reconcile, Restore};
        let deleted = OperationView { is_deleted: true, is_confirmed: true, ..well() };
        let table = [
            (OperationView { last: None, ..well() }, Create),
            (OperationView { request: Some(OperationAnnotation::Reconcile), ..well() }, Reconcile),
            (OperationView { generation: 2, ..well() }, Reconcile),
            (OperationView { last: last(Create, OperationState::Processing), ..well() }, Create),
            (OperationView { last: last(Restore, OperationState::Error), ..well() }, Restore),
            (OperationView { request: Some(OperationAnnotation::Restore), ..well() }, Restore),
            (OperationView { last: None, request: Some(OperationAnnotation::Restore), ..well() }, Restore),
            (OperationView { request: Some(OperationAnnotation::Migrate), ..deleted }, Migrate),
            (OperationView { request: Some(OperationAnnotation::Restore), ..deleted }, Delete),
            (OperationView { request: Some(OperationAnnotation::WaitForState), ..deleted }, Delete),
            (deleted, Delete),
            (OperationView { last: last(Migrate, OperationState::Processing), ..well() }, Migrate),
            (
                OperationView {
                    last: last(Migrate, OperationState::Succeeded),
                    request: Some(OperationAnnotation::Restore),
                    ..well()
                },
                Restore,
            ),
        ];
        for (view, operation) in table {
            assert_eq!(next(&view, at(101)), NextOperation::Do(operation), "{view:?}");
        }
    }

    #[test]
    fn what_is_well_rests() {
        assert_eq!(next(&well(), at(101)), NextOperation::Rest(None));
        let resync = Some(SignedDuration::from_secs(50));
        assert_eq!(next(&OperationView { resync, ..well() }, at(101)), NextOperation::Rest(Some(at(150))));
        assert_eq!(
            next(&OperationView { resync, ..well() }, at(150)),
            NextOperation::Do(OperationType::Reconcile)
        );
        assert_eq!(
            next(&OperationView { request: Some(OperationAnnotation::WaitForState), ..well() }, at(101)),
            NextOperation::Rest(None)
        );
        assert_eq!(
            next(
                &OperationView { last: None, request: Some(OperationAnnotation::WaitForState), ..well() },
                at(101)
            ),
            NextOperation::Rest(None),
            "not before its state is there"
        );
    }

    #[test]
    fn what_was_let_go_is_left_alone() {
        let gone = OperationView { last: last(OperationType::Migrate, OperationState::Succeeded), ..well() };
        for view in [
            gone,
            OperationView { generation: 2, ..gone },
            OperationView { request: Some(OperationAnnotation::Reconcile), ..gone },
        ] {
            assert_eq!(next(&view, at(101)), NextOperation::Rest(None), "{view:?}");
        }
        let deleted = OperationView { is_deleted: true, is_confirmed: true, ..gone };
        assert_eq!(next(&deleted, at(101)), NextOperation::Rest(None), "its data is somebody else's now");
    }

    #[test]
    fn data_goes_only_when_somebody_said_so() {
        let deleted = OperationView { is_deleted: true, ..well() };
        assert_eq!(next(&deleted, at(101)), NextOperation::Unconfirmed);
        let confirmed = OperationView { is_confirmed: true, ..deleted };
        assert_eq!(next(&confirmed, at(101)), NextOperation::Do(OperationType::Delete));
        let removed =
            OperationView { last: last(OperationType::Delete, OperationState::Succeeded), ..confirmed };
        assert_eq!(
            next(&removed, at(101)),
            NextOperation::Do(OperationType::Delete),
            "it is still to be let go of"
        );
    }

    #[test]
    fn failures_are_tried_again_in_time_and_final_ones_on_a_change() {
        let failed = OperationView {
            last: last(OperationType::Reconcile, OperationState::Error),
            not_before: Some(at(200)),
            ..well()
        };
        assert_eq!(next(&failed, at(150)), NextOperation::Rest(Some(at(200))));
        assert_eq!(next(&failed, at(200)), NextOperation::Do(OperationType::Reconcile));
        assert_eq!(
            next(&OperationView { request: Some(OperationAnnotation::Reconcile), ..failed }, at(150)),
            NextOperation::Do(OperationType::Reconcile)
        );
        let over = OperationView { last: last(OperationType::Create, OperationState::Failed), ..well() };
        assert_eq!(next(&over, at(9_999)), NextOperation::Rest(None));
        assert_eq!(
            next(&OperationView { generation: 2, ..over }, at(150)),
            NextOperation::Do(OperationType::Create)
        );
        let deleted = OperationView { is_deleted: true, is_confirmed: true, ..over };
        assert_eq!(
            next(&deleted, at(150)),
            NextOperation::Do(OperationType::Delete),
            "what failed can still go"
        );
    }

    #[test]
    fn whoever_asks_is_answered_even_if_the_clocks_differ() {
        let asked = |second| OperationView { requested_at: Some(at(second)), ..well() };
        assert_eq!(
            next(&asked(100), at(101)),
            NextOperation::Rest(None),
            "within the same second it is done"
        );
        assert_eq!(next(&asked(101), at(101)), NextOperation::Do(OperationType::Reconcile));
        assert_eq!(
            next(&asked(160), at(101)),
            NextOperation::Do(OperationType::Reconcile),
            "their clock is ahead"
        );
        assert_eq!(done_at(Some(at(160)), at(101)), at(160));
        let done = OperationView {
            last: Some(ObservedOperation {
                at: at(160),
                ..last(OperationType::Create, OperationState::Succeeded).unwrap()
            }),
            ..asked(160)
        };
        assert_eq!(next(&done, at(102)), NextOperation::Rest(None), "and once is enough");
        assert_eq!(next(&asked(100_000), at(101)), NextOperation::Rest(None), "that is no clock");
        assert_eq!(done_at(Some(at(100_000)), at(101)), at(101));
    }

    #[test]
    fn pauses_grow_to_five_minutes() {
        let all: Vec<i64> = [0, 1, 2, 8, 9, 40].map(pause).map(|p| p.as_secs()).into();
        assert_eq!(all, [1, 2, 4, 256, 300, 300]);
    }
}
