//! What the tests of one file share, until none of them has used it for a while: each API server
//! that nobody needs any more takes a few percent of a core, and more where programs go on beside
//! it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::{Berth, log};

/// Between two tests of one file there may be others for so long. What they share is not to be
/// started twice.
const UNUSED: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(10);

/// All that was ever started.
static ALL: Mutex<Vec<&'static dyn Ends>> = Mutex::new(Vec::new());

trait Ends: Sync {
    fn end_unused(&self);
}

/// For a `static`.
pub struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    /// An error is the same to everybody.
    there: Option<Result<Arc<T>, String>>,
    unused_since: Option<Instant>,
    is_known: bool,
}

impl<T: Send + Sync + 'static> Shared<T> {
    pub const fn unstarted() -> Self {
        Self(Mutex::new(State { there: None, unused_since: None, is_known: false }))
    }

    /// The one that is there, or else a new one. It stays for as long as somebody holds it.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn get(&'static self, start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Arc<T>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.is_known, true) {
            look_after(self);
        }
        state.unused_since = None;
        let start = || start().map(Arc::new).map_err(|error| format!("{error:#}"));
        state.there.get_or_insert_with(start).clone().map_err(|error| anyhow!("{error}"))
    }
}

/// A berth that tests of one file share. The test that fails reports its logs, and the others go on
/// with it.
pub struct SharedBerth(Arc<Berth>);

impl Shared<Berth> {
    /// [`Shared::get`], with a report.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn berth(
        &'static self,
        start: impl FnOnce() -> anyhow::Result<Berth>,
    ) -> anyhow::Result<SharedBerth> {
        self.get(start).map(SharedBerth)
    }
}

impl Deref for SharedBerth {
    type Target = Berth;

    fn deref(&self) -> &Berth {
        &self.0
    }
}

impl Drop for SharedBerth {
    fn drop(&mut self) {
        log::report_if_panicking(&self.0.logs());
    }
}

impl<T: Send + Sync + 'static> Ends for Shared<T> {
    fn end_unused(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unused = matches!(&state.there, Some(Ok(one)) if Arc::strong_count(one) == 1);
        if !is_unused {
            state.unused_since = None;
            return;
        }
        if state.unused_since.get_or_insert_with(Instant::now).elapsed() < UNUSED {
            return;
        }
        let unused = state.there.take();
        // Nobody waits for its end.
        drop(state);
        drop(unused);
    }
}

fn look_after(one: &'static dyn Ends) {
    static ONCE: Once = Once::new();
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    ONCE.call_once(|| {
        let _ = std::thread::Builder::new().name("shared".to_owned()).spawn(look);
    });
}

fn look() {
    loop {
        std::thread::sleep(LOOK);
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.into_iter().for_each(Ends::end_unused);
    }
}
