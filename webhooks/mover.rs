//! The gate in front of Accepted: a node-agent's write passes once the leader has granted the data
//! mover a place. The gate refuses writes and changes no object, so that without berth Velero goes
//! on as usual.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_core::mover::MoverKind;
use berth_core::mover::grant::{MoverPhase, Refusal, Step, judge};
use berth_core::pod_volume::is_own;
use berth_core::violation::{Field, Violations};
use serde::Deserialize;

use crate::listers::Listers;
use crate::review::{AdmissionRequest, Operation, RefusalReason, ReviewError, Verdict};
use crate::state::AdmissionState;

#[derive(Deserialize)]
struct Incoming {
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    datamover: Option<String>,
    #[serde(default, rename = "uploaderType")]
    uploader_type: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: Option<String>,
}

impl Incoming {
    fn phase(&self) -> MoverPhase {
        MoverPhase::parse(self.status.phase.as_deref().unwrap_or_default())
    }

    fn grant(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(keys::GRANTED)
    }

    fn is_third_party(&self) -> bool {
        !matches!(self.spec.datamover.as_deref(), None | Some("" | "velero"))
            || is_own(self.spec.uploader_type.as_deref())
    }
}

/// Judges a write to a DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore.
///
/// # Errors
/// When the object cannot be read.
pub fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<Verdict, ReviewError> {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Ok(Verdict::allow());
    }
    let new: Incoming = serde_json::from_str(request.object.ok_or(ReviewError::NoObject)?.get())?;
    let old = request.old_object.map(|old| serde_json::from_str::<Incoming>(old.get())).transpose()?;
    let Some(kind) = MoverKind::ALL.into_iter().find(|kind| kind.as_str() == new.kind) else {
        return Ok(Verdict::allow());
    };
    if state.roles(&request.user_info.username).queue {
        return Ok(Verdict::allow());
    }
    // A data mover that has ended takes no place. Velero's backup sync creates such objects with
    // all their annotations.
    let is_copy = old.is_none() && new.phase().is_final();
    if !is_copy && new.grant() != old.as_ref().and_then(Incoming::grant) {
        let field = Field::root("metadata").child("annotations").key(keys::GRANTED);
        return Ok(refuse(
            RefusalReason::Forbidden,
            field,
            "grants are given by berth alone: leave it as it is",
        ));
    }
    if !state.listers().are_granted() {
        return Ok(Verdict::allow());
    }
    let step = Step {
        kind,
        from: old.as_ref().map(Incoming::phase),
        to: new.phase(),
        granted: old.as_ref().is_some_and(|old| old.grant().is_some()),
        third_party: new.is_third_party(),
    };
    let Err(refusal) = judge(&step) else { return Ok(Verdict::allow()) };
    let reason = match refusal {
        Refusal::Conflict => RefusalReason::Conflict,
        Refusal::Forbidden => RefusalReason::Forbidden,
    };
    let message =
        "waits for a place (loadConcurrency.prepareQueueLength): `berth queue movers` shows for what";
    Ok(refuse(reason, Field::root("status").child("phase"), message))
}

fn refuse(reason: RefusalReason, field: Field, message: &str) -> Verdict {
    let mut violations = Violations::default();
    violations.push(field, message);
    Verdict::refuse(reason, violations)
}
