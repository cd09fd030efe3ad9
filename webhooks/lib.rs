//! Admission: HTTP in, HTTP out. Asks `berth-core` and `berth-api`, decides nothing itself; what it does not know it asks [`known`] for.
//!
//! - [`review`]: AdmissionReview to question, verdict to AdmissionReview; the only place that knows the envelope.
//! - [`known`]: what a replica knows of the cluster, frozen for one answer.
//! - [`backup`]: Backups: a place in line on create, faults told at once.
//! - [`pod`]: pods of data movers: where they may run.
//! - [`mover`]: who may prepare: the gate in front of Accepted.
//! - [`configmap`]: the node-agents' configuration, before it is in use.
//! - [`garden`]: shared buckets: what is refused of hub, members and storage locations.
//! - [`desk`]: what one replica knows, and what it answered just now.
//! - [`patch`]: typed edits to JSON Patch.
//! - [`intake`]: how much may come in, in all and from one address.
//! - [`router`]: paths to handlers; binds no port, so tests call it directly.
//! - [`server`]: the listeners, for reviews and for probes.
//! - [`linger`]: connections that end without losing a request.
//! - [`tally`]: what was answered, counted.

pub mod backup;
pub mod configmap;
pub mod desk;
pub mod garden;
pub mod intake;
pub mod known;
pub mod linger;
pub mod mover;
pub mod patch;
pub mod pod;
pub mod review;
pub mod router;
pub mod server;
pub mod tally;

pub use desk::{Desk, Identities};
pub use intake::Intake;
pub use known::Known;
pub use router::router;
