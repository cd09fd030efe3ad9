//! The envelope: AdmissionReview v1.
//!
//! The types are berth's own, because a review delays the write of a user: the objects inside stay
//! raw JSON until a rule reads a part of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_core::violation::Violations;
use json_patch::Patch;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// In characters. The API server truncates longer warnings.
const WARNING_LENGTH: usize = 256;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IncomingReview<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<AdmissionRequest<'a>>,
}

/// The request of an AdmissionReview.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest<'a> {
    pub uid: String,
    pub operation: AdmissionOperation,
    #[serde(default)]
    pub kind: GroupKind,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub dry_run: Option<bool>,
    #[serde(default)]
    pub user_info: UserInfo,
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub old_object: Option<&'a RawValue>,
}

/// Group and kind of the object, in the version that the webhook's rule matched.
#[derive(Debug, Default, Deserialize)]
pub struct GroupKind {
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub kind: String,
}

/// The user who writes.
#[derive(Debug, Default, Deserialize)]
pub struct UserInfo {
    #[serde(default)]
    pub username: String,
}

impl AdmissionRequest<'_> {
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    /// Does it have an object that is to be judged?
    pub fn is_write(&self) -> bool {
        matches!(self.operation, AdmissionOperation::Create | AdmissionOperation::Update)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum AdmissionOperation {
    Create,
    Update,
    Delete,
    Connect,
}

/// Why a body cannot be answered as an AdmissionReview.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("the body is not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is {0:?} of {1:?}; this server answers AdmissionReview of admission.k8s.io/v1")]
    Kind(String, String),
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the request has no object")]
    NoObject,
}

/// Reads an AdmissionReview.
///
/// # Errors
/// When the body has no request whose UID could be answered.
pub fn parse(body: &[u8]) -> Result<AdmissionRequest<'_>, ReviewError> {
    let review: IncomingReview<'_> = serde_json::from_slice(body)?;
    if review.kind != "AdmissionReview" || review.api_version != "admission.k8s.io/v1" {
        return Err(ReviewError::Kind(review.kind, review.api_version));
    }
    review.request.ok_or(ReviewError::NoRequest)
}

/// A refusal, with its kind and all violations.
#[derive(Debug)]
pub struct ReviewRefusal {
    pub reason: RefusalReason,
    pub violations: Violations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The object is wrong.
    Invalid,
    /// Another component decides this. HTTP 409 makes a controller read the object again and give
    /// way.
    Conflict,
    /// This user may not, or not yet.
    Forbidden,
}

impl RefusalReason {
    fn code(self) -> (u16, &'static str) {
        match self {
            Self::Invalid => (422, "Invalid"),
            Self::Conflict => (409, "Conflict"),
            Self::Forbidden => (403, "Forbidden"),
        }
    }
}

/// The decision of a rule.
#[derive(Debug, Default)]
pub struct ReviewVerdict {
    pub refused: Option<ReviewRefusal>,
    pub patch: Option<Patch>,
    pub warnings: Vec<String>,
}

impl ReviewVerdict {
    pub fn allow() -> Self {
        Self::default()
    }

    pub fn refuse(reason: RefusalReason, violations: Violations) -> Self {
        Self { refused: Some(ReviewRefusal { reason, violations }), ..Self::default() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<ReviewStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ReviewStatus {
    code: u16,
    reason: &'static str,
    message: String,
}

impl ReviewVerdict {
    /// The AdmissionReview that carries this verdict.
    ///
    /// # Errors
    /// When a patch cannot be written as JSON.
    pub fn answer(self, uid: &str) -> Result<Vec<u8>, serde_json::Error> {
        let status = self.refused.as_ref().map(|refused| {
            let (code, reason) = refused.reason.code();
            ReviewStatus { code, reason, message: refused.violations.to_string() }
        });
        let patch = self.patch.filter(|patch| !patch.0.is_empty());
        let patch = patch.map(|patch| serde_json::to_vec(&patch)).transpose()?;
        serde_json::to_vec(&AdmissionReview {
            api_version: "admission.k8s.io/v1",
            kind: "AdmissionReview",
            response: AdmissionResponse {
                uid,
                allowed: status.is_none(),
                status,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch: patch.map(|bytes| STANDARD.encode(bytes)),
                warnings: self.warnings.into_iter().map(shorten).collect(),
            },
        })
    }
}

fn shorten(warning: String) -> String {
    if warning.chars().count() <= WARNING_LENGTH {
        return warning;
    }
    let head: String = warning.chars().take(WARNING_LENGTH - 1).collect();
    head + "…"
}
