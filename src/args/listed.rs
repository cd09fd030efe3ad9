//! How a list is printed, as `-o` of `get` says it.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use serde_json::Value;

use super::jsonpath::{Path, Template, joined};

/// Columns of a table.
const MOST: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub enum ListOutput {
    Table,
    /// The table with more columns.
    Wide,
    Json,
    Yaml,
    /// Only names.
    Name,
    JsonPath(Template),
    Columns(Vec<Column>),
}

/// One column of `custom-columns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub head: String,
    path: Path,
}

impl Column {
    /// What it shows of an object.
    pub fn cell(&self, object: &Value) -> String {
        let found = self.path.of(object, object);
        if found.is_empty() { "<none>".to_owned() } else { joined(&found, ",") }
    }
}

impl ListOutput {
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("jsonpath", template)) if !template.is_empty() => {
                Template::parse(template).map(Self::JsonPath)
            }
            Some(("custom-columns", columns)) if !columns.is_empty() => {
                columns_of(columns).map(Self::Columns)
            }
            Some(("jsonpath-file" | "go-template" | "go-template-file" | "custom-columns-file", _)) => {
                Err("is not supported: give the template itself, as in -o jsonpath=\"$(cat FILE)\""
                    .to_owned())
            }
            _ => match text {
                "table" => Ok(Self::Table),
                "wide" => Ok(Self::Wide),
                "json" => Ok(Self::Json),
                "yaml" => Ok(Self::Yaml),
                "name" => Ok(Self::Name),
                "jsonpath" | "jsonpath=" => {
                    Err("has no template: -o jsonpath='{.items[*].metadata.name}'".to_owned())
                }
                _ => Err(format!("is none of {}", ListOutputs::NAMES.map(|(name, _)| name).join(", "))),
            },
        }
    }
}

/// As in `NAME:.metadata.name,PHASE:.status.phase`.
fn columns_of(text: &str) -> Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    for one in text.split(',') {
        let (head, path) = one
            .split_once(':')
            .ok_or_else(|| format!("{one:?} is no column: write HEAD:PATH, as in NAME:.metadata.name"))?;
        let path = path.trim();
        let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
        columns.push(Column { head: head.trim().to_owned(), path: Path::parse(path)? });
    }
    if columns.len() > MOST { Err(format!("has more than {MOST} columns")) } else { Ok(columns) }
}

/// Reads [`ListOutput`], and lists the ways in helps and completions.
#[derive(Clone)]
pub struct ListOutputs;

impl ListOutputs {
    const NAMES: [(&'static str, &'static str); 7] = [
        ("table", ""),
        ("wide", "The table with more columns"),
        ("json", ""),
        ("yaml", ""),
        ("name", "Only names"),
        ("jsonpath=", "What a template selects"),
        ("custom-columns=", "A table of what paths select"),
    ];
}

impl TypedValueParser for ListOutputs {
    type Value = ListOutput;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ListOutput, clap::Error> {
        let text = value.to_string_lossy();
        ListOutput::parse(&text).map_err(|why| {
            let flag = arg.map(ToString::to_string).unwrap_or_default();
            let said = format!("invalid value '{text}' for '{flag}': {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, said).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |(name, help): (&'static str, &'static str)| {
            let value = PossibleValue::new(name);
            if help.is_empty() { value } else { value.help(help) }
        };
        Some(Box::new(Self::NAMES.into_iter().map(value)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ways_to_print_are_read_or_refused() {
        assert_eq!(ListOutput::parse("wide"), Ok(ListOutput::Wide));
        assert!(matches!(ListOutput::parse("jsonpath={.a}"), Ok(ListOutput::JsonPath(_))));
        for (text, why) in [
            ("xml", "table, wide, json"),
            ("jsonpath", "no template"),
            ("jsonpath={..a}", "whole path"),
            ("jsonpath-file=x", "$(cat FILE)"),
            ("go-template={{.a}}", "not supported"),
            ("custom-columns=NAME", "HEAD:PATH"),
        ] {
            let said = ListOutput::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn columns_show_what_their_paths_select() {
        let Ok(ListOutput::Columns(columns)) =
            ListOutput::parse("custom-columns=NAME:.metadata.name,NS:{.spec.n[*]},NO:.no")
        else {
            panic!("no columns")
        };
        let object = json!({"metadata": {"name": "one"}, "spec": {"n": ["a", 2]}});
        let cells: Vec<String> = columns.iter().map(|column| column.cell(&object)).collect();
        assert_eq!(cells, ["one", "a,2", "<none>"]);
    }
}
