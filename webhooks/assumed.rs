//! Answers of the last moments that the watch does not show yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::queue::{QueueEntry, QueueView};
use parking_lot::Mutex;

/// Backups that this replica gave a place, and that its watch does not show yet (kube-scheduler's
/// "assumed" pods). They are kept because creates in quick succession would otherwise all get the
/// same position.
#[derive(Debug, Default)]
pub struct Assumed(Mutex<AssumedAnswers>);

#[derive(Debug, Default)]
struct AssumedAnswers {
    entries: VecDeque<Answered>,
    /// Sum of the sizes of `entries`.
    bytes: usize,
    /// How many answers were ever added; wraps around.
    given: u64,
    /// How many decisions were begun.
    begun: u64,
}

/// When a decision was begun: before its view was frozen.
#[derive(Clone, Copy, Debug)]
pub struct DecisionBegin {
    number: u64,
    at: Instant,
}

#[derive(Debug)]
struct Answered {
    at: Instant,
    /// Size of the object under review.
    bytes: usize,
    entry: Arc<QueueEntry>,
    /// The watch has shown it: how many decisions had begun when that was noticed, and when.
    seen: Option<(u64, Instant)>,
}

impl Assumed {
    /// An answer is dropped after this time, because a Backup that the watch does not show by then
    /// was refused by another admission plugin, or the API server failed.
    const KEEP: Duration = Duration::from_secs(10);
    /// An answer that the watch has shown is kept for so long for decisions whose view was frozen
    /// before that. Longer than a decision may take.
    const KEEP_SEEN: Duration = Duration::from_secs(2);
    /// At most this many answers are kept; the oldest is dropped first.
    const MOST: usize = 20_000;
    /// At most this many bytes are kept, because entries hold names and lists that any caller may
    /// make long.
    const MOST_BYTES: usize = 16 * 1024 * 1024;
    /// How many times one answer is decided when other answers are added meanwhile. After the last
    /// try the Backup is placed behind those others, and only what it is told to wait for may lack
    /// one of them.
    const TRIES: usize = 2;

    /// Begins a decision. To be called before its view is frozen: what the watch shows later may be
    /// missing in that view.
    pub fn begin(&self, seen: impl Fn(&QueueEntry) -> bool, now: Instant) -> DecisionBegin {
        let mut answers = self.0.lock();
        answers.note_seen(&seen, now);
        answers.begun = answers.begun.saturating_add(1);
        DecisionBegin { number: answers.begun, at: now }
    }

    /// Adds the assumed Backups that were not `seen` before `begun` to the view, and decides the
    /// next answer: `place` makes the newcomer with its position, and `explain` says what it waits
    /// for. If another answer was added meanwhile, both are called again. No lock is held during
    /// `explain`, so that a slow decision blocks no other request; the last `place` is called under
    /// the lock, because two Backups with one position cost the controller a write for each one
    /// behind them. The newcomer is kept if `remember` is its size in bytes, and stands in the view
    /// afterwards.
    pub fn with<T>(
        &self,
        view: &mut QueueView,
        begun: DecisionBegin,
        seen: impl Fn(&QueueEntry) -> bool,
        remember: Option<usize>,
        mut place: impl FnMut(&QueueView) -> Arc<QueueEntry>,
        mut explain: impl FnMut(&QueueView, &Arc<QueueEntry>) -> T,
    ) -> (Arc<QueueEntry>, T) {
        let shown = view.backups.len();
        let mut tries = 1;
        loop {
            let given = self.0.lock().add_to(view, shown, begun, &seen);
            let mut newcomer = place(view);
            let answer = explain(view, &newcomer);
            let mut answers = self.0.lock();
            if remember.is_some() && answers.given != given {
                // Dropped first, so that `place` changes its entry in place.
                drop(newcomer);
                if tries < Self::TRIES {
                    tries += 1;
                    continue;
                }
                answers.add_to(view, shown, begun, &seen);
                newcomer = place(view);
            }
            if let Some(bytes) = remember {
                answers.given = answers.given.wrapping_add(1);
                answers.bytes = answers.bytes.saturating_add(bytes);
                let entry = Arc::clone(&newcomer);
                answers.entries.push_back(Answered { at: begun.at, bytes, entry, seen: None });
                while answers.entries.len() > Self::MOST || answers.bytes > Self::MOST_BYTES {
                    let Some(oldest) = answers.entries.pop_front() else { break };
                    answers.bytes = answers.bytes.saturating_sub(oldest.bytes);
                }
            }
            view.backups.push(Arc::clone(&newcomer));
            return (newcomer, answer);
        }
    }
}

impl AssumedAnswers {
    /// Notes which answers the watch has shown, and drops those that no decision needs any more.
    fn note_seen(&mut self, seen: &impl Fn(&QueueEntry) -> bool, now: Instant) {
        let begun = self.begun;
        self.entries.retain_mut(|one| {
            if one.seen.is_none() && seen(&one.entry) {
                one.seen = Some((begun, now));
            }
            let is_needed = |(_, at): (u64, Instant)| now.saturating_duration_since(at) < Assumed::KEEP_SEEN;
            now.saturating_duration_since(one.at) < Assumed::KEEP && one.seen.is_none_or(is_needed)
        });
        self.bytes = self.entries.iter().map(|one| one.bytes).sum();
    }

    /// Shows the answers that the view may lack behind its first `shown` entries, and returns how
    /// many were ever added.
    fn add_to(
        &mut self,
        view: &mut QueueView,
        shown: usize,
        begun: DecisionBegin,
        seen: &impl Fn(&QueueEntry) -> bool,
    ) -> u64 {
        self.note_seen(seen, begun.at);
        view.backups.truncate(shown);
        for one in &self.entries {
            let is_missing = match one.seen {
                None => true,
                // It was shown while the view was frozen, or after that.
                Some((number, _)) if number >= begun.number => {
                    let mut frozen = view.backups.iter().take(shown);
                    !frozen.any(|known| known.enqueued_at == one.entry.enqueued_at)
                }
                Some(_) => false,
            };
            if is_missing {
                view.backups.push(Arc::clone(&one.entry));
            }
        }
        self.given
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn place(position: u32) -> Arc<QueueEntry> {
        Arc::new(QueueEntry { enqueued_at: Some(Timestamp::UNIX_EPOCH), position, ..QueueEntry::default() })
    }

    /// The position of one more, if it is the only one that asks.
    fn next(assumed: &Assumed, now: Instant) -> u32 {
        let behind = |view: &QueueView| place(u32::try_from(view.backups.len()).unwrap() + 1);
        let begun = assumed.begin(|_| false, now);
        assumed.with(&mut QueueView::default(), begun, |_| false, Some(1), behind, |_, _| ()).0.position
    }

    #[test]
    fn what_is_answered_is_shown_and_remembered_without_a_copy_of_what_it_takes() {
        let (assumed, now) = (Assumed::default(), Instant::now());
        let mut newcomer = Arc::new(QueueEntry { name: "b".to_owned(), ..QueueEntry::default() });
        let taken = Arc::as_ptr(&newcomer);
        let mut decisions = 0;
        let mut view = QueueView::default();
        let placed = |_: &QueueView| {
            Arc::make_mut(&mut newcomer).enqueued_at = Some(Timestamp::UNIX_EPOCH);
            Arc::clone(&newcomer)
        };
        assumed.with(
            &mut view,
            assumed.begin(|_| false, now),
            |_| false,
            Some(1),
            placed,
            |_, _| {
                decisions += 1;
                if decisions == 1 {
                    // Another request is answered first.
                    next(&assumed, now);
                }
            },
        );
        assert_eq!((decisions, view.backups.len()), (2, 2));
        assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
        let shows = |view: &QueueView| {
            assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
            Arc::default()
        };
        let begun = assumed.begin(|_| false, now);
        assumed.with(&mut QueueView::default(), begun, |_| false, None, shows, |_, _| ());
    }

    #[test]
    fn however_many_are_faster_no_two_get_the_same_position() {
        let (assumed, now) = (Assumed::default(), Instant::now());
        let behind = |view: &QueueView| place(u32::try_from(view.backups.len()).unwrap() + 1);
        let mut others = Vec::new();
        let (ours, ()) = assumed.with(
            &mut QueueView::default(),
            assumed.begin(|_| false, now),
            |_| false,
            Some(1),
            behind,
            |_, _| {
                others.push(next(&assumed, now));
            },
        );
        assert_eq!((others.as_slice(), ours.position), ([1, 2].as_slice(), 3));
        assert_eq!(next(&assumed, now), 4);
    }

    #[test]
    fn what_the_watch_shows_after_a_view_was_frozen_is_not_missed_nor_counted_twice() {
        let (assumed, now) = (Assumed::default(), Instant::now());
        let position = |frozen: &[Arc<QueueEntry>], begun: DecisionBegin, is_seen: bool| {
            let behind = |view: &QueueView| place(u32::try_from(view.backups.len()).unwrap() + 1);
            let mut view = QueueView { backups: frozen.to_vec(), ..QueueView::default() };
            // None of these is remembered.
            assumed.with(&mut view, begun, |_| is_seen, None, behind, |_, _| ()).0.position
        };
        assert_eq!(next(&assumed, now), 1);
        let early = assumed.begin(|_| false, now);
        assert_eq!(position(&[], early, true), 2, "the view was frozen before the watch showed the first");
        // A later decision notices that as well, and an earlier one still needs the answer.
        let late = assumed.begin(|_| true, now);
        assert_eq!(position(&[], early, true), 2);
        assert_eq!(position(&[place(1)], early, true), 2, "the view has it");
        assert_eq!(position(&[], late, true), 1, "it has ended since the watch showed it");
        let after = assumed.begin(|_| true, now + Assumed::KEEP_SEEN);
        assert!(assumed.0.lock().entries.is_empty());
        assert_eq!(position(&[], after, true), 1);
    }
}
