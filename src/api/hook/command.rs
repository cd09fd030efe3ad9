//! Checks of a hook's command and time-out.

use std::time::Duration;

use berth_core::hook::TIMEOUT;
use berth_core::limits;
use berth_core::violation::{Field, Violations};

use crate::GoDuration;
use crate::duration::duration;

/// Is the command not empty, and within the limits?
pub(super) fn check(command: &[String], at: &Field, found: &mut Violations) {
    let bytes: usize = command.iter().map(String::len).sum();
    let way_out = "put them into a script that the container has";
    found.require(command.first().is_some_and(|word| !word.is_empty()), at, "names no command");
    found.limit(command.len(), limits::COMMAND_WORDS, at, way_out);
    let message = format!("has {bytes} bytes, and at most {} are taken: {way_out}", limits::COMMAND);
    found.require(bytes <= limits::COMMAND, at, message);
}

/// `way_out`: the longest time-out, and what to do instead.
pub(super) fn timeout(
    text: Option<&GoDuration>,
    most: Duration,
    way_out: &str,
    at: &Field,
    found: &mut Violations,
) -> Duration {
    let timeout = duration(text, at, found).unwrap_or(TIMEOUT);
    found.require(timeout <= most, at, format!("is longer than {way_out}"));
    timeout.min(most)
}
