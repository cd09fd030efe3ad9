//! Who reads what dead runs have stored: one at a time. It may have been written by anybody who may write to a store, and be what kills
//! us; then it kills nobody in the middle of a recovery of his own, and no two of them together are too large.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::sleep;

/// How long a turn is at most: a store that is away holds up nobody else for longer.
const LONGEST: Duration = Duration::from_secs(120);

/// Of one process.
#[derive(Clone, Default)]
pub struct Turns(Arc<Mutex<()>>);

impl Turns {
    /// In the order in which they are asked for.
    pub async fn next(&self) -> Turn {
        Turn(Arc::clone(&self.0).lock_owned().await)
    }
}

pub struct Turn(OwnedMutexGuard<()>);

impl Turn {
    /// Over when `work` is done, which may go on after a turn that was the longest.
    pub async fn spend<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(LONGEST) => drop(self.0),
        }
        work.await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_are_taken_one_after_another_and_one_that_takes_too_long_holds_nobody_up() {
        let (turns, begun) = (Turns::default(), Instant::now());
        let work = async |seconds: u64| {
            turns.next().await.spend(sleep(Duration::from_secs(seconds))).await;
            begun.elapsed().as_secs()
        };
        let ended = tokio::join!(work(5), work(1000), work(5));
        assert_eq!(ended, (5, 1005, 130));
    }
}
