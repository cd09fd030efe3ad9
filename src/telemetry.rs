//! Logs: to standard error, as text or JSON lines.

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// # Errors
/// When `level` is no filter.
pub fn init(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// An error and what caused it, in one line, for logs and failure reasons.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = words(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = words(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// kube shows a refusal with all its fields; people want what the API server said.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => format!("{} ({})", status.message, status.code),
        _ => error.to_string(),
    }
}
