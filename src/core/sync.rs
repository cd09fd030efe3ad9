//! The sync of a storage location: which backups of the store get a Backup in the cluster, and
//! which Backups go because the store no longer has them.
//!
//! A round compares the names of a listing with the Backups of the cluster. The store may be wrong:
//! it may fail, answer a part, or be another volume than yesterday. So a listing alone never
//! removes anything. A Backup goes only when two rounds in a row have a whole listing with other
//! backups in it but not this one, and both times a look at its own file finds none.

mod capacity;
mod folder_verdict;
mod orphan;
mod skip_reason;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::claim::FolderClaim;
pub use capacity::{BackupCapacity, MOST_BYTES, MOST_STANDING, ROUND_BYTES, Size, room};
pub use folder_verdict::{StoredBackupFile, Take, judge};
pub use orphan::is_orphaned;
pub use skip_reason::SyncSkipReason;

/// Folders that a round reads for the first time.
pub const MOST_NEW: usize = 10_000;
/// Folders that were skipped before and that a round reads again.
pub const MOST_AGAIN: usize = 100;
/// Backups that a round looks up in the store because the listing lacks them, and so the most that
/// it removes.
pub const MOST_DOUBTFUL: usize = 50;
/// Names that a listing may have. More are foreign to any cluster, and the rest is not read.
pub const MOST_NAMES: usize = 100_000;
/// Rounds in a row that must miss a backup before its Backup goes.
const ROUNDS: u8 = 2;
/// A skipped folder is read again after a time that doubles up to this one.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);
/// The same for a folder that is not complete yet, because it will be soon.
const UNTIL_COMPLETE: SignedDuration = SignedDuration::from_mins(5);
/// The longest name of an object.
const NAME: usize = 253;

/// A Backup of the cluster, as far as a round must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterBackup {
    pub uid: String,
    /// The Backup is of the location that is synced, by its label and by its spec.
    pub is_here: bool,
    /// Phase Completed or PartiallyFailed, and nobody deletes it: its files are in the store.
    pub is_stored: bool,
}

/// The Backups of the cluster, by name.
pub type Standings = BTreeMap<String, ClusterBackup>;

/// What a store answered when it was asked for the folders of its backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderListing {
    pub names: BTreeSet<String>,
    /// Are these all?
    pub is_whole: bool,
}

/// The version of a file that was read, as the store names it. The empty one: there is no file.
pub type Tag = String;

#[derive(Clone, Debug, PartialEq, Eq)]
struct SkippedFolder {
    why: SyncSkipReason,
    tag: Tag,
    /// How often it was read.
    reads: u32,
    again_at: Timestamp,
}

impl SkippedFolder {
    /// Is it time to read it again? One that would be read later than it ever should be was skipped
    /// by a clock that was ahead.
    fn is_due(&self, now: Timestamp) -> bool {
        self.again_at <= now || self.again_at.duration_since(now) > LONGEST
    }
}

/// A Backup that the listing lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doubtful {
    pub name: String,
    pub uid: String,
}

/// What a round does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncPlan {
    /// Names whose metadata is read, in order to create their Backups.
    pub read: Vec<String>,
    /// Names that are new in this round and that no object can have.
    pub invalid: Vec<String>,
    /// Names that are new in this round and that a Backup of another location has.
    pub taken: Vec<String>,
    /// Backups of this location whose metadata is looked up in the store, because the listing lacks
    /// them.
    pub doubtful: Vec<Doubtful>,
    /// Backups of this location that stay though the listing lacks them, because it has no backup
    /// at all, or is not whole.
    pub spared: usize,
    /// More is to be done than one round does.
    pub is_cut: bool,
}

/// What the rounds of one location remember. The memory of a new leader is empty: that delays
/// removals by a round, and reads again what was skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    skipped: BTreeMap<String, SkippedFolder>,
    /// By UID as well as by name, because a Backup that is created again under its name is another.
    missed: BTreeMap<Doubtful, u8>,
    /// Backups that are gone and have left a folder, by the same.
    orphans: BTreeMap<Doubtful, u8>,
}

impl Memory {
    /// Begins a round. `before`: the Backups before the listing was asked for; `after`: the Backups
    /// now. A Backup that ended in between is not in the listing, and one that was created in
    /// between is nothing new.
    pub fn plan(
        &mut self,
        listing: &FolderListing,
        before: &Standings,
        after: &Standings,
        now: Timestamp,
    ) -> SyncPlan {
        let mut plan = SyncPlan::default();
        self.skipped.retain(|name, _| listing.names.contains(name));
        self.orphans.retain(|one, _| listing.names.contains(&one.name));
        let (mut fresh, mut again) = (Vec::new(), Vec::new());
        for name in &listing.names {
            if let Some(standing) = after.get(name) {
                if standing.is_here {
                    self.skipped.remove(name);
                } else if self.skip(
                    name,
                    SyncSkipReason::NameTaken,
                    standing.uid.clone(),
                    SignedDuration::ZERO,
                    now,
                ) {
                    plan.taken.push(name.clone());
                }
            } else if !is_name(name) {
                if self.skip(name, SyncSkipReason::Name, Tag::new(), SignedDuration::ZERO, now) {
                    plan.invalid.push(name.clone());
                }
            } else {
                match self.skipped.get(name) {
                    None => fresh.push(name.clone()),
                    // The Backup that had the name is gone.
                    Some(skipped) if skipped.why == SyncSkipReason::NameTaken => fresh.push(name.clone()),
                    Some(skipped) if skipped.is_due(now) => again.push((skipped.again_at, name.clone())),
                    Some(_) => {}
                }
            }
        }
        again.sort_unstable();
        plan.is_cut = fresh.len() > MOST_NEW || again.len() > MOST_AGAIN;
        plan.read.extend(fresh.into_iter().take(MOST_NEW));
        plan.read.extend(again.into_iter().take(MOST_AGAIN).map(|(_, name)| name));
        self.doubt(listing, before, after, &mut plan);
        plan
    }

    fn doubt(&mut self, listing: &FolderListing, before: &Standings, after: &Standings, plan: &mut SyncPlan) {
        let is_missed = |name: &String, standing: &ClusterBackup| {
            let was = before.get(name);
            standing.is_here
                && standing.is_stored
                && was.is_some_and(|was| was.uid == standing.uid && was.is_here && was.is_stored)
                && !listing.names.contains(name)
        };
        let missed = after.iter().filter(|(name, standing)| is_missed(name, standing));
        let mut doubtful: Vec<Doubtful> = missed
            .map(|(name, standing)| Doubtful { name: name.clone(), uid: standing.uid.clone() })
            .collect();
        if !listing.is_whole || listing.names.is_empty() {
            self.missed.clear();
            plan.spared = doubtful.len();
            return;
        }
        let still: BTreeSet<&Doubtful> = doubtful.iter().collect();
        self.missed.retain(|one, _| still.contains(one));
        // Those that were missed before come first, so that each of them is decided.
        doubtful.sort_by_cached_key(|one| (!self.missed.contains_key(one), one.name.clone()));
        plan.is_cut |= doubtful.len() > MOST_DOUBTFUL;
        doubtful.truncate(MOST_DOUBTFUL);
        plan.doubtful = doubtful;
    }

    /// The round did not get an answer from the store, so no Backup was missed in it.
    pub fn failed(&mut self) {
        self.missed.clear();
        self.orphans.clear();
    }

    /// The answer to the look at the metadata of a doubtful Backup; `None`: the store failed.
    /// `true`: the Backup goes.
    pub fn looked(&mut self, one: &Doubtful, is_there: Option<bool>) -> bool {
        if is_there != Some(false) {
            self.missed.remove(one);
            return false;
        }
        let rounds = self.missed.entry(one.clone()).or_default();
        *rounds = rounds.saturating_add(1);
        *rounds >= ROUNDS
    }

    /// The answer to the look whether the Backup of a folder that [`is_orphaned`] is gone; `None`:
    /// the API server failed. `true`: what it has left is to be removed.
    pub fn orphaned(&mut self, one: &Doubtful, is_gone: Option<bool>) -> bool {
        if is_gone != Some(true) {
            self.orphans.remove(one);
            return false;
        }
        let looks = self.orphans.entry(one.clone()).or_default();
        *looks = looks.saturating_add(1);
        *looks >= ROUNDS
    }

    /// The folder was read and gets no Backup. `true`: nobody was told yet. `period`: of the
    /// location's rounds.
    pub fn skip(
        &mut self,
        name: &str,
        why: SyncSkipReason,
        tag: Tag,
        period: SignedDuration,
        now: Timestamp,
    ) -> bool {
        let before = self.skipped.get(name);
        let is_known = before.is_some_and(|before| before.why == why && before.tag == tag);
        let reads = before.filter(|_| is_known).map_or(0, |before| before.reads).saturating_add(1);
        // Leftovers are not kept for one that is abandoned, so its archive must be found soon if it
        // comes.
        let is_soon = why.passes() || why == SyncSkipReason::Abandoned;
        let most = if is_soon { UNTIL_COMPLETE } else { LONGEST };
        let factor = 1_i32.checked_shl(reads.saturating_sub(1).min(20)).unwrap_or(i32::MAX);
        let wait = period.checked_mul(factor).unwrap_or(most).min(most);
        let again_at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        self.skipped.insert(name.to_owned(), SkippedFolder { why, tag, reads, again_at });
        !is_known
    }

    /// The folder has a Backup now, or the store is to be asked again in the next round.
    pub fn forget(&mut self, name: &str) {
        self.skipped.remove(name);
    }

    /// Has a round by this plan, in which nothing failed and nothing was put off, brought every
    /// backup of the store that could come? A listing that lacks one of the cluster's may lack
    /// others as well.
    pub fn has_all(&self, listing: &FolderListing, plan: &SyncPlan) -> bool {
        let is_whole = listing.is_whole && !plan.is_cut && plan.spared == 0 && plan.doubtful.is_empty();
        is_whole && !self.skipped.values().any(|skipped| skipped.why.may_come())
    }

    /// How many folders are skipped at the moment, by reason.
    pub fn skipped(&self) -> BTreeMap<SyncSkipReason, usize> {
        let mut counts = BTreeMap::new();
        for skipped in self.skipped.values() {
            *counts.entry(skipped.why).or_default() += 1;
        }
        counts
    }
}

/// Can an object have this name?
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        is_edge(bytes.first())
            && is_edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    name.len() <= NAME && name.split('.').all(is_part)
}

/// Is a location due for a round? `period`: `None` means never.
pub fn is_due(last: Option<Timestamp>, period: Option<SignedDuration>, now: Timestamp) -> bool {
    // A time in the future is of a clock that was wrong.
    period.is_some_and(|period| last.is_none_or(|last| last > now || now.duration_since(last) >= period))
}

/// Does another cluster write below this location now? A backup that ended since the last round and
/// has no Backup here was written by another. Older ones are what a cluster left that was lost.
pub fn is_written_elsewhere(
    last_round: Option<Timestamp>,
    ended: Option<Timestamp>,
    claimed_by: Option<&str>,
    cluster: &str,
) -> bool {
    let is_recent = last_round.zip(ended).is_some_and(|(round, ended)| ended > round);
    is_recent && claimed_by.is_some_and(|by| !by.is_empty() && by != cluster)
}

/// Does a copy of this cluster write below this location, with the same UID? A backup that ended
/// since the last round, that a Backup of this namespace has written by its claim, and that has no
/// Backup here, is of such a copy, unless somebody has removed its Backup.
pub fn is_written_by_copy(
    last_round: Option<Timestamp>,
    ended: Option<Timestamp>,
    claim: &FolderClaim,
    cluster: &str,
    namespace: &str,
) -> bool {
    let is_recent = last_round.zip(ended).is_some_and(|(round, ended)| ended > round);
    is_recent && claim.cluster == cluster && claim.namespace == namespace
}

#[cfg(test)]
mod tests;
