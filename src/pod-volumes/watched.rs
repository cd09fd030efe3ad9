//! How far a job is, and whether it is to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustic_core::{Progress as Bar, ProgressBars, ProgressType, RusticProgress};

use crate::fault::Unfinished;

/// Bytes of files: those that were read or written, and of how many. The total is 0 while it is being counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

/// What a job and those that wait for it have in common.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    lock_lost: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    failed: Mutex<Unfinished>,
}

impl Watched {
    pub fn progress(&self) -> Progress {
        Progress { done: self.0.done.load(Ordering::Relaxed), total: self.0.total.load(Ordering::Relaxed) }
    }

    /// Has the job end soon, with nothing that anybody could take for whole.
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

    pub(crate) fn add(&self, bytes: u64) {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.0.total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn fail(&self, path: &std::path::Path, why: &dyn std::fmt::Display) {
        tracing::warn!(path = %path.display(), error = %why, "a file is not whole");
        self.0.failed.lock().add(path, why);
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
