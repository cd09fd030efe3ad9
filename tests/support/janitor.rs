//! The process that tidies up after us, whatever becomes of us. See the script `janitor` beside
//! this file.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::project;

pub struct Janitor {
    child: Child,
    folder: PathBuf,
}

impl Janitor {
    /// Makes a folder: it and all programs that name it go when this value is dropped, or when this
    /// process ends.
    ///
    /// # Errors
    /// When the folder cannot be made, or bash or setsid is missing.
    pub fn start() -> anyhow::Result<Self> {
        // It runs in a session of its own, because Ctrl-C in a terminal reaches all processes of
        // ours. It also creates the folder, so that the folder never exists without a process that
        // will remove it.
        let mut child = Command::new("setsid")
            .arg("bash")
            .arg(script())
            .arg("new")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start setsid (of util-linux)")?;
        let mut folder = String::new();
        let stdout = child.stdout.take().context("the janitor has no stdout")?;
        BufReader::new(stdout).read_line(&mut folder)?;
        let folder = PathBuf::from(folder.trim_end());
        let janitor = Self { child, folder };
        ensure!(
            janitor.folder.is_absolute(),
            "failed to make a folder in {}",
            std::env::temp_dir().display()
        );
        Ok(janitor)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn tell(&mut self, lines: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("the janitor is gone")?;
        stdin.write_all(lines.as_bytes()).context("the janitor is gone")
    }

    /// Leaves everything as it is, once `save` has kept the lines that the script reads in order to
    /// end it later.
    ///
    /// # Errors
    /// When `save` fails, or the janitor is gone, and so everything else will be.
    pub fn detach(&mut self, save: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        save(&format!("dir {}\n", self.folder.display()))?;
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
