//! The archive on its way to the store: one request if it is small, parts if it is not. Nothing is visible
//! under its key until all of it is there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{DynObjectStore, MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Size of every part but the last. S3 wants 5 MiB or more, and Cloudflare's R2 wants all of one size: a part ends where it is
/// full, be that in the middle of a gzip member.
const PART: usize = 8 * 1024 * 1024;
/// S3 takes 10,000 parts. Behind this one (39 GiB) they are larger, so that an archive may have 350 GiB, though not in R2.
const LARGE_AFTER: usize = 5000;
const LARGE_PART: usize = 64 * 1024 * 1024;
const PARTS_AT_ONCE: usize = 2;
const ABORT: Duration = Duration::from_secs(60);

/// What the archive's makers send.
pub enum Part {
    Bytes(Bytes),
    /// The archive is whole. Without it the upload is given up.
    End,
}

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("failed to write the archive")]
    Store(#[source] object_store::Error),
    #[error("a part of the upload was lost")]
    Task(#[source] tokio::task::JoinError),
    #[error("the archive was given up")]
    GivenUp,
}

/// Returns the archive's size once it is stored.
///
/// # Errors
/// When the store refuses, or the archive ends without [`Part::End`]. Nothing is left behind then.
pub async fn upload(
    store: Arc<DynObjectStore>,
    path: Path,
    mut parts: mpsc::Receiver<Part>,
) -> Result<u64, UploadError> {
    let mut waiting = Waiting::default();
    let mut size = 0;
    let mut multipart: Option<Multipart> = None;
    let result = loop {
        match parts.recv().await {
            Some(Part::Bytes(bytes)) => {
                size += bytes.len() as u64;
                waiting.push(bytes);
                if let Err(error) = put_full(&store, &path, &mut waiting, &mut multipart).await {
                    break Err(error);
                }
            }
            Some(Part::End) => break Ok(()),
            None => break Err(UploadError::GivenUp),
        }
    };
    // Whoever still makes members learns that nobody takes them.
    drop(parts);
    match (result, multipart) {
        (Ok(()), None) => {
            store.put(&path, waiting.rest.into_iter().collect()).await.map_err(UploadError::Store)?
        }
        (Ok(()), Some(multipart)) => multipart.complete(waiting.rest).await?,
        (Err(error), multipart) => {
            if let Some(multipart) = multipart {
                multipart.give_up().await;
            }
            return Err(error);
        }
    };
    Ok(size)
}

/// What no part holds yet.
#[derive(Default)]
struct Waiting {
    rest: VecDeque<Bytes>,
    size: usize,
}

impl Waiting {
    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.size += bytes.len();
            self.rest.push_back(bytes);
        }
    }

    /// Exactly so many bytes, once they are there.
    fn take(&mut self, size: usize) -> Option<VecDeque<Bytes>> {
        if self.size < size {
            return None;
        }
        let (mut part, mut lacking) = (VecDeque::new(), size);
        while let Some(mut bytes) = self.rest.pop_front() {
            if bytes.len() > lacking {
                self.rest.push_front(bytes.split_off(lacking));
            }
            lacking -= bytes.len();
            part.push_back(bytes);
            if lacking == 0 {
                break;
            }
        }
        self.size -= size;
        Some(part)
    }
}

/// Every part that is full goes.
async fn put_full(
    store: &Arc<DynObjectStore>,
    path: &Path,
    waiting: &mut Waiting,
    multipart: &mut Option<Multipart>,
) -> Result<(), UploadError> {
    while let Some(part) = waiting.take(multipart.as_ref().map_or(PART, Multipart::part_size)) {
        let open = match multipart.take() {
            Some(open) => open,
            None => Multipart::start(store, path).await?,
        };
        multipart.insert(open).put(part).await?;
    }
    Ok(())
}

struct Multipart {
    upload: Box<dyn MultipartUpload>,
    under_way: VecDeque<JoinHandle<object_store::Result<()>>>,
    parts: usize,
}

impl Multipart {
    async fn start(store: &Arc<DynObjectStore>, path: &Path) -> Result<Self, UploadError> {
        let upload = store.put_multipart(path).await.map_err(UploadError::Store)?;
        Ok(Self { upload, under_way: VecDeque::new(), parts: 0 })
    }

    fn part_size(&self) -> usize {
        if self.parts < LARGE_AFTER { PART } else { LARGE_PART }
    }

    async fn put(&mut self, bytes: VecDeque<Bytes>) -> Result<(), UploadError> {
        while self.under_way.len() >= PARTS_AT_ONCE {
            self.settle().await?;
        }
        self.parts += 1;
        let payload: PutPayload = bytes.into_iter().collect();
        self.under_way.push_back(tokio::spawn(self.upload.put_part(payload)));
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), UploadError> {
        match self.under_way.pop_front() {
            Some(part) => part.await.map_err(UploadError::Task)?.map_err(UploadError::Store),
            None => Ok(()),
        }
    }

    async fn complete(mut self, rest: VecDeque<Bytes>) -> Result<object_store::PutResult, UploadError> {
        let finished = async {
            if !rest.is_empty() {
                self.put(rest).await?;
            }
            while !self.under_way.is_empty() {
                self.settle().await?;
            }
            self.upload.complete().await.map_err(UploadError::Store)
        };
        let result = finished.await;
        if result.is_err() {
            self.give_up().await;
        }
        result
    }

    /// Once no part is on its way any more: one that comes after the end of its upload may be kept, and nobody sees it. Not for as
    /// long as the store is tried otherwise, because it may be what failed.
    async fn give_up(mut self) {
        let parts = std::mem::take(&mut self.under_way);
        let all = async {
            for part in parts {
                let _ = part.await;
            }
            let _ = self.upload.abort().await;
        };
        let _ = tokio::time::timeout(ABORT, all).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_one_size_whatever_arrives() {
        let mut waiting = Waiting::default();
        let (mut parts, mut sent, mut next) = (Vec::new(), Vec::new(), 0_u8);
        for length in [3, 10, 0, 1, 29, 7, 4] {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    next += 1;
                    next
                })
                .collect();
            sent.extend_from_slice(&bytes);
            waiting.push(bytes.into());
            while let Some(part) = waiting.take(8) {
                parts.push(part.iter().map(Bytes::len).sum::<usize>());
                sent.drain(..8).zip(part.iter().flatten()).for_each(|(a, b)| assert_eq!(a, *b));
            }
        }
        assert_eq!(parts, [8; 6]);
        assert_eq!(waiting.size, 6);
        assert!(waiting.rest.iter().flatten().eq(sent.iter()));
    }
}
