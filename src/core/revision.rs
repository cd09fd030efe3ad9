//! One moment for all lists of a backup: the revision of the API server's store as of which it begins. What cannot be
//! listed as of then is listed as it is, and told.

use std::collections::HashSet;

use crate::selection::ResourceType;

/// Types that API servers often keep in an etcd of their own, because they are written so often. A revision of one etcd means
/// another moment in another one, and where that is known there, too, nobody would notice.
const OWN_STORE: [(&str, &str); 3] =
    [("", "events"), ("events.k8s.io", "events"), ("coordination.k8s.io", "leases")];
/// How often a server that lags behind is asked again: it has waited for some seconds already.
const BEHIND: u32 = 2;

/// Why objects of a type are not as of the revision, from what is meant to be so to what may matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Apart {
    /// They were read just before.
    Before,
    /// They were got one by one, and what is got is as it is.
    ByName,
    OwnStore,
    /// A server behind the API server keeps them, whose revisions are other ones.
    Aggregated,
    /// Their list goes on from where an earlier run had come to, as of the revision of that one.
    Earlier,
    /// The answer was as of another revision.
    Another,
    /// Asked for the revision it fails, asked for what is there it does not.
    Refused,
    /// It does not know the revision yet.
    Behind,
    /// It does not know the revision any more.
    Expired,
}

impl Apart {
    /// Why a type is not asked for as of the revision of the API server's store; `None`: it is. `aggregated`: names of the
    /// APIServices that lead to other servers.
    pub fn of_type(kind: &ResourceType, aggregated: &HashSet<String>) -> Option<Self> {
        if OWN_STORE.contains(&(kind.group.as_str(), kind.resource.as_str())) {
            Some(Self::OwnStore)
        } else if aggregated.contains(&format!("{}.{}", kind.version, kind.group)) {
            Some(Self::Aggregated)
        } else {
            None
        }
    }

    /// Is that so by design, and nothing that anybody could do something about?
    pub fn is_meant(self) -> bool {
        self <= Self::Earlier
    }

    /// In a sentence after the names of types.
    pub fn words(self) -> &'static str {
        match self {
            Self::Before => "they were read just before",
            Self::ByName => "others need them, and some were got one by one",
            Self::OwnStore => "API servers often keep them in an etcd of their own",
            Self::Aggregated => "other servers keep them, as `kubectl get apiservices` says",
            Self::Earlier => "their lists go on from where an earlier run had come to, as of its moment",
            Self::Another => "their server answered as of another one",
            Self::Refused => "their server fails when it is asked for one",
            Self::Behind => "the API server that was asked lags behind: it did not know that one yet",
            Self::Expired => {
                "the API server does not keep that one any more: use several smaller Backups, or a longer --etcd-compaction-interval of the API server"
            }
        }
    }
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same once more, a moment later.
    Again,
    /// The list as it is.
    Latest(Apart),
}

/// What to do when a list as of a revision is refused; `None`: the refusal has nothing to do with that, as far as it says.
/// `lagged`: how often it has been asked again because of [`Apart::Behind`].
pub fn after_refusal(code: u16, message: &str, lagged: u32) -> Option<Next> {
    let is_behind = message.contains("Too large resource version")
        // Older API servers give what etcd says.
        || message.contains("required revision is a future revision");
    match code {
        410 => Some(Next::Latest(Apart::Expired)),
        500..=599 if is_behind && lagged < BEHIND => Some(Next::Again),
        500..=599 if is_behind => Some(Next::Latest(Apart::Behind)),
        400 | 422 => Some(Next::Latest(Apart::Refused)),
        _ => None,
    }
}

/// Can a resourceVersion be a revision at all? 0 would mean whatever a cache has.
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
            ("", "v1", "events", Some(Apart::OwnStore)),
            ("events.k8s.io", "v1", "events", Some(Apart::OwnStore)),
            ("coordination.k8s.io", "v1", "leases", Some(Apart::OwnStore)),
            ("shop.example.com", "v1", "orders", Some(Apart::Aggregated)),
            // A definition of the same group.
            ("shop.example.com", "v2", "orders", None),
        ] {
            assert_eq!(Apart::of_type(&kind(group, version, resource), &aggregated), apart, "{resource}");
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
                Some(Next::Latest(Apart::Expired)),
            ),
            (504, large, 0, Some(Next::Again)),
            (504, large, 1, Some(Next::Again)),
            (504, large, 2, Some(Next::Latest(Apart::Behind))),
            (500, future, 2, Some(Next::Latest(Apart::Behind))),
            (504, "the server was unable to return a response in the time allotted", 0, None),
            (422, "resourceVersionMatch: Forbidden", 0, Some(Next::Latest(Apart::Refused))),
            (400, "invalid resource version", 0, Some(Next::Latest(Apart::Refused))),
            (403, "no", 0, None),
            (429, "Too large resource version", 0, None),
            (500, "conversion webhook failed", 0, None),
        ] {
            assert_eq!(after_refusal(code, message, lagged), next, "{code} {message}");
        }
    }

    #[test]
    fn what_nobody_can_help_is_not_what_is_warned_of() {
        let meant = [Apart::Before, Apart::ByName, Apart::OwnStore, Apart::Aggregated, Apart::Earlier];
        assert!(meant.iter().all(|apart| apart.is_meant()));
        let others = [Apart::Another, Apart::Refused, Apart::Behind, Apart::Expired];
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
