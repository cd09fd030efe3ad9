//! The faults of an object, collected: all of them are reported at once, each with the path of its
//! field.

use std::borrow::Cow;
use std::fmt;

use crate::limits;

/// The path of a field as Kubernetes writes it: `spec.labelSelector.matchExpressions[0].operator`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(String);

impl Field {
    pub fn root(name: &str) -> Self {
        Self(name.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// The path of an entry of a map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One fault: the field, and a message that says what is wrong and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub field: Field,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All faults of one object, in the order in which they were found. At most [`limits::VIOLATIONS`]
/// are listed and the rest is counted, because the text goes into statuses, admission responses and
/// logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    listed: Vec<Violation>,
    more: usize,
}

impl Violations {
    pub fn push(&mut self, field: Field, message: impl Into<String>) {
        if self.listed.len() >= limits::VIOLATIONS {
            self.more = self.more.saturating_add(1);
            return;
        }
        let message = tellable(&message.into()).into_owned();
        let field = Field(tellable(&field.0).into_owned());
        self.listed.push(Violation { field, message });
    }

    pub fn require(&mut self, holds: bool, field: &Field, message: impl Into<String>) {
        if !holds {
            self.push(field.clone(), message);
        }
    }

    /// Adds a fault if a list has more than `most` entries.
    pub fn limit(&mut self, len: usize, most: usize, field: &Field, way_out: &str) {
        if len > most {
            self.push(field.clone(), format!("has {len} entries, and at most {most} are taken: {way_out}"));
        }
    }

    /// Appends the faults that another check found.
    pub fn append(&mut self, other: Self) {
        for violation in other.listed {
            self.push(violation.field, violation.message);
        }
        self.more = self.more.saturating_add(other.more);
    }

    /// The same faults, where the fields that begin with `from` stand below `to` instead.
    #[must_use]
    pub fn moved(mut self, from: &str, to: &str) -> Self {
        for Violation { field: Field(path), .. } in &mut self.listed {
            if let Some(rest) = path.strip_prefix(from) {
                *path = format!("{to}{rest}");
            }
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The faults that are listed.
    pub fn iter(&self) -> impl Iterator<Item = &Violation> {
        self.listed.iter()
    }

    /// One line for each listed fault, and one with the number of the others.
    pub fn lines(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.listed.iter().map(ToString::to_string).chain(more).collect()
    }

    /// Returns `Ok(value)` if there are no faults.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

/// Cuts `text` to [`limits::MESSAGE`] characters and escapes those that would break a line or a
/// terminal.
pub fn tellable(text: &str) -> Cow<'_, str> {
    if text.len() <= limits::MESSAGE && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut printable: String = String::new();
    for (i, c) in text.chars().enumerate() {
        if i >= limits::MESSAGE {
            printable.push('…');
            break;
        }
        if c.is_control() { printable.extend(c.escape_default()) } else { printable.push(c) }
    }
    Cow::Owned(printable)
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("; "))
    }
}

impl std::error::Error for Violations {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_told_short_and_in_one_line_and_the_rest_is_counted() {
        let mut found = Violations::default();
        for i in 0..60_000 {
            found.push(Field::root("spec").index(i), format!("bad\n\u{1b}[2J{}", "x".repeat(100_000)));
        }
        let text = found.to_string();
        assert!(text.ends_with("; and 59980 more"), "{}", text.len());
        assert!(text.len() < 20 * 400, "{}", text.len());
        assert!(!text.contains(char::is_control));
        assert_eq!(found.lines().len(), 21);
        let moved = found.clone().moved("spec", "spec.template").to_string();
        assert!(moved.starts_with("spec.template[0]: ") && moved.ends_with("; and 59980 more"), "{moved}");
        let mut other = Violations::default();
        other.push(Field::root("a"), "b");
        other.append(found);
        assert!(other.to_string().ends_with("; and 59981 more"));
    }
}
