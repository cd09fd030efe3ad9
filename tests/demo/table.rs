//! The table of Backups: redrawn in place on a terminal, line by line elsewhere.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

#[derive(Clone)]
pub struct Row {
    pub name: String,
    pub phase: &'static str,
    pub position: Option<String>,
    pub waits_for: String,
    pub items: String,
    pub elapsed: Duration,
}

impl Row {
    fn line(&self) -> String {
        let position = self.position.as_deref().unwrap_or_default();
        let elapsed = format!("{:.1} s", self.elapsed.as_secs_f64());
        format!(
            "{:<9} {:<16} {position:<9} {:<20} {:<10} {elapsed:>7}",
            self.name, self.phase, self.waits_for, self.items
        )
    }
}

pub struct Table {
    is_live: bool,
    drawn: usize,
    /// What the last line of a Backup said, but for what changes all the time.
    said: HashMap<String, (&'static str, Option<String>, String)>,
}

impl Table {
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { is_live: std::io::stdout().is_terminal() && !dumb, drawn: 0, said: HashMap::new() }
    }

    /// # Errors
    /// When the reader of stdout is gone.
    pub fn show(&mut self, rows: &[Row]) -> std::io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let header = format!(
            "{:<9} {:<16} {:<9} {:<20} {:<10} {:>7}",
            "NAME", "PHASE", "POSITION", "WAITS FOR", "ITEMS", "ELAPSED"
        );
        let mut out = std::io::stdout().lock();
        if self.is_live {
            // Up to the first line of the last drawing; no line may wrap, or the next count would
            // be wrong.
            let mut text = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            text.push_str("\x1b[?7l");
            for line in std::iter::once(header).chain(rows.iter().map(Row::line)) {
                text.push_str(&format!("{line}\x1b[K\n"));
            }
            text.push_str("\x1b[?7h");
            self.drawn = rows.len() + 1;
            out.write_all(text.as_bytes())?;
            return out.flush();
        }
        if self.said.is_empty() {
            writeln!(out, "{header}")?;
        }
        for row in rows {
            let says = (row.phase, row.position.clone(), row.waits_for.clone());
            if self.said.get(&row.name) != Some(&says) {
                writeln!(out, "{}", row.line())?;
                self.said.insert(row.name.clone(), says);
            }
        }
        Ok(())
    }
}
