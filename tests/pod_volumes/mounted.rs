//! A repository that berth wrote, as restic mounts it.

use std::env;
use std::fs;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Stage, assert_same, stage_folder};
use crate::support::process::in_own_session;
use crate::support::{PATIENCE, Process, project, wait_for};

/// Why nothing can be mounted here.
fn lack() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("this machine has no /dev/fuse");
    }
    let sends = Command::new("python3").args(["-c", "from socket import send_fds"]).output();
    // tests/support/fusermount takes it.
    (!sends.is_ok_and(|sends| sends.status.success())).then_some("there is no Python 3.9 or later")
}

/// What `restic mount` shows of a snapshot is what was backed up.
pub fn assert_mounted(stage: &Stage, location: &str, snapshot: &str, source: &Path) {
    if let Some(lack) = lack() {
        println!("skipped: {lack}, so no repository was mounted");
        return;
    }
    let mounted = stage_folder(&stage.plane, &format!("mounted-{location}"));
    fs::create_dir(&mounted).unwrap();
    let restic = stage.restic_command(location);
    // In a mount namespace of its own, which ends with it.
    let mut command = in_own_session(Path::new("unshare"));
    command.args(["--mount", "--propagation", "private"]).arg(restic.get_program()).args(restic.get_args());
    command.args(["mount", "--no-lock"]).arg(&mounted);
    command.envs(restic.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = once(project().join("tests/support")).chain(env::split_paths(&path));
    command.env("PATH", env::join_paths(folders).unwrap());
    let log = stage.plane.folder().join(format!("restic-mount-{location}.log"));
    let mut process = Process::start("restic mount", command, &log).unwrap();
    // The folder as that process sees it.
    let seen = PathBuf::from(format!("/proc/{}/root{}", process.id(), mounted.display()));
    let volume = seen.join("ids").join(&snapshot[..8]).join("volume");
    wait_for("restic to mount the repository", PATIENCE, || {
        process.ensure_runs()?;
        Ok(volume.is_dir().then_some(()))
    })
    .unwrap();
    assert_same(source, &volume);
    process.terminate(PATIENCE).unwrap();
}
