//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::seen;
use super::times::Wait;

/// How long anything may take that does happen in the end: machines that run tests are shared, and
/// slow when they are busy. Nothing is gained by less, because only what fails waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The same of one answer of a store, of which several may be needed.
pub const ANSWER: Duration = Duration::from_secs(120);
const PERIOD: Duration = Duration::from_millis(20);
/// What has taken long may take that much longer, part of it all.
const LATER: u32 = 32;
const LATEST: Duration = Duration::from_millis(250);

/// How long to pause after a check that took that long, when `waited` has gone by: a waiting test
/// must not take more than a third of a core from what it waits for, and four tests that check
/// fifty times a second keep an API server busy.
fn pause(look: Duration, waited: Duration) -> Duration {
    let rarer = (waited / LATER).min(LATEST);
    (look * 2).max(rarer).clamp(PERIOD, Duration::from_secs(2))
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
    seen::forget();
    let started = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(value) = condition()? {
            return Ok(value);
        }
        let look = look.elapsed();
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}{}", seen::told());
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
    seen::forget();
    let started = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        let look = look.elapsed();
        if started.elapsed() > timeout {
            bail!("waited {timeout:?} in vain for {what}{}", seen::told());
        }
        tokio::time::sleep(pause(look, started.elapsed())).await;
    }
}
