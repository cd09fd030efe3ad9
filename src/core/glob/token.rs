//! The tokens of a pattern.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GlobToken {
    One(u8),
    Any,
    Class(Vec<(u8, u8)>),
    Star,
}

impl GlobToken {
    pub(super) fn takes(&self, byte: u8) -> bool {
        match self {
            Self::One(b) => *b == byte,
            Self::Any | Self::Star => true,
            Self::Class(ranges) => ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)),
        }
    }

    pub(super) fn plain(&self) -> Option<u8> {
        if let Self::One(byte) = self { Some(*byte) } else { None }
    }
}

/// Why a text is not a valid name pattern.
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

pub(super) fn tokens(text: &str) -> Result<Vec<GlobToken>, GlobError> {
    let bad = || GlobError::Class(text.to_owned());
    let mut found = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        found.push(match byte {
            b'*' => GlobToken::Star,
            b'?' => GlobToken::Any,
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
                GlobToken::Class(ranges)
            }
            other => GlobToken::One(other),
        });
    }
    Ok(found)
}
