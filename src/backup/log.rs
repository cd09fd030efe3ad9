//! The log of one backup: lines as Velero's, counted, and gathered into its results file.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

/// Messages of a level that the results hold. The log has all of them, in a few bytes each.
const TOLD: u32 = 5000;
/// Of these, of one namespace: whoever has that fills no more of them.
const OF_NAMESPACE: usize = 500;

/// Under which heading of the results file a line stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About<'a> {
    /// The backup as a whole.
    Velero,
    Cluster,
    Namespace(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Info,
    Warning,
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

#[derive(Default, Serialize)]
struct Messages {
    #[serde(skip)]
    told: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    velero: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cluster: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    namespaces: BTreeMap<String, Vec<String>>,
}

impl Messages {
    /// The first one that is too many is told as that.
    fn add(&mut self, about: &About<'_>, resource: &str, message: &str) {
        let of_namespace = match about {
            About::Namespace(name) => self.namespaces.get(*name).map_or(0, Vec::len),
            About::Velero | About::Cluster => 0,
        };
        if of_namespace > OF_NAMESPACE || self.told > TOLD {
            return;
        }
        self.told += 1;
        if self.told > TOLD {
            self.velero.push(" message: /there are more, which only the log has".to_owned());
            return;
        }
        let resource = if resource.is_empty() { String::new() } else { format!(" resource: /{resource}") };
        let text = match of_namespace {
            OF_NAMESPACE => " message: /there are more of this namespace, which only the log has".to_owned(),
            _ => format!("{resource} message: /{message}"),
        };
        match about {
            About::Velero => self.velero.push(text),
            About::Cluster => self.cluster.push(text),
            About::Namespace(name) => self.namespaces.entry((*name).to_owned()).or_default().push(text),
        }
    }
}

#[derive(Default, Serialize)]
struct Results {
    errors: Messages,
    warnings: Messages,
}

/// Written to by everybody who works for the backup.
pub struct BackupLog {
    backup: String,
    state: Mutex<State>,
}

struct State {
    /// Gzip members that are whole, and one that is not.
    whole: Vec<u8>,
    lines: GzEncoder<Vec<u8>>,
    results: Results,
    warnings: u32,
    errors: u32,
}

/// Lines of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub warnings: u32,
    pub errors: u32,
}

impl BackupLog {
    /// `backup`: namespace/name.
    pub fn new(backup: String) -> Self {
        let lines = GzEncoder::new(Vec::new(), Compression::fast());
        Self {
            backup,
            state: Mutex::new(State {
                whole: Vec::new(),
                lines,
                results: Results::default(),
                warnings: 0,
                errors: 0,
            }),
        }
    }

    pub fn info(&self, message: &str) {
        self.write(Level::Info, &About::Velero, "", message);
    }

    /// `resource`: `configmaps`, `deployments.apps`, or empty.
    pub fn warning(&self, about: &About<'_>, resource: &str, message: &str) {
        self.write(Level::Warning, about, resource, message);
    }

    pub fn error(&self, about: &About<'_>, resource: &str, message: &str) {
        self.write(Level::Error, about, resource, message);
    }

    fn write(&self, level: Level, about: &About<'_>, resource: &str, message: &str) {
        let time = format!("{:.0}", Timestamp::now());
        let message_quoted = serde_json::Value::from(message);
        let mut line =
            format!("time=\"{time}\" level={} msg={message_quoted} backup={}", level.as_str(), self.backup);
        if !resource.is_empty() {
            line.push_str(&format!(" resource={resource}"));
        }
        if let About::Namespace(namespace) = about {
            line.push_str(&format!(" namespace={namespace}"));
        }
        line.push('\n');
        let mut state = self.state.lock();
        // Writing to memory does not fail.
        let _ = state.lines.write_all(line.as_bytes());
        let messages = match level {
            Level::Info => return,
            Level::Warning => {
                state.warnings += 1;
                &mut state.results.warnings
            }
            Level::Error => {
                state.errors += 1;
                &mut state.results.errors
            }
        };
        messages.add(about, resource, message);
    }

    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts { warnings: state.warnings, errors: state.errors }
    }

    /// The two files, as they are so far: log lines, and results, gzip.
    pub fn files(&self) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
        let mut state = self.state.lock();
        let results = gzip_json(&state.results)?;
        let lines =
            std::mem::replace(&mut state.lines, GzEncoder::new(Vec::new(), Compression::fast())).finish()?;
        state.whole.extend(lines);
        Ok((state.whole.clone(), results))
    }
}

/// JSON and a line feed, gzip: how Velero's side files are written.
pub fn gzip_json(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut encoder, value)?;
    encoder.write_all(b"\n")?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn results_hold_so_many_messages_and_the_log_all_of_them() {
        let log = BackupLog::new("velero/b".into());
        for i in 0..TOLD + 2 {
            log.warning(&About::Cluster, "", &format!("warning {i}"));
        }
        log.error(&About::Cluster, "", "an error");
        assert_eq!(log.counts(), Counts { warnings: TOLD + 2, errors: 1 });
        let (lines, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
        assert!(text(&lines).contains(&format!("\"warning {}\"", TOLD + 1)));
        let results = text(&results);
        assert!(!results.contains(&format!("warning {TOLD}\"")) && results.contains("an error"));
        assert_eq!(results.matches("which only the log has").count(), 1);
    }

    #[test]
    fn one_namespace_does_not_take_the_room_of_the_others() {
        let log = BackupLog::new("velero/b".into());
        for i in 0..TOLD + 2 {
            log.error(&About::Namespace("loud"), "pods", &format!("error {i}"));
        }
        log.error(&About::Namespace("quiet"), "pods", "an error");
        assert_eq!(log.counts(), Counts { warnings: 0, errors: TOLD + 3 });
        let (_, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
        let results: serde_json::Value = serde_json::from_str(&text(&results)).unwrap_or_default();
        let of = |namespace: &str| results["errors"]["namespaces"][namespace].as_array().map(Vec::len);
        assert_eq!((of("loud"), of("quiet")), (Some(OF_NAMESPACE + 1), Some(1)));
        let last = &results["errors"]["namespaces"]["loud"][OF_NAMESPACE];
        assert!(last.as_str().is_some_and(|last| last.contains("which only the log has")), "{last}");
        assert!(results["errors"].get("velero").is_none(), "{results}");
    }

    fn text(gzip: &[u8]) -> String {
        let mut text = String::new();
        let read = flate2::read::GzDecoder::new(gzip).read_to_string(&mut text);
        read.map(|_| text).unwrap_or_else(|e| unreachable!("{e}"))
    }

    #[test]
    fn lines_are_counted_and_gathered() {
        let log = BackupLog::new("velero/b".into());
        log.info("said \"so\"");
        log.warning(&About::Cluster, "", "w");
        log.error(&About::Namespace("ns1"), "configmaps", "gone");
        log.error(&About::Velero, "", "bad");
        assert_eq!(log.counts(), Counts { warnings: 1, errors: 2 });
        let (lines, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
        let lines = text(&lines);
        assert!(lines.contains(r#"level=info msg="said \"so\"" backup=velero/b"#), "{lines}");
        assert!(
            lines.contains(r#"level=error msg="gone" backup=velero/b resource=configmaps namespace=ns1"#),
            "{lines}"
        );
        log.info("later");
        let (whole, _) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
        let mut both = String::new();
        let read = flate2::read::MultiGzDecoder::new(&whole[..]).read_to_string(&mut both);
        assert!(read.is_ok() && both.starts_with(&lines) && both.contains("msg=\"later\""), "{both}");
        assert_eq!(
            text(&results),
            "{\"errors\":{\"velero\":[\" message: /bad\"],\"namespaces\":{\"ns1\":[\" resource: /configmaps message: /gone\"]}},\"warnings\":{\"cluster\":[\" message: /w\"]}}\n"
        );
    }
}
