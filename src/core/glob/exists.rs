//! Is there a name that some patterns match and others do not?

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use super::Glob;
use super::automaton::Automaton;
use super::effort::Effort;
use super::name::{DASH, LETTERS, MAX_NAME, letters_of};

/// Is there a legal namespace name that every pattern of `all` matches and none of `none` does?
/// Exact as long as effort is left; after that the answer is "perhaps", that is `true`.
///
/// Runs the automata of all patterns in parallel, breadth first, so that the shortest such name is
/// found first and names longer than a namespace's are never considered.
pub fn name_exists(all: &[&Glob], none: &[&Glob], effort: &Effort) -> bool {
    // Splitting the names into two groups takes about as long as ten steps.
    if !effort.spend(none.len() * 10) {
        return true;
    }
    if let Some(name) = all.iter().find_map(|glob| glob.literal()) {
        return all.iter().all(|glob| glob.matches(name)) && !none.iter().any(|glob| glob.matches(name));
    }
    let mut patterns: Vec<&Automaton> = all.iter().filter_map(|glob| glob.automaton()).collect();
    let wanted = patterns.len();
    let mut names: Vec<&[u8]> = Vec::new();
    // A pattern that no name of `all` can match excludes nothing.
    for glob in none.iter().filter(|glob| !all.iter().any(|wanted| wanted.is_apart_from(glob))) {
        match glob.automaton() {
            Some(pattern) => patterns.push(pattern),
            None if !effort.spend(all.len() * glob.text.len()) => return true,
            None if all.iter().all(|wanted| wanted.matches(&glob.text)) => names.push(glob.text.as_bytes()),
            None => {}
        }
    }
    // Not `sort_unstable`, because this is mostly the concatenation of two sorted lists.
    names.sort();
    names.dedup();
    if !effort.spend(patterns.len() * LETTERS.len()) {
        return true;
    }
    let letters = letters_worth_trying(&patterns, &names);
    let first = PrefixState {
        masks: patterns.iter().map(|pattern| pattern.start()).collect(),
        names: 0..names.len(),
        length: 0,
    };
    let mut next = first.clone();
    let mut seen: HashSet<Rc<PrefixState>> = HashSet::new();
    let mut layer = vec![Rc::new(first)];
    for length in 1..=MAX_NAME {
        let mut reached = Vec::new();
        for state in &layer {
            for &letter in &letters {
                if letter == DASH && length == 1 {
                    continue;
                }
                // One step for each pattern, and about ten for the loop.
                if !effort.spend(patterns.len() + 10) {
                    return true;
                }
                let step = |(pattern, mask): (&&Automaton, &u64)| pattern.step(*mask, pattern.letter(letter));
                next.masks.clear();
                next.masks.extend(patterns.iter().zip(&state.masks).map(step));
                if next.masks.iter().take(wanted).any(|mask| *mask == 0) {
                    continue;
                }
                // Remembering a state takes about forty steps.
                if !effort.spend(patterns.len() + 40) {
                    return true;
                }
                next.names = go_on(&names, &state.names, length - 1, letter);
                let is_excluded = names.get(next.names.clone()).and_then(<[_]>::first);
                let is_excluded = is_excluded.is_some_and(|name| name.len() == length);
                let mut read = patterns.iter().zip(&next.masks).enumerate();
                let accepted = letter != DASH
                    && !is_excluded
                    && read.all(|(i, (pattern, mask))| pattern.accepts(*mask) == (i < wanted));
                if accepted {
                    return true;
                }
                next.length = if next.names.is_empty() { 0 } else { length };
                if !seen.contains(&next) {
                    let new = Rc::new(next.clone());
                    seen.insert(Rc::clone(&new));
                    reached.push(new);
                }
            }
        }
        layer = reached;
    }
    false
}

/// The state after the beginning of a name, as far as it matters for the rest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrefixState {
    /// Of each pattern.
    masks: Vec<u64>,
    /// The excluded names with this beginning.
    names: Range<usize>,
    /// Length of the beginning, while there are such names.
    length: usize,
}

/// Those of the sorted `names` in `range`, which are equal up to `at`, that have this letter there.
fn go_on(names: &[&[u8]], range: &Range<usize>, at: usize, letter: usize) -> Range<usize> {
    let byte = LETTERS.get(letter);
    let alike = names.get(range.clone()).unwrap_or_default();
    let from = alike.partition_point(|name| name.get(at) < byte);
    let to = alike.partition_point(|name| name.get(at) <= byte);
    if from == to { 0..0 } else { range.start + from..range.start + to }
}

/// `-`, and one of each group of letters that all patterns and names treat alike.
fn letters_worth_trying(patterns: &[&Automaton], names: &[&[u8]]) -> Vec<usize> {
    let mut known = HashSet::new();
    let in_names = names.iter().fold(0, |letters, name| letters | letters_of(name));
    let treated = |letter: usize| {
        let of_its_own = (in_names & (1 << letter) != 0).then_some(letter);
        (of_its_own, patterns.iter().map(|pattern| pattern.letter(letter)).collect::<Vec<_>>())
    };
    let mut letters: Vec<usize> = (0..DASH).filter(|letter| known.insert(treated(*letter))).collect();
    letters.push(DASH);
    letters
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        Glob::parse(text).unwrap_or_else(|error| unreachable!("{error}"))
    }

    #[test]
    fn patterns_are_compared_without_any_name() {
        let exists = |all: &[&str], none: &[&str]| {
            let (all, none): (Vec<_>, Vec<_>) =
                (all.iter().map(|p| glob(p)).collect(), none.iter().map(|p| glob(p)).collect());
            name_exists(
                &all.iter().collect::<Vec<_>>(),
                &none.iter().collect::<Vec<_>>(),
                &Effort::of_decision(),
            )
        };
        assert!(exists(&["team-*", "*-prod"], &[]), "team-prod");
        assert!(!exists(&["team-*", "club-*"], &[]));
        assert!(!exists(&["team-*"], &["team-*"]));
        assert!(!exists(&["team-a"], &["team-*"]));
        assert!(exists(&["team-*"], &["team-a"]));
        assert!(!exists(&["ns[12]", "ns?"], &["ns1", "ns2"]));
        assert!(!exists(&["*"], &["*"]));
    }

    #[test]
    fn what_excludes_nothing_is_looked_at_with_effort_too() {
        let names: Vec<Glob> = (0..1000).map(|i| glob(&format!("b{i}"))).collect();
        let (all, none) = ([glob("a*b"), glob("a*c")], names.iter().collect::<Vec<_>>());
        let effort = Effort::of_decision();
        let before = effort.left();
        name_exists(&all.iter().collect::<Vec<_>>(), &none, &effort);
        assert!(before - effort.left() >= 10_000, "{}", before - effort.left());
    }

    proptest! {
        /// Oracle: every name over a small alphabet, up to a length that these patterns cannot
        /// exceed.
        #[test]
        fn comparing_patterns_agrees_with_trying_every_name(
            all in prop::collection::vec("[ab*?]{1,4}", 1..3),
            none in prop::collection::vec("[ab*?]{1,4}", 0..3),
        ) {
            let parse = |texts: &[String]| texts.iter().filter_map(|t| Glob::parse(t).ok()).collect::<Vec<_>>();
            let (all, none) = (parse(&all), parse(&none));
            prop_assume!(!all.is_empty());
            let mut names: Vec<String> = vec![String::new()];
            let mut found = false;
            for _ in 0..6 {
                names = names.iter().flat_map(|n| ["a", "b", "c"].map(|c| format!("{n}{c}"))).collect();
                found |= names.iter().any(|n| {
                    all.iter().all(|g| g.matches(n)) && none.iter().all(|g| !g.matches(n))
                });
            }
            let symbolic =
                name_exists(
                &all.iter().collect::<Vec<_>>(),
                &none.iter().collect::<Vec<_>>(),
                &Effort::of_decision(),
            );
            // Six characters are almost always enough for two intersected patterns of up to four
            // tokens. A longer witness is the only thing that the oracle may miss.
            prop_assert!(symbolic || !found);
            if let [a, b, ..] = all.as_slice() {
                prop_assert!(!(found && a.is_apart_from(b)), "{a:?} {b:?}");
            }
            if symbolic && !found {
                let long = all.iter().chain(&none).map(|g| g.as_str().len()).sum::<usize>() > 6;
                prop_assert!(long, "{all:?} {none:?}");
            }
        }
    }
}
