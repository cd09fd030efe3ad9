//! The gate in front of Accepted: a node-agent's write passes once the leader has granted the data
//! mover a place. The gate refuses writes and changes no object, so that without berth Velero goes
//! on as usual.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_core::mover::MoverKind;
use berth_core::mover::grant::{GateRefusal, MoverPhase, PhaseWrite, judge};
use berth_core::mover::own::is_foreign;
use berth_core::pod_volume::is_own;
use berth_core::violation::{Field, Violations};
use serde::Deserialize;

use crate::listers::Listers;
use crate::review::{AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

#[derive(Deserialize)]
struct IncomingMover {
    kind: String,
    #[serde(default)]
    metadata: MoverMetadata,
    #[serde(default)]
    spec: MoverSpec,
    #[serde(default)]
    status: MoverStatus,
}

#[derive(Default, Deserialize)]
struct MoverMetadata {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct MoverSpec {
    #[serde(default)]
    datamover: Option<String>,
    #[serde(default, rename = "uploaderType")]
    uploader_type: Option<String>,
}

#[derive(Default, Deserialize)]
struct MoverStatus {
    #[serde(default)]
    phase: Option<String>,
}

impl IncomingMover {
    fn phase(&self) -> MoverPhase {
        MoverPhase::parse(self.status.phase.as_deref().unwrap_or_default())
    }

    fn grant(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(keys::GRANTED)
    }

    /// A node agent of berth's prepares nothing for the files that it reads itself.
    fn is_third_party(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        let is_by_mover = annotations.is_some_and(|annotations| keys::is_set(annotations, keys::BY_MOVER));
        is_foreign(self.spec.datamover.as_deref())
            || (is_own(self.spec.uploader_type.as_deref()) && !is_by_mover)
    }
}

/// Judges a write to a DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore.
///
/// # Errors
/// When the object cannot be read.
pub fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    if !request.is_write() {
        return Ok(ReviewVerdict::allow());
    }
    let new: IncomingMover = serde_json::from_str(request.object.ok_or(ReviewError::NoObject)?.get())?;
    let old = request.old_object.map(|old| serde_json::from_str::<IncomingMover>(old.get())).transpose()?;
    let Some(kind) = MoverKind::ALL.into_iter().find(|kind| kind.as_str() == new.kind) else {
        return Ok(ReviewVerdict::allow());
    };
    if state.roles(&request.user_info.username).queue {
        return Ok(ReviewVerdict::allow());
    }
    // A data mover that has ended takes no place. Velero's backup sync creates such objects with
    // all their annotations.
    let is_copy = old.is_none() && new.phase().is_final();
    if !is_copy && new.grant() != old.as_ref().and_then(IncomingMover::grant) {
        let field = Field::root("metadata").child("annotations").key(keys::GRANTED);
        return Ok(refuse(
            RefusalReason::Forbidden,
            field,
            "grants are given by berth alone: leave it as it is",
        ));
    }
    if !state.listers().are_granted() {
        return Ok(ReviewVerdict::allow());
    }
    let step = PhaseWrite {
        kind,
        from: old.as_ref().map(IncomingMover::phase),
        to: new.phase(),
        granted: old.as_ref().is_some_and(|old| old.grant().is_some()),
        third_party: new.is_third_party(),
    };
    let Err(refusal) = judge(&step) else { return Ok(ReviewVerdict::allow()) };
    let reason = match refusal {
        GateRefusal::Conflict => RefusalReason::Conflict,
        GateRefusal::Forbidden => RefusalReason::Forbidden,
    };
    let message =
        "waits for a place (loadConcurrency.prepareQueueLength): `berth queue movers` shows for what";
    Ok(refuse(reason, Field::root("status").child("phase"), message))
}

fn refuse(reason: RefusalReason, field: Field, message: &str) -> ReviewVerdict {
    let mut violations = Violations::default();
    violations.push(field, message);
    ReviewVerdict::refuse(reason, violations)
}
