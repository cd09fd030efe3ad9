//! Answers of the last moments that the watch does not show yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::queue::{QueueEntry, QueueView};
use jiff::Timestamp;
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
}

#[derive(Debug)]
struct Answered {
    at: Instant,
    /// Size of the object under review.
    bytes: usize,
    entry: Arc<QueueEntry>,
}

impl Assumed {
    /// An answer is dropped after this time, because a Backup that the watch does not show by then
    /// was refused by another admission plugin.
    const KEEP: Duration = Duration::from_secs(10);
    /// At most this many answers are kept; the oldest is dropped first.
    const MOST: usize = 20_000;
    /// At most this many bytes are kept, because entries hold names and lists that any caller may
    /// make long.
    const MOST_BYTES: usize = 16 * 1024 * 1024;
    /// How many times one answer is decided when other answers are added meanwhile. After the last
    /// try two Backups may get the same position until the controller corrects it; their time marks
    /// differ all the same.
    const TRIES: usize = 4;

    /// Adds the assumed Backups that were not `seen` since to the view, and calls `decide` for the
    /// next answer. If another answer was added meanwhile, `decide` is called again; no lock is
    /// held during `decide`, so that a slow decision blocks no other request. The newcomer is kept
    /// if `remember` is its size in bytes, and stands in the view afterwards.
    pub fn with<T>(
        &self,
        view: &mut QueueView,
        seen: impl Fn(Timestamp) -> bool,
        now: Instant,
        remember: Option<usize>,
        mut decide: impl FnMut(&QueueView) -> (T, Arc<QueueEntry>),
    ) -> T {
        let shown = view.backups.len();
        let mut tries = 1;
        loop {
            view.backups.truncate(shown);
            let given = self.add_to(view, &seen, now);
            let (answer, newcomer) = decide(view);
            let mut answers = self.0.lock();
            if remember.is_some() && answers.given != given && tries < Self::TRIES {
                tries += 1;
                continue;
            }
            if let Some(bytes) = remember {
                answers.given = answers.given.wrapping_add(1);
                answers.bytes = answers.bytes.saturating_add(bytes);
                answers.entries.push_back(Answered { at: now, bytes, entry: Arc::clone(&newcomer) });
                while answers.entries.len() > Self::MOST || answers.bytes > Self::MOST_BYTES {
                    let Some(oldest) = answers.entries.pop_front() else { break };
                    answers.bytes = answers.bytes.saturating_sub(oldest.bytes);
                }
            }
            view.backups.push(newcomer);
            return answer;
        }
    }

    /// Drops outdated answers, adds the others to the view, and returns how many were ever added.
    fn add_to(&self, view: &mut QueueView, seen: &impl Fn(Timestamp) -> bool, now: Instant) -> u64 {
        let mut answers = self.0.lock();
        answers.entries.retain(|one| {
            now.saturating_duration_since(one.at) < Self::KEEP
                && one.entry.enqueued_at.is_some_and(|mark| !seen(mark))
        });
        answers.bytes = answers.entries.iter().map(|one| one.bytes).sum();
        view.backups.extend(answers.entries.iter().map(|one| Arc::clone(&one.entry)));
        answers.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_is_shown_and_remembered_without_a_copy_of_what_it_takes() {
        let (assumed, now) = (Assumed::default(), Instant::now());
        let mark = Timestamp::UNIX_EPOCH;
        let mut newcomer = Arc::new(QueueEntry { name: "b".to_owned(), ..QueueEntry::default() });
        let taken = Arc::as_ptr(&newcomer);
        let mut decisions = 0;
        let mut view = QueueView::default();
        assumed.with(
            &mut view,
            |_| false,
            now,
            Some(1),
            |_| {
                decisions += 1;
                if decisions == 1 {
                    // Another request is answered first.
                    let other = Arc::new(QueueEntry { enqueued_at: Some(mark), ..QueueEntry::default() });
                    assumed.with(
                        &mut QueueView::default(),
                        |_| false,
                        now,
                        Some(1),
                        |_| ((), Arc::clone(&other)),
                    );
                }
                Arc::make_mut(&mut newcomer).enqueued_at = Some(mark);
                ((), Arc::clone(&newcomer))
            },
        );
        assert_eq!((decisions, view.backups.len()), (2, 2));
        assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
        let mut next = QueueView::default();
        assumed.with(
            &mut next,
            |_| false,
            now,
            None,
            |view| {
                assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
                ((), Arc::default())
            },
        );
    }
}
