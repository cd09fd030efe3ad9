//! The client of an S3-compatible server: it signs requests, and maps errors to faults.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use k8s_openapi::api::core::v1::Secret;
use md5::{Digest as _, Md5};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use percent_encoding::utf8_percent_encode;

use super::transport::{
    ENCODED_IN_KEY, StoreHttpClient, StoreRequest, StoreResponse, add_query, lacks, word, wrong,
};
use super::{Result, StoreError, xml};

const BUCKET_REGION: &str = "x-amz-bucket-region";
const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");
/// The checksum header that some S3-compatible stores require; they support no newer one.
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Keys of Gardener's Secrets (source: `gardener-extension-provider-aws`).
pub struct S3Credentials(AwsCredential);

impl S3Credentials {
    /// # Errors
    /// [`StoreFault::Configuration`] with the names of all missing keys. It never quotes a value.
    pub fn read(secret: &Secret) -> Result<Self> {
        match (word(secret, "accessKeyID"), word(secret, "secretAccessKey")) {
            (Some(key_id), Some(secret_key)) => {
                Ok(Self(AwsCredential { key_id, secret_key, token: word(secret, "sessionToken") }))
            }
            (id, key) => {
                Err(lacks(secret, &[("accessKeyID", id.is_some()), ("secretAccessKey", key.is_some())]))
            }
        }
    }

    /// Signs a request. `digest`: SHA-256 of the body.
    pub fn sign(
        &self,
        request: &mut StoreRequest,
        service: &str,
        region: &str,
        digest: &[u8],
    ) -> object_store::Result<()> {
        AwsAuthorizer::new(&self.0, service, region).try_authorize(request, Some(digest))
    }
}

/// A request to the bucket, or to a key in it.
#[derive(Default)]
pub struct S3Request<'a> {
    pub method: Method,
    pub key: Option<&'a str>,
    /// The query, in any order.
    pub query: &'a [(&'a str, &'a str)],
    pub headers: &'a [(&'static str, &'a str)],
    pub body: String,
}

/// One bucket of a server.
pub struct Endpoint {
    line: StoreHttpClient,
    keys: S3Credentials,
    pub region: String,
    pub bucket: String,
    /// URL of the bucket, without a slash at the end.
    url: String,
}

impl Endpoint {
    pub fn new(bucket: &str, region: &str, config: &StoreConfig, keys: S3Credentials) -> Result<Self> {
        let endpoint = config.endpoint.as_deref().map(|url| url.trim_end_matches('/'));
        let (scheme, host) = match endpoint {
            None => ("https", format!("s3.{region}.{}", domain(region))),
            Some(url) => {
                let split = url.split_once("://").filter(|(scheme, host)| {
                    matches!(*scheme, "http" | "https")
                        && !host.is_empty()
                        && !host.contains(['/', '?', '#', '@'])
                });
                let (scheme, host) = split.ok_or_else(|| {
                    wrong(format!(
                        "spec.providerConfig.endpoint: {url:?} is not a URL of a store: http:// or https://, a host, no path"
                    ))
                })?;
                (scheme, host.to_owned())
            }
        };
        let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if bucket.is_empty() || !bucket.chars().all(is_label) {
            return Err(wrong(format!("metadata.name: {bucket:?} is not the name of a bucket")));
        }
        // A bucket with dots goes into the path, because a certificate for `*.host` does not cover
        // it.
        let path_style = config.force_path_style.unwrap_or(endpoint.is_some()) || bucket.contains('.');
        let url = if path_style {
            format!("{scheme}://{host}/{bucket}")
        } else {
            format!("{scheme}://{bucket}.{host}")
        };
        url.parse::<http::Uri>().map_err(|error| wrong(format!("{url} is no URL: {error}")))?;
        let line = StoreHttpClient::new(&url, config)?;
        Ok(Self { line, keys, region: region.to_owned(), bucket: bucket.to_owned(), url })
    }

    pub fn is_encrypted(&self) -> bool {
        self.url.starts_with("https:")
    }

    /// Sends a request, and returns the body of a success.
    pub async fn send(&self, call: S3Request<'_>) -> Result<Bytes> {
        let what = format!("{} {}", call.method, self.name(&call));
        let asked = self.line.ask(&what, || self.request(&call), |answer| self.refusal(&call, answer));
        Ok(asked.await?.body)
    }

    fn request(&self, call: &S3Request<'_>) -> Result<StoreRequest> {
        let mut url = self.url.clone();
        if let Some(key) = call.key {
            url.push('/');
            url.extend(utf8_percent_encode(key, &ENCODED_IN_KEY));
        } else if !call.query.is_empty() {
            url.push('/');
        }
        add_query(&mut url, call.query);
        let wrong = |error: &dyn fmt::Display| wrong(format!("{} {}: {error}", call.method, self.name(call)));
        let mut builder = http::Request::builder().method(call.method.clone()).uri(url);
        let digest = ring::digest::digest(&ring::digest::SHA256, call.body.as_bytes());
        if !call.body.is_empty() {
            builder = builder
                .header(http::header::CONTENT_TYPE, "application/xml")
                .header(CHECKSUM, STANDARD.encode(digest.as_ref()))
                .header(CONTENT_MD5, STANDARD.encode(Md5::digest(call.body.as_bytes())));
        }
        for (name, value) in call.headers {
            let value = HeaderValue::from_str(value).map_err(|error| wrong(&error))?;
            builder = builder.header(*name, value);
        }
        let body = HttpRequestBody::from(call.body.clone());
        let mut request = builder.body(body).map_err(|error| wrong(&error))?;
        let signed = self.keys.sign(&mut request, "s3", &self.region, digest.as_ref());
        signed.map_err(|error| wrong(&error))?;
        Ok(request)
    }

    fn refusal(&self, call: &S3Request<'_>, answer: &StoreResponse) -> StoreError {
        let refusal = xml::refusal(&answer.body);
        let status = answer.status;
        let mut message = format!("{} {}: {}", call.method, self.name(call), status.as_u16());
        for word in [&refusal.code, &refusal.message] {
            if !word.is_empty() {
                message = format!("{message} {word}");
            }
        }
        let elsewhere = Some(answer.header(BUCKET_REGION)).filter(|region| !region.is_empty());
        let elsewhere = elsewhere.or(refusal.region.as_deref()).filter(|region| *region != self.region);
        if let Some(elsewhere) = elsewhere {
            message = format!(
                "{message}; the bucket lies in region {elsewhere}, and this asks for {}",
                self.region
            );
        }
        let fault = StoreFault::of(status.as_u16(), &refusal.code);
        StoreError { fault, word: refusal.code, message }
    }

    fn name(&self, call: &S3Request<'_>) -> String {
        let what: Vec<&str> =
            call.query.iter().filter(|(_, v)| v.is_empty()).map(|(name, _)| *name).collect();
        match (call.key, what.as_slice()) {
            (Some(key), _) => format!("{}/{key}", self.bucket),
            (None, []) => format!("bucket {}", self.bucket),
            (None, what) => format!("bucket {} ({})", self.bucket, what.join(", ")),
        }
    }
}

pub fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

/// The partition in Amazon Resource Names of this region.
pub fn partition(region: &str) -> &'static str {
    match region.split('-').take(2).collect::<Vec<_>>().as_slice() {
        ["cn", ..] => "aws-cn",
        ["us", "gov"] => "aws-us-gov",
        _ => "aws",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{HeaderMap, StatusCode};
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        let data: BTreeMap<_, _> =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect();
        let metadata = ObjectMeta {
            name: Some("keys".to_owned()),
            namespace: Some("garden".to_owned()),
            ..ObjectMeta::default()
        };
        Secret { data: Some(data), metadata, ..Secret::default() }
    }

    fn endpoint(bucket: &str, config: &StoreConfig) -> Result<Endpoint> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let keys = S3Credentials::read(&secret(&[("accessKeyID", "id"), ("secretAccessKey", "word")]))?;
        Endpoint::new(bucket, "eu-west-1", config, keys)
    }

    #[test]
    fn missing_keys_are_named_and_nothing_is_quoted() {
        let lacks = |pairs: &[(&str, &str)]| {
            S3Credentials::read(&secret(pairs)).err().map(|e| e.message).unwrap_or_default()
        };
        assert_eq!(lacks(&[]), "Secret garden/keys lacks accessKeyID and secretAccessKey");
        assert_eq!(
            lacks(&[("accessKeyID", "id"), ("secretAccessKey", " ")]),
            "Secret garden/keys lacks secretAccessKey"
        );
        assert_eq!(
            lacks(&[("accessKeyID", "a\nb"), ("secretAccessKey", "x")]),
            "Secret garden/keys lacks accessKeyID"
        );
        assert_eq!(lacks(&[("accessKeyID", "id\n"), ("secretAccessKey", "word")]), "");
    }

    #[test]
    fn a_bucket_has_one_address() {
        let url = |bucket: &str, config: &StoreConfig| {
            endpoint(bucket, config).map(|e| e.url).map_err(|e| e.message)
        };
        let at =
            |endpoint: &str| StoreConfig { endpoint: Some(endpoint.to_owned()), ..StoreConfig::default() };
        let none = StoreConfig::default();
        assert_eq!(url("b", &none).as_deref(), Ok("https://b.s3.eu-west-1.amazonaws.com"));
        assert_eq!(url("b.c", &none).as_deref(), Ok("https://s3.eu-west-1.amazonaws.com/b.c"));
        assert_eq!(url("b", &at("http://127.0.0.1:1/")).as_deref(), Ok("http://127.0.0.1:1/b"));
        let hosted = StoreConfig { force_path_style: Some(false), ..at("https://store") };
        assert_eq!(url("b", &hosted).as_deref(), Ok("https://b.store"));
        for wrong in
            ["", "store", "ftp://store", "http://", "http://store/path", "http://me@store", "http://a b"]
        {
            assert!(url("b", &at(wrong)).is_err(), "{wrong:?}");
        }
        for wrong in ["", "a/b", "B", "../x", "a?b"] {
            assert!(url(wrong, &none).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_cannot_leave_its_bucket() {
        let endpoint =
            endpoint("b", &StoreConfig { endpoint: Some("http://s".to_owned()), ..StoreConfig::default() });
        let endpoint = endpoint.unwrap();
        let query = [("versionId", "a&b=c"), ("retention", "")];
        let call = S3Request { key: Some("e/ä ?#%&+.txt"), query: &query, ..S3Request::default() };
        let uri = endpoint.request(&call).unwrap().uri().to_string();
        assert_eq!(uri, "http://s/b/e/%C3%A4%20%3F%23%25%26%2B.txt?versionId=a%26b%3Dc&retention=");
    }

    #[test]
    fn a_bucket_elsewhere_is_said_to_be_there() {
        let endpoint = endpoint("b", &StoreConfig::default()).unwrap();
        let region = HeaderValue::from_static("us-west-2");
        let answer = StoreResponse {
            status: StatusCode::MOVED_PERMANENTLY,
            headers: HeaderMap::from_iter([(HeaderName::from_static(BUCKET_REGION), region)]),
            body: "<Error><Code>PermanentRedirect</Code><Message>Not here.</Message></Error>".into(),
        };
        let error = endpoint.refusal(&S3Request::default(), &answer);
        assert_eq!(error.fault, StoreFault::Configuration);
        let message = "GET bucket b: 301 PermanentRedirect Not here.; the bucket lies in region us-west-2, and this asks for eu-west-1";
        assert_eq!(error.message, message);
    }
}
