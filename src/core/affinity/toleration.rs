//! The taints that a data mover tolerates. Velero copies only two keys of the node-agent's
//! tolerations, so without further tolerations no mover can run in a tainted node pool.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    pub fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.name() == name)
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.as_str() {
            "" => write!(f, "{}:{}", self.key, self.effect.name()),
            value => write!(f, "{}={value}:{}", self.key, self.effect.name()),
        }
    }
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// Empty: every key; only valid without a value.
    pub key: String,
    /// `None`: any value (operator `Exists`); otherwise that value (`Equal`).
    pub value: Option<String>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
    pub seconds: Option<i64>,
}

impl Toleration {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

/// What movers tolerate whose volume has that StorageClass. Without a class, the rule is for movers
/// of classes that have no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TolerationRule {
    pub storage_class: Option<String>,
    pub tolerations: Vec<Toleration>,
}

/// Tolerations of the rules that the pod does not have yet.
pub(super) fn missing(rules: &[&TolerationRule], there: &[Toleration]) -> Vec<Toleration> {
    let mut added: Vec<Toleration> = Vec::new();
    for toleration in rules.iter().flat_map(|rule| &rule.tolerations) {
        if !there.contains(toleration) && !added.contains(toleration) {
            added.push(toleration.clone());
        }
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, value: Option<&str>, effect: Option<Effect>) -> Toleration {
        Toleration { key: key.to_owned(), value: value.map(str::to_owned), effect, seconds: None }
    }

    #[test]
    fn taints_are_tolerated_as_kubernetes_says() {
        let taint = Taint { key: "pool".to_owned(), value: "backup".to_owned(), effect: Effect::NoSchedule };
        for (toleration, expected) in [
            (toleration("pool", Some("backup"), None), true),
            (toleration("pool", Some("backup"), Some(Effect::NoSchedule)), true),
            (toleration("pool", Some("backup"), Some(Effect::NoExecute)), false),
            (toleration("pool", None, None), true),
            (toleration("pool", Some("web"), None), false),
            (toleration("zone", None, None), false),
            (toleration("", None, None), true),
        ] {
            assert_eq!(toleration.tolerates(&taint), expected, "{toleration:?}");
        }
    }

    #[test]
    fn what_is_there_already_is_not_added_again() {
        let (a, b) = (toleration("a", None, None), toleration("b", None, None));
        let rule = |tolerations: &[&Toleration]| TolerationRule {
            storage_class: None,
            tolerations: tolerations.iter().map(|t| (*t).clone()).collect(),
        };
        let (one, two) = (rule(&[&a, &b]), rule(&[&b]));
        assert_eq!(missing(&[&one, &two], &[a]), [b]);
    }
}
