//! Output of commands: tables, ages, logs, JSON and YAML.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal as _, Read, Write};
use std::sync::Once;

use jiff::SignedDuration;
use serde::Serialize;

use crate::args::{ClusterArgs, Output};
use crate::text::{escaped, escaped_json, printable};

/// As `println!`, which panics where whoever reads has had enough of it. What is done continues.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::print::on_stdout(format_args!($($text)*)) };
}

/// The same on standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::cli::print::on_stderr(format_args!($($text)*)) };
}

pub(crate) use {note, say};

/// For `say!`.
pub fn on_stdout(text: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{text}") {
        unwritten(&error);
    }
}

/// Says once that the output is lost, as on a full disk, where what is done continues without it.
/// Whoever has stopped reading knows.
pub fn unwritten(error: &io::Error) {
    static TOLD: Once = Once::new();
    if error.kind() != io::ErrorKind::BrokenPipe {
        TOLD.call_once(|| note!("the output cannot be written, and the command continues: {error}"));
    }
}

/// For `note!`.
pub fn on_stderr(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Marks the error of an output that nobody reads any more, because a connection to the API server
/// or to a store can break with the same kind of error, and that is a fault.
#[derive(Debug)]
struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the output is not read to its end")
    }
}

impl std::error::Error for OutputClosed {}

/// A writer whose errors [`unless_closed`] recognises.
pub struct Marked<W>(W);

impl<W: Write> Write for Marked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

fn marked(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe { io::Error::new(error.kind(), OutputClosed) } else { error }
}

/// Standard output for what is written in many pieces.
pub fn stdout() -> Marked<io::StdoutLock<'static>> {
    Marked(io::stdout().lock())
}

/// Whoever reads the output may have had enough of it, as `head` has. `default` is the result then.
///
/// # Errors
/// All others.
pub fn unless_closed<T>(done: anyhow::Result<T>, default: T) -> anyhow::Result<T> {
    let is_closed = |error: &anyhow::Error| {
        let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
        causes.any(|cause| cause.get_ref().is_some_and(|inner| inner.is::<OutputClosed>()))
    };
    match done {
        Err(error) if is_closed(&error) => Ok(default),
        done => done,
    }
}

/// Says on standard error which cluster a command is about, because a terminal may be set to
/// another one than its reader has in mind.
///
/// # Errors
/// When there is no usable configuration.
pub async fn tell_server(target: &ClusterArgs) -> anyhow::Result<()> {
    note!("cluster {}, namespace {}", crate::client::server(target.source()).await?, target.namespace);
    Ok(())
}

/// The head of a column.
#[derive(Clone)]
pub enum ColumnHead {
    Always(&'static str),
    /// A column without a value in any row is left out.
    IfAny(&'static str),
    /// A column that a flag named; always shown.
    Named(String),
}

impl ColumnHead {
    fn text(&self) -> &str {
        match self {
            Self::Always(text) | Self::IfAny(text) => text,
            Self::Named(text) => text,
        }
    }
}

/// Bytes of a log that are escaped at one time.
const PIECE: u64 = 16 << 10;

/// Copies a log to a terminal. Its lines and tabs stay.
///
/// # Errors
/// When it cannot be read or written.
pub fn log(mut from: impl Read, out: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    loop {
        let read = from.by_ref().take(PIECE).read_to_end(&mut text);
        let is_last = !matches!(read, Ok(1..));
        // What was read before an error is told, too.
        text = piece(&text, is_last, out)?;
        if read? == 0 {
            return Ok(());
        }
    }
}

/// Writes a piece of a log, and returns the character at its end that the next piece completes.
fn piece(text: &[u8], is_last: bool, out: &mut impl Write) -> io::Result<Vec<u8>> {
    let mut chunks = text.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.write_all(escaped(chunk.valid(), &['\n', '\t']).as_bytes())?;
        match chunk.invalid() {
            [] => {}
            cut if !is_last && chunks.peek().is_none() => return Ok(cut.to_vec()),
            _ => out.write_all("\u{fffd}".as_bytes())?,
        }
    }
    Ok(Vec::new())
}

/// Prints a table. Each column is as wide as its longest cell; every row has a cell for each head.
pub fn table(out: &mut impl Write, heads: &[ColumnHead], rows: &[Vec<String>]) -> std::io::Result<()> {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let heads_told: Vec<Cow<'_, str>> = heads.iter().map(|head| printable(head.text())).collect();
    let column = |i: usize| rows.iter().filter_map(move |row| row.get(i));
    let is_shown = |i: &usize, head: &ColumnHead| {
        !matches!(head, ColumnHead::IfAny(_)) || column(*i).any(|cell| !cell.is_empty())
    };
    let width = |i: usize| {
        let cells = column(i).chain(heads_told.get(i));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let shown: Vec<(usize, usize)> = (heads.iter().enumerate())
        .filter(|(i, head)| is_shown(i, head))
        .map(|(i, _)| (i, width(i)))
        .collect();
    let mut write = |row: &[Cow<'_, str>]| {
        let cells =
            shown.iter().map(|(i, width)| format!("{:width$}", row.get(*i).map_or("", |cell| &**cell)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    write(&heads_told)?;
    rows.iter().try_for_each(|row| write(row))
}

/// Prints JSON or YAML to standard output, so that nothing in it controls a terminal. JSON has
/// escapes wherever it goes, because it says the same with them. YAML has those that its serializer
/// makes, and the others, which make it other text, on a terminal only.
pub fn value(out: &mut impl Write, value: &impl Serialize, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Yaml => {
            let text = serde_saphyr::to_string(value)?;
            write!(out, "{}", yaml(&text, io::stdout().is_terminal()))?;
        }
        Output::Json | Output::Table => {
            writeln!(out, "{}", escaped_json(&serde_json::to_string_pretty(value)?))?;
        }
    }
    Ok(())
}

fn yaml(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal { escaped(text, &['\n', '\t']) } else { Cow::Borrowed(text) }
}

/// An age such as `5s`, `12m`, `3h`, `2d`.
pub fn age(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        s @ 0..=119 => format!("{s}s"),
        s @ 120..=7199 => format!("{}m", s / 60),
        s @ 7200..=172_799 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    const BAD: &str = "a\x1b[2J\u{9b}1m\r\n\x07\tz\u{e4}";
    const TOLD: &str = "a\\u{1b}[2J\\u{9b}1m\\r\\n\\u{7}\\tz\u{e4}";

    #[test]
    fn no_cell_controls_the_terminal() {
        let rows = [vec![BAD.to_owned(), "x".to_owned()], vec!["b".to_owned(), "\x1b]0;t\x07".to_owned()]];
        let mut out = Vec::new();
        table(&mut out, &[ColumnHead::Always("NAME"), ColumnHead::Named("L\x1b[1m".to_owned())], &rows)
            .unwrap();
        let said = String::from_utf8(out).unwrap();
        let width = TOLD.chars().count();
        let expected = [
            format!("{:width$}  L\\u{{1b}}[1m\n", "NAME"),
            format!("{TOLD}  x\n"),
            format!("{:width$}  \\u{{1b}}]0;t\\u{{7}}\n", "b"),
        ];
        assert_eq!(said, expected.concat());
    }

    #[test]
    fn json_and_yaml_of_what_others_wrote_control_no_terminal() {
        let steers = |c: char| c != '\n' && escaped(c.encode_utf8(&mut [0; 4]), &[]).len() > c.len_utf8();
        let bad: String =
            ('\0'..='\u{ffff}').filter(|c| steers(*c)).chain(['\n', '"', '\\', '\u{e4}']).collect();
        for c in ['\u{1b}', '\u{7f}', '\u{9b}', '\u{200b}', '\u{202e}', '\u{2028}', '\u{2066}', '\u{feff}'] {
            assert!(bad.contains(c), "{c:?}");
        }
        let wanted = serde_json::json!({"a": [bad, "plain"], bad.clone(): 1});
        let mut out = Vec::new();
        value(&mut out, &wanted, Output::Json).unwrap();
        let said = String::from_utf8(out).unwrap();
        assert!(!said.contains(steers), "{said}");
        assert!(said.contains("\\u009b") && said.contains("\\u202e") && said.contains('\u{e4}'), "{said}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap(), wanted, "it says the same");
        let text = serde_saphyr::to_string(&wanted).unwrap();
        let told = yaml(&text, true);
        assert!(!told.contains(steers) && told.lines().count() > 1, "{told}");
        assert_eq!(yaml(&text, false), text);
    }

    /// A pipe or a connection whose other end is closed.
    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_output_is_no_fault_and_a_broken_connection_is_one() {
        let rows = [vec!["a".to_owned()]];
        let told = |out: &mut dyn Write| -> anyhow::Result<u8> {
            let mut out = io::BufWriter::new(out);
            table(&mut out, &[ColumnHead::Always("NAME")], &rows)?;
            out.flush().map(|()| 1).context("the table")
        };
        assert_eq!(unless_closed(told(&mut Marked(Vec::new())), 0).unwrap(), 1);
        assert_eq!(unless_closed(told(&mut Marked(Broken)), 0).unwrap(), 0);
        assert!(unless_closed(told(&mut Broken), 0).is_err(), "as a connection to the API server");
    }

    /// Gives one byte at a time, and an error at the end.
    struct Dripping<'a>(&'a [u8], bool);

    impl Read for Dripping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() && self.1 {
                return Err(io::Error::other("cut off"));
            }
            let length = buffer.len().min(1);
            self.0.read(buffer.get_mut(..length).unwrap_or_default())
        }
    }

    #[test]
    fn a_log_keeps_its_lines_and_controls_no_terminal() {
        let told = |bytes: &[u8], is_cut: bool| {
            let mut out = Vec::new();
            let done = log(Dripping(bytes, is_cut), &mut out);
            assert_eq!(done.is_err(), is_cut);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(told(b"one\n\ttwo\r\n\x1b[2J", false), "one\n\ttwo\\r\n\\u{1b}[2J");
        assert_eq!(told(b"x\x9b1m\xc3", false), "x\u{fffd}1m\u{fffd}");
        assert_eq!(told(b"half", true), "half");
        // A character lies across two pieces.
        let long = format!("{}\u{20ac}end", "a".repeat(PIECE as usize - 1));
        assert_eq!(told(long.as_bytes(), false), long);
        assert_eq!(told(b"", false), "");
    }

    #[test]
    fn columns_are_as_wide_as_they_have_to_be_and_empty_ones_may_go() {
        let heads = [
            ColumnHead::Always("NAME"),
            ColumnHead::IfAny("CLASS"),
            ColumnHead::Always("PLACE"),
            ColumnHead::IfAny("WHY"),
        ];
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let print = |rows: &[Vec<String>]| {
            let mut out = Vec::new();
            table(&mut out, &heads, rows).map(|()| String::from_utf8_lossy(&out).into_owned()).ok()
        };
        let rows = [row(["größte", "", "", ""]), row(["b", "", "", "so"])];
        assert_eq!(print(&rows).as_deref(), Some("NAME    PLACE  WHY\ngrößte\nb              so\n"));
        assert_eq!(print(&[]).as_deref(), Some("NAME  PLACE\n"));
    }
}
