//! A path of a template: parses it, and finds the values that it selects.

use std::cmp::Ordering;

use serde_json::Value;

/// Steps from the root, or from the current value of a range.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    is_from_root: bool,
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Field(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    /// `[*]` or `.*`.
    Each,
    Where(Vec<PathStep>, Option<(Comparison, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let ordering = match (left, right) {
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Number(left), Value::Number(right)) => {
                left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right))
            }
            (left, right) => (left == right).then_some(Ordering::Equal),
        };
        match self {
            Self::Equal => ordering == Some(Ordering::Equal),
            Self::Unequal => ordering != Some(Ordering::Equal),
            Self::Less => ordering == Some(Ordering::Less),
            Self::LessOrEqual => matches!(ordering, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => ordering == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(ordering, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl Path {
    /// # Errors
    /// What is wrong with the path, or not supported.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (is_from_root, rest) = match text.strip_prefix('$') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('@').unwrap_or(text)),
        };
        // `{.}` is the value itself.
        let rest = if rest == "." { "" } else { rest };
        if rest.is_empty() && text.is_empty() {
            return Err("there is an empty {}".to_owned());
        }
        Ok(Self { is_from_root, steps: steps(rest)? })
    }

    /// The values that the path selects.
    pub fn of<'v>(&self, root: &'v Value, at: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![if self.is_from_root { root } else { at }];
        for step in &self.steps {
            found = found.into_iter().flat_map(|value| step.of(value)).collect();
        }
        found
    }
}

impl PathStep {
    fn of<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let list = || value.as_array().map(Vec::as_slice).unwrap_or_default();
        let place = |at: i64| {
            let length = i64::try_from(list().len()).unwrap_or(i64::MAX);
            if at < 0 { length.saturating_add(at) } else { at }
        };
        match self {
            Self::Field(name) => value.get(name.as_str()).into_iter().collect(),
            Self::Index(at) => {
                usize::try_from(place(*at)).ok().and_then(|at| list().get(at)).into_iter().collect()
            }
            Self::Slice(from, to) => {
                let bound = |at: i64| usize::try_from(place(at)).unwrap_or(0).min(list().len());
                let (from, to) = (from.map_or(0, bound), to.map_or(list().len(), bound));
                list().get(from..to).unwrap_or_default().iter().collect()
            }
            Self::Each => match value {
                Value::Object(fields) => fields.values().collect(),
                _ => list().iter().collect(),
            },
            Self::Where(path, comparison) => {
                let path = Path { is_from_root: false, steps: path.clone() };
                let fits = |one: &&Value| {
                    let found = path.of(value, one);
                    match comparison {
                        None => !found.is_empty(),
                        Some((comparison, wanted)) => {
                            found.iter().any(|found| comparison.holds(found, wanted))
                        }
                    }
                };
                list().iter().filter(fits).collect()
            }
        }
    }
}

fn steps(text: &str) -> Result<Vec<PathStep>, String> {
    let (mut found, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        if rest.starts_with("..") {
            return Err("`..` is not supported: write the whole path".to_owned());
        }
        if let Some(after) = rest.strip_prefix('[') {
            let end = bracket(after).ok_or_else(|| format!("a `[` has no `]`: {rest}"))?;
            found.push(in_brackets(after.get(..end).unwrap_or_default().trim())?);
            rest = after.get(end + 1..).unwrap_or_default();
            continue;
        }
        let after = rest.strip_prefix('.').unwrap_or(rest);
        if std::ptr::eq(after, rest) && !found.is_empty() {
            return Err(format!("a field begins with `.`: {rest}"));
        }
        // A dot before a bracket, as in `.metadata.[0]`.
        if after.starts_with('[') {
            rest = after;
            continue;
        }
        let (mut name, mut length, mut is_escaped) = (String::new(), 0, false);
        for c in after.chars() {
            match c {
                '\\' if !is_escaped => is_escaped = true,
                '.' | '[' if !is_escaped => break,
                c => {
                    if !is_escaped && (c.is_whitespace() || "(){}|,=<>!?\"'".contains(c)) {
                        return Err(format!("{text:?} is not supported: paths are as in .status.phase"));
                    }
                    name.push(c);
                    is_escaped = false;
                }
            }
            length += c.len_utf8();
        }
        if name.is_empty() {
            return Err(format!("a field has no name: {text:?}"));
        }
        found.push(if name == "*" { PathStep::Each } else { PathStep::Field(name) });
        rest = after.get(length..).unwrap_or_default();
    }
    Ok(found)
}

fn in_brackets(text: &str) -> Result<PathStep, String> {
    let number = |text: &str| {
        let text = text.trim();
        let number = || text.parse::<i64>().map_err(|_| format!("[{text}] is no index"));
        if text.is_empty() { Ok(None) } else { number().map(Some) }
    };
    if text == "*" {
        return Ok(PathStep::Each);
    }
    if text.starts_with(['\'', '"']) {
        return Ok(PathStep::Field(quoted(text)?));
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return condition_of(condition.trim());
    }
    if text.contains(',') {
        return Err(format!("[{text}] is not supported: write two paths"));
    }
    if let Some((from, to)) = text.split_once(':') {
        if to.contains(':') {
            return Err(format!("[{text}] is not supported: slices have no steps"));
        }
        return Ok(PathStep::Slice(number(from)?, number(to)?));
    }
    number(text)?.map(PathStep::Index).ok_or_else(|| "[] is empty: [*] is each".to_owned())
}

/// A condition such as `@.status.phase=="Failed"` or `@.spec.ttl`.
fn condition_of(text: &str) -> Result<PathStep, String> {
    let not_supported = || format!("?({text}) is not supported: write ?(@.field==\"value\")");
    let rest = text.strip_prefix('@').ok_or_else(not_supported)?;
    let found =
        COMPARISONS.iter().filter_map(|(sign, comparison)| Some((rest.find(sign)?, *sign, *comparison)));
    // Of two operators at the same place the longer one is meant; it comes first in the list.
    let Some((at, sign, comparison)) = found.min_by_key(|(at, ..)| *at) else {
        return Ok(PathStep::Where(steps(rest.trim())?, None));
    };
    let (path, value) = (rest.get(..at).unwrap_or_default(), rest.get(at + sign.len()..).unwrap_or_default());
    let value = value.trim();
    let value = if value.starts_with(['\'', '"']) {
        Value::String(quoted(value)?)
    } else {
        serde_json::from_str(value).map_err(|_| not_supported())?
    };
    Ok(PathStep::Where(steps(path.trim())?, Some((comparison, value))))
}

/// The index of the first end that is not within quotes.
fn unquoted_end(text: &str, mut is_end: impl FnMut(char) -> bool) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in text.char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match (c, quote) {
            ('\\', _) => is_escaped = true,
            (c, Some(begun)) if c == begun => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (c, None) if is_end(c) => return Some(at),
            _ => {}
        }
    }
    None
}

pub(super) fn closing(text: &str) -> Option<usize> {
    unquoted_end(text, |c| c == '}')
}

/// The index of the closing bracket. A condition may contain brackets.
fn bracket(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    unquoted_end(text, |c| match c {
        '[' => {
            depth += 1;
            false
        }
        ']' if depth == 0 => true,
        ']' => {
            depth -= 1;
            false
        }
        _ => false,
    })
}

/// The text within quotes.
pub(super) fn quoted(text: &str) -> Result<String, String> {
    let mut characters = text.chars();
    let quote = characters.next();
    let mut said = String::new();
    loop {
        match characters.next() {
            None => return Err(format!("a quote is missing: {text}")),
            c if c == quote => break,
            Some('\\') => match characters.next() {
                Some('n') => said.push('\n'),
                Some('t') => said.push('\t'),
                Some('r') => said.push('\r'),
                Some(other) => said.push(other),
                None => return Err(format!("a quote is missing: {text}")),
            },
            Some(c) => said.push(c),
        }
    }
    if characters.next().is_some() {
        return Err(format!("{text} has more behind its quote: write two braces"));
    }
    Ok(said)
}
