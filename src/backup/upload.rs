//! Sends the archive to the store: in one request if it is small, otherwise in parts. Nothing is
//! visible under its key until all of it is there. The upload reports what is stored, so that
//! another process can continue.

mod pending;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_core::claim::FolderClaim;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{DynObjectStore, ObjectStoreExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::checkpoint::Uploaded;
use super::ledger::Contents;
use super::messages::{ArchivePart, UploadProgress};
use crate::storage::{BackupLayout, ClaimError, MultipartTarget, Receipt, Staged};
use pending::{Full, PendingBytes};

/// Size of every part but the last. S3 needs 5 MiB or more, and Cloudflare's R2 needs all of one
/// size: a part ends where it is full, even in the middle of a gzip member.
pub const PART: usize = 8 * 1024 * 1024;
/// S3 takes 10,000 parts. Behind this one (39 GiB) they are larger, so that an archive may have 350
/// GiB, though not in R2.
const LARGE_AFTER: usize = 5000;
const LARGER: usize = 8;
const PARTS_AT_ONCE: usize = 2;
const ABORT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("failed to write the archive")]
    Store(#[source] object_store::Error),
    #[error("a task that sent a part of the archive ended abnormally, which is a fault of berth")]
    Task(#[source] tokio::task::JoinError),
    #[error("the archive has no end, because the run is ending")]
    GivenUp,
    #[error("could not check the claim on the archive's folder")]
    Claim(#[source] ClaimError),
}

/// Where the archive goes, and from where it continues.
pub struct ArchiveUpload {
    pub store: Arc<DynObjectStore>,
    pub parts: MultipartTarget,
    pub path: Path,
    /// Usually [`PART`].
    pub part_size: usize,
    /// What another process has stored of it, and the bytes behind that.
    pub begun: Option<(Staged, Uploaded, Bytes)>,
    /// Receives what is stored.
    pub progress: Option<mpsc::Sender<UploadProgress>>,
    /// Set when a multipart upload begins, whatever becomes of it, so that it can be aborted or
    /// continued.
    pub staged: Arc<OnceLock<Staged>>,
    /// The claim under which the archive is stored, checked before the archive becomes visible.
    /// Tests do without.
    pub claimed: Option<(BackupLayout, FolderClaim)>,
}

/// What completing the archive needs.
struct UploadTarget {
    store: Arc<DynObjectStore>,
    path: Path,
    claimed: Option<(BackupLayout, FolderClaim)>,
}

impl UploadTarget {
    /// Checks the claim, because a run that was paused for long would replace the archive of the
    /// run that has the folder now.
    async fn confirm(&self) -> Result<(), UploadError> {
        match &self.claimed {
            Some((layout, claim)) => layout.confirm(claim).await.map_err(UploadError::Claim),
            None => Ok(()),
        }
    }
}

impl ArchiveUpload {
    /// Returns the archive's size once it is stored, or its size so far where it rests.
    ///
    /// # Errors
    /// When the store refuses, or the archive ends without [`ArchivePart::End`]. Then nothing is on
    /// its way any more.
    pub async fn run(self, mut members: mpsc::Receiver<ArchivePart>) -> Result<u64, UploadError> {
        let Self { store, parts, path, part_size, begun, progress, staged: told, claimed } = self;
        let teller = ProgressReporter { progress, staged: told };
        let mut waiting = PendingBytes::default();
        let mut staged = None;
        if let Some((begun, uploaded, tail)) = begun {
            waiting.end = uploaded.size();
            waiting.push(tail, Vec::new());
            teller.begun(&begun);
            staged = Some(Multipart::new(begun, uploaded.parts, part_size));
        }
        let received = receive(&parts, &path, &mut members, &mut waiting, &mut staged, &teller, part_size);
        let received = received.await;
        // Packers that still send members learn that the upload has ended.
        drop(members);
        let target = UploadTarget { store, path, claimed };
        match (received, &mut staged) {
            (Ok(Received::All), None) => {
                let size = waiting.size as u64;
                target.confirm().await?;
                let put = target.store.put(&target.path, waiting.take_rest().bytes).await;
                put.map(|_| size).map_err(UploadError::Store)
            }
            (Ok(Received::All), Some(staged)) => staged.complete(waiting, &teller, &target).await,
            (Ok(Received::Some), staged) => {
                let staged = match staged {
                    Some(staged) => staged,
                    // Even of a small archive, so that a later run continues each in the same way.
                    None => {
                        let begun = parts.begin(&target.path).await.map_err(UploadError::Store)?;
                        teller.begun(&begun);
                        staged.insert(Multipart::new(begun, Vec::new(), part_size))
                    }
                };
                staged.rest(waiting, &teller).await
            }
            (Err(error), staged) => {
                if let Some(staged) = staged {
                    staged.come_to_rest(&teller).await;
                }
                Err(error)
            }
        }
    }
}

/// Completes the upload of all parts, which have `bytes` bytes. If that fails it may already be
/// complete, because the answer to an earlier attempt may have been lost.
///
/// # Errors
/// When the archive is not in the store as a whole.
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

/// Aborts an upload. Tries less long than other requests, because the store may be what failed.
pub async fn abort(begun: &Staged) {
    let _ = tokio::time::timeout(ABORT, begun.abort()).await;
}

/// Receives members until the archive is complete, and sends every full part.
async fn receive(
    parts: &MultipartTarget,
    path: &Path,
    members: &mut mpsc::Receiver<ArchivePart>,
    waiting: &mut PendingBytes,
    staged: &mut Option<Multipart>,
    teller: &ProgressReporter,
    part_size: usize,
) -> Result<Received, UploadError> {
    loop {
        let received = match staged {
            // Report a stored part at once, however long the next member takes.
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
            Some(ArchivePart::Member(bytes, contents)) => waiting.push(bytes, contents),
            Some(ArchivePart::End(bytes)) => {
                waiting.push(bytes, Vec::new());
                return Ok(Received::All);
            }
            Some(ArchivePart::Rest) => return Ok(Received::Some),
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

/// What there is of the archive when no more members come.
enum Received {
    All,
    /// A later run adds the rest.
    Some,
}

struct ProgressReporter {
    progress: Option<mpsc::Sender<UploadProgress>>,
    staged: Arc<OnceLock<Staged>>,
}

impl ProgressReporter {
    fn begun(&self, staged: &Staged) {
        let _ = self.staged.set(staged.clone());
    }

    async fn tell(&self, progress: UploadProgress) {
        if let Some(teller) = &self.progress {
            // The receiver may be gone.
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

    async fn put(&mut self, full: Full, teller: &ProgressReporter) -> Result<(), UploadError> {
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

    async fn settle(&mut self, teller: &ProgressReporter) -> Result<(), UploadError> {
        let settled = self.oldest().await;
        self.note(settled, teller).await
    }

    /// Waits for the oldest part under way, if there is one. The future may be dropped and the wait
    /// repeated.
    async fn oldest(&mut self) -> Result<Receipt, UploadError> {
        let Some(oldest) = self.under_way.front_mut() else { return Err(UploadError::GivenUp) };
        (&mut oldest.task).await.map_err(UploadError::Task)?.map_err(UploadError::Store)
    }

    /// Notes the result of that part. Must not be dropped, because the receiver counts on the
    /// report.
    async fn note(
        &mut self,
        settled: Result<Receipt, UploadError>,
        teller: &ProgressReporter,
    ) -> Result<(), UploadError> {
        let sent = self.under_way.pop_front();
        let receipt = settled?;
        let (contents, tail) = sent.map(|sent| (sent.contents, sent.tail)).unwrap_or_default();
        self.receipts.push(receipt.clone());
        let upload = self.staged.id().to_owned();
        teller.tell(UploadProgress::Part { upload, receipt, contents, tail }).await;
        Ok(())
    }

    /// Sends the rest as the last part. It holds the end of the archive, so no run may continue
    /// behind it.
    async fn complete(
        &mut self,
        waiting: PendingBytes,
        teller: &ProgressReporter,
        target: &UploadTarget,
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
        teller.tell(UploadProgress::Whole { receipts: vec![last], contents: full.contents, kept }).await;
        // An error says that no keeper is there.
        let _ = is_kept.await;
        target.confirm().await?;
        let UploadTarget { store, path, .. } = target;
        let done = put_together(&**store, path, &self.staged, &self.receipts, self.offset).await;
        done.map(|()| self.offset).map_err(UploadError::Store)
    }

    /// Leaves the rest to the checkpoint, from which a later run continues.
    async fn rest(&mut self, waiting: PendingBytes, teller: &ProgressReporter) -> Result<u64, UploadError> {
        while !self.under_way.is_empty() {
            self.settle(teller).await?;
        }
        let Full { bytes, contents, .. } = waiting.take_rest();
        let tail = Bytes::from(bytes);
        let size = self.offset + tail.len() as u64;
        let (kept, is_kept) = oneshot::channel();
        let upload = self.staged.id().to_owned();
        teller.tell(UploadProgress::Resting { upload, tail, contents, kept }).await;
        // An error says that no keeper is there.
        let _ = is_kept.await;
        Ok(size)
    }

    /// Waits until no part is under way, because a store may keep a part that arrives after the end
    /// of its upload, invisibly. Waits less long than other requests, because the store may be what
    /// failed.
    async fn come_to_rest(&mut self, teller: &ProgressReporter) {
        let all = async {
            while !self.under_way.is_empty() {
                // Parts behind a failed one do not count.
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
