//! What is begun next where only a few things at a time are done in storage locations. What is
//! begun in a location that hangs may take long, so such a location must neither use up the limit
//! nor be forgotten.

use std::time::Duration;

/// Something that could be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    pub location: &'a str,
    /// How long ago it was last tried. `None`: never.
    pub unseen: Option<Duration>,
}

/// The candidates that are begun now, in their order. `begun`: the location of each one that has
/// begun and not ended. `limit`: how many may be begun at one time.
///
/// The location with the fewest begun ones comes first, and of its candidates the one that was not
/// tried for the longest time. No location takes the whole limit (unless it is 1), so one that
/// hangs for ever leaves something to the rest.
pub fn choose(candidates: &[Candidate<'_>], begun: &[&str], limit: usize) -> Vec<usize> {
    let most = limit.saturating_sub(1).max(1);
    let mut begun = begun.to_vec();
    let mut left: Vec<(usize, &Candidate<'_>)> = candidates.iter().enumerate().collect();
    // Of those that were not tried for equally long, the first one comes first.
    left.sort_by_key(|(_, one)| std::cmp::Reverse(one.unseen.unwrap_or(Duration::MAX)));
    let mut chosen = Vec::new();
    while begun.len() < limit {
        let has = |location: &str| begun.iter().filter(|other| **other == location).count();
        let may = left.iter().enumerate().filter(|(_, (_, one))| has(one.location) < most);
        let next = may.min_by_key(|(_, (_, one))| has(one.location));
        let Some((at, (index, one))) = next.map(|(at, found)| (at, *found)) else { break };
        left.remove(at);
        begun.push(one.location);
        chosen.push(index);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 5;

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn chosen(candidates: &[(&str, Option<Duration>)], begun: &[&str]) -> Vec<usize> {
        let candidates: Vec<Candidate<'_>> =
            candidates.iter().map(|(location, unseen)| Candidate { location, unseen: *unseen }).collect();
        choose(&candidates, begun, LIMIT)
    }

    #[test]
    fn the_longest_unseen_of_the_location_with_the_fewest_begun_goes_first() {
        let (never, a, b) = (None, "a", "b");
        for (candidates, begun, expected) in [
            (vec![], vec![], vec![]),
            (vec![(a, never), (a, never)], vec![], vec![0, 1]),
            (vec![(a, seconds(1)), (a, seconds(9)), (a, never)], vec![], vec![2, 1, 0]),
            (vec![(a, never); 9], vec![], vec![0, 1, 2, 3]),
            (vec![(a, never); 9], vec![a, a, a], vec![0]),
            (vec![(a, never); 9], vec![a, a, a, a], vec![]),
            // One that was tried just now, of a location that has none.
            (vec![(a, never), (b, seconds(1))], vec![a, a, a, a], vec![1]),
            (vec![(a, never), (b, never)], vec![a, a, b, b, b], vec![]),
            (vec![(a, never), (b, never)], vec![a, b, b, b], vec![0]),
            (vec![(a, never), (a, never), (b, never)], vec![a, a], vec![2, 0, 1]),
        ] {
            assert_eq!(chosen(&candidates, &begun), expected, "{candidates:?} {begun:?}");
        }
    }

    /// Something that is tried again and again until it is done.
    #[derive(Clone)]
    struct Work {
        location: &'static str,
        /// How long each try takes, in seconds, and whether it comes to something.
        takes: u64,
        succeeds: bool,
        comes: u64,
        tried: Option<u64>,
        /// While it is tried.
        until: Option<u64>,
        done: Option<u64>,
    }

    impl Work {
        fn new(location: &'static str, takes: u64, succeeds: bool, comes: u64) -> Self {
            Self { location, takes, succeeds, comes, tried: None, until: None, done: None }
        }
    }

    /// When each of them was done, with so many seconds of rest after a try that came to nothing.
    fn played(mut all: Vec<Work>, rest: u64, until: u64) -> Vec<Option<u64>> {
        for now in 0..until {
            for work in &mut all {
                if work.until == Some(now) {
                    (work.until, work.tried) = (None, Some(now));
                    if work.succeeds {
                        work.done = Some(now);
                    }
                }
            }
            let waits = |work: &&Work| {
                let rests = work.tried.is_some_and(|tried| now < tried + rest);
                work.comes <= now && work.done.is_none() && work.until.is_none() && !rests
            };
            let due: Vec<usize> =
                all.iter().enumerate().filter(|(_, work)| waits(work)).map(|(i, _)| i).collect();
            let candidate = |i: &usize| {
                let work = &all[*i];
                let unseen = work.tried.map(|tried| Duration::from_secs(now - tried));
                Candidate { location: work.location, unseen }
            };
            let candidates: Vec<Candidate<'_>> = due.iter().map(candidate).collect();
            let begun: Vec<&str> =
                all.iter().filter(|work| work.until.is_some()).map(|work| work.location).collect();
            for index in choose(&candidates, &begun, LIMIT) {
                let work = &mut all[due[index]];
                work.until = Some(now + work.takes);
            }
            assert!(all.iter().filter(|work| work.until.is_some()).count() <= LIMIT);
        }
        all.into_iter().map(|work| work.done).collect()
    }

    proptest! {
        /// However many wait for a location that hangs, and however long, what waits for another
        /// one goes on.
        #[test]
        fn a_location_that_hangs_does_not_keep_the_others_waiting(
            hanging in 0_usize..40, hangs in prop_oneof![10_u64..300, Just(u64::MAX >> 1)], rest in 1_u64..120,
            healthy in prop::collection::vec((1_u64..10, 0_u64..400), 1..20),
        ) {
            let mut all = vec![Work::new("hangs", hangs, false, 0); hanging];
            all.extend(healthy.iter().map(|(takes, comes)| Work::new("works", *takes, true, *comes)));
            let sum: u64 = healthy.iter().map(|(takes, _)| takes).sum();
            let done = played(all, rest, 400 + sum + 2);
            for (done, (_, comes)) in done[hanging..].iter().zip(&healthy) {
                prop_assert!(done.is_some_and(|done| done <= comes + sum), "{:?} {}", done, comes);
            }
        }

        /// And whatever hangs is tried again and again: none of them is forgotten.
        #[test]
        fn each_one_is_tried_in_its_turn(count in 1_usize..40, hangs in 1_u64..30, rest in 1_u64..60) {
            let rounds = count.div_ceil(LIMIT - 1) as u64;
            let mut all = vec![Work::new("hangs", hangs, false, 0); count];
            // The last one would succeed.
            all.push(Work::new("hangs", hangs, true, 1));
            let most = (rounds + 2) * hangs.max(rest) * 2 + 2;
            let done = played(all, rest, most);
            prop_assert!(done.last().is_some_and(Option::is_some), "{:?}", done);
        }
    }
}
