//! A bucket whose keys somebody may replace while it is in use, and take the old ones away at once.
//! A request that the store refuses is sent once more if the Secret has other keys by then.
//!
//! [`object_store`] signs a request before it sends it, and its retries send the same signature. So
//! the request is repeated here, from the outside.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::rotation::Rotating;
use crate::text::chain;

/// Most paths that are deleted, and deleted once more, together. The same as S3's.
const DELETED_AT_ONCE: usize = 1000;

/// A store, and the keys with which it signs.
pub(super) struct Renewed<S> {
    store: Arc<S>,
    keys: Arc<Rotating>,
}

impl<S> Renewed<S> {
    pub fn new(store: Arc<S>, keys: Arc<Rotating>) -> Self {
        Self { store, keys }
    }

    /// Sends a request, and once more with other keys if the store refuses the first ones.
    async fn send<T, F>(&self, attempt: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let keys = self.keys.current().await;
        let sent = attempt().await;
        let is_refused = sent.as_ref().is_err_and(is_denied);
        if is_refused && self.keys.others(&keys).await { attempt().await } else { sent }
    }
}

impl<S> Clone for Renewed<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), keys: Arc::clone(&self.keys) }
    }
}

/// Whether other keys may help. Stores say in many ways that they do not accept keys: S3 itself
/// calls an expired session a bad request. Where the type of the error does not tell, its text
/// does.
fn is_denied(error: &Error) -> bool {
    const WORDS: [&str; 3] = ["403 Forbidden", "401 Unauthorized", "<Code>ExpiredToken</Code>"];
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => true,
        Error::Generic { .. } => {
            let told = chain(error);
            WORDS.iter().any(|word| told.contains(word))
        }
        _ => false,
    }
}

impl<S: fmt::Display> fmt::Display for Renewed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl<S: fmt::Debug> fmt::Debug for Renewed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

// The signatures are those that `async_trait` generates, because object_store declares the traits
// with it.
impl<S: ObjectStore> ObjectStore for Renewed<S> {
    fn put_opts<'s, 'p, 'f>(
        &'s self,
        path: &'p Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> BoxFuture<'f, Result<PutResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(
            async move { self.send(|| self.store.put_opts(path, payload.clone(), options.clone())).await },
        )
    }

    fn put_multipart_opts<'s, 'p, 'f>(
        &'s self,
        path: &'p Path,
        options: PutMultipartOptions,
    ) -> BoxFuture<'f, Result<Box<dyn MultipartUpload>>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.put_multipart_opts(path, options.clone())).await })
    }

    fn get_opts<'s, 'p, 'f>(&'s self, path: &'p Path, options: GetOptions) -> BoxFuture<'f, Result<GetResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.get_opts(path, options.clone())).await })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let deleted = paths.ready_chunks(DELETED_AT_ONCE).then(move |chunk| {
            let this = this.clone();
            async move {
                let (paths, mut done): (Vec<_>, Vec<_>) = chunk.into_iter().partition(Result::is_ok);
                let paths: Vec<Path> = paths.into_iter().flatten().collect();
                done.extend(this.delete_all(paths).await);
                futures::stream::iter(done)
            }
        });
        deleted.flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let keys = this.keys.current().await;
            let mut list = this.store.list(prefix.as_ref()).peekable();
            // Later pages are not repeated, because the objects of the first ones are handed on.
            let first = std::pin::Pin::new(&mut list).peek().await;
            let is_refused = matches!(first, Some(Err(error)) if is_denied(error));
            if is_refused && this.keys.others(&keys).await {
                this.store.list(prefix.as_ref())
            } else {
                list.boxed()
            }
        };
        futures::stream::once(listed).flatten().boxed()
    }

    fn list_with_delimiter<'s, 'p, 'f>(
        &'s self,
        prefix: Option<&'p Path>,
    ) -> BoxFuture<'f, Result<ListResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.list_with_delimiter(prefix)).await })
    }

    fn copy_opts<'s, 'p, 'q, 'f>(
        &'s self,
        from: &'p Path,
        to: &'q Path,
        options: CopyOptions,
    ) -> BoxFuture<'f, Result<()>>
    where
        's: 'f,
        'p: 'f,
        'q: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.copy_opts(from, to, options.clone())).await })
    }
}

impl<S: ObjectStore> Renewed<S> {
    /// Deletes all of them, and once more if the store refuses any: what is gone is gone.
    async fn delete_all(&self, paths: Vec<Path>) -> Vec<Result<Path>> {
        let delete =
            || self.store.delete_stream(futures::stream::iter(paths.clone().into_iter().map(Ok)).boxed());
        let keys = self.keys.current().await;
        let done: Vec<Result<Path>> = delete().collect().await;
        let is_refused = done.iter().any(|one| one.as_ref().is_err_and(is_denied));
        if is_refused && self.keys.others(&keys).await { delete().collect().await } else { done }
    }
}

impl<S: MultipartStore> MultipartStore for Renewed<S> {
    fn create_multipart<'s, 'p, 'f>(&'s self, path: &'p Path) -> BoxFuture<'f, Result<MultipartId>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.create_multipart(path)).await })
    }

    fn put_part<'s, 'p, 'i, 'f>(
        &'s self,
        path: &'p Path,
        id: &'i MultipartId,
        index: usize,
        data: PutPayload,
    ) -> BoxFuture<'f, Result<PartId>>
    where
        's: 'f,
        'p: 'f,
        'i: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.put_part(path, id, index, data.clone())).await })
    }

    fn complete_multipart<'s, 'p, 'i, 'f>(
        &'s self,
        path: &'p Path,
        id: &'i MultipartId,
        parts: Vec<PartId>,
    ) -> BoxFuture<'f, Result<PutResult>>
    where
        's: 'f,
        'p: 'f,
        'i: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.complete_multipart(path, id, parts.clone())).await })
    }

    fn abort_multipart<'s, 'p, 'i, 'f>(
        &'s self,
        path: &'p Path,
        id: &'i MultipartId,
    ) -> BoxFuture<'f, Result<()>>
    where
        's: 'f,
        'p: 'f,
        'i: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(|| self.store.abort_multipart(path, id)).await })
    }
}

#[cfg(test)]
mod tests;
