//! Calls that are repeated for a while, because something in the cluster depends on them.

use std::time::Duration;

use tokio::time::Instant;

use crate::queue::refusals::is_lasting;
use crate::write::{Pauses, WriteResult};

/// How long a call is tried.
const INSISTS: Duration = Duration::from_secs(60);

/// Repeats a call that may succeed later.
///
/// # Errors
/// What lasted too long, or will be the same again.
pub async fn insist<K, F>(attempt: impl Fn() -> F) -> Result<K, kube::Error>
where
    F: Future<Output = WriteResult<K>>,
{
    let (begun, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        let answer = attempt().await;
        let is_final = match &answer {
            WriteResult::Written(_) | WriteResult::Gone(_) | WriteResult::Conflict(_) => true,
            WriteResult::Refused(error) => is_lasting(error),
            WriteResult::TimedOut => false,
        };
        if is_final || begun.elapsed() >= INSISTS {
            return answer.written();
        }
        pauses.wait().await;
    }
}
