//! Output of commands: tables, ages, JSON and YAML.

use std::io::Write;

use jiff::SignedDuration;
use serde::Serialize;

use crate::args::Output;

/// The head of a column.
#[derive(Clone)]
pub enum Head {
    Always(&'static str),
    /// A column without a value in any row is left out.
    IfAny(&'static str),
    /// A column that a flag named; always shown.
    Named(String),
}

impl Head {
    fn text(&self) -> &str {
        match self {
            Self::Always(text) | Self::IfAny(text) => text,
            Self::Named(text) => text,
        }
    }
}

/// Prints a table. Each column is as wide as its longest cell; every row has a cell for each head.
pub fn table(out: &mut impl Write, heads: &[Head], rows: &[Vec<String>]) -> std::io::Result<()> {
    let column = |i: usize| rows.iter().filter_map(move |row| row.get(i));
    let is_shown =
        |i: &usize, head: &Head| !matches!(head, Head::IfAny(_)) || column(*i).any(|cell| !cell.is_empty());
    let width =
        |i, head: &Head| column(i).map(|cell| cell.chars().count()).max().max(Some(head.text().len()));
    let shown: Vec<(usize, usize)> = (heads.iter().enumerate())
        .filter(|(i, head)| is_shown(i, head))
        .map(|(i, head)| (i, width(i, head).unwrap_or_default()))
        .collect();
    let mut write = |row: &[String]| {
        let cells =
            shown.iter().map(|(i, width)| format!("{:width$}", row.get(*i).map_or("", String::as_str)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    write(&heads.iter().map(|head| head.text().to_owned()).collect::<Vec<_>>())?;
    rows.iter().try_for_each(|row| write(row))
}

/// Prints JSON or YAML.
pub fn value(out: &mut impl Write, value: &impl Serialize, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Yaml => write!(out, "{}", serde_saphyr::to_string(value)?)?,
        Output::Json | Output::Table => writeln!(out, "{}", serde_json::to_string_pretty(value)?)?,
    }
    Ok(())
}

/// An age such as `5s`, `12m`, `3h`, `2d`.
pub fn age(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        s @ 0..=119 => format!("{s}s"),
        s @ 120..=7199 => format!("{}m", s / 60),
        s @ 7200..=172_799 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be_and_empty_ones_may_go() {
        let heads = [Head::Always("NAME"), Head::IfAny("CLASS"), Head::Always("PLACE"), Head::IfAny("WHY")];
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let print = |rows: &[Vec<String>]| {
            let mut out = Vec::new();
            table(&mut out, &heads, rows).map(|()| String::from_utf8_lossy(&out).into_owned()).ok()
        };
        let rows = [row(["größte", "", "", ""]), row(["b", "", "", "so"])];
        assert_eq!(print(&rows).as_deref(), Some("NAME    PLACE  WHY\ngrößte\nb              so\n"));
        assert_eq!(print(&[]).as_deref(), Some("NAME  PLACE\n"));
    }
}
