//! Orders how recoveries read locations. One backup of a location at a time is inspected, so that a
//! store that hangs holds up only its own backups. A checkpoint may have been written by anybody
//! who may write to the store, and reading it may kill the process, because its size is not
//! bounded. So one checkpoint at a time is read, whatever its location: then it does not kill the
//! process in the middle of another backup's recovery, and no two of them together take too much
//! memory.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, sleep_until};

/// Longest turn: a store that hangs holds up others no longer.
const LONGEST: Duration = Duration::from_secs(120);
/// Longest turn after one that failed or took too long, because the next attempt is likely to fail,
/// too.
const SHORT: Duration = Duration::from_secs(5);
/// Most locations with a row of their own; all others share one. What is read while inspecting one
/// is bounded, so it is bounded for all.
const ROWS: usize = 16;
/// Most bytes of an object's name.
const NAME: usize = 253;

/// The queue for one location. `true`: the last turn there failed.
type LocationQueue = Arc<Mutex<bool>>;

/// The turns of one process.
#[derive(Clone, Default)]
pub struct Turns(Arc<Rows>);

#[derive(Default)]
struct Rows {
    /// Two, because a reader waits for readers of other locations, and an inspector does not.
    looks: LocationQueues,
    reads: LocationQueues,
    /// Held by the one reader of all locations.
    reading: Arc<Mutex<()>>,
}

/// By location.
type LocationQueues = parking_lot::Mutex<HashMap<String, LocationQueue>>;

impl Turns {
    /// Waits for a turn to inspect a location, which reads a bounded amount. First come, first
    /// served.
    pub async fn inspect(&self, location: &str) -> LocationTurn {
        LocationTurn { row: row(&self.0.looks, location).lock_owned().await, reading: None }
    }

    /// Waits for a turn to read a whole checkpoint. Of each location only one waits in the queue of
    /// all locations.
    pub async fn read(&self, location: &str) -> LocationTurn {
        let row = row(&self.0.reads, location).lock_owned().await;
        let reading = Arc::clone(&self.0.reading).lock_owned().await;
        LocationTurn { row, reading: Some(reading) }
    }
}

/// Names come from users, so the number of rows is bounded.
fn row(rows: &LocationQueues, location: &str) -> LocationQueue {
    let rows = &mut *rows.lock();
    if let Some(row) = rows.get(location) {
        return Arc::clone(row);
    }
    if rows.len() >= ROWS {
        rows.retain(|_, row| Arc::strong_count(row) > 1);
    }
    let name = if rows.len() < ROWS && location.len() <= NAME { location } else { "" };
    Arc::clone(rows.entry(name.to_owned()).or_default())
}

pub struct LocationTurn {
    row: OwnedMutexGuard<bool>,
    reading: Option<OwnedMutexGuard<()>>,
}

impl LocationTurn {
    /// Spends the turn on `work`, which may continue after the longest turn has ended.
    ///
    /// # Errors
    /// Those of `work`; then the next turn at that location is a short one.
    pub async fn spend<T, E>(mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let (longest, begun) = (if *self.row { SHORT } else { LONGEST }, Instant::now());
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => {
                *self.row = done.is_err();
                return done;
            }
            () = sleep(longest) => *self.row = true,
        }
        let Self { row, reading } = self;
        drop(row);
        // The checkpoint is not bounded, whatever its location's state, so it keeps the turn of all
        // readers.
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep_until(begun + LONGEST) => {}
        }
        drop(reading);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn work(seconds: u64, well: bool) -> Result<(), ()> {
        sleep(Duration::from_secs(seconds)).await;
        if well { Ok(()) } else { Err(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_taken_one_after_another_and_one_that_takes_too_long_holds_nobody_up() {
        let (turns, begun) = (Turns::default(), Instant::now());
        let read = async |location: &str, seconds: u64| {
            turns.read(location).await.spend(work(seconds, true)).await.unwrap();
            begun.elapsed().as_secs()
        };
        let ended = tokio::join!(read("a", 5), read("a", 1000), read("b", 5), read("a", 1));
        // The line of all has one of each location: the last one of the first is behind that of the
        // second.
        assert_eq!(ended, (5, 1010, 10, 131));
    }

    #[tokio::test(start_paused = true)]
    async fn a_location_that_hangs_holds_up_its_own_backups_alone_and_for_a_short_time_once_that_is_known() {
        let (turns, begun) = (Turns::default(), Instant::now());
        let look = async |location: &str, seconds: u64, well: bool| {
            let _ = turns.inspect(location).await.spend(work(seconds, well)).await;
            begun.elapsed().as_secs()
        };
        let hanging = async {
            tokio::join!(
                look("away", 1000, false),
                look("away", 1000, false),
                look("away", 1, false),
                look("away", 1000, false),
                look("away", 1, true),
                look("away", 1000, false),
                look("away", 1, true),
            )
        };
        let (ended, healthy) = tokio::join!(hanging, look("well", 5, true));
        assert_eq!(healthy, 5);
        // It has answered the fifth, so the sixth has all the time there is.
        assert_eq!(ended, (1000, 1120, 126, 1126, 132, 1132, 253));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_of_a_location_that_failed_is_one_at_a_time_all_the_same() {
        let (turns, begun) = (Turns::default(), Instant::now());
        let read = async |location: &str, seconds: u64, well: bool| {
            let _ = turns.read(location).await.spend(work(seconds, well)).await;
            begun.elapsed().as_secs()
        };
        let ended = tokio::join!(
            read("bad", 1, false),
            read("bad", 100, true),
            read("well", 5, true),
            read("bad", 1, true)
        );
        assert_eq!(ended, (1, 106, 6, 107));
        // Whoever only looks does not wait for those who read.
        let reading = turns.read("bad").await;
        tokio::time::timeout(Duration::from_secs(1), turns.inspect("bad")).await.unwrap();
        drop(reading);
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_locations_are_called_there_are_so_many_rows_and_those_in_use_stay() {
        let turns = Turns::default();
        let held = turns.inspect("held").await;
        for i in 0..10 * ROWS {
            turns.inspect(&format!("location-{i}")).await.spend(work(0, false)).await.unwrap_err();
            assert!(turns.0.looks.lock().len() <= ROWS + 1);
        }
        assert!(turns.0.looks.lock().contains_key("held"));
        let mut all = Vec::new();
        for i in 0..ROWS {
            all.push(turns.inspect(&format!("other-{i}")).await);
        }
        // No row is left, so this one waits for whoever is in the row of all others.
        let next = tokio::time::timeout(LONGEST, turns.inspect(&"n".repeat(1 << 20))).await;
        assert!(next.is_err());
        assert_eq!(turns.0.looks.lock().len(), ROWS + 1);
        drop((held, all));
        assert!(tokio::time::timeout(LONGEST, turns.inspect("next")).await.is_ok());
    }
}
