//! The characters of names, and which texts are names.

/// Longest name of a namespace (RFC 1123 label).
pub(super) const MAX_NAME: usize = 63;
/// Longest name of most other objects (RFC 1123 subdomain).
const MAX_SUBDOMAIN: usize = 253;
/// The characters of names.
pub(super) const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789-";
/// Index of `-` in [`LETTERS`].
pub(super) const DASH: usize = 36;
/// For each byte, its place in [`LETTERS`] as a set; empty for a byte that no name has. A table,
/// because each byte of thousands of names is looked up while an API server waits.
static BITS: [u64; 256] = bits();

const fn bits() -> [u64; 256] {
    let mut bits = [0; 256];
    let mut at = 0;
    while at < LETTERS.len() {
        bits[LETTERS[at] as usize] = 1 << at;
        at += 1;
    }
    bits
}

pub(super) fn letter(byte: u8) -> Option<usize> {
    Some(match byte {
        b'a'..=b'z' => usize::from(byte - b'a'),
        b'0'..=b'9' => usize::from(byte - b'0') + 26,
        b'-' => DASH,
        _ => return None,
    })
}

pub(super) fn bit(byte: u8) -> u64 {
    BITS[usize::from(byte)]
}

/// The set of [`LETTERS`] that occur in `name`.
pub(crate) fn letters_of(name: &[u8]) -> u64 {
    name.iter().fold(0, |letters, byte| letters | bit(*byte))
}

/// Like [`letters_of`], for a valid RFC 1123 label with these bytes; `None` if it is not one.
pub(super) fn letters_of_label(name: &[u8], bit: impl Fn(u8) -> u64) -> Option<u64> {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| bit(*byte) & !(1 << DASH) != 0);
    if name.len() > MAX_NAME || !is_end(name.first()) || !is_end(name.last()) {
        return None;
    }
    let mut letters = 0;
    for byte in name {
        match bit(*byte) {
            0 => return None,
            letter => letters |= letter,
        }
    }
    Some(letters)
}

/// RFC 1123 label: the name of a namespace.
pub fn is_label(name: &str) -> bool {
    letters_of_label(name.as_bytes(), bit).is_some()
}

/// RFC 1123 subdomain: the name of most other objects. As in Kubernetes, its parts may be longer
/// than a label.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= MAX_SUBDOMAIN && name.split('.').all(is_part)
}

fn is_part(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| alphanumeric(*b))
        && bytes.last().is_some_and(|b| alphanumeric(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_namespaces_and_of_other_objects_are_told_from_what_is_none() {
        let (long, longest) = ("a".repeat(64), ["a".repeat(64), "b".repeat(188)].join("."));
        let too_long = format!("{longest}c");
        for (name, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            (&long[1..], true, true),
            (long.as_str(), false, true),
            ("a.b-1.c", false, true),
            (longest.as_str(), false, true),
            (too_long.as_str(), false, false),
            ("", false, false),
            (".", false, false),
            ("a..b", false, false),
            ("a.", false, false),
            ("-a", false, false),
            ("a.b-", false, false),
            ("A", false, false),
            ("a/b", false, false),
            ("a_b", false, false),
            ("system:node", false, false),
            ("ä", false, false),
        ] {
            assert_eq!((is_label(name), is_subdomain(name)), (label, subdomain), "{name}");
        }
    }

    #[test]
    fn each_letter_has_a_place_of_its_own() {
        for byte in 0..=u8::MAX {
            assert_eq!(bit(byte), letter(byte).map_or(0, |at| 1 << at), "{byte}");
        }
        assert_eq!(LETTERS.get(DASH), Some(&b'-'));
    }
}
