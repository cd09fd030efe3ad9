//! Connections that close without losing a request.
//!
//! A client that receives the end of an HTTP/2 connection (GOAWAY) may have sent a request already.
//! It sends that request to another replica once it has read that the request came too late. It
//! never reads that if the socket is closed at once, because data that arrives at a closed socket
//! resets the connection. So an ended connection is closed for writing only, and read from for a
//! while. A connection on which nothing arrives for long has ended as well, because clients that
//! live answer HTTP/2's pings.

use std::future::Ready;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::intake::{Intake, Seat};

/// How long an ended connection is read from. Longer than any round trip to an API server.
pub const LINGER: Duration = Duration::from_secs(1);

/// How long a connection may be silent. Longer than the 90 s after which an API server closes an
/// idle connection, because the side that closes first may cross a request on its way.
pub const SILENCE: Duration = Duration::from_secs(120);

/// Accepts connections within the limits, sets TCP_NODELAY, and lets them linger when they end.
#[derive(Clone)]
pub struct LingerAcceptor {
    pub intake: Arc<Intake>,
    /// How long a connection may be silent.
    pub silence: Duration,
    /// What is sent counts as well: a client that downloads says nothing meanwhile.
    pub counts_writes: bool,
}

impl<S> Accept<TcpStream, S> for LingerAcceptor {
    type Stream = Linger;
    type Service = S;
    type Future = Ready<Result<(Linger, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = stream.peer_addr().and_then(|peer| {
            // An IPv4 address that arrives at an IPv6 socket counts as the same address.
            let seat = self.intake.connect(peer.ip().to_canonical());
            let seat = seat.ok_or_else(|| Error::new(ErrorKind::QuotaExceeded, "too many connections"))?;
            stream.set_nodelay(true)?;
            let over = Box::pin(sleep(self.silence));
            let Self { silence, counts_writes, .. } = *self;
            Ok((Linger { over, silence, counts_writes, open: Some((stream, seat)) }, service))
        });
        std::future::ready(accepted)
    }
}

/// Holds the connection until it is dropped.
pub struct Linger {
    open: Option<(TcpStream, Seat)>,
    /// Elapses when the connection has been silent for too long.
    over: Pin<Box<Sleep>>,
    silence: Duration,
    counts_writes: bool,
}

impl Linger {
    fn stream(self: Pin<&mut Self>) -> Result<Pin<&mut TcpStream>> {
        let gone = || Error::from(ErrorKind::NotConnected);
        self.get_mut().open.as_mut().map(|(stream, _)| Pin::new(stream)).ok_or_else(gone)
    }

    fn wrote<T>(mut self: Pin<&mut Self>, cx: &mut Context<'_>, done: Poll<Result<T>>) -> Poll<Result<T>> {
        if self.counts_writes && done.is_ready() {
            let silence = self.silence;
            self.over.as_mut().reset(Instant::now() + silence);
        }
        self.unless_over(cx, done)
    }

    /// Ends a pending read or write once the connection has been silent for too long.
    fn unless_over<T>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        done: Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        if done.is_ready() {
            return done;
        }
        ready!(self.over.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "nothing came for too long")))
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        let Some((mut stream, seat)) = self.open.take() else { return };
        // Without a runtime the process is ending, and nothing is left to wait for.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(timeout(LINGER, async move {
            let _seat = seat;
            let _ = stream.shutdown().await;
            let mut unread = [0; 1024];
            while stream.read(&mut unread).await.is_ok_and(|count| count > 0) {}
        }));
    }
}

impl AsyncRead for Linger {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        if let Poll::Ready(read) = self.as_mut().stream()?.poll_read(cx, buf) {
            let silence = self.silence;
            self.over.as_mut().reset(Instant::now() + silence);
            return Poll::Ready(read);
        }
        self.unless_over(cx, Poll::Pending)
    }
}

impl AsyncWrite for Linger {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        let written = self.as_mut().stream()?.poll_write(cx, buf);
        self.wrote(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.as_mut().stream()?.poll_write_vectored(cx, bufs);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.open.as_ref().is_some_and(|(stream, _)| stream.is_write_vectored())
    }
}
