//! The file in which Velero's command line keeps what a user has set by `velero client config set`.
//! Flags outrank it, and it outranks the environment, as with Velero.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use serde_json::{Map, Value};

use super::print::note;
use super::typed::velero_alone;
use crate::args::{Args, Command};
use crate::text::printable;

/// No such file is larger.
const LARGEST: u64 = 1 << 20;

/// What counts of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub namespace: Option<String>,
    pub cacert: Option<String>,
    /// Whether output may have colours. Velero says yes if nothing is set.
    pub colorized: Option<bool>,
    /// What the file has that means nothing here, or cannot be read.
    pub faults: Vec<String>,
}

/// Where the file is: below HOME, on every system.
pub fn path() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".config").join("velero").join("config.json"))
}

/// Reads it. One that is not there says nothing; one that cannot be read says so in its faults.
pub fn read() -> Config {
    let Some(path) = path() else { return Config::default() };
    let failed = |why: String| Config {
        faults: vec![format!("{} is not read: {why}", path.display())],
        ..Config::default()
    };
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Config::default(),
        Err(error) => return failed(error.to_string()),
        Ok(found) if !found.is_file() => return failed("it is no file".to_owned()),
        Ok(found) if found.len() > LARGEST => return failed(format!("it has {} bytes", found.len())),
        Ok(_) => {}
    }
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return failed(error.to_string()),
    };
    let mut config = parse(&text);
    for fault in &mut config.faults {
        *fault = format!("{}: {fault}", path.display());
    }
    config
}

/// Reads a command line. What the file says counts for commands that a velero user knows.
pub fn args(words: Vec<OsString>) -> Args {
    if let Some(instead) = velero_alone(&words) {
        Args::command().error(ErrorKind::InvalidSubcommand, instead).exit();
    }
    let matches = Args::command().get_matches_from(words);
    let mut args = match Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => error.format(&mut Args::command()).exit(),
    };
    let target = match &mut args.command {
        Command::Backup(args) => &mut args.target,
        Command::Schedule(args) => &mut args.target,
        Command::BackupLocation(args) => &mut args.target,
        Command::Queue(args) => &mut args.target,
        Command::Version(args) => &mut args.target,
        _ => return args,
    };
    let config = read();
    for fault in &config.faults {
        note!("Warning: {}", printable(fault));
    }
    if let Some(namespace) = config.namespace.filter(|_| !is_typed(&matches, "namespace")) {
        target.namespace = namespace;
    }
    args
}

/// Whether a flag stands in the command line.
fn is_typed(matches: &ArgMatches, flag: &str) -> bool {
    let mut at = Some(matches);
    while let Some(matches) = at {
        let has_flag = matches.try_contains_id(flag).is_ok();
        if has_flag && matches.value_source(flag) == Some(ValueSource::CommandLine) {
            return true;
        }
        at = matches.subcommand().map(|(_, matches)| matches);
    }
    false
}

/// What the text of the file says.
pub fn parse(text: &str) -> Config {
    let mut config = Config::default();
    let all: Map<String, Value> = match serde_json::from_str(text) {
        Ok(all) => all,
        Err(error) => {
            config.faults.push(format!("it is no JSON object, and nothing in it counts: {error}"));
            return config;
        }
    };
    for (key, value) in all {
        match (key.as_str(), &value) {
            ("namespace", Value::String(text)) => {
                config.namespace = Some(text.clone()).filter(|one| !one.is_empty())
            }
            ("cacert", Value::String(text)) => {
                config.cacert = Some(text.clone()).filter(|one| !one.is_empty())
            }
            ("colorized", Value::Bool(yes)) => config.colorized = Some(*yes),
            ("colorized", Value::String(text)) => match boolean(text) {
                Some(yes) => config.colorized = Some(yes),
                None => config.faults.push(format!("colorized is neither true nor false: {text:?}")),
            },
            // Velero's features change nothing in what berth's commands do.
            ("features", Value::String(_)) => {}
            ("namespace" | "cacert" | "colorized" | "features", other) => {
                config.faults.push(format!("{key} is no text: {other}"));
            }
            // Velero keeps what it does not know, too.
            _ => {}
        }
    }
    config
}

/// As Go reads a boolean.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_file_is_read_as_velero_writes_it() {
        let text = r#"{"cacert":"/ca.pem","colorized":"false","features":"EnableCSI","namespace":"team"}"#;
        let config = parse(text);
        assert_eq!(config.namespace.as_deref(), Some("team"));
        assert_eq!((config.cacert.as_deref(), config.colorized), (Some("/ca.pem"), Some(false)));
        assert!(config.faults.is_empty());
        assert_eq!(parse(r#"{"colorized": true, "other": [1], "namespace": ""}"#).colorized, Some(true));
        assert_eq!(parse("{}"), Config::default());
        for (bad, says) in [
            ("", "no JSON object"),
            ("[]", "no JSON object"),
            (r#"{"namespace": 1}"#, "namespace is no text"),
            (r#"{"colorized": "maybe"}"#, "neither true nor false"),
        ] {
            let config = parse(bad);
            assert!(config.faults.iter().any(|fault| fault.contains(says)), "{bad}: {config:?}");
            assert_eq!(config.namespace, None);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_told_of(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
