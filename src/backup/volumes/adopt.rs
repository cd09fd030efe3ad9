//! What an earlier run has taken while pods were frozen, and has not stored, because it ended while
//! a snapshot was not ready yet. The pods may be stored, and their hooks are not run again; so this
//! run takes over what was cut then. What it has to take anew is of another moment than the rest,
//! and is told.

use std::collections::BTreeSet;

use berth_api::snapshot::VolumeSnapshot;
use berth_core::volume::Moment;
use kube::ResourceExt as _;
use kube::api::Api;

use super::RunVolumes;
use super::files::{FilePod, FileVolume};
use super::outcomes::{EarlierCut, StillCut};
use super::snapshots::{Ask, Cut, is_of};
use crate::backup::insist::insist;
use crate::backup::log::ResultsHeading;
use crate::backup::related::{is_name, key};
use crate::client::is_not_found;
use crate::text::chain;

/// Most claims of stored pods that are known.
const MOST: usize = 100_000;

impl Ask {
    /// What the next run has to know of its snapshot. `None`: an earlier one has handed it over.
    /// `is_whole`: all data of its block was taken.
    pub(super) fn noted(&self, cut: &Cut, is_whole: bool) -> Option<(String, StillCut)> {
        let Cut { name, uid, policy, .. } = cut;
        let cut = StillCut {
            claim: self.uid.clone(),
            name: name.clone(),
            uid: uid.clone(),
            policy: policy.clone(),
            is_whole,
        };
        (!name.is_empty()).then(|| (self.claim.clone(), cut))
    }
}

impl RunVolumes<'_> {
    /// Notes the claims of a pod that an earlier run has stored after hooks before it: those that
    /// are not stored yet.
    pub fn note_past(&self, namespace: Option<&str>, pod: &str, claims: &[String]) {
        let mut seen = self.seen.lock();
        for claim in claims {
            if seen.past.len() < MOST {
                seen.past.entry(key(namespace, claim)).or_insert_with(|| pod.to_owned());
            }
        }
    }

    /// The snapshot that an earlier run has cut while pods were frozen for it. `None`: it is to be
    /// taken now, which is told if it will be of another moment than other data. `freezes`: the
    /// pods that use the claim, unless they are stored, are about to be frozen once more.
    pub(super) async fn earlier_cut(&self, ask: &Ask, freezes: bool) -> EarlierCut {
        let Some(access) = self.access.as_ref().filter(|_| self.upload_of(ask).is_none()) else {
            return Ok(None);
        };
        let noted = self.outcomes.noted_cut(&ask.claim);
        let pod = self.seen.lock().past.get(&ask.claim).cloned();
        // The name becomes part of a URL, and whoever may write to the location could have made it
        // up.
        if let Some(noted) = noted.clone().filter(|noted| noted.claim == ask.uid && is_name(&noted.name)) {
            let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), &ask.namespace);
            let found = insist(|| async { api.get(&noted.name).await.into() }).await;
            match found {
                Ok(found)
                    if found.uid().as_deref() == Some(noted.uid.as_str())
                        && is_of(&found, access, ask)
                        && found.metadata.deletion_timestamp.is_none() =>
                {
                    if !freezes || pod.is_some() || noted.is_whole {
                        return Ok(Some((found, noted)));
                    }
                    // What is missing of its block is taken only now.
                    self.discard(access, &ask.namespace, (noted.name.as_str(), noted.uid.as_str()), false)
                        .await;
                }
                Err(error) if !is_not_found(&error) => {
                    let error = chain(&error);
                    return Err(format!(
                        "the snapshot that the run before this one has cut cannot be read: {error}"
                    ));
                }
                _ => {}
            }
        }
        let claim = &ask.name;
        let message = match (pod, noted) {
            (None, None) => None,
            (None, Some(noted)) if freezes && !noted.is_whole => None,
            (Some(pod), None) => Some(format!(
                "the snapshot of claim {claim} is taken while pod {pod} is not frozen, because the run that froze it ended early: it may be of another moment than other data of that pod"
            )),
            (pod, Some(_)) => {
                let (when, of) = match (pod, &ask.group) {
                    (Some(pod), _) => (format!("while pod {pod} was frozen"), "pods"),
                    (None, Some(_)) => ("with its group".to_owned(), "group"),
                    (None, None) => ("while its pods were frozen".to_owned(), "pods"),
                };
                Some(format!(
                    "the snapshot of claim {claim} that was cut {when} is gone: the one that is taken now may be of another moment than other data of the same {of}"
                ))
            }
        };
        if let Some(message) = message {
            self.log.lasting_error(
                &ResultsHeading::Namespace(&ask.namespace),
                "persistentvolumeclaims",
                &message,
            );
        }
        Ok(None)
    }

    /// Tells that files are read anew of a pod that an earlier run has stored between its hooks.
    pub(super) fn tell_files_anew(&self, pod: &FilePod, volume: &FileVolume) {
        if pod.moment != Moment::Past {
            return;
        }
        let claim = volume.claim.as_ref().map(|claim| format!(" (claim {})", claim.name));
        let message = format!(
            "the files of volume {}{} of pod {} may be of another moment than the rest of its data: they are read anew, because the run before this one has not read them while the pod was frozen",
            volume.name,
            claim.unwrap_or_default(),
            pod.name
        );
        self.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
    }

    /// Snapshots (namespace, slash, name) that an earlier run has noted, and that nobody asks for
    /// in this one, because their claims are gone, for example.
    pub fn unmet(&self) -> BTreeSet<String> {
        let seen = self.seen.lock();
        let mut unmet = self.outcomes.noted_snapshots(|claim| !seen.cut.contains(claim));
        // A forged checkpoint could note one that the archive names.
        for taken in self.outcomes.objects() {
            unmet.remove(&taken);
        }
        unmet
    }
}
