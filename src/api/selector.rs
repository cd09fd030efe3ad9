//! Label selectors in JSON.

use std::collections::BTreeMap;

use berth_core::label::{RawRequirement, Selector};
use berth_core::limits;
use berth_core::violation::{Field, Violations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Do these selectors together have no more labels and values than the limit?
pub(crate) fn limit_labels<'s>(
    selectors: impl Iterator<Item = &'s LabelSelector>,
    at: &Field,
    way_out: &str,
    found: &mut Violations,
) -> bool {
    let values = |one: &LabelSelectorRequirement| one.values.as_ref().map_or(0, Vec::len).max(1);
    let labels = |selector: &LabelSelector| {
        let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
        labels + selector.match_expressions.iter().flatten().map(values).sum::<usize>()
    };
    let (count, most) = (selectors.map(labels).sum::<usize>(), limits::LABELS);
    if count > most {
        let message = format!(
            "its label selectors have {count} labels and values in all, and at most {most} are taken: {way_out}"
        );
        found.push(at.clone(), message);
    }
    count <= most
}

pub(crate) fn parse_selector(selector: &LabelSelector, at: &Field, found: &mut Violations) -> Selector {
    let (labels, expressions) = parts(selector, at, found);
    Selector::parse(labels, expressions, at, found)
}

/// The labels and expressions of a selector, each cut to the limit.
pub(crate) fn parts<'s>(
    selector: &'s LabelSelector,
    at: &Field,
    found: &mut Violations,
) -> (impl Iterator<Item = (&'s str, &'s str)> + use<'s>, impl Iterator<Item = RawRequirement<'s>> + use<'s>)
{
    let (labels, expressions) = (&selector.match_labels, &selector.match_expressions);
    let labels_at = at.child("matchLabels");
    found.limit(labels.as_ref().map_or(0, BTreeMap::len), limits::SELECTORS, &labels_at, "ask for fewer");
    let expressions_at = at.child("matchExpressions");
    found.limit(
        expressions.as_ref().map_or(0, Vec::len),
        limits::SELECTORS,
        &expressions_at,
        "ask for fewer",
    );
    for (i, expression) in expressions.iter().flatten().take(limits::SELECTORS).enumerate() {
        let values = expression.values.as_ref().map_or(0, Vec::len);
        if values > limits::VALUES {
            found.limit(values, limits::VALUES, &expressions_at.index(i).child("values"), "ask for fewer");
        }
    }
    let labels = labels.iter().flatten().take(limits::SELECTORS).map(|(k, v)| (k.as_str(), v.as_str()));
    let expressions = expressions.iter().flatten().take(limits::SELECTORS);
    let expressions = expressions.map(|e| RawRequirement {
        key: &e.key,
        operator: &e.operator,
        values: e.values.as_deref().map_or(&[], |values| values.get(..limits::VALUES).unwrap_or(values)),
    });
    (labels, expressions)
}
