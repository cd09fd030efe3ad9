//! The results file of a backup: its warnings and errors, by what they are about.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Level, LogMessage, ResultsHeading};

#[derive(Default, Serialize)]
struct Messages<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    velero: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cluster: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    namespaces: BTreeMap<&'a str, Vec<String>>,
}

#[derive(Default, Serialize)]
pub(super) struct Results<'a> {
    errors: Messages<'a>,
    warnings: Messages<'a>,
}

impl<'a> Results<'a> {
    pub(super) fn of(told: &'a [LogMessage]) -> Self {
        let mut results = Self::default();
        for one in told {
            let messages = match one.level {
                Level::Info => continue,
                Level::Warning => &mut results.warnings,
                Level::Error => &mut results.errors,
            };
            let resource = match one.resource.as_str() {
                "" => String::new(),
                resource => format!(" resource: /{resource}"),
            };
            let text = format!("{resource} message: /{}", one.message);
            match one.about() {
                ResultsHeading::Velero => messages.velero.push(text),
                ResultsHeading::Cluster => messages.cluster.push(text),
                ResultsHeading::Namespace(name) => messages.namespaces.entry(name).or_default().push(text),
            }
        }
        results
    }
}
