//! Decides which part of berth cleans up after a Backup that was deleted while it ran or waited.
//! The engine starts at once, and creates a DeleteBackupRequest for what it cannot finish, because
//! a request outlives this process. The controller that carries out such requests runs in the same
//! process, and leaves alone what the engine is still removing.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// Clones share one state.
#[derive(Clone, Default)]
pub struct Removals(Arc<Mutex<RemovalState>>);

#[derive(Default)]
struct RemovalState {
    /// This process carries out DeleteBackupRequests.
    are_carried_out: bool,
    /// UIDs of deleted Backups after which the engine is cleaning up.
    begun: HashSet<String>,
}

/// Ends the state that it stands for when it is dropped.
#[must_use]
pub struct RemovalGuard {
    removals: Removals,
    /// The Backup after which the engine is cleaning up. `None`: the guard of carrying out
    /// requests.
    uid: Option<String>,
}

impl Removals {
    /// From now on this process carries out requests.
    pub fn carry_out(&self) -> RemovalGuard {
        self.0.lock().are_carried_out = true;
        RemovalGuard { removals: self.clone(), uid: None }
    }

    pub fn are_carried_out(&self) -> bool {
        self.0.lock().are_carried_out
    }

    /// From now on the engine cleans up after this Backup.
    pub fn begin(&self, uid: &str) -> RemovalGuard {
        self.0.lock().begun.insert(uid.to_owned());
        RemovalGuard { removals: self.clone(), uid: Some(uid.to_owned()) }
    }

    pub fn has_begun(&self, uid: &str) -> bool {
        self.0.lock().begun.contains(uid)
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        let state = &mut *self.removals.0.lock();
        match &self.uid {
            Some(uid) => drop(state.begun.remove(uid)),
            None => state.are_carried_out = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_removes_is_its_own_until_it_has_ended_in_whatever_way() {
        let removals = Removals::default();
        assert!(!removals.are_carried_out());
        let carries_out = removals.clone().carry_out();
        let begun = removals.begin("u");
        assert!(removals.are_carried_out() && removals.has_begun("u") && !removals.has_begun("v"));
        drop(begun);
        assert!(removals.are_carried_out() && !removals.has_begun("u"));
        drop(carries_out);
        assert!(!removals.are_carried_out());
    }
}
