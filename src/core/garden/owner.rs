//! The owner of a directory of a bucket: a mark in the store, written once by the first one, and
//! never replaced. By the mark two hubs, or two namespaces of one hub, see each other.

use std::fmt;

/// The owner that a mark names, or the one that reads the mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryOwner {
    pub entry: String,
    /// In its hub. Absent: it was not made for a hub, and its name is the one cluster's that it is
    /// for, wherever that is moved to. Empty: in a namespace of a hub that is not known here, so
    /// only its UID tells.
    pub namespace: Option<String>,
    /// Of the entry that wrote it: the hub's, where it was made for one.
    pub uid: String,
    /// The Seed that wrote it, for people.
    pub seed: Option<String>,
}

impl DirectoryOwner {
    /// An entry that is made again in its namespace has another UID, and so has each one in a hub
    /// that was restored: the data is theirs nevertheless.
    pub fn is(&self, other: &Self) -> bool {
        let is_same_object = !self.uid.is_empty() && self.uid == other.uid;
        let is_same_namespace = self.namespace == other.namespace && self.namespace.as_deref() != Some("");
        self.entry == other.entry && (is_same_object || is_same_namespace)
    }
}

impl fmt::Display for DirectoryOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "BackupEntry {namespace}/{} of a hub", self.entry)?,
            None => write!(f, "BackupEntry {} of extensions.gardener.cloud", self.entry)?,
        }
        write!(f, " (UID {}", self.uid)?;
        if let Some(seed) = &self.seed {
            write!(f, ", Seed {seed}")?;
        }
        write!(f, ")")
    }
}

/// What is known of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryState<'m> {
    pub mark: Option<&'m DirectoryOwner>,
    pub holds_data: bool,
}

/// Whether an entry gets a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnershipDecision {
    /// Its mark is the entry's.
    Ours,
    /// It has no owner yet: mark it.
    Mark,
    Refused(DirectoryRefusal),
}

/// Why an entry does not get the directory of its name. Nothing in it is touched for this entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryRefusal {
    #[error(
        "is the directory of {0}, and nothing in it is touched: give this entry another name; or, once that one and its data are gone \
         for good, remove the object {1} from the bucket"
    )]
    Anothers(DirectoryOwner, String),
    #[error(
        "holds objects, and no mark says whose they are ({0}): nothing in it is touched. Give this entry another name, or empty the \
         directory; or, if they are this entry's, annotate it with {1}"
    )]
    Unmarked(String, String),
}

/// May `us` have it? `is_known`: it was this entry's before there were marks, or a person with that
/// right says so. `mark`: key of the mark; `way_out`: the annotation by which a person says so.
/// Both are for messages.
pub fn judge(
    directory: DirectoryState<'_>,
    us: &DirectoryOwner,
    is_known: bool,
    (mark, way_out): (&str, &str),
) -> OwnershipDecision {
    match directory.mark {
        Some(owner) if owner.is(us) => OwnershipDecision::Ours,
        Some(owner) => OwnershipDecision::Refused(DirectoryRefusal::Anothers(owner.clone(), mark.to_owned())),
        None if is_known || !directory.holds_data => OwnershipDecision::Mark,
        None => OwnershipDecision::Refused(DirectoryRefusal::Unmarked(mark.to_owned(), way_out.to_owned())),
    }
}

/// What happens to a directory whose entry is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryEnd {
    /// All of its content is removed.
    Remove,
    /// It was never this entry's, and there is nothing in it.
    Nothing,
    LeftAlone(DirectoryRefusal),
}

/// `was_set_up`: unmarked content is known to be this entry's, as in [`judge`].
pub fn end(
    directory: DirectoryState<'_>,
    us: &DirectoryOwner,
    was_set_up: bool,
    words: (&str, &str),
) -> DirectoryEnd {
    match judge(directory, us, was_set_up, words) {
        OwnershipDecision::Ours => DirectoryEnd::Remove,
        // Another entry may begin there after this check.
        OwnershipDecision::Mark if !was_set_up => DirectoryEnd::Nothing,
        OwnershipDecision::Mark => DirectoryEnd::Remove,
        OwnershipDecision::Refused(why) => DirectoryEnd::LeftAlone(why),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(namespace: Option<&str>, entry: &str, uid: &str) -> DirectoryOwner {
        let (entry, namespace) = (entry.to_owned(), namespace.map(str::to_owned));
        DirectoryOwner { entry, namespace, uid: uid.to_owned(), seed: None }
    }

    fn judged(directory: DirectoryState<'_>, us: &DirectoryOwner, is_known: bool) -> OwnershipDecision {
        judge(directory, us, is_known, ("_berth/a/owner.json", "x=a"))
    }

    #[test]
    fn a_directory_is_its_namespaces_and_nobody_elses() {
        let first = owner(Some("one"), "a", "1");
        for (what, second, is_same) in [
            ("itself", first.clone(), true),
            ("made again, or in a hub that was restored", owner(Some("one"), "a", "2"), true),
            ("of another namespace, or another hub's", owner(Some("two"), "a", "2"), false),
            ("a gardenlet's", owner(None, "a", "2"), false),
            ("under another name", owner(Some("one"), "b", "2"), false),
        ] {
            assert_eq!(first.is(&second), is_same, "{what}");
            assert_eq!(second.is(&first), is_same, "{what}");
        }
        // Another cluster takes over: the object has another UID there.
        assert!(owner(None, "a", "1").is(&owner(None, "a", "2")));
        assert!(!owner(Some("one"), "a", "").is(&owner(Some("two"), "a", "")), "no UID is nobody's");
        // Of a namespace that nobody has said.
        let unsaid = owner(Some(""), "a", "1");
        assert!(unsaid.is(&first) && !unsaid.is(&owner(Some("one"), "a", "2")));
        assert!(!unsaid.is(&owner(Some(""), "a", "2")));
    }

    #[test]
    fn what_is_unmarked_is_taken_where_it_is_empty_or_known() {
        let us = owner(Some("one"), "a", "1");
        for (holds_data, is_known, is_taken) in
            [(false, false, true), (false, true, true), (true, true, true), (true, false, false)]
        {
            let verdict = judged(DirectoryState { mark: None, holds_data }, &us, is_known);
            assert_eq!(verdict == OwnershipDecision::Mark, is_taken, "{holds_data} {is_known} {verdict:?}");
        }
    }

    #[test]
    fn of_a_deleted_entry_only_what_is_marked_or_was_set_up_goes() {
        let us = owner(Some("one"), "a", "1");
        let (again, another) = (owner(Some("one"), "a", "2"), owner(Some("two"), "a", "2"));
        for (mark, holds_data, was_set_up, wanted) in [
            (Some(&again), true, false, "Remove"),
            (Some(&again), false, true, "Remove"),
            (Some(&another), true, false, "LeftAlone"),
            (Some(&another), true, true, "LeftAlone"),
            (None, true, true, "Remove"),
            (None, false, true, "Remove"),
            (None, true, false, "LeftAlone"),
            (None, false, false, "Nothing"),
        ] {
            let found = end(DirectoryState { mark, holds_data }, &us, was_set_up, ("m", "x=a"));
            assert!(format!("{found:?}").starts_with(wanted), "{mark:?} {holds_data} {was_set_up} {found:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_first_owner_and_the_way_out() {
        let first = DirectoryOwner { seed: Some("ship".to_owned()), ..owner(Some("one"), "a", "1") };
        let us = owner(Some("two"), "a", "2");
        let OwnershipDecision::Refused(why) =
            judged(DirectoryState { mark: Some(&first), holds_data: true }, &us, false)
        else {
            panic!("it was given away")
        };
        let why = why.to_string();
        assert!(why.contains("BackupEntry one/a of a hub (UID 1, Seed ship)"), "{why}");
        assert!(why.contains("another name") && why.contains("_berth/a/owner.json"), "{why}");
        let OwnershipDecision::Refused(why) =
            judged(DirectoryState { mark: None, holds_data: true }, &us, false)
        else {
            panic!("it was given away")
        };
        assert!(why.to_string().ends_with("annotate it with x=a"), "{why}");
    }

    proptest! {
        /// Nobody's word, and no old record, takes a directory from whoever is marked there.
        #[test]
        fn whoever_is_marked_keeps_it(
            theirs in prop::option::of("[ab]"), ours in prop::option::of("[ab]"), uids in ("[12]", "[12]"),
            holds_data in any::<bool>(), is_known in any::<bool>(),
        ) {
            let (first, us) = (owner(theirs.as_deref(), "a", &uids.0), owner(ours.as_deref(), "a", &uids.1));
            let verdict = judged(DirectoryState { mark: Some(&first), holds_data }, &us, is_known);
            prop_assert_eq!(verdict == OwnershipDecision::Ours, theirs == ours || uids.0 == uids.1);
            prop_assert_ne!(verdict, OwnershipDecision::Mark);
        }
    }
}
