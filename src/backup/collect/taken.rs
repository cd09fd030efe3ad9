//! What was taken of one type.

use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use berth_core::selection::ResourceType;
use tokio::sync::oneshot;

use crate::backup::actions;
use crate::backup::ledger::Position;
use crate::backup::list::{ListError, ListedObject};
use crate::backup::names::PackedNames;
use crate::backup::related::{Origin, References, Related};

/// What was taken of a type whose objects are stored together with pods.
pub(super) struct Borrowed {
    pub(super) taken: CollectedType,
    /// `None`: no list of the type waits for it.
    pub(super) back: Option<oneshot::Sender<CollectedType>>,
    /// Why objects that a pod uses are taken; `None`: the backup leaves them out.
    pub(super) origin: Option<Origin>,
    /// A read of this type has failed, so no more are tried.
    pub(super) is_off: bool,
}

/// What was taken of one type.
pub(super) struct CollectedType {
    pub(super) kind: Arc<ResourceType>,
    pub(super) names: PackedNames,
    /// What an earlier run has stored. If the type must be listed again, an object is added to
    /// `names` when it has been read again.
    pub(super) stored: PackedNames,
    /// Where the lists of the earlier run ended.
    pub(super) position: Option<Position>,
    /// The lists of the earlier run were complete.
    pub(super) is_through: bool,
    /// Index of the backup's selector that is being listed.
    pub(super) selector: usize,
    /// References to objects that no list brings.
    pub(super) references: References,
    /// The API server refused to list the type (403).
    pub(super) forbidden: bool,
    /// An error of one of its objects was logged.
    pub(super) is_odd: bool,
    /// Hashes of object and error, because several pods and the list of the type may bring the same
    /// claim.
    told: HashSet<u64>,
    /// Number of objects that could not be read, and the first error.
    pub(super) unreadable: Option<(u64, serde_json::Error)>,
    /// Number of objects whose names no file can have, and the first such name.
    pub(super) unstorable: Option<(u64, String)>,
    /// Number of objects whose annotation leaves them out.
    pub(super) skipped: u64,
    /// The item action for objects of this type, if there is one.
    pub(super) action: Option<Related>,
    /// Set in the placeholder for what is lent to the list of pods: receives it back.
    pub(super) lent: Option<oneshot::Receiver<Self>>,
    /// Only for pods: what is stored together with pods that have hooks.
    pub(super) along: Vec<Borrowed>,
}

impl CollectedType {
    pub(super) fn of(kind: &Arc<ResourceType>, references: References) -> Self {
        let action = Related::of(kind).filter(|of| actions::applies(*of));
        let kind = Arc::clone(kind);
        Self {
            kind,
            names: PackedNames::default(),
            stored: PackedNames::default(),
            position: None,
            is_through: false,
            selector: 0,
            references,
            forbidden: false,
            is_odd: false,
            told: HashSet::new(),
            unreadable: None,
            unstorable: None,
            skipped: 0,
            action,
            lent: None,
            along: Vec::new(),
        }
    }

    /// Whether the object is stored or on its way.
    pub(super) fn holds(&self, key: &str) -> bool {
        self.names.contains(key) || self.stored.contains(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.stored.is_empty()
    }

    /// Whether this is said of the object for the first time.
    pub(super) fn is_news(&mut self, found: &ListedObject, what: &str) -> bool {
        // Hash the name, because a name that no file can have may be very long.
        let mark = self.told.hasher().hash_one((&found.namespace, &found.name, what));
        self.told.insert(mark)
    }

    pub(super) fn namespaces(&self) -> HashSet<String> {
        let mut namespaces = self.names.namespaces();
        namespaces.extend(self.stored.namespaces());
        namespaces
    }

    /// Waits until what was lent is given back.
    ///
    /// # Errors
    /// When it is never given back.
    pub(super) async fn regain(&mut self) -> Result<(), ListError> {
        let Some(back) = self.lent.take() else { return Ok(()) };
        let whole = back.await.map_err(|_| ListError::NobodyTakes)?;
        *self = Self { selector: self.selector, forbidden: self.forbidden, ..whole };
        Ok(())
    }

    /// Gives back what was borrowed. What no list waits for stays here.
    pub(super) fn give_back(&mut self) {
        for one in std::mem::take(&mut self.along) {
            match one.back {
                // If no receiver is left, the backup ends early.
                Some(back) => drop(back.send(one.taken)),
                None => self.along.push(one),
            }
        }
    }
}
