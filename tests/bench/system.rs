//! What the system tells of processes, and which core they run on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Linux counts CPU time in hundredths of a second, whatever its own clock does.
const TICKS: f64 = 100.0;

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds of CPU that a process has used.
///
/// # Errors
/// When it is gone.
pub fn cpu_seconds(id: u32) -> anyhow::Result<f64> {
    seconds(&id.to_string(), 11)
}

/// Seconds of CPU that those children of this process have used that were waited for. More than
/// looking at a child while it runs, this counts all of it.
///
/// # Errors
/// When the system does not tell.
pub fn cpu_seconds_of_children() -> anyhow::Result<f64> {
    seconds("self", 13)
}

/// The sum of two fields: of user and of system. `first`: how many fields there are between the
/// name and the first of them.
fn seconds(process: &str, first: usize) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in parentheses may hold anything.
    let (_, fields) = text.rsplit_once(") ").context("/proc/PID/stat reads otherwise")?;
    let ticks = fields.split(' ').skip(first).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

/// The most memory that a process ever held, in MiB.
///
/// # Errors
/// When it is gone.
pub fn peak_mib(id: u32) -> anyhow::Result<f64> {
    mib(id, "VmHWM:")
}

/// The memory that a process holds, in MiB.
///
/// # Errors
/// When it is gone.
pub fn resident_mib(id: u32) -> anyhow::Result<f64> {
    mib(id, "VmRSS:")
}

fn mib(id: u32, what: &'static str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)).context(what)?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// A program that runs `program` on the first core only: what it starts with counts the cores it
/// may use.
///
/// # Errors
/// When the script cannot be written.
pub fn on_first_core(program: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;

    let script = folder.join("on-first-core");
    let text = format!("#!/bin/sh\nexec taskset -c 0 '{}' \"$@\"\n", program.display());
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// Keeps this process off the first core, until it is dropped.
pub struct OffFirstCore(());

impl OffFirstCore {
    /// # Errors
    /// When taskset (of util-linux) fails.
    pub fn begin() -> anyhow::Result<Self> {
        if cores() > 1 {
            pin(&format!("1-{}", cores() - 1))?;
        }
        Ok(Self(()))
    }
}

impl Drop for OffFirstCore {
    fn drop(&mut self) {
        // The mask says how many there were; all of them is what we began with.
        let all = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let _ = all.map_err(anyhow::Error::from).and_then(|all| pin(all.trim()));
    }
}

fn pin(cores: &str) -> anyhow::Result<()> {
    let id = std::process::id().to_string();
    let output = Command::new("taskset").args(["-a", "-c", "-p", cores, &id]).output();
    let output = output.context("failed to run taskset (of util-linux)")?;
    ensure!(output.status.success(), "taskset failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
