//! What pods with hooks take along: the claims that they use and the volumes of these claims, so
//! that all of it is stored between the hooks before and after the pod.
//!
//! Each object is stored once, so the lists of claims and volumes must not take an object before a
//! pod asks for it. These lists start with all others and wait when they have read their first
//! page: what they have taken is lent to the list of pods, and given back when that is complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_core::limits;
use berth_core::selection::{ResourceType, TypeSelection};
use berth_core::volume::group;
use futures::StreamExt;
use tokio::sync::oneshot;

use super::Collector;
use super::pending::Pending;
use super::taken::{Borrowed, CollectedType};
use crate::backup::archive::Batch;
use crate::backup::hold::Used;
use crate::backup::list::{ListError, ListedObject};
use crate::backup::log::ResultsHeading;
use crate::backup::related::{ClaimReferences, Origin, PodReferences, References, Related, key};
use crate::backup::volumes::PlannedClaim;
use crate::text::chain;

/// In this order, because claims name volumes.
const ALONG: [Related; 2] = [Related::Claim, Related::Volume];
/// Objects that are requested at one time.
const AHEAD: usize = 8;
/// Most bytes that are stored together with one pod.
const ROOM: usize = 4 * 1024 * 1024;

/// What the list of a type lends to, or borrows from, other lists.
pub(super) enum Loan {
    None,
    Lends(Lender),
    Borrows(Vec<Borrower>),
}

pub(super) struct Lender {
    lent: oneshot::Sender<CollectedType>,
    back: oneshot::Receiver<CollectedType>,
}

pub(super) struct Borrower {
    lent: oneshot::Receiver<CollectedType>,
    back: oneshot::Sender<CollectedType>,
}

impl Loan {
    /// One loan for each listed type.
    pub fn of(types: &[Arc<ResourceType>]) -> Vec<Self> {
        let pods = types.iter().position(|kind| Related::Pod.is(kind));
        let mut borrowers = Vec::new();
        let mut loans: Vec<Self> = types
            .iter()
            .map(|kind| {
                if pods.is_none() || !ALONG.iter().any(|related| related.is(kind)) {
                    return Self::None;
                }
                let ((lend, lent), (give, back)) = (oneshot::channel(), oneshot::channel());
                borrowers.push(Borrower { lent, back: give });
                Self::Lends(Lender { lent: lend, back })
            })
            .collect();
        if let Some(loan) = pods.and_then(|at| loans.get_mut(at)) {
            *loan = Self::Borrows(borrowers);
        }
        loans
    }
}

impl Lender {
    /// Lends `taken` and returns its placeholder.
    pub fn lend(self, taken: CollectedType) -> CollectedType {
        let kind = Arc::clone(&taken.kind);
        if let Err(taken) = self.lent.send(taken) {
            return taken;
        }
        let mut stand_in = CollectedType::of(&kind, References::default());
        stand_in.lent = Some(self.back);
        stand_in
    }
}

impl Collector<'_> {
    /// Receives everything that may be stored together with pods.
    pub(super) async fn borrow(&self, borrowers: Vec<Borrower>) -> Vec<Borrowed> {
        let mut lent = Vec::new();
        for Borrower { lent: taken, back } in borrowers {
            // It is not lent only if the backup ends early.
            if let Ok(taken) = taken.await {
                lent.push((taken, Some(back)));
            }
        }
        let mut along = Vec::new();
        for related in ALONG {
            let Some(kind) = self.served(related) else { continue };
            let (taken, back) = match lent.iter().position(|(taken, _)| taken.kind == kind) {
                Some(at) => lent.swap_remove(at),
                None => (self.none_of(&kind), None),
            };
            let origin = match self.selection.fate(&kind) {
                TypeSelection::Excluded | TypeSelection::Unnamed => None,
                _ if self.open(related).is_some() => Some(Origin::Needed),
                _ => Some(Origin::Listed),
            };
            along.push(Borrowed { taken, back, origin, is_off: false });
        }
        along
    }

    /// Takes what a pod uses and was not taken yet. `needs`: why, according to the pod. `is_alone`:
    /// no other pod goes through its hooks together with this one.
    pub(super) async fn take_along(
        &self,
        found: &ListedObject,
        needs: Origin,
        along: &mut [Borrowed],
        is_alone: bool,
    ) -> Result<Used, ListError> {
        // An unreadable pod has been logged already.
        let Ok(pod) = PodReferences::parse(&found.json) else { return Ok(Used::default()) };
        let claims = pod.claims.iter().take(limits::BLOCK_CLAIMS).cloned();
        let mut used = Used { claims: claims.collect(), ..Used::default() };
        let namespace = found.namespace.as_deref();
        let mut claims: BTreeMap<String, Origin> =
            used.claims.iter().map(|name| (key(namespace, name), needs)).collect();
        let mut volumes = BTreeMap::new();
        let (mut room, mut is_short) = (ROOM, pod.claims.len() > limits::BLOCK_CLAIMS);
        for one in along {
            let is_claim = Related::Claim.is(&one.taken.kind);
            let names = std::mem::take(if is_claim { &mut claims } else { &mut volumes });
            let mut leads = BTreeMap::new();
            let batch =
                self.take_of_type(one, names, &mut room, &mut is_short, &mut leads, &mut used.cuts).await?;
            used.with.extend(batch);
            if is_claim {
                // A group of claims is cut at one moment, so pods that use some of them go through
                // their hooks together, and claims that no such pod uses come along.
                let groups = used.cuts.iter().filter_map(PlannedClaim::group);
                let grouped = group::along(&used.claims, groups, is_alone);
                let others = grouped.iter().map(|name| (key(namespace, name), Origin::Listed)).collect();
                let batch = self
                    .take_of_type(one, others, &mut room, &mut is_short, &mut leads, &mut used.cuts)
                    .await?;
                used.with.extend(batch);
                used.grouped = grouped.len();
                used.claims.extend(grouped);
            }
            volumes.append(&mut leads);
        }
        if is_short {
            let message = format!(
                "pod {} uses more claims, or larger ones, than are taken between its hooks ({}, of {} MiB): the others are taken before or after these",
                found.name,
                limits::BLOCK_CLAIMS,
                ROOM / (1024 * 1024)
            );
            self.log.warning(
                &namespace.map_or(ResultsHeading::Cluster, ResultsHeading::Namespace),
                "pods",
                &message,
            );
        }
        Ok(used)
    }

    /// `leads`: receives the volumes of these objects, if they are claims. A missing object is
    /// reported when references are followed; an object that does not fit is taken with the others
    /// of its type. `cuts`: receives the claims that wait for a snapshot.
    async fn take_of_type(
        &self,
        one: &mut Borrowed,
        names: BTreeMap<String, Origin>,
        room: &mut usize,
        is_short: &mut bool,
        leads: &mut BTreeMap<String, Origin>,
        cuts: &mut Vec<PlannedClaim>,
    ) -> Result<Option<Batch>, ListError> {
        let kind = Arc::clone(&one.taken.kind);
        let claims = Related::Claim.is(&kind);
        let of_type = one.origin.filter(|_| !one.is_off);
        let origin = |needs: Origin| if needs == Origin::Required { Some(needs) } else { of_type };
        let names: Vec<(String, Origin)> = names
            .into_iter()
            .filter(|(name, _)| !one.taken.names.contains(name))
            .filter_map(|(name, needs)| Some((name, origin(needs)?)))
            .collect();
        let lister = self.lister.apart(AHEAD);
        let get = |(name, origin): (String, Origin)| {
            let (lister, kind) = (&lister, &kind);
            async move {
                let answer = self.get_by(lister, kind, &name).await;
                (name, origin, answer)
            }
        };
        let mut answers = futures::stream::iter(names).map(get).buffered(AHEAD);
        let mut pending = Pending::new(self, &mut one.taken, Origin::Listed);
        let mut items = Vec::new();
        while let Some((name, origin, answer)) = answers.next().await {
            let found = match answer {
                Ok(Some(found)) if found.json.len() <= *room => found,
                Ok(Some(_)) => {
                    *is_short = true;
                    continue;
                }
                Ok(None) => continue,
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to get {name}, which a pod with hooks uses: what such pods use is taken before or after their hooks, and not between these: {}; {}",
                        chain(&error),
                        error.way_out(&kind)
                    );
                    self.log.warning(&ResultsHeading::Cluster, &kind.qualified(), &message);
                    // Each further read might take as long and fail.
                    one.is_off = true;
                    break;
                }
                Err(error) => return Err(error),
            };
            // Before an item action changes it.
            let claim = ClaimReferences::parse(&found.json).ok().filter(|_| Related::Claim.is(&kind));
            let size = found.json.len();
            pending.origin = origin;
            let let_in = pending.let_in(found);
            // Also if an earlier run has stored it.
            if let Some(volume) =
                claim.and_then(|claim| claim.volume).filter(|_| pending.taken.names.contains(&name))
            {
                leads.insert(volume, let_in.as_ref().map_or(Origin::Needed, |(_, needs)| *needs));
            }
            if let Some((found, _)) = let_in {
                *room -= size;
                let planned = match claims {
                    true => Box::pin(self.volumes.plan_claim(&kind, pending.page, &found)).await?,
                    false => None,
                };
                match planned {
                    Some(planned) => cuts.push(planned),
                    None => items.push(found.into()),
                }
            }
        }
        let page = pending.page;
        drop(answers);
        Ok((!items.is_empty()).then_some(Batch { kind, page, items, packed: None }))
    }
}
