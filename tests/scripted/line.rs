//! A line of the script: what is asked, and what is answered.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use crate::hold::Hold;
use crate::watch_stream::Watch;

pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request, as a script has it. A watch and a page that goes on are asked for by name: a plain
/// `get` is neither.
#[derive(Clone)]
pub struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    is_watch: bool,
    page: Option<String>,
    /// `None`: from whatever version.
    from: Option<String>,
    /// `None`: of whatever size.
    limit: Option<String>,
}

#[must_use]
pub fn get(path: &str) -> Ask {
    Ask { method: Method::GET, path: path.to_owned(), is_watch: false, page: None, from: None, limit: None }
}

#[must_use]
pub fn watch(path: &str) -> Ask {
    Ask { is_watch: true, ..get(path) }
}

#[must_use]
pub fn post(path: &str) -> Ask {
    Ask { method: Method::POST, ..get(path) }
}

#[must_use]
pub fn put(path: &str) -> Ask {
    Ask { method: Method::PUT, ..get(path) }
}

#[must_use]
pub fn patch(path: &str) -> Ask {
    Ask { method: Method::PATCH, ..get(path) }
}

#[must_use]
pub fn delete(path: &str) -> Ask {
    Ask { method: Method::DELETE, ..get(path) }
}

impl Ask {
    pub(crate) fn of(head: &Parts) -> Self {
        let query = head.uri.query().unwrap_or_default();
        let value = |key: &str| query.split('&').find_map(|one| one.strip_prefix(key)?.strip_prefix('='));
        Self {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            is_watch: value("watch").is_some_and(|value| matches!(value, "1" | "true")),
            page: value("continue").map(str::to_owned),
            from: value("resourceVersion").map(str::to_owned),
            limit: value("limit").map(str::to_owned),
        }
    }

    pub(crate) fn is_met_by(&self, asked: &Self) -> bool {
        self.method == asked.method
            && self.path == asked.path
            && self.is_watch == asked.is_watch
            && self.page == asked.page
            && (self.from.is_none() || self.from == asked.from)
            && (self.limit.is_none() || self.limit == asked.limit)
    }

    pub(crate) fn is_read(&self) -> bool {
        self.method == Method::GET
    }

    /// The page of a list that continues at this token.
    #[must_use]
    pub fn page(self, token: &str) -> Self {
        Self { page: Some(token.to_owned()), ..self }
    }

    /// A watch from this version on.
    #[must_use]
    pub fn from(self, version: &str) -> Self {
        Self { from: Some(version.to_owned()), ..self }
    }

    /// A page of at most so many objects.
    #[must_use]
    pub fn limit(self, limit: u32) -> Self {
        Self { limit: Some(limit.to_string()), ..self }
    }

    #[must_use]
    pub fn answers(self, object: Value) -> Line {
        self.replies(Reply::json(200, object))
    }

    /// What is answered follows from what was sent.
    #[must_use]
    pub fn answers_with(self, answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Line {
        self.replies(Reply::Object(200, Arc::new(answer)))
    }

    /// Takes what was sent as it is, and gives it a version: for `post` and `put`.
    #[must_use]
    pub fn takes_as(self, version: &str) -> Line {
        let version = version.to_owned();
        self.answers_with(move |sent| {
            let mut taken = sent.clone();
            taken["metadata"]["resourceVersion"] = json!(version);
            taken
        })
    }

    /// With a Status, as the API server does.
    #[must_use]
    pub fn refuses(self, code: u16) -> Line {
        self.replies(Reply::json(code, refusal(code, "the script says so")))
    }

    /// As the API server answers a create of a name that is taken.
    #[must_use]
    pub fn already_exists(self) -> Line {
        let mut status = refusal(409, "it exists already");
        status["reason"] = json!("AlreadyExists");
        self.replies(Reply::json(409, status))
    }

    /// With something of the test's own, be it a Status with details.
    #[must_use]
    pub fn refuses_with(self, code: u16, answer: Value) -> Line {
        self.replies(Reply::json(code, answer))
    }

    /// The request comes, and its answer never does.
    #[must_use]
    pub fn never_answers(self) -> Line {
        self.replies(Reply::Nothing)
    }

    /// The connection is lost before there is an answer.
    #[must_use]
    pub fn breaks(self) -> Line {
        self.replies(Reply::Broken)
    }

    /// The connection is lost when this part of an answer has come.
    #[must_use]
    pub fn breaks_after(self, part: &str) -> Line {
        self.replies(Reply::Part(part.to_owned().into()))
    }

    #[must_use]
    pub fn streams(self, watch: &Watch) -> Line {
        self.replies(Reply::Events(watch.clone()))
    }

    fn replies(self, reply: Reply) -> Line {
        Line { ask: self, reply, delay: None, hold: None }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = if self.is_watch { "WATCH" } else { self.method.as_str() };
        write!(out, "{method} {}", self.path)?;
        for (key, value) in [("continue", &self.page), ("resourceVersion", &self.from)] {
            if let Some(value) = value {
                write!(out, " {key}={value}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) enum Reply {
    Object(u16, Arc<dyn Fn(&Value) -> Value + Send + Sync>),
    Events(Watch),
    Part(Bytes),
    Broken,
    Nothing,
}

impl Reply {
    pub(crate) fn json(code: u16, object: Value) -> Self {
        Self::Object(code, Arc::new(move |_| object.clone()))
    }

    async fn give(self, sent: &Value) -> Result<Response<AnswerBody>, BoxError> {
        let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
        let (code, body) = match self {
            Self::Object(code, answer) => {
                let bytes = Bytes::from(answer(sent).to_string());
                (code, Full::new(bytes).map_err(|never| match never {}).boxed_unsync())
            }
            Self::Events(watch) => {
                let events =
                    watch.take().ok_or("the script has this watch once, and it was asked for again")?;
                (200, StreamBody::new(events).map_err(BoxError::from).boxed_unsync())
            }
            Self::Part(bytes) => {
                let frames = futures::stream::iter([Ok(Frame::data(bytes)), Err(reset())]);
                (200, StreamBody::new(frames).map_err(BoxError::from).boxed_unsync())
            }
            Self::Broken => return Err(reset().into()),
            Self::Nothing => std::future::pending().await,
        };
        Ok(Response::builder().status(code).header("content-type", "application/json").body(body)?)
    }
}

/// What is asked, what is answered, and when.
#[derive(Clone)]
pub struct Line {
    pub(crate) ask: Ask,
    reply: Reply,
    delay: Option<Duration>,
    hold: Option<Hold>,
}

impl Line {
    /// Only one request can have it.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.reply, Reply::Events(_))
    }

    /// So much later, by the test's clock.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }

    /// When the test lets go.
    #[must_use]
    pub fn held(self, hold: &Hold) -> Self {
        Self { hold: Some(hold.clone()), ..self }
    }

    /// For a request without a line in the script. It is an answer and not a panic, because it is
    /// given in a task of the client's.
    pub(crate) fn unscripted(ask: Ask, fault: &str) -> Self {
        ask.replies(Reply::json(501, refusal(501, fault)))
    }

    pub(crate) async fn give(self, sent: Value) -> Result<Response<AnswerBody>, BoxError> {
        if let Some(hold) = &self.hold {
            hold.begin().await;
        }
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        self.reply.give(&sent).await
    }
}

/// A Status that says no.
pub(crate) fn refusal(code: u16, message: &str) -> Value {
    let reason = match code {
        400 => "BadRequest",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {},
        "status": "Failure", "reason": reason, "message": message, "code": code,
    })
}
