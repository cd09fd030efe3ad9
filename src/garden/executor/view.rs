//! An object of either kind, as core decides on it.

use berth_api::garden::operation::{OperationState, OperationType};
use berth_api::keys;
use berth_core::garden::operation::{Last, Operation, Request, State, View};
use jiff::Timestamp;

use super::task::{Extension, requested_at};

/// `not_before`: when it may be tried again, if it failed here.
pub fn view<K: Extension>(object: &K, not_before: Option<Timestamp>) -> View {
    let status = object.status();
    let last = status.and_then(|status| status.last_operation.as_ref());
    View {
        generation: object.meta().generation.unwrap_or_default(),
        observed_generation: status.and_then(|status| status.observed_generation),
        is_deleted: object.meta().deletion_timestamp.is_some(),
        is_confirmed: object.annotation(keys::CONFIRM_DELETION) == Some("true"),
        request: object.annotation(keys::OPERATION).and_then(Request::parse),
        requested_at: requested_at(object),
        last: last.map(|last| Last {
            operation: operation(last.kind),
            state: state(last.state),
            at: last.last_update_time.0,
        }),
        not_before,
        resync: K::RESYNC,
    }
}

fn operation(kind: OperationType) -> Operation {
    match kind {
        OperationType::Create => Operation::Create,
        OperationType::Reconcile => Operation::Reconcile,
        OperationType::Restore => Operation::Restore,
        OperationType::Migrate | OperationType::LiveMigrate => Operation::Migrate,
        OperationType::Delete => Operation::Delete,
    }
}

fn state(state: OperationState) -> State {
    match state {
        OperationState::Succeeded => State::Succeeded,
        OperationState::Processing | OperationState::Aborted => State::Unfinished,
        OperationState::Error => State::Error,
        OperationState::Failed => State::Failed,
        OperationState::Pending => State::Pending,
    }
}
