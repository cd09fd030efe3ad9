//! The HTTPS listener.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use http::{HeaderValue, Version, header};
use rustls::ServerConfig;

use crate::linger::{LINGER, LingerAcceptor};

/// How long answers under way may take once a stop was asked for. Longer than the API server waits for one.
const DRAIN: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Serves until `stop` resolves and for `delay` after that, then finishes what is under way.
///
/// In the delay each client is told, in the answer to its next request, not to use that connection again. What is closed
/// in the end is idle since then: a request that crosses the close of an idle HTTP/1.1 connection would be lost, as it
/// is not known whether it was seen.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
    delay: Duration,
) -> std::io::Result<()> {
    let handle = Handle::new();
    let is_leaving = Arc::new(AtomicBool::new(false));
    let watcher = tokio::spawn({
        let (drain, is_leaving) = (handle.clone(), Arc::clone(&is_leaving));
        async move {
            stop.await;
            is_leaving.store(true, Ordering::Relaxed);
            tokio::time::sleep(delay).await;
            drain.graceful_shutdown(Some(DRAIN));
        }
    });
    let router = router.layer(middleware::from_fn(move |request: Request, next: Next| {
        // HTTP/2 has its own way of saying so.
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
        .acceptor(LingerAcceptor);
    let served = axum_server::from_tcp(listener)?
        .acceptor(acceptor)
        .handle(handle)
        .serve(router.into_make_service())
        .await;
    watcher.abort();
    // The last connections, too.
    tokio::time::sleep(LINGER).await;
    served
}
