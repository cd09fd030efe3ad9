//! Moves of entries from one cluster to another: which seed may write in the directory.

use super::{EntryHandover, HubPlanner, kept, pending};
use crate::assignment::SeedHealth;
use crate::entry::GardenEntry;
use crate::fence::{
    self, DirectoryWriter, HandoverAnswer, HandoverReason, HandoverRequest, HandoverStep, Liveness,
    WaitingFor,
};
use crate::hub::reason::PlacementWaitReason;
use crate::operation::{OperationReport, OperationState, OperationType};

/// Result for an entry that has its place.
pub(super) struct EntryHandover {
    pub(super) holder: String,
    pub(super) operation: Option<OperationReport>,
    pub(super) handed: Option<EntryHandover>,
}

/// The seed that may write there: by the status or, in a hub that lost its statuses, by the entry's
/// annotation.
pub(super) fn holder(entry: &GardenEntry) -> Option<&str> {
    let named = |seed: &&str| !seed.is_empty();
    entry.status.seed.as_deref().filter(named).or(entry.writer.as_deref().filter(named))
}

/// Was its directory ever created, so that a cluster may be writing there?
pub(super) fn was_made(entry: &GardenEntry) -> bool {
    entry.observed_generation.is_some() || entry.writer.is_some()
}

/// A move that is under way, or was.
fn migration(entry: &GardenEntry) -> Option<&OperationReport> {
    entry.status.operation.as_ref().filter(|found| found.kind == OperationType::Migrate)
}

/// The operation of an entry that stays where it is: that of an earlier move is dropped.
fn settled(entry: &GardenEntry) -> Option<OperationReport> {
    kept(entry.status.operation.as_ref()).filter(|found| found.kind != OperationType::Migrate)
}

/// The reason in the annotation, if it is more than `true` or `false`.
fn reason(entry: &GardenEntry) -> Option<&str> {
    let reason = entry.take_over.as_deref().map(str::trim)?;
    (!matches!(reason, "" | "true" | "false")).then_some(reason)
}

impl<'v> HubPlanner<'v> {
    pub(super) fn turn(&mut self, e: usize, entry: &GardenEntry) -> EntryHandover {
        let held_by = holder(entry).map(str::to_owned);
        let member = self.members().find(|member| Some(&member.seed.name) == held_by.as_ref());
        let goes = held_by.as_deref().is_some_and(|holder| holder != entry.seed);
        if let Some((holder, why)) = held_by.clone().filter(|_| goes).zip(self.unfit(e, entry)) {
            // The holder's report stays, because the holder would write it again and again.
            let operation = match entry.status.operation.as_ref() {
                Some(found) if migration(entry).is_some() && found.state != OperationState::Pending => {
                    Some(found.clone())
                }
                _ => Some(pending(OperationType::Migrate, format!("to Seed {}: {why}", entry.seed))),
            };
            self.wait(e, why);
            return EntryHandover { holder, operation, handed: None };
        }
        let step = self.step(entry, held_by.as_deref(), member);
        let Some(from) = held_by.filter(|_| step != HandoverStep::Stay) else {
            // It does not wait any more.
            let operation = entry.status.seed.as_ref().and_then(|_| settled(entry));
            return EntryHandover { holder: entry.seed.clone(), operation, handed: None };
        };
        match step {
            HandoverStep::Stay | HandoverStep::HandOver(_) => {
                let because =
                    if let HandoverStep::HandOver(because) = step { because } else { HandoverReason::Free };
                let handed = EntryHandover { from, to: entry.seed.clone(), because };
                EntryHandover { holder: entry.seed.clone(), operation: None, handed: Some(handed) }
            }
            HandoverStep::Wait(what) => {
                if let Some(expires) = member.and_then(SeedHealth::expires) {
                    self.wake(expires);
                }
                self.plan.moving.push((e, what));
                let operation = operation(entry, &from, what);
                EntryHandover { holder: from, operation, handed: None }
            }
        }
    }

    /// Why an entry cannot go to the Seed that it names, where its data is.
    pub(super) fn unfit(&self, e: usize, entry: &GardenEntry) -> Option<PlacementWaitReason> {
        let bucket = self.view.buckets.get(self.target.get(e).copied().flatten()?)?;
        self.misfit(&entry.seed, bucket)
    }

    fn step(&self, entry: &GardenEntry, held_by: Option<&str>, member: Option<&SeedHealth>) -> HandoverStep {
        let holder = match held_by {
            None => DirectoryWriter::Nobody,
            Some(holder) if holder == entry.seed => DirectoryWriter::Wanted,
            Some(_) => DirectoryWriter::Another {
                // In a hub that lost its statuses the annotation shows it. A holder that was asked
                // once is waited for.
                was_made: was_made(entry) || migration(entry).is_some(),
            },
        };
        // A holder that never created the directory reports no generation with its answer.
        let is_current = match entry.observed_generation {
            Some(_) => entry.observed_generation == entry.generation,
            None => !was_made(entry),
        };
        let answer = match migration(entry) {
            Some(found) if is_current && found.state == OperationState::Succeeded => HandoverAnswer::LetGo,
            None if is_current => HandoverAnswer::Outdated,
            _ => HandoverAnswer::Nothing,
        };
        let heard = match member {
            None if held_by.is_some_and(|seed| self.view.unregistered.contains(seed)) => {
                Liveness::Unregistered
            }
            None => Liveness::Silent,
            Some(member) if member.is_silent(self.now) => Liveness::Silent,
            Some(_) => Liveness::Lately,
        };
        let asked = if reason(entry).is_some() { HandoverRequest::TakeOver } else { HandoverRequest::Move };
        let is_expected = self.members().any(|member| member.seed.name == entry.seed);
        fence::next(holder, answer, heard, asked, is_expected)
    }
}

/// The operation of a move that waits. While the holder reports, its own report stays.
fn operation(entry: &GardenEntry, from: &str, what: WaitingFor) -> Option<OperationReport> {
    let found = entry.status.operation.as_ref();
    let speaks = |found: &&OperationReport| {
        use OperationState::{Aborted, Error, Failed, Pending, Processing, Succeeded};
        let is_its = match found.state {
            Processing | Error | Failed | Aborted => true,
            Pending | Succeeded => false,
        };
        // An earlier error is the holder's to clear, so that hub and holder do not overwrite each
        // other in turns.
        is_its
    };
    match what {
        WaitingFor::Answer => {
            if let Some(found) = found.filter(speaks) {
                return Some(found.clone());
            }
            let text = format!(
                "to Seed {}: Seed {from} is to write no more first: its location becomes read-only, and backups that run there \
                 end",
                entry.seed
            );
            Some(pending(OperationType::Migrate, text))
        }
        WaitingFor::Sign => Some(pending(OperationType::Migrate, silence(entry, from))),
        // The holder would write its own report again and again.
        WaitingFor::Upgrade => found.cloned(),
    }
}

fn silence(entry: &GardenEntry, from: &str) -> String {
    let words = match &entry.take_over {
        Some(_) if reason(entry).is_none() => " (in words; what is there is none)",
        _ => "",
    };
    format!(
        "to Seed {}: Seed {from} has not reported lately, and its cluster may be writing there still: this waits until it answers. \
         If that cluster is gone, delete its Seed; if you know that it writes nothing there, say why in the annotation \
         garden.berth.dev/take-over{words}",
        entry.seed
    )
}
