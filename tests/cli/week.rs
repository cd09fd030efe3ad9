//! A velero user's week: one script, typed with stock `velero` and with `berth`. The page
//! `docs/week.md` is what both print, side by side. `BERTH_WRITE_DOWN=1` writes it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::peers::install_definitions;
use crate::support::process::without_proxies;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, binaries, port, project, wait_for};

const SCRIPT: &str = include_str!("week.sh");
pub const NAMESPACE: &str = "velero";
const PAGE: &str = "docs/week.md";
/// The Monday of the page.
const YEAR_AND_MONTH: &str = "2026-11";
const MONDAY: usize = 23;

const INTRO: &str = "# A velero user's week

One script, typed with `velero` and with `berth`, and what both print. A test
([tests/cli/week.rs](../tests/cli/week.rs)) runs [the script](../tests/cli/week.sh) with Velero's own
command and with berth's, against berth's controllers, and compares this page with what it sees.
What differs on purpose is [listed](command-line.md#differences-on-purpose).

The test waits before each command until nothing is under way. Times are replaced by nine o'clock of
the day, sizes by 1 KiB, and identifiers by zeros. Where both print the same, but for the width of
columns and the name of the program, it stands here once.
";

pub struct Day {
    title: &'static str,
    text: String,
    pub commands: Vec<&'static str>,
}

pub fn days() -> Vec<Day> {
    let mut days: Vec<Day> = Vec::new();
    for line in SCRIPT.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            days.push(Day { title, text: String::new(), commands: Vec::new() });
        } else if let Some(day) = days.last_mut() {
            match line.strip_prefix("# ") {
                Some(text) => day.text += &format!("{text}\n"),
                None if line.is_empty() => {}
                None => day.commands.push(line),
            }
        }
    }
    days
}

/// One of the two who type the script.
pub struct User<'a> {
    /// `velero` or `berth`.
    program: &'static str,
    plane: &'a ControlPlane,
    /// Whose webhook has to know a location before a Backup goes there.
    berth: Option<&'a Berth>,
    home: PathBuf,
}

/// What a command prints, and its exit code.
pub struct Said {
    pub text: String,
    pub code: i32,
}

impl<'a> User<'a> {
    pub fn new(name: &'static str, plane: &'a ControlPlane, berth: Option<&'a Berth>) -> Self {
        let home = plane.folder().join(format!("home-of-{name}"));
        for folder in ["offsite/shop", "bin"] {
            std::fs::create_dir_all(home.join(folder)).unwrap();
        }
        let [velero] = binaries::get(["velero"]).unwrap();
        for (link, file) in [("velero", velero), ("berth", program())] {
            std::os::unix::fs::symlink(file, home.join("bin").join(link)).unwrap();
        }
        let user = Self { program: name, plane, berth, home };
        assert_eq!(user.bash("velero client config set colorized=false").code, 0);
        user
    }

    /// The authority of the certificate of berth's downloads.
    fn trust(&self) {
        let args = ["get", "secret", "berth-webhook-certs", "-n", NAMESPACE, "-o", "json"];
        let secret: Value = serde_json::from_str(&self.plane.kubectl().run(&args).unwrap()).unwrap();
        let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap();
        std::fs::write(self.home.join("berth-ca.crt"), authority).unwrap();
    }

    /// Until every Backup has ended, every location and Schedule was looked at, and what is to be
    /// deleted is.
    pub fn settle(&self) {
        let kubectl = self.plane.kubectl();
        let items = |kind: &str| {
            let list = kubectl.run(&["get", kind, "-n", NAMESPACE, "-o", "json"]).unwrap();
            let mut list: Value = serde_json::from_str(&list).unwrap();
            list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
        };
        wait_for("nothing to be under way", PATIENCE, || {
            let ended = kubectl.backups(NAMESPACE)?.values().all(|backup| backup.phase().is_final());
            let is_seen = |location: &Value| location["status"]["phase"] == "Available";
            let is_done = |request: &Value| request["status"]["phase"] == "Processed";
            let is_judged = |schedule: &Value| {
                matches!(schedule["status"]["phase"].as_str(), Some("Enabled" | "FailedValidation"))
            };
            let done = ended
                && items("backupstoragelocations.velero.io").iter().all(is_seen)
                && items("schedules.velero.io").iter().all(is_judged)
                && items("deletebackuprequests.velero.io").iter().all(is_done);
            Ok(done.then_some(()))
        })
        .unwrap();
        if let Some(berth) = self.berth {
            for location in items("backupstoragelocations.velero.io") {
                berth.await_location(location["metadata"]["name"].as_str().unwrap()).unwrap();
            }
        }
    }

    /// The command as this user types it.
    pub fn typed(&self, line: &str) -> String {
        match line.strip_prefix("velero ") {
            Some(rest) => format!("{} {rest}", self.program),
            None => line.to_owned(),
        }
    }

    pub fn bash(&self, line: &str) -> Said {
        let mut path = vec![self.home.join("bin").display().to_string()];
        path.extend(std::env::var("PATH"));
        let mut command = Command::new("bash");
        // A pipe must not hide that its first command failed.
        command.args(["--norc", "-o", "pipefail", "-c", &format!("exec 2>&1\n{line}")]);
        command.env("PATH", path.join(":")).env("KUBECONFIG", self.plane.kubeconfig());
        command.env("HOME", &self.home).env("TMPDIR", &self.home).current_dir(&self.home);
        command.env("TZ", "UTC").env("LC_ALL", "C").env_remove("VELERO_NAMESPACE").stdin(Stdio::null());
        without_proxies(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        Said { text, code: output.status.code().unwrap() }
    }

    /// What the page shows of a command on that day of the week.
    fn does(&self, line: &str, day: usize) -> Said {
        self.settle();
        let Said { text, code } = self.bash(&self.typed(line));
        let text = text.replace(&self.home.display().to_string(), "/home/me");
        Said { text: calm(&text, day), code }
    }

    /// All of the script, command by command. Nothing is left of it.
    fn week(&self) -> Vec<Said> {
        let mut said = Vec::new();
        for (number, day) in days().iter().enumerate() {
            said.extend(day.commands.iter().map(|line| self.does(line, number)));
        }
        let left = self.plane.kubectl().backups(NAMESPACE).unwrap();
        assert!(left.is_empty(), "{left:#?}");
        said
    }
}

/// Without what differs from run to run.
fn calm(text: &str, day: usize) -> String {
    let date = format!("{YEAR_AND_MONTH}-{:02}", MONDAY + day);
    let mut text = text.to_owned();
    for (shape, with) in [
        ("0000-00-00 00:00:00 +0000 UTC", format!("{date} 09:00:00 +0000 UTC")),
        ("0000-00-00T00:00:00Z", format!("{date}T09:00:00Z")),
        ("0000-00-00T00:00:00.000Z", format!("{date}T09:00:00.000Z")),
        ("0000-00-00T00:00:00.000000Z", format!("{date}T09:00:00Z")),
        ("0000-00-00T00:00:00.000000000Z", format!("{date}T09:00:00Z")),
        ("0000-00-00 00:00:00", format!("{date} 09:00:00")),
        // On a busy machine a run may be another's to go on with.
        ("berth.dev/runs=0", "berth.dev/runs=1".to_owned()),
        ("xxxxxxxxxxxxx-xxxxxxxxxxxxxxxx", "0000000000000-0000000000000000".to_owned()),
        ("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "00000000-0000-0000-0000-000000000000".to_owned()),
    ] {
        text = replaced(&text, shape, &with);
    }
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        // Velero prints a dot for each second, and ends that line, which may be empty.
        let is_dots = line.chars().all(|c| c == '.');
        let line = if is_dots { String::new() } else { sizes(line.trim_end()) };
        // berth prints a line for each change, and sees them all or not.
        let changes = ["waits", "starts", "runs", "is finalized", "is created"];
        let name = line.split(' ').next().unwrap_or_default();
        if changes.iter().any(|change| line.starts_with(&format!("{name} {change}"))) {
            let shown = format!("{name} … (what it does, a line for each change)");
            if lines.last() != Some(&shown) {
                lines.push(shown);
            }
            continue;
        }
        // Of several empty lines the first says enough.
        if !(line.is_empty() && lines.last().is_none_or(String::is_empty)) {
            lines.push(line);
        }
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Replaces what looks like `shape`: `0` is a digit, `x` a hexadecimal one.
fn replaced(text: &str, shape: &str, with: &str) -> String {
    let fits = |at: &str| {
        at.len() >= shape.len()
            && shape.bytes().zip(at.bytes()).all(|(shape, byte)| match shape {
                b'0' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                other => byte == other,
            })
    };
    let (mut done, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        if fits(rest) {
            done += with;
            rest = &rest[shape.len()..];
        } else {
            done.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    done
}

/// Sizes, because what is compressed has other times in it each time.
fn sizes(line: &str) -> String {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    for i in 1..words.len() {
        let unit = words[i].trim_matches(|c: char| !c.is_ascii_alphabetic()).to_owned();
        let number = words[i - 1].trim_start_matches('(').to_owned();
        if ["bytes", "B", "KiB", "MiB"].contains(&unit.as_str()) && number.parse::<f64>().is_ok() {
            words[i - 1] = words[i - 1].replace(&number, "1");
            words[i] = words[i].replace(&unit, "KiB");
        }
    }
    words.join(" ")
}

fn block(said: &Said) -> String {
    let mut text = format!("```text\n{}```\n", if said.text.is_empty() { "\n" } else { &said.text });
    if said.code != 0 {
        let _ = write!(text, "\nExit code {}.\n", said.code);
    }
    text
}

/// As it prints but for the program's name and the width of columns.
fn alike(said: &Said) -> (String, i32) {
    let text = ["backup", "schedule"].iter().fold(said.text.clone(), |text, noun| {
        text.replace(&format!("berth {noun}"), &format!("velero {noun}"))
    });
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    (lines.collect::<Vec<_>>().join("\n"), said.code)
}

#[test]
fn a_week_typed_with_velero_and_with_berth_stands_side_by_side_in_the_docs() {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    install_definitions(&plane).unwrap();
    let port = port::free().unwrap();
    let mut options = Options::new(program(), NAMESPACE);
    options.controller_args.extend([
        format!("--download-address=127.0.0.1:{port}"),
        format!("--download-url=https://127.0.0.1:{port}/"),
        // On a busy machine a shorter one is lost, and then another run goes on with the backup.
        "--lease-duration=2m".to_owned(),
    ]);
    let berth = Berth::start(plane, options).unwrap();
    let app = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}});
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    berth.plane().apply(vec![shop, app("ConfigMap", "prices"), app("Secret", "till")]).unwrap();
    wait_for("the certificate of downloads to be served", PATIENCE, || {
        let log = berth.controller.process.log_text()?;
        Ok(log.contains("swapped the certificate of downloads").then_some(()))
    })
    .unwrap();
    let users = ["velero", "berth"].map(|name| User::new(name, berth.plane(), Some(&berth)));
    users.iter().for_each(User::trust);
    let [theirs, ours] = users.each_ref().map(User::week);
    let mut both = theirs.iter().zip(&ours);
    let mut page = INTRO.to_owned();
    for day in days() {
        let _ = write!(page, "\n## {}\n", day.title);
        if !day.text.is_empty() {
            let _ = write!(page, "\n{}", day.text);
        }
        for line in &day.commands {
            let (theirs, ours) = both.next().unwrap();
            if alike(theirs) == alike(ours) {
                let _ = write!(page, "\n`{line}`\n\n{}", block(theirs));
                continue;
            }
            // A table in which each cell is a block: GitHub shows it side by side, and it can be
            // read as it is.
            let _ = write!(
                page,
                "\n<table><tr><th><code>{line}</code></th><th><code>{}</code></th></tr><tr><td>\n\n{}\n</td><td>\n\n{}\n</td></tr></table>\n",
                users[1].typed(line),
                block(theirs),
                block(ours),
            );
        }
    }
    let path = project().join(PAGE);
    if std::env::var_os("BERTH_WRITE_DOWN").is_some() {
        std::fs::write(path, &page).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = berth::install::diff::texts(PAGE, &written, &page);
    assert!(written == page, "{PAGE} is not what is said (BERTH_WRITE_DOWN=1 writes it down):\n{difference}");
}

#[test]
fn what_differs_from_run_to_run_is_not_on_the_page() {
    let text = "Waiting\n...\nmonday waits at position 1\nmonday runs: 1 of 3 items\n\n\nx  2020-01-31 13:14:15 +0000 UTC  (12.5 MiB)\n\n";
    let shown = "Waiting\n\nmonday … (what it does, a line for each change)\n\nx  2026-11-24 09:00:00 +0000 UTC  (1 KiB)\n";
    assert_eq!(calm(text, 1), shown);
    assert_eq!(days().len(), 5);
    assert!(
        days()
            .iter()
            .flat_map(|day| &day.commands)
            .all(|line| line.starts_with("velero ") || line.starts_with("tar "))
    );
}
