//! A limit to what a store answers. [`object_store`] reads all of an answer that is no object into
//! memory: the text of an error, a page of a list. Whoever runs a store, or answers in its place,
//! chooses how large it is.

use futures::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};

/// Bytes of an answer that is no object. A page of five thousand files with the longest names, as
/// Azure gives it, has less.
const LARGEST: usize = 32 << 20;
/// Bytes of the text of an error.
const LARGEST_ERROR: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
#[error("the store's answer is larger than berth reads")]
struct TooLarge;

/// Makes clients that read no more of an answer than that, around those of another connector.
#[derive(Debug)]
pub(super) struct LimitedConnector<C>(pub(super) C);

impl<C: HttpConnector> HttpConnector for LimitedConnector<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.0.connect(options).map(|client| HttpClient::new(LimitedClient(client)))
    }
}

#[derive(Debug)]
struct LimitedClient(HttpClient);

// The signature is that which `async_trait` generates, because object_store declares the trait with
// it.
impl HttpService for LimitedClient {
    fn call<'s, 'f>(&'s self, request: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let is_object = *request.method() == Method::GET && !is_list(request.uri());
            let (head, body) = self.0.execute(request).await?.into_parts();
            let body = Limited::new(body, most(is_object, head.status, &head.headers)).map_err(|error| {
                match error.downcast::<HttpError>() {
                    Ok(error) => *error,
                    Err(_) => HttpError::new(HttpErrorKind::Decode, TooLarge),
                }
            });
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
        })
    }
}

/// Is it a request for a page of a list? Otherwise a GET is one for an object.
fn is_list(uri: &Uri) -> bool {
    let mut query = uri.query().unwrap_or_default().split('&');
    query.any(|one| matches!(one, "list-type=2" | "comp=list"))
}

/// How many bytes of an answer are read: of an object as many as the store says that it has,
/// because whoever asks for one decides by that whether to read it.
fn most(is_object: bool, status: StatusCode, headers: &HeaderMap) -> usize {
    if !status.is_success() {
        return LARGEST_ERROR;
    }
    let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    said.filter(|_| is_object).unwrap_or(LARGEST)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use base64::Engine as _;
    use berth_test_scripted::{Scripted, get};
    use object_store::ObjectStore as _;
    use object_store::client::HttpRequestBody;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::storage::{Opener, Roots};
    use crate::text::chain;

    /// A store that answers so, whatever it is asked.
    #[derive(Clone, Copy, Debug)]
    struct Answer {
        status: u16,
        said: Option<usize>,
        bytes: usize,
    }

    impl HttpService for Answer {
        fn call<'s, 'f>(&'s self, _: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
        where
            's: 'f,
            Self: 'f,
        {
            Box::pin(async move {
                let mut answer = http::Response::builder().status(self.status);
                if let Some(said) = self.said {
                    answer = answer.header(CONTENT_LENGTH, said);
                }
                Ok(answer.body(vec![b'x'; self.bytes].into()).unwrap())
            })
        }
    }

    #[tokio::test]
    async fn no_more_of_an_answer_is_read_than_an_answer_of_its_kind_has() {
        let (get, post) = (Method::GET, Method::POST);
        let key = "http://s/b/k?versionId=1";
        let list = "http://s/b?list-type=2&prefix=p";
        let blobs = "http://s/c?restype=container&comp=list";
        let answer = |status, said, bytes| Answer { status, said, bytes };
        for (method, uri, answer, is_read) in [
            (&get, key, answer(200, Some(10), 10), true),
            (&get, key, answer(200, Some(10), 11), false),
            (&get, key, answer(206, Some(LARGEST + 1), LARGEST + 1), true),
            (&get, "http://s/b/list-type=2", answer(200, Some(LARGEST + 1), LARGEST + 1), true),
            (&get, key, answer(200, None, LARGEST), true),
            (&get, key, answer(200, None, LARGEST + 1), false),
            (&get, list, answer(200, Some(LARGEST), LARGEST), true),
            (&get, list, answer(200, Some(LARGEST + 1), LARGEST + 1), false),
            (&get, blobs, answer(200, Some(LARGEST + 1), LARGEST + 1), false),
            (&post, key, answer(200, Some(LARGEST + 1), LARGEST + 1), false),
            (&get, key, answer(404, Some(LARGEST_ERROR), LARGEST_ERROR), true),
            (&get, key, answer(404, Some(LARGEST_ERROR + 1), LARGEST_ERROR + 1), false),
        ] {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.parse().unwrap();
            let answered = LimitedClient(HttpClient::new(answer)).call(request).await.unwrap();
            let read = answered.into_body().bytes().await;
            let expected = if is_read { Ok(answer.bytes) } else { Err(HttpErrorKind::Decode) };
            let read = read.map(|read| read.len()).map_err(|error| error.kind());
            assert_eq!(read, expected, "{method} {uri} {answer:?}");
        }
    }

    #[tokio::test]
    async fn a_store_of_each_kind_has_the_limit() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let large = || async { (StatusCode::BAD_REQUEST, "x".repeat(LARGEST_ERROR + 1)) };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(large)).await });
        let account =
            r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
        for (provider, config, file) in [
            ("aws", json!({"s3Url": url}), "[default]\naws_access_key_id=id\naws_secret_access_key=s\n"),
            (
                "azure",
                json!({
                    "storageAccount": "acc1", "storageAccountKeyEnvVar": "MY_KEY", "storageAccountURI": url,
                }),
                "MY_KEY=c2VjcmV0\n",
            ),
            ("gcp", json!({"storeEndpoint": url}), account),
        ] {
            let data = json!({"cloud": base64::engine::general_purpose::STANDARD.encode(file)});
            let secret =
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
            let api = Scripted::new().always(get("/api/v1/namespaces/velero/secrets/keys").answers(secret));
            let location = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "away"},
                "spec": {
                    "provider": provider, "objectStorage": {"bucket": "b"}, "config": config,
                    "credential": {"name": "keys", "key": "cloud"},
                },
            });
            let opener = Opener::new(api.client("velero"), "velero", Roots::default());
            let store = opener.open(&serde_json::from_value(location).unwrap()).await.unwrap();
            let told = chain(&store.list_with_delimiter(None).await.unwrap_err());
            assert!(told.contains("larger than berth reads"), "{provider}: {told}");
        }
    }
}
