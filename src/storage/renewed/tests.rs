//! On the clock of this machine, because a store answers over the network. Nothing here waits for
//! time to pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use berth_api::velero::BackupStorageLocation;
use berth_test_scripted::{Scripted, get};
use futures::TryStreamExt as _;
use http::{Method, StatusCode};
use object_store::ObjectStoreExt as _;
use object_store::list::PaginatedListResult;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::storage::{MultipartTarget, Opened, Opener, Roots};

const SECRET: &str = "/api/v1/namespaces/velero/secrets/keys";

fn secret(id: &str) -> Value {
    let file = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=s\n");
    let data = base64::engine::general_purpose::STANDARD.encode(file);
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"cloud": data}})
}

/// A bucket, and how it refuses all keys but the new ones.
struct Bucket {
    refuses: Mutex<(StatusCode, &'static str)>,
    asked: AtomicUsize,
}

async fn answer(State(bucket): State<Arc<Bucket>>, request: Request) -> Response {
    bucket.asked.fetch_add(1, Ordering::Relaxed);
    let signed = request.headers().get(http::header::AUTHORIZATION);
    if !signed.is_some_and(|signed| signed.to_str().unwrap().contains("Credential=new/")) {
        let (status, code) = *bucket.refuses.lock();
        return (status, format!("<Error><Code>{code}</Code></Error>")).into_response();
    }
    let query = request.uri().query().unwrap_or_default();
    let text = match *request.method() {
        Method::POST if query.starts_with("uploads") => {
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        }
        Method::POST if query.starts_with("uploadId") => {
            "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        }
        Method::POST => "<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>",
        Method::GET if query.contains("list-type") => {
            "<ListBucketResult><Contents><Key>k</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size></Contents></ListBucketResult>"
        }
        _ => "",
    };
    let headers = [("etag", "e"), ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")];
    (headers, text).into_response()
}

/// A location at such a bucket, opened with the old keys.
async fn opened(api: &Scripted) -> (Opened, Arc<Bucket>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bucket = Arc::new(Bucket {
        refuses: Mutex::new((StatusCode::FORBIDDEN, "InvalidAccessKeyId")),
        asked: AtomicUsize::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(Arc::clone(&bucket));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let location: BackupStorageLocation = serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "away"},
        "spec": {
            "provider": "aws", "objectStorage": {"bucket": "b"}, "config": {"s3Url": url},
            "credential": {"name": "keys", "key": "cloud"},
        },
    }))
    .unwrap();
    api.next(get(SECRET).answers(secret("old")));
    let opener = Opener::new(api.client("velero"), "velero", Roots::default());
    (opener.open_with_parts(&location).await.unwrap(), bucket)
}

/// The requests that a backup sends.
const KINDS: [&str; 9] =
    ["put", "get", "list", "list folders", "delete", "begin", "put a part", "complete", "abort"];

async fn send(kind: &str, Opened { store, parts }: &Opened) -> Result<()> {
    let MultipartTarget::Bucket(parts) = parts else { unreachable!("it is no bucket") };
    let (path, id) = (Path::from("k"), "u".to_owned());
    match kind {
        "put" => store.put(&path, "x".into()).await.map(drop),
        "get" => store.get(&path).await.map(drop),
        "list" => store.list(None).try_collect::<Vec<_>>().await.map(|found| assert_eq!(found.len(), 1)),
        "list folders" => store.list_with_delimiter(None).await.map(drop),
        "delete" => store.delete(&path).await,
        "begin" => parts.create_multipart(&path).await.map(drop),
        "put a part" => parts.put_part(&path, &id, 0, "x".into()).await.map(drop),
        "complete" => {
            let part = PartId { content_id: "e".to_owned() };
            parts.complete_multipart(&path, &id, vec![part]).await.map(drop)
        }
        "abort" => parts.abort_multipart(&path, &id).await,
        other => unreachable!("{other}"),
    }
}

#[tokio::test]
async fn a_request_that_old_keys_are_refused_for_is_sent_again_with_the_new_ones() {
    for kind in KINDS {
        let api = Scripted::new();
        let (opened, bucket) = opened(&api).await;
        api.next(get(SECRET).answers(secret("new")));
        send(kind, &opened).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(bucket.asked.load(Ordering::Relaxed), 2, "{kind}");
    }
}

/// As S3 says that a session is over.
#[tokio::test]
async fn an_expired_session_is_a_refusal_too() {
    let api = Scripted::new();
    let (opened, bucket) = opened(&api).await;
    *bucket.refuses.lock() = (StatusCode::BAD_REQUEST, "ExpiredToken");
    api.next(get(SECRET).answers(secret("new")));
    send("put", &opened).await.unwrap();
}

/// A right is missing, and no other keys give it.
#[tokio::test]
async fn a_refusal_of_the_keys_that_the_secret_still_has_stands() {
    let api = Scripted::new();
    let (opened, bucket) = opened(&api).await;
    api.next(get(SECRET).answers(secret("old")));
    for _ in 0..3 {
        assert!(matches!(send("put", &opened).await, Err(Error::PermissionDenied { .. })));
    }
    assert_eq!(bucket.asked.load(Ordering::Relaxed), 3, "none is sent twice, and the Secret is read once");
}

/// A store whose lists have so many pages, each with these folders and a file.
struct Pages {
    count: usize,
    folders: Vec<String>,
    asked: Mutex<Vec<(Option<String>, PaginatedListOptions)>>,
}

impl PaginatedListStore for Pages {
    fn list_paginated<'s, 'p, 'f>(
        &'s self,
        prefix: Option<&'p str>,
        options: PaginatedListOptions,
    ) -> BoxFuture<'f, Result<PaginatedListResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        let page = options.page_token.as_ref().map_or(1, |token| token.parse::<usize>().unwrap() + 1);
        self.asked.lock().push((prefix.map(str::to_owned), options));
        let file = ObjectMeta {
            location: Path::from(format!("team/backups/file-{page}")),
            last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
            size: 1,
            e_tag: None,
            version: None,
        };
        let result = ListResult {
            common_prefixes: self.folders.iter().map(|folder| Path::from(folder.as_str())).collect(),
            objects: vec![file],
            extensions: http::Extensions::new(),
        };
        // The last page of some stores has an empty token.
        let token = if page < self.count { page.to_string() } else { String::new() };
        Box::pin(async move { Ok(PaginatedListResult { result, page_token: Some(token) }) })
    }
}

#[tokio::test]
async fn a_list_of_folders_has_all_pages_up_to_a_limit() {
    let all = ["team/backups/b", "team/backups/a"].map(str::to_owned).to_vec();
    let store = Pages { count: 3, folders: all, asked: Mutex::default() };
    let found = folders(&store, Some(&Path::from("team/backups"))).await.unwrap();
    assert_eq!(found.common_prefixes, ["team/backups/a", "team/backups/b"].map(Path::from));
    assert_eq!(found.objects.len(), 3);
    for (index, (prefix, options)) in store.asked.lock().iter().enumerate() {
        assert_eq!(prefix.as_deref(), Some("team/backups/"));
        assert_eq!(options.delimiter.as_deref(), Some("/"));
        assert_eq!(options.page_token, (index > 0).then(|| index.to_string()));
    }

    let store = Pages { count: usize::MAX, folders: vec!["x".repeat(1 << 20)], asked: Mutex::default() };
    let endless = chain(&folders(&store, Some(&Path::default())).await.unwrap_err());
    assert!(endless.contains("more at / than") && endless.contains("64 MiB"), "{endless}");
    assert_eq!(store.asked.lock().len(), 64);
    assert!(store.asked.lock().iter().all(|(prefix, _)| prefix.is_none()));
}
