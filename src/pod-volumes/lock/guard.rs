//! The age of a lock, and whether it is still held.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::TRUSTED;
use crate::store::Store;

/// Time-out of the search for a lock.
const LOOKED_FOR: Duration = Duration::from_secs(60);

/// The lock as it was written last.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub path: Path,
    pub at: Age,
}

/// The age of something, by two clocks: one that stops while the machine sleeps, and one that
/// people can set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub instant: Instant,
    pub time: Timestamp,
}

impl Age {
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }

    /// Is this so old that other processes may soon take it for stale?
    pub fn is_old(self) -> bool {
        let by_clock = Duration::try_from(Timestamp::now().duration_since(self.time)).unwrap_or_default();
        self.instant.elapsed().max(by_clock) > TRUSTED
    }
}

/// Says whether a lock is still held. It is asked before a snapshot is written, because without the
/// lock somebody may have pruned what the snapshot refers to.
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
                // The lock was rewritten meanwhile.
                _ if self.current.lock().path != path => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }
}
