//! Failed reads from the API server: what an error means, how long a read is tried again, and what
//! users can do about it.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use berth_core::reading::{Failures, ReadFault};
use berth_core::selection::ResourceType;
use http::{HeaderMap, header};
use kube::core::Status;
use kube::core::response::StatusDetails;
use tokio::time::Instant;
use tracing::debug;

use super::split::SplitError;

/// Most characters that are kept of a server's refusal.
const LONGEST_MESSAGE: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The server answered, and the answer is no.
    #[error("the API server refused: {} {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// No answer, or an incomplete one: worth trying again.
    #[error("the API server did not answer")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the API server's answer could not be read")]
    Answer(#[from] SplitError),
    #[error("an object of the API server's answer could not be read")]
    Object(#[source] serde_json::Error),
    #[error(
        "an object is larger than the {0} bytes that berth reads of one: leave it out of the backup by a label selector, or leave out its type"
    )]
    TooLarge(usize),
    #[error(
        "the API server did not bring the list to its end: it gave the same continue token twice, or let its tokens expire too often"
    )]
    Astray,
    #[error("the request could not be made")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the run takes no more objects, because it is ending")]
    NobodyTakes,
    /// The probe of the API server itself failed, too.
    #[error("the API server answers berth no more: a list of one namespace fails, too")]
    Gone(#[source] Box<ListError>),
    #[error("the API server refuses berth's token: check the service account that berth runs as")]
    Token(#[source] Box<ListError>),
}

impl From<kube::Error> for ListError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            kube::Error::SerdeError(error) => Self::Object(error),
            kube::Error::HttpError(_) | kube::Error::BuildRequest(_) => Self::Request(error.into()),
            error => Self::Unreachable(error.into()),
        }
    }
}

impl ListError {
    /// Reads an error answer, whether it is a Status or the text of a proxy.
    pub(super) fn of_answer(code: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body.get(..200).unwrap_or(body)).into_owned(),
            ..Status::default()
        });
        status.code = code;
        if status.message.len() > LONGEST_MESSAGE {
            status.message = status.message.chars().take(LONGEST_MESSAGE).collect();
        }
        let asked = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(seconds) = asked
            && status.details.is_none()
        {
            status.details = Some(StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: seconds,
            });
        }
        Self::Refused(Box::new(status))
    }

    pub(super) fn fault(&self) -> ReadFault {
        match self {
            Self::Refused(status) => ReadFault::of_answer(status.code, &status.message),
            Self::Unreachable(_) | Self::Answer(_) => ReadFault::Passing,
            Self::Object(_)
            | Self::TooLarge(_)
            | Self::Astray
            | Self::Request(_)
            | Self::NobodyTakes
            | Self::Gone(_)
            | Self::Token(_) => ReadFault::Lasting,
        }
    }

    /// The pause that the server asks for (Retry-After).
    fn asked(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        asked(status)
    }

    pub(super) fn code(&self) -> Option<u16> {
        let Self::Refused(status) = self else { return None };
        Some(status.code)
    }

    /// Whether a right is missing.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the API server itself is gone, as far as this process can tell.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }

    /// Whether the error concerns this type alone. Then the backup goes on without the type, and
    /// reports that.
    pub fn is_about_type(&self) -> bool {
        !matches!(self, Self::NobodyTakes | Self::Gone(_) | Self::Token(_))
    }

    /// What users can do about a type that cannot be read.
    pub fn way_out(&self, kind: &ResourceType) -> String {
        let name = kind.qualified();
        let message = if let Self::Refused(status) = self { status.message.as_str() } else { "" };
        let see = format!("`kubectl get {name} -A` shows whether it can be read");
        match self.code() {
            Some(403) => "give berth's service account the right to get and list it".to_owned(),
            Some(401) => format!("what serves it does not believe the API server: {see}"),
            Some(429) => format!("what serves it has had too many requests for long: {see}"),
            Some(404) => format!("it is not served any more, or its definition was removed just now: {see}"),
            _ if message.contains("conversion webhook") => format!(
                "repair the webhook that spec.conversion of `kubectl get crd {name} -o yaml` names, or delete that definition if nobody needs its objects: {see}"
            ),
            None | Some(500..=599) if kind.group.contains('.') => format!(
                "`kubectl get apiservice {}.{}` says whether its server is there; delete that APIService if nothing serves it any more: {see}",
                kind.version, kind.group
            ),
            _ => format!("{see}; the log of what serves it may say why it cannot"),
        }
    }
}

fn asked(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref().map(|details| details.retry_after_seconds);
    seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()))
}

/// How long one read is tried.
pub struct ReadRetries {
    lasts: Duration,
    begun: Instant,
    count: u32,
    first: Option<Instant>,
    first_unthrottled: Option<Instant>,
    /// The API server was found healthy, so this read has one more attempt.
    is_last: bool,
}

impl ReadRetries {
    pub fn new(lasts: Duration) -> Self {
        let begun = Instant::now();
        Self { lasts, begun, count: 0, first: None, first_unthrottled: None, is_last: false }
    }

    /// Waits for a resource of this process, possibly for hours: that says nothing of the server,
    /// so the time does not count.
    pub async fn excuse<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let from = Instant::now();
        let done = wait.await;
        let waited = from.elapsed();
        self.begun += waited;
        for first in [&mut self.first, &mut self.first_unthrottled].into_iter().flatten() {
            *first += waited;
        }
        done
    }

    /// How long this read has taken, including failures and pauses.
    pub fn spent(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, if there is to be no other attempt.
    pub async fn wait(&mut self, what: &str, error: ListError) -> Result<(), ListError> {
        let Some(pause) = self.pause(error.fault(), error.asked()) else { return Err(error) };
        debug!(%what, %error, "asking again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// As [`Self::wait`], for a caller that waits by itself.
    pub(super) fn pause_after(&mut self, error: &kube::Error) -> Option<Duration> {
        match error {
            kube::Error::Api(status) => {
                self.pause(ReadFault::of_answer(status.code, &status.message), asked(status))
            }
            _ => self.pause(ReadFault::Passing, None),
        }
    }

    fn pause(&mut self, fault: ReadFault, asked: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        if self.is_last && fault != ReadFault::Throttled {
            return None;
        }
        let first = *self.first.get_or_insert(now);
        if fault != ReadFault::Throttled {
            self.first_unthrottled.get_or_insert(now);
        }
        let failures = Failures {
            count: self.count,
            lasted: now - first,
            lasted_unthrottled: self.first_unthrottled.map(|at| now - at).unwrap_or_default(),
        };
        self.count = self.count.saturating_add(1);
        let scatter = u32::try_from(RandomState::new().hash_one(self.count) >> 32).unwrap_or_default();
        failures.pause(fault, self.lasts, asked, scatter)
    }

    /// Whether the attempt under way is the extra one of [`Self::takes_last`].
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Grants one more attempt, once, if the error may pass. The caller then probes the API server.
    pub(super) fn takes_last(&mut self, error: &ListError) -> bool {
        error.fault() != ReadFault::Lasting && !std::mem::replace(&mut self.is_last, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(group: &str) -> ResourceType {
        ResourceType::regular(group, "v1", "Gadget", true)
    }

    fn refused(code: u16, headers: &HeaderMap, body: &str) -> ListError {
        ListError::of_answer(code, headers, body.as_bytes())
    }

    #[test]
    fn what_a_server_says_is_read_whatever_it_is_and_kept_short() {
        let none = HeaderMap::new();
        let html = refused(502, &none, "<html>bad gateway</html>");
        assert_eq!(html.to_string(), "the API server refused: 502 <html>bad gateway</html>");
        let long = json!({"message": "é".repeat(5000), "code": 200}).to_string();
        let ListError::Refused(status) = refused(500, &none, &long) else { unreachable!() };
        assert_eq!((status.code, status.message.chars().count()), (500, LONGEST_MESSAGE));
    }

    #[test]
    fn a_pause_is_asked_for_in_the_header_or_in_the_status() {
        let none = HeaderMap::new();
        let header = HeaderMap::from_iter([(header::RETRY_AFTER, header::HeaderValue::from_static("7"))]);
        let status = json!({"details": {"retryAfterSeconds": 9}}).to_string();
        assert_eq!(refused(429, &header, "slowly").asked(), Some(Duration::from_secs(7)));
        assert_eq!(refused(429, &none, &status).asked(), Some(Duration::from_secs(9)));
        assert_eq!(refused(429, &none, "slowly").asked(), None);
    }

    #[test]
    fn each_way_out_names_what_to_look_at() {
        let none = HeaderMap::new();
        let dead = json!({"message": "conversion webhook for x.example.com/v1 failed: refused"}).to_string();
        for (error, group, words) in [
            (refused(503, &none, "service unavailable"), "x.example.com", "apiservice v1.x.example.com"),
            (refused(500, &none, &dead), "x.example.com", "kubectl get crd gadgets.x.example.com"),
            (refused(500, &none, "cannot decrypt"), "", "kubectl get gadgets -A"),
            (refused(403, &none, "no"), "", "the right to get and list"),
            (ListError::Unreachable("cut off".into()), "", "kubectl get gadgets -A"),
        ] {
            assert!(error.is_about_type());
            let way_out = error.way_out(&kind(group));
            assert!(way_out.contains(words), "{way_out}");
        }
        assert!(!ListError::Gone(Box::new(ListError::Unreachable("cut off".into()))).is_about_type());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_takes_longer_than_the_patience_is_repeated_all_the_same() {
        let mut patience = ReadRetries::new(Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(70)).await;
        let silence = || ListError::Unreachable("cut off".into());
        assert!(patience.wait("pods", silence()).await.is_ok());
        tokio::time::advance(Duration::from_secs(70)).await;
        assert!(patience.wait("pods", silence()).await.is_err());
        assert!(patience.takes_last(&silence()) && !patience.takes_last(&silence()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_on_our_side_is_no_part_of_the_time_of_a_read() {
        let minute = Duration::from_secs(60);
        for is_excused in [true, false] {
            let mut patience = ReadRetries::new(minute);
            let failure = || refused(500, &HeaderMap::new(), "no");
            assert!(patience.wait("pods", failure()).await.is_ok());
            let wait = tokio::time::sleep(10 * minute);
            if is_excused {
                patience.excuse(wait).await;
            } else {
                wait.await;
            }
            assert_eq!(patience.spent() < minute, is_excused);
            assert_eq!(patience.wait("pods", failure()).await.is_ok(), is_excused, "is it tried again?");
        }
    }
}
