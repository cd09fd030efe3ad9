//! One moment for all lists of a backup: the resourceVersion of the API server's store at its
//! start. A list that cannot be read at that revision is read as it is now, and the backup reports
//! that.

use std::collections::HashSet;

use crate::selection::ResourceType;

/// Types that API servers often keep in a separate etcd, because they are written so often. The
/// same revision means another moment in another etcd, and if that etcd happens to know the number,
/// the error would go unnoticed.
const OWN_STORE: [(&str, &str); 3] =
    [("", "events"), ("events.k8s.io", "events"), ("coordination.k8s.io", "leases")];
/// How often a request is repeated if the server lags behind: the server itself waits for some
/// seconds each time.
const BEHIND: u32 = 2;

/// Why the objects of a type are not from the revision of the backup, from intended reasons to ones
/// that may matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherRevisionReason {
    /// They were read before the revision was chosen.
    Before,
    /// They were read one by one, and a get always returns the current state.
    ByName,
    OwnStore,
    /// An aggregated API server stores them, whose revisions are unrelated.
    Aggregated,
    /// Their list continues where an earlier run had stopped, at the revision of that run.
    Earlier,
    /// The answer had another revision.
    Another,
    /// The request fails with the revision, and succeeds without it.
    Refused,
    /// The server does not know the revision yet.
    Behind,
    /// The server does not know the revision any more.
    Expired,
}

impl OtherRevisionReason {
    /// Why a type is not requested at the revision of the API server's store; `None` if it is.
    /// `aggregated`: names of the APIServices that are served by other servers.
    pub fn of_type(kind: &ResourceType, aggregated: &HashSet<String>) -> Option<Self> {
        if OWN_STORE.contains(&(kind.group.as_str(), kind.resource.as_str())) {
            Some(Self::OwnStore)
        } else if aggregated.contains(&format!("{}.{}", kind.version, kind.group)) {
            Some(Self::Aggregated)
        } else {
            None
        }
    }

    /// Is this by design, so that nothing can be done about it?
    pub fn is_meant(self) -> bool {
        self <= Self::Earlier
    }

    /// The reason as a part of a sentence, after the names of the types.
    pub fn words(self) -> &'static str {
        match self {
            Self::Before => "they were read just before",
            Self::ByName => "other objects need them, and some were read one by one",
            Self::OwnStore => "API servers often keep them in a separate etcd",
            Self::Aggregated => "aggregated API servers keep them (see `kubectl get apiservices`)",
            Self::Earlier => "their lists continue from an earlier run, at the resourceVersion of that run",
            Self::Another => "their server answered with another resourceVersion",
            Self::Refused => "their server fails when a resourceVersion is requested",
            Self::Behind => "the API server lags behind: it did not know that resourceVersion yet",
            Self::Expired => {
                "the API server does not keep that resourceVersion any more: use several smaller Backups, or a longer --etcd-compaction-interval of the API server"
            }
        }
    }
}

/// What follows from a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionFallback {
    /// Repeat the same request a moment later.
    Again,
    /// Request the current state instead.
    Latest(OtherRevisionReason),
}

/// What to do when a list at a revision is refused; `None` if the refusal has another cause, as far
/// as it says. `lagged`: how often the request was repeated because of
/// [`OtherRevisionReason::Behind`].
pub fn after_refusal(code: u16, message: &str, lagged: u32) -> Option<RevisionFallback> {
    let is_behind = message.contains("Too large resource version")
        // Older API servers pass on the message of etcd.
        || message.contains("required revision is a future revision");
    match code {
        410 => Some(RevisionFallback::Latest(OtherRevisionReason::Expired)),
        500..=599 if is_behind && lagged < BEHIND => Some(RevisionFallback::Again),
        500..=599 if is_behind => Some(RevisionFallback::Latest(OtherRevisionReason::Behind)),
        400 | 422 => Some(RevisionFallback::Latest(OtherRevisionReason::Refused)),
        _ => None,
    }
}

/// Can this resourceVersion be a revision at all? `0` would mean whatever a cache has.
pub fn is_revision(version: &str) -> bool {
    version.parse::<u64>().is_ok_and(|revision| revision > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, version: &str, resource: &str) -> ResourceType {
        ResourceType {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: "Kind".to_owned(),
            resource: resource.to_owned(),
            singular: String::new(),
            short_names: Vec::new(),
            namespaced: true,
        }
    }

    #[test]
    fn types_of_other_stores_are_not_asked_for_at_the_revision() {
        let aggregated = HashSet::from(["v1.shop.example.com".to_owned()]);
        for (group, version, resource, apart) in [
            ("", "v1", "pods", None),
            ("apps", "v1", "deployments", None),
            ("", "v1", "events", Some(OtherRevisionReason::OwnStore)),
            ("events.k8s.io", "v1", "events", Some(OtherRevisionReason::OwnStore)),
            ("coordination.k8s.io", "v1", "leases", Some(OtherRevisionReason::OwnStore)),
            ("shop.example.com", "v1", "orders", Some(OtherRevisionReason::Aggregated)),
            // A CustomResourceDefinition in the same group.
            ("shop.example.com", "v2", "orders", None),
        ] {
            assert_eq!(
                OtherRevisionReason::of_type(&kind(group, version, resource), &aggregated),
                apart,
                "{resource}"
            );
        }
    }

    #[test]
    fn what_is_refused_for_its_revision_is_listed_as_it_is() {
        let large = "Timeout: Too large resource version: 9, current: 5";
        let future = "etcdserver: mvcc: required revision is a future revision";
        for (code, message, lagged, next) in [
            (
                410,
                "The resourceVersion for the provided list is too old.",
                0,
                Some(RevisionFallback::Latest(OtherRevisionReason::Expired)),
            ),
            (504, large, 0, Some(RevisionFallback::Again)),
            (504, large, 1, Some(RevisionFallback::Again)),
            (504, large, 2, Some(RevisionFallback::Latest(OtherRevisionReason::Behind))),
            (500, future, 2, Some(RevisionFallback::Latest(OtherRevisionReason::Behind))),
            (504, "the server was unable to return a response in the time allotted", 0, None),
            (
                422,
                "resourceVersionMatch: Forbidden",
                0,
                Some(RevisionFallback::Latest(OtherRevisionReason::Refused)),
            ),
            (
                400,
                "invalid resource version",
                0,
                Some(RevisionFallback::Latest(OtherRevisionReason::Refused)),
            ),
            (403, "no", 0, None),
            (429, "Too large resource version", 0, None),
            (500, "conversion webhook failed", 0, None),
        ] {
            assert_eq!(after_refusal(code, message, lagged), next, "{code} {message}");
        }
    }

    #[test]
    fn what_nobody_can_help_is_not_what_is_warned_of() {
        let meant = [
            OtherRevisionReason::Before,
            OtherRevisionReason::ByName,
            OtherRevisionReason::OwnStore,
            OtherRevisionReason::Aggregated,
            OtherRevisionReason::Earlier,
        ];
        assert!(meant.iter().all(|apart| apart.is_meant()));
        let others = [
            OtherRevisionReason::Another,
            OtherRevisionReason::Refused,
            OtherRevisionReason::Behind,
            OtherRevisionReason::Expired,
        ];
        assert!(!others.iter().any(|apart| apart.is_meant()));
    }

    #[test]
    fn only_a_number_can_be_a_revision() {
        assert!(is_revision("1") && is_revision("18446744073709551615"));
        for other in ["", "0", "-1", "abc", "1.5", "18446744073709551616"] {
            assert!(!is_revision(other), "{other}");
        }
    }
}
