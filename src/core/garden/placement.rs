//! Chooses the bucket of an entry: the fullest one that still has room, so that there are as few
//! buckets as possible.

use jiff::Timestamp;

use super::quota::room;

/// State of a bucket in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketHealth {
    /// It is there.
    Ready,
    /// It is there, with a fault that may pass.
    Ailing,
    /// It is being created.
    Making,
    /// It could not be created so far, and is tried again.
    Stuck,
    /// It will never be created, usually because its name belongs to another account.
    Refused,
}

impl BucketHealth {
    pub fn exists(self) -> bool {
        matches!(self, Self::Ready | Self::Ailing)
    }
}

/// A bucket that entries may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCandidate<'b> {
    pub name: &'b str,
    pub created_at: Timestamp,
    pub standing: BucketHealth,
    pub used: usize,
    /// `None`: any number.
    pub limit: Option<u32>,
}

impl BucketCandidate<'_> {
    fn has_room(&self) -> bool {
        room(self.limit, self.used) > 0
    }
}

/// Index of the bucket of the next entry: one with room that is there, and 1. without a fault, 2.
/// the fullest, 3. the oldest, 4. first by name, so that the answer is always the same. `None`:
/// wait for the next bucket.
pub fn choose(candidates: &[BucketCandidate]) -> Option<usize> {
    let open = candidates.iter().enumerate().filter(|(_, one)| one.standing.exists() && one.has_room());
    let best =
        open.min_by_key(|(_, one)| (one.standing, std::cmp::Reverse(one.used), one.created_at, one.name));
    best.map(|(index, _)| index)
}

/// How many buckets to create for `waiting` entries, in addition to those that are being created.
/// If there is none at all, one is created before the first entry comes.
pub fn missing(candidates: &[BucketCandidate], waiting: usize, limit: Option<u32>) -> usize {
    let coming = |one: &&BucketCandidate| matches!(one.standing, BucketHealth::Making | BucketHealth::Stuck);
    let room = candidates
        .iter()
        .filter(coming)
        .fold(0usize, |sum, one| sum.saturating_add(room(one.limit, one.used)));
    let each = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)).max(1);
    let is_first = candidates.iter().all(|one| one.standing == BucketHealth::Refused);
    waiting.saturating_sub(room).div_ceil(each).max(usize::from(is_first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::BucketHealth::*;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn bucket(name: &'static str, standing: BucketHealth, used: usize) -> BucketCandidate<'static> {
        BucketCandidate { name, created_at: at(0), standing, used, limit: Some(10) }
    }

    #[test]
    fn the_fullest_with_room_is_filled_first() {
        let newer = BucketCandidate { created_at: at(1), ..bucket("a", Ready, 5) };
        for (of, chosen) in [
            (vec![bucket("a", Ready, 2), bucket("b", Ready, 9), bucket("c", Ready, 10)], Some("b")),
            (vec![bucket("a", Ready, 0), bucket("b", Ailing, 9)], Some("a")),
            (vec![bucket("a", Ready, 10), bucket("b", Ailing, 9)], Some("b")),
            (vec![bucket("b", Ready, 5), bucket("a", Ready, 5)], Some("a")),
            (vec![newer, bucket("b", Ready, 5)], Some("b")),
            (vec![bucket("a", Ready, 12), bucket("b", Making, 0), bucket("c", Stuck, 0)], None),
            (vec![bucket("a", Refused, 0)], None),
            (vec![], None),
        ] {
            let name = choose(&of).map(|index| of[index].name);
            assert_eq!(name, chosen, "{of:?}");
        }
    }

    #[test]
    fn as_many_are_made_as_entries_need() {
        for (of, waiting, made) in [
            (vec![], 0, 1),
            (vec![], 25, 3),
            (vec![bucket("a", Refused, 0)], 0, 1),
            (vec![bucket("a", Ready, 10)], 0, 0),
            (vec![bucket("a", Ready, 10)], 1, 1),
            (vec![bucket("a", Making, 0)], 10, 0),
            (vec![bucket("a", Making, 0)], 11, 1),
            (vec![bucket("a", Stuck, 0), bucket("b", Making, 4)], 16, 0),
        ] {
            assert_eq!(missing(&of, waiting, Some(10)), made, "{of:?} {waiting}");
        }
        assert_eq!(missing(&[], 1_000_000, None), 1);
    }

    proptest! {
        /// Entries come one by one, or many at once: no bucket is ever over its limit, and there
        /// are no more of them than the limit takes.
        #[test]
        fn no_limit_is_passed_and_no_bucket_is_made_without_need(
            batches in prop::collection::vec(1usize..30, 1..12), limit in 1u32..12
        ) {
            let mut used: Vec<usize> = Vec::new();
            let total: usize = batches.iter().sum();
            for batch in batches {
                let mut left = batch;
                while left > 0 {
                    let candidates: Vec<BucketCandidate> = used.iter().map(|used| BucketCandidate {
                        name: "b", created_at: at(0), standing: Ready, used: *used, limit: Some(limit),
                    }).collect();
                    match choose(&candidates) {
                        Some(index) => { used[index] += 1; left -= 1; }
                        None => used.extend(std::iter::repeat_n(0, missing(&candidates, left, Some(limit)))),
                    }
                }
            }
            prop_assert!(used.iter().all(|used| *used <= limit as usize));
            prop_assert_eq!(used.len(), total.div_ceil(limit as usize));
            prop_assert_eq!(used.iter().sum::<usize>(), total);
        }
    }
}
