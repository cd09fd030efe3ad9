//! What is known to be wrong with linked crates: RustSec's advisories, by cargo-deny or
//! cargo-audit. Developers need neither of them, nor a network.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// One step of either program. Longer than a fetch of the whole database takes, because a line that
/// is dead says nothing.
const LIMIT: Duration = Duration::from_secs(60);
/// How often to check whether it has ended, and how long its output may take after that.
const LOOK: Duration = Duration::from_millis(50);
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Of what it says.
const MOST_BYTES: u64 = 16 << 20;
/// Of a reason that we repeat.
const MOST_CHARS: usize = 200;

/// An advisory that does not concern us.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    id: String,
    reason: String,
}

impl Ignored {
    /// By its identifier alone, because a crate's name would let its next advisory pass, and with a
    /// reason.
    pub fn is_sound(&self) -> bool {
        let is_id = self.id.strip_prefix("RUSTSEC-").is_some_and(|rest| !rest.is_empty());
        is_id && !self.reason.trim().is_empty()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is known, as of what the database says now (`None`), or why it is an older one.
    Nothing(Option<String>),
    Found(Vec<String>),
    /// Why.
    NotChecked(String),
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    succeeded: bool,
    stdout: String,
    stderr: String,
}

impl Done {
    /// The last line of what it complained of.
    fn why(&self) -> String {
        let last = self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
        last.unwrap_or("it does not say why").chars().take(MOST_CHARS).collect()
    }
}

/// Runs cargo with these arguments: how it ended, or why it did not.
pub type Run<'a> = &'a dyn Fn(&[&str]) -> Result<Done, String>;

pub fn look(ignored: &[Ignored], cargo: Run<'_>) -> Answer {
    let has = |tool: &str| cargo(&[tool, "--version"]).is_ok_and(|done| done.succeeded);
    if has("deny") {
        by_deny(cargo)
    } else if has("audit") {
        by_audit(ignored, cargo)
    } else {
        Answer::NotChecked("neither cargo-deny nor cargo-audit is installed".to_owned())
    }
}

fn by_deny(cargo: Run<'_>) -> Answer {
    let stale = match cargo(&["deny", "fetch", "db"]) {
        Ok(done) if done.succeeded => None,
        Ok(done) => Some(format!("cargo-deny could not fetch their database: {}", done.why())),
        Err(why) => Some(format!("cargo-deny could not fetch their database: {why}")),
    };
    match (cargo(&["deny", "check", "--disable-fetch", "advisories"]), stale) {
        (Ok(done), stale) if done.succeeded => Answer::Nothing(stale),
        // That is printed when the check came to its end.
        (Ok(done), _) if done.stdout.contains("advisories FAILED") => Answer::Found(vec![done.stderr]),
        (_, Some(why)) => Answer::NotChecked(why),
        // It has the database, so it is something else that is wrong.
        (Ok(done), None) => Answer::Found(vec![format!("cargo-deny does not check them:\n{}", done.stderr)]),
        (Err(why), None) => Answer::NotChecked(format!("cargo-deny did not end: {why}")),
    }
}

fn by_audit(ignored: &[Ignored], cargo: Run<'_>) -> Answer {
    let mut args = vec!["audit", "--json"];
    args.extend(ignored.iter().flat_map(|one| ["--ignore", one.id.as_str()]));
    // A report is printed when there is a database, whatever else is wrong.
    let report = |args: &[&str]| match cargo(args) {
        Ok(done) if done.stdout.trim().is_empty() => Err(done.why()),
        Ok(done) => Ok(done.stdout),
        Err(why) => Err(why),
    };
    let (report, stale) = match report(&args) {
        Ok(report) => (report, None),
        Err(why) => {
            let why = format!("cargo-audit could not fetch their database: {why}");
            args.push("--no-fetch");
            match report(&args) {
                Ok(report) => (report, Some(why)),
                Err(_) => return Answer::NotChecked(why),
            }
        }
    };
    match serde_json::from_str::<Report>(&report) {
        Ok(report) => match report.lines() {
            lines if lines.is_empty() => Answer::Nothing(stale),
            lines => Answer::Found(lines),
        },
        Err(error) => Answer::Found(vec![format!("what cargo-audit reports is not understood: {error}")]),
    }
}

/// What `cargo audit --json` prints, as much of it as is asked for.
#[derive(Deserialize)]
struct Report {
    vulnerabilities: Vulnerabilities,
    /// By their kind: unmaintained, unsound, yanked.
    #[serde(default)]
    warnings: BTreeMap<String, Vec<Finding>>,
}

#[derive(Deserialize)]
struct Vulnerabilities {
    list: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    package: Package,
    /// None of what was yanked.
    advisory: Option<Advisory>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct Advisory {
    id: String,
    title: String,
}

impl Report {
    fn lines(&self) -> Vec<String> {
        let line = |kind: &str, finding: &Finding| {
            let Package { name, version } = &finding.package;
            let advisory = finding.advisory.as_ref();
            let said = advisory.map(|advisory| format!(": {} {}", advisory.id, advisory.title));
            format!("{name} {version}: {kind}{}", said.unwrap_or_default())
        };
        let vulnerable = self.vulnerabilities.list.iter().map(|finding| line("vulnerable", finding));
        let others = self.warnings.iter();
        let others = others.flat_map(|(kind, found)| found.iter().map(|finding| line(kind, finding)));
        vulnerable.chain(others).collect()
    }
}

/// Cargo, as it is called by this name, for as long as one step may take.
///
/// # Errors
/// Why it did not end.
pub fn cargo(args: &[&str]) -> Result<Done, String> {
    // A program that asks for a password waits for an answer.
    within(LIMIT, Command::new(super::cargo()).args(args).env("GIT_TERMINAL_PROMPT", "0"))
}

fn within(limit: Duration, command: &mut Command) -> Result<Done, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("it does not run: {error}"))?;
    // Both are read meanwhile, because a full pipe blocks its writer.
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limit => thread::sleep(LOOK),
            Ok(None) => {
                // One that has ended meanwhile cannot be ended, and is as late.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took longer than {limit:?}"));
            }
            Err(error) => return Err(format!("it cannot be waited for: {error}")),
        }
    };
    // What it began and left behind may hold the pipes for longer.
    let said = |pipe: &Receiver<String>| {
        pipe.recv_timeout(LAST_WORDS).map_err(|_| "what it says does not end".to_owned())
    };
    Ok(Done { succeeded: status.success(), stdout: said(&stdout)?, stderr: said(&stderr)? })
}

/// All of it, when it is at its end.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(pipe) = pipe {
            // What came before an error is what there is.
            let _ = pipe.take(MOST_BYTES).read_to_end(&mut said);
        }
        // The receiver of a command that took too long is gone.
        let _ = tell.send(String::from_utf8_lossy(&said).into_owned());
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(succeeded: bool, stdout: &str, stderr: &str) -> Result<Done, String> {
        Ok(Done { succeeded, stdout: stdout.to_owned(), stderr: stderr.to_owned() })
    }

    fn late() -> Result<Done, String> {
        Err("it took longer than 60s".to_owned())
    }

    /// What cargo-deny says to a fetch, and to a check.
    fn deny(fetch: &Result<Done, String>, check: &Result<Done, String>) -> Answer {
        look(&[], &|args| match args {
            ["deny", "--version"] => done(true, "cargo-deny 0.18.0", ""),
            ["deny", "fetch", "db"] => fetch.clone(),
            ["deny", "check", "--disable-fetch", "advisories"] => check.clone(),
            _ => panic!("{args:?}"),
        })
    }

    /// What cargo-audit says with a fetch, and without.
    fn audit(fetching: &Result<Done, String>, offline: &Result<Done, String>) -> Answer {
        let ignored = [Ignored { id: "RUSTSEC-2000-0001".to_owned(), reason: "not called".to_owned() }];
        look(&ignored, &|args| match args {
            ["deny", ..] => done(false, "", "error: no such command: `deny`"),
            ["audit", "--version"] => done(true, "cargo-audit 0.21.0", ""),
            ["audit", "--json", "--ignore", "RUSTSEC-2000-0001"] => fetching.clone(),
            ["audit", "--json", "--ignore", "RUSTSEC-2000-0001", "--no-fetch"] => offline.clone(),
            _ => panic!("{args:?}"),
        })
    }

    fn report(warnings: &str, list: &str) -> String {
        format!(
            r#"{{"settings": {{}}, "vulnerabilities": {{"list": [{list}]}}, "warnings": {{{warnings}}}}}"#
        )
    }

    #[test]
    fn who_has_neither_program_is_told_so_and_goes_on() {
        let answer = look(&[], &|_| done(false, "", "error: no such command"));
        assert_eq!(answer, Answer::NotChecked("neither cargo-deny nor cargo-audit is installed".to_owned()));
        assert_eq!(look(&[], &|_| Err("it does not run".to_owned())), answer);
    }

    #[test]
    fn what_cargo_deny_finds_is_a_fault_and_what_it_cannot_look_for_is_none() {
        let fine = done(true, "advisories ok\n", "");
        let found = done(false, "advisories FAILED\n", "error[vulnerability]: RUSTSEC-2000-0001\n");
        let offline = done(false, "", "fetching\n[ERROR] no route to host\n\n");
        let no_database = done(false, "", "[ERROR] failed to load advisory database\n");
        let why = "cargo-deny could not fetch their database: [ERROR] no route to host".to_owned();

        assert_eq!(deny(&fine, &fine), Answer::Nothing(None));
        let told = Answer::Found(vec!["error[vulnerability]: RUSTSEC-2000-0001\n".to_owned()]);
        assert_eq!(deny(&fine, &found), told);
        // The database that is there is asked, however old.
        assert_eq!(deny(&offline, &found), told);
        assert_eq!(deny(&late(), &found), told);
        assert_eq!(deny(&offline, &fine), Answer::Nothing(Some(why.clone())));
        assert_eq!(deny(&offline, &no_database), Answer::NotChecked(why));
        let Answer::NotChecked(why) = deny(&late(), &no_database) else { panic!("a fault") };
        assert!(why.ends_with("it took longer than 60s"), "{why}");
        // With the database at hand nothing but an answer will do.
        assert!(matches!(deny(&fine, &no_database), Answer::Found(_)));
        assert!(matches!(deny(&fine, &late()), Answer::NotChecked(_)));
    }

    #[test]
    fn what_cargo_audit_finds_is_a_fault_and_what_it_cannot_look_for_is_none() {
        let vulnerable = r#"{"package": {"name": "one", "version": "1.0.0"}, "advisory": {"id": "RUSTSEC-2000-0002", "title": "It overflows"}}"#;
        let yanked = r#""yanked": [{"kind": "yanked", "package": {"name": "two", "version": "2.0.0"}, "advisory": null}]"#;
        let fine = done(true, &report("", ""), "");
        let found = done(false, &report(yanked, vulnerable), "");
        let offline = done(false, "", "error: couldn't fetch advisory database\n");
        let why = "cargo-audit could not fetch their database: error: couldn't fetch advisory database";

        assert_eq!(audit(&fine, &offline), Answer::Nothing(None));
        let lines = ["one 1.0.0: vulnerable: RUSTSEC-2000-0002 It overflows", "two 2.0.0: yanked"];
        let told = Answer::Found(lines.map(str::to_owned).into());
        assert_eq!(audit(&found, &offline), told);
        assert_eq!(audit(&offline, &found), told);
        assert_eq!(audit(&late(), &found), told);
        assert_eq!(audit(&offline, &fine), Answer::Nothing(Some(why.to_owned())));
        assert_eq!(audit(&offline, &offline), Answer::NotChecked(why.to_owned()));
        assert!(matches!(audit(&done(true, "no JSON", ""), &fine), Answer::Found(_)));
    }

    #[test]
    fn what_is_ignored_has_an_identifier_and_a_reason() {
        for (id, reason, is_sound) in [
            ("RUSTSEC-2000-0001", "we do not call it", true),
            ("RUSTSEC-2000-0001", " ", false),
            ("RUSTSEC-", "we do not call it", false),
            ("some-crate", "we do not call it", false),
        ] {
            let ignored = Ignored { id: id.to_owned(), reason: reason.to_owned() };
            assert_eq!(ignored.is_sound(), is_sound, "{ignored:?}");
        }
    }

    #[test]
    fn a_program_is_ended_when_it_takes_too_long() {
        let shell = |limit, line: &str| within(limit, Command::new("sh").args(["-c", line]));
        let done = shell(LIMIT, "echo out; echo err >&2; exit 3").unwrap();
        assert_eq!((done.succeeded, done.stdout.as_str(), done.why().as_str()), (false, "out\n", "err"));
        let began = Instant::now();
        let late = shell(Duration::from_millis(100), "exec sleep 600");
        assert_eq!(late, Err("it took longer than 100ms".to_owned()));
        assert!(began.elapsed() < LIMIT);
        assert!(within(LIMIT, &mut Command::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn a_reason_is_one_short_line() {
        let done = Done { succeeded: false, stdout: String::new(), stderr: "é".repeat(10_000) + "\n \n" };
        assert_eq!(done.why().chars().count(), MOST_CHARS);
        assert_eq!(Done { stderr: String::new(), ..done }.why(), "it does not say why");
    }
}
