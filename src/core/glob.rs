//! Name patterns with Velero's syntax: `*` matches any characters, `?` one, `[abc]` and `[a-z]` one
//! of a class. No character is a separator.
//!
//! Besides matching a name, patterns can be compared without knowing any name: is there a legal
//! Kubernetes name that some patterns match and others do not? This keeps a namespace that is
//! created tomorrow out of two running backups.

mod automaton;
mod effort;
mod exists;
mod name;
mod pattern;
mod token;

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

pub use effort::Effort;
pub use exists::name_exists;
pub(crate) use name::letters_of;
pub use name::{is_label, is_subdomain};
pub use pattern::Pattern;
pub use token::GlobError;

use automaton::Automaton;
use name::{MAX_NAME, bit, letters_of_label};
use token::{GlobToken, tokens};

/// Is this a character of the pattern syntax?
fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b']')
}

/// A hash that stands for a value that may be long. Its key is random per process, as that of every
/// `HashMap`, because users choose the names of namespaces. So no decision and no message may
/// depend on it.
pub(crate) fn mark<T: Hash>(value: T) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(value)
}

/// A checked name pattern.
#[derive(Clone, Debug)]
pub struct Glob {
    text: Box<str>,
    /// `None` for a plain name.
    pattern: Option<Box<Matcher>>,
    /// The [`name::LETTERS`] that every matching name has; for a plain name, all its letters.
    letters: u64,
    mark: u64,
}

#[derive(Clone, Debug)]
struct Matcher {
    automaton: Automaton,
    /// End of its literal prefix, and start of its literal suffix.
    plain: (usize, usize),
}

impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark && self.text == other.text
    }
}

impl Eq for Glob {}

impl PartialOrd for Glob {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Glob {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mark);
    }
}

impl Glob {
    /// Parses a namespace name or pattern by Velero's rules (`validateNamespaceName` in its
    /// `pkg/util/collections/includes_excludes.go`).
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        let bytes = text.as_bytes();
        // The common case: a plain name.
        if let Some(letters) = letters_of_label(bytes, bit) {
            return Ok(Self::new(text, None, letters));
        }
        if text.len() > MAX_NAME {
            return Err(GlobError::Name(text.chars().take(MAX_NAME).chain(['…']).collect()));
        }
        let is_refused = |byte: &&u8| matches!(byte, b'(' | b')' | b'{' | b'}' | b'!' | b',' | b'|');
        if let Some(byte) = bytes.iter().find(is_refused) {
            return Err(GlobError::Character(text.to_owned(), char::from(*byte)));
        }
        if text.contains("**") {
            return Err(GlobError::DoubleStar(text.to_owned()));
        }
        let tokens = tokens(text)?;
        // Velero's rule: with the special characters replaced by a letter, the text must be a valid
        // name.
        if letters_of_label(bytes, |byte| bit(if is_special(byte) { b'x' } else { byte })).is_none() {
            return Err(GlobError::Name(text.to_owned()));
        }
        let automaton = Automaton::new(&tokens).ok_or_else(|| GlobError::Name(text.to_owned()))?;
        let (first, last) = (
            bytes.iter().position(|byte| is_special(*byte)),
            bytes.iter().rposition(|byte| is_special(*byte)),
        );
        let plain = (first.unwrap_or(bytes.len()), last.map_or(0, |at| at + 1));
        let letters = tokens.iter().filter_map(GlobToken::plain).fold(0, |letters, byte| letters | bit(byte));
        Ok(Self::new(text, Some(Box::new(Matcher { automaton, plain })), letters))
    }

    fn new(text: &str, pattern: Option<Box<Matcher>>, letters: u64) -> Self {
        Self { text: text.into(), pattern, letters, mark: mark(text) }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name, if this is not a pattern.
    pub fn literal(&self) -> Option<&str> {
        self.pattern.is_none().then_some(&*self.text)
    }

    pub(crate) fn letters(&self) -> u64 {
        self.letters
    }

    fn automaton(&self) -> Option<&Automaton> {
        self.pattern.as_deref().map(|pattern| &pattern.automaton)
    }

    pub fn matches(&self, name: &str) -> bool {
        let Some(pattern) = &self.pattern else { return *self.text == *name };
        let (begins, ends) = self.plain();
        let name = name.as_bytes();
        name.starts_with(begins) && name.ends_with(ends) && pattern.automaton.matches(name)
    }

    /// Could it match a name with no other letters than these? The cheapest part of
    /// [`Glob::matches`].
    pub(crate) fn may_match(&self, letters: u64) -> bool {
        self.letters & !letters == 0
    }

    /// Its literal prefix and suffix; for a plain name, all of it.
    fn plain(&self) -> (&[u8], &[u8]) {
        let text = self.text.as_bytes();
        let (first, last) = self.pattern.as_ref().map_or((text.len(), 0), |pattern| pattern.plain);
        (text.get(..first).unwrap_or_default(), text.get(last..).unwrap_or_default())
    }

    /// Do the letters, or the literal prefixes and suffixes, already show that no name matches
    /// both? The cheap half of [`name_exists`].
    pub fn is_apart_from(&self, other: &Self) -> bool {
        match (&self.pattern, &other.pattern) {
            (None, None) => return self != other,
            (None, Some(_)) if !other.may_match(self.letters) => return true,
            (Some(_), None) if !self.may_match(other.letters) => return true,
            _ => {}
        }
        let ((begins, ends), (other_begins, other_ends)) = (self.plain(), other.plain());
        let alike = begins.iter().zip(other_begins).all(|(a, b)| a == b)
            && ends.iter().rev().zip(other_ends.iter().rev()).all(|(a, b)| a == b);
        !alike
    }
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

    proptest! {
        /// Oracle: each rule by itself, as documented by Velero and Kubernetes.
        #[test]
        fn what_is_a_name_or_a_pattern_is_told_as_rule_by_rule(
            text in "[ab1é_A-]{0,5}|[a-c-]{61,66}|[a*?-]{60,65}|[ab*?\\[\\]!,|é-]{0,8}",
        ) {
            let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            let is_name = |text: &str| {
                (1..=MAX_NAME).contains(&text.len())
                    && text.chars().all(|c| alphanumeric(c) || c == '-')
                    && text.starts_with(alphanumeric)
                    && text.ends_with(alphanumeric)
            };
            let special = |c: char| "*?[]".contains(c);
            prop_assert_eq!(is_label(&text), is_name(&text));
            let made: String = text.chars().map(|c| if special(c) { 'x' } else { c }).collect();
            let is_pattern = is_name(&made) && !text.contains("**") && tokens(&text).is_ok();
            let read = Glob::parse(&text);
            prop_assert_eq!(read.is_ok(), is_pattern, "{:?}", read);
            let refused = text.chars().find(|c| "!,|".contains(*c)).filter(|_| text.len() <= MAX_NAME);
            if let Some(refused) = refused {
                prop_assert_eq!(read, Err(GlobError::Character(text, refused)));
            } else if let Ok(glob) = read {
                let begins = text.split(special).next().unwrap_or_default();
                let ends = text.rsplit(special).next().unwrap_or_default();
                prop_assert_eq!(glob.plain(), (begins.as_bytes(), ends.as_bytes()));
                prop_assert_eq!(glob.literal().is_some(), !text.contains(special));
                if glob.literal().is_some() {
                    prop_assert_eq!(glob.letters(), letters_of(text.as_bytes()));
                }
            }
        }
    }
}
