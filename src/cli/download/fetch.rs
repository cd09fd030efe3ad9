//! Reading an artifact from its URL: as it is stored, or unpacked.

use std::io::{self, Read};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, Bytes};
use flate2::read::MultiGzDecoder;
use futures::{Stream, StreamExt as _};
use http::header::{CONTENT_RANGE, RANGE};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::backup::index::ByteRange;
use crate::storage::locked_until;
use crate::text::printable;

const CONNECT: Duration = Duration::from_secs(10);
/// An unpacked artifact that is held in memory may be no larger.
const LARGEST: u64 = 64 << 20;
/// Pieces that are read ahead of whoever unpacks them.
const AHEAD: usize = 4;
/// Bytes that are read of an answer that is no success.
const SAID: usize = 4096;
const LATE: &str = "the download took too long: --timeout sets how long it may take";

/// Fetches from URLs.
pub struct Fetcher {
    client: reqwest::Client,
    is_insecure: bool,
    locked: Mutex<Option<Timestamp>>,
}

/// What became of a fetch.
pub enum Unpacked<T> {
    /// The store has no such artifact.
    Missing,
    Read(T),
}

impl Fetcher {
    /// `authorities`: PEM texts, with where they are from.
    ///
    /// # Errors
    /// When a text holds no certificate.
    pub fn new(authorities: &[(String, Vec<u8>)], is_insecure: bool) -> anyhow::Result<Self> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            // One file is fetched over one connection, which every server can do.
            .http1_only()
            // A signed URL leads to where it says. Whoever is there does not get the URL itself, by
            // which the backup can be read.
            .redirect(reqwest::redirect::Policy::limited(3))
            .referer(false);
        let mut certificates = Vec::new();
        for (origin, text) in authorities {
            let read = reqwest::Certificate::from_pem_bundle(text);
            let read = read.with_context(|| format!("{origin} is no PEM certificate"))?;
            if read.is_empty() {
                bail!("{origin} holds no PEM certificate");
            }
            certificates.extend(read);
        }
        if is_insecure {
            builder = builder.tls_danger_accept_invalid_certs(true);
        } else if !certificates.is_empty() {
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().context("no HTTP client could be made")?;
        Ok(Self { client, is_insecure, locked: Mutex::default() })
    }

    /// Until when the store keeps what was fetched, as far as it says so: the last such time.
    pub fn locked_until(&self) -> Option<Timestamp> {
        *self.locked.lock()
    }

    /// Asks for the first byte of an artifact, for [`Fetcher::locked_until`]. Returns how many
    /// bytes the artifact has, if it is there and the store says so.
    ///
    /// # Errors
    /// When the store fails or is late.
    pub async fn touch(&self, url: &str, deadline: Instant) -> anyhow::Result<Option<u64>> {
        match self.answer(url, Some(ByteRange { from: 0, to: 1 }), deadline).await? {
            Unpacked::Missing => Ok(None),
            Unpacked::Read(answer) => Ok(size(&answer)),
        }
    }

    async fn answer(
        &self,
        url: &str,
        piece: Option<ByteRange>,
        deadline: Instant,
    ) -> anyhow::Result<Unpacked<reqwest::Response>> {
        let mut request = self.client.get(url);
        if let Some(ByteRange { from, to }) = piece {
            request = request.header(RANGE, format!("bytes={from}-{}", to.saturating_sub(1)));
        }
        let sent = timeout_at(deadline, request.send()).await.context("the store did not answer in time")?;
        let answer = match sent {
            Ok(answer) => answer,
            Err(error) => {
                // The URL is signed: whoever sees it may read the backup.
                let error = anyhow::Error::new(error.without_url());
                let text = format!("{error:#}").to_lowercase();
                if !self.is_insecure && (text.contains("certificate") || text.contains("unknownissuer")) {
                    return Err(error.context(
                        "the store's certificate is not trusted: name its authority by --cacert FILE, or accept any by --insecure-skip-tls-verify",
                    ));
                }
                return Err(error.context("the store cannot be reached from here"));
            }
        };
        let status = answer.status();
        if status == reqwest::StatusCode::NOT_FOUND {
            return Ok(Unpacked::Missing);
        }
        if !status.is_success() {
            let body = timeout_at(deadline, beginning(answer)).await.unwrap_or_default();
            let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
            let said = code.map_or(body.as_str(), |(code, _)| code);
            bail!("the store answered {status}: {}", printable(said.trim()));
        }
        {
            let mut locked = self.locked.lock();
            *locked = (*locked).max(locked_until(answer.headers()));
        }
        Ok(Unpacked::Read(answer))
    }

    /// The first bytes of an artifact, as they are stored: `most` at most.
    ///
    /// # Errors
    /// When the store fails or is late.
    pub async fn start(&self, url: &str, most: usize, deadline: Instant) -> anyhow::Result<Unpacked<Bytes>> {
        let range = ByteRange { from: 0, to: most as u64 };
        let Unpacked::Read(mut answer) = self.answer(url, Some(range), deadline).await? else {
            return Ok(Unpacked::Missing);
        };
        let mut start = Vec::new();
        while start.len() < most {
            let piece = timeout_at(deadline, answer.chunk()).await.context("the download took too long")?;
            let piece = piece.map_err(reqwest::Error::without_url).context("the download was cut off")?;
            let Some(piece) = piece else { break };
            let room = piece.len().min(most - start.len());
            start.extend_from_slice(piece.get(..room).unwrap_or_default());
        }
        Ok(Unpacked::Read(start.into()))
    }

    /// Gives the bytes of the artifact, as they are stored, to `keep`.
    ///
    /// # Errors
    /// When the store fails or is late, or `keep` fails.
    pub async fn raw(
        &self,
        url: &str,
        deadline: Instant,
        mut keep: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> anyhow::Result<Unpacked<u64>> {
        let Unpacked::Read(answer) = self.answer(url, None, deadline).await? else {
            return Ok(Unpacked::Missing);
        };
        let (mut pieces, mut length) = (answer.bytes_stream(), 0);
        loop {
            let piece = next_piece(&mut pieces, deadline).await;
            let Some(piece) = piece.context(LATE)? else {
                return Ok(Unpacked::Read(length));
            };
            let piece = piece.map_err(reqwest::Error::without_url).context("the download was cut off")?;
            keep(&piece)?;
            length += piece.len() as u64;
        }
    }

    /// Gives the artifact as a reader to `read`, which runs on a thread of its own.
    ///
    /// # Errors
    /// When the store fails or is late, or `read` fails.
    pub async fn stream<T: Send + 'static>(
        &self,
        url: &str,
        deadline: Instant,
        read: impl FnOnce(Pieces) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<Unpacked<T>> {
        match self.answer(url, None, deadline).await? {
            Unpacked::Missing => Ok(Unpacked::Missing),
            Unpacked::Read(answer) => read_on(answer, None, deadline, read).await.map(Unpacked::Read),
        }
    }

    /// Gives a piece of the artifact, which has `bytes` bytes, as a reader to `read`. `None`: the
    /// store gives no pieces, or the artifact has another size. However long the answer is, no more
    /// is read than the piece; one that is shorter is cut off.
    ///
    /// # Errors
    /// As [`Fetcher::stream`].
    pub async fn piece<T: Send + 'static>(
        &self,
        url: &str,
        (piece, bytes): (ByteRange, u64),
        deadline: Instant,
        read: impl FnOnce(Pieces) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<Option<T>> {
        let Unpacked::Read(answer) = self.answer(url, Some(piece), deadline).await? else {
            return Ok(None);
        };
        let given = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let wanted = format!("bytes {}-{}/{bytes}", piece.from, piece.to.saturating_sub(1));
        if answer.status() != reqwest::StatusCode::PARTIAL_CONTENT || given != Some(wanted.as_str()) {
            return Ok(None);
        }
        let length = piece.to.saturating_sub(piece.from);
        read_on(answer, Some(length), deadline, read).await.map(Some)
    }

    /// An artifact that is gzip, as text. What is not compressed is taken as it is.
    ///
    /// # Errors
    /// When it cannot be fetched or unpacked, or is too large.
    pub async fn text(&self, url: &str, deadline: Instant) -> anyhow::Result<Unpacked<Vec<u8>>> {
        let read = |pieces: Pieces| {
            let mut text = Vec::new();
            let length = pieces.unpacked()?.take(LARGEST + 1).read_to_end(&mut text)?;
            if length as u64 > LARGEST {
                bail!("it is larger than {} MiB: `berth backup download` has the archive", LARGEST >> 20);
            }
            Ok(text)
        };
        self.stream(url, deadline, read).await
    }
}

/// Gives an answer as a reader to `read`, on a thread of its own. `length`: that of a piece.
async fn read_on<T: Send + 'static>(
    answer: reqwest::Response,
    mut length: Option<u64>,
    deadline: Instant,
    read: impl FnOnce(Pieces) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let reader = tokio::task::spawn_blocking(move || read(Pieces { receiver, piece: Bytes::new() }));
    let mut pieces = answer.bytes_stream();
    let feed = async {
        // What the store sends beyond a piece is not taken.
        while length != Some(0) {
            let piece = match next_piece(&mut pieces, deadline).await {
                None => Err(io::Error::new(io::ErrorKind::TimedOut, LATE)),
                Some(None) if length.is_some() => {
                    Err(io::Error::other("the store gave less than a piece of the archive"))
                }
                Some(None) => return,
                Some(Some(Ok(piece))) => Ok(cut(piece, &mut length)),
                Some(Some(Err(error))) => {
                    Err(io::Error::other(format!("the download was cut off: {}", error.without_url())))
                }
            };
            let is_last = piece.is_err();
            // Whoever reads may have had enough.
            if sender.send(piece).await.is_err() || is_last {
                return;
            }
        }
    };
    feed.await;
    drop(sender);
    reader.await.context("the reader of a download ended early")?
}

/// The next piece of an answer. `None`: it took too long. That is looked at by itself, because a
/// time-out never comes where the next piece is always there before it is asked for, as with a
/// small archive that unpacks to terabytes.
async fn next_piece<S: Stream + Unpin>(pieces: &mut S, deadline: Instant) -> Option<Option<S::Item>> {
    if Instant::now() >= deadline {
        return None;
    }
    timeout_at(deadline, pieces.next()).await.ok()
}

/// The size of an artifact, of which the store was asked for a piece.
fn size(answer: &reqwest::Response) -> Option<u64> {
    if answer.status() != reqwest::StatusCode::PARTIAL_CONTENT {
        return answer.content_length();
    }
    let (_, size) = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?;
    size.parse().ok()
}

/// What arrives, up to the end of the piece that was asked for.
fn cut(mut arrived: Bytes, left: &mut Option<u64>) -> Bytes {
    if let Some(left) = left {
        arrived.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
        *left = left.saturating_sub(arrived.len() as u64);
    }
    arrived
}

/// The beginning of an answer, as text.
async fn beginning(mut answer: reqwest::Response) -> String {
    let mut read = Vec::new();
    while read.len() < SAID {
        let Ok(Some(piece)) = answer.chunk().await else { break };
        let room = piece.len().min(SAID - read.len());
        read.extend_from_slice(piece.get(..room).unwrap_or_default());
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// A download, as a reader.
pub struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Pieces {
    /// Unpacks gzip of one or more members; what does not begin as gzip is passed on as it is.
    ///
    /// # Errors
    /// When the beginning cannot be read.
    pub fn unpacked(mut self) -> io::Result<Box<dyn Read>> {
        let mut start = [0; 2];
        let mut read = 0;
        while let Some(rest) = start.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.read(rest)? {
                0 => break,
                more => read += more,
            }
        }
        let start = start.get(..read).unwrap_or_default().to_vec();
        let is_gzip = start == [0x1f, 0x8b];
        let whole = Read::chain(io::Cursor::new(start), self);
        Ok(if is_gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) })
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece?,
            }
        }
        let length = self.piece.len().min(buffer.len());
        if let Some(buffer) = buffer.get_mut(..length) {
            self.piece.copy_to_slice(buffer);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
