//! HTTP to a store: time-outs, certificates, retries of faults that may pass, and reading the
//! store's Secret.

use std::fmt;
use std::time::Duration;

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::Secret;
use object_store::client::{
    Certificate, ClientOptions, HttpClient, HttpConnector as _, HttpRequestBody, ReqwestConnector,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::sleep;
use tracing::debug;

use super::{Result, StoreError};
use crate::text::chain;

/// Time-out of one request. Removing a thousand objects is one request.
const REQUEST: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(5);
/// Largest answer. A page of a thousand versions with the longest keys has less than 4 MiB.
const LARGEST: usize = 16 << 20;
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);
/// Characters that are encoded in a URL: all but the unreserved ones, as signatures require.
pub const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
pub const ENCODED_IN_KEY: AsciiSet = ENCODED.remove(b'/');

/// Appends a query. Names are not encoded, because they are words of the store's API.
pub fn add_query(url: &mut String, query: &[(&str, &str)]) {
    for (i, (name, value)) in query.iter().enumerate() {
        url.push(if i == 0 { '?' } else { '&' });
        url.push_str(name);
        url.push('=');
        url.extend(utf8_percent_encode(value, &ENCODED));
    }
}

pub type StoreRequest = http::Request<HttpRequestBody>;

pub struct StoreResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl StoreResponse {
    /// A header's value. Empty where there is none, or it is not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

pub struct StoreHttpClient(HttpClient);

impl StoreHttpClient {
    pub fn new(url: &str, config: &StoreConfig) -> Result<Self> {
        ReqwestConnector::default().connect(&options(url, config)?).map(Self).map_err(wrong)
    }

    /// Sends a request. Returns a success, or the error that `judge` makes of a refusal. `make`
    /// builds the request for each try, because a signature is valid for minutes only.
    pub async fn ask(
        &self,
        what: &str,
        make: impl Fn() -> Result<StoreRequest>,
        judge: impl Fn(&StoreResponse) -> StoreError,
    ) -> Result<StoreResponse> {
        let mut tried = 1;
        loop {
            let refused = match self.once(what, make()?).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(answer) => judge(&answer),
                Err(error) => error,
            };
            if !refused.fault.passes() || says_absent(&refused.word) || tried >= TRIES {
                return Err(refused);
            }
            debug!(error = %refused, tried, "a store did not do what was asked: once more");
            sleep(PAUSE * 2_u32.pow(tried)).await;
            tried += 1;
        }
    }

    async fn once(&self, what: &str, request: StoreRequest) -> Result<StoreResponse> {
        let failed =
            |why: &dyn fmt::Display| StoreError::new(StoreFault::Unavailable, format!("{what}: {why}"));
        let response = self.0.execute(request).await.map_err(|error| failed(&chain(&error)))?;
        let (head, body) = response.into_parts();
        // The time-out covers the body, too.
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| failed(&error))?.to_bytes();
        Ok(StoreResponse { status: head.status, headers: head.headers, body })
    }
}

/// Codes for a missing setting, version or upload. They are final answers, so a retry is of no use.
fn says_absent(word: &str) -> bool {
    word.starts_with("NoSuch")
        || word.ends_with("NotFoundError")
        // Azure's and Google's words for an object.
        || matches!(word, "BlobNotFound" | "notFound")
}

pub fn options(url: &str, config: &StoreConfig) -> Result<ClientOptions> {
    let options = ClientOptions::new()
        .with_timeout(REQUEST)
        .with_connect_timeout(CONNECT)
        .with_allow_http(url.starts_with("http:"))
        .with_allow_invalid_certificates(config.insecure_skip_tls_verify.unwrap_or_default());
    let Some(pem) = &config.ca_cert else { return Ok(options) };
    let certificates = Certificate::from_pem_bundle(pem.as_bytes())
        .map_err(|error| wrong(format!("spec.providerConfig.caCert: {error}")))?;
    Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
}

/// Checks an endpoint: a scheme, a host, and at most one path segment, so that an appended path
/// makes a valid URL.
pub fn address(endpoint: &str) -> Option<String> {
    let endpoint = endpoint.trim_end_matches('/');
    let url = reqwest::Url::parse(endpoint).ok()?;
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '/');
    let path = url.path().trim_matches('/');
    let is_well = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && endpoint.chars().all(is_plain)
        // Checked in the text, because the parsed URL does not show them.
        && !endpoint.contains("/.")
        && !path.contains('/');
    is_well.then(|| endpoint.to_owned())
}

pub fn wrong(what: impl fmt::Display) -> StoreError {
    StoreError::new(StoreFault::Configuration, what.to_string())
}

/// One value of a Secret, which must be one line. Empty where it is missing, empty or not one line.
pub fn word(secret: &Secret, key: &str) -> Option<String> {
    // A header allows no other characters, and no key of any store has others.
    text(secret, key).filter(|text| text.chars().all(|c| c.is_ascii_graphic())).map(str::to_owned)
}

pub fn text<'s>(secret: &'s Secret, key: &str) -> Option<&'s str> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// The error that names all missing keys of a Secret. It never quotes a value.
pub fn lacks(secret: &Secret, keys: &[(&str, bool)]) -> StoreError {
    let missing = keys.iter().filter(|(_, is_there)| !is_there).map(|(key, _)| *key);
    let missing = missing.collect::<Vec<_>>().join(" and ");
    wrong(format!("{} lacks {missing}", name(secret)))
}

pub fn name(secret: &Secret) -> String {
    let (namespace, name) = (secret.metadata.namespace.as_deref(), secret.metadata.name.as_deref());
    format!("Secret {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_something_is_not_there_is_an_answer_and_that_a_store_is_not_well_is_none() {
        for word in [
            "NoSuchLifecycleConfiguration",
            "NoSuchBucketPolicy",
            "NoSuchKey",
            "ServerSideEncryptionConfigurationNotFoundError",
            "ObjectLockConfigurationNotFoundError",
            "BlobNotFound",
            "notFound",
        ] {
            assert!(says_absent(word), "{word}");
        }
        for word in ["", "SlowDown", "InternalError", "OperationAborted", "ServiceUnavailable"] {
            assert!(!says_absent(word), "{word}");
        }
    }
}
