//! Limits on connections, bytes of bodies, and decisions, each in total and for one client address.
//!
//! Any pod can reach the port unless a NetworkPolicy or a client authority keeps it out. Each
//! address has a limit of its own, so that one client cannot use up all capacity. Requests beyond a
//! limit are turned away at once, and the API server then follows the failurePolicy: a Backup is
//! let in, and the controller queues it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request};
use http::StatusCode;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// An UPDATE carries two objects, and the API server takes objects of up to 1.5 MiB.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Each connection is a file descriptor, of which a process has 1024 by default.
const CONNECTIONS: usize = 768;
/// An API server speaks HTTP/1.1 to webhooks: each review under way is a connection, and some
/// connections are kept for the next reviews. Several API servers may share one address.
const CONNECTIONS_OF_ADDRESS: usize = 256;
/// On the port of probes and metrics, where each connection carries one short request.
const CONNECTIONS_OF_HEALTH: usize = 128;
const CONNECTIONS_OF_HEALTH_AND_ADDRESS: usize = 16;
/// Requests whose body is being read or that are being answered.
const REQUESTS: usize = 768;
const REQUESTS_OF_ADDRESS: usize = 256;
const KIB: usize = 1024;
/// Bodies that are in memory at the same time, in KiB.
const BODIES: usize = 48 * KIB;
const BODIES_OF_ADDRESS: usize = 24 * KIB;
/// Decisions at the same time that read the whole queue, or that parse a large body, because a
/// parsed body is many times as large.
const DECISIONS_OF_ADDRESS: usize = 4;
const DECISIONS: usize = 8;

/// Why a request was turned away. Also the label `why`.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue, thiserror::Error)]
pub enum TurnedAway {
    #[error("the body is larger than {BODY_LIMIT} bytes")]
    TooLarge,
    #[error("too many bytes of reviews are under way: ask again")]
    Full,
    #[error("the body did not come in time")]
    Slow,
    #[error("the body broke off")]
    BrokenOff,
    #[error("the review took too long: ask again")]
    Late,
}

impl TurnedAway {
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Full | Self::Late => StatusCode::SERVICE_UNAVAILABLE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff => StatusCode::BAD_REQUEST,
        }
    }
}

/// Permits from both limits: the total and the address's own.
#[derive(Debug)]
struct IntakePermits {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

/// The limits, in total or for one address.
#[derive(Debug)]
struct IntakeLimits {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    /// In KiB.
    bodies: Arc<Semaphore>,
    decisions: Arc<Semaphore>,
}

impl IntakeLimits {
    fn new(connections: usize, requests: usize, bodies: usize, decisions: usize) -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self {
            connections: of(connections),
            requests: of(requests),
            bodies: of(bodies),
            decisions: of(decisions),
        }
    }

    fn of_address(connections: usize) -> Self {
        Self::new(connections, REQUESTS_OF_ADDRESS, BODIES_OF_ADDRESS, DECISIONS_OF_ADDRESS)
    }
}

/// The limits of one port of a replica, and what is in use of them.
#[derive(Debug)]
pub struct Intake {
    all: IntakeLimits,
    connections: usize,
    connections_of_address: usize,
    /// The limits of each connected address.
    addresses: Mutex<HashMap<IpAddr, Arc<IntakeLimits>>>,
    refused: Counter,
}

impl Default for Intake {
    fn default() -> Self {
        Self::of(CONNECTIONS, CONNECTIONS_OF_ADDRESS)
    }
}

/// An accepted connection. Dropping it frees its place.
#[derive(Debug)]
pub struct Seat {
    intake: Arc<Intake>,
    address: IpAddr,
    taken: Option<IntakePermits>,
}

/// A complete body, and the permits that it holds.
#[derive(Debug)]
pub struct Body {
    pub bytes: Bytes,
    from: Arc<IntakeLimits>,
    _taken: Vec<IntakePermits>,
}

/// The permit to decide on a body.
#[derive(Debug)]
pub struct DecisionPermit(#[expect(dead_code, reason = "held until it is dropped")] IntakePermits);

impl Intake {
    fn of(connections: usize, connections_of_address: usize) -> Self {
        let all = IntakeLimits::new(connections, REQUESTS, BODIES, DECISIONS);
        Self {
            all,
            connections,
            connections_of_address,
            addresses: Mutex::default(),
            refused: Counter::default(),
        }
    }

    /// The limits of the port of probes and metrics.
    pub fn of_health() -> Self {
        Self::of(CONNECTIONS_OF_HEALTH, CONNECTIONS_OF_HEALTH_AND_ADDRESS)
    }

    pub(crate) fn register(&self, admission: &mut Registry) {
        let help = "Connections refused because there were too many, in total or from one address";
        admission.register("connections_refused", help, self.refused.clone());
    }

    /// Takes a place for a connection. `None`: a limit is reached.
    pub fn connect(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let seat = self.seat(address);
        if seat.is_none() {
            self.refused.inc();
        }
        seat
    }

    fn seat(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let mut addresses = self.addresses.lock();
        if addresses.len() >= self.connections {
            addresses.retain(|_, room| !self.is_unused(room));
        }
        let all = Arc::clone(&self.all.connections).try_acquire_owned().ok()?;
        let room = || Arc::new(IntakeLimits::of_address(self.connections_of_address));
        let room = addresses.entry(address).or_insert_with(room);
        let own = Arc::clone(&room.connections).try_acquire_owned().ok()?;
        Some(Seat { intake: Arc::clone(self), address, taken: Some(IntakePermits { _all: all, _own: own }) })
    }

    fn room_of(&self, request: &Request) -> Arc<IntakeLimits> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let known = peer.and_then(|peer| self.addresses.lock().get(&peer.0.ip().to_canonical()).cloned());
        // A request without a connection comes from this process: a test.
        known.unwrap_or_else(|| Arc::new(IntakeLimits::of_address(self.connections_of_address)))
    }

    /// The address has no connection, and no request under way.
    fn is_unused(&self, room: &Arc<IntakeLimits>) -> bool {
        Arc::strong_count(room) == 1 && room.connections.available_permits() == self.connections_of_address
    }

    /// Reads the body of a request. Only bytes that have arrived count against the limits, whatever
    /// the `Content-Length` is. An API server has the whole body before it sends a request.
    ///
    /// # Errors
    /// When the body is too large, does not arrive within `most`, or exceeds a limit.
    pub async fn read(&self, request: Request, most: Duration) -> Result<Body, TurnedAway> {
        let from = self.room_of(&request);
        let mut body = request.into_body();
        let reading = async {
            let (mut bytes, mut room, mut taken) = (Vec::new(), 0, Vec::new());
            taken.push(take(&self.all.requests, &from.requests, 1).ok_or(TurnedAway::Full)?);
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(|_| TurnedAway::BrokenOff)?.into_data() else { continue };
                let length = bytes.len() + data.len();
                if length > BODY_LIMIT {
                    return Err(TurnedAway::TooLarge);
                }
                if length > room {
                    // In strides, because a body may arrive byte by byte.
                    let stride = (length - room).div_ceil(KIB).max(room / KIB / 4).max(4);
                    taken.push(take(&self.all.bodies, &from.bodies, stride).ok_or(TurnedAway::Full)?);
                    room += stride * KIB;
                }
                bytes.extend_from_slice(&data);
            }
            Ok((Bytes::from(bytes), taken))
        };
        let (bytes, taken) = timeout(most, reading).await.map_err(|_| TurnedAway::Slow)??;
        Ok(Body { bytes, from, _taken: taken })
    }

    /// Waits until this body may be decided on. Because of the limit for each address, a client
    /// that sends many requests delays itself more than others.
    ///
    /// # Errors
    /// When the wait takes longer than `most`.
    pub async fn turn(&self, body: &Body, most: Duration) -> Result<DecisionPermit, TurnedAway> {
        let waiting = async {
            let own = Arc::clone(&body.from.decisions).acquire_owned().await.map_err(|_| TurnedAway::Late)?;
            let all = Arc::clone(&self.all.decisions).acquire_owned().await.map_err(|_| TurnedAway::Late)?;
            Ok(DecisionPermit(IntakePermits { _all: all, _own: own }))
        };
        timeout(most, waiting).await.map_err(|_| TurnedAway::Late)?
    }
}

fn take(all: &Arc<Semaphore>, own: &Arc<Semaphore>, count: usize) -> Option<IntakePermits> {
    let count = u32::try_from(count).ok()?;
    let own = Arc::clone(own).try_acquire_many_owned(count).ok()?;
    let all = Arc::clone(all).try_acquire_many_owned(count).ok()?;
    Some(IntakePermits { _all: all, _own: own })
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut addresses = self.intake.addresses.lock();
        drop(self.taken.take());
        if addresses.get(&self.address).is_some_and(|room| self.intake.is_unused(room)) {
            addresses.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::body::Body as HttpBody;

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// As it arrives at a socket of both address families.
    fn from(last: u8, body: HttpBody) -> Request {
        let mut request = Request::new(body);
        let address = Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 1))));
        request
    }

    #[test]
    fn one_address_takes_its_share_of_connections_and_leaves_the_rest() {
        let intake = Arc::new(Intake::default());
        let held: Vec<Seat> = std::iter::from_fn(|| intake.connect(address(1))).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_ADDRESS);
        assert!(intake.connect(address(2)).is_some());
        drop(held);
        assert!(intake.addresses.lock().is_empty(), "nothing is kept of who is gone");
        let many = (0..=u8::MAX).flat_map(|last| {
            let intake = &intake;
            (0..16).map_while(move |_| intake.connect(address(last)))
        });
        let many: Vec<Seat> = many.collect();
        assert_eq!(many.len(), CONNECTIONS);
    }

    #[tokio::test]
    async fn bodies_take_room_as_they_come_and_one_address_does_not_take_all_of_it() {
        let intake = Arc::new(Intake::default());
        let _seats = [intake.connect(address(1)).unwrap(), intake.connect(address(2)).unwrap()];
        let large = || HttpBody::from(vec![b' '; BODY_LIMIT]);
        let mut held = Vec::new();
        let why = loop {
            match intake.read(from(1, large()), SOON).await {
                Ok(body) => held.push(body),
                Err(why) => break why,
            }
        };
        assert_eq!((why, held.len()), (TurnedAway::Full, BODIES_OF_ADDRESS * KIB / BODY_LIMIT));
        assert_eq!(intake.read(from(2, large()), SOON).await.unwrap().bytes.len(), BODY_LIMIT);
        held.clear();
        assert!(intake.read(from(1, large()), SOON).await.is_ok());
        let larger = HttpBody::from(vec![b' '; BODY_LIMIT + 1]);
        assert_eq!(intake.read(from(1, larger), SOON).await.unwrap_err(), TurnedAway::TooLarge);
        assert_eq!(intake.all.bodies.available_permits(), BODIES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for_and_takes_no_room() {
        let intake = Arc::new(Intake::default());
        let never = http_body_util::StreamBody::new(futures::stream::pending::<
            Result<http_body::Frame<Bytes>, std::io::Error>,
        >());
        assert_eq!(intake.read(from(1, HttpBody::new(never)), SOON).await.unwrap_err(), TurnedAway::Slow);
        assert_eq!(intake.all.bodies.available_permits(), BODIES);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_much_waits_for_himself() {
        let intake = Arc::new(Intake::default());
        let _seats = [intake.connect(address(1)).unwrap(), intake.connect(address(2)).unwrap()];
        let most = Duration::from_millis(5);
        let mine = intake.read(from(1, HttpBody::from("x")), SOON).await.unwrap();
        let mut turns = Vec::new();
        for _ in 0..DECISIONS_OF_ADDRESS {
            turns.push(intake.turn(&mine, most).await.unwrap());
        }
        assert_eq!(intake.turn(&mine, most).await.unwrap_err(), TurnedAway::Late);
        let other = intake.read(from(2, HttpBody::from("x")), SOON).await.unwrap();
        assert!(intake.turn(&other, most).await.is_ok());
        turns.pop();
        assert!(intake.turn(&mine, most).await.is_ok());
    }
}
