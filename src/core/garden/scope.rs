//! What may be removed from a bucket. Every removal takes a [`RemovalScope`], which only these
//! functions create, because an empty or malformed prefix would remove the data of every cluster
//! that shares the bucket.

/// Put before the name of an entry from which another cluster is restored; its data lies under the
/// name without it (source: Gardener's control-plane migration).
pub const SOURCE: &str = "source-";

/// Directory of a bucket for what berth itself notes of entries, each in a directory of its name.
/// No entry has this name.
pub const NOTES: &str = "_berth";

/// Keys that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalScope(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error("{0:?} does not name one directory of a bucket; nothing is removed for it")]
    NotOneSegment(String),
    #[error(
        "its directory is {wanted}, and {recorded:?} was recorded when it was made; nothing is removed until they agree"
    )]
    NotAsRecorded { wanted: String, recorded: String },
    #[error("to be emptied, bucket {bucket} must be named by the annotation; it has {named:?}")]
    NotNamed { bucket: String, named: String },
}

impl RemovalScope {
    /// The directory of the BackupEntry `name`. `recorded`: the directory written into its status
    /// when it was made.
    ///
    /// # Errors
    /// When that is not one whole directory, or another one than was recorded.
    pub fn of_entry(name: &str, recorded: Option<&str>) -> Result<Self, ScopeError> {
        let segment = name.strip_prefix(SOURCE).unwrap_or(name);
        let is_segment = !matches!(segment, "" | "." | "..")
            && segment != NOTES
            && !segment.contains(|c: char| matches!(c, '/' | '\\') || c.is_control() || c.is_whitespace());
        if !is_segment {
            return Err(ScopeError::NotOneSegment(name.to_owned()));
        }
        let wanted = format!("{segment}/");
        match recorded.filter(|recorded| *recorded != wanted) {
            Some(recorded) => Err(ScopeError::NotAsRecorded { wanted, recorded: recorded.to_owned() }),
            None => Ok(Self(wanted)),
        }
    }

    /// What berth noted of the entry whose directory this is; `None`: it is none's.
    pub fn notes(&self) -> Option<Self> {
        (!self.0.is_empty() && !self.0.starts_with(NOTES)).then(|| Self(format!("{NOTES}/{}", self.0)))
    }

    /// All of a bucket. `named`: the value of the annotation by which a person asks to empty it.
    ///
    /// # Errors
    /// When that does not name the bucket.
    pub fn of_bucket(bucket: &str, named: &str) -> Result<Self, ScopeError> {
        if bucket.is_empty() || bucket != named {
            return Err(ScopeError::NotNamed { bucket: bucket.to_owned(), named: named.to_owned() });
        }
        Ok(Self(String::new()))
    }

    /// As a store takes it: empty, or ends in `/`.
    pub fn prefix(&self) -> &str {
        &self.0
    }

    pub fn covers(&self, key: &str) -> bool {
        key.starts_with(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_directory_ends_in_a_slash_and_does_not_know_the_word_source() {
        assert_eq!(
            RemovalScope::of_entry("shoot--dev--a--12", None).map(|s| s.0),
            Ok("shoot--dev--a--12/".to_owned())
        );
        assert_eq!(RemovalScope::of_entry("source-a--1", Some("a--1/")).map(|s| s.0), Ok("a--1/".to_owned()));
        let twelve = RemovalScope::of_entry("a--12", None);
        assert!(twelve.is_ok_and(|scope| scope.covers("a--12/x") && !scope.covers("a--123/x")));
    }

    #[test]
    fn what_is_not_one_directory_is_refused() {
        for name in [
            "",
            ".",
            "..",
            "source-",
            "source-.",
            "source-..",
            "a/b",
            "/",
            "a/",
            "/a",
            "a\\b",
            "a\n",
            "a b",
            "_berth",
        ] {
            assert!(
                matches!(RemovalScope::of_entry(name, None), Err(ScopeError::NotOneSegment(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn another_directory_than_was_recorded_is_refused() {
        for recorded in ["", "/", "a", "b/", "a/b/"] {
            let refused = RemovalScope::of_entry("a", Some(recorded));
            assert!(matches!(refused, Err(ScopeError::NotAsRecorded { .. })), "{recorded:?}");
        }
    }

    #[test]
    fn notes_are_of_one_entry() {
        let notes = |name: &str| RemovalScope::of_entry(name, None).ok().and_then(|scope| scope.notes());
        assert_eq!(notes("a--1").map(|s| s.0), Some("_berth/a--1/".to_owned()));
        assert_eq!(notes("source-a--1").map(|s| s.0), Some("_berth/a--1/".to_owned()));
        assert!(notes("a--1").is_some_and(|s| s.covers("_berth/a--1/x") && !s.covers("_berth/a--12/x")));
        assert_eq!(notes("a--1").and_then(|s| s.notes()), None);
        assert_eq!(RemovalScope::of_bucket("b", "b").ok().and_then(|scope| scope.notes()), None);
    }

    #[test]
    fn a_bucket_is_emptied_only_under_its_own_name() {
        assert_eq!(RemovalScope::of_bucket("b", "b").map(|s| s.0), Ok(String::new()));
        for named in ["", "true", "B", "b/", "other"] {
            assert!(RemovalScope::of_bucket("b", named).is_err(), "{named:?}");
        }
        assert!(RemovalScope::of_bucket("", "").is_err());
    }

    proptest! {
        #[test]
        fn no_name_reaches_further_than_one_directory(name in ".*", recorded in proptest::option::of(".*")) {
            if let Ok(scope) = RemovalScope::of_entry(&name, recorded.as_deref()) {
                let prefix = scope.prefix();
                prop_assert!(prefix.len() > 1 && prefix.ends_with('/'));
                prop_assert_eq!(prefix.matches('/').count(), 1);
                prop_assert!(!matches!(prefix, "./" | "../"));
                let notes = scope.notes().map(|notes| notes.0);
                prop_assert_eq!(notes, Some(format!("_berth/{prefix}")));
                prop_assert!(recorded.is_none_or(|recorded| recorded == prefix));
            }
        }
    }
}
