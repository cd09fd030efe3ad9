//! Conditional writes: they create an object, or replace exactly one version of it.

use object_store::path::Path;
use object_store::{
    DynObjectStore, Error, ObjectStoreExt, PutMode, PutOptions, PutPayload, Result, UpdateVersion,
};

/// Writes `payload` if the condition in `mode` holds.
///
/// # Errors
/// [`Error::AlreadyExists`] or [`Error::Precondition`] when the condition does not hold, or the
/// store's error.
pub async fn put_if(
    store: &DynObjectStore,
    path: &Path,
    payload: PutPayload,
    mode: PutMode,
) -> Result<UpdateVersion> {
    let put = |mode| {
        let options = PutOptions { mode, ..PutOptions::default() };
        store.put_opts(path, payload.clone(), options)
    };
    let done = match put(mode.clone()).await {
        // A folder cannot replace a version conditionally, nor can some stores; other stores
        // support no conditions at all. There, the version is compared before the write, which at
        // least detects a change of a while ago.
        Err(error) if is_unknown(&error) => {
            ensure_holds(store, path, &mode).await?;
            put(PutMode::Overwrite).await?
        }
        written => written?,
    };
    Ok(UpdateVersion { e_tag: done.e_tag, version: done.version })
}

/// Does the store lack conditional writes? It answers 501, which object_store passes on as text
/// only.
fn is_unknown(error: &Error) -> bool {
    match error {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => true,
        Error::Generic { source, .. } => source.to_string().contains("501 Not Implemented"),
        _ => false,
    }
}

async fn ensure_holds(store: &DynObjectStore, path: &Path, mode: &PutMode) -> Result<()> {
    let found = match store.head(path).await {
        Ok(found) => Some(found),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error),
    };
    match (mode, found) {
        (PutMode::Create, Some(_)) => {
            Err(Error::AlreadyExists { path: path.to_string(), source: "it is there".into() })
        }
        (PutMode::Update(read), found) if found.as_ref().is_none_or(|found| found.e_tag != read.e_tag) => {
            Err(Error::Precondition { path: path.to_string(), source: "it was changed meanwhile".into() })
        }
        _ => Ok(()),
    }
}
