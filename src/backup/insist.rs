//! Calls that are repeated for a while, because something in the cluster depends on them.

use std::time::Duration;

use tokio::time::Instant;

use crate::queue::refusals::is_lasting;
use crate::write::{Answer, Pauses};

/// How long a call is tried.
const INSISTS: Duration = Duration::from_secs(60);

/// Repeats a call that may succeed later.
///
/// # Errors
/// What lasted too long, or will be the same again.
pub async fn insist<K, F>(attempt: impl Fn() -> F) -> Result<K, kube::Error>
where
    F: Future<Output = Answer<K>>,
{
    let (begun, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        let answer = attempt().await;
        let is_final = match &answer {
            Answer::Written(_) | Answer::Gone(_) | Answer::Conflict(_) => true,
            Answer::Refused(error) => is_lasting(error),
            Answer::TimedOut => false,
        };
        if is_final || begun.elapsed() >= INSISTS {
            return answer.written();
        }
        pauses.wait().await;
    }
}
