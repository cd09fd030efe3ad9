//! How old a lock is, and whether it is still held.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::TRUSTED;
use crate::store::Store;

/// How long a lock is looked for.
const LOOKED_FOR: Duration = Duration::from_secs(60);

/// The lock as it was written last.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub path: Path,
    pub at: Age,
}

/// How old something is, by the clock that stands still while the machine sleeps, and by the one
/// that people set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub instant: Instant,
    pub time: Timestamp,
}

impl Age {
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }

    /// May others take what is so old for nobody's soon?
    pub fn is_old(self) -> bool {
        let by_clock = Duration::try_from(Timestamp::now().duration_since(self.time)).unwrap_or_default();
        self.instant.elapsed().max(by_clock) > TRUSTED
    }
}

/// Tells whether a lock is still held. Asked before a snapshot is written: what it has may have
/// been pruned else.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    store: Store,
    pub current: Arc<Mutex<Written>>,
}

impl Guard {
    pub fn new(store: Store, current: Arc<Mutex<Written>>) -> Self {
        Self { store, current }
    }

    pub async fn is_held(&self) -> bool {
        timeout(LOOKED_FOR, self.look()).await.unwrap_or(false)
    }

    async fn look(&self) -> bool {
        loop {
            let Written { path, at } = self.current.lock().clone();
            if at.is_old() {
                return false;
            }
            match self.store.has(&path).await {
                Ok(true) => return !at.is_old(),
                // It was written anew meanwhile.
                _ if self.current.lock().path != path => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }
}
