//! A watch whose events the test sends, one by one.

use std::io;
use std::panic::Location;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use http_body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::PATIENCE;
use crate::line::refusal;

enum Sent {
    Event(Bytes),
    Break,
    End,
}

/// For one request. What is sent before that waits for it.
#[derive(Clone)]
pub struct Watch {
    sender: UnboundedSender<Sent>,
    receiver: Arc<Mutex<Option<UnboundedReceiver<Sent>>>>,
    begun: CancellationToken,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch {
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: Arc::new(Mutex::new(Some(receiver))), begun: CancellationToken::new() }
    }

    /// Resolves when the watch was asked for.
    ///
    /// # Panics
    /// After a minute of the test's clock.
    #[track_caller]
    pub fn begun(&self) -> impl Future<Output = ()> + use<> {
        let (begun, caller) = (self.begun.clone(), Location::caller());
        async move {
            let in_time = timeout(PATIENCE, begun.cancelled()).await.is_ok();
            assert!(in_time, "{caller}: nobody asked for the watch");
        }
    }

    pub fn added(&self, object: &Value) {
        self.event("ADDED", object);
    }

    pub fn modified(&self, object: &Value) {
        self.event("MODIFIED", object);
    }

    pub fn deleted(&self, object: &Value) {
        self.event("DELETED", object);
    }

    /// Of a kind (`velero.io/v1`, `Backup`): everything up to this version has been told.
    pub fn bookmark(&self, api_version: &str, kind: &str, version: &str) {
        let metadata = json!({"resourceVersion": version, "creationTimestamp": null});
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        self.event("BOOKMARK", &object);
    }

    /// The version from which on events were asked for is too old: 410.
    pub fn gone(&self) {
        self.event("ERROR", &refusal(410, "too old resource version"));
        self.end();
    }

    /// As the API server ends each of them after some minutes.
    pub fn end(&self) {
        self.send(Sent::End);
    }

    /// The connection is lost.
    pub fn breaks(&self) {
        self.send(Sent::Break);
    }

    fn event(&self, kind: &str, object: &Value) {
        self.send(Sent::Event(format!("{}\n", json!({"type": kind, "object": object})).into()));
    }

    fn send(&self, sent: Sent) {
        // Sending fails if the code under test has dropped its watch.
        let _ = self.sender.send(sent);
    }

    /// `None` when it has been taken already.
    pub(crate) fn take(&self) -> Option<impl Stream<Item = io::Result<Frame<Bytes>>> + Send + use<>> {
        let receiver = self.receiver.lock().take()?;
        self.begun.cancel();
        Some(futures::stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await? {
                Sent::Event(bytes) => Some((Ok(Frame::data(bytes)), Some(receiver))),
                Sent::Break => Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
                Sent::End => None,
            }
        }))
    }
}
