//! What the API server is asked for a deletion, and what its answers mean.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::api::{Api, DynamicObject, ListParams};
use tokio::time::timeout;

use crate::client::is_not_found;
use crate::write::WriteResult;

pub(super) const CALL: Duration = Duration::from_secs(10);
/// Time-out of one page.
const LIST: Duration = Duration::from_secs(30);
/// Objects of one page, each of which may be as large as the API server's store allows.
const PAGE: u32 = 100;
/// Objects of one kind that are read for one deletion.
const MOST: usize = 100_000;

/// The API server's own words.
pub(super) fn told(error: kube::Error) -> anyhow::Error {
    anyhow!(crate::text::chain(&error))
}

/// Gone is as good as written, where something is removed or no longer matters.
pub(super) fn written<K>(answer: WriteResult<K>) -> anyhow::Result<()> {
    as_written(answer).map(drop)
}

/// The object as it stands now. `None`: it is gone.
pub(super) fn as_written<K>(answer: WriteResult<K>) -> anyhow::Result<Option<K>> {
    match answer {
        WriteResult::Gone(_) => Ok(None),
        answer => answer.written().map(Some).map_err(told),
    }
}

/// All objects of a kind; none where the cluster does not know the kind.
pub(in crate::lifecycle) async fn list(
    api: &Api<DynamicObject>,
    selector: Option<&str>,
    mut keep: impl FnMut(&DynamicObject) -> bool,
) -> anyhow::Result<Vec<DynamicObject>> {
    let mut params = ListParams::default().limit(PAGE);
    if let Some(selector) = selector {
        params = params.labels(selector);
    }
    let mut all = Vec::new();
    loop {
        let page = timeout(LIST, api.list(&params)).await.context("the API server did not answer in time")?;
        let page = match page {
            Ok(page) => page,
            Err(error) if is_not_found(&error) => return Ok(all),
            Err(error) => return Err(told(error)),
        };
        all.extend(page.items.into_iter().filter(|object| keep(object)));
        if all.len() >= MOST {
            return Err(anyhow!("there are more than {MOST} objects to look at"));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
