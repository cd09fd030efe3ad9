//! What an installation would change, as people read it.

use serde_json::Value;
use similar::TextDiff;

/// Lines around a change.
const CONTEXT: usize = 3;

/// Both as YAML, without what the API server writes by itself; empty where nothing differs.
///
/// # Errors
/// Never, in practice: objects can be written as YAML.
pub fn objects(name: &str, before: Option<&Value>, after: &Value) -> anyhow::Result<String> {
    let text = |object: Option<&Value>| match object {
        None => Ok(String::new()),
        Some(object) => serde_saphyr::to_string(&bare(object)),
    };
    Ok(texts(name, &text(before)?, &text(Some(after))?))
}

/// In the unified format.
pub fn texts(name: &str, before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    diff.unified_diff().context_radius(CONTEXT).header(name, name).to_string()
}

/// An object without what changes at every write.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"]
        {
            metadata.remove(key);
        }
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    object
}
