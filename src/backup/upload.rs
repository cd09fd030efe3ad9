//! The archive on its way to the store: one request if it is small, parts if it is not. Nothing is visible
//! under its key until all of it is there. What is stored of it is told as it goes on, so that another process can go on with it.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_core::claim::Claim;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{DynObjectStore, ObjectStoreExt, PutPayload};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::checkpoint::Uploaded;
use super::ledger::Contents;
use super::messages::{Part, Progress};
use crate::storage::{ClaimError, Layout, Parts, Receipt, Staged};

/// Size of every part but the last. S3 wants 5 MiB or more, and Cloudflare's R2 wants all of one size: a part ends where it is
/// full, be that in the middle of a gzip member.
pub const PART: usize = 8 * 1024 * 1024;
/// S3 takes 10,000 parts. Behind this one (39 GiB) they are larger, so that an archive may have 350 GiB, though not in R2.
const LARGE_AFTER: usize = 5000;
const LARGER: usize = 8;
const PARTS_AT_ONCE: usize = 2;
const ABORT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("failed to write the archive")]
    Store(#[source] object_store::Error),
    #[error("a part of the upload was lost")]
    Task(#[source] tokio::task::JoinError),
    #[error("the archive was given up")]
    GivenUp,
    #[error("the folder of the archive could not be looked at once more")]
    Claim(#[source] ClaimError),
}

/// Where the archive goes, and from where on.
pub struct Upload {
    pub store: Arc<DynObjectStore>,
    pub parts: Parts,
    pub path: Path,
    /// Usually [`PART`].
    pub part_size: usize,
    /// What another process has stored of it, and the bytes behind that.
    pub begun: Option<(Staged, Uploaded, Bytes)>,
    /// Who wants to know what is stored.
    pub progress: Option<mpsc::Sender<Progress>>,
    /// Where it stands as soon as it is begun in parts, whatever becomes of this: to be aborted, or to be gone on with.
    pub staged: Arc<OnceLock<Staged>>,
    /// Under which claim the archive is stored: looked at before that is to be seen. Tests do without.
    pub claimed: Option<(Layout, Claim)>,
}

/// What has to be known to put it together.
struct Target {
    store: Arc<DynObjectStore>,
    path: Path,
    claimed: Option<(Layout, Claim)>,
}

impl Target {
    /// A run that was paused for long would put its archive in place of that of the run which has its folder now.
    async fn confirm(&self) -> Result<(), UploadError> {
        match &self.claimed {
            Some((layout, claim)) => layout.confirm(claim).await.map_err(UploadError::Claim),
            None => Ok(()),
        }
    }
}

impl Upload {
    /// Returns the archive's size once it is stored.
    ///
    /// # Errors
    /// When the store refuses, or the archive ends without [`Part::End`]. Nothing of it is on its way then.
    pub async fn run(self, mut members: mpsc::Receiver<Part>) -> Result<u64, UploadError> {
        let Self { store, parts, path, part_size, begun, progress, staged: told, claimed } = self;
        let teller = Teller { progress, staged: told };
        let mut waiting = Waiting::default();
        let mut staged = None;
        if let Some((begun, uploaded, tail)) = begun {
            waiting.push(tail, Vec::new());
            teller.begun(&begun);
            staged = Some(Multipart::new(begun, uploaded.parts, part_size));
        }
        let received = receive(&parts, &path, &mut members, &mut waiting, &mut staged, &teller, part_size);
        let received = received.await;
        // Whoever still makes members learns that nobody takes them.
        drop(members);
        let target = Target { store, path, claimed };
        match (received, &mut staged) {
            (Ok(()), None) => {
                let size = waiting.size as u64;
                target.confirm().await?;
                let put = target.store.put(&target.path, waiting.take_rest().bytes).await;
                put.map(|_| size).map_err(UploadError::Store)
            }
            (Ok(()), Some(staged)) => staged.complete(waiting, &teller, &target).await,
            (Err(error), staged) => {
                if let Some(staged) = staged {
                    staged.come_to_rest(&teller).await;
                }
                Err(error)
            }
        }
    }
}

/// Makes one of all parts, which have so many `bytes`. Where the store does not do it, it may have done it: the answer to an earlier attempt may
/// have been lost.
///
/// # Errors
/// When the archive does not stand there whole.
pub async fn put_together(
    store: &DynObjectStore,
    path: &Path,
    staged: &Staged,
    receipts: &[Receipt],
    bytes: u64,
) -> object_store::Result<()> {
    let Err(error) = staged.complete(receipts).await else { return Ok(()) };
    match store.head(path).await {
        Ok(found) if found.size == bytes => Ok(()),
        _ => Err(error),
    }
}

/// Not for as long as a store is tried otherwise, because it may be what failed.
pub async fn abort(begun: &Staged) {
    let _ = tokio::time::timeout(ABORT, begun.abort()).await;
}

/// Until the archive is whole, with every part on its way that is full.
async fn receive(
    parts: &Parts,
    path: &Path,
    members: &mut mpsc::Receiver<Part>,
    waiting: &mut Waiting,
    staged: &mut Option<Multipart>,
    teller: &Teller,
    part_size: usize,
) -> Result<(), UploadError> {
    loop {
        let received = match staged {
            // What is stored is told as soon as it is, however long the next member takes.
            Some(open) if !open.under_way.is_empty() => {
                let settled = tokio::select! {
                    received = members.recv() => Err(received),
                    settled = open.oldest() => Ok(settled),
                };
                match settled {
                    Ok(settled) => {
                        open.note(settled, teller).await?;
                        continue;
                    }
                    Err(received) => received,
                }
            }
            _ => members.recv().await,
        };
        match received {
            Some(Part::Member(bytes, contents)) => waiting.push(bytes, contents),
            Some(Part::End(bytes)) => {
                waiting.push(bytes, Vec::new());
                return Ok(());
            }
            None => return Err(UploadError::GivenUp),
        }
        while let Some(full) = waiting.take(staged.as_ref().map_or(part_size, Multipart::part_size)) {
            let open = match staged.take() {
                Some(open) => open,
                None => {
                    let begun = parts.begin(path).await.map_err(UploadError::Store)?;
                    teller.begun(&begun);
                    Multipart::new(begun, Vec::new(), part_size)
                }
            };
            staged.insert(open).put(full, teller).await?;
        }
    }
}

/// What no part holds yet.
#[derive(Default)]
struct Waiting {
    rest: VecDeque<Member>,
    size: usize,
}

struct Member {
    bytes: Bytes,
    /// Taken along by the part in which it begins.
    contents: Vec<Contents>,
}

/// A part.
#[derive(Default)]
struct Full {
    bytes: PutPayload,
    /// Of the members that begin in it.
    contents: Vec<Contents>,
    /// The rest of the one that ends behind it.
    tail: Bytes,
}

impl Waiting {
    fn push(&mut self, bytes: Bytes, contents: Vec<Contents>) {
        if !bytes.is_empty() {
            self.size += bytes.len();
            self.rest.push_back(Member { bytes, contents });
        }
    }

    /// Exactly so many bytes, once they are there.
    fn take(&mut self, size: usize) -> Option<Full> {
        if self.size < size || size == 0 {
            return None;
        }
        let (mut bytes, mut full, mut lacking) = (Vec::new(), Full::default(), size);
        while lacking > 0 {
            let Some(mut member) = self.rest.pop_front() else { break };
            full.contents.append(&mut member.contents);
            if member.bytes.len() > lacking {
                full.tail = member.bytes.split_off(lacking);
                self.rest.push_front(Member { bytes: full.tail.clone(), contents: Vec::new() });
            }
            lacking -= member.bytes.len();
            bytes.push(member.bytes);
        }
        self.size -= size;
        full.bytes = bytes.into_iter().collect();
        Some(full)
    }

    /// All that is there.
    fn take_rest(self) -> Full {
        let mut full = Full::default();
        let take = |mut member: Member| {
            full.contents.append(&mut member.contents);
            member.bytes
        };
        full.bytes = self.rest.into_iter().map(take).collect();
        full
    }
}

struct Teller {
    progress: Option<mpsc::Sender<Progress>>,
    staged: Arc<OnceLock<Staged>>,
}

impl Teller {
    fn begun(&self, staged: &Staged) {
        let _ = self.staged.set(staged.clone());
    }

    async fn tell(&self, progress: Progress) {
        if let Some(teller) = &self.progress {
            // Whoever wanted to know may be gone.
            let _ = teller.send(progress).await;
        }
    }
}

struct Multipart {
    staged: Staged,
    receipts: Vec<Receipt>,
    /// Bytes of all parts, those under way included.
    offset: u64,
    under_way: VecDeque<Sending>,
    part_size: usize,
}

struct Sending {
    task: AbortOnDropHandle<object_store::Result<Receipt>>,
    contents: Vec<Contents>,
    tail: Bytes,
}

impl Multipart {
    fn new(staged: Staged, receipts: Vec<Receipt>, part_size: usize) -> Self {
        let offset = receipts.iter().map(|receipt| receipt.size).sum();
        Self { staged, receipts, offset, under_way: VecDeque::new(), part_size }
    }

    fn index(&self) -> usize {
        self.receipts.len() + self.under_way.len()
    }

    fn part_size(&self) -> usize {
        if self.index() < LARGE_AFTER { self.part_size } else { self.part_size * LARGER }
    }

    async fn put(&mut self, full: Full, teller: &Teller) -> Result<(), UploadError> {
        while self.under_way.len() >= PARTS_AT_ONCE {
            self.settle(teller).await?;
        }
        self.send(full);
        Ok(())
    }

    fn send(&mut self, full: Full) {
        let Full { bytes, contents, tail } = full;
        let (staged, index, offset) = (self.staged.clone(), self.index(), self.offset);
        self.offset += bytes.content_length() as u64;
        let task = tokio::spawn(async move { staged.put(index, offset, bytes).await });
        self.under_way.push_back(Sending { task: AbortOnDropHandle::new(task), contents, tail });
    }

    async fn settle(&mut self, teller: &Teller) -> Result<(), UploadError> {
        let settled = self.oldest().await;
        self.note(settled, teller).await
    }

    /// Waits for the oldest part on its way, if there is one. Whoever waits may give up and wait again.
    async fn oldest(&mut self) -> Result<Receipt, UploadError> {
        let Some(oldest) = self.under_way.front_mut() else { return Err(UploadError::GivenUp) };
        (&mut oldest.task).await.map_err(UploadError::Task)?.map_err(UploadError::Store)
    }

    /// What became of that one. Not to be given up: somebody counts on being told.
    async fn note(
        &mut self,
        settled: Result<Receipt, UploadError>,
        teller: &Teller,
    ) -> Result<(), UploadError> {
        let sent = self.under_way.pop_front();
        let receipt = settled?;
        let (contents, tail) = sent.map(|sent| (sent.contents, sent.tail)).unwrap_or_default();
        self.receipts.push(receipt.clone());
        let upload = self.staged.id().to_owned();
        teller.tell(Progress::Part { upload, receipt, contents, tail }).await;
        Ok(())
    }

    /// What is behind the parts becomes the last one. It holds the end of the archive, so nobody may go on behind it.
    async fn complete(
        &mut self,
        waiting: Waiting,
        teller: &Teller,
        target: &Target,
    ) -> Result<u64, UploadError> {
        while !self.under_way.is_empty() {
            self.settle(teller).await?;
        }
        let full = waiting.take_rest();
        let stored = self.staged.put(self.index(), self.offset, full.bytes).await;
        let last = stored.map_err(UploadError::Store)?;
        self.offset += last.size;
        self.receipts.push(last.clone());
        let (kept, is_kept) = oneshot::channel();
        teller.tell(Progress::Whole { receipts: vec![last], contents: full.contents, kept }).await;
        // An error says that nobody keeps anything.
        let _ = is_kept.await;
        target.confirm().await?;
        let Target { store, path, .. } = target;
        let done = put_together(&**store, path, &self.staged, &self.receipts, self.offset).await;
        done.map(|()| self.offset).map_err(UploadError::Store)
    }

    /// Until no part is on its way any more: one that comes after the end of its upload may be kept, and nobody sees it. Not for as
    /// long as the store is tried otherwise, because it may be what failed.
    async fn come_to_rest(&mut self, teller: &Teller) {
        let all = async {
            while !self.under_way.is_empty() {
                // Behind one that failed none counts.
                if self.settle(teller).await.is_err() {
                    break;
                }
            }
            while let Some(sending) = self.under_way.pop_front() {
                let _ = sending.task.await;
            }
        };
        let _ = tokio::time::timeout(ABORT, all).await;
    }
}

#[cfg(test)]
mod tests;
