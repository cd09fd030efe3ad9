//! Patterns over resource types.

use super::token::{GlobError, GlobToken, tokens};

/// A pattern over names of any length that may contain dots: `resource.group`. No character is a
/// separator here either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<GlobToken>);

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A `[...]` is unbalanced or empty.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        tokens(text).map(Self)
    }

    /// Takes at most as many steps as the product of the lengths of name and pattern.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.as_bytes();
        let (mut at, mut read) = (0_usize, 0_usize);
        // The position behind the last star, and the part of the name that this star has not
        // matched yet.
        let mut back: Option<(usize, usize)> = None;
        while let Some(byte) = name.get(read) {
            match (self.0.get(at), back) {
                (Some(GlobToken::Star), _) => {
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
        self.0.iter().skip(at).all(|token| matches!(token, GlobToken::Star))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
