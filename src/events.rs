//! Kubernetes Events, most of them on Backups. Told in the background: nobody waits for them, and too many are dropped.

use std::time::Duration;

use berth_api::keys::REPORTING_COMPONENT;
use berth_api::velero::Backup;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::text::chain;

/// Told and not sent yet. More are dropped: the API server has better things to do in such a moment.
const WAITING: usize = 512;
const PACE: Duration = Duration::from_millis(100);
const WRITE: Duration = Duration::from_secs(10);
/// The API server takes notes of up to 1 kB.
const NOTE: usize = 1000;

/// What is worth telling, a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Queued,
    PassedOver,
    Dequeued,
    /// The run before ended early: it goes on from a checkpoint, or begins anew.
    Resumed,
    Canceled,
    Superseded,
    /// What it asks for cannot be read.
    Refused,
    /// The API server refuses every write to it.
    Unwritable,
    /// Another backup of its schedule still waits.
    PiledUp,
    /// Somebody else wanted to move it.
    ForeignQueue,
    /// What lies in the webhooks' Secret cannot be served.
    CertificateRejected,
    /// A data mover waits for a place.
    Held,
    /// A data mover begins anew: its node-agent was gone.
    Recovered,
    /// Something is wrong with where a data mover may run.
    Placement,
    /// A pod of a data mover was created while no webhook answered.
    MissedAffinity,
    /// Something is wrong with the node-agents' configuration.
    ConfigurationRejected,
    /// A BackupEntry has no place, and something has to be done about it.
    NotPlaced,
    /// A bucket was made for a CloudProfile.
    BucketCreated,
    /// A bucket is deleted: nobody has wanted or used it for long.
    BucketRetired,
    /// Another seed acts on it.
    ExecutorChanged,
    /// An entry is another cluster's from now on.
    Moved,
    /// The same, and nobody knows that the one before writes no more.
    TakenOver,
    /// An entry is to be another cluster's, and somebody has to do something for that.
    MoveWaits,
    /// The end of a BackupEntry is on record.
    Recorded,
    /// In a member cluster: a bucket, or a directory in one, is there as it was asked for.
    Created,
    /// In a member cluster: what was in the store is gone.
    Removed,
    /// In a member cluster: what is in the store stays there, as somebody said.
    DataLeft,
    /// Of shared buckets: something was not done, and why.
    Failed,
}

impl What {
    fn parts(self) -> (&'static str, &'static str, EventType) {
        match self {
            Self::Queued => ("Queued", "Enqueue", EventType::Normal),
            Self::PassedOver => ("PassedOver", "Plan", EventType::Normal),
            Self::Dequeued => ("Dequeued", "Start", EventType::Normal),
            Self::Resumed => ("Resumed", "Run", EventType::Warning),
            Self::Canceled => ("Canceled", "End", EventType::Normal),
            Self::Superseded => ("Superseded", "End", EventType::Warning),
            Self::Refused => ("Refused", "End", EventType::Warning),
            Self::Unwritable => ("Unwritable", "Plan", EventType::Warning),
            Self::PiledUp => ("PiledUp", "Enqueue", EventType::Warning),
            Self::ForeignQueue => ("ForeignQueue", "Guard", EventType::Warning),
            Self::CertificateRejected => ("CertificateRejected", "Follow", EventType::Warning),
            Self::Held => ("Held", "Grant", EventType::Normal),
            Self::Recovered => ("Recovered", "Grant", EventType::Warning),
            Self::Placement => ("Placement", "Place", EventType::Warning),
            Self::MissedAffinity => ("MissedAffinity", "Place", EventType::Warning),
            Self::ConfigurationRejected => ("ConfigurationRejected", "Follow", EventType::Warning),
            Self::NotPlaced => ("NotPlaced", "Place", EventType::Warning),
            Self::BucketCreated => ("BucketCreated", "Create", EventType::Normal),
            Self::BucketRetired => ("BucketRetired", "Delete", EventType::Normal),
            Self::ExecutorChanged => ("ExecutorChanged", "Choose", EventType::Normal),
            Self::Moved => ("Moved", "Move", EventType::Normal),
            Self::TakenOver => ("TakenOver", "Move", EventType::Warning),
            Self::MoveWaits => ("MoveWaits", "Move", EventType::Warning),
            Self::Recorded => ("Recorded", "Delete", EventType::Normal),
            Self::Created => ("Created", "Create", EventType::Normal),
            Self::Removed => ("Removed", "Delete", EventType::Normal),
            Self::DataLeft => ("DataLeft", "Delete", EventType::Normal),
            Self::Failed => ("Failed", "Reconcile", EventType::Warning),
        }
    }
}

struct Told {
    what: What,
    note: String,
    about: ObjectReference,
    because_of: Option<ObjectReference>,
    /// One that differs only in its note is the same one again.
    is_series: bool,
}

/// Where Events are told.
#[derive(Clone)]
pub struct Events {
    namespace: String,
    waiting: mpsc::Sender<Told>,
    dropped: Counter,
}

impl Events {
    /// The second part sends them, for ever.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        dropped: Counter,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (waiting, mut told) = mpsc::channel::<Told>(WAITING);
        let events = Self { namespace: namespace.to_owned(), waiting, dropped };
        let sending = async move {
            let reporter = Reporter { controller: REPORTING_COMPONENT.to_owned(), instance: None };
            let of_series = Recorder::new(client.clone(), reporter.clone());
            while let Some(Told { what, note, about, because_of, is_series }) = told.recv().await {
                let (reason, action, type_) = what.parts();
                let event = Event {
                    type_,
                    reason: reason.to_owned(),
                    note: Some(note.chars().take(NOTE).collect()),
                    action: action.to_owned(),
                    secondary: because_of,
                };
                // A recorder takes what differs only in its note for a repetition, and keeps the first note.
                let single = (!is_series).then(|| Recorder::new(client.clone(), reporter.clone()));
                let recorder = single.as_ref().unwrap_or(&of_series);
                match timeout(WRITE, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(reason, error = chain(&error), "an Event could not be sent"),
                    Err(_) => debug!(reason, "sending an Event took too long"),
                }
                sleep(PACE).await;
            }
            std::future::pending().await
        };
        (events, sending)
    }

    pub fn tell(&self, what: What, name: &str, uid: &str, note: impl Into<String>) {
        self.tell_because(what, name, uid, note, None);
    }

    /// `because_of`: another Backup. Events that differ only in their notes are taken for one that is repeated.
    pub fn tell_because(
        &self,
        what: What,
        name: &str,
        uid: &str,
        note: impl Into<String>,
        because_of: Option<&str>,
    ) {
        let because_of = because_of.map(|name| self.reference(name, ""));
        let about = self.reference(name, uid);
        self.send(Told { what, note: note.into(), about, because_of, is_series: true });
    }

    /// About something else than a Backup; with another note it is another Event.
    pub fn tell_about(&self, what: What, about: ObjectReference, note: impl Into<String>) {
        self.send(Told { what, note: note.into(), about, because_of: None, is_series: false });
    }

    fn send(&self, told: Told) {
        if self.waiting.try_send(told).is_err() {
            self.dropped.inc();
        }
    }

    fn reference(&self, name: &str, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(Backup::api_version(&()).into_owned()),
            kind: Some(Backup::kind(&()).into_owned()),
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            uid: Some(uid.to_owned()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        }
    }
}
