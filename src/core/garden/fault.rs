//! What a store's refusal means: whether to try again, and whether a person has to act. The codes
//! are Gardener's (source: `pkg/apis/core/v1beta1`), which statuses and tools use.

/// Why a store did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreFault {
    /// It does not know the keys.
    Unauthenticated,
    /// It knows them, and they may not do this.
    Unauthorized,
    /// No more buckets, or bytes.
    QuotaExceeded,
    RateLimited,
    /// It did not answer, or could not.
    Unavailable,
    /// Something in the object, its Secret or this cluster must be changed first.
    Configuration,
    /// A bucket of that name belongs to another account.
    NameTaken,
    /// It said so: there is no such bucket.
    NoSuchBucket,
    /// The bucket to be removed holds something.
    NotEmpty,
    /// This store does not know the call.
    NotImplemented,
}

impl StoreFault {
    /// Of an answer that is no success: its HTTP status, and the code in it, empty where there is
    /// none. Only a store that names the bucket as missing says that it is gone: a proxy's 404 does
    /// not.
    pub fn of(status: u16, code: &str) -> Self {
        match (status, code) {
            (_, "NoSuchBucket" | "ContainerNotFound") => Self::NoSuchBucket,
            (_, "BucketAlreadyExists") => Self::NameTaken,
            (_, "BucketNotEmpty") => Self::NotEmpty,
            (
                _,
                "TooManyBuckets"
                | "QuotaExceeded"
                | "InsufficientStorage"
                | "quotaExceeded"
                | "dailyLimitExceeded",
            ) => Self::QuotaExceeded,
            (
                _,
                "SlowDown"
                | "SlowDownRead"
                | "SlowDownWrite"
                | "Throttling"
                | "RequestLimitExceeded"
                | "TooManyRequests"
                | "ServerBusy"
                | "rateLimitExceeded"
                | "userRateLimitExceeded",
            )
            | (429, _) => Self::RateLimited,
            (
                _,
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "InvalidSecurity"
                | "NotSignedUp"
                | "AuthenticationFailed"
                | "InvalidAuthenticationInfo",
            )
            | (401, _) => Self::Unauthenticated,
            // Clocks, names, regions: asked as it is, it will not be answered otherwise.
            (_, "RequestTimeTooSkewed" | "PermanentRedirect" | "AuthorizationHeaderMalformed") => {
                Self::Configuration
            }
            (_, "NotImplemented" | "MethodNotAllowed") | (405 | 501, _) => Self::NotImplemented,
            (403, _) => Self::Unauthorized,
            // Another client is creating, removing or changing the bucket at this moment.
            (
                _,
                "OperationAborted"
                | "ContainerBeingDeleted"
                | "ContainerBeingDisabled"
                | "AccountBeingCreated",
            )
            | (500..=599 | 404 | 408, _) => Self::Unavailable,
            _ => Self::Configuration,
        }
    }

    /// As `status.lastError.codes` has it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unauthenticated => "ERR_INFRA_UNAUTHENTICATED",
            Self::Unauthorized => "ERR_INFRA_UNAUTHORIZED",
            Self::QuotaExceeded => "ERR_INFRA_QUOTA_EXCEEDED",
            Self::RateLimited => "ERR_INFRA_RATE_LIMITS_EXCEEDED",
            Self::Unavailable => "ERR_RETRYABLE_INFRA_DEPENDENCIES",
            Self::NoSuchBucket => "ERR_INFRA_DEPENDENCIES",
            Self::Configuration | Self::NameTaken | Self::NotEmpty | Self::NotImplemented => {
                "ERR_CONFIGURATION_PROBLEM"
            }
        }
    }

    /// Waiting alone mends it.
    pub fn passes(self) -> bool {
        match self {
            Self::RateLimited | Self::Unavailable => true,
            Self::Unauthenticated
            | Self::Unauthorized
            | Self::QuotaExceeded
            | Self::Configuration
            | Self::NameTaken
            | Self::NoSuchBucket
            | Self::NotEmpty
            | Self::NotImplemented => false,
        }
    }

    /// Is not tried again before something changes, because the bucket's name stays taken.
    pub fn is_final(self) -> bool {
        self == Self::NameTaken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_stores_mean_by_them() {
        let table = [
            (404, "NoSuchBucket", StoreFault::NoSuchBucket),
            (404, "", StoreFault::Unavailable),
            (404, "NoSuchKey", StoreFault::Unavailable),
            (409, "BucketAlreadyExists", StoreFault::NameTaken),
            (409, "BucketNotEmpty", StoreFault::NotEmpty),
            (400, "TooManyBuckets", StoreFault::QuotaExceeded),
            (503, "SlowDown", StoreFault::RateLimited),
            (429, "", StoreFault::RateLimited),
            (403, "InvalidAccessKeyId", StoreFault::Unauthenticated),
            (403, "SignatureDoesNotMatch", StoreFault::Unauthenticated),
            (400, "ExpiredToken", StoreFault::Unauthenticated),
            (403, "AccessDenied", StoreFault::Unauthorized),
            (403, "", StoreFault::Unauthorized),
            (301, "PermanentRedirect", StoreFault::Configuration),
            (403, "RequestTimeTooSkewed", StoreFault::Configuration),
            (400, "InvalidBucketName", StoreFault::Configuration),
            (501, "NotImplemented", StoreFault::NotImplemented),
            (405, "MethodNotAllowed", StoreFault::NotImplemented),
            (500, "InternalError", StoreFault::Unavailable),
            (503, "", StoreFault::Unavailable),
            (409, "OperationAborted", StoreFault::Unavailable),
            (404, "ContainerNotFound", StoreFault::NoSuchBucket),
            (404, "BlobNotFound", StoreFault::Unavailable),
            (409, "ContainerBeingDeleted", StoreFault::Unavailable),
            (503, "ServerBusy", StoreFault::RateLimited),
            (403, "AuthenticationFailed", StoreFault::Unauthenticated),
            (403, "AuthorizationPermissionMismatch", StoreFault::Unauthorized),
            (401, "authError", StoreFault::Unauthenticated),
            (403, "forbidden", StoreFault::Unauthorized),
            (403, "rateLimitExceeded", StoreFault::RateLimited),
            (403, "quotaExceeded", StoreFault::QuotaExceeded),
            (409, "conflict", StoreFault::Configuration),
            (400, "OutOfRangeInput", StoreFault::Configuration),
        ];
        for (status, code, fault) in table {
            assert_eq!(StoreFault::of(status, code), fault, "{status} {code}");
        }
    }

    #[test]
    fn nothing_but_a_plain_word_counts_as_gone() {
        for status in 100..600 {
            for code in ["", "NotFound", "NoSuchKey", "AccessDenied", "InternalError"] {
                assert_ne!(StoreFault::of(status, code), StoreFault::NoSuchBucket, "{status} {code}");
            }
        }
    }
}
