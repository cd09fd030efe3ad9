//! Terms of a required node affinity, compared and matched as the scheduler does it.

use std::collections::BTreeMap;
use std::fmt;

use crate::label;

/// An operator of a node affinity requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeSelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl NodeSelectorOperator {
    pub(super) const ALL: [Self; 6] =
        [Self::In, Self::NotIn, Self::Exists, Self::DoesNotExist, Self::Gt, Self::Lt];

    pub fn name(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
            Self::Gt => "Gt",
            Self::Lt => "Lt",
        }
    }

    /// `None`: Kubernetes has no such operator, and refuses the pod.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name() == name)
    }
}

/// One requirement on a node. Its values are a set: they are kept sorted, so that equal sets
/// compare equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expression {
    key: String,
    operator: NodeSelectorOperator,
    values: Vec<String>,
}

impl Expression {
    pub fn new<V: Into<String>>(
        key: impl Into<String>,
        operator: NodeSelectorOperator,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let mut values: Vec<String> = values.into_iter().map(Into::into).collect();
        values.sort();
        values.dedup();
        Self { key: key.into(), operator, values }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> NodeSelectorOperator {
        self.operator
    }

    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Does a node with this value of the key (`None`: without the key) satisfy it? A malformed
    /// requirement is never satisfied.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.binary_search_by(|v| v.as_str().cmp(value)).is_ok();
        match self.operator {
            NodeSelectorOperator::In => value.is_some_and(listed),
            NodeSelectorOperator::NotIn => !self.values.is_empty() && !value.is_some_and(listed),
            NodeSelectorOperator::Exists => self.values.is_empty() && value.is_some(),
            NodeSelectorOperator::DoesNotExist => self.values.is_empty() && value.is_none(),
            NodeSelectorOperator::Gt | NodeSelectorOperator::Lt => {
                let [bound] = self.values.as_slice() else { return false };
                let (bound, value) = (bound.parse::<i64>(), value.map(str::parse::<i64>));
                let (Ok(bound), Some(Ok(value))) = (bound, value) else { return false };
                if self.operator == NodeSelectorOperator::Gt { value > bound } else { value < bound }
            }
        }
    }

    /// Matches a requirement of `matchFields`, where Kubernetes supports one value of the node's
    /// name.
    pub(super) fn matches_field(&self, name: &str) -> bool {
        let is_comparison = matches!(self.operator, NodeSelectorOperator::In | NodeSelectorOperator::NotIn);
        self.key == "metadata.name" && is_comparison && self.values.len() == 1 && self.matches(Some(name))
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.operator.name())?;
        if self.values.is_empty() { Ok(()) } else { write!(f, " [{}]", self.values.join(", ")) }
    }
}

/// The requirements of a label selector, in its order.
pub(super) fn expressions(selector: &label::Selector) -> Vec<Expression> {
    let none = || std::iter::empty::<String>();
    let convert = |(key, operator): (&str, &label::LabelSelectorOperator)| match operator {
        label::LabelSelectorOperator::In(values) => Expression::new(key, NodeSelectorOperator::In, values),
        label::LabelSelectorOperator::NotIn(values) => {
            Expression::new(key, NodeSelectorOperator::NotIn, values)
        }
        label::LabelSelectorOperator::Exists => Expression::new(key, NodeSelectorOperator::Exists, none()),
        label::LabelSelectorOperator::DoesNotExist => {
            Expression::new(key, NodeSelectorOperator::DoesNotExist, none())
        }
    };
    selector.requirements().map(convert).collect()
}

/// A `nodeSelectorTerm`. All its requirements must hold; of several terms, one must.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// `matchExpressions`.
    pub expressions: Vec<Expression>,
    /// `matchFields`.
    pub fields: Vec<Expression>,
}

impl Term {
    pub fn is_empty(&self) -> bool {
        self.expressions.is_empty() && self.fields.is_empty()
    }

    /// A term without requirements matches no node, in contrast to a label selector, which then
    /// matches all.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        !self.is_empty()
            && self.fields.iter().all(|field| field.matches_field(name))
            && self.expressions.iter().all(|e| e.matches(labels.get(&e.key).map(String::as_str)))
    }

    /// The term with everything sorted, for comparisons that ignore the order.
    pub(super) fn sorted(&self) -> Self {
        let mut term = self.clone();
        term.expressions.sort();
        term.fields.sort();
        term
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.expressions.iter().chain(&self.fields).map(ToString::to_string);
        f.write_str(&parts.collect::<Vec<_>>().join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_the_scheduler_does() {
        for (operator, values, value, expected) in [
            (NodeSelectorOperator::In, &["a", "b"][..], Some("b"), true),
            (NodeSelectorOperator::In, &["a"], Some("b"), false),
            (NodeSelectorOperator::In, &["a"], None, false),
            (NodeSelectorOperator::In, &[], Some("a"), false),
            (NodeSelectorOperator::NotIn, &["a"], Some("b"), true),
            (NodeSelectorOperator::NotIn, &["a"], Some("a"), false),
            (NodeSelectorOperator::NotIn, &["a"], None, true),
            (NodeSelectorOperator::NotIn, &[], Some("a"), false),
            (NodeSelectorOperator::Exists, &[], Some(""), true),
            (NodeSelectorOperator::Exists, &[], None, false),
            (NodeSelectorOperator::Exists, &["a"], Some("a"), false),
            (NodeSelectorOperator::DoesNotExist, &[], None, true),
            (NodeSelectorOperator::DoesNotExist, &[], Some("a"), false),
            (NodeSelectorOperator::DoesNotExist, &["a"], None, false),
            (NodeSelectorOperator::Gt, &["5"], Some("6"), true),
            (NodeSelectorOperator::Gt, &["5"], Some("5"), false),
            (NodeSelectorOperator::Lt, &["5"], Some("-6"), true),
            (NodeSelectorOperator::Lt, &["5"], None, false),
            (NodeSelectorOperator::Gt, &["5"], Some("many"), false),
            (NodeSelectorOperator::Gt, &["few"], Some("6"), false),
            (NodeSelectorOperator::Gt, &["5", "6"], Some("7"), false),
        ] {
            let expression = Expression::new("key", operator, values.iter().copied());
            assert_eq!(expression.matches(value), expected, "{expression} {value:?}");
        }
    }

    #[test]
    fn fields_name_the_node_and_an_empty_term_matches_none() {
        let named = |operator, values: &[&str]| Term {
            expressions: Vec::new(),
            fields: vec![Expression::new("metadata.name", operator, values.iter().copied())],
        };
        let labels = BTreeMap::new();
        assert!(named(NodeSelectorOperator::In, &["n1"]).matches("n1", &labels));
        assert!(!named(NodeSelectorOperator::In, &["n1"]).matches("n2", &labels));
        assert!(named(NodeSelectorOperator::NotIn, &["n1"]).matches("n2", &labels));
        assert!(
            !named(NodeSelectorOperator::In, &["n1", "n2"]).matches("n1", &labels),
            "more values than one: malformed"
        );
        assert!(!Term::default().matches("n1", &labels));
    }

    #[test]
    fn the_order_of_values_makes_no_difference() {
        let (ab, ba) = (["a", "b"], ["b", "a", "b"]);
        assert_eq!(
            Expression::new("k", NodeSelectorOperator::In, ab),
            Expression::new("k", NodeSelectorOperator::In, ba)
        );
        assert_eq!(Expression::new("k", NodeSelectorOperator::In, ba).to_string(), "k In [a, b]");
    }
}
