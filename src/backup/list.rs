//! Lists one type in one place, page by page. A page is read to its end before its objects are
//! handed on, so that a slow store does not hold a connection to the API server open. How much is
//! read ahead is bounded.

mod found;
mod progress;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_core::revision::{OtherRevisionReason, RevisionFallback, after_refusal};
use berth_core::selection::ResourceType;
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use kube::Client;
use kube::api::{ListParams, VersionMatch};
use kube::client::Body;
use kube::core::Request;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::reading::ReadRetries;
use super::revision::Revision;
use super::split::{ListHead, Splitter};

pub use super::reading::ListError;
pub use found::{ListedObject, Namespace, ObjectSink};
pub use progress::ListProgress;

/// Longest wait for the first byte of an answer, and between two frames of it.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest time for a whole answer. The API server itself ends a list after a minute.
const ANSWER: Duration = Duration::from_secs(120);
/// Pause before asking again a server whose cache lags behind the revision.
const LAG: Duration = Duration::from_secs(1);
/// How long the probe of the API server is tried.
const PROBE: Duration = Duration::from_secs(10);
/// Requests of this process under way at one time, of all runs. A consistent list waits for the
/// server's cache of that type, up to 100 ms while anything is being written; concurrently, the
/// types of a small backup wait once and not one after the other.
pub const REQUESTS_AT_ONCE: usize = 32;
/// Up to this many namespaces are listed one by one, because a page of the whole cluster would
/// mostly hold objects of other namespaces.
pub const FEW_NAMESPACES: usize = 4;
/// Bytes of pages that one run has read and not handed on yet.
const READ_AHEAD: usize = 32 * 1024 * 1024;
/// Most bytes of one page. A larger page is requested again with fewer objects.
const PAGE: usize = 8 * 1024 * 1024;
/// What a list reserves of [`READ_AHEAD`] until its pages are known to be larger. A power of two,
/// as is a whole page.
const FIRST_PAGE: usize = 256 * 1024;
/// Most objects of a page, however few were asked for, because the metadata of each object takes
/// memory, too.
const PAGE_ITEMS: usize = 100_000;
/// After so many types that failed for the whole time for retries, a run waits less long for
/// further ones: each may cost a minute, and anybody who may create definitions can create hundreds
/// of them.
const IN_VAIN: usize = 10;
/// How long it waits then: long enough for what fails for a moment.
const HASTE: Duration = Duration::from_secs(10);
/// Most bytes of a refusal that are read.
const REFUSAL: usize = 64 * 1024;

/// Reads from the API server. Clones belong to the same run.
#[derive(Clone)]
pub struct Lister {
    client: Client,
    pub page_size: u32,
    /// How long a failing read is tried again.
    retry: Duration,
    /// Permits for requests, shared by the whole process.
    requests: Arc<Semaphore>,
    /// Permits for bytes read ahead.
    room: Arc<Semaphore>,
    /// Number of types that failed for the whole time for retries.
    in_vain: Arc<AtomicUsize>,
    /// The revision as of which lists are read.
    revision: Option<Arc<Revision>>,
    /// What the API server refused to let this lister read (403).
    refused: Arc<Mutex<BTreeSet<String>>>,
}

/// The objects of one request.
struct ListPage {
    items: Vec<Result<ListedObject, serde_json::Error>>,
    head: ListHead,
    /// Dropped when all objects of the page have been handed on.
    room: OwnedSemaphorePermit,
}

impl Lister {
    /// The lister of a new run.
    pub fn new(client: Client, page_size: u32, retry: Duration, requests: Arc<Semaphore>) -> Self {
        let room = Arc::new(Semaphore::new(READ_AHEAD));
        Self {
            client,
            page_size,
            retry,
            requests,
            room,
            in_vain: Arc::default(),
            revision: None,
            refused: Arc::default(),
        }
    }

    /// Reads lists as of this revision, if any, where the API server has it.
    #[must_use]
    pub fn as_of(self, revision: Option<Arc<Revision>>) -> Self {
        Self { revision, ..self }
    }

    /// A lister with its own `requests` permits, for reads that must not wait while a list that
    /// holds permits is held up.
    #[must_use]
    pub fn apart(&self, requests: usize) -> Self {
        Self { requests: Arc::new(Semaphore::new(requests)), ..self.clone() }
    }

    /// What was refused so far (403): qualified names of types, or what else was read.
    pub fn refused(&self) -> BTreeSet<String> {
        self.refused.lock().clone()
    }

    /// Notes that objects of a type are not as of the revision.
    pub fn note(&self, kind: &ResourceType, apart: OtherRevisionReason) {
        if let Some(revision) = &self.revision {
            revision.note(kind, apart);
        }
    }

    /// The revision to ask for; a continue token has its own.
    fn version(&self, kind: &ResourceType, progress: &ListProgress) -> Option<&str> {
        let revision = self.revision.as_ref().filter(|_| progress.continue_token.is_empty());
        revision.and_then(|revision| revision.of(kind))
    }

    /// Reads one page and hands each object to `taker`. `None` for `namespace`: the whole cluster.
    /// An object may be handed on twice.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut ListProgress,
        taker: &mut impl ObjectSink,
    ) -> Result<(), ListError> {
        let is_patient = self.in_vain.load(Ordering::Relaxed) < IN_VAIN;
        let mut patience = ReadRetries::new(if is_patient { self.retry } else { self.retry.min(HASTE) });
        let (mut apart, mut lagged) = (None, 0);
        let page = loop {
            let version = self.version(kind, progress).filter(|_| apart.is_none());
            let params = self.params(selector, version, progress);
            let tried = self.try_page(kind, namespace, &params, progress, &mut patience, taker).await;
            let error = match tried {
                Ok(Some(page)) => break page,
                Ok(None) => {
                    patience.excuse(taker.ready()).await?;
                    continue;
                }
                Err(error) => error,
            };
            if let ListError::Refused(status) = &error {
                match version.and_then(|_| after_refusal(status.code, &status.message, lagged)) {
                    Some(RevisionFallback::Again) => {
                        lagged += 1;
                        sleep(LAG).await;
                        continue;
                    }
                    Some(RevisionFallback::Latest(why)) => {
                        apart = Some(why);
                        continue;
                    }
                    None if status.code == 410 => {
                        progress.expire(status.metadata.as_ref().and_then(|list| list.continue_.clone()))?;
                        apart = Some(OtherRevisionReason::Expired);
                    }
                    None => {}
                }
            }
            if let Err(error) = self.again(&mut patience, &kind.qualified(), error).await {
                // The pauses grow, so the last attempt of a type that fails at once comes before
                // its time is over.
                if patience.is_last() || patience.spent() >= self.retry {
                    self.in_vain.fetch_add(1, Ordering::Relaxed);
                }
                return Err(error);
            }
            // The server may be unable to serve the revision, whatever its error says.
            if version.is_some() && patience.is_last() {
                apart = Some(OtherRevisionReason::Refused);
            }
        };
        if let Some(revision) = &self.revision {
            revision.came(kind, apart, &page.head.resource_version);
        }
        progress.widen(&page.items, self.page_size);
        taker.ready().await?;
        hand_on(page.items, taker).await?;
        drop(page.room);
        progress.turn(page.head)
    }

    fn params(&self, selector: &str, version: Option<&str>, progress: &ListProgress) -> ListParams {
        ListParams {
            limit: Some(progress.limit.unwrap_or(self.page_size)),
            continue_token: Some(progress.continue_token.clone()).filter(|t| !t.is_empty()),
            label_selector: Some(selector.to_owned()).filter(|s| !s.is_empty()),
            version_match: version.map(|_| VersionMatch::Exact),
            resource_version: version.map(str::to_owned),
            ..ListParams::default()
        }
    }

    /// `None`: the page needs more room than expected and must be requested again.
    async fn try_page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        params: &ListParams,
        progress: &mut ListProgress,
        patience: &mut ReadRetries,
        taker: &mut impl ObjectSink,
    ) -> Result<Option<ListPage>, ListError> {
        let limit = params.limit.unwrap_or(self.page_size);
        let request =
            Request::new(path(kind, namespace)).list(params).map_err(|e| ListError::Request(e.into()))?;
        // Wait before there is a connection, and never while holding room, because two lists could
        // block each other.
        let mut room = patience.excuse(acquire(&self.room, progress.size.max(FIRST_PAGE))).await?;
        let request_slot = patience.excuse(acquire(&self.requests, 1)).await?;
        let mut body = self.send(request.map(Body::from)).await?.into_body();
        let mut splitter = Splitter::default();
        let mut items = Vec::new();
        let (mut size, mut begun, mut is_handed_on) = (0, Instant::now(), false);
        while let Some(bytes) = next_data(&mut body, begun).await? {
            size += bytes.len();
            splitter.push(&bytes);
            while let Some(json) = splitter.next_item()? {
                items.push(ListedObject::parse(json));
            }
            let asked_for = usize::try_from(limit).unwrap_or(usize::MAX);
            if size <= PAGE && items.len() <= PAGE_ITEMS.max(asked_for) {
                if size > room.num_permits() {
                    progress.size = size.next_power_of_two();
                    match try_acquire(&self.room, progress.size - room.num_permits()) {
                        Some(more) => room.merge(more),
                        None => return Ok(None),
                    }
                }
            } else if items.is_empty() && (limit == 1 || is_handed_on) {
                return Err(ListError::TooLarge(PAGE));
            } else if limit > 1 && items.len() <= asked_for && !is_handed_on {
                let fit = u32::try_from(items.len() / 2).unwrap_or(u32::MAX);
                progress.limit = Some(fit.clamp(1, limit / 2));
                return Ok(None);
            } else if !taker.is_ready() {
                return Ok(None);
            } else {
                // This server sends everything at once, whatever limit it is given: hand on now,
                // because there is no room for all of it.
                patience.excuse(hand_on(std::mem::take(&mut items), taker)).await?;
                (size, begun, is_handed_on) = (0, Instant::now(), true);
            }
        }
        let head = splitter.finish()?;
        drop(request_slot);
        Ok(Some(ListPage { items, head, room }))
    }

    /// Gets one object by name; `None` if there is none. `None` for `namespace`: the object is
    /// cluster-scoped.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn get(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<ListedObject>, ListError> {
        let mut patience = ReadRetries::new(self.retry);
        loop {
            let request_slot = patience.excuse(acquire(&self.requests, 1)).await?;
            let tried = self.try_get(kind, namespace, name).await;
            drop(request_slot);
            match tried {
                Ok(found) => {
                    if found.is_some() {
                        self.note(kind, OtherRevisionReason::ByName);
                    }
                    return Ok(found);
                }
                Err(error) => self.again(&mut patience, &kind.qualified(), error).await?,
            }
        }
    }

    async fn try_get(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<ListedObject>, ListError> {
        let request = http::Request::get(format!("{}/{name}", path(kind, namespace))).body(Body::empty());
        let answer = self.send(request.map_err(|e| ListError::Request(e.into()))?).await;
        let mut body = match answer {
            Ok(answer) => answer.into_body(),
            Err(error) if error.code() == Some(404) => return Ok(None),
            Err(error) => return Err(error),
        };
        let json = collect(&mut body, PAGE).await?;
        if json.len() > PAGE {
            return Err(ListError::TooLarge(PAGE));
        }
        ListedObject::parse(json.freeze()).map(Some).map_err(ListError::Object)
    }

    /// Runs any other read with the same retries.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn patiently<T, F>(&self, what: &str, attempt: impl Fn() -> F) -> Result<T, ListError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let mut patience = ReadRetries::new(self.retry);
        loop {
            let error = match timeout(ANSWER, attempt()).await {
                Ok(Ok(read)) => return Ok(read),
                Ok(Err(error)) => ListError::from(error),
                Err(elapsed) => ListError::Unreachable(elapsed.into()),
            };
            self.again(&mut patience, what, error).await?;
        }
    }

    /// Waits for the next attempt. When the time for retries is over, there is one more attempt if
    /// the API server itself is healthy: if that fails, too, the fault is not the API server's as a
    /// whole.
    async fn again(&self, patience: &mut ReadRetries, what: &str, error: ListError) -> Result<(), ListError> {
        let Err(error) = patience.wait(what, error).await else { return Ok(()) };
        if error.is_forbidden() {
            self.refused.lock().insert(what.to_owned());
        }
        if !patience.takes_last(&error) {
            return Err(error);
        }
        self.probe().await
    }

    /// Whether the API server is healthy, accepts our token, and does not throttle us. A list of
    /// one namespace depends on nothing else.
    async fn probe(&self) -> Result<(), ListError> {
        let mut patience = ReadRetries::new(self.retry.min(PROBE));
        loop {
            let request = http::Request::get("/api/v1/namespaces?limit=1").body(Body::empty());
            let request = request.map_err(|e| ListError::Request(e.into()))?;
            let request_slot = patience.excuse(acquire(&self.requests, 1)).await?;
            let answer = self.send(request).await.map(drop);
            drop(request_slot);
            let Err(error) = answer else { return Ok(()) };
            match patience.wait("namespaces", error).await {
                Ok(()) => {}
                // An answer of 403 or 404 shows that it is healthy.
                Err(error) if matches!(error.code(), Some(403 | 404)) => return Ok(()),
                Err(error) if error.code() == Some(401) => return Err(ListError::Token(Box::new(error))),
                Err(error) => return Err(ListError::Gone(Box::new(error))),
            }
        }
    }

    async fn send(&self, request: http::Request<Body>) -> Result<Response<Body>, ListError> {
        let answer = match timeout(SILENCE, self.client.send(request)).await {
            Ok(answer) => answer?,
            Err(elapsed) => return Err(ListError::Unreachable(elapsed.into())),
        };
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, mut body) = answer.into_parts();
        let text = collect(&mut body, REFUSAL).await?;
        Err(ListError::of_answer(head.status.as_u16(), &head.headers, &text))
    }
}

async fn hand_on(
    items: Vec<Result<ListedObject, serde_json::Error>>,
    taker: &mut impl ObjectSink,
) -> Result<(), ListError> {
    for item in items {
        match item {
            Ok(found) => taker.take(found).await?,
            Err(error) => taker.unreadable(error)?,
        }
    }
    Ok(())
}

async fn acquire(of: &Arc<Semaphore>, count: usize) -> Result<OwnedSemaphorePermit, ListError> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    // The semaphores are never closed.
    Arc::clone(of).acquire_many_owned(count).await.map_err(|_| ListError::NobodyTakes)
}

fn try_acquire(of: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    Arc::clone(of).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
}

/// Reads the body, but stops soon after `most` bytes.
async fn collect(body: &mut Body, most: usize) -> Result<BytesMut, ListError> {
    let (mut all, begun) = (BytesMut::new(), Instant::now());
    while let Some(bytes) = next_data(body, begun).await? {
        all.extend_from_slice(&bytes);
        if all.len() > most {
            break;
        }
    }
    Ok(all)
}

/// The next bytes of an answer that has been read since `begun`.
async fn next_data(body: &mut Body, begun: Instant) -> Result<Option<Bytes>, ListError> {
    loop {
        let silence = SILENCE.min(ANSWER.saturating_sub(begun.elapsed()));
        let frame = match timeout(silence, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => frame?,
            Err(elapsed) => return Err(ListError::Unreachable(elapsed.into())),
        };
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
}

/// The URL path at which the API server serves a type.
pub fn path(kind: &ResourceType, namespace: Option<&str>) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    match namespace {
        Some(namespace) => format!("{root}/{}/namespaces/{namespace}/{}", kind.version, kind.resource),
        None => format!("{root}/{}/{}", kind.version, kind.resource),
    }
}

#[cfg(test)]
mod tests;
