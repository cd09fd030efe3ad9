//! The real programs, found or built by `tests/control-plane/get`.

use std::collections::BTreeMap;
use std::env::var_os;
use std::fs::{File, create_dir_all};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::project;

static KNOWN: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
/// Process id of the running `get`, else 0.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Where each of `names` is. Asks once per process; a first build takes minutes, its progress goes
/// to stderr.
///
/// # Errors
/// When one is neither found nor built.
pub fn get<const N: usize>(names: [&str; N]) -> anyhow::Result<[PathBuf; N]> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let unknown: Vec<&str> = names.into_iter().filter(|name| !known.contains_key(*name)).collect();
    if !unknown.is_empty() {
        let command = project().join("tests/control-plane/get");
        let child = Command::new(&command)
            .args(&unknown)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to run {}", command.display()))?;
        RUNNING.store(child.id(), Ordering::SeqCst);
        let output = child.wait_with_output();
        RUNNING.store(0, Ordering::SeqCst);
        let output = output.context("failed to wait for tests/control-plane/get")?;
        let missing = format!("tests/control-plane/get {} failed ({})", unknown.join(" "), output.status);
        ensure!(output.status.success(), "{missing}; why is said above, what is needed in its README.md");
        for line in String::from_utf8(output.stdout)?.lines() {
            let (name, path) = line.split_once('=').with_context(|| format!("cannot read {line:?}"))?;
            known.insert(name.to_owned(), PathBuf::from(path));
        }
    }
    let mut paths = Vec::with_capacity(N);
    for name in names {
        paths.push(
            known
                .get(name)
                .with_context(|| format!("tests/control-plane/get said nothing of {name}"))?
                .clone(),
        );
    }
    paths.try_into().map_err(|_| anyhow::anyhow!("as many paths as names"))
}

/// A file to lock, for what exists once on this machine. It is in the cache folder, because in a
/// folder for all users another user may own it.
///
/// # Errors
/// When it cannot be opened.
pub fn lock_file(name: &str) -> anyhow::Result<File> {
    let set = |variable: &str| var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("BERTH_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("berth")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/berth")))
        .context("set HOME or BERTH_CACHE")?;
    let path = cache.join(format!(".lock-{name}"));
    let file = create_dir_all(&cache).and_then(|()| File::options().create(true).append(true).open(&path));
    file.with_context(|| {
        format!("failed to open {}: set BERTH_CACHE to a folder that can be written", path.display())
    })
}

/// Ends a build that is under way.
pub fn cancel() {
    let id = RUNNING.swap(0, Ordering::SeqCst);
    if let Some(id) = i32::try_from(id).ok().filter(|id| *id > 0) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}
