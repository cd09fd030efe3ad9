//! Which results of an operation get an Event.

use berth_garden_api::LastError;
use berth_garden_core::operation::OperationType;

use super::outcome::ProviderStatus;
use crate::events::EventReason;
use crate::storage::bucket::StoreError;

/// The Event of an operation that has succeeded. `None`: nothing has changed.
pub fn event_reason(operation: OperationType, record: &ProviderStatus) -> Option<EventReason> {
    match operation {
        OperationType::Create | OperationType::Restore => Some(EventReason::Created),
        OperationType::Delete if record.forgotten.is_some() || record.name_taken == Some(true) => {
            Some(EventReason::DataLeft)
        }
        OperationType::Delete => Some(EventReason::Removed),
        OperationType::Reconcile | OperationType::Migrate | OperationType::LiveMigrate => None,
    }
}

/// Was this error reported already?
pub fn is_same(before: &LastError, error: &StoreError) -> bool {
    before.description == error.message && before.codes == [error.fault.code()]
}

#[cfg(test)]
mod tests {
    use berth_garden_core::fault::StoreFault;

    use super::*;

    #[test]
    fn a_failure_is_news_until_it_is_known() {
        let error = StoreError::new(StoreFault::RateLimited, "slow down");
        let before = |description: &str, code: &str| LastError {
            description: description.to_owned(),
            codes: vec![code.to_owned()],
            ..LastError::default()
        };
        assert!(is_same(&before("slow down", StoreFault::RateLimited.code()), &error));
        assert!(!is_same(&before("slow down", StoreFault::Unauthorized.code()), &error));
        assert!(!is_same(&before("no", StoreFault::RateLimited.code()), &error));
    }

    #[test]
    fn data_that_was_left_is_not_told_as_removed() {
        let (mut record, forgotten) = (ProviderStatus::default(), Some("given up".to_owned()));
        assert_eq!(event_reason(OperationType::Create, &record), Some(EventReason::Created));
        assert_eq!(event_reason(OperationType::Reconcile, &record), None);
        assert_eq!(event_reason(OperationType::Delete, &record), Some(EventReason::Removed));
        record.name_taken = Some(true);
        assert_eq!(
            event_reason(OperationType::Delete, &record),
            Some(EventReason::DataLeft),
            "it is somebody else's"
        );
        let record = ProviderStatus { forgotten, ..ProviderStatus::default() };
        assert_eq!(event_reason(OperationType::Delete, &record), Some(EventReason::DataLeft));
    }
}
