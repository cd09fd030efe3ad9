//! What of an operation people should hear.

use berth_api::garden::LastError;
use berth_core::garden::operation::Operation;

use super::outcome::Record;
use crate::events::What;
use crate::storage::bucket::StoreError;

/// What people should hear of what has succeeded. That all is still as it was is no news.
pub fn news(operation: Operation, record: &Record) -> Option<What> {
    match operation {
        Operation::Create | Operation::Restore => Some(What::Created),
        Operation::Delete if record.forgotten.is_some() || record.name_taken == Some(true) => {
            Some(What::DataLeft)
        }
        Operation::Delete => Some(What::Removed),
        Operation::Reconcile | Operation::Migrate => None,
    }
}

/// Whoever asks again and is told the same has told it already.
pub fn is_same(before: &LastError, error: &StoreError) -> bool {
    before.description == error.message && before.codes == [error.fault.code()]
}

#[cfg(test)]
mod tests {
    use berth_core::garden::fault::Fault;

    use super::*;

    #[test]
    fn a_failure_is_news_until_it_is_known() {
        let error = StoreError::new(Fault::RateLimited, "slow down");
        let before = |description: &str, code: &str| LastError {
            description: description.to_owned(),
            codes: vec![code.to_owned()],
            ..LastError::default()
        };
        assert!(is_same(&before("slow down", Fault::RateLimited.code()), &error));
        assert!(!is_same(&before("slow down", Fault::Unauthorized.code()), &error));
        assert!(!is_same(&before("no", Fault::RateLimited.code()), &error));
    }

    #[test]
    fn data_that_was_left_is_not_told_as_removed() {
        let (mut record, forgotten) = (Record::default(), Some("given up".to_owned()));
        assert_eq!(news(Operation::Create, &record), Some(What::Created));
        assert_eq!(news(Operation::Reconcile, &record), None);
        assert_eq!(news(Operation::Delete, &record), Some(What::Removed));
        record.name_taken = Some(true);
        assert_eq!(news(Operation::Delete, &record), Some(What::DataLeft), "it is somebody else's");
        let record = Record { forgotten, ..Record::default() };
        assert_eq!(news(Operation::Delete, &record), Some(What::DataLeft));
    }
}
