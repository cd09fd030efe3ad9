//! Name patterns as Velero reads them: `*` any run of characters, `?` one, `[abc]` and `[a-z]` one of a class.
//! No character is a separator.
//!
//! Besides matching a name, patterns can be compared with each other without knowing any name: does a
//! Kubernetes name exist that some match and others do not? That is what keeps a namespace that is created
//! tomorrow from ending up in two running backups.

use std::cell::Cell;
use std::collections::HashSet;

/// Longest name of a namespace (RFC 1123 label).
const MAX_NAME: usize = 63;
/// What names are made of.
const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789-";
/// Place of '-' among them.
const DASH: usize = 36;

/// How much more may be compared before the answer is "perhaps", which counts as yes. Whoever creates a backup
/// chooses the patterns, and others wait for the answer. In steps of a few nanoseconds.
#[derive(Debug)]
pub struct Effort(Cell<u32>);

impl Effort {
    /// Of two sets: half a millisecond.
    const COMPARISON: u32 = 200_000;
    /// Of all the comparisons of one decision: some 20 milliseconds.
    const DECISION: u32 = 8_000_000;

    pub fn of_decision() -> Self {
        Self(Cell::new(Self::DECISION))
    }

    /// What one comparison may take of this.
    pub fn of_comparison(&self) -> Self {
        Self(Cell::new(self.0.get().min(Self::COMPARISON)))
    }

    /// Takes off what a comparison took that began with `begun`.
    pub fn charge(&self, begun: u32, comparison: &Self) {
        self.0.set(self.0.get().saturating_sub(begun.saturating_sub(comparison.left())));
    }

    pub fn left(&self) -> u32 {
        self.0.get()
    }

    /// `false`: there is none left.
    pub fn spend(&self, steps: usize) -> bool {
        let left = self.left().saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
        self.0.set(left);
        left > 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    One(u8),
    Any,
    Class(Vec<(u8, u8)>),
    Star,
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::One(b) => *b == byte,
            Self::Any | Self::Star => true,
            Self::Class(ranges) => ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)),
        }
    }
}

/// A pattern that reads a name byte by byte, all ways of reading it at once: bit i of a set of positions stands
/// before token i, the bit after the last one at the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Automaton {
    /// For each of [`LETTERS`], where it may be read.
    letters: [u64; LETTERS.len()],
    /// Where any other byte may be read.
    any: u64,
    stars: u64,
    end: u64,
}

impl Automaton {
    /// `None`: more tokens than a name has characters.
    fn new(tokens: &[Token]) -> Option<Self> {
        if tokens.len() > MAX_NAME {
            return None;
        }
        let places = |wanted: &dyn Fn(&Token) -> bool| {
            tokens.iter().enumerate().filter(|(_, t)| wanted(t)).fold(0, |mask, (i, _)| mask | 1_u64 << i)
        };
        Some(Self {
            letters: LETTERS.map(|byte| places(&|token| token.takes(byte))),
            any: places(&|token| matches!(token, Token::Any | Token::Star)),
            stars: places(&|token| matches!(token, Token::Star)),
            end: 1 << tokens.len(),
        })
    }

    /// Stars may match nothing.
    fn past_stars(&self, mask: u64) -> u64 {
        mask | (mask & self.stars) << 1
    }

    fn start(&self) -> u64 {
        self.past_stars(1)
    }

    /// `takes`: where the byte may be read.
    fn step(&self, mask: u64, takes: u64) -> u64 {
        let read = mask & takes;
        self.past_stars((read & !self.stars) << 1 | read & self.stars)
    }

    fn accepts(&self, mask: u64) -> bool {
        mask & self.end != 0
    }

    fn matches(&self, name: &[u8]) -> bool {
        let mut mask = self.start();
        for byte in name {
            let takes = letter(*byte).and_then(|at| self.letters.get(at)).copied().unwrap_or(self.any);
            mask = self.step(mask, takes);
            if mask == 0 {
                return false;
            }
        }
        self.accepts(mask)
    }

    fn letter(&self, at: usize) -> u64 {
        self.letters.get(at).copied().unwrap_or_default()
    }
}

fn letter(byte: u8) -> Option<usize> {
    Some(match byte {
        b'a'..=b'z' => usize::from(byte - b'a'),
        b'0'..=b'9' => usize::from(byte - b'0') + 26,
        b'-' => DASH,
        _ => return None,
    })
}

/// A checked name pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob {
    text: String,
    /// `None` for a plain name.
    pattern: Option<Box<Automaton>>,
}

/// Why a text is no name pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("{0:?} must not contain {1:?}")]
    Character(String, char),
    #[error("{0:?} must not contain \"**\"")]
    DoubleStar(String),
    #[error("{0:?} has an unbalanced or empty [...]")]
    Class(String),
    #[error(
        "{0:?} is not a namespace name: lower case letters, digits and '-', at most 63 characters, \
             first and last a letter or digit; * ? [...] stand for characters"
    )]
    Name(String),
}

impl Glob {
    /// Reads a namespace name or pattern by Velero's rules (`validateNamespaceName` in its
    /// `pkg/util/collections/includes_excludes.go`).
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        if text.len() > MAX_NAME {
            return Err(GlobError::Name(text.chars().take(MAX_NAME).chain(['…']).collect()));
        }
        if let Some(c) = text.chars().find(|c| "(){}!,|".contains(*c)) {
            return Err(GlobError::Character(text.to_owned(), c));
        }
        if text.contains("**") {
            return Err(GlobError::DoubleStar(text.to_owned()));
        }
        let tokens = tokens(text)?;
        // As Velero does: with the special characters replaced by a letter it has to be a name.
        let name: String = text.chars().map(|c| if "*?[]".contains(c) { 'x' } else { c }).collect();
        if !is_label(&name) && text != "*" {
            return Err(GlobError::Name(text.to_owned()));
        }
        let literal = tokens.iter().all(|token| matches!(token, Token::One(_)));
        let pattern = if literal {
            None
        } else {
            let pattern = Automaton::new(&tokens).ok_or_else(|| GlobError::Name(text.to_owned()))?;
            Some(Box::new(pattern))
        };
        Ok(Self { text: text.to_owned(), pattern })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name, if this is no pattern.
    pub fn literal(&self) -> Option<&str> {
        self.pattern.is_none().then_some(self.text.as_str())
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.pattern {
            None => self.text == name,
            Some(pattern) => pattern.matches(name.as_bytes()),
        }
    }

    /// Do their plain beginnings and ends already say that no name matches both? The cheap half of
    /// [`name_exists`].
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let special = |c: char| "*?[]".contains(c);
        let ends = |glob: &Self| {
            let text = glob.text.as_str();
            let first = text.find(special).unwrap_or(text.len());
            let last = text.rfind(special).map_or(0, |at| at + 1);
            (first, last)
        };
        let ((first, last), (other_first, other_last)) = (ends(self), ends(other));
        let (a, b) = (self.text.as_bytes(), other.text.as_bytes());
        let begins = a.iter().take(first).zip(b.iter().take(other_first)).all(|(a, b)| a == b);
        let ends = a.iter().skip(last).rev().zip(b.iter().skip(other_last).rev()).all(|(a, b)| a == b);
        !(begins && ends)
    }

    fn automaton(&self) -> Option<Automaton> {
        match &self.pattern {
            Some(pattern) => Some(Automaton::clone(pattern)),
            None => Automaton::new(&self.text.bytes().map(Token::One).collect::<Vec<_>>()),
        }
    }
}

/// A pattern over names of any length, with dots in them: `resource.group`. No character is a separator here either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Token>);

impl Pattern {
    /// # Errors
    /// When a `[...]` is unbalanced or empty.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        tokens(text).map(Self)
    }

    /// Takes as many steps as name and pattern have characters, times each other at most.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.as_bytes();
        let (mut at, mut read) = (0_usize, 0_usize);
        // Behind the last star, and what that has not taken yet.
        let mut back: Option<(usize, usize)> = None;
        while let Some(byte) = name.get(read) {
            match (self.0.get(at), back) {
                (Some(Token::Star), _) => {
                    at += 1;
                    back = Some((at, read));
                }
                (Some(token), _) if token.takes(*byte) => (at, read) = (at + 1, read + 1),
                (_, Some((behind, from))) => {
                    (at, read) = (behind, from + 1);
                    back = Some((behind, read));
                }
                (_, None) => return false,
            }
        }
        self.0.iter().skip(at).all(|token| matches!(token, Token::Star))
    }
}

/// RFC 1123 label: what a namespace may be called.
pub fn is_label(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=MAX_NAME).contains(&bytes.len())
        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| alphanumeric(*b))
        && bytes.last().is_some_and(|b| alphanumeric(*b))
}

fn tokens(text: &str) -> Result<Vec<Token>, GlobError> {
    let bad = || GlobError::Class(text.to_owned());
    let mut found = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        found.push(match byte {
            b'*' => Token::Star,
            b'?' => Token::Any,
            b']' => return Err(bad()),
            b'[' => {
                let end = rest.iter().position(|b| *b == b']').ok_or_else(bad)?;
                let (inner, after) = rest.split_at(end);
                rest = after.get(1..).unwrap_or_default();
                if inner.is_empty() || inner.contains(&b'[') {
                    return Err(bad());
                }
                let ranges = match inner {
                    [low, b'-', high] => vec![(*low, *high)],
                    listed => listed.iter().map(|b| (*b, *b)).collect(),
                };
                Token::Class(ranges)
            }
            other => Token::One(other),
        });
    }
    Ok(found)
}

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
    // What no name of `all` can match excludes nothing.
    let none = none.iter().filter(|glob| !all.iter().any(|wanted| wanted.is_apart_from(glob)));
    let patterns: Option<Vec<(Automaton, bool)>> = (all.iter().map(|glob| (glob, true)))
        .chain(none.map(|glob| (glob, false)))
        .map(|(glob, wanted)| Some((glob.automaton()?, wanted)))
        .collect();
    let Some(patterns) = patterns else { return true };
    if !effort.spend(patterns.len() * LETTERS.len()) {
        return true;
    }
    let letters = letters_worth_trying(&patterns);
    let mut seen = HashSet::new();
    let mut layer = vec![patterns.iter().map(|(pattern, _)| pattern.start()).collect::<Vec<u64>>()];
    for length in 1..=MAX_NAME {
        let mut next = Vec::new();
        for state in &layer {
            for &letter in &letters {
                if letter == DASH && length == 1 {
                    continue;
                }
                // A step for each pattern, and about as much for remembering as for thirty.
                if !effort.spend(patterns.len() + 30) {
                    return true;
                }
                let step = |((pattern, _), mask): (&(Automaton, bool), &u64)| {
                    pattern.step(*mask, pattern.letter(letter))
                };
                let stepped: Vec<u64> = patterns.iter().zip(state).map(step).collect();
                let met = |wanted: bool, mask: u64| !wanted || mask != 0;
                if !patterns.iter().zip(&stepped).all(|((_, wanted), mask)| met(*wanted, *mask)) {
                    continue;
                }
                let accepted = letter != DASH
                    && patterns
                        .iter()
                        .zip(&stepped)
                        .all(|((pattern, wanted), mask)| pattern.accepts(*mask) == *wanted);
                if accepted {
                    return true;
                }
                if seen.insert((stepped.clone(), letter == DASH)) {
                    next.push(stepped);
                }
            }
        }
        layer = next;
    }
    false
}

/// '-', and one of all the letters that every pattern treats alike.
fn letters_worth_trying(patterns: &[(Automaton, bool)]) -> Vec<usize> {
    let mut known = HashSet::new();
    let treated = |letter: usize| patterns.iter().map(|(p, _)| p.letter(letter)).collect::<Vec<_>>();
    let mut letters: Vec<usize> = (0..DASH).filter(|letter| known.insert(treated(*letter))).collect();
    letters.push(DASH);
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn glob(text: &str) -> Glob {
        Glob::parse(text).unwrap_or_else(|error| unreachable!("{error}"))
    }

    #[test]
    fn names_are_matched_as_velero_does() {
        for (pattern, name, expected) in [
            ("ns1", "ns1", true),
            ("ns1", "ns11", false),
            ("*", "anything", true),
            ("team-*", "team-a", true),
            ("team-*", "team-", true),
            ("team-*", "steam-a", false),
            ("*-prod", "a-b-prod", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXcXb", false),
            ("ns?", "ns1", true),
            ("ns?", "ns", false),
            ("ns[12]", "ns2", true),
            ("ns[1-3]", "ns4", false),
        ] {
            assert_eq!(glob(pattern).matches(name), expected, "{pattern} against {name}");
        }
    }

    #[test]
    fn patterns_of_types_read_over_dots() {
        for (pattern, name, expected) in [
            ("deploy*", "deployments.apps", true),
            ("*.k8s.io", "ingresses.networking.k8s.io", true),
            ("*.cattle.io", "clusters.management.cattle.io", true),
            ("*.apps", "deployments.apps.example.com", false),
            ("*", "pods", true),
            ("p?ds", "pods", true),
            ("[ps]*s", "services", true),
            ("[ps]*s", "nodes", false),
            ("*a*ab", "aaab", true),
            ("*a*ab", "aaba", false),
            ("pods*", "pods", true),
            ("pods?", "pods", false),
        ] {
            let matches = Pattern::parse(pattern).unwrap_or_else(|e| unreachable!("{e}")).matches(name);
            assert_eq!(matches, expected, "{pattern} against {name}");
        }
        assert!(Pattern::parse("pods[").is_err());
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_reason() {
        for bad in
            ["ns**", "ns[!1]", "a{b}", "a|b", "a(b", "ns[", "ns]", "ns[]", "Upper", "-a", "a_b", "a,b", ""]
        {
            assert!(Glob::parse(bad).is_err(), "{bad:?} was accepted");
        }
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
        /// Oracle: every name over a small alphabet, up to a length that these patterns cannot outgrow.
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
            // Six characters cover two intersected patterns of up to four tokens almost always; a longer
            // witness is the only way in which the oracle may miss what the comparison finds.
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
