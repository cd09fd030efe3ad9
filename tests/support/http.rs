//! Plain HTTP to loopback: health and metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use super::seen;

const PATIENCE: Duration = Duration::from_secs(60);

/// Status and body of a GET.
///
/// # Errors
/// When no server answers, or not in HTTP.
pub fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status in the answer")?;
    seen::note(&format!("GET {path} of {address}"), &format!("{status} {body}"));
    Ok((status, body.to_owned()))
}
