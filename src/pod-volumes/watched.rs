//! The progress of a job, and whether it is canceled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustic_core::{Progress as Bar, ProgressBars, ProgressType, RusticProgress};

use crate::fault::Unfinished;

/// Bytes of files that were read or written, and the total of them. The total is 0 while it is
/// being counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

/// What a job shares with those that wait for it.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    lock_lost: AtomicBool,
    /// Why nothing more can be written.
    unwritten: Mutex<Option<String>>,
    done: AtomicU64,
    total: AtomicU64,
    failed: Mutex<Unfinished>,
    noted: Mutex<Unfinished>,
    /// Entries, folders aside, that were passed to rustic_core to be stored, or came out of a
    /// snapshot.
    files: AtomicU64,
    /// Files that were removed before they could be read.
    vanished: AtomicU64,
    /// Names that were visited.
    steps: AtomicU64,
}

impl Watched {
    pub fn progress(&self) -> Progress {
        Progress { done: self.0.done.load(Ordering::Relaxed), total: self.0.total.load(Ordering::Relaxed) }
    }

    /// Cancels the job. It ends soon, and leaves nothing that could be taken for a complete result.
    pub fn cancel(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }

    pub fn is_canceled(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn lose_lock(&self) {
        self.0.lock_lost.store(true, Ordering::Relaxed);
        self.cancel();
    }

    pub(crate) fn is_lock_lost(&self) -> bool {
        self.0.lock_lost.load(Ordering::Relaxed)
    }

    /// Ends the job, because something could not be written. Only the first reason is kept, because
    /// later errors follow from it and are less clear.
    pub(crate) fn give_up(&self, why: impl FnOnce() -> String) {
        let mut unwritten = self.0.unwritten.lock();
        if !self.is_canceled() {
            *unwritten = Some(why());
            self.cancel();
        }
    }

    pub(crate) fn unwritten(&self) -> Option<String> {
        self.0.unwritten.lock().clone()
    }

    /// Counts bytes of files that were read or written.
    pub fn add(&self, bytes: u64) {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.0.total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn fail(&self, path: &std::path::Path, why: &dyn std::fmt::Display) {
        tracing::warn!(path = %path.display(), error = %why, "a file could not be processed completely");
        self.0.failed.lock().add(path, why);
    }

    /// Records something that people should know of a file, although it is as complete as it can
    /// be.
    pub(crate) fn note(&self, path: &std::path::Path, what: &dyn std::fmt::Display) {
        self.0.noted.lock().add(path, what);
    }

    pub(crate) fn vanish(&self) {
        self.0.vanished.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a file, or anything else that is no folder, that is begun.
    pub fn begin_file(&self) {
        self.0.files.fetch_add(1, Ordering::Relaxed);
    }

    /// How many files were begun. Links, pipes and the like count, too, and folders do not.
    pub fn files(&self) -> u64 {
        self.0.files.load(Ordering::Relaxed)
    }

    /// Counts everything that is done, as a sign that the job has not stopped.
    pub fn signs(&self) -> u64 {
        [&self.0.done, &self.0.files, &self.0.vanished, &self.0.steps]
            .into_iter()
            .fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Relaxed)))
    }

    /// Records that the job waits for others, so that its silence is not taken for a hang.
    pub fn waits(&self) {
        self.step();
    }

    pub(crate) fn step(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// All notes as one text, which is empty if there are none.
    pub fn notes(&self) -> String {
        let (noted, vanished) = (self.0.noted.lock(), self.0.vanished.load(Ordering::Relaxed));
        let vanished = (vanished > 0).then(|| format!("{vanished} files vanished before they were read"));
        let noted = (noted.count > 0).then(|| noted.list());
        [vanished, noted].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn failed(&self) -> Option<Unfinished> {
        let failed = self.0.failed.lock();
        (failed.count > 0).then(|| failed.clone())
    }
}

impl ProgressBars for Watched {
    fn progress(&self, kind: ProgressType, _: &str) -> Bar {
        match kind {
            ProgressType::Bytes => Bar::new(Bytes(self.clone())),
            ProgressType::Spinner | ProgressType::Counter => Bar::hidden(),
        }
    }
}

#[derive(Debug)]
struct Bytes(Watched);

impl RusticProgress for Bytes {
    fn is_hidden(&self) -> bool {
        false
    }

    fn set_length(&self, len: u64) {
        self.0.set_total(len);
    }

    fn set_title(&self, _: &str) {}

    fn inc(&self, inc: u64) {
        self.0.add(inc);
    }

    fn finish(&self) {}
}
