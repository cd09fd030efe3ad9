//! A program that runs beside us, in a session of its own.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait::wait_for;
use super::{log, seen};

/// Killed when dropped. Its command line must name the control plane's folder: so the janitor knows
/// it.
pub struct Process {
    name: String,
    command: Command,
    child: Child,
    log: PathBuf,
    is_left: bool,
    started: Instant,
}

/// `program` in a session of its own: Ctrl-C in a terminal does not reach it. Its id is that of the
/// program.
pub fn in_own_session(program: &Path) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    without_proxies(&mut command);
    command
}

/// All that we talk to is on this machine.
pub fn without_proxies(command: &mut Command) {
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(proxy);
    }
}

impl Process {
    /// Starts `command`, made by [`in_own_session`]. What it prints goes to the end of `log`.
    ///
    /// # Errors
    /// When the log cannot be written or setsid is missing.
    pub fn start(name: &str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("failed to open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("failed to start setsid (of util-linux)")?;
        Ok(Self {
            name: name.to_owned(),
            command,
            child,
            log: log.to_owned(),
            is_left: false,
            started: Instant::now(),
        })
    }

    /// As the files below /proc name it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its process id, which is that of its session, too.
    ///
    /// # Errors
    /// Never on Linux, where an id is an i32.
    pub fn pid(&self) -> anyhow::Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.child.id())?))
    }

    /// When it was started first.
    pub fn started(&self) -> Instant {
        self.started
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// # Errors
    /// When the log cannot be read.
    pub fn log_text(&self) -> anyhow::Result<String> {
        let text = String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned();
        seen::note(&format!("the log of {}", self.name), &text);
        Ok(text)
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// # Errors
    /// When it has ended: with the end of its log.
    pub fn ensure_runs(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.ended()? else { return Ok(()) };
        bail!("{} has ended ({status}). The end of its log:\n{}", self.name, log::tail(&self.log, 20));
    }

    /// # Errors
    /// When it has ended.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} has ended already ({status})", self.name);
        }
        kill(self.pid()?, signal).with_context(|| format!("failed to signal {}", self.name))
    }

    /// As with `kill -9`: no chance to tidy up.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// When it is still there after `patience`.
    pub fn terminate(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        let what = format!("{} to end", self.name);
        wait_for(&what, patience, || self.ended())
    }

    /// From now on it outlives us.
    pub fn leave_running(&mut self) {
        self.is_left = true;
    }

    /// Starts the same command once more. Kills what still runs.
    ///
    /// # Errors
    /// When it cannot be killed or started.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        self.child = self.command.spawn()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_left {
            let _ = self.kill();
        }
        // A task that panicked may have been begun anew, and all have ended well nevertheless.
        let has_panicked = std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains("' panicked at "));
        assert!(
            !has_panicked || std::thread::panicking(),
            "{} panicked: see {}",
            self.name,
            self.log.display()
        );
    }
}
