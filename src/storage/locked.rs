//! Until when a store keeps an object, whoever deletes it. Stores say so in a header of each answer
//! about the object, which [`object_store`] does not read, so the clients of locations read it and
//! pass it on with the answer.

use futures::future::BoxFuture;
use http::{Extensions, HeaderMap};
use jiff::Timestamp;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use object_store::{Error, GetOptions, ObjectStore as _};

use super::layout::BackupLayout;

/// Headers by which Amazon, Google and Azure say it. They tell only those who may know it, as with
/// the right `s3:GetObjectRetention`.
const HEADERS: [&str; 3] = [
    "x-amz-object-lock-retain-until-date",
    "x-goog-object-lock-retain-until-date",
    "x-ms-immutability-policy-until-date",
];

/// Until when the store keeps an object, as its answer says it.
pub fn locked_until(headers: &HeaderMap) -> Option<Timestamp> {
    let read = |name: &str| {
        let text = headers.get(name)?.to_str().ok()?;
        let of_azure = || jiff::fmt::rfc2822::parse(text).ok().map(|time| time.timestamp());
        text.parse::<Timestamp>().ok().or_else(of_azure)
    };
    HEADERS.into_iter().filter_map(read).max()
}

/// What an answer says of a lock, in its extensions.
#[derive(Clone, Copy, Debug)]
struct LockedUntil(Timestamp);

/// Until when the store keeps an object, as it was told with an answer about it.
pub(super) fn told_lock(extensions: &Extensions) -> Option<Timestamp> {
    extensions.get::<LockedUntil>().map(|locked| locked.0)
}

/// Makes clients that read locks, around those of another connector.
#[derive(Debug)]
pub(super) struct LockReadingConnector<C>(pub(super) C);

impl<C: HttpConnector> HttpConnector for LockReadingConnector<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(LockReader(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct LockReader(HttpClient);

// The signature is that which `async_trait` generates, because object_store declares the trait with
// it.
impl HttpService for LockReader {
    fn call<'s, 'f>(&'s self, request: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let mut answer = self.0.execute(request).await?;
            if let Some(until) = locked_until(answer.headers()) {
                answer.extensions_mut().insert(LockedUntil(until));
            }
            Ok(answer)
        })
    }
}

impl BackupLayout {
    /// Until when the store keeps the archive, whoever deletes it. `None`: it does not, or does not
    /// say so. A survey tells the same of the two other files that backups have in any case.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn archive_locked_until(&self) -> object_store::Result<Option<Timestamp>> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store().get_opts(&self.archive(), options).await {
            Ok(found) => Ok(told_lock(&found.extensions)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};

    use base64::Engine as _;
    use berth_test_scripted::{Scripted, get};
    use http::{HeaderName, HeaderValue};
    use serde_json::{Value, json};

    use super::*;
    use crate::storage::{Opener, Roots};

    /// The answer to a list of the folder.
    const LISTED: &str = "<ListBucketResult><Contents><Key>backups/one/velero-backup.json</Key>\
        <LastModified>2026-12-25T15:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>2</Size></Contents>\
        <Contents><Key>backups/one/one.tar.gz</Key><LastModified>2026-12-25T15:00:00.000Z</LastModified>\
        <ETag>\"e\"</ETag><Size>5</Size></Contents></ListBucketResult>";

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn each_store_says_in_its_own_words_until_when_it_keeps_an_object() {
        for (name, value, until) in [
            ("x-amz-object-lock-retain-until-date", "2026-12-25T15:00:00.000Z", Some("2026-12-25T15:00:00Z")),
            ("x-goog-object-lock-retain-until-date", "2026-12-25T15:00:00Z", Some("2026-12-25T15:00:00Z")),
            (
                "x-ms-immutability-policy-until-date",
                "Fri, 25 Dec 2026 15:00:00 GMT",
                Some("2026-12-25T15:00:00Z"),
            ),
            ("x-amz-object-lock-retain-until-date", "soon", None),
            ("last-modified", "Fri, 25 Dec 2026 15:00:00 GMT", None),
        ] {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            assert_eq!(locked_until(&headers), until.map(time), "{name}: {value}");
        }
    }

    /// A store that locks the archive and `velero-backup.json`, and has no claim. Gives its URL.
    fn locking(header: &'static str, dates: [&'static str; 2]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (mut connection, mut asked) = (connection.unwrap(), Vec::new());
                let mut piece = [0; 4096];
                while !asked.ends_with(b"\r\n\r\n") {
                    match connection.read(&mut piece).unwrap() {
                        0 => break,
                        length => asked.extend_from_slice(&piece[..length]),
                    }
                }
                let asked = String::from_utf8_lossy(&asked).into_owned();
                if asked.is_empty() {
                    continue;
                }
                let file = asked.split(' ').nth(1).unwrap_or_default();
                let [metadata, archive] = dates;
                let (until, body) = if file.contains("list-type=2") {
                    (None, LISTED)
                } else if file.ends_with("/velero-backup.json") {
                    (Some(metadata), "{}")
                } else {
                    assert!(asked.starts_with("HEAD ") && file.ends_with("/one.tar.gz"), "{asked}");
                    (Some(archive), "")
                };
                let lock = until.map(|until| format!("{header}: {until}\r\n")).unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\n{lock}content-length: {}\r\netag: \"e\"\r\n\
                     last-modified: Fri, 25 Dec 2026 15:00:00 GMT\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    async fn layout(provider: &str, config: &Value, credentials: &str) -> BackupLayout {
        let data = json!({"cloud": base64::engine::general_purpose::STANDARD.encode(credentials)});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
        let api = Scripted::new().always(get("/api/v1/namespaces/velero/secrets/keys").answers(secret));
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "l"},
            "spec": {
                "provider": provider, "objectStorage": {"bucket": "b"}, "config": config,
                "credential": {"name": "keys", "key": "cloud"},
            },
        });
        let opener = Opener::new(api.client("velero"), "velero", Roots::default());
        let store = opener.open(&serde_json::from_value(location).unwrap()).await.unwrap();
        BackupLayout::new(store, None, "one")
    }

    #[tokio::test]
    async fn the_locks_of_a_backups_files_are_told_by_the_stores_that_have_locks() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dates = ["2026-12-25T15:00:00Z", "2027-01-01T00:00:00Z"];
        let url = locking("x-amz-object-lock-retain-until-date", dates);
        let keys = "[default]\naws_access_key_id=id\naws_secret_access_key=s\n";
        let found = layout("aws", &json!({"s3Url": url}), keys).await;
        assert_eq!(found.archive_locked_until().await.unwrap(), Some(time("2027-01-01T00:00:00Z")));
        let survey = found.survey().await.unwrap();
        assert!(survey.is_published && survey.stored.claim.is_none());
        assert_eq!(survey.locked_until, Some(time("2026-12-25T15:00:00Z")));
        let dates = ["Fri, 25 Dec 2026 15:00:00 GMT", "Fri, 01 Jan 2027 00:00:00 GMT"];
        let url = locking("x-ms-immutability-policy-until-date", dates);
        let config = json!({
            "storageAccount": "account", "storageAccountKeyEnvVar": "KEY", "storageAccountURI": url,
        });
        let found = layout("azure", &config, "KEY=c2VjcmV0\n").await;
        assert_eq!(found.archive_locked_until().await.unwrap(), Some(time("2027-01-01T00:00:00Z")));
    }
}
