//! Steps and how long each took.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// One line to stdout. Unlike `println!` it does not panic when the reader of stdout is gone.
pub fn say(line: impl Display) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}

/// Runs what blocks on a thread where it may.
pub async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(task).await?
}

#[derive(Default)]
pub struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    pub async fn step<T>(
        &mut self,
        what: &'static str,
        task: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        say(format_args!("> {what}"))?;
        let started = Instant::now();
        let done = task.await.with_context(|| format!("failed to {what}"))?;
        let took = started.elapsed();
        self.0.push((what, took));
        say(format_args!("  {:.1} s", took.as_secs_f64()))?;
        Ok(done)
    }

    pub fn show(&self) -> std::io::Result<()> {
        for (what, took) in &self.0 {
            say(format_args!("{:>6.1} s  {what}", took.as_secs_f64()))?;
        }
        let all: Duration = self.0.iter().map(|(_, took)| *took).sum();
        say(format_args!("{:>6.1} s  in all", all.as_secs_f64()))
    }
}
