//! An API server that lives in the test: it answers what the test has written down for it, in
//! memory, and keeps what was written to it.
//!
//! ```ignore
//! let api = Scripted::new()
//!     .always(get(BACKUP).answers(backup()))
//!     .next(patch(BACKUP).refuses(409));
//! let client = api.client("velero");
//! // … what is to be tested …
//! assert_eq!(api.writes()[0].body["metadata"]["resourceVersion"], "7");
//! api.finish();
//! ```
//!
//! A request that no line answers fails the test, and so does an answer that no request asked for.
//! Use it under a paused clock (`#[tokio::test(start_paused = true)]`): the clock moves on by
//! itself when everything waits, so that time-outs and periods are exact and take no time.

#![allow(clippy::panic, reason = "a test is to fail where its script is not kept")]

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tower::{BoxError, Service};

mod hold;
mod line;
mod watch_stream;

pub use hold::Hold;
pub use line::{Ask, Line, delete, get, patch, post, put, watch};
pub use watch_stream::Watch;

use line::AnswerBody;

/// A request that wanted to change something.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub method: String,
    pub path: String,
    /// Empty, where there is none.
    pub query: String,
    /// Null, where there is none.
    pub body: Value,
}

/// The script of one test. Its clones are the same script.
#[derive(Clone)]
pub struct Scripted {
    test: Arc<Test>,
}

/// What is dropped when the test ends, though clients may live on.
struct Test {
    script: Arc<Script>,
}

struct Script {
    state: Mutex<State>,
    /// How many requests came.
    count: Sender<usize>,
}

#[derive(Default)]
struct State {
    next: VecDeque<Line>,
    once: Vec<Line>,
    always: Vec<Line>,
    asked: Vec<String>,
    writes: Vec<Write>,
    /// Requests that no line answered.
    faults: Vec<String>,
    finished: bool,
}

impl Default for Scripted {
    fn default() -> Self {
        Self::new()
    }
}

impl Scripted {
    #[must_use]
    pub fn new() -> Self {
        let script = Arc::new(Script { state: Mutex::default(), count: Sender::new(0) });
        Self { test: Arc::new(Test { script }) }
    }

    /// Answered whenever it is asked for, and need not be asked for.
    ///
    /// # Panics
    /// For a watch whose events the test sends: only one request can have them.
    #[track_caller]
    pub fn always(&self, line: Line) -> Self {
        assert!(!line.is_stream(), "{}: a watch that streams is for `next` or `once`", line.ask);
        self.add(|state| state.always.push(line))
    }

    /// Answered once, when every `next` before it has been asked for.
    pub fn next(&self, line: Line) -> Self {
        self.add(|state| state.next.push_back(line))
    }

    /// Answered once, in whatever order: for what is asked at the same time.
    pub fn once(&self, line: Line) -> Self {
        self.add(|state| state.once.push(line))
    }

    fn add(&self, add: impl FnOnce(&mut State)) -> Self {
        add(&mut self.test.script.state.lock());
        self.clone()
    }

    /// Each client is a server of the same script.
    pub fn client(&self, namespace: &str) -> Client {
        Client::new(Server { script: Arc::clone(&self.test.script) }, namespace)
    }

    /// What was written, in this order.
    pub fn writes(&self) -> Vec<Write> {
        self.test.script.state.lock().writes.clone()
    }

    /// Method and path of all that was asked, in this order.
    pub fn asked(&self) -> Vec<String> {
        self.test.script.state.lock().asked.clone()
    }

    /// Resolves when every `next` and `once` has been asked for, and the client has done with the
    /// answer what can be done without waiting. That is known because a paused clock moves on only
    /// when everything waits.
    ///
    /// # Panics
    /// After a minute of the test's clock.
    #[track_caller]
    pub fn played(&self) -> impl Future<Output = ()> + use<> {
        let (script, caller) = (Arc::clone(&self.test.script), std::panic::Location::caller());
        async move {
            let mut count = script.count.subscribe();
            let played = count.wait_for(|_| script.state.lock().left().next().is_none());
            let in_time = tokio::time::timeout(PATIENCE, played).await.is_ok();
            assert!(in_time, "{caller}: not everything was asked for\n{}", script.state.lock());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends the script. Where a test does not call this, its end does.
    ///
    /// # Panics
    /// When a request came that no line answers, or a `next` or `once` was never asked for.
    #[track_caller]
    pub fn finish(&self) {
        let state = &mut *self.test.script.state.lock();
        state.finished = true;
        assert!(state.is_kept(), "the script was not kept\n{state}");
    }
}

/// Of the test's clock: a wait that lasts longer never ends.
const PATIENCE: Duration = Duration::from_secs(60);

impl Drop for Test {
    fn drop(&mut self) {
        let state = self.script.state.lock();
        // A test that fails already says more by that.
        if !state.finished && !thread::panicking() {
            assert!(state.is_kept(), "the script was not kept\n{state}");
        }
    }
}

impl State {
    fn is_kept(&self) -> bool {
        self.faults.is_empty() && self.left().next().is_none()
    }

    fn left(&self) -> impl Iterator<Item = &Line> {
        self.next.iter().chain(&self.once)
    }

    /// The line that answers, if there is one.
    fn take(&mut self, asked: &Ask) -> Option<Line> {
        if self.next.front().is_some_and(|line| line.ask.is_met_by(asked)) {
            return self.next.pop_front();
        }
        if let Some(found) = self.once.iter().position(|line| line.ask.is_met_by(asked)) {
            return Some(self.once.remove(found));
        }
        self.always.iter().find(|line| line.ask.is_met_by(asked)).cloned()
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(out, "  {fault}")?;
        }
        for line in self.left() {
            writeln!(out, "  never asked for: {}", line.ask)?;
        }
        writeln!(out, "  asked, in this order: {:#?}", self.asked)
    }
}

#[derive(Clone)]
struct Server {
    script: Arc<Script>,
}

impl Service<Request<Body>> for Server {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    /// Which line answers is chosen here and not in the future, so that requests are counted in the
    /// order of their calls.
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (head, body) = request.into_parts();
        // kube makes its requests of bytes that are there.
        let bytes = body.collect_bytes().now_or_never().and_then(Result::ok).unwrap_or_default();
        let asked = Ask::of(&head);
        let answer = self.script.take(&asked, &bytes, head.uri.query().unwrap_or_default());
        self.script.count.send_modify(|count| *count += 1);
        answer.boxed()
    }
}

impl Script {
    fn take(
        &self,
        asked: &Ask,
        bytes: &Bytes,
        query: &str,
    ) -> impl Future<Output = Result<Response<AnswerBody>, BoxError>> + Send + use<> {
        let body = match serde_json::from_slice(bytes) {
            Ok(body) => body,
            Err(_) if bytes.is_empty() => Value::Null,
            Err(_) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
        };
        let mut state = self.state.lock();
        state.asked.push(asked.to_string());
        if !asked.is_read() {
            state.writes.push(Write {
                method: asked.method.to_string(),
                path: asked.path.clone(),
                query: query.to_owned(),
                body: body.clone(),
            });
        }
        let line = state.take(asked).unwrap_or_else(|| {
            let wanted = state.next.front().map_or_else(|| "nothing".to_owned(), |line| line.ask.to_string());
            let fault = format!("nobody answers {asked} with body {body}; next in line was {wanted}");
            // Where the test fails by something else first, this is what tells why.
            eprintln!("{fault}");
            state.faults.push(fault.clone());
            Line::unscripted(asked.clone(), &fault)
        });
        drop(state);
        line.give(body)
    }
}

/// A list, whole.
#[must_use]
pub fn list(version: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items})
}

/// A page of a list; the next one is `get(…).page(token)`.
#[must_use]
pub fn page(version: &str, token: &str, items: &[Value]) -> Value {
    let mut page = list(version, items);
    page["metadata"]["continue"] = json!(token);
    page
}

#[cfg(test)]
mod tests;
