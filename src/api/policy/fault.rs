//! Why a text is not a valid resource policy, in words for the creator of the Backup.

use serde_saphyr::Error;

use super::document::BESIDE;

/// Names of value types with which serde begins the description of a value.
const KINDS: [&str; 7] = ["string", "integer", "floating point", "boolean", "map", "sequence", "unit value"];
/// Longest field name in a message.
const LONGEST: usize = 63;

/// The position of the fault, and what was expected there. The message has only the type of the
/// value and names of fields, because the creator of a Backup may name a ConfigMap that only others
/// may read.
pub fn describe(error: &Error) -> String {
    let why = match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => return describe(error),
        Error::SerdeUnknownField { field, expected, .. } => {
            let expected = expected.join(", ");
            if is_field(field) {
                format!("{field} is not one of {expected}")
            } else {
                format!("a name there is not one of {expected}")
            }
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            let found = KINDS.into_iter().find(|kind| unexpected.starts_with(*kind));
            format!("a value there is {}, in place of {expected}", found.unwrap_or("of another kind"))
        }
        Error::Unexpected { expected, .. } => format!("expected is {expected}"),
        Error::SerdeMissingField { field, .. } => format!("{field} is missing"),
        Error::DuplicateMappingKey { .. } => {
            "a name there is a duplicate of one before it: remove one".to_owned()
        }
        Error::MultipleDocuments { .. } => "it is more than one document: leave one".to_owned(),
        Error::Message { msg, .. } if msg.contains(BESIDE) => BESIDE.to_owned(),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => {
            "it has more values, levels or aliases than are taken: use patterns, and no aliases".to_owned()
        }
        _ => "it cannot be read as YAML from there on".to_owned(),
    };
    match error.location() {
        Some(at) => format!("line {}, column {}: {why}", at.line(), at.column()),
        None => why,
    }
}

/// Could this be a misspelt field name?
fn is_field(field: &str) -> bool {
    (1..=LONGEST).contains(&field.len()) && field.chars().all(|c| c.is_ascii_alphanumeric())
}
