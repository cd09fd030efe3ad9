//! Admission: HTTP in, HTTP out. This package decides nothing itself: rules are in `berth-core` and
//! `berth-api`, and what they have to know of the cluster comes from [`listers`].
//!
//! - [`review`]: AdmissionReview to request, verdict to AdmissionReview; the only place that knows
//!   the envelope.
//! - [`listers`]: read access to a replica's watch caches.
//! - [`events`]: Events about what reviews have found.
//! - [`assumed`]: Backups that were given a place and are not in the watch cache yet.
//! - [`state`]: what the handlers of one replica share.
//! - [`backup`]: Backups: a place in line on create, and every fault of a write in one answer.
//! - [`pod`]: pods of data movers: where they may run.
//! - [`mover`]: data movers: which of them may become Accepted.
//! - [`configmap`]: the node-agents' configuration, checked before it is in use.
//! - [`garden`]: shared buckets: writes to objects of hub and members, and to storage locations.
//! - [`schedule`]: Schedules: every fault of expression and template, and the next few times.
//! - [`patch`]: typed edits to JSON Patch.
//! - [`intake`]: limits on connections, bodies and decisions, in total and for each client address.
//! - [`router`]: paths to handlers; binds no port, so that tests call it directly.
//! - [`server`]: the listeners, for reviews and for probes.
//! - [`linger`]: connections that close without losing a request.
//! - [`metrics`]: counts and durations of answers.

pub mod assumed;
pub mod backup;
pub mod configmap;
pub mod events;
pub mod garden;
pub mod intake;
pub mod linger;
pub mod listers;
pub mod metrics;
pub mod mover;
pub mod patch;
pub mod pod;
pub mod review;
pub mod router;
pub mod schedule;
pub mod server;
pub mod state;

pub use events::EventRecorder;
pub use intake::Intake;
pub use listers::Listers;
pub use router::router;
pub use state::{AdmissionState, Identities};
