//! The process that tidies up after us, whatever becomes of us. See the script `janitor` beside this file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use super::project;

/// Marks a folder that the janitor may remove.
const MARK: &str = ".throw-away";

pub struct Janitor {
    child: Child,
    lines: String,
}

impl Janitor {
    /// Makes a folder, and has it looked after: it and all programs that name it go when this value is dropped, or
    /// when this process ends.
    ///
    /// # Errors
    /// When the folder cannot be made, or bash or setsid is missing.
    pub fn start() -> anyhow::Result<(Self, PathBuf)> {
        // In a session of its own: Ctrl-C in a terminal reaches all of ours.
        let child = Command::new("setsid")
            .arg("bash")
            .arg(script())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start setsid (of util-linux)")?;
        let folder =
            tempfile::Builder::new().prefix("berth-").tempdir().context("failed to make a folder")?;
        let path = folder.path().canonicalize()?;
        std::fs::write(path.join(MARK), "Removed when the control plane in it ends.\n")?;
        let mut janitor = Self { child, lines: format!("dir {}\n", path.display()) };
        janitor.tell(&janitor.lines.clone())?;
        let _ = folder.keep();
        Ok((janitor, path))
    }

    fn tell(&mut self, lines: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("the janitor is gone")?;
        stdin.write_all(lines.as_bytes()).context("the janitor is gone")
    }

    /// Leaves everything as it is, once `save` has kept what [`tidy`] needs in order to end it later.
    ///
    /// # Errors
    /// When `save` fails, or the janitor is gone, and so everything else will be.
    pub fn detach(&mut self, save: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        save(&self.lines)?;
        self.tell("detach\n")
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn script() -> PathBuf {
    project().join("tests/support/janitor")
}

/// Ends what was left in place by [`Janitor::detach`], and prints what that was.
///
/// # Errors
/// When the file cannot be read or the script fails.
pub fn tidy(lines: &Path) -> anyhow::Result<()> {
    let stdin = std::fs::File::open(lines).with_context(|| format!("failed to read {}", lines.display()))?;
    let status = Command::new("bash").arg(script()).stdin(stdin).status().context("failed to run bash")?;
    anyhow::ensure!(status.success(), "the janitor failed ({status})");
    Ok(())
}
