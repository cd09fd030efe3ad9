//! Typed edits to JSON Patch. Missing parents and escaping are handled here, once.

use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

/// Collects edits of one object.
#[derive(Debug, Default)]
pub struct Edit(Vec<PatchOperation>);

impl Edit {
    /// Sets `parent.key`. `parent_exists`: `parent` is an object already. The first edit below a
    /// missing parent creates it.
    pub fn set(&mut self, parent: &[&str], parent_exists: bool, key: &str, value: Value) {
        let path = pointer(parent);
        let made = self.0.iter().any(|op| matches!(op, PatchOperation::Add(add) if add.path == path));
        if !parent_exists && !made {
            self.0.push(PatchOperation::Add(AddOperation { path, value: json!({}) }));
        }
        let full: Vec<&str> = parent.iter().copied().chain([key]).collect();
        self.0.push(PatchOperation::Add(AddOperation { path: pointer(&full), value }));
    }

    /// Removes the value at a path that exists.
    pub fn remove(&mut self, path: &[&str]) {
        self.0.push(PatchOperation::Remove(RemoveOperation { path: pointer(path) }));
    }

    pub fn into_patch(self) -> Patch {
        Patch(self.0)
    }
}

fn pointer(parts: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(parts.iter().map(|part| Token::new(*part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_parent_is_made_once_and_keys_are_escaped() {
        let mut edit = Edit::default();
        edit.set(&["metadata", "annotations"], false, "berth.dev/a~b", json!("x"));
        edit.set(&["metadata", "annotations"], false, "c", json!("y"));
        let mut object = json!({"metadata": {}});
        json_patch::patch(&mut object, &edit.into_patch()).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(object, json!({"metadata": {"annotations": {"berth.dev/a~b": "x", "c": "y"}}}));
    }

    #[test]
    fn what_is_there_already_stays() {
        let mut edit = Edit::default();
        edit.set(&["status"], true, "phase", json!("Queued"));
        edit.remove(&["metadata", "x"]);
        let mut object = json!({"status": {"phase": "New", "other": 1}, "metadata": {"x": 1}});
        json_patch::patch(&mut object, &edit.into_patch()).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(object, json!({"status": {"phase": "Queued", "other": 1}, "metadata": {}}));
    }
}
