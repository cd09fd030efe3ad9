//! The archive on its way to the store: one request if it is small, parts if it is not. Nothing is visible
//! under its key until all of it is there.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{DynObjectStore, MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Smallest part. S3 wants 5 MiB or more, and at most 10,000 of them.
const PART: usize = 8 * 1024 * 1024;
/// After this many parts they grow, so that 10,000 parts make about 1 TiB.
const GROW_AFTER: usize = 1000;
const PARTS_AT_ONCE: usize = 2;

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
    let mut waiting: Vec<Bytes> = Vec::new();
    let (mut waiting_size, mut size) = (0, 0);
    let mut multipart: Option<Multipart> = None;
    let result = loop {
        match parts.recv().await {
            Some(Part::Bytes(bytes)) => {
                waiting_size += bytes.len();
                size += bytes.len() as u64;
                waiting.push(bytes);
                let wanted = multipart.as_ref().map_or(PART, Multipart::part_size);
                if waiting_size < wanted {
                    continue;
                }
                let open = match multipart.take() {
                    Some(open) => Ok(open),
                    None => Multipart::start(&store, &path).await,
                };
                waiting_size = 0;
                match open {
                    Ok(open) => {
                        let open = multipart.insert(open);
                        if let Err(error) = open.put(std::mem::take(&mut waiting)).await {
                            break Err(error);
                        }
                    }
                    Err(error) => break Err(error),
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
            store.put(&path, waiting.into_iter().collect()).await.map_err(UploadError::Store)?
        }
        (Ok(()), Some(multipart)) => multipart.complete(waiting).await?,
        (Err(error), multipart) => {
            if let Some(multipart) = multipart {
                multipart.give_up().await;
            }
            return Err(error);
        }
    };
    Ok(size)
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
        PART * (1 + self.parts / GROW_AFTER * 4)
    }

    async fn put(&mut self, bytes: Vec<Bytes>) -> Result<(), UploadError> {
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

    async fn complete(mut self, rest: Vec<Bytes>) -> Result<object_store::PutResult, UploadError> {
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

    /// Once no part is on its way any more: one that comes after the end of its upload may be kept, and nobody sees it.
    async fn give_up(mut self) {
        for part in self.under_way.drain(..) {
            let _ = part.await;
        }
        let _ = self.upload.abort().await;
    }
}
