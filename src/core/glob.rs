//! Name patterns as Velero reads them: `*` any run of characters, `?` one, `[abc]` and `[a-z]` one of a class.
//! No character is a separator.
//!
//! Besides matching a name, patterns can be compared with each other without knowing any name: does a
//! Kubernetes name exist that some match and others do not? That is what keeps a namespace that is created
//! tomorrow from ending up in two running backups.

use std::collections::HashSet;

/// Longest name of a namespace (RFC 1123 label).
const MAX_NAME: usize = 63;
/// States looked at before a comparison gives up and answers "perhaps". Reached only by lists of dozens of
/// patterns with several stars each.
const MAX_STATES: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// A checked name pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    text: String,
    /// `None` for a plain name: the common case needs no tokens.
    tokens: Option<Vec<Token>>,
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
        Ok(Self { text: text.to_owned(), tokens: (!literal).then_some(tokens) })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name, if this is no pattern.
    pub fn literal(&self) -> Option<&str> {
        self.tokens.is_none().then_some(self.text.as_str())
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.tokens {
            None => self.text == name,
            Some(tokens) => matches_tokens(tokens, name.as_bytes()),
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

    fn tokens(&self) -> Vec<Token> {
        self.tokens.clone().unwrap_or_else(|| self.text.bytes().map(Token::One).collect())
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

/// Greedy with one point of return: linear for what people write, quadratic at worst.
fn matches_tokens(tokens: &[Token], name: &[u8]) -> bool {
    let (mut t, mut n) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    loop {
        match (tokens.get(t), name.get(n)) {
            (None, None) => return true,
            (Some(Token::Star), _) => {
                back = Some((t, n));
                t += 1;
                continue;
            }
            (Some(token), Some(byte)) if token.takes(*byte) => {
                t += 1;
                n += 1;
                continue;
            }
            _ => {}
        }
        match back {
            Some((star, from)) if from < name.len() => {
                back = Some((star, from + 1));
                t = star + 1;
                n = from + 1;
            }
            _ => return false,
        }
    }
}

/// Is there a legal namespace name that every pattern of `all` matches and none of `none` does? Exact, but
/// for absurdly many stars, where the answer is "perhaps", that is `true`.
///
/// Walks the automata of all patterns side by side, breadth first, so that the shortest such name is found
/// first and names longer than a namespace's never count.
pub fn name_exists(all: &[&Glob], none: &[&Glob]) -> bool {
    let patterns: Vec<(Vec<Token>, bool)> =
        all.iter().map(|g| (g.tokens(), true)).chain(none.iter().map(|g| (g.tokens(), false))).collect();
    if patterns.iter().any(|(tokens, _)| tokens.len() > MAX_NAME) {
        return true;
    }
    let alphabet = alphabet(&patterns);
    let start: Vec<u64> = patterns.iter().map(|(tokens, _)| past_stars(tokens, 1)).collect();
    let mut seen = HashSet::new();
    let mut layer = vec![(start, false)];
    for length in 1..=MAX_NAME {
        let mut next = Vec::new();
        for (state, _) in &layer {
            for &byte in &alphabet {
                if byte == b'-' && length == 1 {
                    continue;
                }
                let stepped: Vec<u64> =
                    patterns.iter().zip(state).map(|((tokens, _), mask)| step(tokens, *mask, byte)).collect();
                let alive = patterns.iter().zip(&stepped).all(|((_, wanted), mask)| !wanted || *mask != 0);
                let dash = byte == b'-';
                if !alive || !seen.insert((stepped.clone(), dash)) {
                    continue;
                }
                let accepted = !dash
                    && patterns
                        .iter()
                        .zip(&stepped)
                        .all(|((tokens, wanted), mask)| (mask >> tokens.len() & 1 == 1) == *wanted);
                if accepted || seen.len() > MAX_STATES {
                    return true;
                }
                next.push((stepped, dash));
            }
        }
        layer = next;
    }
    false
}

/// Bytes worth trying: those that a pattern names or bounds, '-', and one that none of them names.
fn alphabet(patterns: &[(Vec<Token>, bool)]) -> Vec<u8> {
    let legal = || (b'a'..=b'z').chain(b'0'..=b'9').chain([b'-']);
    if patterns.iter().any(|(tokens, _)| tokens.iter().any(|t| matches!(t, Token::Class(_)))) {
        return legal().collect();
    }
    let named: HashSet<u8> = patterns
        .iter()
        .flat_map(|(tokens, _)| tokens)
        .filter_map(|t| match t {
            Token::One(b) => Some(*b),
            _ => None,
        })
        .collect();
    let other = legal().find(|b| *b != b'-' && !named.contains(b));
    legal().filter(|b| *b == b'-' || named.contains(b)).chain(other).collect()
}

/// Adds to a set of positions (bit i: before token i) those reached by letting stars match nothing.
fn past_stars(tokens: &[Token], mut mask: u64) -> u64 {
    for (i, token) in tokens.iter().enumerate() {
        if *token == Token::Star && mask >> i & 1 == 1 {
            mask |= 1 << (i + 1);
        }
    }
    mask
}

fn step(tokens: &[Token], mask: u64, byte: u8) -> u64 {
    let mut next = 0;
    for (i, token) in tokens.iter().enumerate() {
        if mask >> i & 1 == 1 && token.takes(byte) {
            next |= if *token == Token::Star { 1 << i } else { 1 << (i + 1) };
        }
    }
    past_stars(tokens, next)
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
            name_exists(&all.iter().collect::<Vec<_>>(), &none.iter().collect::<Vec<_>>())
        };
        assert!(exists(&["team-*", "*-prod"], &[]), "team-prod");
        assert!(!exists(&["team-*", "club-*"], &[]));
        assert!(!exists(&["team-*"], &["team-*"]));
        assert!(!exists(&["team-a"], &["team-*"]));
        assert!(exists(&["team-*"], &["team-a"]));
        assert!(!exists(&["ns[12]", "ns?"], &["ns1", "ns2"]));
        assert!(!exists(&["*"], &["*"]));
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
                name_exists(&all.iter().collect::<Vec<_>>(), &none.iter().collect::<Vec<_>>());
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
