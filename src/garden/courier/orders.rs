//! What the hub says of one of its objects; and, where data is to go, whether it says so still.

use std::fmt::Debug;
use std::time::Duration;

use berth_api::garden::carried::{self, Orders, hub_uid};
use berth_core::garden::handover::Told;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Courier;
use super::write::Failure;
use crate::garden::leave::now;

/// How long the hub may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

impl Courier {
    /// `shown`: the hub's object, as the watch has it; `found`: what there is here. A watch that is cut off goes on showing what
    /// was, and a deletion is not all that may have happened since: before data goes the hub itself is asked, again and
    /// again.
    ///
    /// # Errors
    /// When the hub does not answer: then nothing is removed.
    pub(super) async fn told<K>(
        &self,
        shown: Option<&K>,
        found: Option<&ObjectMeta>,
        ended: bool,
        hub: impl FnOnce(&K) -> Api<K>,
    ) -> Result<Told, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
        for<'k> Orders<'k>: From<&'k K>,
    {
        let seed = &self.settings.seed;
        let told = carried::told(shown.map(Orders::from), ended, seed);
        let Some(shown) = shown.filter(|_| told == Told::Remove) else {
            let concerned = found.and_then(hub_uid).into_iter();
            concerned.for_each(|uid| self.leave.withdraw(uid));
            return Ok(told);
        };
        let (name, uid) = (shown.name_any(), shown.uid().unwrap_or_default());
        if self.leave.is_fresh(&uid) {
            return Ok(told);
        }
        let asked = now();
        let failure = |error| Failure::of::<K>("ask the hub again for", &name, error);
        let answer = timeout(ANSWER, hub(shown).get_opt(&name)).await;
        let answer = answer.unwrap_or_else(|late| Err(kube::Error::Service(late.into()))).map_err(failure)?;
        let is_so = answer.is_some_and(|now| {
            now.uid() == shown.uid() && carried::told(Some(Orders::from(&now)), false, seed) == Told::Remove
        });
        if is_so {
            self.leave.give(&uid, asked);
            return Ok(told);
        }
        self.leave.withdraw(&uid);
        // The watch will tell what it says now.
        Ok(Told::Unassigned)
    }
}
