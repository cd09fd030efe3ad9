//! Lists of objects, as they are or as a type has them. Each object is read as it arrives, while
//! the API server still writes those behind it. What only becomes a table is read into its type at
//! once, because a list of values in between takes as long as all the rest of `get`.

use std::io;
use std::pin::pin;

use anyhow::{Context as _, ensure};
use futures::AsyncBufReadExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{NamespaceResourceScope, PartialObjectMeta, Request};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::Person;
use crate::backup::split::{Splitter, without};
use crate::cli::print::note;
use crate::client::is_expired;
use crate::text::printable;

/// Objects of one page of a list. Each page is one more turn of the API server.
const PAGE: u32 = 1000;
/// Objects that a list holds at most.
const MOST: usize = 100_000;
/// How often a list begins, at most.
const STARTS: u32 = 3;

impl Person {
    /// The objects of a kind with all their fields. `selector`: as kubectl takes it.
    pub async fn list<K>(&self, selector: Option<&str>) -> anyhow::Result<Vec<DynamicObject>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.list_of(&ApiResource::erase::<K>(&()), selector.map(str::to_owned)).await
    }

    /// [`Person::list`] by a resource that no type describes.
    pub async fn list_of(
        &self,
        resource: &ApiResource,
        selector: Option<String>,
    ) -> anyhow::Result<Vec<DynamicObject>> {
        let read = |object: &[u8]| {
            serde_json::from_slice::<DynamicObject>(object)
                .with_context(|| format!("one of the {} cannot be read", resource.plural))
        };
        self.listed(resource, selector, read).await
    }

    /// The objects of a kind, as its type has them, but for their managedFields. What cannot be
    /// read is told and left out.
    pub async fn list_typed<K>(&self, selector: Option<&str>) -> anyhow::Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        // Told when the list is complete, because one that expires is read again.
        let found = self.listed(&resource, selector.map(str::to_owned), |object| Ok(read::<K>(object)));
        let found = found.await?.into_iter();
        Ok(found.filter_map(|object| object.inspect_err(|told| note!("{told}")).ok()).collect())
    }

    /// What `read` makes of every object of a list.
    async fn listed<T>(
        &self,
        resource: &ApiResource,
        selector: Option<String>,
        read: impl Fn(&[u8]) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let client = self.client().await?;
        let request = Request::new(DynamicObject::url_path(resource, Some(self.namespace())));
        let failed = || format!("failed to list {}", resource.plural);
        let mut params = ListParams::default().limit(PAGE);
        if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
            params = params.labels(&selector);
        }
        let (mut all, mut starts) = (Vec::new(), 1);
        loop {
            let asked = request.list(&params).context("no request could be made")?;
            let answer = match client.request_stream(asked).await {
                // The pages took so long that the API server no longer knows what the first ones
                // were of.
                Err(error) if is_expired(&error) && params.continue_token.is_some() && starts < STARTS => {
                    starts += 1;
                    all.clear();
                    params.continue_token = None;
                    continue;
                }
                answer => answer.with_context(failed)?,
            };
            let mut answer = pin!(answer);
            let mut page = Splitter::default();
            loop {
                let piece = answer.fill_buf().await.map_err(cut_off).with_context(failed)?;
                let length = piece.len();
                if length == 0 {
                    break;
                }
                page.push(piece);
                answer.consume_unpin(length);
                while let Some(object) = page.next_item().with_context(failed)? {
                    ensure!(
                        all.len() < MOST,
                        "there are more than {MOST} {}: name some of them",
                        resource.plural
                    );
                    all.push(read(&object)?);
                }
            }
            let more = page.finish().with_context(failed)?.continue_token;
            if more.is_empty() {
                return Ok(all);
            }
            params = params.continue_token(&more);
        }
    }
}

/// The client's own error, by which it is known that the API server does not answer.
fn cut_off(error: io::Error) -> anyhow::Error {
    match error.downcast::<kube::Error>() {
        Ok(error) => error.into(),
        Err(error) => error.into(),
    }
}

/// Of several objects those that can be read. What cannot is told.
pub fn typed<K>(objects: &[DynamicObject]) -> Vec<K>
where
    K: DeserializeOwned,
{
    let read = |object: &DynamicObject| {
        let value = serde_json::to_value(object).ok()?;
        match serde_json::from_value(value) {
            Ok(object) => Some(object),
            Err(error) => {
                note!("{}", unread(&object.name_any(), &error));
                None
            }
        }
    };
    objects.iter().filter_map(read).collect()
}

/// One object, as a list has it, or what is told of it. Its managedFields are left out, because
/// they may be half of it, nobody looks at them, and their type is a tree of values.
fn read<K: DeserializeOwned>(object: &[u8]) -> Result<K, String> {
    let lean = without(object, &["metadata", "managedFields"]);
    let object = &*lean;
    serde_json::from_slice(object).map_err(|error| {
        let named: Option<PartialObjectMeta> = serde_json::from_slice(object).ok();
        let name = named.and_then(|named| named.metadata.name);
        unread(name.as_deref().unwrap_or("an object without a name"), &error)
    })
}

fn unread(name: &str, error: &serde_json::Error) -> String {
    format!("{} is left out, because it cannot be read: {}", printable(name), printable(&error.to_string()))
}
