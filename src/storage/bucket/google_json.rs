//! The documents of Google's JSON API that berth reads and writes (source: its reference, v1).

use berth_garden_core::lock::{DefaultLockMode, Lock};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{Hold, Marker, Version, VersionPage, xml};

const DAY: u64 = 24 * 60 * 60;

pub struct GoogleRefusal {
    pub word: String,
    pub message: String,
}

/// An error answer. Empty where the answer is not Google's. Google's S3-compatible calls answer as
/// S3 does.
pub fn refusal(body: &[u8]) -> GoogleRefusal {
    let Ok(told) = serde_json::from_slice::<Value>(body) else {
        let told = xml::refusal(body);
        return GoogleRefusal { word: told.code, message: told.message };
    };
    let at = |path: &str| told.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    GoogleRefusal { word: at("/error/errors/0/reason"), message: at("/error/message") }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectsDocument {
    kind: String,
    #[serde(default)]
    items: Vec<ObjectDocument>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct ObjectDocument {
    name: String,
    generation: Option<String>,
    size: Option<String>,
    updated: Option<String>,
}

pub fn page(body: &[u8]) -> Result<VersionPage, String> {
    let found: ObjectsDocument = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    // Checked, because an answer of another kind must not be taken for an empty list.
    if found.kind != "storage#objects" {
        return Err(format!("{:?} is no list of objects", found.kind));
    }
    let versions = found.items.into_iter().map(|object| {
        let bytes = object.size.as_deref().unwrap_or("0");
        let bytes = bytes.parse().map_err(|error| format!("{bytes:?} is no size: {error}"))?;
        let modified = object.updated.and_then(|time| time.parse().ok());
        Ok(Version { key: object.name, id: object.generation, bytes, modified })
    });
    let versions = versions.collect::<Result<Vec<_>, String>>()?;
    let next = found.next_page_token.filter(|token| !token.is_empty());
    Ok(VersionPage { versions, next: next.map(|key| Marker { key, version: None }) })
}

/// The names in a list of buckets.
pub fn buckets(body: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Buckets {
        #[serde(default)]
        items: Vec<BucketDocument>,
    }
    #[derive(Deserialize)]
    struct BucketDocument {
        name: String,
    }
    let found: Buckets = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    Ok(found.items.into_iter().map(|bucket| bucket.name).collect())
}

/// The lock that a bucket's retention policy stands for.
pub fn lock(bucket: &Value) -> Option<Lock> {
    let policy = bucket.get("retentionPolicy")?;
    let seconds = policy.get("retentionPeriod")?;
    let seconds = seconds.as_u64().or_else(|| seconds.as_str()?.parse().ok())?;
    let is_locked = policy.get("isLocked").and_then(Value::as_bool).unwrap_or_default();
    let mode = if is_locked { DefaultLockMode::Compliance } else { DefaultLockMode::Governance };
    Some(Lock { mode, days: u32::try_from(seconds / DAY).unwrap_or(u32::MAX) })
}

/// The locks that keep an object.
pub fn hold(object: &Value) -> Hold {
    let is = |key: &str| object.get(key).and_then(Value::as_bool).unwrap_or_default();
    if is("temporaryHold") || is("eventBasedHold") {
        return Hold::Indefinite;
    }
    let time = |path: &str| object.pointer(path)?.as_str()?.parse::<Timestamp>().ok();
    let until = time("/retentionExpirationTime").max(time("/retention/retainUntilTime"));
    until.map_or(Hold::None, Hold::Until)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn generations_are_listed() {
        let body = json!({
            "kind": "storage#objects", "nextPageToken": "t",
            "items": [{"name": "e/a b", "generation": "2", "size": "7", "updated": "1970-01-01T00:00:07.000Z"}, {"name": "e/c"}],
        });
        let page = page(body.to_string().as_bytes()).unwrap();
        let modified = Timestamp::from_second(7).ok();
        let wanted = [
            Version { key: "e/a b".into(), id: Some("2".into()), bytes: 7, modified },
            Version { key: "e/c".into(), ..Version::default() },
        ];
        assert_eq!(page.versions, wanted);
        assert_eq!(page.next, Some(Marker { key: "t".into(), version: None }));
    }

    #[test]
    fn what_is_no_list_is_no_empty_one() {
        assert_eq!(page(br#"{"kind": "storage#objects"}"#), Ok(VersionPage::default()));
        for other in [&b"{}"[..], br#"{"kind": "storage#bucket"}"#, b"[]", b"<html>", b""] {
            assert!(page(other).is_err());
        }
    }

    #[test]
    fn a_retention_policy_is_a_lock() {
        let of = |policy| lock(&json!({"retentionPolicy": policy}));
        let weak = Lock { mode: DefaultLockMode::Governance, days: 2 };
        assert_eq!(of(json!({"retentionPeriod": "172800"})), Some(weak));
        assert_eq!(
            of(json!({"retentionPeriod": 172800, "isLocked": true})),
            Some(Lock { mode: DefaultLockMode::Compliance, ..weak })
        );
        assert_eq!(of(json!({})), None);
        assert_eq!(lock(&json!({})), None);
    }

    #[test]
    fn a_hold_outlasts_a_date() {
        let (early, late) = ("2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z");
        assert_eq!(hold(&json!({"name": "x"})), Hold::None);
        let both = json!({"retentionExpirationTime": early, "retention": {"retainUntilTime": late}});
        assert_eq!(hold(&both), Hold::Until(late.parse().unwrap()));
        for kind in ["temporaryHold", "eventBasedHold"] {
            assert_eq!(hold(&json!({"retentionExpirationTime": early, kind: true})), Hold::Indefinite);
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), text in "[{}\\[\\]\":,a-z0-9]{0,60}") {
            for body in [&body[..], text.as_bytes()] {
                let _ = (page(body), buckets(body), refusal(body).word);
                let value = serde_json::from_slice(body).unwrap_or_default();
                let _ = (lock(&value), hold(&value));
            }
        }
    }
}
