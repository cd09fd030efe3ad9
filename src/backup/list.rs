//! One type listed in one place, page after page, item by item as the bytes arrive.

use std::borrow::Cow;
use std::time::Duration;

use berth_api::keys::EXCLUDE_FROM_BACKUP;
use berth_core::selection::ResourceType;
use bytes::Bytes;
use http_body_util::BodyExt;
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{Request, Status};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::split::{SplitError, Splitter};

/// Until the first byte of an answer, and between any two frames of it.
const SILENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The server answered, and the answer is no.
    #[error("the API server refused: {} {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// Worth trying again: nobody answered, or not to the end.
    #[error("the API server did not answer")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer could not be read")]
    Answer(#[from] SplitError),
    #[error("an object could not be read")]
    Object(#[source] serde_json::Error),
    #[error("the request could not be made")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the archive takes no more")]
    NobodyTakes,
}

impl ListError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Refused(status) => matches!(status.code, 408 | 410 | 429 | 500..=599),
            Self::Unreachable(_) | Self::Answer(_) => true,
            Self::Object(_) | Self::Request(_) | Self::NobodyTakes => false,
        }
    }

    /// Is it a right that is missing?
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 403)
    }

    /// Does it concern this type alone? Then the backup goes on without it, and says so.
    pub fn is_about_type(&self) -> bool {
        matches!(self, Self::Refused(status) if (400..500).contains(&status.code))
            || matches!(self, Self::Object(_))
    }
}

/// An object on its way: its bytes, and what a rule may ask about it.
pub struct Found {
    pub json: Bytes,
    pub namespace: Option<String>,
    pub name: String,
    pub lacks_type: bool,
    /// It says of itself that it stays out of backups.
    pub excluded: bool,
    /// It is being deleted.
    pub deleting: bool,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    labels: Option<Labels<'a>>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Labels<'a> {
    // The key as berth_api::keys::EXCLUDE_FROM_BACKUP has it; serde wants it spelled out.
    #[serde(rename = "velero.io/exclude-from-backup", borrow, default)]
    exclude: Option<Cow<'a, str>>,
}

impl Found {
    /// # Errors
    /// When this is no Kubernetes object.
    pub fn parse(json: Bytes) -> Result<Self, serde_json::Error> {
        debug_assert_eq!(EXCLUDE_FROM_BACKUP, "velero.io/exclude-from-backup");
        let head: Head<'_> = serde_json::from_slice(&json)?;
        let (namespace, name) =
            (head.metadata.namespace.map(Cow::into_owned), head.metadata.name.into_owned());
        let excluded =
            head.metadata.labels.and_then(|labels| labels.exclude).is_some_and(|value| value == "true");
        let (lacks_type, deleting) = (head.kind.is_none(), head.metadata.deletion_timestamp.is_some());
        Ok(Self { json, namespace, name, lacks_type, excluded, deleting })
    }
}

/// Who takes the objects of a list, one after the other.
pub trait Taker: Send {
    fn take(&mut self, found: Found) -> impl Future<Output = Result<(), ListError>> + Send;
}

/// How to list.
#[derive(Clone)]
pub struct Lister {
    pub client: Client,
    pub page_size: u32,
    /// How long a page that fails is tried again.
    pub retry: Duration,
}

/// A list under way: where it stands after a page.
#[derive(Default)]
pub struct Progress {
    begun: bool,
    continue_token: String,
    /// Objects behind what was taken, where the server knows.
    pub remaining: u64,
}

impl Progress {
    pub fn is_done(&self) -> bool {
        self.begun && self.continue_token.is_empty()
    }
}

impl Lister {
    /// One page: hands each object to `taker`. `None` for `namespace`: the whole cluster. A page that was cut
    /// off is asked for again, so an object may be handed on twice.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut Progress,
        taker: &mut impl Taker,
    ) -> Result<(), ListError> {
        let mut patience = Patience::new(self.retry);
        loop {
            match self.try_page(kind, namespace, selector, progress, taker).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    if let ListError::Refused(status) = &error
                        && status.code == 410
                    {
                        // The page's snapshot is gone: the server gives a token for going on with today's
                        // objects, or we begin again.
                        let token = status.metadata.as_ref().and_then(|m| m.continue_.clone());
                        progress.continue_token = token.unwrap_or_default();
                    }
                    patience.wait(kind, error).await?;
                }
            }
        }
    }

    async fn try_page(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut Progress,
        taker: &mut impl Taker,
    ) -> Result<(), ListError> {
        let params = ListParams {
            limit: Some(self.page_size),
            continue_token: Some(progress.continue_token.clone()).filter(|t| !t.is_empty()),
            label_selector: Some(selector.to_owned()).filter(|s| !s.is_empty()),
            ..ListParams::default()
        };
        let request =
            Request::new(path(kind, namespace)).list(&params).map_err(|e| ListError::Request(e.into()))?;
        let answer = within(self.client.send(request.map(Body::from))).await?;
        if !answer.status().is_success() {
            let code = answer.status().as_u16();
            let body = within(answer.into_body().collect_bytes()).await?;
            return Err(refusal(code, &body));
        }
        let mut body = answer.into_body();
        let mut splitter = Splitter::default();
        while let Some(frame) = within_option(body.frame()).await? {
            let Ok(bytes) = frame.into_data() else { continue };
            splitter.push(&bytes);
            while let Some(json) = splitter.next_item()? {
                let found = Found::parse(json).map_err(ListError::Object)?;
                taker.take(found).await?;
            }
        }
        let head = splitter.finish()?;
        progress.begun = true;
        progress.continue_token = head.continue_token;
        progress.remaining = head.remaining.unwrap_or(0);
        Ok(())
    }

    /// One object by name; `None` when there is none.
    ///
    /// # Errors
    /// What lasted longer than the time for retries.
    pub async fn get(&self, kind: &ResourceType, name: &str) -> Result<Option<Found>, ListError> {
        let mut patience = Patience::new(self.retry);
        loop {
            match self.try_get(kind, name).await {
                Ok(found) => return Ok(found),
                Err(error) => patience.wait(kind, error).await?,
            }
        }
    }

    async fn try_get(&self, kind: &ResourceType, name: &str) -> Result<Option<Found>, ListError> {
        let request = http::Request::get(format!("{}/{name}", path(kind, None))).body(Body::empty());
        let answer = within(self.client.send(request.map_err(|e| ListError::Request(e.into()))?)).await?;
        let code = answer.status().as_u16();
        let body = within(answer.into_body().collect_bytes()).await?;
        match code {
            200 => Found::parse(body).map(Some).map_err(ListError::Object),
            404 => Ok(None),
            _ => Err(refusal(code, &body)),
        }
    }
}

/// What the API server said, be it a Status or the text of something in front of it.
fn refusal(code: u16, body: &[u8]) -> ListError {
    let status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body.get(..200).unwrap_or(body)).into_owned();
        Status { message: text, ..Status::default() }
    });
    ListError::Refused(Box::new(Status { code, ..status }))
}

/// How long one request is tried.
struct Patience {
    begun: Instant,
    lasts: Duration,
    pause: Duration,
}

impl Patience {
    fn new(lasts: Duration) -> Self {
        Self { begun: Instant::now(), lasts, pause: FIRST_PAUSE }
    }

    /// Waits before the next attempt. The error itself, when there is to be none.
    async fn wait(&mut self, kind: &ResourceType, error: ListError) -> Result<(), ListError> {
        if !error.is_passing() || self.begun.elapsed() + self.pause >= self.lasts {
            return Err(error);
        }
        debug!(resource = %kind.qualified(), %error, "asking again");
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

async fn within<T, E>(answer: impl Future<Output = Result<T, E>>) -> Result<T, ListError>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match timeout(SILENCE, answer).await {
        Ok(answer) => answer.map_err(|error| ListError::Unreachable(error.into())),
        Err(elapsed) => Err(ListError::Unreachable(elapsed.into())),
    }
}

async fn within_option<T, E>(
    answer: impl Future<Output = Option<Result<T, E>>>,
) -> Result<Option<T>, ListError>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    within(async { answer.await.transpose() }).await
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
mod tests {
    use super::*;

    fn found(json: &'static str) -> Found {
        Found::parse(Bytes::from_static(json.as_bytes())).unwrap_or_else(|e| unreachable!("{e}"))
    }

    #[test]
    fn what_a_rule_asks_is_read_from_the_bytes() {
        let plain = found(r#"{"metadata":{"name":"a","namespace":"n","labels":null},"data":{"k":"v"}}"#);
        assert_eq!((plain.name.as_str(), plain.namespace.as_deref()), ("a", Some("n")));
        assert!(plain.lacks_type && !plain.excluded && !plain.deleting);
        let custom = found(
            r#"{"apiVersion":"x/v1","kind":"X","metadata":{"labels":{"velero.io/exclude-from-backup":"true","a":"b"},"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#,
        );
        assert!(!custom.lacks_type && custom.excluded && custom.deleting);
        assert!(
            !found(r#"{"metadata":{"name":"a","labels":{"velero.io/exclude-from-backup":"yes"}}}"#).excluded
        );
    }
}
