//! Shared buckets at admission: profiles, seeds, buckets and entries of the hub, the members'
//! objects for them, and storage locations that use them. All faults are in one answer. While the
//! other objects are not listed yet, writes pass with a warning, and deletions of profiles and
//! buckets are refused.

use std::time::{Duration, Instant};

use berth_core::violation::{Field, Violations, tellable};
use berth_garden_api::{self as garden, extensions};
use berth_garden_core::bucket::GardenBucket;
use berth_garden_core::check::location::ReviewedLocation;
use berth_garden_core::check::{self, AdmissionFindings, SecretLookup};
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::store::SecretRef;
use berth_garden_core::view::ExtensionObject;
use berth_garden_core::{GardenView, Profile, Seed};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::info;

use crate::listers::{GardenListers, Listers};
use crate::review::{AdmissionOperation, AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

/// How long to wait for other objects that block this write to go, or that it needs to appear,
/// because people apply all of them together and the watches show them a moment later.
const PATIENCE: Duration = Duration::from_millis(400);

const HUB: &str = "garden.berth.dev";
const MEMBER: &str = "extensions.gardener.cloud";

/// An object before and after a write. `old` is missing on create, `new` on delete.
struct ObjectChange<T> {
    old: Option<T>,
    new: Option<T>,
    spec_changed: bool,
}

impl<T> ObjectChange<T> {
    fn read<W: DeserializeOwned>(request: &AdmissionRequest<'_>) -> Result<Self, ReviewError>
    where
        T: for<'w> From<&'w W>,
    {
        Self::read_by(request, |wire: &W| wire.into())
    }

    fn read_by<'q, W: DeserializeOwned>(
        request: &AdmissionRequest<'q>,
        value: fn(&W) -> T,
    ) -> Result<Self, ReviewError> {
        let read = |object: Option<&'q RawValue>| {
            object.map(|object| serde_json::from_str(object.get()).map(|wire| value(&wire))).transpose()
        };
        let (old, new) = (read(request.old_object)?, read(request.object)?);
        let needed =
            if request.operation == AdmissionOperation::Delete { old.is_some() } else { new.is_some() };
        if !needed {
            return Err(ReviewError::NoObject);
        }
        let spec_changed = spec(request.old_object)? != spec(request.object)?;
        Ok(Self { old, new, spec_changed })
    }

    /// Does this write change anything that is judged? Labels, finalizers and the like of an
    /// admitted object may change freely.
    fn matters(&self) -> bool
    where
        T: PartialEq,
    {
        self.spec_changed || self.old != self.new
    }
}

fn spec(object: Option<&RawValue>) -> Result<Value, ReviewError> {
    #[derive(Deserialize)]
    struct WithSpec {
        #[serde(default)]
        spec: Value,
    }
    let read: Option<WithSpec> = object.map(|object| serde_json::from_str(object.get())).transpose()?;
    Ok(read.map(|object| object.spec).unwrap_or_default())
}

enum ReviewedObject {
    Profile(ObjectChange<Profile>),
    Seed(ObjectChange<Seed>),
    Bucket(ObjectChange<GardenBucket>),
    Entry(ObjectChange<GardenEntry>),
    Extension(ObjectChange<ExtensionObject>),
    Location(ObjectChange<ReviewedLocation>),
}

impl ReviewedObject {
    /// `None`: this kind is not judged here.
    fn read(request: &AdmissionRequest<'_>) -> Result<Option<Self>, ReviewError> {
        let kind = (request.kind.group.as_str(), request.kind.kind.as_str());
        Ok(Some(match kind {
            (HUB, "CloudProfile") => Self::Profile(ObjectChange::read::<garden::CloudProfile>(request)?),
            (HUB, "Seed") => Self::Seed(ObjectChange::read::<garden::Seed>(request)?),
            (HUB, "BackupBucket") => Self::Bucket(ObjectChange::read::<garden::BackupBucket>(request)?),
            (HUB, "BackupEntry") => Self::Entry(ObjectChange::read::<garden::BackupEntry>(request)?),
            (MEMBER, "BackupBucket") => {
                Self::Extension(ObjectChange::read::<extensions::BackupBucket>(request)?)
            }
            (MEMBER, "BackupEntry") => {
                Self::Extension(ObjectChange::read::<extensions::BackupEntry>(request)?)
            }
            ("velero.io", "BackupStorageLocation") => {
                Self::Location(ObjectChange::read_by(request, garden::value::location)?)
            }
            _ => return Ok(None),
        }))
    }

    fn matters(&self) -> bool {
        match self {
            Self::Profile(change) => change.matters(),
            Self::Seed(change) => change.matters(),
            Self::Bucket(ObjectChange { old: Some(old), new: Some(new), spec_changed }) => {
                *spec_changed || !old.is_judged_as(new)
            }
            Self::Bucket(change) => change.matters(),
            Self::Entry(ObjectChange { old: Some(old), new: Some(new), spec_changed }) => {
                *spec_changed || !old.is_judged_as(new)
            }
            Self::Entry(change) => change.matters(),
            Self::Extension(ObjectChange { old, new, spec_changed }) => {
                let is_served = [old, new].into_iter().flatten().any(check::extension::is_served);
                is_served && (*spec_changed || new.is_none())
            }
            Self::Location(change) => change.matters(),
        }
    }

    /// The Secret that the new object names.
    fn secret(&self) -> Option<&SecretRef> {
        match self {
            Self::Profile(change) => change.new.as_ref()?.backup.as_ref()?.secret.as_ref(),
            Self::Bucket(change) => change.new.as_ref()?.secret(),
            _ => None,
        }
    }

    /// Faults of the object itself, whatever other objects there are.
    fn faults(&self, by_hub: bool) -> Violations {
        match self {
            Self::Profile(ObjectChange { new: Some(new), .. }) => new.faults(),
            Self::Seed(ObjectChange { new: Some(new), .. }) => check::seed::faults(new),
            Self::Bucket(ObjectChange { old, new: Some(new), .. }) => {
                check::bucket::faults(old.as_ref(), new)
            }
            Self::Entry(ObjectChange { old, new: Some(new), .. }) => {
                check::entry::faults(old.as_ref(), new, by_hub)
            }
            Self::Extension(ObjectChange { old, new: Some(new), spec_changed }) => {
                check::extension::faults(old.as_ref(), new, *spec_changed)
            }
            Self::Entry(ObjectChange { old: Some(old), .. }) => check::entry::check_delete(old),
            Self::Extension(ObjectChange { old: Some(old), .. }) => check::extension::check_delete(old),
            _ => Violations::default(),
        }
    }

    fn judge(
        &self,
        credentials: Option<&SecretLookup>,
        by_hub: bool,
        view: &GardenView,
    ) -> AdmissionFindings {
        match self {
            Self::Profile(ObjectChange { old, new: Some(new), .. }) => {
                check::profile::check(old.as_ref(), new, credentials, view)
            }
            Self::Profile(ObjectChange { old: Some(old), .. }) => {
                check::profile::check_delete(&old.name, view)
            }
            Self::Seed(ObjectChange { old, new: Some(new), .. }) => {
                check::seed::check(old.as_ref(), new, view)
            }
            Self::Seed(ObjectChange { old: Some(old), .. }) => check::seed::check_delete(&old.name, view),
            Self::Bucket(ObjectChange { old, new: Some(new), .. }) => {
                check::bucket::check(old.as_ref(), new, credentials, view)
            }
            Self::Bucket(ObjectChange { old: Some(old), .. }) => check::bucket::check_delete(&old.name, view),
            Self::Entry(ObjectChange { old, new: Some(new), .. }) => {
                check::entry::check(old.as_ref(), new, by_hub, view)
            }
            Self::Location(ObjectChange { new: Some(new), .. }) => check::location::check(new, view),
            _ => AdmissionFindings { faults: self.faults(by_hub), ..AdmissionFindings::default() },
        }
    }
}

/// Judges a write or a deletion.
///
/// # Errors
/// When the object cannot be read.
pub async fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    let Some(subject) = ReviewedObject::read(request)?.filter(ReviewedObject::matters) else {
        return Ok(ReviewVerdict::allow());
    };
    let roles = state.roles(&request.user_info.username);
    let credentials = match subject.secret().filter(|secret| !secret.name.is_empty()) {
        Some(secret) if state.may_read_secret(Instant::now()) => {
            Some(state.listers().credentials(secret).await)
        }
        Some(_) => Some(SecretLookup::Unknown("too many Secrets are asked for at once".to_owned())),
        None => None,
    };
    let is_deletion = request.operation == AdmissionOperation::Delete;
    let judge = |view: &GardenView| subject.judge(credentials.as_ref(), roles.queue, view);
    let mut found = match settled(state.listers(), judge).await {
        Some(found) => found,
        None => unknown(&subject, roles.queue, is_deletion),
    };
    // Velero restores kind by kind in order of their names, so that an object may come before those
    // it needs.
    if request.operation == AdmissionOperation::Create && roles.lifecycle {
        found = found.of_a_restore();
    }
    if let ReviewedObject::Entry(ObjectChange { old: None, new: Some(new), .. }) = &subject {
        found.warnings.extend(check::entry::has_another_uid(new, sha1));
    }
    log_opt_out(&subject, request);
    let violations = found.violations();
    let reason = if is_deletion { RefusalReason::Forbidden } else { RefusalReason::Invalid };
    let mut verdict = if violations.is_empty() {
        ReviewVerdict::allow()
    } else {
        ReviewVerdict::refuse(reason, violations)
    };
    verdict.warnings = found.warnings.into_iter().map(|warning| format!("berth: {warning}")).collect();
    Ok(verdict)
}

/// Judges again at each change of the other objects until none of them blocks the write, for
/// [`PATIENCE`] at most. `None`: the other objects are not listed yet.
async fn settled<K: GardenListers>(
    listers: &K,
    judge: impl Fn(&GardenView) -> AdmissionFindings,
) -> Option<AdmissionFindings> {
    let patient = tokio::time::timeout(PATIENCE, async {
        loop {
            let changed = listers.garden_changed();
            let found = listers.garden().map(|view| judge(&view));
            if let Some(found) = found.filter(|found| found.blamed.is_empty()) {
                return found;
            }
            changed.await;
        }
    });
    match patient.await {
        Ok(found) => Some(found),
        Err(_) => listers.garden().map(|view| judge(&view)),
    }
}

fn unknown(subject: &ReviewedObject, by_hub: bool, is_deletion: bool) -> AdmissionFindings {
    let mut found = AdmissionFindings { faults: subject.faults(by_hub), ..AdmissionFindings::default() };
    let why = "what else there is is not known yet: this replica has just started, or may not see it";
    if is_deletion && matches!(subject, ReviewedObject::Profile(_) | ReviewedObject::Bucket(_)) {
        let field = Field::root("metadata").child("deletionTimestamp");
        found.blamed.push(field, format!("{why}: try again in a moment"));
    } else {
        found.warnings.push(format!("not judged by other objects: {why}"));
    }
    found
}

/// In hexadecimal digits. Only compared with names that Gardener made of it; nothing secure depends
/// on it.
fn sha1(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn log_opt_out(subject: &ReviewedObject, request: &AdmissionRequest<'_>) {
    let ReviewedObject::Profile(ObjectChange { new: Some(new), .. }) = subject else { return };
    if new.allows_cross_provider && new.is_cross_provider_without_region() {
        let [profile, user] = [&new.name, &request.user_info.username].map(|text| tellable(text));
        info!(%profile, %user, dry_run = request.is_dry_run(), "another provider without a region, as its annotation asks: it yields no bucket");
    }
}
