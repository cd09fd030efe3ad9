//! Objects of shared buckets, and movements of data, that cannot be deleted without berth, because
//! only berth removes its finalizers.

use std::fmt::Write as _;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::{DataDownload, DataUpload};
use berth_garden_api::extensions;
use berth_garden_api::{self as garden, GARDEN_NAMESPACE, member_objects};
use berth_garden_core::store::SERVED;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::InstallCluster;
use crate::client::is_not_found;

/// Objects of one kind with finalizers of berth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldObjects {
    /// Resource as in kubectl: `backupentries.garden.berth.dev`.
    pub resource: String,
    pub count: usize,
    /// How many of them have a deletionTimestamp.
    pub deleted: usize,
    /// Which part of berth removes the finalizers.
    pub by: RemovableBy,
}

/// The part of berth that has to be installed to remove the finalizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovableBy {
    /// The hub: any berth.
    Controller,
    Agent,
    /// The agent with its hub, because an object that a hub created is deleted only when the hub
    /// allows it.
    Courier,
}

/// Objects in this cluster as a hub and as a member, the Secrets of both, and movements of data
/// that berth carries.
///
/// # Errors
/// When a kind cannot be listed.
pub async fn held(cluster: &InstallCluster) -> anyhow::Result<Vec<HeldObjects>> {
    let hub =
        |object: &DynamicObject| has(object, &[keys::GARDEN_FINALIZER]).then_some(RemovableBy::Controller);
    // Concurrent, because an API server that answers from its cache takes 0.1 s for each list until
    // the cache is current.
    let found = futures::try_join!(
        of::<garden::BackupEntry>(cluster, ListScope::Metadata, hub),
        of::<garden::BackupBucket>(cluster, ListScope::Metadata, hub),
        of::<extensions::BackupEntry>(cluster, ListScope::Whole, member),
        of::<extensions::BackupBucket>(cluster, ListScope::Whole, member),
        of::<Secret>(cluster, ListScope::OfGarden, credentials),
        of::<DataUpload>(cluster, ListScope::Metadata, movement),
        of::<DataDownload>(cluster, ListScope::Metadata, movement),
    );
    let (hub_entries, hub_buckets, entries, buckets, secrets, uploads, downloads) = found?;
    let all = [hub_entries, hub_buckets, entries, buckets, secrets, uploads, downloads];
    Ok(all.into_iter().flatten().collect())
}

/// What is listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListScope {
    /// Metadata in the whole cluster.
    Metadata,
    /// Objects in the whole cluster.
    Whole,
    /// Metadata in the namespace of credentials.
    OfGarden,
}

/// Other providers use Gardener's finalizers as well; berth removes them only from objects of the
/// providers that it serves.
fn member(object: &DynamicObject) -> Option<RemovableBy> {
    let is_served = object.data["spec"]["type"].as_str().is_some_and(|kind| SERVED.contains(&kind));
    let executors = [keys::EXTENSION_ENTRY_FINALIZER, keys::EXTENSION_BUCKET_FINALIZER];
    if has(object, &[keys::GARDEN_FINALIZER])
        || (member_objects::is_ours(&object.metadata) && has(object, &executors))
    {
        return Some(RemovableBy::Courier);
    }
    (is_served && has(object, &executors)).then_some(RemovableBy::Agent)
}

fn credentials(object: &DynamicObject) -> Option<RemovableBy> {
    let executors = [keys::EXTENSION_ENTRY_FINALIZER, keys::EXTENSION_BUCKET_FINALIZER];
    if member_objects::is_ours(&object.metadata) && has(object, &executors) {
        return Some(RemovableBy::Courier);
    }
    // Secrets of a member's objects may belong to another provider.
    has(object, &[keys::CREDENTIALS_FINALIZER]).then_some(RemovableBy::Controller)
}

fn movement(object: &DynamicObject) -> Option<RemovableBy> {
    has(object, &[keys::MOVER_FINALIZER]).then_some(RemovableBy::Controller)
}

fn has(object: &DynamicObject, finalizers: &[&str]) -> bool {
    object.finalizers().iter().any(|one| finalizers.contains(&one.as_str()))
}

async fn of<K: Resource<DynamicType = ()>>(
    cluster: &InstallCluster,
    scope: ListScope,
    held_by: impl Fn(&DynamicObject) -> Option<RemovableBy>,
) -> anyhow::Result<Option<HeldObjects>> {
    let kind = kube::api::ApiResource::erase::<K>(&());
    let resource =
        if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
    let api: Api<DynamicObject> = match scope {
        ListScope::OfGarden => Api::namespaced_with(cluster.client.clone(), GARDEN_NAMESPACE, &kind),
        ListScope::Metadata | ListScope::Whole => Api::all_with(cluster.client.clone(), &kind),
    };
    let all = ListParams::default();
    let listed = match scope {
        ListScope::Whole => api.list(&all).await.map(|list| list.items),
        ListScope::Metadata | ListScope::OfGarden => api.list_metadata(&all).await.map(|list| {
            let bare = |metadata| DynamicObject { types: None, metadata, data: Value::Null };
            list.items.into_iter().map(|one| bare(one.metadata)).collect()
        }),
    };
    let list = match listed {
        Ok(list) => list,
        // The cluster does not have this kind.
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("{resource} cannot be listed")),
    };
    let held: Vec<(RemovableBy, bool)> = list
        .iter()
        .filter_map(|object| Some((held_by(object)?, object.metadata.deletion_timestamp.is_some())))
        .collect();
    let Some(by) = held.iter().map(|(by, _)| *by).max() else { return Ok(None) };
    let deleted = held.iter().filter(|(_, is_deleted)| *is_deleted).count();
    Ok(Some(HeldObjects { resource, count: held.len(), deleted, by }))
}

/// The message for the user; `None` where no object is left.
pub fn note(held: &[HeldObjects], namespace: &str) -> Option<String> {
    let by = held.iter().map(|one| one.by).max()?;
    let flags = match by {
        RemovableBy::Controller => "",
        RemovableBy::Agent => " --garden-member",
        RemovableBy::Courier => " --hub-kubeconfig=FILE --seed=NAME",
    };
    let mut text =
        "these have finalizers that only berth takes off; without it they cannot be deleted:".to_owned();
    for one in held {
        let deleted = match one.deleted {
            0 => String::new(),
            deleted => format!(", {deleted} deleted already"),
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {} {}{deleted}", one.count, one.resource);
    }
    let _ = write!(
        text,
        "\nTo delete them, and what they stand for in stores: while berth is installed (`berth install --namespace {namespace}{flags}`).\n\
         To let go of one, and leave in the store whatever is there: kubectl patch KIND NAME --type=merge --patch='{{\"metadata\":{{\"finalizers\":null}}}}', with its --namespace where it has one"
    );
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(spec: Value, labels: Value, finalizers: &[&str]) -> anyhow::Result<DynamicObject> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "K",
            "metadata": {"name": "one", "labels": labels, "finalizers": finalizers}, "spec": spec,
        }))?)
    }

    #[test]
    fn a_member_object_is_held_by_whoever_serves_it() -> anyhow::Result<()> {
        let theirs = keys::EXTENSION_ENTRY_FINALIZER;
        let seed = json!({keys::CARRIED_FOR: "ship"});
        for (kind, labels, finalizers, by) in [
            ("aws", json!({}), &[theirs][..], Some(RemovableBy::Agent)),
            ("aws", json!({}), &[], None),
            ("openstack", json!({}), &[theirs], None),
            ("aws", seed.clone(), &[theirs, keys::GARDEN_FINALIZER], Some(RemovableBy::Courier)),
            ("aws", seed.clone(), &[theirs], Some(RemovableBy::Courier)),
            ("openstack", seed, &[keys::GARDEN_FINALIZER], Some(RemovableBy::Courier)),
        ] {
            assert_eq!(
                member(&object(json!({"type": kind}), labels, finalizers)?),
                by,
                "{kind} {finalizers:?}"
            );
        }
        Ok(())
    }

    #[test]
    fn credentials_are_held_for_buckets_of_the_hub_and_objects_of_the_member() -> anyhow::Result<()> {
        for (finalizer, labels, by) in [
            (keys::CREDENTIALS_FINALIZER, json!({}), Some(RemovableBy::Controller)),
            (keys::EXTENSION_BUCKET_FINALIZER, json!({}), None),
            (
                keys::EXTENSION_BUCKET_FINALIZER,
                json!({keys::CARRIED_FOR: "ship"}),
                Some(RemovableBy::Courier),
            ),
            ("somebody.else/protection", json!({}), None),
        ] {
            assert_eq!(credentials(&object(json!({}), labels, &[finalizer])?), by, "{finalizer}");
        }
        Ok(())
    }

    #[test]
    fn movements_are_held_while_objects_may_be_there_that_were_made_for_them() -> anyhow::Result<()> {
        for (finalizer, by) in
            [(keys::MOVER_FINALIZER, Some(RemovableBy::Controller)), ("somebody.else/one", None)]
        {
            assert_eq!(movement(&object(json!({}), json!({}), &[finalizer])?), by, "{finalizer}");
        }
        Ok(())
    }

    #[test]
    fn the_note_says_how_many_and_both_ways_out() {
        let of = |resource: &str, count, deleted, by| HeldObjects {
            resource: resource.to_owned(),
            count,
            deleted,
            by,
        };
        assert_eq!(note(&[], "velero"), None);
        let entries = of("backupentries.garden.berth.dev", 3, 1, RemovableBy::Controller);
        let text = note(std::slice::from_ref(&entries), "velero").unwrap_or_default();
        for words in [
            "3 backupentries.garden.berth.dev, 1 deleted already",
            "`berth install --namespace velero`",
            r#"--patch='{"metadata":{"finalizers":null}}'"#,
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let buckets = of("backupbuckets.extensions.gardener.cloud", 1, 0, RemovableBy::Courier);
        let text = note(&[entries, buckets], "elsewhere").unwrap_or_default();
        assert!(text.contains("--namespace elsewhere --hub-kubeconfig=FILE --seed=NAME"), "{text}");
        assert!(text.contains("\n  1 backupbuckets.extensions.gardener.cloud\n"), "{text}");
    }
}
