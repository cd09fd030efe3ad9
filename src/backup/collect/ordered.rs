//! What goes first: objects that `spec.orderedResources` names are got one by one, and stand in the archive, in their order, before
//! anything else of their type is asked for.

use std::sync::Arc;

use berth_core::policy::filters::matches_one;
use futures::StreamExt;

use super::Collector;
use super::pending::Pending;
use super::taken::Taken;
use crate::backup::list::ListError;
use crate::backup::log::About;
use crate::backup::related::{Origin, Related, labels};
use crate::text::{chain, few};

/// Objects that are asked for at one time.
const AHEAD: usize = 8;

impl Collector<'_> {
    /// Takes those that the backup chooses, as a list of them would; the others are warned of.
    pub(super) async fn take_ordered(&self, taken: &mut Taken) -> Result<(), ListError> {
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
        // While the hooks of one pod are waited for, requests for others would stand still, and be in the way of everybody.
        let ahead = if Related::Pod.is(&kind) { 1 } else { AHEAD };
        let mut answers = futures::stream::iter(names.clone()).map(get).buffered(ahead);
        let mut pending = Pending::new(self, taken, Origin::Listed);
        pending.in_order = true;
        // The lists of the type bring these once more, and pass them over: it is this page that says when they are stored.
        pending.page = self.ledger.open(&kind);
        let mut gone = Vec::new();
        while let Some((name, answer)) = answers.next().await {
            match answer {
                Ok(Some(found)) => {
                    // Of a list the API server itself would have asked that.
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
                // What an earlier run has stored stands first, too.
                Ok(None) if pending.taken.holds(&name) => {}
                Ok(None) => gone.push(name),
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to get {name}, which is to go first, and those behind it: {}; {}",
                        chain(&error),
                        error.way_out(&kind)
                    );
                    self.log.error(&About::Cluster, &kind.qualified(), &message);
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
            self.log.warning(&About::Cluster, &kind.qualified(), &message);
        }
        Ok(())
    }
}
