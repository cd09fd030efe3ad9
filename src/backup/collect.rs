//! All objects of a backup: which lists to read, and which of their objects to take. `follow` takes
//! what these objects need besides.

mod along;
mod fetch;
mod follow;
mod ordered;
mod pending;
mod taken;
mod unmet;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_api::keys;
use berth_api::parse::ValidatedBackupSpec;
use berth_core::label::Selector;
use berth_core::policy::filters::Filters;
use berth_core::revision::OtherRevisionReason;
use berth_core::selection::{ResourceType, Selection, TypeSelection};
use berth_core::violation::tellable;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::archive::Batch;
use super::hold::PodHolder;
use super::ledger::{ObjectLedger, Position};
use super::list::{FEW_NAMESPACES, ListError, ListProgress, Lister, Namespace, REQUESTS_AT_ONCE};
use super::log::{BackupLog, ResultsHeading};
use super::names::{ResourceList, heading, in_order, resource_list};
use super::progress::Counters;
use super::related::{Origin, Related};
use super::volumes::RunVolumes;
use crate::text::{chain, few};
use along::Loan;
use pending::{LONGEST_NAME, Pending};
use taken::CollectedType;

/// What a backup takes and from where; shared by its lists.
pub struct Collector<'a> {
    pub lister: Lister,
    pub wanted: &'a ValidatedBackupSpec,
    pub selection: &'a Selection,
    /// The resource policy's filters of objects.
    pub filters: &'a Filters,
    /// Name of the Backup.
    pub backup: &'a str,
    pub types: &'a [ResourceType],
    /// The namespaces that the backup may take: the few that it names, or all of the cluster.
    pub namespaces: &'a [Namespace],
    /// Names of the namespaces that the backup takes.
    pub resolved: &'a HashSet<String>,
    pub log: &'a BackupLog,
    pub counters: &'a Counters,
    /// The data of volumes.
    pub volumes: &'a RunVolumes<'a>,
    /// What is stored, by this run and by the run that it continues.
    pub ledger: &'a ObjectLedger,
    pub batches: mpsc::Sender<Batch>,
    pub holder: PodHolder<'a>,
}

impl Collector<'_> {
    /// Takes all objects. An error of one type goes into the log; an error of the whole API server
    /// ends the backup.
    ///
    /// # Errors
    /// When the API server is gone, or the archive takes no more objects.
    pub async fn run(self) -> Result<ResourceList, ListError> {
        let chosen: Vec<Arc<ResourceType>> = self
            .types
            .iter()
            .filter(|kind| {
                !kind.is_namespaces()
                    && !is_movement(kind)
                    && self.selection.fate(kind) == TypeSelection::Listed
            })
            .map(|kind| Arc::new(kind.clone()))
            .collect();
        let loans = Loan::of(&chosen);
        let mut taken: Vec<CollectedType> = futures::stream::iter(chosen.into_iter().zip(loans))
            .map(|(kind, loan)| self.take_type(kind, loan))
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        self.tell_forbidden(&taken);
        let along = taken.iter_mut().flat_map(|one| std::mem::take(&mut one.along));
        let along: Vec<CollectedType> = along.map(|one| one.taken).collect();
        for mut one in along {
            self.tell_missing(&mut one);
            taken.push(one);
        }
        self.follow(&mut taken).await?;
        let mut list = resource_list(self.types, self.ledger.rest());
        for mut one in taken {
            // Objects that no longer exist were stored before they were deleted.
            let met = one.names.len();
            one.names.extend(one.stored);
            self.tell_unmet(&one.kind, one.names.len() - met);
            if !one.names.is_empty() {
                list.entry(heading(&one.kind)).or_default().extend(one.names);
            }
        }
        Ok(list)
    }

    async fn take_type(&self, kind: Arc<ResourceType>, loan: Loan) -> Result<CollectedType, ListError> {
        let mut taken = self.none_of(&kind);
        if taken.is_through {
            return Ok(taken);
        }
        let lender = match loan {
            Loan::None => None,
            Loan::Lends(lender) => Some(lender),
            Loan::Borrows(borrowers) => {
                taken.along = self.borrow(borrowers).await;
                None
            }
        };
        self.take_ordered(&mut taken).await?;
        if let Some(lender) = lender {
            taken = lender.lend(taken);
        }
        let filter = self.filters.of(&kind);
        let everything = [Selector::default()];
        // A filter has selectors of its own for some of the objects, so all objects are listed.
        let is_open = self.wanted.selectors.is_empty() || filter.is_some();
        let selectors = if is_open { &everything[..] } else { &self.wanted.selectors };
        let mut places = in_order(self.resolved);
        places.retain(|name| filter.as_ref().is_none_or(|filter| !filter.leaves(name)));
        let position = taken.position.take().filter(|position| position.selector < selectors.len());
        if position.as_ref().is_some_and(|position| !position.token.is_empty()) {
            self.lister.note(&kind, OtherRevisionReason::Earlier);
        }
        let first = position.as_ref().map_or(0, |position| position.selector);
        for (index, selector) in selectors.iter().enumerate().skip(first) {
            taken.selector = index;
            let behind = position.as_ref().filter(|_| index == first);
            let query = selector.query();
            let mut read = self.take_selected(&kind, &places, &query, behind, &mut taken).await;
            // Another API server may not know the continue token: start over.
            if behind.is_some() && read.as_ref().is_err_and(|error| error.code() == Some(400)) {
                read = self.take_selected(&kind, &places, &query, None, &mut taken).await;
            }
            match read {
                Ok(()) => {}
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to list {}, objects of it are missing: {}; {}",
                        kind.qualified(),
                        chain(&error),
                        error.way_out(&kind)
                    );
                    self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
                    taken.forbidden |= error.is_forbidden();
                    // Another selector would wait as long for the same error.
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Even if the list brought no object.
        taken.regain().await?;
        if Related::Pod.is(&kind) {
            self.holder.release().await?;
            taken.give_back();
        }
        self.tell_missing(&mut taken);
        if !taken.names.is_empty() {
            self.log.info(&format!("took {} of {}", taken.names.len(), kind.qualified()));
        }
        self.ledger.whole(&kind, taken.forbidden);
        Ok(taken)
    }

    /// Reports the objects that are missing, once for each call.
    fn tell_missing(&self, taken: &mut CollectedType) {
        let name = taken.kind.qualified();
        let skipped = std::mem::take(&mut taken.skipped);
        if skipped > 0 {
            let mark = keys::SKIP_FROM_BACKUP;
            self.log.info(&format!("left out {skipped} of {name}: their annotation {mark} says so"));
        }
        if let Some((count, why)) = taken.unreadable.take() {
            let why: String = why.to_string().chars().take(200).collect();
            let message = format!(
                "{count} objects of {name} are missing: they cannot be read, the first one because of {why}; `kubectl get {name} -A -o json` shows them"
            );
            self.log.error(&ResultsHeading::Cluster, &name, &message);
        }
        if let Some((count, first)) = taken.unstorable.take() {
            let message = format!(
                "{count} objects of {name} are missing: a restore makes a file of each, and no file can have such a name, the first one {}; give them names of at most {LONGEST_NAME} bytes without slashes and control characters, and not dots alone",
                tellable(&first)
            );
            self.log.error(&ResultsHeading::Cluster, &name, &message);
        }
    }

    /// Besides the error of each type, one warning about the missing right that they have in
    /// common.
    fn tell_forbidden(&self, taken: &[CollectedType]) {
        let forbidden = taken.iter().filter(|one| one.forbidden);
        let mut names: Vec<String> = forbidden.map(|one| one.kind.qualified()).collect();
        if names.is_empty() {
            return;
        }
        names.sort_unstable();
        let message = format!(
            "berth may not list {} of the {} types that were asked for, and they are missing: {}; where it was installed with --engine-rights=listed, `berth install` again gives it the right",
            names.len(),
            taken.len(),
            few(&names)
        );
        self.log.warning(&ResultsHeading::Cluster, "", &message);
    }

    async fn take_selected(
        &self,
        kind: &Arc<ResourceType>,
        places: &[&str],
        selector: &str,
        behind: Option<&Position>,
        taken: &mut CollectedType,
    ) -> Result<(), ListError> {
        let begun = behind.map_or_else(ListProgress::default, |behind| ListProgress::behind(&behind.token));
        let namespace = behind.and_then(|behind| behind.namespace.as_ref());
        if !kind.namespaced || (behind.is_some() && namespace.is_none()) {
            return self.take_list(kind, None, selector, begun, taken).await;
        }
        if behind.is_none() && places.len() > FEW_NAMESPACES {
            // One page of the whole cluster often holds everything. If not, listing each namespace
            // costs one request per namespace, and continuing costs one request per page.
            let mut progress = ListProgress::default();
            self.take_page(kind, None, selector, &mut progress, taken).await?;
            let pages = progress.remaining / u64::from(self.lister.page_size) + 1;
            if progress.is_done() || places.len() as u64 >= pages {
                return self.take_list(kind, None, selector, progress, taken).await;
            }
        }
        // In a fixed order, so that another process knows which namespaces are complete.
        let at = namespace.and_then(|namespace| places.iter().position(|place| *place == namespace));
        let mut begun = Some(begun).filter(|_| at.is_some());
        for namespace in places.iter().skip(at.unwrap_or(0)) {
            let progress = begun.take().unwrap_or_default();
            self.take_list(kind, Some(namespace), selector, progress, taken).await?;
        }
        Ok(())
    }

    async fn take_list(
        &self,
        kind: &Arc<ResourceType>,
        namespace: Option<&str>,
        selector: &str,
        mut progress: ListProgress,
        taken: &mut CollectedType,
    ) -> Result<(), ListError> {
        while !progress.is_done() {
            let announced = self.announce(&progress);
            let taken_page = self.take_page(kind, namespace, selector, &mut progress, taken).await;
            self.counters.total.fetch_sub(announced, Ordering::Relaxed);
            taken_page?;
        }
        Ok(())
    }

    async fn take_page(
        &self,
        kind: &Arc<ResourceType>,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut ListProgress,
        taken: &mut CollectedType,
    ) -> Result<(), ListError> {
        let mut pending = Pending::new(self, taken, Origin::Listed);
        pending.page = self.ledger.open(kind);
        let read = self.lister.page(kind, namespace, selector, progress, &mut pending).await;
        // Objects that came before a failure are counted and named already.
        pending.flush().await?;
        let page = pending.page;
        // A run that reads the page again reports its errors again; other errors are counted and
        // reported at the end.
        let is_odd =
            read.is_err() || taken.is_odd || taken.unreadable.is_some() || taken.unstorable.is_some();
        let position = || Position {
            selector: taken.selector,
            namespace: namespace.map(str::to_owned),
            token: progress.token().to_owned(),
        };
        self.ledger.close(page, (!is_odd).then(position));
        read
    }

    /// Adds what the server announces to the total; the caller subtracts it when the page has come.
    fn announce(&self, progress: &ListProgress) -> u64 {
        let remaining = if progress.is_done() { 0 } else { progress.remaining };
        self.counters.total.fetch_add(remaining, Ordering::Relaxed);
        remaining
    }
}

/// Whether these are movements of data. A backup's own enter its archive when they have ended
/// (`operations::finalize`); a restore refuses a claim of which an archive has those of other
/// backups as well.
fn is_movement(kind: &ResourceType) -> bool {
    kind.group == "velero.io" && kind.resource == "datauploads"
}

#[cfg(test)]
mod tests;
