//! Blocks: groups of pods whose hooks run together, because volumes that several pods share must be
//! stored while all of these are frozen.

use std::collections::BTreeMap;

/// Puts elements that share a name, directly or through others, into one block. Each of `all` is in
/// one block; blocks are in the order of their first elements, and each block in the order of
/// `all`. A block larger than `most` is cut, because all of its pods stay frozen until the last one
/// is stored.
pub fn blocks<T>(all: Vec<T>, most: usize, uses: impl Fn(&T) -> &[String]) -> Vec<Vec<T>> {
    // For each element, an earlier one of the same block; itself if there is none.
    let mut before: Vec<usize> = (0..all.len()).collect();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, one) in all.iter().enumerate() {
        for name in uses(one) {
            let other = *first.entry(name.as_str()).or_insert(at);
            let (a, b) = (first_of(&before, at), first_of(&before, other));
            for joined in [a, b, at, other] {
                if let Some(place) = before.get_mut(joined) {
                    *place = a.min(b);
                }
            }
        }
    }
    let mut blocks: BTreeMap<usize, Vec<T>> = BTreeMap::new();
    for (at, one) in all.into_iter().enumerate() {
        blocks.entry(first_of(&before, at)).or_default().push(one);
    }
    let mut cut = Vec::new();
    for mut block in blocks.into_values() {
        while block.len() > most.max(1) {
            let rest = block.split_off(most.max(1));
            cut.push(std::mem::replace(&mut block, rest));
        }
        cut.push(block);
    }
    cut
}

fn first_of(before: &[usize], mut at: usize) -> usize {
    while let Some(other) = before.get(at).copied().filter(|other| *other < at) {
        at = other;
    }
    at
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    type Pod = (usize, Vec<String>);

    /// The blocks as places in `words`. Each word is one element, and each letter a name that it
    /// uses.
    fn of(words: &[&str], most: usize) -> Vec<Vec<usize>> {
        let pods: Vec<Pod> =
            words.iter().map(|word| word.chars().map(String::from).collect()).enumerate().collect();
        places(blocks(pods, most, used))
    }

    fn used(pod: &Pod) -> &[String] {
        &pod.1
    }

    fn places(blocks: Vec<Vec<Pod>>) -> Vec<Vec<usize>> {
        blocks.into_iter().map(|block| block.into_iter().map(|(at, _)| at).collect()).collect()
    }

    #[test]
    fn what_shares_something_is_one_block_up_to_a_bound() {
        for (words, most, expected) in [
            (&[][..], 16, vec![]),
            (&["", "", ""], 16, vec![vec![0], vec![1], vec![2]]),
            (&["a", "b", "a"], 16, vec![vec![0, 2], vec![1]]),
            (&["a", "b", "c", "bc", "ca"], 16, vec![vec![0, 1, 2, 3, 4]]),
            (&["a", "b", "c", "cb", "d", "ba"], 16, vec![vec![0, 1, 2, 3, 5], vec![4]]),
            (&["aa", "a"], 16, vec![vec![0, 1]]),
            (&["a", "b", "a", "a", "a", "a"], 2, vec![vec![0, 2], vec![3, 4], vec![5], vec![1]]),
            (&["a", "a"], 0, vec![vec![0], vec![1]]),
        ] {
            assert_eq!(of(words, most), expected, "{words:?}, {most}");
        }
    }

    /// The same, computed in another way: everything that is reachable.
    fn reached(uses: &[Vec<String>], from: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([from]);
        loop {
            let names: BTreeSet<&String> = reached.iter().flat_map(|at| &uses[*at]).collect();
            let next = (0..uses.len()).filter(|at| uses[*at].iter().any(|name| names.contains(name)));
            let next: BTreeSet<usize> = next.chain(reached.iter().copied()).collect();
            if next == reached {
                return reached;
            }
            reached = next;
        }
    }

    proptest! {
        /// Each element is in one block, and blocks are the connected groups, in order, cut at the
        /// bound and nowhere else.
        #[test]
        fn blocks_are_what_is_connected_cut_at_the_bound(
            uses in prop::collection::vec(prop::collection::vec("[a-h]", 0..4), 0..20),
            most in 1_usize..6,
        ) {
            let pods: Vec<Pod> = uses.iter().cloned().enumerate().collect();
            let found = places(blocks(pods, most, used));
            let mut expected = Vec::new();
            let mut seen = BTreeSet::new();
            for at in 0..uses.len() {
                if !seen.contains(&at) {
                    let block = reached(&uses, at);
                    seen.extend(block.iter().copied());
                    let block: Vec<usize> = block.into_iter().collect();
                    expected.extend(block.chunks(most).map(<[usize]>::to_vec));
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
