//! Commands that read and write nothing: `kubectl get`, `kubectl auth can-i`.

use super::{Common, Words};

/// How what was found is printed.
#[derive(Debug, PartialEq, Eq)]
pub enum Print {
    Json,
    Names,
    /// One value.
    Value(Vec<Step>),
}

/// Of a way to a value.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    Index(usize),
}

impl Print {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "json" => Some(Self::Json),
            "name" => Some(Self::Names),
            _ => {
                let path = text.strip_prefix("jsonpath={")?.strip_suffix('}')?;
                steps(path).map(Self::Value)
            }
        }
    }
}

/// Of `.a.b\.c[0]`; nothing that may stand for several values.
fn steps(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut chars = path.chars().peekable();
    while let Some(first) = chars.next() {
        let mut word = String::new();
        match first {
            '.' => {
                while let Some(next) = chars.next_if(|next| !matches!(*next, '.' | '[')) {
                    let is_plain = next.is_ascii_alphanumeric() || matches!(next, '-' | '_' | '/');
                    word.push(match next {
                        '\\' => chars.next()?,
                        plain => is_plain.then_some(plain)?,
                    });
                }
                (!word.is_empty()).then_some(())?;
                steps.push(Step::Key(word));
            }
            '[' => {
                while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    word.push(digit);
                }
                (chars.next()? == ']').then_some(())?;
                steps.push(Step::Index(word.parse().ok()?));
            }
            _ => return None,
        }
    }
    (!steps.is_empty()).then_some(steps)
}

/// Of `kubectl get`.
#[derive(Debug)]
pub struct Wanted {
    /// Several, with commas between them.
    pub resources: String,
    pub name: Option<String>,
    pub common: Common,
    pub everywhere: bool,
    pub labels: Option<String>,
    pub fields: Option<String>,
    pub may_be_absent: bool,
    pub print: Print,
}

impl Wanted {
    pub(super) fn parse(mut words: Words<'_>) -> Option<Self> {
        let (mut resources, mut name, mut print) = (None, None, None);
        let (mut everywhere, mut may_be_absent) = (false, false);
        let (mut labels, mut fields) = (None, None);
        let mut common = Common::default();
        while let Some(word) = words.next() {
            match word {
                "-l" | "--selector" => labels = Some(words.next()?.to_owned()),
                "--field-selector" => fields = Some(words.next()?.to_owned()),
                "-A" | "--all-namespaces" => everywhere = true,
                "--ignore-not-found" => may_be_absent = true,
                "-o" | "--output" => print = Some(Print::parse(words.next()?)?),
                flag if flag.starts_with('-') => common.takes(flag, &mut words)?.then_some(())?,
                word if word.contains('/') => return None,
                word if resources.is_none() => resources = Some(word.to_owned()),
                word if name.is_none() => name = Some(word.to_owned()),
                _ => return None,
            }
        }
        let resources = resources?;
        (name.is_none() || !resources.contains(',')).then_some(())?;
        // kubectl has its own words for what another user may not read.
        (common.user.is_none() && common.groups.is_empty()).then_some(())?;
        Some(Self { resources, name, common, everywhere, labels, fields, may_be_absent, print: print? })
    }
}

/// Of `kubectl auth can-i`.
#[derive(Debug)]
pub struct MayI {
    pub verb: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    pub everywhere: bool,
    pub common: Common,
}

impl MayI {
    pub(super) fn parse(mut words: Words<'_>) -> Option<Self> {
        (words.next()? == "can-i").then_some(())?;
        let (mut common, mut said) = (Common::default(), Vec::new());
        let (mut subresource, mut everywhere) = ("", false);
        while let Some(word) = words.next() {
            match word {
                "--subresource" => subresource = words.next()?,
                "-A" | "--all-namespaces" => everywhere = true,
                word => {
                    if !common.takes(word, &mut words)? {
                        (!word.starts_with(['-', '/'])).then_some(())?;
                        said.push(word);
                    }
                }
            }
        }
        let [verb, target] = said[..] else { return None };
        let (resource, name) = target.split_once('/').unwrap_or((target, ""));
        let [verb, resource, name, subresource] = [verb, resource, name, subresource].map(str::to_owned);
        Some(Self { verb, resource, name, subresource, everywhere, common })
    }
}
