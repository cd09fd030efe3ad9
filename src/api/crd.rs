//! CustomResourceDefinitions, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

use crate::velero::{Backup, BackupStorageLocation};

/// Every definition that berth brings, in the order of their names. None has a status subresource, as
/// Velero's have none: a write to `/status` gets 404 there, so it must here.
pub fn all() -> Vec<CustomResourceDefinition> {
    [Backup::crd(), BackupStorageLocation::crd()].into_iter().map(as_velero_has_it).collect()
}

fn as_velero_has_it(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    // The first is Velero's; by the second, an installation knows its own again.
    let labels = [("component", "velero"), ("app.kubernetes.io/part-of", "berth")];
    crd.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    for version in &mut crd.spec.versions {
        version.subresources = None;
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            schema.description = None;
            keep_null_out_of_enums(schema);
        }
    }
    crd
}

/// An optional enum is generated with `null` among its values, which kubectl's own validation refuses. Absent
/// is enough: nobody writes null there.
fn keep_null_out_of_enums(schema: &mut JSONSchemaProps) {
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
        schema.nullable = None;
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        keep_null_out_of_enums(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => keep_null_out_of_enums(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(keep_null_out_of_enums),
        None => {}
    }
}

/// One YAML file per definition: file name and text.
///
/// # Errors
/// When a definition cannot be written as YAML.
pub fn files() -> Result<Vec<(String, String)>, serde_saphyr::ser::Error> {
    all()
        .iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().unwrap_or_default();
            Ok((format!("{name}.yaml"), serde_saphyr::to_string(crd)?))
        })
        .collect()
}
