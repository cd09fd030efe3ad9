//! Kubernetes Events, most of them about Backups. They are sent in the background, so that no
//! caller waits; excess ones are dropped.

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

/// Most Events that wait to be sent. More are dropped, in order not to add load to a busy API
/// server.
const WAITING: usize = 512;
const PACE: Duration = Duration::from_millis(100);
const WRITE: Duration = Duration::from_secs(10);
/// Most characters of a note, because the API server accepts 1 kB.
const NOTE: usize = 1000;

/// Declares [`EventReason`] with its documentation: the reference shows the same sentences.
macro_rules! reasons {
    ($($(#[doc = $line:literal])+ $reason:ident => $action:literal, $severity:ident;)+) => {
        /// The reasons of Events, a closed set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventReason {
            $($(#[doc = $line])+ $reason),+
        }

        impl EventReason {
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// Reason, action and type of the Event.
            pub fn parts(self) -> (&'static str, &'static str, EventType) {
                match self {
                    $(Self::$reason => (stringify!($reason), $action, EventType::$severity)),+
                }
            }

            /// When the Event is sent.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => concat!($($line),+).trim_ascii()),+
                }
            }
        }
    };
}

reasons! {
    /// A Backup got its place in the queue.
    Queued => "Enqueue", Normal;
    /// A Backup began to wait for another backup, or, near the head of the queue, now waits for a
    /// different one.
    PassedOver => "Plan", Normal;
    /// A Backup became ReadyToStart.
    Dequeued => "Start", Normal;
    /// The run of a Backup ended early: the next run continues from a checkpoint, or starts again.
    Resumed => "Run", Warning;
    /// A Backup has stored its objects and waits for its operations, without a slot.
    OperationsBegun => "Run", Normal;
    /// All operations of a Backup have ended, and it is completed.
    OperationsEnded => "Run", Normal;
    /// A Backup ended because somebody canceled or deleted it.
    Canceled => "End", Normal;
    /// A Backup ended because a later one of its schedule took its place.
    Superseded => "End", Warning;
    /// A Backup ended because its spec cannot be read.
    Refused => "End", Warning;
    /// A Backup was deleted, with all that was stored of it.
    Deleted => "Delete", Normal;
    /// A Backup could not be deleted; the note says why.
    DeletionFailed => "Delete", Warning;
    /// An expired Backup stays, because its location cannot be written or is gone.
    ExpiryBlocked => "Expire", Warning;
    /// A DownloadRequest cannot be answered; the note says why.
    DownloadFailed => "Download", Warning;
    /// The API server refuses every write to a Backup.
    Unwritable => "Plan", Warning;
    /// A Backup was queued while another backup of its schedule still waits.
    PiledUp => "Enqueue", Warning;
    /// The Backup of a time of a Schedule cannot be created.
    NotScheduled => "Create", Warning;
    /// A time of a Schedule has no Backup, because an annotation of the Schedule says so.
    TimeSkipped => "Skip", Normal;
    /// A Velero runs controllers that berth would run otherwise.
    LeftToVelero => "Follow", Normal;
    /// Folders of a storage location get no Backup; the note says which, and why.
    NotSynced => "Sync", Warning;
    /// Another cluster writes backups below the prefix of a storage location.
    WrittenElsewhere => "Sync", Warning;
    /// A BackupStorageLocation is the default one no longer, because a later one is.
    DefaultChanged => "Check", Warning;
    /// A BackupStorageLocation cannot be used; the note says why.
    LocationUnavailable => "Check", Warning;
    /// A BackupStorageLocation can be used again.
    LocationAvailable => "Check", Normal;
    /// Another queue (a Velero's) tried to move a Backup, and was refused.
    ForeignQueue => "Guard", Warning;
    /// The certificate in the webhooks' Secret cannot be served.
    CertificateRejected => "Follow", Warning;
    /// A data mover waits for a place.
    Held => "Grant", Normal;
    /// A data mover starts again because its node-agent was gone.
    Recovered => "Grant", Warning;
    /// A data mover that a pod of berth's carries has a place: the pod is made, and a claim where
    /// its data is a snapshot's.
    MovementAccepted => "Move", Normal;
    /// The pod of a data movement of berth's own was evicted, or lost its node, and is made again.
    MoverPodReplaced => "Move", Warning;
    /// A data movement of berth's own has failed; the note says why.
    MovementFailed => "Move", Warning;
    /// Something is wrong with where a data mover may run.
    Placement => "Place", Warning;
    /// A pod of a data mover was created while no webhook answered.
    MissedAffinity => "Place", Warning;
    /// Something is wrong with the node-agents' configuration.
    ConfigurationRejected => "Follow", Warning;
    /// A BackupEntry has no place in a bucket, and somebody has to act.
    NotPlaced => "Place", Warning;
    /// A bucket was created for a CloudProfile.
    BucketCreated => "Create", Normal;
    /// A bucket is deleted because it has not been needed or used for long.
    BucketRetired => "Delete", Normal;
    /// Another seed now acts on a bucket, or on an entry that is being deleted.
    ExecutorChanged => "Choose", Normal;
    /// A BackupEntry now belongs to another cluster.
    Moved => "Move", Normal;
    /// A BackupEntry now belongs to another cluster, though the cluster before did not confirm that
    /// it writes no more.
    TakenOver => "Move", Warning;
    /// A BackupEntry should move to another cluster, and somebody has to act first.
    MoveWaits => "Move", Warning;
    /// The end of a BackupEntry is on record.
    Recorded => "Delete", Normal;
    /// In a member cluster: a bucket, or a directory in one, exists as it was asked for.
    Created => "Create", Normal;
    /// In a member cluster: the data in the store is deleted.
    Removed => "Delete", Normal;
    /// In a member cluster: the data stays in the store, as an annotation asked.
    DataLeft => "Delete", Normal;
    /// Shared buckets: an operation failed; the note says why.
    Failed => "Reconcile", Warning;
}

struct QueuedEvent {
    what: EventReason,
    note: String,
    about: ObjectReference,
    because_of: Option<ObjectReference>,
    /// Events that differ only in the note are repetitions of one Event.
    is_series: bool,
}

/// Sends Events.
#[derive(Clone)]
pub struct Events {
    namespace: String,
    waiting: mpsc::Sender<QueuedEvent>,
    dropped: Counter,
}

impl Events {
    /// A sender, and the future that sends its Events for ever.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        dropped: Counter,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (waiting, mut told) = mpsc::channel::<QueuedEvent>(WAITING);
        let events = Self { namespace: namespace.to_owned(), waiting, dropped };
        let sending = async move {
            let reporter = Reporter { controller: REPORTING_COMPONENT.to_owned(), instance: None };
            let of_series = Recorder::new(client.clone(), reporter.clone());
            while let Some(QueuedEvent { what, note, about, because_of, is_series }) = told.recv().await {
                let (reason, action, type_) = what.parts();
                let event = Event {
                    type_,
                    reason: reason.to_owned(),
                    note: Some(note.chars().take(NOTE).collect()),
                    action: action.to_owned(),
                    secondary: because_of,
                };
                // A new recorder, because one recorder counts Events that differ only in the note
                // as repetitions of the first.
                let single = (!is_series).then(|| Recorder::new(client.clone(), reporter.clone()));
                let recorder = single.as_ref().unwrap_or(&of_series);
                match timeout(WRITE, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(reason, error = chain(&error), "could not send an Event"),
                    Err(_) => debug!(reason, "sending an Event timed out"),
                }
                sleep(PACE).await;
            }
            std::future::pending().await
        };
        (events, sending)
    }

    pub fn tell(&self, what: EventReason, name: &str, uid: &str, note: impl Into<String>) {
        self.tell_because(what, name, uid, note, None);
    }

    /// `because_of`: another Backup. Events that differ only in the note are repetitions of one
    /// Event.
    pub fn tell_because(
        &self,
        what: EventReason,
        name: &str,
        uid: &str,
        note: impl Into<String>,
        because_of: Option<&str>,
    ) {
        let because_of = because_of.map(|name| self.reference(name, ""));
        let about = self.reference(name, uid);
        self.send(QueuedEvent { what, note: note.into(), about, because_of, is_series: true });
    }

    /// An Event about another object than a Backup. With another note it is another Event.
    pub fn tell_about(&self, what: EventReason, about: ObjectReference, note: impl Into<String>) {
        self.send(QueuedEvent { what, note: note.into(), about, because_of: None, is_series: false });
    }

    fn send(&self, told: QueuedEvent) {
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
