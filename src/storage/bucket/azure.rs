//! Containers of an Azure storage account, by the Blob service's REST API and the account's key.
//! Settings of the account's owner (immutability, lifecycle, secure transfer) need another API,
//! Azure Resource Manager's, and other credentials.

use std::fmt;

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Method, header};
use k8s_openapi::api::core::v1::Secret;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequestBody;
use percent_encoding::utf8_percent_encode;
use serde_json::Value;

use super::transport::{
    ENCODED_IN_KEY, StoreHttpClient, StoreRequest, StoreResponse, add_query, address, lacks, name, text,
    word, wrong,
};
use super::{Created, Hold, Marker, Removal, Result, StoreError, Version, VersionPage, azure_listing, xml};

/// Keys of Gardener's Secrets (source: `gardener-extension-provider-azure` and
/// `etcd-backup-restore`).
const ACCOUNT: &str = "storageAccount";
const KEY: &str = "storageKey";
const DOMAIN: &str = "domain";
const PUBLIC_CLOUD: &str = "blob.core.windows.net";
/// Removals at the same time. Azure has no call that removes many blobs: its batches are single
/// requests in one body.
const REMOVED_AT_ONCE: usize = 16;
/// The query that addresses the container, not a blob in it.
const CONTAINER: (&str, &str) = ("restype", "container");

pub struct Azure {
    line: StoreHttpClient,
    account: String,
    credential: AzureCredential,
    container: String,
    /// URL of the container, without a slash at the end.
    url: String,
    is_lock_wanted: bool,
}

#[derive(Clone, Copy, Default)]
struct AzureRequest<'a> {
    key: Option<&'a str>,
    query: &'a [(&'a str, &'a str)],
    headers: &'a [(&'static str, &'static str)],
    /// JSON, or nothing.
    body: &'a str,
}

impl Azure {
    pub fn open(container: &str, config: &StoreConfig, secret: &Secret) -> Result<Self> {
        let (Some(account), Some(key)) = (word(secret, ACCOUNT), word(secret, KEY)) else {
            let is_there = |key| (key, word(secret, key).is_some());
            return Err(lacks(secret, &[is_there(ACCOUNT), is_there(KEY)]));
        };
        if !account.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            let name = name(secret);
            return Err(wrong(format!("{name}, {ACCOUNT}: accounts have names of a-z and 0-9")));
        }
        let Ok(key) = AzureAccessKey::try_new(&key) else {
            return Err(wrong(format!("{}, {KEY}: is not base64, as Azure gives it", name(secret))));
        };
        let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if container.is_empty() || !container.chars().all(is_label) {
            return Err(wrong(format!("metadata.name: {container:?} is not the name of a container")));
        }
        let service = match (&config.endpoint, text(secret, DOMAIN)) {
            (Some(endpoint), _) => address(endpoint).ok_or_else(|| {
                wrong(format!(
                    "spec.providerConfig.endpoint: {endpoint:?} is not the URL of an account's blobs: \
                     https://HOST, or https://HOST/ACCOUNT where the host serves many"
                ))
            })?,
            (None, domain) => {
                let domain = domain.unwrap_or(PUBLIC_CLOUD);
                let what = || format!("{}, {DOMAIN}: must be as in {PUBLIC_CLOUD}", name(secret));
                address(&format!("https://{account}.{domain}"))
                    .filter(|_| !domain.contains('/'))
                    .ok_or_else(|| wrong(what()))?
            }
        };
        let line = StoreHttpClient::new(&service, config)?;
        let url = format!("{service}/{container}");
        let (container, credential) = (container.to_owned(), AzureCredential::AccessKey(key));
        Ok(Self { line, account, credential, container, url, is_lock_wanted: config.object_lock.is_some() })
    }

    /// Creates the container. Another account cannot have its name, because names are unique per
    /// account.
    pub async fn create(&self) -> Result<Created> {
        match self.send(Method::PUT, AzureRequest { query: &[CONTAINER], ..AzureRequest::default() }).await {
            Ok(_) => Ok(Created::New),
            Err(error) if error.word == "ContainerAlreadyExists" => Ok(Created::Already),
            Err(error) => Err(error),
        }
    }

    pub async fn configure(&self) -> Result<Vec<String>> {
        let answer =
            self.send(Method::GET, AzureRequest { query: &[CONTAINER], ..AzureRequest::default() }).await?;
        let mut warnings = Vec::new();
        let access = answer.header("x-ms-blob-public-access");
        if !access.is_empty() {
            warnings.push(format!(
                "anybody may read the container (public access: {access}): somebody set that, and it stays; make it private"
            ));
        }
        if self.is_lock_wanted {
            let has_policy = answer.header("x-ms-has-immutability-policy") == "true";
            warnings.push(
                if has_policy {
                    "the container has an immutability policy, which stays: whether it is as spec.providerConfig.objectLock \
                     wants it, only Azure's management API tells"
                } else {
                    "spec.providerConfig.objectLock: only Azure's management API sets immutability policies, and it takes no \
                     storage keys: set one there, or leave objectLock out; until then nothing is kept from being removed"
                }
                .to_owned(),
            );
        }
        Ok(warnings)
    }

    /// Deletes the container if it is empty. Azure deletes a container with its contents, so the
    /// container is listed first. A blob that is written in between is lost.
    pub async fn delete(&self) -> Result<()> {
        if let Some(found) = self.page("", None, 1).await?.versions.first() {
            let message = format!("{self} is not empty: {} is in it, for one", found.key);
            return Err(StoreError::new(StoreFault::NotEmpty, message));
        }
        self.send(Method::DELETE, AzureRequest { query: &[CONTAINER], ..AzureRequest::default() })
            .await
            .map(|_| ())
    }

    /// Lists blobs with snapshots and earlier versions, but without soft-deleted ones, which cannot
    /// be deleted again.
    pub async fn page(&self, prefix: &str, after: Option<&Marker>, most: usize) -> Result<VersionPage> {
        let most = most.to_string();
        let mut query = vec![
            CONTAINER,
            ("comp", "list"),
            ("include", "snapshots,versions"),
            ("maxresults", &most),
            ("prefix", prefix),
        ];
        query.extend(after.map(|after| ("marker", after.key.as_str())));
        let answer =
            self.send(Method::GET, AzureRequest { query: &query, ..AzureRequest::default() }).await?;
        let page = azure_listing::page(&answer.body).map_err(|error| self.unreadable(&error))?;
        match page.versions.iter().find(|version| !version.key.starts_with(prefix)) {
            Some(strange) => Err(self.unreadable(&format!("{} was not asked for", strange.key))),
            None => Ok(page),
        }
    }

    pub async fn remove(&self, versions: Vec<Version>) -> Result<Removal> {
        let each =
            versions.into_iter().map(|version| async move { (self.remove_one(&version).await, version) });
        let mut ended = stream::iter(each).buffer_unordered(REMOVED_AT_ONCE);
        let mut removal = Removal::default();
        while let Some((removed, version)) = ended.next().await {
            match removed {
                Ok(()) => removal.removed.push(version),
                Err(error) if error.word.starts_with("BlobImmutable") => removal.kept.push(version),
                Err(error) => {
                    removal.failed.get_or_insert(error);
                }
            }
        }
        Ok(removal)
    }

    async fn remove_one(&self, version: &Version) -> Result<()> {
        let key = Some(version.key.as_str());
        let of_that = |(name, value)| [(name, value)];
        let with_snapshots = [("x-ms-delete-snapshots", "include")];
        let whole = AzureRequest { key, headers: &with_snapshots, ..AzureRequest::default() };
        match azure_listing::BlobVersion::of(version) {
            azure_listing::BlobVersion::Only => self.gone(whole).await,
            azure_listing::BlobVersion::Snapshot(time) => {
                self.gone(AzureRequest {
                    key,
                    query: &of_that(("snapshot", time)),
                    ..AzureRequest::default()
                })
                .await
            }
            azure_listing::BlobVersion::Version(id) => {
                self.gone(AzureRequest { key, query: &of_that(("versionid", id)), ..AzureRequest::default() })
                    .await
            }
            // The current version cannot be deleted by its version id. Deleting the blob makes it
            // an earlier version.
            azure_listing::BlobVersion::Current(id) => {
                self.gone(whole).await?;
                self.gone(AzureRequest { key, query: &of_that(("versionid", id)), ..AzureRequest::default() })
                    .await
            }
        }
    }

    async fn gone(&self, call: AzureRequest<'_>) -> Result<()> {
        match self.send(Method::DELETE, call).await {
            Err(error) if error.word != "BlobNotFound" => Err(error),
            _ => Ok(()),
        }
    }

    pub async fn read_object(&self, key: &str) -> Result<Option<Bytes>> {
        match self.send(Method::GET, AzureRequest { key: Some(key), ..AzureRequest::default() }).await {
            Ok(answer) => Ok(Some(answer.body)),
            Err(error) if error.word == "BlobNotFound" => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn create_object(&self, key: &str, object: &Value) -> Result<()> {
        let headers = [("x-ms-blob-type", "BlockBlob"), ("if-none-match", "*")];
        let body = object.to_string();
        let call = AzureRequest { key: Some(key), headers: &headers, body: &body, ..AzureRequest::default() };
        self.send(Method::PUT, call).await.map(|_| ())
    }

    pub async fn hold(&self, version: &Version) -> Result<Hold> {
        let key = Some(version.key.as_str());
        let query = match azure_listing::BlobVersion::of(version) {
            azure_listing::BlobVersion::Only => Vec::new(),
            azure_listing::BlobVersion::Snapshot(time) => vec![("snapshot", time)],
            azure_listing::BlobVersion::Version(id) | azure_listing::BlobVersion::Current(id) => {
                vec![("versionid", id)]
            }
        };
        let answer = match self
            .send(Method::HEAD, AzureRequest { key, query: &query, ..AzureRequest::default() })
            .await
        {
            Err(error) if error.word == "BlobNotFound" => return Ok(Hold::None),
            answer => answer?,
        };
        if answer.header("x-ms-legal-hold") == "true" {
            return Ok(Hold::Indefinite);
        }
        let until = answer.header("x-ms-immutability-policy-until-date");
        if !until.is_empty() {
            let until = azure_listing::time(until)
                .ok_or_else(|| self.unreadable(&format!("{until:?} is no time")))?;
            return Ok(Hold::Until(until));
        }
        // The container's policy. The account's key cannot read how long it lasts.
        let container =
            self.send(Method::GET, AzureRequest { query: &[CONTAINER], ..AzureRequest::default() }).await?;
        let is_held = ["x-ms-has-immutability-policy", "x-ms-has-legal-hold"]
            .iter()
            .any(|header| container.header(header) == "true");
        Ok(if is_held { Hold::Indefinite } else { Hold::None })
    }

    async fn send(&self, method: Method, call: AzureRequest<'_>) -> Result<StoreResponse> {
        let what = match call.key {
            Some(key) => format!("{method} {}/{key}", self.container),
            None => format!("{method} {self}"),
        };
        let judge = |answer: &StoreResponse| refusal(&what, answer);
        self.line
            .ask(
                &what,
                || self.request(&method, call).map_err(|error| wrong(format!("{what}: {error}"))),
                judge,
            )
            .await
    }

    fn request(&self, method: &Method, call: AzureRequest<'_>) -> Result<StoreRequest> {
        let mut url = self.url.clone();
        if let Some(key) = call.key {
            // Refused, because no encoding of such a key keeps the URL in the container.
            if key.split('/').any(|part| matches!(part, "." | "..")) {
                return Err(wrong(
                    "a key with \".\" or \"..\" between slashes has no address: rename the blob",
                ));
            }
            url.push('/');
            url.extend(utf8_percent_encode(key, &ENCODED_IN_KEY));
        }
        add_query(&mut url, call.query);
        let mut builder = http::Request::builder().method(method.clone()).uri(url);
        for (name, value) in call.headers {
            builder = builder.header(*name, HeaderValue::from_static(value));
        }
        let body = if call.body.is_empty() {
            HttpRequestBody::empty()
        } else {
            // Both are signed.
            builder = builder
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, call.body.len());
            HttpRequestBody::from(call.body.to_owned())
        };
        let mut request = builder.body(body).map_err(wrong)?;
        AzureAuthorizer::new(&self.credential, &self.account).try_authorize(&mut request).map_err(wrong)?;
        Ok(request)
    }

    fn unreadable(&self, error: &str) -> StoreError {
        StoreError::new(
            StoreFault::Unavailable,
            format!("{self}: the store's answer is not Azure's: {error}"),
        )
    }
}

impl fmt::Display for Azure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {}", self.container)
    }
}

fn refusal(what: &str, answer: &StoreResponse) -> StoreError {
    let told = xml::refusal(&answer.body);
    // The code comes from the header, because an answer to HEAD has no body.
    let code = Some(answer.header("x-ms-error-code")).filter(|code| !code.is_empty()).unwrap_or(&told.code);
    let mut message = format!("{what}: {}", answer.status.as_u16());
    // Only the first line of the message: request ids for Azure's support follow, and the body may
    // hold the string to sign.
    for word in [code, told.message.lines().next().unwrap_or_default()] {
        if !word.is_empty() {
            message = format!("{message} {word}");
        }
    }
    StoreError { fault: StoreFault::of(answer.status.as_u16(), code), word: code.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        let data = pairs.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec())));
        Secret { data: Some(data.collect()), ..Secret::default() }
    }

    fn open(container: &str, endpoint: Option<&str>, more: &[(&str, &str)]) -> Result<Azure> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = StoreConfig { endpoint: endpoint.map(str::to_owned), ..StoreConfig::default() };
        let pairs = [&[(ACCOUNT, "acc1"), (KEY, "c2VjcmV0")], more].concat();
        Azure::open(container, &config, &secret(&pairs))
    }

    #[test]
    fn a_container_has_one_address() {
        let url =
            |endpoint, more: &[_]| open("c", endpoint, more).map(|azure| azure.url).map_err(|e| e.message);
        assert_eq!(url(None, &[]).as_deref(), Ok("https://acc1.blob.core.windows.net/c"));
        let china = [(DOMAIN, "blob.core.chinacloudapi.cn")];
        assert_eq!(url(None, &china).as_deref(), Ok("https://acc1.blob.core.chinacloudapi.cn/c"));
        assert_eq!(url(Some("http://127.0.0.1:1/acc1/"), &china).as_deref(), Ok("http://127.0.0.1:1/acc1/c"));
        for wrong in [
            "",
            "host",
            "ftp://host",
            "http://h/a/b",
            "http://u@h",
            "http://h?x",
            "http://h:99999",
            "http://h/..",
        ] {
            assert!(url(Some(wrong), &[]).is_err(), "{wrong:?}");
        }
        assert!(url(None, &[(DOMAIN, "x/y")]).is_err() && url(None, &[(DOMAIN, "a b")]).is_err());
        assert!(open("../x", None, &[]).is_err() && open("", None, &[]).is_err());
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_and_nothing_is_quoted() {
        let said = |pairs: &[_]| {
            Azure::open("c", &StoreConfig::default(), &secret(pairs))
                .err()
                .map(|e| e.message)
                .unwrap_or_default()
        };
        assert_eq!(said(&[]), "Secret / lacks storageAccount and storageKey");
        assert_eq!(
            said(&[(ACCOUNT, "acc1"), (KEY, "no*base64")]),
            "Secret /, storageKey: is not base64, as Azure gives it"
        );
        assert_eq!(
            said(&[(ACCOUNT, "a.b"), (KEY, "c2VjcmV0")]),
            "Secret /, storageAccount: accounts have names of a-z and 0-9"
        );
    }

    #[test]
    fn a_key_cannot_leave_its_container() {
        let azure = open("c", Some("http://s/acc1"), &[]).unwrap();
        let uri = |key| {
            let query = [("versionid", "2026-11-22T08:00:00.1Z")];
            let call = AzureRequest { key: Some(key), query: &query, headers: &[], body: "" };
            azure.request(&Method::DELETE, call).map(|request| request.uri().to_string())
        };
        let wanted = "http://s/acc1/c/e/%C3%A4%20%3F%23%25%26%2B.txt?versionid=2026-11-22T08%3A00%3A00.1Z";
        assert_eq!(uri("e/ä ?#%&+.txt").as_deref(), Ok(wanted));
        for wrong in ["e/../f", "..", "e/./f", "e/.."] {
            assert!(uri(wrong).is_err(), "{wrong:?}");
        }
    }
}
