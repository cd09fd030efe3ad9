//! Reads an object of either kind into the values that core decides on.

use berth_api::keys;
use berth_garden_core::operation::{ObservedOperation, OperationAnnotation, OperationView};
use jiff::Timestamp;

use super::task::{Actuator, requested_at};

/// `not_before`: when it may be tried again, if it failed in this process.
pub fn view<K: Actuator>(object: &K, not_before: Option<Timestamp>) -> OperationView {
    let status = object.common();
    let last = status.and_then(|status| status.last_operation.as_ref());
    OperationView {
        generation: object.meta().generation.unwrap_or_default(),
        observed_generation: status.and_then(|status| status.observed_generation),
        is_deleted: object.meta().deletion_timestamp.is_some(),
        is_confirmed: object.annotation(keys::CONFIRM_DELETION) == Some("true"),
        request: object.annotation(keys::OPERATION).and_then(OperationAnnotation::parse),
        requested_at: requested_at(object),
        last: last.map(|last| ObservedOperation {
            operation: last.kind.executed(),
            state: last.state,
            at: last.last_update_time.0,
        }),
        not_before,
        resync: K::RESYNC,
    }
}
