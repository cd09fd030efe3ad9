//! What one type brought, as it comes.

use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use berth_core::selection::ResourceType;
use tokio::sync::oneshot;

use crate::backup::actions;
use crate::backup::ledger::Position;
use crate::backup::list::{ListError, ListedObject};
use crate::backup::names::Names;
use crate::backup::related::{Origin, References, Related};

/// What was taken of a type that goes along with pods.
pub(super) struct Borrowed {
    pub(super) taken: Taken,
    /// `None`: no list of the type waits for it.
    pub(super) back: Option<oneshot::Sender<Taken>>,
    /// Why its objects are taken that a pod uses; `None`: the backup leaves them out.
    pub(super) origin: Option<Origin>,
    /// They cannot be read.
    pub(super) is_off: bool,
}

/// What one type brought.
pub(super) struct Taken {
    pub(super) kind: Arc<ResourceType>,
    pub(super) names: Names,
    /// What an earlier run has stored. Where that has to be looked at again, none of it is among `names` until it has been.
    pub(super) stored: Names,
    /// Where the lists of that run have come to.
    pub(super) position: Option<Position>,
    /// Its lists were through.
    pub(super) is_through: bool,
    /// Which of the backup's selectors is being listed.
    pub(super) selector: usize,
    /// What these need that no list brings.
    pub(super) references: References,
    /// It may not be read.
    pub(super) forbidden: bool,
    /// Something was told of one of its objects.
    pub(super) is_odd: bool,
    /// Of which of them, and what: several pods may bring the same claim, and then its list does.
    told: HashSet<u64>,
    /// How many objects could not be read, and why not the first of them.
    pub(super) unreadable: Option<(u64, serde_json::Error)>,
    /// How many objects have names that no file can have, and the first of these.
    pub(super) unstorable: Option<(u64, String)>,
    /// How many objects say of themselves, to the action that looks at them, that they are left out.
    pub(super) skipped: u64,
    /// The action that looks at objects of this type, if there is one.
    pub(super) action: Option<Related>,
    /// All of this stands in for what pods have: it comes back this way.
    pub(super) lent: Option<oneshot::Receiver<Self>>,
    /// Of pods: what goes along with those that have hooks.
    pub(super) along: Vec<Borrowed>,
}

impl Taken {
    pub(super) fn of(kind: &Arc<ResourceType>, references: References) -> Self {
        let action = Related::of(kind).filter(|of| actions::applies(*of));
        let kind = Arc::clone(kind);
        Self {
            kind,
            names: Names::default(),
            stored: Names::default(),
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

    /// Is it stored, or on its way there?
    pub(super) fn holds(&self, key: &str) -> bool {
        self.names.contains(key) || self.stored.contains(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.stored.is_empty()
    }

    /// Is this said of the object for the first time?
    pub(super) fn is_news(&mut self, found: &ListedObject, what: &str) -> bool {
        // A name that no file can have may be as long as an address.
        let mark = self.told.hasher().hash_one((&found.namespace, &found.name, what));
        self.told.insert(mark)
    }

    pub(super) fn namespaces(&self) -> HashSet<String> {
        let mut namespaces = self.names.namespaces();
        namespaces.extend(self.stored.namespaces());
        namespaces
    }

    /// Waits until it is given back.
    ///
    /// # Errors
    /// When it never is.
    pub(super) async fn regain(&mut self) -> Result<(), ListError> {
        let Some(back) = self.lent.take() else { return Ok(()) };
        let whole = back.await.map_err(|_| ListError::NobodyTakes)?;
        *self = Self { selector: self.selector, forbidden: self.forbidden, ..whole };
        Ok(())
    }

    /// Gives back what was borrowed. What no list waits for stays.
    pub(super) fn give_back(&mut self) {
        for one in std::mem::take(&mut self.along) {
            match one.back {
                // Should nobody wait for it any more, the backup ends early.
                Some(back) => drop(back.send(one.taken)),
                None => self.along.push(one),
            }
        }
    }
}
