//! Deleted Backups of which something is left, and for which no DeleteBackupRequest is on record,
//! because a Velero carries such requests out: the runner tries again what failed.

use std::collections::HashMap;

use berth_core::operation::{LONGEST_REMOVAL_PAUSE, remove_again};
use tokio::time::Instant;

use crate::queue::seen::GoneBackup;

/// Most that are tried again. A store that is away for long fails them all.
const MOST: usize = 1000;

/// By UID.
#[derive(Default)]
pub(super) struct UnremovedBackups(HashMap<String, Unremoved>);

struct Unremoved {
    gone: GoneBackup,
    failures: u32,
    /// When it is tried again, also if the try that has begun tells nothing of its end, because it
    /// panicked.
    due: Instant,
}

impl UnremovedBackups {
    /// A try has failed. `false`: nobody tries again.
    pub(super) fn failed(&mut self, gone: GoneBackup, now: Instant) -> bool {
        let is_full = self.0.len() >= MOST && !self.0.contains_key(&gone.uid);
        let failures = self.0.get(&gone.uid).map_or(0, |known| known.failures).saturating_add(1);
        let Some(pause) = remove_again(failures).filter(|_| !is_full) else {
            self.0.remove(&gone.uid);
            return false;
        };
        self.0.insert(gone.uid.clone(), Unremoved { gone, failures, due: now + pause });
        true
    }

    pub(super) fn removed(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Those that are due and may begin, which are being tried from now on.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        mut may: impl FnMut(&GoneBackup) -> bool,
    ) -> Vec<GoneBackup> {
        let mut taken = Vec::new();
        for unremoved in self.0.values_mut() {
            if unremoved.due <= now && may(&unremoved.gone) {
                unremoved.due = now + LONGEST_REMOVAL_PAUSE;
                taken.push(unremoved.gone.clone());
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gone(uid: &str) -> GoneBackup {
        let [name, uid, location] = ["b", uid, "l"].map(str::to_owned);
        GoneBackup { name, uid, location, is_ours: true }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_until_it_succeeds_or_was_tried_often_enough() {
        let mut unremoved = UnremovedBackups::default();
        let uids = |found: Vec<GoneBackup>| found.into_iter().map(|gone| gone.uid).collect::<Vec<_>>();
        let mut now = Instant::now();
        assert!(unremoved.failed(gone("u"), now));
        assert!(unremoved.take_due(now, |_| true).is_empty(), "too early");
        now += Duration::from_secs(60);
        assert!(unremoved.take_due(now, |_| false).is_empty(), "its name is busy");
        assert_eq!(uids(unremoved.take_due(now, |_| true)), ["u"]);
        assert!(unremoved.take_due(now, |_| true).is_empty(), "it is being tried");
        now += LONGEST_REMOVAL_PAUSE;
        assert_eq!(uids(unremoved.take_due(now, |_| true)), ["u"], "the try has panicked");
        let mut failures = 1;
        while unremoved.failed(gone("u"), now) {
            failures += 1;
            now += Duration::from_secs(3600);
            assert_eq!(uids(unremoved.take_due(now, |_| true)), ["u"]);
        }
        assert_eq!(failures, 7);
        assert!(unremoved.failed(gone("v"), now));
        unremoved.removed("v");
        assert!(unremoved.take_due(now + Duration::from_secs(3600), |_| true).is_empty());
        for i in 0..MOST {
            assert!(unremoved.failed(gone(&i.to_string()), now));
        }
        assert!(!unremoved.failed(gone("one more"), now));
        assert!(unremoved.failed(gone("0"), now), "it is known");
    }
}
