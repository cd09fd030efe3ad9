//! How many entries a bucket takes.

use std::collections::BTreeMap;

/// By provider of the store. A provider without one: any number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota(BTreeMap<String, u32>);

/// Why limits cannot be what they were said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    #[error("{0:?} is limited twice: say it once")]
    Twice(String),
    #[error(
        "the limit of {0:?} must be at least 1: to have no backups, leave spec.backup out of the profile"
    )]
    Zero(String),
}

impl Quota {
    /// # Errors
    /// When a provider has two limits, or one below 1.
    pub fn new(limits: impl IntoIterator<Item = (String, u32)>) -> Result<Self, QuotaError> {
        let mut quota = BTreeMap::new();
        for (provider, limit) in limits {
            if limit == 0 {
                return Err(QuotaError::Zero(provider));
            }
            if quota.insert(provider.clone(), limit).is_some() {
                return Err(QuotaError::Twice(provider));
            }
        }
        Ok(Self(quota))
    }

    pub fn limit(&self, provider: &str) -> Option<u32> {
        self.0.get(provider).copied()
    }
}

/// Places that are left of `limit`, with `used` taken.
pub fn room(limit: Option<u32>, used: usize) -> usize {
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(of: &[(&str, u32)]) -> Result<Quota, QuotaError> {
        Quota::new(of.iter().map(|(provider, limit)| ((*provider).to_owned(), *limit)))
    }

    #[test]
    fn a_limit_is_said_once_and_leaves_room() {
        let quota = limits(&[("aws", 100), ("azure", 80)]).unwrap();
        assert_eq!((quota.limit("aws"), quota.limit("gcp")), (Some(100), None));
        assert_eq!(limits(&[("aws", 1), ("aws", 1)]), Err(QuotaError::Twice("aws".to_owned())));
        assert_eq!(limits(&[("aws", 0)]), Err(QuotaError::Zero("aws".to_owned())));
    }

    #[test]
    fn room_is_never_less_than_none() {
        assert_eq!((room(Some(3), 2), room(Some(3), 3), room(Some(3), 9)), (1, 0, 0));
        assert_eq!(room(None, 9), usize::MAX - 9);
    }
}
