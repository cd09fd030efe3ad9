//! /healthz and /readyz for the kubelet, /metrics for Prometheus; plain HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use berth_webhooks::Intake;
use berth_webhooks::server::serve_plain;
use http::{StatusCode, header};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::text::chain;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The watchdog: operations under way with their deadlines. A missed deadline fails the liveness
/// probe, and the kubelet restarts the process.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Deadlines>>);

#[derive(Default)]
struct Deadlines {
    next: u64,
    pending: BTreeMap<u64, Instant>,
}

/// Guard of one operation; dropping it ends the operation.
pub struct Beat {
    pulse: Pulse,
    number: u64,
}

impl Pulse {
    /// Begins an operation that must end within `limit`.
    pub fn within(&self, limit: Duration) -> Beat {
        let mut deadlines = self.0.lock();
        let number = deadlines.next;
        deadlines.next = number.wrapping_add(1);
        deadlines.pending.insert(number, Instant::now() + limit);
        Beat { pulse: self.clone(), number }
    }

    pub fn is_alive(&self) -> bool {
        let now = Instant::now();
        self.0.lock().pending.values().all(|deadline| now < *deadline)
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.pulse.0.lock().pending.remove(&self.number);
    }
}

/// Serves in the background until `stop`.
///
/// # Errors
/// When the address is taken.
pub fn serve(
    address: SocketAddr,
    pulse: Pulse,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    registry: Registry,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let listener = crate::listen::listen(address)
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
    let alive = move || {
        let alive = pulse.is_alive();
        async move {
            if alive {
                (StatusCode::OK, "ok\n")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "something hangs\n")
            }
        }
    };
    let router = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(answer))
        .route("/metrics", get(count));
    tokio::spawn(async move {
        let intake = Arc::new(Intake::of_health());
        if let Err(error) = serve_plain(listener, router, intake, stop.cancelled_owned()).await {
            tracing::warn!(error = chain(&error), "the health server ended");
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_in_its_time_is_seen_until_it_is() {
        let pulse = Pulse::default();
        let in_time = pulse.within(Duration::from_secs(600));
        assert!(pulse.is_alive());
        let late = pulse.within(Duration::ZERO);
        assert!(!pulse.is_alive());
        drop(late);
        assert!(pulse.is_alive());
        drop(in_time);
        assert!(pulse.is_alive());
    }
}
