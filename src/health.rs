//! /healthz and /readyz for the kubelet, /metrics for Prometheus; plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use http::{StatusCode, header};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::telemetry::chain;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves in the background until `stop`.
///
/// # Errors
/// When the address is taken.
pub async fn serve(
    address: SocketAddr,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    registry: Registry,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let listener = crate::listen::listen(address)
        .and_then(tokio::net::TcpListener::from_std)
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
    let registry = Arc::new(registry);
    let count = move || {
        let text = metrics::encode(&registry).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
        async move { text.map(|text| ([(header::CONTENT_TYPE, OPEN_METRICS)], text)) }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(answer))
        .route("/metrics", get(count));
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::warn!(error = chain(&error), "the health server ended");
        }
    });
    Ok(())
}
