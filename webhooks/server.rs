//! The listeners: HTTPS for reviews, plain HTTP for probes and metrics.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use http::{HeaderValue, Version, header};
use hyper_util::rt::TokioTimer;
use rustls::ServerConfig;
use tokio::task::JoinHandle;

use crate::intake::Intake;
use crate::linger::{LINGER, LingerAcceptor, SILENCE};

/// How long answers under way may take after the stop. Longer than the API server waits for an
/// answer.
const DRAIN: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(5);
/// From the end of one request to the last byte of the next one's head, on an HTTP/1.1 connection.
const HEAD: Duration = SILENCE;
const HEAD_SIZE: u32 = 8 * 1024;
/// An HTTP/2 client that is silent for this time is pinged.
const PING: Duration = Duration::from_secs(30);
/// Requests under way on one HTTP/2 connection; further ones wait. API servers speak HTTP/1.1 to
/// webhooks.
const STREAMS: u32 = 16;
/// Bytes that a connection, and a request on it, may send before they are read.
const CONNECTION_WINDOW: u32 = 512 * 1024;
const STREAM_WINDOW: u32 = 256 * 1024;

/// On the port of probes and metrics: until the head of a request has arrived, and until its answer
/// is sent.
const PROBE: Duration = Duration::from_secs(10);

/// Serves until `stop` resolves and for `delay` after that, then finishes the requests under way.
///
/// During the delay each answer on HTTP/1.1 carries `Connection: close`, so that connections which
/// are closed in the end have been idle since then: a request that crosses the close of an idle
/// HTTP/1.1 connection would be lost, because the client cannot know whether it was handled.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    intake: Arc<Intake>,
    stop: impl Future<Output = ()> + Send + 'static,
    delay: Duration,
) -> std::io::Result<()> {
    let is_leaving = Arc::new(AtomicBool::new(false));
    let (handle, watcher) = draining({
        let is_leaving = Arc::clone(&is_leaving);
        async move {
            stop.await;
            is_leaving.store(true, Ordering::Relaxed);
            tokio::time::sleep(delay).await;
        }
    });
    let router = router.layer(middleware::from_fn(move |request: Request, next: Next| {
        // HTTP/2 announces the end with GOAWAY.
        let says_so = is_leaving.load(Ordering::Relaxed) && request.version() <= Version::HTTP_11;
        async move {
            let mut response = next.run(request).await;
            if says_so {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }));
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(tls))
        .handshake_timeout(HANDSHAKE)
        .acceptor(LingerAcceptor { intake, silence: SILENCE, counts_writes: false });
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle);
    let http = server.http_builder();
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(8 * HEAD_SIZE as usize);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_SIZE)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW);
    let served = server.serve(router.into_make_service_with_connect_info::<SocketAddr>()).await;
    watcher.abort();
    // Until the last connections have lingered.
    tokio::time::sleep(LINGER).await;
    served
}

/// A server's handle, and the task that has the server finish the requests under way when `stop`
/// resolves.
fn draining(stop: impl Future<Output = ()> + Send + 'static) -> (Handle<SocketAddr>, JoinHandle<()>) {
    let handle = Handle::new();
    let drain = handle.clone();
    let watcher = tokio::spawn(async move {
        stop.await;
        drain.graceful_shutdown(Some(DRAIN));
    });
    (handle, watcher)
}

/// Serves plain HTTP/1.1 until `stop` resolves, each connection for one short request.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_plain(
    listener: TcpListener,
    router: Router,
    intake: Arc<Intake>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (handle, watcher) = draining(stop);
    let acceptor = LingerAcceptor { intake, silence: PROBE, counts_writes: false };
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle).http1_only();
    let http = server.http_builder();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PROBE)
        .max_buf_size(2 * HEAD_SIZE as usize)
        .keep_alive(false);
    let served = server.serve(router.into_make_service()).await;
    watcher.abort();
    served
}

/// Serves files until `stop` resolves, each connection for one request on HTTP/1.1, which may take
/// as long as something is being sent. Without `tls` in plain text.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_files(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    intake: Arc<Intake>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (handle, watcher) = draining(stop);
    let acceptor = LingerAcceptor { intake, silence: PROBE, counts_writes: true };
    let server = axum_server::from_tcp(listener)?.handle(handle);
    let served = match tls {
        Some(tls) => {
            // A client that is offered HTTP/2 speaks it, and is not answered here.
            let mut tls = ServerConfig::clone(&tls);
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            let tls = RustlsConfig::from_config(Arc::new(tls));
            let tls = RustlsAcceptor::new(tls).handshake_timeout(HANDSHAKE);
            one_request_each(server.acceptor(tls.acceptor(acceptor))).serve(router.into_make_service()).await
        }
        None => one_request_each(server.acceptor(acceptor)).serve(router.into_make_service()).await,
    };
    watcher.abort();
    served
}

fn one_request_each<A>(server: axum_server::Server<SocketAddr, A>) -> axum_server::Server<SocketAddr, A> {
    let mut server = server.http1_only();
    let http = server.http_builder();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PROBE)
        .max_buf_size(2 * HEAD_SIZE as usize)
        .keep_alive(false);
    server
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    async fn connect(last: u8, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// The whole answer; empty if the connection is closed.
    async fn ask(last: u8, of: SocketAddr) -> String {
        let (mut stream, mut answer) = (connect(last, of).await, String::new());
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: probed\r\n\r\n").await;
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn who_keeps_connections_to_the_probes_open_keeps_out_nobody_but_himself() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let intake = Arc::new(Intake::of_health());
        tokio::spawn(serve_plain(listener, router, intake, std::future::pending()));
        let mut held = Vec::new();
        for _ in 0..64 {
            held.push(connect(1, address).await);
        }
        assert_eq!(ask(1, address).await, "");
        let answer = ask(2, address).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        drop(held);
        while ask(1, address).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
