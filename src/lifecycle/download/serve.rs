//! Serves files of folders by signed links, over HTTPS with the webhooks' certificate, or over
//! plain HTTP behind a proxy. Every replica of the controller does, not only the leader, because
//! whoever comes by a Service does not know who leads.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use berth_api::velero::BackupStorageLocation;
use berth_certs::{Bundle, CurrentKey};
use berth_webhooks::Intake;
use berth_webhooks::server::serve_files;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use kube::api::Api;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::links::{LinkChecker, LinkClaims, Links, PATH};
use crate::certificates::{LEAF_CERTIFICATE, LEAF_KEY, text};
use crate::pace::paced;
use crate::storage::{BackupLayout, Opener};
use crate::text::chain;

/// Files that are sent at the same time. Each takes a buffer, and a thread while it reads.
const AT_ONCE: usize = 32;
/// Bytes that are read at once.
const CHUNK: usize = 256 * 1024;
/// How long the sending of one file may take.
const LONGEST: Duration = Duration::from_secs(3600);
const CALL: Duration = Duration::from_secs(10);
/// How often the certificate is read again, and how often while there is none.
const RELOAD: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(100);

struct Server {
    checker: LinkChecker,
    opener: Opener,
    places: Arc<Semaphore>,
}

/// The query of a link.
#[derive(Debug, PartialEq, Eq)]
struct Signed<'a> {
    expires: i64,
    signature: &'a str,
}

impl<'a> Signed<'a> {
    fn parse(query: &'a str) -> Option<Self> {
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        Some(Self { expires: value("expires")?.parse().ok()?, signature: value("signature")? })
    }
}

/// The bytes that a Range header asks for, up to the end if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestedRange {
    first: u64,
    last: Option<u64>,
}

impl RequestedRange {
    /// `None`: the whole file is sent, as for any header that this does not know.
    fn parse(header: &str) -> Option<Self> {
        let (first, last) = header.trim().strip_prefix("bytes=")?.split_once('-')?;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u64>().ok()).flatten()
        };
        let first = number(first)?;
        let last = if last.is_empty() { None } else { Some(number(last)?) };
        last.is_none_or(|last| first <= last).then_some(Self { first, last })
    }

    /// Of a file of that length; empty if it ends before.
    fn range(self, length: u64) -> Range<u64> {
        let end = self.last.map_or(length, |last| last.saturating_add(1).min(length));
        self.first.min(end)..end
    }
}

/// Serves in the background until `stop`.
///
/// # Errors
/// When the address is taken.
pub fn serve(
    address: SocketAddr,
    links: Links,
    opener: Opener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let listener = crate::listen::listen(address)
        .with_context(|| format!("--download-address {address} cannot be used"))?;
    let is_plain = links.url.starts_with("http://");
    let router = router(links.clone(), opener);
    let intake = Arc::new(Intake::of_health());
    tokio::spawn(async move {
        let served = if is_plain {
            serve_files(listener, None, router, intake, stop.cancelled_owned()).await
        } else {
            let current = Arc::new(CurrentKey::default());
            let tls = match current.server_config(None) {
                Ok(tls) => Arc::new(tls),
                Err(error) => {
                    warn!(error = chain(&error), "cannot serve downloads");
                    return;
                }
            };
            tokio::select! {
                () = follow(&links, &current) => Ok(()),
                served = serve_files(listener, Some(tls), router, intake, stop.cancelled_owned()) => served,
            }
        };
        if let Err(error) = served {
            warn!(error = chain(&error), "the server of downloads ended");
        }
    });
    Ok(())
}

pub(super) fn router(links: Links, opener: Opener) -> Router {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let server = Arc::new(Server { checker: LinkChecker::new(links), opener, places });
    let route = format!("{PATH}/{{location}}/{{*key}}");
    Router::new().route(&route, get(answer)).with_state(server)
}

/// Keeps the certificate that is served current. Runs for ever.
async fn follow(links: &Links, current: &CurrentKey) {
    let mut seen = String::new();
    loop {
        match links.read().await {
            Ok(secret) => {
                let (certificate, key) = (text(&secret, LEAF_CERTIFICATE), text(&secret, LEAF_KEY));
                if !certificate.is_empty() && certificate != seen {
                    let provider = rustls::crypto::ring::default_provider();
                    match Bundle::parse(certificate.as_bytes(), key.as_bytes(), &provider) {
                        Ok(bundle) => {
                            info!(not_after = %bundle.not_after, "swapped the certificate of downloads");
                            current.set(bundle.key);
                        }
                        Err(error) => {
                            warn!(
                                error = chain(&error),
                                "keeping the certificate of downloads: that of the Secret cannot be served"
                            );
                        }
                    }
                    certificate.clone_into(&mut seen);
                }
            }
            Err(error) if current.is_set() => {
                warn!(error = format!("{error:#}"), "could not read the certificate of downloads");
            }
            // The leader is still making it.
            Err(_) => {}
        }
        sleep(if current.is_set() { paced(RELOAD) } else { SOON }).await;
    }
}

async fn answer(
    State(server): State<Arc<Server>>,
    Path((location, key)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let Some(signed) = Signed::parse(query.as_deref().unwrap_or_default()) else {
        return (StatusCode::FORBIDDEN, "this is no link that berth has made\n").into_response();
    };
    let asked = headers.get(header::RANGE).and_then(|value| RequestedRange::parse(value.to_str().ok()?));
    match server.file(&location, &key, &signed, asked).await {
        Ok(response) => response,
        Err((status, why)) => (status, why.to_owned() + "\n").into_response(),
    }
}

type HttpRefusal = (StatusCode, &'static str);

impl Server {
    async fn file(
        &self,
        location: &str,
        key: &str,
        signed: &Signed<'_>,
        asked: Option<RequestedRange>,
    ) -> Result<Response, HttpRefusal> {
        let refused =
            (StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be read: see the log of berth controller");
        let claimed = LinkClaims { location, key, expires: signed.expires };
        let is_valid = self.checker.is_valid(&claimed, signed.signature, Timestamp::now()).await;
        if !is_valid.map_err(|_| refused)? {
            return Err((
                StatusCode::FORBIDDEN,
                "the link is not valid, or no longer: create another DownloadRequest",
            ));
        }
        // From here on it is berth that has written the names.
        let failed = |why: &str| {
            warn!(location, key, error = why, "could not serve a download");
            refused
        };
        let unavailable = (StatusCode::SERVICE_UNAVAILABLE, "too much is being downloaded: try again later");
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| unavailable)?;
        let missing = (StatusCode::NOT_FOUND, "there is no such file");
        let Links { client, namespace, .. } = &self.checker.links;
        let api: Api<BackupStorageLocation> = Api::namespaced(client.clone(), namespace);
        let found = timeout(CALL, api.get_opt(location)).await.map_err(|_| failed("no answer in time"))?;
        let location = found.map_err(|error| failed(&chain(&error)))?.ok_or(missing)?;
        let path = BackupLayout::path(location.spec.object_storage.prefix.as_deref(), key);
        let opener = self.opener.clone();
        let opened = spawn_blocking(move || {
            let found = opener.file(&location, &path)?;
            let at = |mut file: std::fs::File| {
                let length = file.metadata()?.len();
                let range = asked.map_or(0..length, |asked| asked.range(length));
                file.seek(SeekFrom::Start(range.start))?;
                Ok::<_, std::io::Error>((file, length, range))
            };
            Ok::<_, crate::storage::OpenError>(found.map(at))
        });
        let opened = opened.await.map_err(|error| failed(&chain(&error)))?;
        let Some(opened) = opened.map_err(|error| failed(&chain(&error)))? else {
            return Err(missing);
        };
        let (file, length, range) = opened.map_err(|error| failed(&chain(&error)))?;
        if asked.is_some() && range.is_empty() {
            return Err((StatusCode::RANGE_NOT_SATISFIABLE, "the file ends before these bytes"));
        }
        let sent = range.end.saturating_sub(range.start);
        let headers = [
            (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
            (header::CONTENT_LENGTH, sent.to_string()),
            (header::CACHE_CONTROL, "no-store".to_owned()),
            (header::ACCEPT_RANGES, "bytes".to_owned()),
        ];
        let body = Body::from_stream(chunks(file, sent, place));
        if asked.is_none() {
            return Ok((headers, body).into_response());
        }
        let last = range.end.saturating_sub(1);
        let part = [(header::CONTENT_RANGE, format!("bytes {}-{last}/{length}", range.start))];
        Ok((StatusCode::PARTIAL_CONTENT, headers, part, body).into_response())
    }
}

/// The next bytes of a file, as many as it had when it was opened. `place`: until it is sent.
fn chunks(
    file: std::fs::File,
    length: u64,
    place: OwnedSemaphorePermit,
) -> impl futures::Stream<Item = std::io::Result<Bytes>> + Send {
    let until = Instant::now() + LONGEST;
    stream::try_unfold((file, length, place), move |(mut file, left, place)| async move {
        if left == 0 {
            return Ok(None);
        }
        if Instant::now() >= until {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
        }
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
        let read = spawn_blocking(move || {
            let mut bytes = vec![0; wanted];
            let count = file.read(&mut bytes)?;
            bytes.truncate(count);
            Ok::<_, std::io::Error>((file, bytes))
        });
        let (file, bytes) = read.await.map_err(std::io::Error::other)??;
        let count = u64::try_from(bytes.len()).unwrap_or(0);
        if count == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        Ok(Some((Bytes::from(bytes), (file, left.saturating_sub(count), place))))
    })
}
