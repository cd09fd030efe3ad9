//! Label selectors of `metav1.LabelSelector`: validation and matching.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::violation::{Field, Violations};

/// The operator of one requirement, with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelSelectorOperator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl fmt::Display for LabelSelectorOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(values) => write!(f, "In [{}]", values.join(", ")),
            Self::NotIn(values) => write!(f, "NotIn [{}]", values.join(", ")),
            Self::Exists => f.write_str("Exists"),
            Self::DoesNotExist => f.write_str("DoesNotExist"),
        }
    }
}

/// A valid selector: every requirement must hold. Without any it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<(String, LabelSelectorOperator)>);

/// One requirement as written in JSON.
pub struct RawRequirement<'a> {
    pub key: &'a str,
    pub operator: &'a str,
    pub values: &'a [String],
}

impl RawRequirement<'_> {
    /// Returns the constructor of its operator if the requirement is valid. It is the one at
    /// `index` of the expressions below `at`.
    fn check(
        &self,
        index: usize,
        at: &Field,
        found: &mut Violations,
    ) -> Option<fn(&[String]) -> LabelSelectorOperator> {
        // Built only for a fault, because most requirements have none, and there may be thousands.
        let field = |name: &str| at.child("matchExpressions").index(index).child(name);
        if !is_key(self.key) {
            check_key(self.key, &field("key"), found);
        }
        for (j, value) in self.values.iter().enumerate().filter(|(_, value)| !is_value(value)) {
            check_value(value, &field("values").index(j), found);
        }
        let operator: fn(&[String]) -> LabelSelectorOperator = match self.operator {
            "In" | "NotIn" if self.values.is_empty() => {
                found.push(field("values"), format!("operator {} needs at least one value", self.operator));
                return None;
            }
            "In" => |values| LabelSelectorOperator::In(values.to_vec()),
            "NotIn" => |values| LabelSelectorOperator::NotIn(values.to_vec()),
            "Exists" | "DoesNotExist" if !self.values.is_empty() => {
                let message = format!("operator {} takes no values: remove them", self.operator);
                found.push(field("values"), message);
                return None;
            }
            "Exists" => |_| LabelSelectorOperator::Exists,
            "DoesNotExist" => |_| LabelSelectorOperator::DoesNotExist,
            other => {
                let message = format!("{other:?} is not one of In, NotIn, Exists, DoesNotExist");
                found.push(field("operator"), message);
                return None;
            }
        };
        Some(operator)
    }
}

fn check_label(key: &str, value: &str, at: &Field, found: &mut Violations) {
    if is_key(key) && is_value(value) {
        return;
    }
    let field = at.child("matchLabels").child(key);
    check_key(key, &field, found);
    check_value(value, &field, found);
}

impl Selector {
    /// Checks keys, values and operators by Kubernetes' rules. Every fault is reported with a path
    /// below `at`.
    pub fn parse<'a>(
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        expressions: impl Iterator<Item = RawRequirement<'a>>,
        at: &Field,
        found: &mut Violations,
    ) -> Self {
        let mut requirements = Vec::new();
        for (key, value) in labels {
            check_label(key, value, at, found);
            requirements.push((key.to_owned(), LabelSelectorOperator::In(vec![value.to_owned()])));
        }
        for (i, raw) in expressions.enumerate() {
            if let Some(operator) = raw.check(i, at, found) {
                requirements.push((raw.key.to_owned(), operator(raw.values)));
            }
        }
        Self(requirements)
    }

    /// Finds the same faults as [`Selector::parse`] without building a selector, because there may
    /// be very many values.
    pub fn check<'a>(
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        expressions: impl Iterator<Item = RawRequirement<'a>>,
        at: &Field,
        found: &mut Violations,
    ) {
        labels.for_each(|(key, value)| check_label(key, value, at, found));
        expressions.enumerate().for_each(|(i, raw)| {
            raw.check(i, at, found);
        });
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|(key, operator)| match (operator, labels.get(key)) {
            (LabelSelectorOperator::In(values), Some(value)) => values.contains(value),
            (LabelSelectorOperator::In(_), None) => false,
            (LabelSelectorOperator::NotIn(values), Some(value)) => !values.contains(value),
            (LabelSelectorOperator::NotIn(_) | LabelSelectorOperator::DoesNotExist, None)
            | (LabelSelectorOperator::Exists, Some(_)) => true,
            (LabelSelectorOperator::Exists, None) | (LabelSelectorOperator::DoesNotExist, Some(_)) => false,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order in which they were written, `matchLabels` first.
    pub fn requirements(&self) -> impl Iterator<Item = (&str, &LabelSelectorOperator)> {
        self.0.iter().map(|(key, operator)| (key.as_str(), operator))
    }

    /// The first key whose requirements exclude each other, so that the selector never matches.
    pub fn contradiction(&self) -> Option<&str> {
        self.0.iter().map(|(key, _)| key.as_str()).find(|key| self.contradicts(key))
    }

    fn contradicts(&self, key: &str) -> bool {
        let (mut left, mut denied) = (None::<BTreeSet<&String>>, BTreeSet::new());
        let (mut present, mut absent) = (false, false);
        for (_, operator) in self.0.iter().filter(|(k, _)| k == key) {
            match operator {
                LabelSelectorOperator::In(values) => {
                    let values: BTreeSet<&String> = values.iter().collect();
                    left = Some(left.map_or(values.clone(), |left| &left & &values));
                }
                LabelSelectorOperator::NotIn(values) => denied.extend(values),
                LabelSelectorOperator::Exists => present = true,
                LabelSelectorOperator::DoesNotExist => absent = true,
            }
        }
        let is_used_up = left.as_ref().is_some_and(|left| left.is_subset(&denied));
        is_used_up || (absent && (present || left.is_some()))
    }

    /// The selector in the syntax of the `labelSelector` parameter of a list.
    pub fn query(&self) -> String {
        let parts = self.0.iter().map(|(key, operator)| match operator {
            LabelSelectorOperator::In(values) => match values.as_slice() {
                [one] => format!("{key}={one}"),
                many => format!("{key} in ({})", many.join(",")),
            },
            LabelSelectorOperator::NotIn(values) => format!("{key} notin ({})", values.join(",")),
            LabelSelectorOperator::Exists => key.clone(),
            LabelSelectorOperator::DoesNotExist => format!("!{key}"),
        });
        parts.collect::<Vec<_>>().join(",")
    }
}

fn is_qualified(text: &str) -> bool {
    let alphanumeric = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_ok = prefix.is_none_or(|p| p.len() <= 253 && p.split('.').all(crate::glob::is_label));
    prefix_ok && is_qualified(name)
}

/// Reports a key that is not valid by Kubernetes' rules.
pub fn check_key(key: &str, at: &Field, found: &mut Violations) {
    if !is_key(key) {
        let message = format!(
            "{key:?} is not a label key: [DNS name/]name, the name at most 63 of letters, digits, '-', '_', '.'"
        );
        found.push(at.clone(), message);
    }
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_qualified(value)
}

/// Reports a value that is not valid by Kubernetes' rules.
pub fn check_value(value: &str, at: &Field, found: &mut Violations) {
    if !is_value(value) {
        let message = format!(
            "{value:?} is not a label value: at most 63 of letters, digits, '-', '_', '.', letter or digit first and last"
        );
        found.push(at.clone(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(expressions: &[(&str, &str, &[&str])]) -> (Selector, Vec<String>) {
        let values: Vec<Vec<String>> =
            expressions.iter().map(|(_, _, v)| v.iter().map(|s| (*s).to_owned()).collect()).collect();
        let raw = expressions.iter().zip(&values).map(|((key, operator, _), values)| RawRequirement {
            key,
            operator,
            values,
        });
        let mut found = Violations::default();
        let selector = Selector::parse(std::iter::empty(), raw, &Field::root("s"), &mut found);
        (selector, found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_fault_is_told_with_its_place() {
        let (_, faults) = parse(&[
            ("a b", "In", &["x"]),
            ("app", "Is", &[]),
            ("app", "In", &[]),
            ("app", "Exists", &["x"]),
            ("a/b/c", "NotIn", &["x", "y z"]),
        ]);
        assert_eq!(faults.len(), 6, "{faults:?}");
        assert!(faults[0].starts_with("s.matchExpressions[0].key: "), "{faults:?}");
        assert!(faults[1].starts_with("s.matchExpressions[1].operator: "), "{faults:?}");
        assert!(faults[2].starts_with("s.matchExpressions[2].values: "), "{faults:?}");
        assert!(faults[3].starts_with("s.matchExpressions[3].values: "), "{faults:?}");
        assert!(faults[4].starts_with("s.matchExpressions[4].key: "), "{faults:?}");
        assert!(faults[5].starts_with("s.matchExpressions[4].values[1]: "), "{faults:?}");
    }

    #[test]
    fn selectors_match_as_kubernetes_does() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        for (expression, expected) in [
            (("app", "In", &["web", "db"][..]), true),
            (("app", "NotIn", &["web"]), false),
            (("tier", "NotIn", &["web"]), true),
            (("app", "Exists", &[]), true),
            (("tier", "Exists", &[]), false),
            (("tier", "DoesNotExist", &[]), true),
        ] {
            let (selector, faults) = parse(&[expression]);
            assert!(faults.is_empty());
            assert_eq!(selector.matches(&labels), expected, "{expression:?}");
        }
        assert_eq!(parse(&[("a", "In", &["x", "y"]), ("b", "DoesNotExist", &[])]).0.query(), "a in (x,y),!b");
    }

    #[test]
    fn requirements_that_exclude_each_other_are_found() {
        for (expressions, expected) in [
            (&[("zone", "In", &["a"][..]), ("zone", "In", &["b"])][..], Some("zone")),
            (&[("zone", "In", &["a", "b"]), ("zone", "In", &["b", "c"])], None),
            (
                &[("zone", "In", &["a", "b"]), ("zone", "NotIn", &["b"]), ("zone", "NotIn", &["a"])],
                Some("zone"),
            ),
            (&[("zone", "In", &["a", "b"]), ("zone", "NotIn", &["b"])], None),
            (&[("pool", "In", &["x"]), ("zone", "Exists", &[]), ("zone", "DoesNotExist", &[])], Some("zone")),
            (&[("zone", "DoesNotExist", &[]), ("zone", "In", &["a"])], Some("zone")),
            (&[("zone", "DoesNotExist", &[]), ("zone", "NotIn", &["a"])], None),
            (&[("zone", "Exists", &[]), ("zone", "NotIn", &["a"])], None),
            (&[("zone", "In", &["a"]), ("pool", "In", &["b"])], None),
            (&[], None),
        ] {
            let (selector, faults) = parse(expressions);
            assert!(faults.is_empty(), "{faults:?}");
            assert_eq!(selector.contradiction(), expected, "{expressions:?}");
        }
    }
}
