//! /healthz and /readyz, plain HTTP, for the kubelet.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::telemetry::chain;

/// Serves in the background until `stop`.
///
/// # Errors
/// When the address is taken.
pub async fn serve(
    address: SocketAddr,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("--health-address {address} cannot be used"))?;
    let ready = Arc::new(ready);
    let answer = move || {
        let ready = Arc::clone(&ready);
        async move {
            if ready() {
                (StatusCode::OK, "ok\n")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "not ready yet\n")
            }
        }
    };
    let router = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(answer));
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::warn!(error = chain(&error), "the health server ended");
        }
    });
    Ok(())
}
