//! Sockets to listen on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Listens on an address. `[::]` means all addresses of both families, or of IPv4 where there is no
/// IPv6.
///
/// # Errors
/// When the address cannot be used.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address).or_else(|error| {
        if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) || error.kind() == std::io::ErrorKind::AddrInUse
        {
            return Err(error);
        }
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
