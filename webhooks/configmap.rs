//! The node-agents' ConfigMap, checked before it is in use: all faults in one answer. A node-agent
//! would ignore most of them, or would not start.

use berth_api::keys;
use berth_api::node_agent::{self, Parsed};
use berth_core::violation::Field;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::listers::Listers;
use crate::review::{AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

/// Judges a write to the node-agents' ConfigMap; allows every other ConfigMap.
///
/// # Errors
/// When the object cannot be read.
pub fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    if !request.is_write() || state.listers().configuration().as_ref() != Some(&request.name) {
        return Ok(ReviewVerdict::allow());
    }
    let map: ConfigMap = serde_json::from_str(request.object.ok_or(ReviewError::NoObject)?.get())?;
    let annotations = map.metadata.annotations.unwrap_or_default();
    let mut found = match node_agent::parse(&map.data.unwrap_or_default()) {
        Ok(Parsed { config, violations: mut found }) => {
            if let Some(classes) = state.listers().classes() {
                found.append(node_agent::check_classes(&config, &classes));
            }
            found
        }
        Err(found) => found,
    };
    if found.is_empty() {
        return Ok(ReviewVerdict::allow());
    }
    if annotations.get(keys::UNCHECKED).is_some_and(|value| value == "true") {
        let warnings = found.iter().map(|fault| format!("berth: {fault}")).collect();
        return Ok(ReviewVerdict { warnings, ..ReviewVerdict::allow() });
    }
    let way_out = format!("annotate the ConfigMap {}=true to write it as it is", keys::UNCHECKED);
    found.push(Field::root("metadata.annotations"), way_out);
    Ok(ReviewVerdict::refuse(RefusalReason::Invalid, found))
}
