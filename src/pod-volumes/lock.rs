//! restic's locks, which rustic_core does not know. A lock is a file that says who works on the
//! repository. Who adds to a repository or reads it writes a lock that several may hold, and begins
//! nothing while somebody holds the exclusive one, as `restic prune` does; restic does not prune
//! while a lock of berth is there. Who prunes writes the exclusive one, once nobody else has any.

use std::time::Duration;

use aes256ctr_poly1305aes::aead::Aead;
use aes256ctr_poly1305aes::{Aes256CtrPoly1305Aes, Key, Nonce};
use jiff::{SignedDuration, Timestamp};
use object_store::path::Path;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustic_core::repofile::MasterKey;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::fault::Fault;
use crate::store::Store;
use crate::watched::Watched;

const FOLDER: &str = "locks";
/// restic's: a lock is written anew so often,
const RENEWED: Duration = Duration::from_secs(5 * 60);
/// is nobody's when it is so old,
const STALE: SignedDuration = SignedDuration::from_mins(30);
/// and is trusted so long without having been written anew.
const TRUSTED: Duration = Duration::from_secs(22 * 60);
/// Between a lock and the second look for those of others. As long as restic's.
const SETTLE: Duration = Duration::from_millis(200);
/// A lock that could not be written anew is tried again so soon.
const RETRY: Duration = Duration::from_secs(30);
/// How long a lock may take to be written.
const WRITTEN: Duration = Duration::from_secs(2 * 60);
/// How long a lock is looked for.
const LOOKED_FOR: Duration = Duration::from_secs(60);
/// A lock has some hundred bytes.
const LARGEST: u64 = 64 * 1024;
/// What restic writes before what it compressed.
const COMPRESSED: u8 = 2;
const USER: &str = "berth";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    time: Timestamp,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    pid: u32,
}

/// The key of a repository, for its locks.
#[derive(Clone)]
pub(crate) struct Sealer(Key);

impl Sealer {
    /// `None`: the key has not the size of a key.
    pub fn new(key: &MasterKey) -> Option<Self> {
        let bytes = [key.encrypt.as_slice(), &key.mac.k, &key.mac.r].concat();
        let sizes = (key.encrypt.len(), key.mac.k.len(), key.mac.r.len());
        (sizes == (32, 16, 16)).then(|| Self(*Key::from_slice(&bytes)))
    }

    fn seal(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = Nonce::default();
        SystemRandom::new().fill(&mut nonce).ok()?;
        let sealed = Aes256CtrPoly1305Aes::new(&self.0).encrypt(&nonce, plain).ok()?;
        Some([nonce.as_slice(), &sealed].concat())
    }

    fn unseal(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(16)?;
        let plain = Aes256CtrPoly1305Aes::new(&self.0).decrypt(Nonce::from_slice(nonce), sealed).ok()?;
        match plain.split_first() {
            Some((&COMPRESSED, compressed)) => {
                let mut reader = zstd::Decoder::new(compressed).ok()?;
                let mut plain = Vec::new();
                std::io::Read::read_to_end(&mut std::io::Read::take(&mut reader, LARGEST), &mut plain)
                    .ok()?;
                Some(plain)
            }
            _ => Some(plain),
        }
    }
}

/// The lock as it was written last.
#[derive(Clone, Debug)]
struct Written {
    path: Path,
    at: Age,
}

/// How old something is, by the clock that stands still while the machine sleeps, and by the one
/// that people set.
#[derive(Clone, Copy, Debug)]
struct Age {
    instant: Instant,
    time: Timestamp,
}

impl Age {
    fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }

    /// May others take what is so old for nobody's soon?
    fn is_old(self) -> bool {
        let by_clock = Duration::try_from(Timestamp::now().duration_since(self.time)).unwrap_or_default();
        self.instant.elapsed().max(by_clock) > TRUSTED
    }
}

/// Tells whether a lock is still held. Asked before a snapshot is written: what it has may have
/// been pruned else.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    store: Store,
    current: std::sync::Arc<parking_lot::Mutex<Written>>,
}

impl Guard {
    pub async fn is_held(&self) -> bool {
        tokio::time::timeout(LOOKED_FOR, self.look()).await.unwrap_or(false)
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

/// A lock that is held. It is written anew in time; a job that cannot rely on it any more is
/// canceled.
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

    /// The lock that nobody else may hold beside any other.
    ///
    /// # Errors
    /// When somebody holds one, or the store fails.
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

    /// Looks whether somebody holds the exclusive lock, and writes nothing.
    ///
    /// # Errors
    /// When somebody does, or the store fails.
    pub async fn look(store: &Store, sealer: &Sealer) -> Result<(), Fault> {
        let (store, sealer, host) = (store.clone(), sealer.clone(), String::new());
        Holder { store, sealer, host, is_exclusive: false }.ensure_free(false, None).await
    }

    pub fn guard(&self) -> Guard {
        Guard { store: self.holder.store.clone(), current: std::sync::Arc::clone(&self.current) }
    }

    /// A lock that cannot be removed is stale after half an hour: then whoever takes the next one
    /// removes it.
    pub async fn release(mut self) {
        // Not in the middle of a write: nobody would know of the lock that it leaves.
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
        // Others count from what the lock says.
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

    /// Looks at all locks but its own. `removes`: those of berth that nobody holds any more.
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
            // restic writes a lock in one go, but not every store shows it in one: an empty one is
            // none yet.
            if sealed.is_empty() {
                continue;
            }
            let content = self.sealer.unseal(&sealed).and_then(|plain| serde_json::from_slice(&plain).ok());
            let content: Content = content.ok_or(Fault::Lock(name))?;
            let is_own = content.username == USER;
            // Also where it is so far in the future: a clock was wrong, and would keep the lock for
            // as long.
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
            // The lock that was there until now may have been removed, and what this job relies on
            // with it.
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
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};

    use super::*;

    fn sealer() -> Sealer {
        Sealer::new(&MasterKey::new()).unwrap()
    }

    fn store() -> Store {
        Store::new(Arc::new(InMemory::new()), Path::from("restic/n"))
    }

    async fn put(store: &Store, sealer: &Sealer, content: &Content, name: char) {
        let sealed = sealer.seal(&serde_json::to_vec(content).unwrap()).unwrap();
        store.write(&store.folder(FOLDER).join(name.to_string().repeat(64)), sealed).await.unwrap();
    }

    fn content(exclusive: bool, username: &str, age: SignedDuration) -> Content {
        let time = Timestamp::now() - age;
        Content { time, exclusive, hostname: "h".into(), username: username.into(), pid: 1 }
    }

    #[tokio::test]
    async fn an_exclusive_lock_is_respected_however_old_and_others_are_not_waited_for() {
        let (store, sealer, watched) = (store(), sealer(), Watched::default());
        put(&store, &sealer, &content(false, "root", SignedDuration::ZERO), 'a').await;
        Lock::take(&store, &sealer, "n1", &watched).await.unwrap().release().await;
        assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
        put(&store, &sealer, &content(true, "root", SignedDuration::from_hours(3)), 'b').await;
        let Err(fault) = Lock::take(&store, &sealer, "n1", &watched).await else {
            unreachable!("it is locked")
        };
        let text = fault.to_string();
        assert!(
            text.contains("locked exclusively by root@h, process 1") && text.contains("unlock"),
            "{text}"
        );
        assert_eq!(store.list(FOLDER).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn what_a_dead_process_of_berth_left_goes() {
        let (store, sealer) = (store(), sealer());
        put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(31)), 'a').await;
        put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(29)), 'b').await;
        put(&store, &sealer, &content(false, "root", SignedDuration::from_mins(31)), 'c').await;
        // Of a clock that was a day early.
        put(&store, &sealer, &content(true, USER, SignedDuration::from_hours(-24)), 'd').await;
        Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap().release().await;
        let left: Vec<String> = store.list(FOLDER).await.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["b".repeat(64), "c".repeat(64)]);
    }

    #[tokio::test]
    async fn the_exclusive_lock_is_for_one_alone_and_nobody_begins_beside_it() {
        let (store, sealer, watched) = (store(), sealer(), Watched::default());
        let names = async || store.list(FOLDER).await.unwrap().len();
        let shared = Lock::take(&store, &sealer, "n1", &watched).await.unwrap();
        let refused = Lock::take_alone(&store, &sealer, "n2", &watched).await.err().unwrap();
        assert!(matches!(refused, Fault::InUse { .. }), "{refused}");
        assert_eq!(names().await, 1, "nothing of the one that was refused is left");
        shared.release().await;
        let alone = Lock::take_alone(&store, &sealer, "n2", &watched).await.unwrap();
        for refused in [
            Lock::take(&store, &sealer, "n1", &watched).await.err().unwrap(),
            Lock::take_alone(&store, &sealer, "n1", &watched).await.err().unwrap(),
            Lock::look(&store, &sealer).await.unwrap_err(),
        ] {
            assert!(matches!(refused, Fault::Locked { is_own: true, .. }), "{refused}");
        }
        alone.release().await;
        assert_eq!(names().await, 0);
        // Of a process that was killed it is nobody's after a while; of others it is not berth's to
        // remove.
        put(&store, &sealer, &content(true, USER, SignedDuration::from_mins(31)), 'a').await;
        Lock::take_alone(&store, &sealer, "n1", &watched).await.unwrap().release().await;
        put(&store, &sealer, &content(false, "root", SignedDuration::from_hours(31)), 'b').await;
        assert!(matches!(Lock::take_alone(&store, &sealer, "n1", &watched).await, Err(Fault::InUse { .. })));
        assert_eq!(names().await, 1);
    }

    #[tokio::test]
    async fn who_only_reads_leaves_all_locks_alone() {
        let (store, sealer) = (store(), sealer());
        put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(31)), 'a').await;
        Lock::look(&store, &sealer).await.unwrap();
        assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
        put(&store, &sealer, &content(true, "root", SignedDuration::ZERO), 'b').await;
        assert!(matches!(Lock::look(&store, &sealer).await, Err(Fault::Locked { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_released_while_it_is_written_anew_leaves_none() {
        let slow =
            ThrottleConfig { wait_delete_per_call: Duration::from_secs(10), ..ThrottleConfig::default() };
        let objects = ThrottledStore::new(InMemory::new(), slow);
        let (store, sealer) = (Store::new(Arc::new(objects), Path::from("restic/n")), sealer());
        let lock = Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap();
        // The new one is written, and the old one is being removed.
        sleep(RENEWED + Duration::from_secs(5)).await;
        lock.release().await;
        assert!(store.list(FOLDER).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_lock_that_is_gone_or_old_is_not_held() {
        let (store, sealer) = (store(), sealer());
        let lock = Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap();
        let guard = lock.guard();
        assert!(guard.is_held().await);
        let age = guard.current.lock().at;
        // As after a sleep of the machine, in which the other clock stood still.
        guard.current.lock().at = Age { time: age.time - SignedDuration::from_mins(23), ..age };
        assert!(!guard.is_held().await);
        guard.current.lock().at = age;
        assert!(guard.is_held().await);
        let path = guard.current.lock().path.clone();
        store.remove(&path).await.unwrap();
        assert!(!guard.is_held().await);
    }

    #[tokio::test]
    async fn a_lock_of_another_key_is_no_lock_to_pass_over() {
        let store = store();
        put(&store, &sealer(), &content(false, "root", SignedDuration::ZERO), 'a').await;
        assert!(matches!(
            Lock::take(&store, &sealer(), "n1", &Watched::default()).await,
            Err(Fault::Lock(name)) if name == "a".repeat(64)
        ));
    }
}
