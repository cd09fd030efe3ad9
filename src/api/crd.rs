//! CustomResourceDefinitions, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::velero::{
    Backup, BackupStorageLocation, DeleteBackupRequest, DownloadRequest, Schedule, ServerStatusRequest,
    data_movement, pod_volume,
};

/// Velero's kinds, for a cluster without Velero.
pub fn velero() -> Vec<CustomResourceDefinition> {
    let kinds = [
        Backup::crd(),
        BackupStorageLocation::crd(),
        DeleteBackupRequest::crd(),
        DownloadRequest::crd(),
        Schedule::crd(),
        ServerStatusRequest::crd(),
    ];
    kinds.map(as_velero_has_it).into()
}

/// Velero's kinds for the data of volumes, for a cluster without Velero that has berth's node
/// agents.
pub fn pod_volumes() -> Vec<CustomResourceDefinition> {
    let definitions = pod_volume::definitions().into_iter().chain(data_movement::definitions());
    definitions.map(as_velero_has_it).collect()
}

/// None has a status subresource, because Velero's have none: a write to `/status` gets 404 with
/// Velero's definitions, so it must get 404 with these.
fn as_velero_has_it(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut crd = ours(crd);
    crd.metadata.labels.get_or_insert_default().insert("component".to_owned(), "velero".to_owned());
    crd.spec.versions.iter_mut().for_each(|version| version.subresources = None);
    crd
}

/// The definition as berth installs it, recognisable as its own, and as kubectl takes it.
pub fn ours(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    // An installation recognises its own objects by this label.
    let label = ("app.kubernetes.io/part-of".to_owned(), "berth".to_owned());
    crd.metadata.labels = Some([label].into());
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            schema.description = None;
            as_kubernetes_takes_it(schema);
        }
    }
    crd
}

/// Removes `null` from the values of optional enums, because kubectl's validation refuses it, and
/// an absent field is enough. Removes formats of unsigned numbers, because the API server warns
/// about them.
fn as_kubernetes_takes_it(schema: &mut JSONSchemaProps) {
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
        schema.nullable = None;
    }
    if schema.format.as_ref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = Some("int64".to_owned());
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        as_kubernetes_takes_it(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => as_kubernetes_takes_it(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(as_kubernetes_takes_it),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        as_kubernetes_takes_it(values);
    }
}

/// One YAML file per definition: file name and text.
///
/// # Errors
/// A definition cannot be written as YAML.
pub fn files(
    definitions: &[CustomResourceDefinition],
) -> Result<Vec<(String, String)>, serde_saphyr::ser::Error> {
    definitions
        .iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().unwrap_or_default();
            Ok((format!("{name}.yaml"), serde_saphyr::to_string(crd)?))
        })
        .collect()
}
