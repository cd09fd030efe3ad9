//! A velero user's week, typed once with `velero` and once with `berth`: what both print stands side
//! by side in docs/command-line.md. `BERTH_RECORD=1` writes it there.

use super::run;
use crate::admission::program;
use crate::queue::ended;
use crate::support::peers::velero;
use crate::support::{Berth, ControlPlane, Options, project};

/// The part of the page that is written from here stands between these.
const BEGIN: &str = "<!-- A test writes what follows: BERTH_RECORD=1 cargo test --test main -- --exact cli::week::what_a_week_looks_like_is_on_the_page -->\n";
const END: &str = "<!-- Up to here. -->\n";
/// What the names of each side begin with, so that both have their own objects.
const THEIRS: &str = "vvv-";
const OURS: &str = "bbb-";

/// Command lines; `{}` is where a name begins. After some of them a Backup must end first.
const WEEK: [(&str, &str, Option<&str>); 11] = [
    ("Monday: a backup", "backup create {}monday --include-namespaces default --ttl 48h", Some("monday")),
    ("What became of it", "backup get {}monday", None),
    (
        "Tuesday: every night",
        "schedule create {}nightly --schedule '0 1 * * *' --include-namespaces default --paused",
        None,
    ),
    ("The schedules", "schedule get {}nightly", None),
    ("Not tonight", "schedule pause {}nightly", None),
    ("Wednesday: now, and not at night", "backup create {}now --from-schedule {}nightly", Some("now")),
    ("Thursday: without a name", "backup create", None),
    ("A typing error", "backup describe {}mondya", None),
    ("Wrong flags", "backup create {}x --include-namespaces a --exclude-namespaces a --ttl 1y", None),
    ("Friday: no schedule any more", "schedule delete {}nightly --confirm", None),
    ("And no backup", "backup delete {}monday --confirm", None),
];

/// Words as a shell reads them; the lines have nothing but single quotes.
fn words(line: &str) -> Vec<&str> {
    let (quoted, plain): (Vec<_>, Vec<_>) = line.split('\'').enumerate().partition(|(i, _)| i % 2 == 1);
    let mut all: Vec<(usize, &str)> = quoted;
    all.extend(plain.into_iter().flat_map(|(i, text)| text.split_whitespace().map(move |word| (i, word))));
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, word)| word).collect()
}

/// Without what differs from run to run: times, and where it was run.
fn steady(text: &str, prefix: &str, namespace: &str) -> String {
    const ZONE: &str = " +0000 UTC";
    let mut text = text.replace(prefix, "").replace(namespace, "velero");
    while let Some(at) = text.find(ZONE) {
        let from = at.saturating_sub("2026-01-01 00:00:00".len());
        text.replace_range(from..at + ZONE.len(), "TIME");
    }
    // Columns are as wide as what they hold.
    let line = |line: &str| {
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        format!("{indent}{}\n", cells.collect::<Vec<_>>().join("  "))
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(line).collect()
}

fn side(berth: &Berth, prefix: &str, line: &str) -> String {
    let typed = line.replace("{}", prefix);
    let (program, out, err) = if prefix == THEIRS {
        let answer = velero(berth.plane(), berth.namespace(), &words(&typed)).unwrap();
        ("velero", answer.stdout, answer.stderr)
    } else {
        let output = run(berth, &words(&typed));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        ("berth", text(output.stdout), text(output.stderr))
    };
    let said = steady(&(out + &err), prefix, berth.namespace());
    format!("$ {program} {}\n{said}", line.replace("{}", ""))
}

#[test]
fn what_a_week_looks_like_is_on_the_page() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "cli-side")).unwrap();
    let mut told = String::new();
    for (title, line, ends) in WEEK {
        let sides = [THEIRS, OURS].map(|prefix| side(&berth, prefix, line));
        if let Some(name) = ends {
            ended(&berth, &[&format!("{THEIRS}{name}"), &format!("{OURS}{name}")]);
        }
        told += &format!("\n**{title}**\n\n```console\n{}\n{}```\n", sides[0], sides[1]);
    }
    let path = project().join("docs/command-line.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the week");
    let (there, after) = rest.split_once(END).expect("the week has an end");
    let wanted = format!("{told}\n");
    if std::env::var_os("BERTH_RECORD").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(there, wanted, "BERTH_RECORD=1 writes docs/command-line.md anew");
}
