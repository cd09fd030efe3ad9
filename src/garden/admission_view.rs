//! The watch caches by which admission judges: hub and member together. A cluster without these
//! kinds has no objects.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_core::violation::tellable;
use berth_garden_api::{self as garden, extensions};
use berth_garden_core::check::SecretLookup;
use berth_garden_core::{GardenView, SecretRef};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;
use tracing::warn;

use crate::guarded::Guarded;
use crate::text::chain;
use crate::watch::{ObjectKey, WatchEvent, reflect_by};

/// Time-out of reading a Secret, because the API server waits for the webhook meanwhile.
const READ: Duration = Duration::from_millis(800);
/// Watches of [`SharedBuckets::follow`].
const KINDS: usize = 6;

pub struct SharedBuckets {
    client: Client,
    view: RwLock<Arc<GardenView>>,
    /// How many kinds have been listed.
    listed: AtomicUsize,
    changed: Notify,
}

impl SharedBuckets {
    pub fn new(client: Client, garden_namespace: &str) -> Self {
        let view = GardenView { garden_namespace: garden_namespace.to_owned(), ..GardenView::default() };
        Self {
            client,
            view: RwLock::new(Arc::new(view)),
            listed: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    /// `None`: not every kind has been listed yet.
    pub fn view(&self) -> Option<Arc<GardenView>> {
        (self.listed.load(Ordering::Acquire) >= KINDS).then(|| Arc::clone(&self.view.read()))
    }

    /// Resolves at the next change.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Reads a Secret, if it is in the namespace where berth may read.
    pub async fn credentials(&self, secret: &SecretRef) -> SecretLookup {
        if self.view.read().garden_namespace != secret.namespace {
            return SecretLookup::Unknown("it is not read there".to_owned());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &secret.namespace);
        match timeout(READ, api.get_opt(&secret.name)).await {
            Ok(Ok(Some(found))) => {
                let data = found.data.unwrap_or_default().into_iter();
                SecretLookup::Found(
                    data.filter(|(_, value)| !value.0.is_empty()).map(|(key, _)| key).collect(),
                )
            }
            Ok(Ok(None)) => SecretLookup::Missing,
            Ok(Err(error)) => {
                warn!(name = %tellable(&secret.name), error = chain(&error), "a Secret with credentials cannot be read");
                SecretLookup::Unknown("the API server does not tell: see berth's log".to_owned())
            }
            Err(_) => SecretLookup::Unknown("the API server did not answer in time".to_owned()),
        }
    }

    /// Watches all kinds, for ever.
    pub async fn follow(&self, client: &Client) {
        let name = |(_, name): ObjectKey| name;
        tokio::join!(
            self.watch::<garden::CloudProfile, _, _>(client, name, |view| &mut view.profiles),
            self.watch::<garden::Seed, _, _>(client, name, |view| &mut view.seeds),
            self.watch::<garden::BackupBucket, _, _>(client, name, |view| &mut view.buckets),
            self.watch::<garden::BackupEntry, _, _>(client, |key| key, |view| &mut view.entries),
            self.watch::<extensions::BackupBucket, _, _>(client, name, |view| &mut view.extension_buckets),
            self.watch::<extensions::BackupEntry, _, _>(client, name, |view| &mut view.extension_entries),
        );
    }

    /// Watches one kind into its part of the view.
    async fn watch<K, I, V>(
        &self,
        client: &Client,
        id: fn(ObjectKey) -> I,
        part: fn(&mut GardenView) -> &mut BTreeMap<I, V>,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        I: Ord,
        V: for<'k> From<&'k K>,
    {
        let key = |object: &Guarded<K>| id((object.namespace().unwrap_or_default(), object.name_any()));
        let keep =
            |object: K| (id((object.namespace().unwrap_or_default(), object.name_any())), V::from(&object));
        let mut is_listed = false;
        reflect_by(
            Api::all(client.clone()),
            watcher::Config::default(),
            key,
            || (),
            keep,
            |event| {
                let is_list = matches!(event, WatchEvent::Replaced(_));
                event.apply_to(part(Arc::make_mut(&mut self.view.write())));
                if is_list && !std::mem::replace(&mut is_listed, true) {
                    self.listed.fetch_add(1, Ordering::AcqRel);
                }
                self.changed.notify_waiters();
            },
        )
        .await;
    }
}
