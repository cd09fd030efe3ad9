//! A network for pods: a bridge with addresses of its own, and a namespace for each pod behind it.
//!
//! Nothing leads out of it: no route, no forwarding. The janitor takes it down; it knows what is
//! ours by the name of the throw-away folder.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::binaries::lock_file;
use super::process::in_own_session;

/// Bridge and pods have 10.213.N.0/24.
const PREFIX: [u8; 2] = [10, 213];
/// Last byte of the bridge's address.
const BRIDGE: u8 = 1;

pub struct Network {
    folder: PathBuf,
    /// What is random in the folder's name.
    tag: String,
    third: u8,
    hosts: Mutex<Hosts>,
}

#[derive(Default)]
struct Hosts {
    taken: BTreeSet<u8>,
    last: u8,
}

/// A network namespace with an address.
#[derive(Debug)]
pub struct Place {
    /// As `ip netns` knows it.
    pub namespace: String,
    pub address: Ipv4Addr,
    host: u8,
}

impl Network {
    /// For the janitor with this folder.
    ///
    /// # Errors
    /// When we are not root, or iproute2 is missing.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let tag = name.strip_prefix("berth-").context("the folder is not the janitor's")?.to_owned();
        std::fs::create_dir_all(folder.join("network"))?;
        let mut network = Self { folder: folder.to_owned(), tag, third: 0, hosts: Mutex::default() };
        network.make_bridge().context("pods need a network, which takes root and ip (of iproute2)")?;
        Ok(network)
    }

    fn make_bridge(&mut self) -> anyhow::Result<()> {
        let lock = lock_file("network")?;
        // Until it is closed, no other process takes the network that we find free.
        lock.lock()?;
        let taken = taken()?;
        let start = std::process::id().to_le_bytes()[0];
        self.third = (0..=u8::MAX)
            .map(|i| start.wrapping_add(i))
            .find(|third| !taken.contains(third))
            .with_context(|| format!("every network in {}.{}.0.0/16 is taken", PREFIX[0], PREFIX[1]))?;
        let bridge = self.bridge();
        let (mac, address) = (self.mac(BRIDGE), self.address());
        // With a hardware address of its own it does not take over those of the pods that come and
        // go.
        let lines = format!(
            "link add {bridge} address {mac} type bridge\n\
             address add {address}/24 dev {bridge}\n\
             link set {bridge} up\n"
        );
        self.ip("bridge", &[], &lines)
    }

    fn bridge(&self) -> String {
        format!("br{}", self.tag)
    }

    fn cable(&self, host: u8) -> String {
        format!("v{}-{host}", self.tag)
    }

    /// The same for the same address, so that what neighbours remember stays true.
    fn mac(&self, host: u8) -> String {
        let [a, b] = PREFIX;
        format!("02:{a:02x}:{b:02x}:{:02x}:00:{host:02x}", self.third)
    }

    fn address_of(&self, host: u8) -> Ipv4Addr {
        let [a, b] = PREFIX;
        Ipv4Addr::new(a, b, self.third, host)
    }

    /// Of the bridge: where pods find this process and the API server.
    pub fn address(&self) -> Ipv4Addr {
        self.address_of(BRIDGE)
    }

    /// Makes a place. Waits for programs.
    ///
    /// # Errors
    /// When all addresses are taken, or `ip` fails.
    pub fn attach(&self) -> anyhow::Result<Place> {
        let host = self.take_host()?;
        let namespace = format!("berth-{}-{host}", self.tag);
        let place = Place { namespace, address: self.address_of(host), host };
        let made = self.make(&place);
        if made.is_err() {
            let _ = self.detach(&place);
        }
        made.map(|()| place)
    }

    fn make(&self, place: &Place) -> anyhow::Result<()> {
        let Place { namespace, address, host } = place;
        let (cable, mac, bridge) = (self.cable(*host), self.mac(*host), self.bridge());
        let outside = format!(
            "netns add {namespace}\n\
             link add {cable} type veth peer name eth0 address {mac} netns {namespace}\n\
             link set {cable} master {bridge} up\n"
        );
        self.ip(namespace, &[], &outside)?;
        let inside = format!("link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n");
        self.ip(namespace, &["-n", namespace], &inside)
    }

    /// Removes it. No process may run in it any more.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn detach(&self, place: &Place) -> anyhow::Result<()> {
        let Place { namespace, host, .. } = place;
        // The cable first: the kernel takes its time with what is inside a namespace.
        let lines = format!("link delete {}\nnetns delete {namespace}\n", self.cable(*host));
        let detached = self.ip(namespace, &["-force"], &lines);
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).taken.remove(host);
        detached
    }

    /// The one that was free for longest.
    fn take_host(&self) -> anyhow::Result<u8> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let Hosts { taken, last } = &mut *hosts;
        let host = (0..=u8::MAX)
            .map(|i| last.wrapping_add(1).wrapping_add(i))
            .find(|host| *host > BRIDGE && *host < u8::MAX && !taken.contains(host))
            .context("every address for pods is taken")?;
        taken.insert(host);
        *last = host;
        Ok(host)
    }

    /// The file of commands names the folder, so that the janitor knows a program that is left of
    /// us.
    fn ip(&self, name: &str, options: &[&str], lines: &str) -> anyhow::Result<()> {
        let direction = if options.contains(&"-n") { "inside" } else { "outside" };
        let file = self.folder.join("network").join(format!("{name}-{direction}"));
        std::fs::write(&file, lines)?;
        let mut command = in_own_session(Path::new("ip"));
        command.args(options).arg("-batch").arg(&file).stdin(Stdio::null());
        let output = command.output().context("failed to run setsid (of util-linux)")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip failed:\n{lines}{}", said.trim_end());
        Ok(())
    }
}

/// Third bytes of networks like ours that this machine has already.
fn taken() -> anyhow::Result<BTreeSet<u8>> {
    let mut command = in_own_session(Path::new("ip"));
    let output = command.args(["-json", "-4", "address"]).output().context("failed to run setsid")?;
    ensure!(output.status.success(), "ip: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    let links: Vec<Value> = serde_json::from_slice(&output.stdout).context("ip lists no addresses")?;
    let addresses = links.iter().filter_map(|link| link["addr_info"].as_array()).flatten();
    let addresses = addresses.filter_map(|info| info["local"].as_str()?.parse::<Ipv4Addr>().ok());
    Ok(addresses
        .filter_map(|address| match address.octets() {
            [a, b, third, _] if [a, b] == PREFIX => Some(third),
            _ => None,
        })
        .collect())
}
