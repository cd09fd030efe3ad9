//! One type listed in one place, page after page. A page is read to its end before it is handed on, so that a slow store
//! holds no connection to the API server; how much is read ahead is bounded.

mod found;
mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_core::revision::{Apart, Next, after_refusal};
use berth_core::selection::ResourceType;
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use kube::Client;
use kube::api::{ListParams, VersionMatch};
use kube::client::Body;
use kube::core::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::reading::Patience;
use super::revision::Revision;
use super::split::{ListHead, Splitter};

pub use super::reading::ListError;
pub use found::{ListedObject, ObjectSink};
pub use progress::Progress;

/// Until the first byte of an answer, and between any two frames of it.
const SILENCE: Duration = Duration::from_secs(30);
/// A whole answer. The API server itself ends a list after a minute.
const ANSWER: Duration = Duration::from_secs(120);
/// What a server that lags behind a revision asks for.
const LAG: Duration = Duration::from_secs(1);
/// How long whether the API server itself is well is asked again.
const PROBE: Duration = Duration::from_secs(10);
/// Requests of this process under way at one time, of all runs. A consistent list waits for the server's cache of that type, up
/// to 100 ms while anything is being written: side by side the types of a small backup wait once, not one after the other.
pub const REQUESTS_AT_ONCE: usize = 32;
/// Bytes of pages that one run has read and not handed on yet.
const READ_AHEAD: usize = 32 * 1024 * 1024;
/// Of one page. A larger one is asked for again with fewer objects.
const PAGE: usize = 8 * 1024 * 1024;
/// What a list takes of that until its pages are known to be larger. A power of two, as is a whole page.
const FIRST_PAGE: usize = 256 * 1024;
/// Objects of a page, however few of them were asked for: what is known of each takes room, too.
const PAGE_ITEMS: usize = 100_000;
/// After so many types that were waited for in vain the others of a run are not waited for: each may cost a minute, and whoever may
/// make definitions makes hundreds of them.
const IN_VAIN: usize = 10;
/// Of a refusal.
const REFUSAL: usize = 64 * 1024;

/// How to read. Clones are of the same run.
#[derive(Clone)]
pub struct Lister {
    client: Client,
    pub page_size: u32,
    /// How long a read that fails is tried again.
    retry: Duration,
    /// Those of the process.
    requests: Arc<Semaphore>,
    /// What may be read ahead, in bytes.
    room: Arc<Semaphore>,
    /// Types that were waited for in vain.
    in_vain: Arc<AtomicUsize>,
    /// As of which lists are.
    revision: Option<Arc<Revision>>,
}

/// What one request brought.
struct Page {
    items: Vec<Result<ListedObject, serde_json::Error>>,
    head: ListHead,
    /// Given back when all of it is handed on.
    room: OwnedSemaphorePermit,
}

impl Lister {
    /// Of a new run.
    pub fn new(client: Client, page_size: u32, retry: Duration, requests: Arc<Semaphore>) -> Self {
        let room = Arc::new(Semaphore::new(READ_AHEAD));
        Self { client, page_size, retry, requests, room, in_vain: Arc::default(), revision: None }
    }

    /// Lists are as of this revision, if any, where that can be had.
    #[must_use]
    pub fn as_of(self, revision: Option<Arc<Revision>>) -> Self {
        Self { revision, ..self }
    }

    /// With requests of its own, so many at one time: for whoever needs an answer while a list is held up that has one under way.
    #[must_use]
    pub fn apart(&self, requests: usize) -> Self {
        Self { requests: Arc::new(Semaphore::new(requests)), ..self.clone() }
    }

    /// Objects of a type are not as of the revision.
    pub fn note(&self, kind: &ResourceType, apart: Apart) {
        if let Some(revision) = &self.revision {
            revision.note(kind, apart);
        }
    }

    /// The revision that a request asks for: a page that goes on has it in its token.
    fn version(&self, kind: &ResourceType, progress: &Progress) -> Option<&str> {
        let revision = self.revision.as_ref().filter(|_| progress.continue_token.is_empty());
        revision.and_then(|revision| revision.of(kind))
    }

    /// One page: hands each object to `taker`. `None` for `namespace`: the whole cluster. An object may be handed on twice.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut Progress,
        taker: &mut impl ObjectSink,
    ) -> Result<(), ListError> {
        let is_patient = self.in_vain.load(Ordering::Relaxed) < IN_VAIN;
        let mut patience = Patience::new(if is_patient { self.retry } else { Duration::ZERO });
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
                    Some(Next::Again) => {
                        lagged += 1;
                        sleep(LAG).await;
                        continue;
                    }
                    Some(Next::Latest(why)) => {
                        apart = Some(why);
                        continue;
                    }
                    None if status.code == 410 => {
                        progress.expire(status.metadata.as_ref().and_then(|list| list.continue_.clone()))?;
                        apart = Some(Apart::Expired);
                    }
                    None => {}
                }
            }
            if let Err(error) = self.again(&mut patience, &kind.qualified(), error).await {
                if patience.spent() >= self.retry {
                    self.in_vain.fetch_add(1, Ordering::Relaxed);
                }
                return Err(error);
            }
            // It may be the revision that this server cannot serve, whatever it says.
            if version.is_some() && patience.is_last() {
                apart = Some(Apart::Refused);
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

    fn params(&self, selector: &str, version: Option<&str>, progress: &Progress) -> ListParams {
        ListParams {
            limit: Some(progress.limit.unwrap_or(self.page_size)),
            continue_token: Some(progress.continue_token.clone()).filter(|t| !t.is_empty()),
            label_selector: Some(selector.to_owned()).filter(|s| !s.is_empty()),
            version_match: version.map(|_| VersionMatch::Exact),
            resource_version: version.map(str::to_owned),
            ..ListParams::default()
        }
    }

    /// `None`: it takes more room than was thought, and is to be asked for again.
    async fn try_page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        params: &ListParams,
        progress: &mut Progress,
        patience: &mut Patience,
        taker: &mut impl ObjectSink,
    ) -> Result<Option<Page>, ListError> {
        let limit = params.limit.unwrap_or(self.page_size);
        let request =
            Request::new(path(kind, namespace)).list(params).map_err(|e| ListError::Request(e.into()))?;
        // Waited for before there is a connection to hold, and never by whoever holds some of it already.
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
                // A server that gives everything at once, whatever it is asked for: there is no room for that.
                patience.excuse(hand_on(std::mem::take(&mut items), taker)).await?;
                (size, begun, is_handed_on) = (0, Instant::now(), true);
            }
        }
        let head = splitter.finish()?;
        drop(request_slot);
        Ok(Some(Page { items, head, room }))
    }

    /// One object by name; `None` when there is none. `None` for `namespace`: it is of the whole cluster.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn get(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<ListedObject>, ListError> {
        let mut patience = Patience::new(self.retry);
        loop {
            let request_slot = patience.excuse(acquire(&self.requests, 1)).await?;
            let tried = self.try_get(kind, namespace, name).await;
            drop(request_slot);
            match tried {
                Ok(found) => {
                    if found.is_some() {
                        self.note(kind, Apart::ByName);
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

    /// Any other read, as patiently.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn patiently<T, F>(&self, what: &str, attempt: impl Fn() -> F) -> Result<T, ListError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let mut patience = Patience::new(self.retry);
        loop {
            let error = match timeout(ANSWER, attempt()).await {
                Ok(Ok(read)) => return Ok(read),
                Ok(Err(error)) => ListError::from(error),
                Err(elapsed) => ListError::Unreachable(elapsed.into()),
            };
            self.again(&mut patience, what, error).await?;
        }
    }

    /// Waits for the next attempt. When the time for them is over, there is one more if the API server itself is well: should
    /// that fail, too, it is known that not the whole API server was away.
    async fn again(&self, patience: &mut Patience, what: &str, error: ListError) -> Result<(), ListError> {
        let Err(error) = patience.wait(what, error).await else { return Ok(()) };
        if !patience.takes_last(&error) {
            return Err(error);
        }
        self.probe().await
    }

    /// Is the API server well, does it know us, and has it time for us? A list of one namespace takes nothing but itself.
    async fn probe(&self) -> Result<(), ListError> {
        let mut patience = Patience::new(self.retry.min(PROBE));
        loop {
            let request = http::Request::get("/api/v1/namespaces?limit=1").body(Body::empty());
            let request = request.map_err(|e| ListError::Request(e.into()))?;
            let request_slot = patience.excuse(acquire(&self.requests, 1)).await?;
            let answer = self.send(request).await.map(drop);
            drop(request_slot);
            let Err(error) = answer else { return Ok(()) };
            match patience.wait("namespaces", error).await {
                Ok(()) => {}
                // It is well enough to say no.
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
    // Nobody closes them.
    Arc::clone(of).acquire_many_owned(count).await.map_err(|_| ListError::NobodyTakes)
}

fn try_acquire(of: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    Arc::clone(of).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
}

/// All of it, or somewhat more than `most`.
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

/// Where the API server serves a type.
pub fn path(kind: &ResourceType, namespace: Option<&str>) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    match namespace {
        Some(namespace) => format!("{root}/{}/namespaces/{namespace}/{}", kind.version, kind.resource),
        None => format!("{root}/{}/{}", kind.version, kind.resource),
    }
}

#[cfg(test)]
mod tests;
