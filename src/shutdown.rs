//! Shutdown. Only this module handles signals; all other parts hold a token.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Cancelled by the first SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let asked = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            if asked.is_cancelled() {
                std::process::exit(130);
            }
            info!("stopping");
            asked.cancel();
        }
    });
    Ok(stop)
}
