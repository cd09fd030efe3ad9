//! Removes all that a [`RemovalScope`] covers, page by page. After an interruption it starts again
//! from the first key. It ends when one whole listing finds nothing but what the store does not let
//! go of.

use std::sync::Arc;

use berth_garden_api::Removed;
use berth_garden_core::fault::StoreFault;
use berth_garden_core::scope::RemovalScope;
use futures::StreamExt as _;
use futures::stream;
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::storage::bucket::{Bucket, Hold, Marker, PAGE, Removal, Result, StoreError, Version, VersionPage};

/// Pages that are removed while the next one is listed.
const AT_ONCE: usize = 4;
/// Listings that may find something to remove. If there are more, another program writes there as
/// fast as this removes.
const LOOKS: u32 = 20;
/// How many of the versions that the store keeps are asked how long they are locked.
const ASKED: usize = 100;
const QUESTIONS_AT_ONCE: usize = 8;

/// Counts what `scope` covers.
///
/// # Errors
/// What the store says.
pub async fn count_versions(
    bucket: &Bucket,
    scope: &RemovalScope,
    most_pages: Option<usize>,
) -> Result<(Removed, bool)> {
    let (mut found, mut after) = (Removed::default(), None);
    let mut pages = 0;
    loop {
        let page = bucket.page(scope.prefix(), after.as_ref(), PAGE).await?;
        page.versions.iter().for_each(|version| count(&mut found, version));
        after = page.next;
        pages += 1;
        if after.is_none() || most_pages.is_some_and(|most| pages >= most) {
            return Ok((found, after.is_none()));
        }
    }
}

fn count(counted: &mut Removed, version: &Version) {
    counted.objects = counted.objects.saturating_add(1);
    counted.bytes = counted.bytes.saturating_add(version.bytes);
}

/// What the store keeps, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedVersions {
    pub versions: u64,
    /// The last of the times known.
    pub until: Option<Timestamp>,
    /// Some have a legal hold, which has no end.
    pub is_indefinite: bool,
}

/// Which objects of a scope are removed.
pub enum Pick {
    All,
    /// All but those with this key.
    AllBut(String),
    /// Only these versions.
    These(Vec<Version>),
}

impl Pick {
    fn takes(&self, version: &Version) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(key) => version.key != *key,
            Self::These(versions) => {
                versions.iter().any(|one| (&one.key, &one.id) == (&version.key, &version.id))
            }
        }
    }
}

/// A removal under way.
pub struct Purge {
    bucket: Arc<Bucket>,
    scope: RemovalScope,
    pick: Pick,
    /// What this removal has removed.
    pub removed: Removed,
    flight: JoinSet<Result<Removal>>,
    look: ListingPass,
    looks: u32,
}

/// One listing from the first key to the last.
#[derive(Default)]
struct ListingPass {
    after: Option<Marker>,
    is_listed: bool,
    has_removed: bool,
    kept: u64,
    examples: Vec<Version>,
}

impl Purge {
    pub fn new(bucket: Arc<Bucket>, scope: RemovalScope) -> Self {
        Self::picking(bucket, scope, Pick::All)
    }

    /// Of what `scope` covers, only what `pick` names.
    pub fn picking(bucket: Arc<Bucket>, scope: RemovalScope, pick: Pick) -> Self {
        let (removed, look) = (Removed::default(), ListingPass::default());
        Self { bucket, scope, pick, removed, flight: JoinSet::new(), look, looks: 0 }
    }

    /// Removes some more. `false`: there is nothing more to do.
    ///
    /// # Errors
    /// What the store says. What was removed is counted nevertheless.
    pub async fn step(&mut self) -> Result<bool> {
        while !self.look.is_listed && self.flight.len() < AT_ONCE {
            let page = self.list().await;
            match page {
                Ok(page) => self.begin(page)?,
                Err(error) => return Err(self.drain().await.err().unwrap_or(error)),
            }
        }
        if let Some(ended) = self.flight.join_next().await {
            if let Err(error) = self.take(ended) {
                // Removals that have begun are awaited, and counted.
                let _ = self.drain().await;
                return Err(error);
            }
            return Ok(true);
        }
        if !self.look.has_removed {
            return Ok(false);
        }
        self.looks += 1;
        if self.looks >= LOOKS {
            return Err(StoreError::new(
                StoreFault::Unavailable,
                format!(
                    "{:?}: {LOOKS} times everything below {:?} was removed, and there is more: another program is writing there",
                    self.bucket,
                    self.scope.prefix()
                ),
            ));
        }
        self.look = ListingPass::default();
        Ok(true)
    }

    async fn list(&mut self) -> Result<VersionPage> {
        let page = self.bucket.page(self.scope.prefix(), self.look.after.as_ref(), PAGE).await?;
        self.look.after = page.next.clone();
        self.look.is_listed = page.next.is_none();
        Ok(page)
    }

    fn begin(&mut self, mut page: VersionPage) -> Result<()> {
        // A store may list anything, but nothing outside the scope is removed.
        if let Some(strange) = page.versions.iter().find(|version| !self.scope.covers(&version.key)) {
            let message = format!(
                "{:?}: {:?} was listed below {:?}; nothing more is removed",
                self.bucket,
                strange.key,
                self.scope.prefix()
            );
            return Err(StoreError::new(StoreFault::Configuration, message));
        }
        page.versions.retain(|version| self.pick.takes(version));
        if !page.versions.is_empty() {
            let bucket = Arc::clone(&self.bucket);
            self.flight.spawn(async move { bucket.remove(page.versions).await });
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        let mut first = Ok(());
        while let Some(ended) = self.flight.join_next().await {
            first = first.and(self.take(ended));
        }
        first
    }

    fn take(&mut self, ended: std::result::Result<Result<Removal>, tokio::task::JoinError>) -> Result<()> {
        let removal =
            ended.map_err(|error| StoreError::new(StoreFault::Unavailable, error.to_string()))??;
        removal.removed.iter().for_each(|version| count(&mut self.removed, version));
        self.look.has_removed |= !removal.removed.is_empty();
        self.look.kept = self.look.kept.saturating_add(removal.kept.len() as u64);
        let room = ASKED.saturating_sub(self.look.examples.len());
        self.look.examples.extend(removal.kept.into_iter().take(room));
        removal.failed.map_or(Ok(()), Err)
    }

    /// What is left, after the last step.
    ///
    /// # Errors
    /// [`StoreFault::Unauthorized`] when objects that berth may not remove have no lock; what the
    /// store says.
    pub async fn kept(&self) -> Result<Option<RetainedVersions>> {
        let Some(example) = self.look.examples.first() else { return Ok(None) };
        let holds: Vec<_> = self.look.examples.iter().map(|version| self.bucket.hold(version)).collect();
        let mut holds = stream::iter(holds).buffer_unordered(QUESTIONS_AT_ONCE);
        let mut kept = RetainedVersions { versions: self.look.kept, ..RetainedVersions::default() };
        while let Some(hold) = holds.next().await {
            match hold? {
                Hold::Until(until) => kept.until = kept.until.max(Some(until)),
                Hold::Indefinite => kept.is_indefinite = true,
                Hold::None => {}
            }
        }
        if kept.until.is_none() && !kept.is_indefinite {
            return Err(StoreError::new(
                StoreFault::Unauthorized,
                format!(
                    "{:?}: the store does not let these keys remove {} objects, {} for one, and says of no lock on them",
                    self.bucket, kept.versions, example.key
                ),
            ));
        }
        Ok(Some(kept))
    }
}
