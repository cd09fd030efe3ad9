//! Which ends are written first if more Backups must end than are written at one time. Which
//! Backups end, and why, is `EndCause` in `plan`.

use super::plan::EndWithoutRun;
use super::view::QueueView;

/// How many ends are written at one time.
#[derive(Clone, Copy, Debug)]
pub struct EndLimits {
    pub ends: usize,
    /// How many of these may be backups whose last write failed. There are fewer of them, because
    /// each may take until the time-out of a write.
    pub again: usize,
}

/// Splits `ends` into those that are written now and those that come later. Backups whose last
/// write did not fail come first, in their order. The others follow, longest untried first. So a
/// backup that cannot be written delays no other one, and is tried again however many new ones
/// arrive.
pub fn split_ends<'p>(
    view: &QueueView,
    ends: &'p [EndWithoutRun],
    room: EndLimits,
) -> (Vec<&'p EndWithoutRun>, Vec<&'p EndWithoutRun>) {
    let (mut again, mut now): (Vec<&EndWithoutRun>, Vec<&EndWithoutRun>) =
        ends.iter().partition(|end| failure(view, end).is_some());
    again.sort_by_key(|end| failure(view, end));
    let not_again = again.split_off(again.len().min(room.again));
    let mut later = now.split_off(now.len().min(room.ends.saturating_sub(again.len())));
    now.extend(again);
    later.extend(not_again);
    (now, later)
}

fn failure(view: &QueueView, end: &EndWithoutRun) -> Option<u64> {
    view.failures.get(&view.backups.get(end.backup)?.uid).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use jiff::{SignedDuration, Timestamp};
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{QueueEntry, QueuePhase, plan};

    const ROOM: EndLimits = EndLimits { ends: 4, again: 1 };
    /// At least so many ends remain for backups that have not failed.
    const FRESH: usize = ROOM.ends - ROOM.again;

    /// A queue of canceled backups, and the loop that ends them.
    #[derive(Default)]
    struct Rim {
        view: QueueView,
        came: u32,
        failures: u64,
    }

    impl Rim {
        fn cancel(&mut self, name: &str) {
            self.came += 1;
            self.view.backups.push(Arc::new(QueueEntry {
                uid: format!("{name}-{}", self.came),
                phase: QueuePhase::Queued,
                canceled: true,
                enqueued_at: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(self.came.into())),
                ..QueueEntry::default()
            }));
        }

        /// Returns the UIDs that were tried. Backups named `never` cannot be written.
        fn cycle(&mut self) -> Vec<String> {
            let ends = plan(&self.view).end;
            let (now, later) = split_ends(&self.view, &ends, ROOM);
            assert_eq!(now.len() + later.len(), self.view.backups.len());
            assert!(now.len() <= ROOM.ends);
            let tried: Vec<String> =
                now.iter().map(|end| self.view.backups[end.backup].uid.clone()).collect();
            let is_fresh = |uid: &str| !self.view.failures.contains_key(uid);
            let fresh = self.view.backups.iter().filter(|entry| is_fresh(&entry.uid)).count();
            let tried_fresh = tried.iter().filter(|uid| is_fresh(uid)).count();
            assert!(tried_fresh >= fresh.min(FRESH), "what has failed keeps others waiting");
            for uid in &tried {
                if uid.starts_with("never") {
                    self.failures += 1;
                    self.view.failures.insert(uid.clone(), self.failures);
                } else {
                    self.view.backups.retain(|entry| entry.uid != *uid);
                }
            }
            tried
        }
    }

    proptest! {
        #[test]
        fn whoever_failed_comes_last_and_each_has_its_turn(never in 0_usize..40, come in 0_usize..8) {
            let mut rim = Rim::default();
            for _ in 0..never {
                rim.cancel("never");
            }
            rim.cancel("behind");
            let mut tried = HashSet::new();
            for _ in 0..=never / FRESH {
                tried.extend(rim.cycle());
            }
            prop_assert_eq!(tried.len(), never + 1, "each is tried once before any is tried again for long");
            prop_assert!(rim.view.backups.iter().all(|entry| entry.uid.starts_with("never")));
            tried.clear();
            for _ in 0..never.div_ceil(ROOM.again) {
                for _ in 0..come {
                    rim.cancel("later");
                }
                tried.extend(rim.cycle());
            }
            let again = tried.iter().filter(|uid| uid.starts_with("never")).count();
            prop_assert_eq!(again, never, "whoever comes later keeps none of them from its next try");
        }
    }

    #[test]
    fn where_none_has_failed_all_room_is_for_the_first_ones() {
        let mut rim = Rim::default();
        for _ in 0..6 {
            rim.cancel("one");
        }
        assert_eq!(rim.cycle(), ["one-1", "one-2", "one-3", "one-4"]);
        assert_eq!(rim.cycle(), ["one-5", "one-6"]);
        assert!(rim.cycle().is_empty());
    }
}
