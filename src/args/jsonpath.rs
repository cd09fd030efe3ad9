//! kubectl's JSONPath templates, as far as people use them on lists: text, `{.field}`,
//! `{['field']}`, indexes, slices, `[*]`, comparisons, `{range}` and quoted text. Everything else
//! is refused when it is read.

mod path;

use serde_json::Value;

pub use path::Path;
use path::{closing, quoted};

/// Bytes of a template.
const LONGEST: usize = 64 << 10;
/// Ranges within ranges.
const DEEPEST: usize = 16;

/// A template that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Values(Path),
    /// What stands between `{range …}` and `{end}`, for each value.
    Range(Path, Vec<TemplatePart>),
}

impl Template {
    /// # Errors
    /// What is wrong with it, or not supported.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("the template has {} bytes: at most {LONGEST} are read", text.len()));
        }
        // kubectl prints such a text as it is, which nobody means.
        if !text.contains('{') {
            return Err(format!("the template has no braces: write {{.{}}}", text.trim_start_matches('.')));
        }
        let mut open: Vec<(Path, Vec<TemplatePart>)> = Vec::new();
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.to_owned()));
            }
            let end = closing(after).ok_or("a `{` has no `}`")?;
            let inside = after.get(..end).unwrap_or_default().trim();
            rest = after.get(end + 1..).unwrap_or_default();
            if inside == "end" {
                let (path, outer) = open.pop().ok_or("there is an {end} without a {range}")?;
                let inner = std::mem::replace(&mut parts, outer);
                parts.push(TemplatePart::Range(path, inner));
            } else if let Some(path) =
                inside.strip_prefix("range").filter(|rest| rest.starts_with([' ', '\t']))
            {
                if open.len() >= DEEPEST {
                    return Err(format!("there are more than {DEEPEST} ranges within each other"));
                }
                open.push((Path::parse(path)?, std::mem::take(&mut parts)));
            } else if inside.starts_with(['"', '\'']) {
                parts.push(TemplatePart::Text(quoted(inside)?));
            } else {
                parts.push(TemplatePart::Values(Path::parse(inside)?));
            }
        }
        if !open.is_empty() {
            return Err("a {range} has no {end}".to_owned());
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// What it prints of a value. What is not there prints nothing.
    pub fn print(&self, root: &Value) -> String {
        let mut text = String::new();
        print(&self.0, root, root, &mut text);
        text
    }
}

fn print(parts: &[TemplatePart], root: &Value, at: &Value, text: &mut String) {
    for part in parts {
        match part {
            TemplatePart::Text(said) => text.push_str(said),
            TemplatePart::Values(path) => text.push_str(&joined(&path.of(root, at), " ")),
            TemplatePart::Range(path, inner) => {
                for value in path.of(root, at) {
                    print(inner, root, value, text);
                }
            }
        }
    }
}

/// Values as kubectl prints them: texts as they are, anything composed as JSON.
pub fn joined(values: &[&Value], between: &str) -> String {
    let told = |value: &&Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    values.iter().map(told).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn list() -> Value {
        let backup = |name: &str, phase: &str, errors: u32| {
            json!({
                "metadata": {"name": name, "labels": {"velero.io/storage-location": "default"}},
                "spec": {"includedNamespaces": [name, "b", "c"]},
                "status": {"phase": phase, "errors": errors},
            })
        };
        json!({"kind": "BackupList", "items": [backup("one", "Completed", 0), backup("two", "Failed", 3)]})
    }

    #[test]
    fn templates_print_what_kubectl_prints() {
        for (template, printed) in [
            ("{.items[*].metadata.name}", "one two"),
            ("{.items[-1:].metadata.name}", "two"),
            ("{.items[0].spec.includedNamespaces}", "[\"one\",\"b\",\"c\"]"),
            ("{.items[0].spec.includedNamespaces[1:]}", "b c"),
            ("{.items[0].spec.includedNamespaces[0:2]}", "one b"),
            ("{.items[0].spec.includedNamespaces[-1]}", "c"),
            ("{.items[0].spec.includedNamespaces[9]}", ""),
            (r"{.items[0].metadata.labels.velero\.io/storage-location}", "default"),
            ("{.items[0].metadata.labels['velero.io/storage-location']}", "default"),
            ("{.items[0]['metadata'].name}", "one"),
            ("{.items[*].status.errors}", "0 3"),
            ("{.items[?(@.status.phase==\"Failed\")].metadata.name}", "two"),
            ("{.items[?(@.status.phase!='Failed')].metadata.name}", "one"),
            ("{.items[?(@.status.errors>0)].metadata.name}", "two"),
            ("{.items[?(@.status.errors<=0)].metadata.name}", "one"),
            ("{.items[?(@.status.phase)].metadata.name}", "one two"),
            ("{.items[?(@.nothing)].metadata.name}", ""),
            (
                "{range .items[*]}{.metadata.name}{\"\\t\"}{.status.phase}{\"\\n\"}{end}",
                "one\tCompleted\ntwo\tFailed\n",
            ),
            (
                "{range .items[*]}{range .spec.includedNamespaces[*]}<{@}>{end};{end}",
                "<one><b><c>;<two><b><c>;",
            ),
            ("{range .items[*]}{$.kind} {end}", "BackupList BackupList "),
            ("name: {.items[0].metadata.name}!", "name: one!"),
            ("{.nothing.at.all}", ""),
            ("{.items[0].status.*}", "Completed 0"),
            ("{'}'}", "}"),
        ] {
            let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            let mut said = parsed.print(&list());
            if template.ends_with(".*}") {
                // The order of fields is that of the object.
                let mut words: Vec<&str> = said.split(' ').collect();
                words.sort_by_key(|word| std::cmp::Reverse(word.len()));
                said = words.join(" ");
            }
            assert_eq!(said, printed, "{template}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_with_a_reason() {
        for (template, why) in [
            ("", "no braces"),
            (".metadata.name", "write {.metadata.name}"),
            ("{..name}", "whole path"),
            ("{.items[0,1]}", "two paths"),
            ("{.items[0:2:1]}", "no steps"),
            ("{.items", "no `}`"),
            ("{.items[0}", "no `]`"),
            ("{range .items[*]}", "no {end}"),
            ("{end}", "without a {range}"),
            ("{.items[?(.a==1)]}", "?(@.field"),
            ("{.items[?(@.a==b)]}", "?(@.field"),
            ("{.items[x]}", "no index"),
            ("{.items[]}", "[*]"),
            ("{}", "empty"),
            ("{.a | b}", "not supported"),
            ("{\"a\" \"b\"}", "two braces"),
            ("{.a..}", "whole path"),
        ] {
            let said = Template::parse(template).expect_err(template);
            assert!(said.contains(why), "{template}: {said}");
        }
        let deep = "{range .a}".repeat(17) + &"{end}".repeat(17);
        assert!(Template::parse(&deep).unwrap_err().contains("within each other"));
    }

    proptest! {
        #[test]
        fn any_template_is_read_or_refused_and_never_panics(text in "[{}\\[\\].@$*?()='\"a0:\\\\ ,é-]{0,40}") {
            if let Ok(template) = Template::parse(&text) {
                let _ = template.print(&list());
            }
        }
    }
}
