//! What KEEP=1 leaves up. `make demo-stop` gives these lines to the janitor, so that it needs no
//! build.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use berth_test_support::project;

fn state() -> PathBuf {
    project().join(".demo/state")
}

pub fn is_wanted() -> bool {
    std::env::var_os("KEEP").is_some_and(|keep| !keep.is_empty() && keep != "0")
}

/// # Errors
/// When one was kept and not ended since.
pub fn ensure_none() -> anyhow::Result<()> {
    if state().exists() {
        bail!("one is kept already: end it with `make demo-stop` first");
    }
    Ok(())
}

/// # Errors
/// When one was kept meanwhile, or the file cannot be written.
pub fn save(lines: &str) -> anyhow::Result<()> {
    let state = state();
    let failed =
        || format!("failed to write {} (kept by another run? see `make demo-stop`)", state.display());
    std::fs::create_dir_all(project().join(".demo")).with_context(failed)?;
    let mut file = std::fs::File::create_new(&state).with_context(failed)?;
    file.write_all(lines.as_bytes()).with_context(failed)
}
