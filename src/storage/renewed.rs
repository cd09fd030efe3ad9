//! A bucket whose keys somebody may replace while it is in use, and take the old ones away at once.
//! A request that the store refuses is sent once more if the Secret has other keys by then.
//!
//! [`object_store`] signs a request before it sends it, and its retries send the same signature. So
//! the request is repeated here, from the outside. It also collects all pages of a list of folders,
//! and whoever runs the store chooses how many there are. So these pages are asked for here, with a
//! limit.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
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
/// Bytes of one list of folders: names and tags, and [`EACH`] for each folder, file and page. Half
/// a million backups have less.
const LARGEST_LIST: usize = 64 << 20;
const EACH: usize = 64;

/// A store, and the keys with which it signs, if they may change.
pub(super) struct Renewed<S> {
    store: Arc<S>,
    keys: Option<Arc<Rotating>>,
}

impl<S> Renewed<S> {
    pub fn new(store: Arc<S>, keys: Option<Arc<Rotating>>) -> Self {
        Self { store, keys }
    }

    /// Sends a request, and once more with other keys if the store refuses the first ones.
    async fn send<T, F>(&self, attempt: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let Some(keys) = &self.keys else { return attempt().await };
        let signs = keys.current().await;
        let sent = attempt().await;
        let is_refused = sent.as_ref().is_err_and(is_denied);
        if is_refused && keys.others(&signs).await { attempt().await } else { sent }
    }
}

impl<S> Clone for Renewed<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), keys: self.keys.clone() }
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
impl<S: ObjectStore + PaginatedListStore> ObjectStore for Renewed<S> {
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
        let Some(keys) = self.keys.clone() else { return self.store.list(prefix) };
        let (store, prefix) = (Arc::clone(&self.store), prefix.cloned());
        let listed = async move {
            let signs = keys.current().await;
            let mut list = store.list(prefix.as_ref()).peekable();
            // Later pages are not repeated, because the objects of the first ones are handed on.
            let first = std::pin::Pin::new(&mut list).peek().await;
            let is_refused = matches!(first, Some(Err(error)) if is_denied(error));
            if is_refused && keys.others(&signs).await { store.list(prefix.as_ref()) } else { list.boxed() }
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
        Box::pin(async move { self.send(|| folders(self.store.as_ref(), prefix)).await })
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
        let Some(keys) = &self.keys else { return delete().collect().await };
        let signs = keys.current().await;
        let done: Vec<Result<Path>> = delete().collect().await;
        let is_refused = done.iter().any(|one| one.as_ref().is_err_and(is_denied));
        if is_refused && keys.others(&signs).await { delete().collect().await } else { done }
    }
}

/// The folders and files of a folder, as [`ObjectStore::list_with_delimiter`] gives them.
async fn folders<S: PaginatedListStore>(store: &S, folder: Option<&Path>) -> Result<ListResult> {
    let folder = folder.filter(|folder| !folder.as_ref().is_empty());
    let prefix = folder.map(|folder| format!("{folder}/"));
    let mut all =
        ListResult { common_prefixes: Vec::new(), objects: Vec::new(), extensions: http::Extensions::new() };
    let (mut size, mut token) = (0, None);
    loop {
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            page_token: token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(prefix.as_deref(), options).await?;
        size += EACH + size_of_page(&page.result);
        if size > LARGEST_LIST {
            let at = prefix.as_deref().unwrap_or("/");
            let why = format!(
                "the store has more at {at} than a location with backups has (more than {} MiB of names): give the location a prefix of its own",
                LARGEST_LIST >> 20
            );
            return Err(Error::Generic { store: "list", source: why.into() });
        }
        all.common_prefixes.extend(page.result.common_prefixes);
        all.objects.extend(page.result.objects);
        token = page.page_token.filter(|token| !token.is_empty());
        if token.is_none() {
            // Two pages may have a folder in common.
            all.common_prefixes.sort();
            all.common_prefixes.dedup();
            return Ok(all);
        }
    }
}

fn size_of_page(page: &ListResult) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let of_file =
        |file: &ObjectMeta| EACH + file.location.as_ref().len() + length(&file.e_tag) + length(&file.version);
    let folders: usize = page.common_prefixes.iter().map(|folder| EACH + folder.as_ref().len()).sum();
    folders + page.objects.iter().map(of_file).sum::<usize>()
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
