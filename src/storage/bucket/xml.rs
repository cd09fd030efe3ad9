//! The S3 documents that berth reads and writes (source: the API reference of S3, 2006-03-01).

use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{Marker, Version, VersionPage};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct S3Refusal {
    pub code: String,
    pub message: String,
    pub region: Option<String>,
}

/// An error answer. Empty where the answer is not S3's.
pub fn refusal(body: &[u8]) -> S3Refusal {
    read(body).unwrap_or_default()
}

pub fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    quick_xml::de::from_str(text).map_err(|error| error.to_string())
}

/// The answer of ListObjectVersions, and of ListObjectsV2.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct VersionListing {
    encoding_type: Option<String>,
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_version_id_marker: Option<String>,
    version: Vec<VersionElement>,
    delete_marker: Vec<VersionElement>,
    contents: Vec<VersionElement>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct VersionElement {
    key: String,
    version_id: Option<String>,
    last_modified: Option<String>,
    size: u64,
}

pub fn page(body: &[u8]) -> Result<VersionPage, String> {
    let listing: VersionListing = read(body)?;
    let is_encoded = listing.encoding_type.is_some_and(|kind| kind == "url");
    let decode = |key: String| {
        if !is_encoded {
            return Ok(key);
        }
        // S3 encodes a space as a plus.
        let spaced = key.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(|text| text.into_owned());
        decoded.map_err(|error| format!("{key:?} is no key: {error}"))
    };
    let all = listing.version.into_iter().chain(listing.delete_marker).chain(listing.contents);
    let versions = all
        .map(|entry| {
            let id = entry.version_id.filter(|id| !id.is_empty());
            let modified = entry.last_modified.and_then(|time| time.parse().ok());
            Ok(Version { key: decode(entry.key)?, id, bytes: entry.size, modified })
        })
        .collect::<Result<Vec<_>, String>>()?;
    let next = match (listing.is_truncated, listing.next_key_marker) {
        (false, _) => None,
        (true, Some(key)) => {
            let version = listing.next_version_id_marker.filter(|id| !id.is_empty());
            Some(Marker { key: decode(key)?, version })
        }
        // ListObjectsV2 continues after the last key.
        (true, None) => match versions.last() {
            Some(last) => Some(Marker { key: last.key.clone(), version: None }),
            None => return Err("a list that goes on, with nothing in it".to_owned()),
        },
    };
    Ok(VersionPage { versions, next })
}

/// The objects that could not be removed, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Deleted {
    #[serde(rename = "Error")]
    pub errors: Vec<NotDeleted>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NotDeleted {
    pub key: String,
    pub version_id: Option<String>,
    pub code: String,
    pub message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UploadListing {
    pub is_truncated: bool,
    pub upload: Vec<UploadElement>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UploadElement {
    pub key: String,
    pub upload_id: String,
}

impl UploadListing {
    /// The uploads below `prefix`. Filtered here, because some stores match only a part of the
    /// prefix.
    pub fn below(self, prefix: &str) -> super::UploadPage {
        let all = self.upload.into_iter().filter(|upload| upload.key.starts_with(prefix));
        let uploads = all.map(|upload| super::UnfinishedUpload { key: upload.key, id: upload.upload_id });
        super::UploadPage { uploads: uploads.collect(), is_cut: self.is_truncated }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Retention {
    pub retain_until_date: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LegalHold {
    pub status: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ObjectLockConfiguration {
    pub rule: Option<LockRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LockRule {
    pub default_retention: DefaultRetention,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DefaultRetention {
    pub mode: String,
    pub days: Option<u32>,
    pub years: Option<u32>,
}

/// The body of DeleteObjects, in quiet mode: the answer lists only failures.
pub fn delete(versions: &[Version]) -> String {
    let mut text = format!("<Delete xmlns=\"{NAMESPACE}\"><Quiet>true</Quiet>");
    for version in versions {
        text.push_str("<Object><Key>");
        escape(&version.key, &mut text);
        text.push_str("</Key>");
        if let Some(id) = &version.id {
            text.push_str("<VersionId>");
            escape(id, &mut text);
            text.push_str("</VersionId>");
        }
        text.push_str("</Object>");
    }
    text + "</Delete>"
}

pub fn location(region: &str) -> String {
    let mut text = format!("<CreateBucketConfiguration xmlns=\"{NAMESPACE}\"><LocationConstraint>");
    escape(region, &mut text);
    text + "</LocationConstraint></CreateBucketConfiguration>"
}

pub fn encryption() -> String {
    format!(
        "<ServerSideEncryptionConfiguration xmlns=\"{NAMESPACE}\"><Rule><ApplyServerSideEncryptionByDefault>\
         <SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
    )
}

pub fn public_access_block() -> String {
    let all = ["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"];
    let all: String = all.iter().map(|name| format!("<{name}>true</{name}>")).collect();
    format!("<PublicAccessBlockConfiguration xmlns=\"{NAMESPACE}\">{all}</PublicAccessBlockConfiguration>")
}

pub fn lifecycle(days: u32) -> String {
    format!(
        "<LifecycleConfiguration xmlns=\"{NAMESPACE}\"><Rule><ID>berth-unfinished-uploads</ID><Filter><Prefix></Prefix></Filter>\
         <Status>Enabled</Status><AbortIncompleteMultipartUpload><DaysAfterInitiation>{days}</DaysAfterInitiation>\
         </AbortIncompleteMultipartUpload></Rule></LifecycleConfiguration>"
    )
}

/// Enables versions, which object lock requires.
pub fn versioning() -> String {
    format!(
        "<VersioningConfiguration xmlns=\"{NAMESPACE}\"><Status>Enabled</Status></VersioningConfiguration>"
    )
}

/// `mode`: `GOVERNANCE` or `COMPLIANCE`.
pub fn object_lock(mode: &str, days: u32) -> String {
    format!(
        "<ObjectLockConfiguration xmlns=\"{NAMESPACE}\"><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
         <Mode>{mode}</Mode><Days>{days}</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
    )
}

/// Escapes text, including control characters, because an XML reader turns a carriage return into a
/// line feed.
fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            c if c.is_control() => into.push_str(&format!("&#{};", u32::from(c))),
            c => into.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_and_markers_come_in_any_order() {
        let text = "<?xml version=\"1.0\"?><ListVersionsResult xmlns=\"x\"><Name>b</Name><EncodingType>url</EncodingType>\
            <IsTruncated>true</IsTruncated><NextKeyMarker>e/a+b%26</NextKeyMarker><NextVersionIdMarker>2</NextVersionIdMarker>\
            <Version><Key>e/1</Key><VersionId>1</VersionId><LastModified>1970-01-01T00:00:07.000Z</LastModified><IsLatest>true</IsLatest><Size>7</Size><Owner><ID>x</ID></Owner></Version>\
            <DeleteMarker><Key>e/2</Key><VersionId>2</VersionId></DeleteMarker>\
            <Version><Key>e/a+b%26</Key><VersionId>null</VersionId><Size>0</Size></Version></ListVersionsResult>";
        let page = page(text.as_bytes()).unwrap();
        let version = |key: &str, id: &str, bytes| Version {
            key: key.into(),
            id: Some(id.into()),
            bytes,
            modified: None,
        };
        let modified = jiff::Timestamp::from_second(7).ok();
        assert_eq!(
            page.versions,
            [
                Version { modified, ..version("e/1", "1", 7) },
                version("e/a b&", "null", 0),
                version("e/2", "2", 0)
            ]
        );
        assert_eq!(page.next, Some(Marker { key: "e/a b&".into(), version: Some("2".into()) }));
    }

    #[test]
    fn a_list_without_versions_goes_on_after_its_last_key() {
        let text = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a+b</Key><Size>3</Size></Contents></ListBucketResult>";
        let page = page(text.as_bytes()).unwrap();
        assert_eq!(page.versions, [Version { key: "a+b".into(), bytes: 3, ..Version::default() }]);
        assert_eq!(page.next, Some(Marker { key: "a+b".into(), version: None }));
        assert!(
            super::page(b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>").is_err()
        );
        assert!(super::page(b"<html>").is_err());
    }

    #[test]
    fn of_an_answer_that_is_not_s3s_nothing_is_taken() {
        assert_eq!(
            refusal(b"<Error><Code>NoSuchBucket</Code><BucketName>b</BucketName></Error>").code,
            "NoSuchBucket"
        );
        for other in [&b"<html><body>404</body></html>"[..], b"", b"NoSuchBucket", b"\xff\xfe"] {
            assert_eq!(refusal(other).code, "");
        }
    }

    #[test]
    fn no_key_breaks_the_document() {
        let versions =
            [Version { key: "a<b>&\r\u{1}'\"ä".into(), id: Some("x&y".into()), ..Version::default() }];
        let text = delete(&versions);
        assert!(
            text.contains("<Key>a&lt;b&gt;&amp;&#13;&#1;'\"ä</Key><VersionId>x&amp;y</VersionId>"),
            "{text}"
        );
        assert_eq!(text.matches("<Object>").count(), 1);
    }

    proptest! {
        #[test]
        fn reading_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), text in "(<[A-Za-z/]{0,9}>|[a-z%+0-9]){0,20}") {
            let _ = (page(&body), refusal(&body), page(text.as_bytes()), read::<Deleted>(text.as_bytes()));
        }
    }
}
