//! Calls to the API server for deletions, and what their answers mean.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::api::{Api, DynamicObject, ListParams};
use tokio::time::timeout;

use crate::client::{endless, is_not_found};
use crate::write::WriteResult;

pub(super) const CALL: Duration = Duration::from_secs(10);
/// Time-out of the list of one page.
const LIST: Duration = Duration::from_secs(30);
/// Objects of one page. Each may be as large as etcd allows.
const PAGE: u32 = 100;
/// Pages of one list.
const PAGES: usize = 1000;

/// An error with the API server's own message.
pub(super) fn told(error: kube::Error) -> anyhow::Error {
    anyhow!(crate::text::chain(&error))
}

/// An object that is gone counts as written, because the write was to remove it, or no longer
/// matters.
pub(super) fn written<K>(answer: WriteResult<K>) -> anyhow::Result<()> {
    as_written(answer).map(drop)
}

/// The object after the write. `None`: it is gone.
pub(super) fn as_written<K>(answer: WriteResult<K>) -> anyhow::Result<Option<K>> {
    match answer {
        WriteResult::Gone(_) => Ok(None),
        answer => answer.written().map(Some).map_err(told),
    }
}

/// All objects of a kind; none if the cluster does not have the kind.
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
    for _ in 0..PAGES {
        let page = timeout(LIST, api.list(&params)).await.context("the API server did not answer in time")?;
        let page = match page {
            Ok(page) => page,
            Err(error) if is_not_found(&error) => return Ok(all),
            Err(error) => return Err(told(error)),
        };
        all.extend(page.items.into_iter().filter(|object| keep(object)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
    Err(anyhow!(endless(PAGES, PAGE)))
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, page};
    use kube::api::ApiResource;
    use kube::core::GroupVersionKind;

    use super::*;

    /// Whether anything of it is kept or not.
    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_end_is_given_up() {
        let path = "/apis/velero.io/v1/namespaces/velero/restores";
        let more = page("1", "more", &[]);
        let api = Scripted::new()
            .always(get(path).answers(more.clone()))
            .always(get(path).page("more").answers(more));
        let kind = GroupVersionKind::gvk("velero.io", "v1", "Restore");
        let kind = ApiResource::from_gvk_with_plural(&kind, "restores");
        let restores = Api::namespaced_with(api.client("velero"), "velero", &kind);
        let error = list(&restores, None, |_| false).await.unwrap_err();
        assert!(error.to_string().contains("more than 100000 objects"), "{error}");
        assert_eq!(api.asked().len(), PAGES);
    }
}
