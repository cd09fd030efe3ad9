//! Lists of objects, as they are or as a type has them. What only becomes a table is read into its
//! type at once, because a list of values in between takes as long as all the rest of `get`.

use anyhow::{Context as _, ensure};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{ListMeta, NamespaceResourceScope, PartialObjectMeta, Request};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Person;
use crate::cli::print::note;
use crate::client::is_expired;
use crate::text::printable;

/// Objects of one page of a list. As all pages stay in memory, smaller ones would save none.
const PAGE: u32 = 1000;
/// Objects that a list holds at most.
const MOST: usize = 100_000;
/// How often a list begins, at most.
const STARTS: u32 = 3;

/// A page of a list. Its objects are read by whoever knows what they are for.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Box<RawValue>>>,
}

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
        let found = self.listed(resource, selector).await?;
        let objects: Result<Vec<DynamicObject>, _> =
            found.iter().map(|object| serde_json::from_str(object.get())).collect();
        objects.with_context(|| format!("one of the {} cannot be read", resource.plural))
    }

    /// The objects of a kind, as its type has them. What cannot be read is told and left out.
    pub async fn list_typed<K>(&self, selector: Option<&str>) -> anyhow::Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        let found = self.listed(&ApiResource::erase::<K>(&()), selector.map(str::to_owned)).await?;
        Ok(found.iter().filter_map(|object| read(object.get())).collect())
    }

    /// Every object of a list, as the API server has written it.
    async fn listed(
        &self,
        resource: &ApiResource,
        selector: Option<String>,
    ) -> anyhow::Result<Vec<Box<RawValue>>> {
        let client = self.client().await?;
        let request = Request::new(DynamicObject::url_path(resource, Some(self.namespace())));
        let mut params = ListParams::default().limit(PAGE);
        if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
            params = params.labels(&selector);
        }
        let (mut all, mut starts) = (Vec::new(), 1);
        loop {
            let asked = request.list(&params).context("no request could be made")?;
            let page = match client.request::<Page>(asked).await {
                // The pages took so long that the API server no longer knows what the first ones
                // were of.
                Err(error) if is_expired(&error) && params.continue_token.is_some() && starts < STARTS => {
                    starts += 1;
                    all.clear();
                    params.continue_token = None;
                    continue;
                }
                page => page.with_context(|| format!("failed to list {}", resource.plural))?,
            };
            let more = page.metadata.continue_.filter(|token| !token.is_empty());
            all.extend(page.items.unwrap_or_default());
            ensure!(all.len() <= MOST, "there are more than {MOST} {}: name some of them", resource.plural);
            match more {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
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
                unread(&object.name_any(), &error);
                None
            }
        }
    };
    objects.iter().filter_map(read).collect()
}

/// One object, as a list has it.
fn read<K: DeserializeOwned>(text: &str) -> Option<K> {
    match serde_json::from_str(text) {
        Ok(object) => Some(object),
        Err(error) => {
            let named: Option<PartialObjectMeta> = serde_json::from_str(text).ok();
            let name = named.and_then(|named| named.metadata.name);
            unread(name.as_deref().unwrap_or("an object without a name"), &error);
            None
        }
    }
}

fn unread(name: &str, error: &serde_json::Error) {
    let why = error.to_string();
    note!("{} is left out, because it cannot be read: {}", printable(name), printable(&why));
}
