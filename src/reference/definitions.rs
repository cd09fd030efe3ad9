//! The definitions (CRDs): kinds and their fields, with the descriptions that the API server shows
//! (`kubectl explain`).

use berth_garden_api::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use super::{code, head, sentence, table, wrap};

pub fn page() -> String {
    let intro = "The kinds that berth brings, and their fields. `kubectl explain` shows the same descriptions. `[]` stands for \
        the elements of a list, `*` for the values of a map.";
    let mut text = head("Definitions", intro);
    for (told, definitions) in [
        ("Velero's kind, as berth reads and writes it.", berth_api::crd::velero()),
        ("Velero's kind, for the files of volumes.", berth_api::crd::pod_volumes()),
        ("Shared buckets: a kind of the hub, the cluster that decides.", crd::hub()),
        ("Shared buckets: a kind of a member cluster. The type is Gardener's.", crd::member()),
    ] {
        for definition in &definitions {
            describe(&mut text, told, definition);
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn describe(text: &mut String, told: &str, definition: &CustomResourceDefinition) {
    let spec = &definition.spec;
    for version in &spec.versions {
        *text += &format!("## {} (`{}/{}`)\n\n", spec.names.kind, spec.group, version.name);
        let scope =
            if spec.scope == "Namespaced" { "It lives in a namespace" } else { "It is cluster-scoped" };
        let plural = &spec.names.plural;
        *text += &format!("{}\n\n", wrap(&format!("{told} {scope}. Its plural is `{plural}`.")));
        let mut rows = Vec::new();
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        if let Some(schema) = schema {
            fields(&mut rows, "", schema);
        }
        *text += &table(&["field", "type", "meaning"], rows);
        text.push('\n');
    }
}

/// A row for each field below `path`.
fn fields(rows: &mut Vec<Vec<String>>, path: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let is_required = schema.required.iter().flatten().any(|required| required == name);
        rows.push(vec![code(&path), type_of(field), meaning(field, is_required)]);
        nested(rows, &path, field);
    }
}

fn nested(rows: &mut Vec<Vec<String>>, path: &str, schema: &JSONSchemaProps) {
    fields(rows, path, schema);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        nested(rows, &format!("{path}[]"), items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        nested(rows, &format!("{path}.*"), values);
    }
}

fn type_of(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "integer or string".to_owned();
    }
    match (schema.type_.as_deref(), &schema.items, &schema.additional_properties) {
        (Some("array"), Some(JSONSchemaPropsOrArray::Schema(items)), _) => {
            format!("list of {}", type_of(items))
        }
        (Some("object"), _, Some(JSONSchemaPropsOrBool::Schema(values))) => {
            format!("map of {}", type_of(values))
        }
        (Some(plain), _, _) => match &schema.format {
            Some(format) => format!("{plain} ({format})"),
            None => plain.to_owned(),
        },
        (None, _, _) => "any".to_owned(),
    }
}

fn meaning(schema: &JSONSchemaProps, is_required: bool) -> String {
    let mut parts = Vec::new();
    if is_required {
        parts.push("Required.".to_owned());
    }
    parts.extend(schema.description.as_deref().map(sentence));
    let values: Vec<String> = schema.enum_.iter().flatten().map(|value| shown(&value.0)).collect();
    if !values.is_empty() {
        parts.push(format!("One of: {}.", values.join(", ")));
    }
    parts.extend(schema.default.as_ref().map(|value| format!("Default: {}.", shown(&value.0))));
    parts.join(" ")
}

fn shown(value: &Value) -> String {
    code(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}
