//! What queue and engine write to Backups alike.

use std::time::Duration;

use berth_api::keys::{self, label_value};
use berth_api::velero::{Backup, BackupStatus};
use berth_core::location::{DEFAULT_LOCATION, Location, choose};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Adds to objects, and replaces everything else: what a merge patch says in two parts. A null
/// stays: it is a part of it.
pub fn merge_into(patch: &mut Value, more: Value) {
    match (patch, more) {
        (Value::Object(patch), Value::Object(more)) => {
            for (key, value) in more {
                merge_into(patch.entry(key).or_insert(Value::Null), value);
            }
        }
        (patch, more) => *patch = more,
    }
}

/// How many bytes the JSON of an object has.
pub fn json_size(object: &impl serde::Serialize) -> usize {
    struct LengthCounter(usize);
    impl std::io::Write for LengthCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = LengthCounter(0);
    // Nothing that is written fails, and what cannot be JSON counts as far as it came.
    let _ = serde_json::to_writer(&mut count, object);
    count.0
}

/// What every Backup has once it has ended, however it did: without these nobody finds out which
/// format it is of, where it is, and when it is to go.
pub fn kept_until(location: &str, ttl: Duration, now: Timestamp) -> Value {
    let expiration = SignedDuration::try_from(ttl).ok().and_then(|ttl| now.checked_add(ttl).ok());
    let label = label_value(location, digest);
    json!({
        "metadata": {"labels": {keys::STORAGE_LOCATION: label}},
        "status": BackupStatus::kept_until(expiration),
    })
}

/// The same for one that ends before it has begun: a part of a patch. Whoever deletes what has
/// expired goes by the location in its spec.
pub fn kept(backup: &Backup, locations: &[Location], default_ttl: Duration, now: Timestamp) -> Value {
    let wanted = backup.spec.storage_location.as_deref().unwrap_or_default();
    let named = if wanted.is_empty() { DEFAULT_LOCATION } else { wanted };
    let location = choose(locations, wanted).map_or(named, |location| location.name.as_str());
    let ttl = backup.spec.ttl.as_ref().and_then(|ttl| ttl.get().ok().flatten());
    let mut kept = kept_until(location, ttl.unwrap_or(default_ttl), now);
    if wanted.is_empty() {
        merge_into(&mut kept, json!({"spec": {"storageLocation": location}}));
    }
    kept
}

/// SHA-256, in hexadecimal.
pub fn digest(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
