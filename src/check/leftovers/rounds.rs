//! Waits until berth's sync has brought all of each storage location twice, because until then it
//! may bring a Backup back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::Leftovers;
use super::listing::locations;
use crate::install::InstallCluster;
use crate::text::few;

/// How long locations are waited for, and how often they are looked at.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(1);
/// How often all of each location is brought before anything is removed.
const ROUNDS: usize = 2;

/// Waits until all of each location has been brought twice since.
///
/// # Errors
/// When they cannot be listed, or not all of one was brought in time.
pub async fn wait_synced(cluster: &InstallCluster, left: &Leftovers) -> anyhow::Result<()> {
    let mut rounds = Rounds::after(left);
    let until = Instant::now() + PATIENCE;
    loop {
        let locations = locations(&cluster.client).await?;
        let late = rounds.note(locations.all.into_iter().map(|(name, one)| (name, one.at)).collect());
        if late.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let late = few(&late);
            anyhow::bail!(
                "nothing was deleted: in {} s berth's sync has not twice brought all of storage location {late}, which might bring a Backup back",
                PATIENCE.as_secs()
            );
        }
        sleep(LOOK).await;
    }
}

/// How often all of each location was brought since.
struct Rounds<'l> {
    /// When it last was, and how often.
    seen: BTreeMap<String, (Option<Timestamp>, usize)>,
    /// For those that are not known nothing is removed anyway.
    unsynced: &'l BTreeSet<String>,
}

impl<'l> Rounds<'l> {
    fn after(left: &'l Leftovers) -> Self {
        let seen = left.synced.iter().map(|(name, at)| (name.clone(), (*at, 0))).collect();
        Self { seen, unsynced: &left.unsynced }
    }

    /// Notes what the locations say now, and returns those that are not brought often enough.
    fn note(&mut self, now: BTreeMap<String, Option<Timestamp>>) -> Vec<String> {
        self.seen.retain(|name, _| now.contains_key(name));
        // A new one may bring Backups, too.
        for (name, at) in now {
            let (last, rounds) = self.seen.entry(name).or_insert((at, 0));
            // A mark that goes says that a round did not bring all.
            if at > *last {
                (*last, *rounds) = (at, *rounds + 1);
            }
        }
        let late = |(name, (_, rounds)): &(&String, &(Option<Timestamp>, usize))| {
            *rounds < ROUNDS && !self.unsynced.contains(*name)
        };
        self.seen.iter().filter(late).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_to_be_brought_twice_and_whole_to_count() {
        let at = |minute: i64| Timestamp::from_second(minute * 60).ok();
        let of = |all: &[(&str, Option<Timestamp>)]| -> BTreeMap<String, Option<Timestamp>> {
            all.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect()
        };
        let left = Leftovers {
            all: Vec::new(),
            synced: of(&[("v/a", at(5)), ("v/velero", None), ("v/goes", at(5))]),
            unsynced: BTreeSet::from(["v/velero".to_owned()]),
            unread: BTreeSet::new(),
        };
        let mut rounds = Rounds::after(&left);
        for (a, new, late) in [
            (at(5), None, vec!["v/a"]),
            // A round that did not bring all, and one that did.
            (None, None, vec!["v/a"]),
            (at(5), None, vec!["v/a"]),
            (at(6), Some(at(6)), vec!["v/a", "v/new"]),
            (at(7), Some(at(7)), vec!["v/new"]),
            (at(7), Some(at(8)), vec![]),
        ] {
            let mut now = of(&[("v/a", a), ("v/velero", None)]);
            now.extend(new.map(|at| ("v/new".to_owned(), at)));
            assert_eq!(rounds.note(now), late, "{a:?} {new:?}");
        }
    }
}
