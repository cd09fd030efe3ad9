//! Azure's lists of blobs (source: List Blobs in the REST API of the Blob service).

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{Marker, Version, VersionPage, xml};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlobListing {
    /// Required, because an answer without it is not Azure's and must not be taken for an empty
    /// container.
    blobs: BlobsElement,
    #[serde(default)]
    next_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BlobsElement {
    #[serde(rename = "Blob")]
    all: Vec<Blob>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Blob {
    name: BlobName,
    snapshot: Option<String>,
    version_id: Option<String>,
    is_current_version: Option<bool>,
    properties: Properties,
}

/// A name, percent-encoded where XML cannot hold it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BlobName {
    #[serde(rename = "@Encoded")]
    is_encoded: bool,
    #[serde(rename = "$text")]
    text: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Properties {
    #[serde(rename = "Last-Modified")]
    modified: Option<String>,
    #[serde(rename = "Content-Length")]
    bytes: u64,
}

/// The kind of version that [`Version::id`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobVersion<'a> {
    /// The account keeps no versions.
    Only,
    Snapshot(&'a str),
    Version(&'a str),
    Current(&'a str),
}

const SNAPSHOT: &str = "snapshot=";
const CURRENT: &str = "current=";

impl<'a> BlobVersion<'a> {
    pub fn of(version: &'a Version) -> Self {
        match version.id.as_deref() {
            None => Self::Only,
            Some(id) => match (id.strip_prefix(SNAPSHOT), id.strip_prefix(CURRENT)) {
                (Some(time), _) => Self::Snapshot(time),
                (_, Some(id)) => Self::Current(id),
                _ => Self::Version(id),
            },
        }
    }
}

pub fn page(body: &[u8]) -> Result<VersionPage, String> {
    let listing: BlobListing = xml::read(body)?;
    let versions = listing.blobs.all.into_iter().map(version).collect::<Result<Vec<_>, String>>()?;
    let next = listing.next_marker.filter(|marker| !marker.is_empty());
    Ok(VersionPage { versions, next: next.map(|key| Marker { key, version: None }) })
}

fn version(blob: Blob) -> Result<Version, String> {
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    let id = match (filled(blob.snapshot), filled(blob.version_id), blob.is_current_version) {
        (Some(time), ..) => Some(format!("{SNAPSHOT}{time}")),
        (None, Some(id), Some(true)) => Some(format!("{CURRENT}{id}")),
        (None, id, _) => id,
    };
    let BlobName { is_encoded, text } = blob.name;
    let key = if is_encoded {
        let decoded = percent_decode_str(&text).decode_utf8().map(|key| key.into_owned());
        decoded.map_err(|error| format!("{text:?} is no name: {error}"))?
    } else {
        text
    };
    let modified = blob.properties.modified.as_deref().and_then(time);
    Ok(Version { key, id, bytes: blob.properties.bytes, modified })
}

/// Reads a date in the format of HTTP headers.
pub fn time(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::parse(text).ok().map(|time| time.timestamp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blobs_their_snapshots_and_versions_are_listed() {
        let text = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"c\"><Prefix>e/</Prefix><Blobs>\
            <Blob><Name>e/1</Name><Snapshot>2026-01-01T00:00:00.1Z</Snapshot><Properties><Content-Length>1</Content-Length></Properties></Blob>\
            <Blob><Name>e/1</Name><VersionId>v2</VersionId><IsCurrentVersion>true</IsCurrentVersion><Properties>\
            <Last-Modified>Thu, 01 Jan 1970 00:00:07 GMT</Last-Modified><Content-Length>2</Content-Length></Properties></Blob>\
            <Blob><Name>e/1</Name><VersionId>v1</VersionId><Properties><Content-Length>3</Content-Length></Properties></Blob>\
            <Blob><Name Encoded=\"true\">e/%01%26</Name><Properties><Content-Length>4</Content-Length></Properties></Blob>\
            </Blobs><NextMarker>e/2!x</NextMarker></EnumerationResults>";
        let page = page(text.as_bytes()).unwrap();
        let seen: Vec<_> =
            page.versions.iter().map(|v| (v.key.as_str(), BlobVersion::of(v), v.bytes)).collect();
        let wanted = [
            ("e/1", BlobVersion::Snapshot("2026-01-01T00:00:00.1Z"), 1),
            ("e/1", BlobVersion::Current("v2"), 2),
            ("e/1", BlobVersion::Version("v1"), 3),
            ("e/\u{1}&", BlobVersion::Only, 4),
        ];
        assert_eq!(seen, wanted);
        assert_eq!(page.versions[1].modified, Timestamp::from_second(7).ok());
        assert_eq!(page.next, Some(Marker { key: "e/2!x".into(), version: None }));
    }

    #[test]
    fn the_last_page_has_no_marker() {
        let text = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
        assert_eq!(page(text.as_bytes()), Ok(VersionPage::default()));
        for other in [&b"<html>"[..], b"<html></html>", b""] {
            assert!(page(other).is_err());
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), text in "(<[A-Za-z/]{0,9}>|[a-z%+0-9]){0,20}") {
            let _ = (page(&body), page(text.as_bytes()), time(&text));
        }
    }
}
