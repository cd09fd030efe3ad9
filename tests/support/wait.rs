//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::times::Wait;

/// How long anything may take that does happen in the end: machines that run tests are shared, and slow when they are
/// busy. Nothing is gained by less, because only what fails waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The same of one answer of a store, of which several may be needed.
pub const ANSWER: Duration = Duration::from_secs(120);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How long to pause after a look that took that long, in a wait that began so long ago. Looks take the cores from what
/// is waited for, so a long wait looks seldom: it ends an eighth later than it could.
fn pause(look: Duration, waited: Duration) -> Duration {
    (waited / 8).max(look * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Asks again and again until `condition` gives a value, or fails: that ends the wait at once.
///
/// # Errors
/// When `condition` fails, or gives nothing for `timeout`.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let _wait = Wait::start(what);
    let started = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(value) = condition()? {
            return Ok(value);
        }
        let look = look.elapsed();
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}");
        }
        std::thread::sleep(pause(look, started.elapsed()));
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
    let _wait = Wait::start(what);
    let started = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        let look = look.elapsed();
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}");
        }
        tokio::time::sleep(pause(look, started.elapsed())).await;
    }
}
