//! What was measured, beside what was aimed at.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::system;

#[derive(Clone, Copy)]
pub enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// For comparison only.
    None,
}

impl Aim {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtMost(limit) => Some(value <= limit),
            Self::AtLeast(limit) => Some(value >= limit),
            Self::None => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("≤ {}", number(limit)),
            Self::AtLeast(limit) => format!("≥ {}", number(limit)),
            Self::None => String::new(),
        }
    }
}

struct Row {
    part: String,
    what: String,
    value: f64,
    unit: &'static str,
    aim: Aim,
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn add(&mut self, part: &str, what: &str, value: f64, unit: &'static str, aim: Aim) {
        let row = Row { part: part.to_owned(), what: what.to_owned(), value, unit, aim };
        eprintln!("  {part}: {what}: {} {unit}", number(value));
        self.rows.push(row);
    }

    pub fn show(&self) {
        let header = ["part", "what", "measured", "unit", "aim", ""].map(str::to_owned);
        let rows = self.rows.iter().map(|row| {
            let met = match row.aim.is_met(row.value) {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "",
            };
            let cells = [&row.part, &row.what, &number(row.value), row.unit, &row.aim.text(), met];
            cells.map(str::to_owned)
        });
        let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
        let mut widths = [0; 6];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        println!();
        for row in rows {
            let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
                2 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }

    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let (kind, limit) = match row.aim {
                    Aim::AtMost(limit) => (json!("at most"), json!(limit)),
                    Aim::AtLeast(limit) => (json!("at least"), json!(limit)),
                    Aim::None => (Value::Null, Value::Null),
                };
                json!({
                    "part": row.part, "what": row.what, "value": row.value, "unit": row.unit,
                    "aim": kind, "limit": limit, "met": row.aim.is_met(row.value),
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(&json!({
            "at": jiff::Timestamp::now().to_string(),
            "cores": system::cores(),
            "results": rows,
        }))?;
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = written.and_then(|()| std::fs::write(path, text + "\n"));
        written.with_context(|| format!("failed to write {}", path.display()))?;
        println!("\nAlso in {}", path.display());
        Ok(())
    }
}

/// Three digits say enough.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// The middle one. 0 of none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Nearest rank. 0 of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}
