//! Does a name exist that some patterns match and others do not?

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use super::{Automaton, DASH, Effort, Glob, LETTERS, MAX_NAME, letters_of};

/// Is there a legal namespace name that every pattern of `all` matches and none of `none` does? Exact as long as there
/// is effort left; then the answer is "perhaps", that is `true`.
///
/// Walks the automata of all patterns side by side, breadth first, so that the shortest such name is found
/// first and names longer than a namespace's never count.
pub fn name_exists(all: &[&Glob], none: &[&Glob], effort: &Effort) -> bool {
    // Telling two beginnings apart takes about as long as ten steps.
    if !effort.spend(none.len() * 10) {
        return true;
    }
    if let Some(name) = all.iter().find_map(|glob| glob.literal()) {
        return all.iter().all(|glob| glob.matches(name)) && !none.iter().any(|glob| glob.matches(name));
    }
    let mut patterns: Vec<&Automaton> = all.iter().filter_map(|glob| glob.automaton()).collect();
    let wanted = patterns.len();
    let mut names: Vec<&[u8]> = Vec::new();
    // What no name of `all` can match excludes nothing.
    for glob in none.iter().filter(|glob| !all.iter().any(|wanted| wanted.is_apart_from(glob))) {
        match glob.automaton() {
            Some(pattern) => patterns.push(pattern),
            None if !effort.spend(all.len() * glob.text.len()) => return true,
            None if all.iter().all(|wanted| wanted.matches(&glob.text)) => names.push(glob.text.as_bytes()),
            None => {}
        }
    }
    // Not `sort_unstable`, because they mostly are two lists that are sorted already.
    names.sort();
    names.dedup();
    if !effort.spend(patterns.len() * LETTERS.len()) {
        return true;
    }
    let letters = letters_worth_trying(&patterns, &names);
    let first = Read {
        masks: patterns.iter().map(|pattern| pattern.start()).collect(),
        names: 0..names.len(),
        length: 0,
    };
    let mut next = first.clone();
    let mut seen: HashSet<Rc<Read>> = HashSet::new();
    let mut layer = vec![Rc::new(first)];
    for length in 1..=MAX_NAME {
        let mut reached = Vec::new();
        for state in &layer {
            for &letter in &letters {
                if letter == DASH && length == 1 {
                    continue;
                }
                // A step for each pattern, and about as much for the way round.
                if !effort.spend(patterns.len() + 10) {
                    return true;
                }
                let step = |(pattern, mask): (&&Automaton, &u64)| pattern.step(*mask, pattern.letter(letter));
                next.masks.clear();
                next.masks.extend(patterns.iter().zip(&state.masks).map(step));
                if next.masks.iter().take(wanted).any(|mask| *mask == 0) {
                    continue;
                }
                // About as much for remembering as for forty.
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

/// How far a name has been read, as far as it matters for what may follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    /// Of each pattern.
    masks: Vec<u64>,
    /// Which of the excluded names begin like this.
    names: Range<usize>,
    /// Its length, while there are such names.
    length: usize,
}

/// Those of the sorted `names` in `range`, which are alike up to `at`, that have this letter there.
fn go_on(names: &[&[u8]], range: &Range<usize>, at: usize, letter: usize) -> Range<usize> {
    let byte = LETTERS.get(letter);
    let alike = names.get(range.clone()).unwrap_or_default();
    let from = alike.partition_point(|name| name.get(at) < byte);
    let to = alike.partition_point(|name| name.get(at) <= byte);
    if from == to { 0..0 } else { range.start + from..range.start + to }
}

/// '-', and one of all the letters that every pattern and every name treats alike.
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
