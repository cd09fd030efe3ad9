//! Decisions of a migration of a cluster's backups from its own bucket into its directory of a
//! shared one. A record of each object makes it possible to interrupt the migration anywhere, and
//! ensures that no foreign object at the destination is overwritten.

pub mod claim;
pub mod standing;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

/// What became of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CopyStatus {
    /// Listed at the source; nothing else is certain.
    #[default]
    None,
    /// At the destination, with the same contents.
    Copied,
    /// Listed earlier, and gone when its turn came. That is no fault, because backups expire while
    /// they are moved.
    NotFound,
}

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceObject {
    pub size: u64,
    /// Changes when the contents do, where the store says so.
    pub tag: Option<String>,
    pub modified: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationItem {
    pub listed: SourceObject,
    pub status: CopyStatus,
    /// SHA-256 of what this migration last wrote to the destination and read there, hexadecimal.
    /// Until the object is copied (again), only contents with this checksum may be replaced.
    pub checksum: Option<String>,
    /// This migration began to write it where nothing was, and has not read back what arrived: that
    /// may be replaced, too.
    pub begun: bool,
    pub attempts: u32,
    /// Why the last attempt to copy it failed.
    pub error: Option<String>,
}

impl MigrationItem {
    fn new(listed: SourceObject) -> Self {
        Self { listed, status: CopyStatus::None, checksum: None, begun: false, attempts: 0, error: None }
    }

    /// Did this migration write what is at the destination?
    pub fn is_ours(&self) -> bool {
        self.checksum.is_some() || self.begun
    }

    /// May what is there, with this checksum, be replaced?
    pub fn may_replace(&self, there: &str) -> bool {
        self.begun || self.checksum.as_deref() == Some(there)
    }

    /// Does it have to be recorded as begun before it is copied? Not while it is unknown whose the
    /// object at the destination is.
    pub fn is_to_begin(&self) -> bool {
        self.status == CopyStatus::None && !self.is_ours()
    }
}

/// By key, relative to the source's prefix.
pub type Items = BTreeMap<String, MigrationItem>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrationPhase {
    /// Everything at the source is listed.
    Planned,
    /// Backups continue at the source meanwhile.
    Copying,
    /// No new backups start there; running ones end.
    Quiescing,
    /// The rest is copied.
    Delta,
    /// Backups go to the destination.
    CutOver,
    /// The source is empty.
    Retired,
}

impl MigrationPhase {
    /// The one that comes next; `None` after the last.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Planned => Some(Self::Copying),
            Self::Copying => Some(Self::Quiescing),
            Self::Quiescing => Some(Self::Delta),
            Self::Delta => Some(Self::CutOver),
            Self::CutOver => Some(Self::Retired),
            Self::Retired => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    pub none: u64,
    pub copied: u64,
    pub not_found: u64,
    pub bytes: u64,
}

impl CopyCounts {
    pub fn of(items: &Items) -> Self {
        items.values().fold(Self::default(), |counts, item| {
            let one = |status| u64::from(item.status == status);
            Self {
                none: counts.none + one(CopyStatus::None),
                copied: counts.copied + one(CopyStatus::Copied),
                not_found: counts.not_found + one(CopyStatus::NotFound),
                bytes: counts.bytes.saturating_add(item.listed.size),
            }
        })
    }
}

/// Takes in a listing of the source: objects that are new, came back or changed have to be copied.
/// Objects that are missing are handled when their turn comes, because the destination may have
/// them.
///
/// Returns how many have to be copied because of it.
pub fn relist(items: &mut Items, listing: BTreeMap<String, SourceObject>) -> usize {
    let mut news = 0;
    for (key, listed) in listing {
        match items.get_mut(&key) {
            Some(item) if item.listed == listed && item.status != CopyStatus::NotFound => {}
            Some(item) => {
                let checksum = item.checksum.take();
                let (attempts, begun) = (item.attempts, item.begun);
                *item = MigrationItem { attempts, checksum, begun, ..MigrationItem::new(listed) };
                news += 1;
            }
            None => {
                items.insert(key, MigrationItem::new(listed));
                news += 1;
            }
        }
    }
    news
}

/// Result of one attempt to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyAttempt {
    /// The same at both ends.
    Same { checksum: String },
    /// Nothing at the source.
    Missing,
    /// Something else is at the destination already, and stays.
    Taken { source: String, destination: String },
    /// Tried again.
    Failed(String),
}

/// `false`: a person has to act.
pub fn record(item: &mut MigrationItem, attempt: CopyAttempt) -> bool {
    item.attempts = item.attempts.saturating_add(1);
    item.error = None;
    match attempt {
        CopyAttempt::Same { checksum } => {
            item.status = CopyStatus::Copied;
            item.checksum = Some(checksum);
            item.begun = false;
            true
        }
        CopyAttempt::Missing => {
            item.status = CopyStatus::NotFound;
            true
        }
        CopyAttempt::Taken { source, destination } => {
            item.status = CopyStatus::None;
            item.begun = false;
            item.error = Some(format!(
                "something else is there already: SHA-256 {destination}, at the source {source}"
            ));
            false
        }
        CopyAttempt::Failed(why) => {
            item.status = CopyStatus::None;
            item.error = Some(why);
            true
        }
    }
}

/// What keeps backups from going to the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationObstacle {
    /// Not copied yet.
    Left(String),
    /// Not on record, or not as the record has it: another listing is needed.
    Unlisted(String),
    /// The record says that it is at the destination; it is not, or not in that size.
    NotThere(String),
    /// A backup that cannot be restored: one of its files is at the destination, and another one is
    /// gone from the source.
    Torn(String),
    /// Of so many objects nothing is left at the source. A folder that is not mounted looks the
    /// same.
    Emptied(usize),
}

impl fmt::Display for MigrationObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(key) => write!(f, "{key} is not copied"),
            Self::Unlisted(key) => write!(f, "{key} is new at the source, or has changed"),
            Self::NotThere(key) => write!(f, "{key} is not at the destination as it was copied"),
            Self::Torn(backup) => {
                write!(f, "backup {backup} has lost files at the source while it was copied: delete it")
            }
            Self::Emptied(copied) => write!(
                f,
                "nothing is left at the source, where {copied} objects were copied from, and nothing is removed for \
                 that: is it the same bucket, is its folder mounted? If all of it has really expired, there is nothing \
                 to move: remove the record of the migration and the copies, or leave the location where it is"
            ),
        }
    }
}

/// May backups go to the destination? `source` and `destination`: both listed after the last copy,
/// the destination by keys relative to its prefix, with sizes.
///
/// # Errors
/// Everything that stands in the way.
pub fn gate(
    items: &Items,
    source: &BTreeMap<String, SourceObject>,
    destination: &BTreeMap<String, u64>,
) -> Result<(), Vec<MigrationObstacle>> {
    let mut found = Vec::new();
    let mut backups: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    for (key, item) in items {
        match item.status {
            CopyStatus::None => found.push(MigrationObstacle::Left(key.clone())),
            CopyStatus::Copied if destination.get(key) != Some(&item.listed.size) => {
                found.push(MigrationObstacle::NotThere(key.clone()));
            }
            CopyStatus::Copied | CopyStatus::NotFound => {}
        }
        if let Some(backup) = backup_of(key) {
            let (copied, lost) = backups.entry(backup).or_default();
            *copied |= item.status == CopyStatus::Copied;
            *lost |= item.status == CopyStatus::NotFound;
        }
    }
    for (key, listed) in source {
        if items.get(key).is_none_or(|item| item.listed != *listed) {
            found.push(MigrationObstacle::Unlisted(key.clone()));
        }
    }
    // One that is gone altogether from the source has expired; some of it may have been copied
    // before that. Where the source still has files of it, somebody took others away.
    let is_kept = |backup: &str| source.keys().any(|key| backup_of(key) == Some(backup));
    let torn = backups.iter().filter(|(backup, (copied, lost))| *copied && *lost && is_kept(backup));
    found.extend(torn.map(|(backup, _)| MigrationObstacle::Torn((*backup).to_owned())));
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// Marks objects that expired at the source while they were copied, because they would reappear at
/// the destination. Marked objects are removed afterwards (see [`leftovers`]), however often that
/// is interrupted.
///
/// # Errors
/// When the source is empty, because that is no reason to remove anything.
pub fn expire(items: &mut Items, source: &BTreeMap<String, SourceObject>) -> Result<(), MigrationObstacle> {
    ensure_not_emptied(items, source)?;
    let gone = items
        .iter_mut()
        .filter(|(key, item)| item.status == CopyStatus::Copied && !source.contains_key(*key));
    gone.for_each(|(_, item)| item.status = CopyStatus::NotFound);
    Ok(())
}

/// # Errors
/// When nothing is left of what was copied.
pub fn ensure_not_emptied(
    items: &Items,
    source: &BTreeMap<String, SourceObject>,
) -> Result<(), MigrationObstacle> {
    let copied = items.values().filter(|item| item.is_ours()).count();
    if source.is_empty() && copied > 0 { Err(MigrationObstacle::Emptied(copied)) } else { Ok(()) }
}

/// Objects to remove at the destination: written by this migration, and on record as gone from the
/// source.
pub fn leftovers<T>(items: &Items, destination: &BTreeMap<String, T>) -> Vec<String> {
    let is_left = |key: &String, item: &MigrationItem| {
        item.status == CopyStatus::NotFound && item.is_ours() && destination.contains_key(key)
    };
    items.iter().filter(|(key, item)| is_left(key, item)).map(|(key, _)| key.clone()).collect()
}

/// What may be removed at the source, by fresh listings of both ends; the rest stays there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retirement {
    pub remove: Vec<String>,
    /// Not copied, or changed since.
    pub changed: Vec<String>,
    /// Copied, and not at the destination any more, or not in that size.
    pub missing: Vec<String>,
}

pub fn retirement(
    items: &Items,
    source: &BTreeMap<String, SourceObject>,
    destination: &BTreeMap<String, SourceObject>,
) -> Retirement {
    let mut found = Retirement::default();
    for (key, listed) in source {
        let is_copied =
            items.get(key).is_some_and(|item| item.status == CopyStatus::Copied && item.listed == *listed);
        let is_there = destination.get(key).is_some_and(|there| there.size == listed.size);
        let list = match (is_copied, is_there) {
            (true, true) => &mut found.remove,
            (true, false) => &mut found.missing,
            (false, _) => &mut found.changed,
        };
        list.push(key.clone());
    }
    found
}

/// The backup that a file belongs to, by Velero's layout.
fn backup_of(key: &str) -> Option<&str> {
    key.strip_prefix("backups/")?.split_once('/').map(|(backup, _)| backup)
}

/// Items of one record file. A single file would be rewritten completely for every few objects.
pub const SHARD: usize = 1000;

/// How many record files so many objects take. A power of two, so that it is found again from what
/// is there.
pub fn shards(objects: usize) -> usize {
    objects.div_ceil(SHARD).next_power_of_two()
}

/// In which of `shards` an object is: by its name (FNV-1a), so that a later listing does not move
/// others.
pub fn shard_of(key: &str, shards: usize) -> usize {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash % u64::try_from(shards.max(1)).unwrap_or(1)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
