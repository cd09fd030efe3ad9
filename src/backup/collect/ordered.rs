//! Objects that `spec.orderedResources` names: they are got one by one and go into the archive, in
//! their order, before anything else of their type is listed.

use std::sync::Arc;

use berth_core::policy::filters::matches_one;
use futures::StreamExt;

use super::Collector;
use super::pending::Pending;
use super::taken::CollectedType;
use crate::backup::list::ListError;
use crate::backup::log::ResultsHeading;
use crate::backup::related::{Origin, Related, labels};
use crate::text::{chain, few};

/// Objects that are requested at one time.
const AHEAD: usize = 8;

impl Collector<'_> {
    /// Takes the named objects that the backup chooses, as a list of them would; warns of the
    /// others.
    pub(super) async fn take_ordered(&self, taken: &mut CollectedType) -> Result<(), ListError> {
        let kind = Arc::clone(&taken.kind);
        let ordered = &self.wanted.ordered;
        let names = ordered.get(&kind.resource).or_else(|| ordered.get(&kind.qualified()));
        let Some(names) = names else { return Ok(()) };
        let get = |name: String| {
            let kind = &kind;
            async move {
                let answer = self.get(kind, &name).await;
                (name, answer)
            }
        };
        // While the hooks of a pod are awaited, other requests would stand still and keep permits
        // from everybody.
        let ahead = if Related::Pod.is(&kind) { 1 } else { AHEAD };
        let mut answers = futures::stream::iter(names.clone()).map(get).buffered(ahead);
        let mut pending = Pending::new(self, taken, Origin::Listed);
        pending.in_order = true;
        // The lists of the type bring these objects once more and skip them; this page says when
        // they are stored.
        pending.page = self.ledger.open(&kind);
        let mut gone = Vec::new();
        while let Some((name, answer)) = answers.next().await {
            match answer {
                Ok(Some(found)) => {
                    // In a list the API server applies the selectors; in a get nobody does.
                    let selectors = &self.wanted.selectors;
                    let is_chosen = pending.filter.is_some()
                        || selectors.is_empty()
                        || labels(&found.json).is_ok_and(|labels| matches_one(selectors, &labels));
                    if is_chosen {
                        pending.add(found).await?;
                    }
                    if !pending.taken.holds(&name) {
                        gone.push(name);
                    }
                }
                // An object that an earlier run has stored comes first in the archive, too.
                Ok(None) if pending.taken.holds(&name) => {}
                Ok(None) => gone.push(name),
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to get {name}, which is to go first, and those behind it: {}; {}",
                        chain(&error),
                        error.way_out(&kind)
                    );
                    self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        pending.flush().await?;
        self.ledger.close_ahead(pending.page);
        if !gone.is_empty() {
            let message = format!(
                "spec.orderedResources: {} that are to go first are not there, or not in the backup: {}",
                gone.len(),
                few(&gone)
            );
            self.log.warning(&ResultsHeading::Cluster, &kind.qualified(), &message);
        }
        Ok(())
    }
}
