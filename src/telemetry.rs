//! Logs: to standard error, as text or JSON lines.

use std::io::{self, IsTerminal as _, Write};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::settings::LogFormat;

/// Starts logging to standard error.
///
/// # Errors
/// When `level` is neither a level nor a filter.
pub fn init(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let mut filter = EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?}"))?;
    // Because below `info` kube_client logs URLs, and an exec URL holds the command of a hook with
    // any password in it.
    if filter.max_level_hint() > Some(LevelFilter::INFO) && !level.contains("kube_client") {
        filter = filter.add_directive("kube_client=info".parse()?);
    }
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    match format {
        LogFormat::Text => {
            builder.with_ansi(io::stderr().is_terminal()).with_writer(|| OneLine(io::stderr())).init();
        }
        LogFormat::Json => builder.with_writer(io::stderr).json().init(),
    }
    Ok(())
}

/// Keeps an event on one line, whatever its values say: the answer of a store may have lines that
/// look like events of their own. An event comes with one write.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = match event.strip_suffix(b"\n") {
            Some(text) => (text, b"\n".as_slice()),
            None => (event, b"".as_slice()),
        };
        if memchr::memchr2(b'\n', b'\r', text).is_none() {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                other => line.push(*other),
            }
        }
        line.extend_from_slice(end);
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_a_store_has_answered() {
        let mut out = Vec::new();
        for event in ["INFO plain\n", "WARN why=403\r\n2026-01-01T00:00:00Z  INFO berth: forged\n", "no end"]
        {
            OneLine(&mut out).write_all(event.as_bytes()).unwrap();
        }
        let written = String::from_utf8(out).unwrap();
        let wanted = "INFO plain\nWARN why=403\\r\\n2026-01-01T00:00:00Z  INFO berth: forged\nno end";
        assert_eq!(written, wanted);
    }
}
