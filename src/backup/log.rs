//! The log of one backup: lines in Velero's format, counted, and gathered in the results file.

mod results;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use results::Results;

/// Most messages of a level in the results file. The log has all of them, in a few bytes each.
const TOLD: u32 = 5000;
/// Of these, most messages of one namespace, so that one namespace cannot fill the results file.
const OF_NAMESPACE: u32 = 500;
/// Most messages of both levels, including the note that there are more.
const MESSAGES: usize = 2 * (5000 + 1);

/// The heading of the results file under which a message stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultsHeading<'a> {
    /// The backup as a whole.
    Velero,
    Cluster,
    Namespace(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

/// A warning or an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogMessage {
    level: Level,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_of_cluster: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    pub resource: String,
    /// It is of something that is done once, for example a hook.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lasts: bool,
    message: String,
    /// It says that there are more messages, and is not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_more: bool,
}

/// Reads the messages of a checkpoint. Reading stops at the first message that is too many, because
/// anybody who may write to the store may have written them.
///
/// # Errors
/// When there are too many, or they are no messages.
pub fn read_told<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LogMessage>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<LogMessage>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MESSAGES} messages")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<LogMessage>, A::Error> {
            let mut told = Vec::new();
            while let Some(one) = all.next_element()? {
                if told.len() >= MESSAGES {
                    return Err(A::Error::invalid_length(told.len() + 1, &self));
                }
                told.push(one);
            }
            Ok(told)
        }
    }
    from.deserialize_seq(Few)
}

impl LogMessage {
    /// The message that there are more of this level.
    fn more(level: Level) -> Self {
        Self {
            level,
            is_of_cluster: false,
            namespace: None,
            resource: String::new(),
            lasts: false,
            message: "there are more, which only the log has".to_owned(),
            is_more: true,
        }
    }

    /// As a sentence, and whether it is an error.
    pub fn sentence(&self) -> (bool, String) {
        let at = self.namespace.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        (self.level == Level::Error, format!("{at}{}", self.message))
    }

    fn about(&self) -> ResultsHeading<'_> {
        match &self.namespace {
            Some(namespace) => ResultsHeading::Namespace(namespace),
            None if self.is_of_cluster => ResultsHeading::Cluster,
            None => ResultsHeading::Velero,
        }
    }
}

/// How many messages there are of each level, and of each namespace of a level.
#[derive(Default)]
struct MessageQuotas(HashMap<(Level, Option<String>), u32>);

impl MessageQuotas {
    /// Counts a message; returns how many there were before it.
    fn count(&mut self, level: Level, namespace: Option<&str>) -> u32 {
        let count = self.0.entry((level, namespace.map(str::to_owned))).or_default();
        *count = count.saturating_add(1);
        *count - 1
    }

    /// Replaces the first message that is too many by the note that there are more; drops later
    /// ones.
    fn admit(&mut self, told: LogMessage) -> Option<LogMessage> {
        let of_namespace = told.namespace.as_deref().map_or(0, |name| self.count(told.level, Some(name)));
        if of_namespace > OF_NAMESPACE {
            return None;
        }
        let told = match of_namespace {
            OF_NAMESPACE => LogMessage {
                namespace: told.namespace,
                message: "there are more of this namespace, which only the log has".to_owned(),
                ..LogMessage::more(told.level)
            },
            _ => told,
        };
        match self.count(told.level, None) {
            before if before < TOLD => Some(told),
            TOLD => Some(LogMessage::more(told.level)),
            _ => None,
        }
    }
}

impl MessageCounts {
    fn of(told: &[LogMessage]) -> Self {
        let count = |level| {
            let count = told.iter().filter(|told| told.level == level && !told.is_more).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        Self { warnings: count(Level::Warning), errors: count(Level::Error) }
    }
}

/// The log of one backup, written to by all its tasks.
pub struct BackupLog {
    backup: String,
    state: Mutex<LogState>,
}

struct LogState {
    /// Complete gzip members, and one that is being written.
    whole: Vec<u8>,
    lines: GzEncoder<Vec<u8>>,
    /// Messages for the results file.
    told: Vec<LogMessage>,
    room: MessageQuotas,
    /// Counts of all messages, those for which there was no room included.
    counts: MessageCounts,
    /// Counts of messages for which there was no room.
    untold: Untold,
    /// The notes that there are more messages.
    more: HashSet<LogMessage>,
    /// Messages of an earlier run: a run that continues may find the same again.
    known: HashSet<LogMessage>,
}

/// Counts of messages by the type that they are about. Messages of what is done once, and of no
/// type, have the empty name.
pub type Untold = BTreeMap<String, MessageCounts>;

/// Warnings and errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageCounts {
    pub warnings: u32,
    pub errors: u32,
}

impl MessageCounts {
    fn of_level(&mut self, level: Level) -> Option<&mut u32> {
        match level {
            Level::Info => None,
            Level::Warning => Some(&mut self.warnings),
            Level::Error => Some(&mut self.errors),
        }
    }

    fn add(&mut self, more: Self) {
        self.warnings = self.warnings.saturating_add(more.warnings);
        self.errors = self.errors.saturating_add(more.errors);
    }
}

impl BackupLog {
    /// `backup`: namespace/name.
    pub fn new(backup: String) -> Self {
        Self::again(backup, Vec::new(), Vec::new())
    }

    /// The log of a run that continues: with the messages of an earlier run, and its lines, gzip.
    pub fn again(backup: String, told: Vec<LogMessage>, whole: Vec<u8>) -> Self {
        let lines = GzEncoder::new(Vec::new(), Compression::fast());
        let mut state = LogState {
            whole,
            lines,
            told: Vec::new(),
            room: MessageQuotas::default(),
            counts: MessageCounts::of(&told),
            untold: Untold::new(),
            more: HashSet::new(),
            known: told.iter().cloned().collect(),
        };
        // Several runs may have more messages than one log keeps.
        for one in told {
            state.tell(one);
        }
        Self { backup, state: Mutex::new(state) }
    }

    /// This log behind the messages of an earlier run and its lines, gzip.
    #[must_use]
    pub fn behind(&self, mut told: Vec<LogMessage>, mut lines: Vec<u8>) -> Self {
        told.extend(self.told());
        // Writing to memory does not fail.
        lines.extend(self.lines().unwrap_or_default());
        let log = Self::again(self.backup.clone(), told, lines);
        log.count_untold(self.untold());
        log
    }

    /// Counts of messages for which there was no room.
    pub fn untold(&self) -> Untold {
        self.state.lock().untold.clone()
    }

    /// Adds such counts of an earlier run, so that a backup that continues has no fewer errors.
    pub fn count_untold(&self, untold: Untold) {
        let state = &mut *self.state.lock();
        let mut all = MessageCounts::default();
        for (resource, counts) in untold {
            all.add(counts);
            state.untold.entry(resource).or_default().add(counts);
        }
        state.counts.add(all);
        for (level, count) in [(Level::Warning, all.warnings), (Level::Error, all.errors)] {
            if count > 0 {
                state.tell_more(LogMessage::more(level));
            }
        }
    }

    pub fn info(&self, message: &str) {
        self.write(Level::Info, &ResultsHeading::Velero, "", false, message);
    }

    /// `resource`: `configmaps`, `deployments.apps`, or empty.
    pub fn warning(&self, about: &ResultsHeading<'_>, resource: &str, message: &str) {
        self.write(Level::Warning, about, resource, false, message);
    }

    pub fn error(&self, about: &ResultsHeading<'_>, resource: &str, message: &str) {
        self.write(Level::Error, about, resource, false, message);
    }

    /// An error of something that is done once, so a run that continues does not find it again.
    pub fn lasting_error(&self, about: &ResultsHeading<'_>, resource: &str, message: &str) {
        self.write(Level::Error, about, resource, true, message);
    }

    fn write(&self, level: Level, about: &ResultsHeading<'_>, resource: &str, lasts: bool, message: &str) {
        let time = format!("{:.0}", Timestamp::now());
        let message_quoted = serde_json::Value::from(message);
        let mut line =
            format!("time=\"{time}\" level={} msg={message_quoted} backup={}", level.as_str(), self.backup);
        if !resource.is_empty() {
            line.push_str(&format!(" resource={resource}"));
        }
        if let ResultsHeading::Namespace(namespace) = about {
            line.push_str(&format!(" namespace={namespace}"));
        }
        line.push('\n');
        let state = &mut *self.state.lock();
        // Writing to memory does not fail.
        let _ = state.lines.write_all(line.as_bytes());
        let Some(count) = state.counts.of_level(level) else { return };
        let namespace =
            if let ResultsHeading::Namespace(name) = about { Some((*name).to_owned()) } else { None };
        let told = LogMessage {
            level,
            is_of_cluster: *about == ResultsHeading::Cluster,
            namespace,
            resource: resource.to_owned(),
            lasts,
            message: message.to_owned(),
            is_more: false,
        };
        if state.known.contains(&told) {
            return;
        }
        *count = count.saturating_add(1);
        state.tell(told);
    }

    pub fn counts(&self) -> MessageCounts {
        self.state.lock().counts
    }

    /// Warnings and errors so far, in order.
    pub fn told(&self) -> Vec<LogMessage> {
        self.state.lock().told.clone()
    }

    /// Lines so far, gzip.
    ///
    /// # Errors
    /// Never in practice, because writing to memory does not fail.
    pub fn lines(&self) -> std::io::Result<Vec<u8>> {
        self.state.lock().lines()
    }

    /// Both files, gzip: log lines, and results.
    pub fn files(&self) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
        let mut state = self.state.lock();
        let results = gzip_json(&Results::of(&state.told))?;
        Ok((state.lines()?, results))
    }
}

impl LogState {
    /// Keeps a message that is counted already; without room, it is counted by its type.
    fn tell(&mut self, told: LogMessage) {
        let (level, is_more) = (told.level, told.is_more);
        let resource = if told.lasts { String::new() } else { told.resource.clone() };
        match self.room.admit(told) {
            Some(told) if !told.is_more => {
                self.told.push(told);
                return;
            }
            Some(more) => self.tell_more(more),
            None => {}
        }
        if !is_more && let Some(count) = self.untold.entry(resource).or_default().of_level(level) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds a note that there are more, once.
    fn tell_more(&mut self, more: LogMessage) {
        if self.more.insert(more.clone()) {
            self.told.push(more);
        }
    }

    fn lines(&mut self) -> std::io::Result<Vec<u8>> {
        let begun = GzEncoder::new(Vec::new(), Compression::fast());
        let lines = std::mem::replace(&mut self.lines, begun).finish()?;
        self.whole.extend(lines);
        Ok(self.whole.clone())
    }
}

/// JSON and a line feed, gzip: the format of Velero's artifacts.
pub fn gzip_json(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut encoder, value)?;
    encoder.write_all(b"\n")?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
