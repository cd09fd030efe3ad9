//! Free loopback ports.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use anyhow::Context as _;

/// Below the range from which systems usually take ports for outgoing connections: one that is free
/// now will most likely still be free when a program binds it.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port on which no process listens, given once in this process.
///
/// # Errors
/// When all are taken.
pub fn free() -> anyhow::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Processes that run at the same time begin at different places.
    let start = std::process::id().wrapping_mul(97);
    let candidates =
        (0..COUNT).map(|i| FIRST + (start.wrapping_add(i)) % COUNT).filter_map(|p| u16::try_from(p).ok());
    let port = candidates
        .filter(|port| !given.contains(port))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no loopback port is free")?;
    given.insert(port);
    Ok(port)
}
