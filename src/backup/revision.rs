//! The revision as of which a run lists, and which types were not listed as of it.

use std::collections::{BTreeMap, HashSet};

use berth_core::revision::{OtherRevisionReason, is_revision};
use berth_core::selection::ResourceType;
use parking_lot::Mutex;

use super::log::{BackupLog, ResultsHeading};
use crate::text::few;

/// Shared by all lists of a run.
pub struct Revision {
    version: String,
    /// Another run began the backup; this run has taken it up.
    is_taken_up: bool,
    aggregated: HashSet<String>,
    /// By the qualified name of a type.
    apart: Mutex<BTreeMap<String, OtherRevisionReason>>,
}

impl Revision {
    /// `version`: the resourceVersion of a write to the API server's own store. Returns `None` if
    /// it is no revision, or if it is not known which types aggregated servers keep.
    pub fn new(version: Option<String>, aggregated: Option<HashSet<String>>) -> Option<Self> {
        let version = version.filter(|version| is_revision(version))?;
        Some(Self { version, is_taken_up: false, aggregated: aggregated?, apart: Mutex::default() })
    }

    /// For a run that continues: what the earlier run stored is as of another revision, and
    /// everything that this run lists is as of the write by which it took the backup up.
    #[must_use]
    pub fn taken_up(self, is_taken_up: bool) -> Self {
        Self { is_taken_up, ..self }
    }

    /// The revision that a list of this type asks for and must report.
    pub fn of(&self, kind: &ResourceType) -> Option<&str> {
        let is_given_up = || self.apart.lock().get(&kind.qualified()).is_some_and(|apart| !apart.is_meant());
        let is_asked = OtherRevisionReason::of_type(kind, &self.aggregated).is_none() && !is_given_up();
        is_asked.then_some(self.version.as_str())
    }

    /// Notes the revision of a page. `apart`: why the page could not be as of the revision.
    pub fn came(&self, kind: &ResourceType, apart: Option<OtherRevisionReason>, version: &str) {
        let apart = OtherRevisionReason::of_type(kind, &self.aggregated).or(apart);
        let goes_on = || self.apart.lock().get(&kind.qualified()) == Some(&OtherRevisionReason::Earlier);
        let is_another = |asked: &&str| *asked != version && !goes_on();
        let another = || self.of(kind).filter(is_another).map(|_| OtherRevisionReason::Another);
        if let Some(apart) = apart.or_else(another) {
            self.note(kind, apart);
        }
    }

    pub fn note(&self, kind: &ResourceType, apart: OtherRevisionReason) {
        let mut all = self.apart.lock();
        let known = all.entry(kind.qualified()).or_insert(apart);
        *known = apart.max(*known);
    }

    /// Logs which types are not as of the revision: as information if that is intended, else as a
    /// warning.
    pub fn tell(revision: Option<&Self>, log: &BackupLog) {
        for (is_warning, sentence) in Self::sentences(revision) {
            if is_warning {
                log.warning(&ResultsHeading::Cluster, "", &sentence);
            } else {
                log.info(&sentence);
            }
        }
    }

    /// The same as sentences, each with whether it is a warning.
    pub fn sentences(revision: Option<&Self>) -> Vec<(bool, String)> {
        let Some(Self { version, is_taken_up, apart, .. }) = revision else {
            let unknown = "each list is as of the moment at which it was read: it is not known which types other servers keep, or the API server has no revisions";
            return vec![(false, unknown.to_owned())];
        };
        let moment = if *is_taken_up {
            "the moment at which an interrupted backup was taken up, but for what was stored by then"
        } else {
            "the moment at which the backup began"
        };
        let mut sentences = vec![(false, format!("objects are as of resourceVersion {version}, {moment}"))];
        let mut types: BTreeMap<OtherRevisionReason, Vec<String>> = BTreeMap::new();
        for (name, apart) in apart.lock().iter() {
            types.entry(*apart).or_default().push(name.clone());
        }
        for (apart, names) in types {
            let message = format!(
                "not all objects of {} are as of resourceVersion {version}, but as they were when they were read: {}",
                few(&names),
                apart.words()
            );
            sentences.push((!apart.is_meant(), message));
        }
        sentences
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use serde_json::Value;

    use super::*;

    fn kind(group: &str, resource: &str) -> ResourceType {
        ResourceType {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: "Kind".to_owned(),
            resource: resource.to_owned(),
            singular: String::new(),
            short_names: Vec::new(),
            namespaced: true,
        }
    }

    fn revision() -> Revision {
        let aggregated = HashSet::from(["v1.far.example.com".to_owned()]);
        Revision::new(Some("8".to_owned()), Some(aggregated)).unwrap()
    }

    fn text(gzip: &[u8]) -> String {
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(gzip).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn without_a_number_or_without_knowing_the_other_servers_there_is_none() {
        assert!(Revision::new(None, Some(HashSet::new())).is_none());
        assert!(Revision::new(Some("opaque".to_owned()), Some(HashSet::new())).is_none());
        assert!(Revision::new(Some("8".to_owned()), None).is_none());
    }

    #[test]
    fn a_type_that_was_given_up_is_not_asked_for_again() {
        let (revision, pods) = (revision(), kind("", "pods"));
        revision.came(&pods, None, "8");
        revision.note(&pods, OtherRevisionReason::ByName);
        assert_eq!(revision.of(&pods), Some("8"));
        revision.came(&pods, Some(OtherRevisionReason::Expired), "99");
        revision.came(&pods, None, "99");
        assert_eq!(revision.of(&pods), None);
        assert_eq!(revision.of(&kind("", "events")), None);
        assert_eq!(revision.of(&kind("far.example.com", "orders")), None);
        assert_eq!(revision.apart.lock().get("pods"), Some(&OtherRevisionReason::Expired));
    }

    #[test]
    fn a_list_that_goes_on_by_the_token_of_an_earlier_run_is_as_of_that_one_and_nothing_is_wrong_with_it() {
        let (revision, pods) = (revision().taken_up(true), kind("", "pods"));
        revision.note(&pods, OtherRevisionReason::Earlier);
        revision.came(&pods, None, "3");
        // The next namespace is asked for anew.
        assert_eq!(revision.of(&pods), Some("8"));
        revision.came(&pods, None, "8");
        let sentences = Revision::sentences(Some(&revision));
        assert!(sentences.iter().all(|(is_warning, _)| !is_warning), "{sentences:?}");
        assert!(sentences[0].1.contains("8, the moment at which an interrupted backup was taken up"));
        assert!(sentences[1].1.contains("of pods") && sentences[1].1.contains("an earlier run"));
        revision.came(&pods, Some(OtherRevisionReason::Expired), "9");
        assert!(Revision::sentences(Some(&revision))[1].0, "what that one knew is gone");
    }

    #[test]
    fn what_is_not_as_of_the_revision_is_told_and_warned_of_where_that_is_not_meant() {
        let (revision, log) = (revision(), BackupLog::new("velero/b".to_owned()));
        for (group, resource, version) in
            [("", "pods", "8"), ("", "events", "3"), ("far.example.com", "orders", ""), ("", "maps", "9")]
        {
            revision.came(&kind(group, resource), None, version);
        }
        // Its pages are not those of the revision anyway.
        revision.came(&kind("", "events"), Some(OtherRevisionReason::Expired), "4");
        for i in 0..7 {
            revision.came(&kind("", &format!("late-{i}")), Some(OtherRevisionReason::Expired), "9");
        }
        Revision::tell(Some(&revision), &log);
        assert_eq!((log.counts().warnings, log.counts().errors), (2, 0));
        let (lines, results) = log.files().unwrap();
        let (lines, results) = (text(&lines), text(&results));
        for words in [
            "level=info msg=\"objects are as of resourceVersion 8,",
            "level=info msg=\"not all objects of events are",
            "level=info msg=\"not all objects of orders.far.example.com are",
        ] {
            assert!(lines.contains(words), "{words}: {lines}");
        }
        let results: Value = serde_json::from_str(&results).unwrap();
        let warnings = results["warnings"]["cluster"].to_string();
        for words in ["of maps are as of resourceVersion 8", "late-4 and 2 more are", "compaction-interval"] {
            assert!(warnings.contains(words), "{words}: {warnings}");
        }
        assert!(!lines.contains("pods"), "{lines}");
    }
}
