//! Steps of an entry's BackupStorageLocation.

use std::collections::BTreeSet;

use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation, BackupStorageLocationStatus};
use berth_garden_api::location::secret_name;
use berth_garden_api::member_objects::is_ours;
use berth_garden_core::location::LocationAccess;
use berth_garden_core::member::{Facts, LocationStep};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tracing::info;

use crate::client::is_not_found;
use crate::garden::courier::Courier;
use crate::garden::courier::freeze::FrozenEntry;
use crate::garden::courier::write::{CourierError, WriteTarget};
use crate::write::{self, Write, WriteResult};

impl Courier {
    pub(super) async fn act_location(
        &self,
        frozen: &FrozenEntry,
        step: &LocationStep,
        facts: &mut Facts,
    ) -> Result<(), CourierError> {
        let target = self.locations();
        match step {
            LocationStep::SetAccess(name, access) => {
                let Some(found) = frozen.location(name) else { return Ok(()) };
                // By this label its end is told apart from that of another entry of the same name.
                let labels =
                    if is_ours(found.meta()) { json!({}) } else { json!({keys::HUB_UID: frozen.uid()}) };
                let change = json!({"spec": {"accessMode": access_mode(*access)}});
                target.patch(found, json!({"labels": labels}), change).await
            }
            LocationStep::KeepCredentials => {
                match frozen.wanted.as_ref().and_then(|wanted| wanted.secret.as_ref()) {
                    Some(secret) => self.location_secrets().keep(secret).await,
                    None => Ok(()),
                }
            }
            LocationStep::Apply(_) => match &frozen.wanted {
                Some(wanted) => self.apply_location(frozen, &wanted.location).await,
                None => Ok(()),
            },
            LocationStep::Delete(name) => {
                let Some(found) = frozen.location(name) else { return Ok(()) };
                info!(name = frozen.object.name, location = name, "deleting a storage location");
                target.delete(found).await
            }
            LocationStep::RemoveBackups(locations) => {
                facts.removed = Some(self.remove_backups(locations).await?);
                Ok(())
            }
            LocationStep::DeleteCredentials => {
                match self.member.location_secrets.get(&secret_name(&frozen.object.name)) {
                    Some(secret) => self.location_secrets().delete(&secret).await,
                    None => Ok(()),
                }
            }
        }
    }

    async fn apply_location(
        &self,
        frozen: &FrozenEntry,
        wanted: &BackupStorageLocation,
    ) -> Result<(), CourierError> {
        let target = self.locations();
        let name = wanted.name_any();
        let Some(found) = frozen.location(&name).filter(|found| is_ours(found.meta())) else {
            target.ensure_ours(&name).await?;
            return target.apply(wanted).await;
        };
        // New keys: berth or Velero, whichever checks locations, has to check this one now.
        let digest = |location: &BackupStorageLocation| {
            location.annotations().get(keys::CREDENTIALS_DIGEST).cloned().unwrap_or_default()
        };
        if digest(found) != digest(wanted) && found.status.is_some() {
            let status = BackupStorageLocationStatus::unchecked();
            target.patch(found, json!({}), json!({"status": status})).await?;
        }
        target.apply(wanted).await
    }

    /// How many Backups and BackupRepositories there were.
    async fn remove_backups(&self, locations: &BTreeSet<String>) -> Result<usize, CourierError> {
        let backups = ApiResource::erase::<Backup>(&());
        let repositories =
            ApiResource::from_gvk(&GroupVersionKind::gvk("velero.io", "v1", "BackupRepository"));
        let mut found = 0;
        for location in locations {
            let selector = format!("{}={location}", keys::STORAGE_LOCATION);
            for kind in [&backups, &repositories] {
                found += self.remove_all(kind, &selector).await?;
            }
        }
        Ok(found)
    }

    /// How many there were.
    async fn remove_all(&self, kind: &ApiResource, selector: &str) -> Result<usize, CourierError> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.clients.call.clone(), &self.settings.namespace, kind);
        let failure = |what, error| CourierError::Api {
            what,
            kind: kind.kind.clone(),
            name: selector.to_owned(),
            source: Box::new(error),
        };
        let found = match api.list_metadata(&ListParams::default().labels(selector)).await {
            Ok(found) => found.items,
            Err(error) if is_not_found(&error) => return Ok(0),
            Err(error) => return Err(failure("list", error)),
        };
        for object in &found {
            match write::delete(&api, Write::to(&object.name_any())).await {
                WriteResult::Gone(_) => {}
                answer => answer.written().map_err(|error| failure("delete", error))?,
            }
        }
        Ok(found.len())
    }

    pub(in crate::garden::courier) fn locations(&self) -> WriteTarget<'_, BackupStorageLocation> {
        self.here(&self.settings.namespace, &self.member.locations)
    }

    fn location_secrets(&self) -> WriteTarget<'_, Secret> {
        self.here(&self.settings.namespace, &self.member.location_secrets)
    }
}

fn access_mode(access: LocationAccess) -> AccessMode {
    match access {
        LocationAccess::ReadWrite => AccessMode::ReadWrite,
        LocationAccess::ReadOnly => AccessMode::ReadOnly,
    }
}
