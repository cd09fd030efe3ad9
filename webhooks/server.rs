//! The HTTPS listener.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::ServerConfig;

/// How long answers under way may take once a stop was asked for. Longer than the API server waits for one.
const DRAIN: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Serves until `stop` resolves, then finishes what is under way.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let handle = Handle::new();
    let drain = handle.clone();
    let watcher = tokio::spawn(async move {
        stop.await;
        drain.graceful_shutdown(Some(DRAIN));
    });
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(tls))
        .handshake_timeout(HANDSHAKE)
        .acceptor(NoDelayAcceptor::new());
    let served = axum_server::from_tcp(listener)?
        .acceptor(acceptor)
        .handle(handle)
        .serve(router.into_make_service())
        .await;
    watcher.abort();
    served
}
