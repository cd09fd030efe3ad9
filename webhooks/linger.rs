//! Connections that end without losing a request.
//!
//! Whoever is told that an HTTP/2 connection ends (GOAWAY) may have a request on its way already. It asks somebody else
//! when it reads that its request came too late; but it never reads that if the socket is closed at once, because what
//! arrives at a closed socket resets the connection. So what is over is only closed for writing, and read from for a
//! while.

use std::future::Ready;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long. Longer than any round trip to an API server.
pub const LINGER: Duration = Duration::from_secs(1);

/// Accepts connections that send at once what is written, and linger when they are over.
#[derive(Clone, Copy)]
pub struct LingerAcceptor;

impl<S> Accept<TcpStream, S> for LingerAcceptor {
    type Stream = Linger;
    type Service = S;
    type Future = Ready<Result<(Linger, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        std::future::ready(stream.set_nodelay(true).map(|()| (Linger(Some(stream)), service)))
    }
}

/// Holds the connection until it is dropped.
pub struct Linger(Option<TcpStream>);

impl Linger {
    fn stream(self: Pin<&mut Self>) -> Result<Pin<&mut TcpStream>> {
        let gone = || Error::from(ErrorKind::NotConnected);
        self.get_mut().0.as_mut().map(Pin::new).ok_or_else(gone)
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        let Some(mut stream) = self.0.take() else { return };
        // Without a runtime everything ends anyway.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(timeout(LINGER, async move {
            let _ = stream.shutdown().await;
            let mut unread = [0; 1024];
            while stream.read(&mut unread).await.is_ok_and(|count| count > 0) {}
        }));
    }
}

impl AsyncRead for Linger {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Linger {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.stream()?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.stream()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}
