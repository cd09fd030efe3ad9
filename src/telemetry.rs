//! Logs: to standard error, as text or JSON lines.

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
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
