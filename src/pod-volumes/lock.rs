//! restic's locks, which rustic_core does not have. A lock is a file that says which process works
//! on the repository. A job that adds to a repository or reads it writes a shared lock, and does
//! not start while another process holds the exclusive one, as `restic prune` does; restic in turn
//! does not prune while one of berth's locks exists. A job that prunes writes the exclusive lock,
//! and only if no other lock exists.

mod content;
mod guard;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use object_store::path::Path;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::warn;

use crate::fault::Fault;
use crate::store::Store;
use crate::watched::Watched;

use content::{Content, LARGEST};
use guard::{Age, Written};

pub(crate) use content::Sealer;
pub(crate) use guard::Guard;

const FOLDER: &str = "locks";
/// The three times are restic's. A lock is rewritten at this interval,
const RENEWED: Duration = Duration::from_secs(5 * 60);
/// is stale at this age, so that anybody may remove it,
const STALE: SignedDuration = SignedDuration::from_mins(30);
/// and its own job relies on it for this long after it was last rewritten.
const TRUSTED: Duration = Duration::from_secs(22 * 60);
/// Time between writing a lock and looking again for locks of others. The same as restic's.
const SETTLE: Duration = Duration::from_millis(200);
/// Time until the next attempt if a lock could not be rewritten.
const RETRY: Duration = Duration::from_secs(30);
/// Time-out for writing a lock.
const WRITTEN: Duration = Duration::from_secs(2 * 60);
const USER: &str = "berth";

/// A lock that this process holds and rewrites in time. The job is canceled if it can no longer
/// rely on the lock.
pub(crate) struct Lock {
    renewing: JoinHandle<()>,
    stop: std::sync::Arc<Notify>,
    holder: Holder,
    current: std::sync::Arc<parking_lot::Mutex<Written>>,
}

#[derive(Clone)]
struct Holder {
    store: Store,
    sealer: Sealer,
    host: String,
    is_exclusive: bool,
}

impl Lock {
    /// # Errors
    /// When somebody holds the exclusive lock, or the store fails.
    pub async fn take(store: &Store, sealer: &Sealer, host: &str, watched: &Watched) -> Result<Self, Fault> {
        Self::take_as(store, sealer, host, watched, false).await
    }

    /// Takes the exclusive lock.
    ///
    /// # Errors
    /// When another process holds any lock, or the store fails.
    pub async fn take_alone(
        store: &Store,
        sealer: &Sealer,
        host: &str,
        watched: &Watched,
    ) -> Result<Self, Fault> {
        Self::take_as(store, sealer, host, watched, true).await
    }

    async fn take_as(
        store: &Store,
        sealer: &Sealer,
        host: &str,
        watched: &Watched,
        is_exclusive: bool,
    ) -> Result<Self, Fault> {
        let (store, sealer, host) = (store.clone(), sealer.clone(), host.to_owned());
        let holder = Holder { store, sealer, host, is_exclusive };
        holder.ensure_free(true, None).await?;
        let written = holder.write().await?;
        sleep(SETTLE).await;
        if let Err(fault) = holder.ensure_free(true, Some(&written.path)).await {
            let _ = holder.store.remove(&written.path).await;
            return Err(fault);
        }
        let current = std::sync::Arc::new(parking_lot::Mutex::new(written));
        let stop = std::sync::Arc::new(Notify::new());
        let renewing = tokio::spawn({
            let (holder, watched) = (holder.clone(), watched.clone());
            let (current, stop) = (std::sync::Arc::clone(&current), std::sync::Arc::clone(&stop));
            async move { holder.keep(&current, &watched, &stop).await }
        });
        Ok(Self { renewing, stop, holder, current })
    }

    /// Checks that no process holds the exclusive lock. Writes nothing.
    ///
    /// # Errors
    /// When one does, or the store fails.
    pub async fn look(store: &Store, sealer: &Sealer) -> Result<(), Fault> {
        let (store, sealer, host) = (store.clone(), sealer.clone(), String::new());
        Holder { store, sealer, host, is_exclusive: false }.ensure_free(false, None).await
    }

    pub fn guard(&self) -> Guard {
        Guard::new(self.holder.store.clone(), std::sync::Arc::clone(&self.current))
    }

    /// Removes the lock. If that fails, the lock is stale after half an hour, and the next process
    /// that takes a lock removes it.
    pub async fn release(mut self) {
        // The write must end first, because otherwise nobody would know of the lock that it may
        // leave.
        self.stop.notify_one();
        let _ = (&mut self.renewing).await;
        let path = self.current.lock().path.clone();
        if let Err(error) = self.holder.store.remove(&path).await {
            warn!(lock = %path, %error, "the lock could not be removed");
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Holder {
    async fn write(&self) -> Result<Written, Fault> {
        // Read before the write, because others count the lock's age from the time in the file.
        let at = Age::now();
        let content = Content {
            time: at.time,
            exclusive: self.is_exclusive,
            hostname: self.host.clone(),
            username: USER.to_owned(),
            pid: std::process::id(),
        };
        let plain = serde_json::to_vec(&content).map_err(|error| Fault::Repository(error.to_string()))?;
        let sealed = self.sealer.seal(&plain);
        let sealed = sealed.ok_or_else(|| Fault::Repository("a lock could not be encrypted".to_owned()))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &sealed);
        let name: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.store.folder(FOLDER).join(name);
        let written = tokio::time::timeout(WRITTEN, self.store.write(&path, sealed)).await;
        written.map_err(|_| Fault::Repository("the store did not take a lock in time".to_owned()))??;
        Ok(Written { path, at })
    }

    /// Checks the locks of others. `removes`: also removes stale ones that berth wrote.
    async fn ensure_free(&self, removes: bool, own: Option<&Path>) -> Result<(), Fault> {
        for (name, size) in self.store.list(FOLDER).await? {
            if name.len() != 64 {
                continue;
            }
            let path = self.store.folder(FOLDER).join(name.as_str());
            if own == Some(&path) {
                continue;
            }
            if size > LARGEST {
                return Err(Fault::Lock(name));
            }
            let sealed = match self.store.read(&path).await {
                Ok(sealed) => sealed,
                Err(object_store::Error::NotFound { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            // restic writes a lock in one request, but some stores show the file before its
            // content. An empty file is not a lock yet.
            if sealed.is_empty() {
                continue;
            }
            let content = self.sealer.unseal(&sealed).and_then(|plain| serde_json::from_slice(&plain).ok());
            let content: Content = content.ok_or(Fault::Lock(name))?;
            let is_own = content.username == USER;
            // The absolute value, because a lock from a clock that was wrong may be as far in the
            // future, and would otherwise stay for that time.
            let age = Timestamp::now().duration_since(content.time).abs();
            if removes && is_own && age > STALE {
                self.store.remove(&path).await?;
                continue;
            }
            let place = self.store.place().to_owned();
            let who = format!("{}@{}, process {}", content.username, content.hostname, content.pid);
            let since = content.time.to_string();
            if content.exclusive {
                return Err(Fault::Locked { place, who, since, is_own });
            }
            if self.is_exclusive {
                return Err(Fault::InUse { place, who, since });
            }
        }
        Ok(())
    }

    async fn keep(&self, current: &parking_lot::Mutex<Written>, watched: &Watched, stop: &Notify) {
        let mut pause = RENEWED;
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.notified() => return,
            }
            let before = current.lock().at;
            let written = self.write().await;
            // Another process may have taken the old lock for stale, removed it, and pruned what
            // this job relies on.
            if before.is_old() {
                watched.lose_lock();
                if let Ok(written) = written {
                    let _ = tokio::time::timeout(WRITTEN, self.store.remove(&written.path)).await;
                }
                return;
            }
            match written {
                Ok(written) => {
                    let old = std::mem::replace(&mut *current.lock(), written).path;
                    pause = RENEWED;
                    let removed = tokio::time::timeout(WRITTEN, self.store.remove(&old)).await;
                    if !matches!(removed, Ok(Ok(()))) {
                        warn!(lock = %old, "an older lock could not be removed");
                    }
                }
                Err(error) => {
                    warn!(%error, "the lock of the repository could not be renewed");
                    pause = RETRY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
