//! What programs wrote: the last lines for people, whole files for later.

use std::path::{Path, PathBuf};

use super::{target, times};

/// The most characters of a printed log, and of one line of it, so that the cause stays in sight.
const LINES: usize = 8;
const LONGEST_LINE: usize = 200;

/// The last `count` lines.
pub fn tail(log: &Path, count: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

/// Prints the end of each log and copies all of it to `target/test-logs/NAME/`. For a test that
/// fails.
pub fn report(name: &str, logs: &[PathBuf]) {
    let folder = target().join("test-logs").join(name.replace("::", "."));
    let made = std::fs::create_dir_all(&folder);
    for log in logs {
        let file = log.file_name().unwrap_or_default();
        eprintln!("---- the end of {}", file.display());
        for line in tail(log, LINES).lines() {
            eprintln!("{}", line.chars().take(LONGEST_LINE).collect::<String>());
        }
        if made.is_ok() {
            let _ = std::fs::copy(log, folder.join(file));
        }
    }
    eprintln!("---- all of it: {}", folder.display());
    if let Some(failure) = times::failure() {
        eprintln!("---- this failed: {failure}");
    }
}

/// [`report`] under the name of the test, if it fails just now.
pub fn report_if_panicking(logs: &[PathBuf]) {
    if std::thread::panicking() {
        report(std::thread::current().name().unwrap_or("unnamed"), logs);
    }
}

/// Does [`report_if_panicking`] when it goes.
pub struct ReportOnPanic {
    pub logs: Vec<PathBuf>,
}

impl Drop for ReportOnPanic {
    fn drop(&mut self) {
        report_if_panicking(&self.logs);
    }
}
