//! Label selectors as they are typed: `app=web,tier in (a, b),!old`.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::label::check_key;
use berth_core::violation::{Field, Violations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Selectors of which one must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selectors(pub Vec<LabelSelector>);

const WAY_OUT: &str = "write app=web, app in (web,db), app, or !app";

/// # Errors
/// When it is not a selector, or uses an operator that a LabelSelector does not have.
pub fn selector(text: &str) -> Result<LabelSelector, String> {
    let mut requirements = requirements(text)?;
    requirements.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (mut labels, mut expressions) = (BTreeMap::new(), Vec::new());
    for (key, operator) in requirements {
        let (operator, values) = match operator {
            SelectorOperator::Is(value) => {
                labels.insert(key, value);
                continue;
            }
            SelectorOperator::In(values) => ("In", Some(values.into_iter().collect())),
            SelectorOperator::NotIn(values) => ("NotIn", Some(values.into_iter().collect())),
            SelectorOperator::Exists => ("Exists", None),
            SelectorOperator::DoesNotExist => ("DoesNotExist", None),
            SelectorOperator::IsNot(_) => {
                return Err(format!("!= is no operator of a LabelSelector: write {key} notin (…)"));
            }
            SelectorOperator::Beyond(sign, _) => {
                return Err(format!("{sign} is no operator of a LabelSelector: {WAY_OUT}"));
            }
        };
        expressions.push(LabelSelectorRequirement { key, operator: operator.to_owned(), values });
    }
    Ok(LabelSelector {
        match_labels: Some(labels).filter(|labels| !labels.is_empty()),
        match_expressions: Some(expressions).filter(|expressions| !expressions.is_empty()),
    })
}

/// A label selector by which the API server lists. It may have `!=`, `>` and `<`, too.
///
/// # Errors
/// When the API server would not read it.
pub fn list_selector(text: &str) -> Result<String, String> {
    for (key, operator) in requirements(text)? {
        if let SelectorOperator::Beyond(sign, number) = operator
            && number.parse::<i64>().is_err()
        {
            return Err(format!("{number:?} is no whole number: write {key}{sign}1"));
        }
    }
    Ok(text.trim().to_owned())
}

fn requirements(text: &str) -> Result<Vec<(String, SelectorOperator)>, String> {
    let mut tokens = tokens(text)?.into_iter().peekable();
    let mut requirements = Vec::new();
    while tokens.peek().is_some() {
        requirements.push(requirement(&mut tokens)?);
        match tokens.next() {
            None => break,
            Some(SelectorToken::Comma) if tokens.peek().is_some() => {}
            Some(SelectorToken::Comma) => return Err(format!("{text:?} ends with a comma: {WAY_OUT}")),
            Some(other) => return Err(format!("{:?} stands where a comma should: {WAY_OUT}", other.text())),
        }
    }
    Ok(requirements)
}

/// Selectors that are separated by ` or `.
///
/// # Errors
/// When one of them cannot be read.
pub fn or_selector(text: &str) -> Result<Selectors, String> {
    text.split(" or ").map(selector).collect::<Result<_, _>>().map(Selectors)
}

/// As kubectl prints it; `<none>` if it has no requirement.
pub fn selector_text(selector: Option<&LabelSelector>) -> String {
    let mut parts: Vec<(String, String)> = Vec::new();
    for (key, value) in selector.iter().flat_map(|s| s.match_labels.iter().flatten()) {
        parts.push((key.clone(), format!("{key}={value}")));
    }
    for one in selector.iter().flat_map(|s| s.match_expressions.iter().flatten()) {
        let values: BTreeSet<&str> = one.values.iter().flatten().map(String::as_str).collect();
        let values = values.into_iter().collect::<Vec<_>>().join(",");
        let text = match one.operator.as_str() {
            "In" => format!("{} in ({values})", one.key),
            "NotIn" => format!("{} notin ({values})", one.key),
            "Exists" => one.key.clone(),
            "DoesNotExist" => format!("!{}", one.key),
            other => format!("{} {other} ({values})", one.key),
        };
        parts.push((one.key.clone(), text));
    }
    if parts.is_empty() {
        return "<none>".to_owned();
    }
    // Stable, so that several requirements of one label keep their order.
    parts.sort_by(|(a, _), (b, _)| a.cmp(b));
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

enum SelectorOperator {
    Is(String),
    IsNot(String),
    /// More or less, as its sign says, than a number.
    Beyond(String, String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectorToken {
    Word(String),
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Other(String),
}

impl SelectorToken {
    fn text(&self) -> &str {
        match self {
            Self::Word(text) | Self::Other(text) => text,
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::Not => "!",
            Self::Equals => "=",
            Self::NotEquals => "!=",
        }
    }
}

fn is_special(c: char) -> bool {
    "=!(),<>".contains(c)
}

fn tokens(text: &str) -> Result<Vec<SelectorToken>, String> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let (token, length) = if !is_special(first) {
            let end = rest.find(|c: char| is_special(c) || " \t\r\n".contains(c)).unwrap_or(rest.len());
            (SelectorToken::Word(rest.get(..end).unwrap_or_default().to_owned()), end)
        } else if rest.starts_with("==") {
            (SelectorToken::Equals, 2)
        } else if rest.starts_with("!=") {
            (SelectorToken::NotEquals, 2)
        } else {
            let token = match first {
                ',' => SelectorToken::Comma,
                '(' => SelectorToken::Open,
                ')' => SelectorToken::Close,
                '!' => SelectorToken::Not,
                '=' => SelectorToken::Equals,
                other => SelectorToken::Other(other.to_string()),
            };
            (token, first.len_utf8())
        };
        tokens.push(token);
        rest = rest.get(length..).unwrap_or_default();
    }
}

type Tokens = std::iter::Peekable<std::vec::IntoIter<SelectorToken>>;

fn requirement(tokens: &mut Tokens) -> Result<(String, SelectorOperator), String> {
    let is_negated = tokens.next_if_eq(&SelectorToken::Not).is_some();
    let key = match tokens.next() {
        Some(SelectorToken::Word(key)) => key,
        other => {
            let found = other.as_ref().map_or("the end", SelectorToken::text);
            return Err(format!("a label is missing before {found:?}: {WAY_OUT}"));
        }
    };
    label(&key, None)?;
    if is_negated || matches!(tokens.peek(), None | Some(SelectorToken::Comma)) {
        return Ok((key, if is_negated { SelectorOperator::DoesNotExist } else { SelectorOperator::Exists }));
    }
    let operator = match tokens.next() {
        Some(SelectorToken::Equals) => SelectorOperator::Is(value(tokens, &key)?),
        Some(SelectorToken::NotEquals) => SelectorOperator::IsNot(value(tokens, &key)?),
        Some(SelectorToken::Other(sign)) => SelectorOperator::Beyond(sign, value(tokens, &key)?),
        Some(SelectorToken::Word(word)) if word == "in" => SelectorOperator::In(values(tokens, &key)?),
        Some(SelectorToken::Word(word)) if word == "notin" => SelectorOperator::NotIn(values(tokens, &key)?),
        other => {
            let found = other.as_ref().map_or("the end", SelectorToken::text);
            return Err(format!("{found:?} after {key} is no operator: {WAY_OUT}"));
        }
    };
    match &operator {
        SelectorOperator::Is(value) | SelectorOperator::IsNot(value) => label(&key, Some(value))?,
        SelectorOperator::In(values) | SelectorOperator::NotIn(values) => {
            values.iter().try_for_each(|value| label(&key, Some(value)))?;
        }
        SelectorOperator::Beyond(..) | SelectorOperator::Exists | SelectorOperator::DoesNotExist => {}
    }
    Ok((key, operator))
}

/// What stands behind `=`. It may be empty.
fn value(tokens: &mut Tokens, key: &str) -> Result<String, String> {
    match tokens.peek() {
        None | Some(SelectorToken::Comma) => Ok(String::new()),
        Some(SelectorToken::Word(_)) => {
            Ok(tokens.next().map(|token| token.text().to_owned()).unwrap_or_default())
        }
        Some(other) => Err(format!("{:?} is no value of {key}: {WAY_OUT}", other.text())),
    }
}

/// `(a,b)`: entries may be empty.
fn values(tokens: &mut Tokens, key: &str) -> Result<BTreeSet<String>, String> {
    let open = format!("the values of {key} stand in parentheses: {WAY_OUT}");
    if tokens.next() != Some(SelectorToken::Open) {
        return Err(open);
    }
    let (mut values, mut last) = (BTreeSet::new(), None);
    loop {
        match tokens.next() {
            Some(SelectorToken::Word(word)) if last.is_none() => last = Some(word),
            Some(SelectorToken::Comma) => {
                values.insert(last.take().unwrap_or_default());
            }
            Some(SelectorToken::Close) => {
                values.insert(last.take().unwrap_or_default());
                return Ok(values);
            }
            _ => return Err(open),
        }
    }
}

fn label(key: &str, value: Option<&str>) -> Result<(), String> {
    let mut found = Violations::default();
    check_key(key, &Field::root(key), &mut found);
    if let Some(value) = value {
        berth_core::label::check_value(value, &Field::root(key), &mut found);
    }
    found.lines().into_iter().next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_read_as_kubernetes_reads_them() {
        let one = |key: &str, operator: &str, values: &[&str]| match values {
            [] => json!({"key": key, "operator": operator}),
            values => json!({"key": key, "operator": operator, "values": values}),
        };
        for (text, expected) in [
            ("a=b", json!({"matchLabels": {"a": "b"}})),
            ("a==b , c = d", json!({"matchLabels": {"a": "b", "c": "d"}})),
            ("a=", json!({"matchLabels": {"a": ""}})),
            ("", json!({})),
            ("a in (y, x)", json!({"matchExpressions": [one("a", "In", &["x", "y"])]})),
            ("a notin ()", json!({"matchExpressions": [one("a", "NotIn", &[""])]})),
            ("in in (in)", json!({"matchExpressions": [one("in", "In", &["in"])]})),
            ("b,!a", json!({"matchExpressions": [one("a", "DoesNotExist", &[]), one("b", "Exists", &[])]})),
            (
                "example.com/x=1,y notin (a)",
                json!({"matchLabels": {"example.com/x": "1"}, "matchExpressions": [one("y", "NotIn", &["a"])]}),
            ),
        ] {
            let read = selector(text).map(|read| serde_json::to_value(read).unwrap());
            assert_eq!(read, Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_a_way_out() {
        for (text, part) in [
            ("a!=b", "write a notin (…)"),
            ("a>1", "> is no operator"),
            ("a=b,", "ends with a comma"),
            ("=b", "a label is missing"),
            ("a b", "is no operator"),
            ("a in b", "in parentheses"),
            ("a in (b", "in parentheses"),
            ("a=b c=d", "where a comma should"),
            ("!a=b", "where a comma should"),
            ("a=(", "is no value"),
            ("-a=b", "-a"),
            ("a=-", "a"),
        ] {
            let said = selector(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn a_selector_of_lists_has_the_operators_of_the_api_server_too() {
        for text in ["a!=b", "a != b,c", "a!=", "a>1", "a<-2,b in (c)", "a=b", "!a", ""] {
            assert_eq!(list_selector(text).as_deref(), Ok(text));
        }
        for (text, part) in [
            ("a>b", "write a>1"),
            ("a>", "write a>1"),
            ("a!=-", "a"),
            ("a!=b c", "where a comma should"),
            ("a!", "is no operator"),
            ("a=b,", "ends with a comma"),
        ] {
            let said = list_selector(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn selectors_are_printed_as_kubectl_prints_them() {
        for text in ["a=b", "a in (x,y),b=c,!d,e", "a notin (x)"] {
            let read = selector(text).unwrap();
            let printed = selector_text(Some(&read));
            assert_eq!(selector(&printed).unwrap(), read, "{text} is printed as {printed}");
        }
        assert_eq!(selector_text(selector("b=c,a in (y,x)").ok().as_ref()), "a in (x,y),b=c");
        assert_eq!(selector_text(None), "<none>");
        assert_eq!(selector_text(Some(&LabelSelector::default())), "<none>");
        assert_eq!(or_selector("a=b or c in (d)").unwrap().0.len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_what_is_read_is_printed_back(text in "[ab!=(), <>\\t]{0,14}|\\PC{0,20}") {
            if let Ok(read) = selector(&text) {
                let printed = selector_text(Some(&read));
                if printed != "<none>" {
                    prop_assert_eq!(selector(&printed), Ok(read));
                }
            }
        }
    }
}
