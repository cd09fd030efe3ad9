//! `backup logs --follow` of Backups that wait and that run.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::json;

use super::{command, object, said};
use crate::admission::program;
use crate::compatibility::s3::fill;
use crate::hooks::{self, Place};
use crate::support::{Berth, Options, PATIENCE, port, wait_for};

/// A command that follows the log of a Backup.
struct Following {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Following {
    /// `of`: the Backup. `trust`: the flag that says which certificates of the store are trusted.
    fn start(berth: &Berth, name: &str, of: &str, trust: &str) -> Self {
        Self::printing(berth, name, of, trust, |out| File::create(out).unwrap().into())
    }

    fn printing(berth: &Berth, name: &str, of: &str, trust: &str, to: impl Fn(&PathBuf) -> Stdio) -> Self {
        let file = |end: &str| berth.plane().folder().join(format!("{}-{name}.{end}", berth.namespace()));
        let (out, err) = (file("out"), file("err"));
        let mut follow = command(berth, &["backup", "logs", of, "--follow", trust]);
        let child = follow.stdout(to(&out)).stderr(File::create(&err).unwrap()).spawn().unwrap();
        Self { child, out, err }
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap()
    }

    fn await_told(&self, text: &str) {
        let is_told = || Ok(self.told().contains(text).then_some(()));
        wait_for(&format!("the command to tell {text:?}"), PATIENCE, is_told).unwrap();
    }

    /// Its exit code, when it has one.
    fn ends(&mut self) -> Option<i32> {
        let status = wait_for("the command to end", PATIENCE, || Ok(self.child.try_wait()?)).unwrap();
        assert!(!self.told().contains("panicked"), "{}", self.told());
        status.code()
    }
}

/// One that is released and runs to its end, one that is removed, and one that is canceled.
pub fn follows_those_that_wait(berth: &Berth, trust: &str) {
    let held = ["--include-namespaces", "default", "--annotations", "berth.dev/hold=true"];
    for name in ["followed", "gone", "canceled"] {
        said(berth, &[&["backup", "create", name][..], &held].concat());
    }
    let mut read = Following::start(berth, "read", "followed", trust);
    let mut unread = Following::printing(berth, "unread", "followed", trust, |_| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer.into()
    });
    let mut gone = Following::start(berth, "gone", "gone", trust);
    let mut canceled = Following::start(berth, "canceled", "canceled", trust);
    for (following, of) in
        [(&read, "followed"), (&unread, "followed"), (&gone, "gone"), (&canceled, "canceled")]
    {
        following.await_told(&format!("{of} waits"));
    }
    said(berth, &["queue", "release", "followed"]);
    assert_eq!(read.ends(), Some(0), "{}", read.told());
    assert_eq!(read.printed(), said(berth, &["backup", "logs", "followed", trust]), "the whole log, once");
    assert_eq!(unread.ends(), Some(0), "its reader has had enough: {}", unread.told());
    berth.kubectl().run(&["delete", "backups.velero.io", "gone", "-n", berth.namespace()]).unwrap();
    assert_eq!(gone.ends(), Some(7), "{}", gone.told());
    assert!(gone.told().contains("was deleted before it was seen to end"), "{}", gone.told());
    said(berth, &["queue", "cancel", "canceled"]);
    assert_eq!(canceled.ends(), Some(6), "{}", canceled.told());
    assert!(canceled.told().contains("Backup canceled was canceled"), "{}", canceled.told());
}

/// The backup is held in the middle by a command in a pod, which fails in the end.
#[test]
fn the_log_of_a_backup_that_runs_is_printed_before_its_end_and_the_exit_code_tells_how_it_ended() {
    const APP: &str = "cli-follow-app";
    let (plane, kwok) = hooks::site();
    let port = port::free().unwrap();
    let mut options = Options::new(program(), "cli-follow");
    options.controller_args.extend([
        format!("--download-address=127.0.0.1:{port}"),
        format!("--download-url=https://127.0.0.1:{port}/"),
    ]);
    let berth = Berth::start(plane, options).unwrap();
    let folder = hooks::place(&berth);
    let at = Place(&folder);
    // An archive of several parts: the first checkpoint is written when the first part is stored.
    fill(&berth, APP, 12);
    let script = format!("{}; {}; exit 1", at.tells("frozen"), at.waits("gate"));
    let pre = [("command", at.shell(&script)), ("on-error", json!("Continue")), ("timeout", json!("10m"))];
    hooks::create(&berth, &[kwok.pod(APP, "db", &hooks::annotations(&pre, None))]);
    said(&berth, &["backup", "create", "running", "--include-namespaces", APP]);
    let trust = "--insecure-skip-tls-verify";
    let mut follow = Following::start(&berth, "running", "running", trust);
    at.wait_told("frozen");
    wait_for("the beginning of the log", PATIENCE, || {
        Ok(follow.printed().contains("backup begins").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", follow.told()));
    assert_eq!(object(&berth, "backup", "running")["status"]["phase"], "InProgress");
    assert!(follow.child.try_wait().unwrap().is_none(), "{}", follow.told());
    let before = follow.printed();
    assert!(!before.contains("of pod db failed"), "the command in the pod still runs: {before}");
    at.open("gate");
    assert_eq!(follow.ends(), Some(3), "{}", follow.told());
    let whole = said(&berth, &["backup", "logs", "running", trust]);
    assert_eq!(follow.printed(), whole, "the whole log, once");
    assert!(whole.len() > before.len() && whole.contains("of pod db failed"), "{whole}");
    let told = follow.told();
    for text in ["running runs", "Backup completed with status: PartiallyFailed"] {
        assert!(told.contains(text), "{text:?}: {told}");
    }
}
