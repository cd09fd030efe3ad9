//! What a backup takes, as it was when the backup began.

use std::collections::HashSet;

use berth_core::selection::{ResourceType, Selection, TypeSelection};
use serde::{Deserialize, Serialize};

/// The scope of a backup, as it was when the backup began: types, their fates, and namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupScope {
    types: Vec<ScopedType>,
    all_namespaces: bool,
    namespaces: Vec<String>,
    /// Digest of the backup's resource policy.
    policy: String,
}

/// A type, with all names by which a resource policy may refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScopedType {
    group: String,
    version: String,
    kind: String,
    resource: String,
    singular: String,
    short_names: Vec<String>,
    namespaced: bool,
    fate: ScopedFate,
}

impl ScopedType {
    /// Whether the parts that go into URLs as they are cannot lead elsewhere.
    fn is_plain(&self) -> bool {
        let is_plain = |part: &str| {
            let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            !matches!(part, "" | "." | "..") && part.bytes().all(may_stand)
        };
        (self.group.is_empty() || is_plain(&self.group))
            && is_plain(&self.version)
            && is_plain(&self.resource)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ScopedFate {
    Excluded,
    Unnamed,
    Needed,
    Listed,
}

impl BackupScope {
    /// `policy`: digest of the backup's resource policy.
    pub fn of(
        types: &[ResourceType],
        selection: &Selection,
        resolved: &HashSet<String>,
        policy: &str,
    ) -> Self {
        let scoped = |kind: &ResourceType| ScopedType {
            group: kind.group.clone(),
            version: kind.version.clone(),
            kind: kind.kind.clone(),
            resource: kind.resource.clone(),
            singular: kind.singular.clone(),
            short_names: kind.short_names.clone(),
            namespaced: kind.namespaced,
            fate: match selection.fate(kind) {
                TypeSelection::Excluded => ScopedFate::Excluded,
                TypeSelection::Unnamed => ScopedFate::Unnamed,
                TypeSelection::Needed => ScopedFate::Needed,
                TypeSelection::Listed => ScopedFate::Listed,
            },
        };
        Self {
            types: types.iter().map(scoped).collect(),
            all_namespaces: selection.all_namespaces,
            namespaces: resolved.iter().cloned().collect(),
            policy: policy.to_owned(),
        }
    }

    /// Whether no type leads elsewhere in an address.
    pub(super) fn is_plain(&self) -> bool {
        self.types.iter().all(ScopedType::is_plain)
    }

    /// Digest of the backup's resource policy. A list that was read under another policy cannot be
    /// continued.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    pub fn types(&self) -> Vec<ResourceType> {
        let kind = |scoped: &ScopedType| ResourceType {
            group: scoped.group.clone(),
            version: scoped.version.clone(),
            kind: scoped.kind.clone(),
            resource: scoped.resource.clone(),
            singular: scoped.singular.clone(),
            short_names: scoped.short_names.clone(),
            namespaced: scoped.namespaced,
        };
        self.types.iter().map(kind).collect()
    }

    pub fn selection(&self) -> Selection {
        let fate = |(kind, scoped): (ResourceType, &ScopedType)| {
            let fate = match scoped.fate {
                ScopedFate::Excluded => TypeSelection::Excluded,
                ScopedFate::Unnamed => TypeSelection::Unnamed,
                ScopedFate::Needed => TypeSelection::Needed,
                ScopedFate::Listed => TypeSelection::Listed,
            };
            (kind.qualified(), fate)
        };
        Selection::of(self.types().into_iter().zip(&self.types).map(fate), self.all_namespaces)
    }

    pub fn resolved(&self) -> HashSet<String> {
        self.namespaces.iter().cloned().collect()
    }
}
