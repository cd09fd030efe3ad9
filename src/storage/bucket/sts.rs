//! Amazon's Security Token Service and compatible ones (source: its API reference, 2011-06-15):
//! keys with fewer rights than those that request them, and with an expiry.

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use berth_garden_core::scope::RemovalScope;
use http::Method;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use object_store::client::HttpRequestBody;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use serde_json::json;

use super::s3_client::{S3Credentials, domain, partition};
use super::transport::{ENCODED, StoreHttpClient, StoreRequest, StoreResponse, wrong};
use super::{Result, StoreError, xml};

const VERSION: &str = "2011-06-15";
/// Every role allows sessions of this length.
const MINUTES_OF_A_ROLE: u32 = 60;
const MINUTES_OF_A_USER: u32 = 720;
/// Most characters of a session name, which the account's audit log shows.
const LONGEST_NAME: usize = 32;

/// The service that issues keys, and the keys that sign requests to it.
pub struct Sts {
    line: StoreHttpClient,
    keys: S3Credentials,
    region: String,
    url: String,
    role: Option<String>,
    minutes: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SessionCredentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: String,
    expiration: String,
    #[serde(skip)]
    pub expire_at: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Response {
    assume_role_result: Option<StsResult>,
    get_federation_token_result: Option<StsResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StsResult {
    credentials: SessionCredentials,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct StsErrorResponse {
    error: xml::S3Refusal,
}

impl Sts {
    /// Sends no request. `secret`: the keys with rights to the whole store.
    ///
    /// # Errors
    /// [`StoreFault::Configuration`], with the faults of the settings or the Secret.
    pub fn open(region: &str, config: &StoreConfig, secret: &Secret) -> Result<Self> {
        let url = match &config.sts_endpoint {
            Some(endpoint) => format!("{}/", endpoint.trim_end_matches('/')),
            None => format!("https://sts.{region}.{}/", domain(region)),
        };
        url.parse::<http::Uri>().map_err(|error| wrong(format!("{url} is no URL: {error}")))?;
        let role = config.role_arn.clone();
        let usual = if role.is_some() { MINUTES_OF_A_ROLE } else { MINUTES_OF_A_USER };
        Ok(Self {
            line: StoreHttpClient::new(&url, config)?,
            keys: S3Credentials::read(secret)?,
            region: region.to_owned(),
            url,
            role,
            minutes: config.key_minutes.unwrap_or(usual),
        })
    }

    /// Requests keys with the rights that both `policy` and the role or user allow. `whose`: name
    /// for the account's audit log.
    ///
    /// # Errors
    /// The service's error.
    pub async fn make(&self, whose: &str, policy: &str) -> Result<SessionCredentials> {
        let body = self.body(whose, policy);
        let refusal = |answer: &StoreResponse| self.refusal(answer);
        let answer = self.line.ask(self.action(), || self.request(&body), refusal).await?;
        read(&answer.body).map_err(|error| {
            let message = format!("{}: the answer of {} is not STS's: {error}", self.action(), self.url);
            StoreError::new(StoreFault::Unavailable, message)
        })
    }

    fn action(&self) -> &'static str {
        if self.role.is_some() { "AssumeRole" } else { "GetFederationToken" }
    }

    fn body(&self, whose: &str, policy: &str) -> String {
        let seconds = self.minutes.saturating_mul(60).to_string();
        let name: String = format!("berth-{whose}").chars().take(LONGEST_NAME).collect();
        let mut fields = vec![("Action", self.action()), ("Version", VERSION)];
        match &self.role {
            Some(role) => fields.extend([("RoleArn", role.as_str()), ("RoleSessionName", name.as_str())]),
            None => fields.push(("Name", name.as_str())),
        }
        fields.extend([("DurationSeconds", seconds.as_str()), ("Policy", policy)]);
        let fields =
            fields.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, &ENCODED)));
        fields.collect::<Vec<_>>().join("&")
    }

    fn request(&self, body: &str) -> Result<StoreRequest> {
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(self.url.as_str())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded; charset=utf-8")
            .body(HttpRequestBody::from(body.to_owned()));
        let mut request = request.map_err(wrong)?;
        let digest = ring::digest::digest(&ring::digest::SHA256, body.as_bytes());
        self.keys.sign(&mut request, "sts", &self.region, digest.as_ref()).map_err(wrong)?;
        Ok(request)
    }

    fn refusal(&self, answer: &StoreResponse) -> StoreError {
        let refused = xml::read::<StsErrorResponse>(&answer.body).unwrap_or_default().error;
        let status = answer.status.as_u16();
        let mut message = format!("{} at {}: {status}", self.action(), self.url);
        for word in [&refused.code, &refused.message] {
            if !word.is_empty() {
                message = format!("{message} {word}");
            }
        }
        StoreError { fault: StoreFault::of(status, &refused.code), word: refused.code, message }
    }
}

fn read(body: &[u8]) -> std::result::Result<SessionCredentials, String> {
    let response: Response = xml::read(body)?;
    let outcome = response.assume_role_result.or(response.get_federation_token_result);
    let made = outcome.ok_or("it has no keys")?.credentials;
    let expire_at = made.expiration.parse::<Timestamp>();
    let expire_at = expire_at.map_err(|error| format!("{:?} is no time: {error}", made.expiration))?;
    Ok(SessionCredentials { expire_at, ..made })
}

/// The policy of keys for one directory, in Amazon's language. Bucket and directory are names of
/// Kubernetes objects, so they hold no wildcard.
///
/// The keys can list names of objects outside the directory. Without the right to list the whole
/// bucket, S3 answers 403 instead of 404 for a missing object, and refuses HeadBucket, which
/// Velero's uploaders call first.
pub fn policy(bucket: &str, region: &str, directory: &RemovalScope) -> String {
    let bucket = format!("arn:{}:s3:::{bucket}", partition(region));
    let directories = [Some(directory.clone()), directory.notes()];
    let objects: Vec<String> =
        directories.iter().flatten().map(|scope| format!("{bucket}/{}*", scope.prefix())).collect();
    let policy = json!({
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [
                    "s3:AbortMultipartUpload",
                    "s3:DeleteObject",
                    "s3:DeleteObjectVersion",
                    "s3:GetObject",
                    "s3:GetObjectLegalHold",
                    "s3:GetObjectRetention",
                    "s3:GetObjectTagging",
                    "s3:GetObjectVersion",
                    "s3:ListMultipartUploadParts",
                    "s3:PutObject",
                    "s3:PutObjectTagging",
                ],
                "Resource": objects,
            },
            {
                "Effect": "Allow",
                "Action": [
                    "s3:GetBucketLocation",
                    "s3:GetBucketObjectLockConfiguration",
                    "s3:ListBucket",
                    "s3:ListBucketMultipartUploads",
                    "s3:ListBucketVersions",
                ],
                "Resource": bucket,
            },
            // For a bucket that is encrypted with a customer-managed KMS key.
            {
                "Effect": "Allow",
                "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
                "Resource": "*",
                "Condition": {"StringLike": {"kms:ViaService": "s3.*"}},
            },
        ],
    });
    policy.to_string()
}

#[cfg(test)]
mod tests;
