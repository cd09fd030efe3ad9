//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use anyhow::bail;

const PERIOD: Duration = Duration::from_millis(20);

/// Asks again and again until `condition` gives a value, or fails: that ends the wait at once.
///
/// # Errors
/// When `condition` fails, or gives nothing for `timeout`.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}");
        }
        std::thread::sleep(PERIOD);
    }
}

/// [`wait_for`] on the caller's runtime.
///
/// # Errors
/// As [`wait_for`].
pub async fn wait_until<T>(
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}");
        }
        tokio::time::sleep(PERIOD).await;
    }
}
