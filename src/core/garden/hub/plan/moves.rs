//! From one cluster to another: who may write in an entry's directory.

use super::{Handed, Walk, kept, pending};
use crate::garden::executor::Member;
use crate::garden::fence::{self, Answer, Asked, Because, For, Heard, Holder, Step};
use crate::garden::hub::reason::Waiting;
use crate::garden::hub::view::{Entry, Operation, OperationKind, OperationState};

/// What becomes of an entry that has its place.
pub(super) struct Turn {
    pub(super) holder: String,
    pub(super) operation: Option<Operation>,
    pub(super) handed: Option<Handed>,
}

/// Who may write there: as the status says, and in a hub that lost its statuses, as the entry says itself.
pub(super) fn holder(entry: &Entry) -> Option<&str> {
    let named = |seed: &&str| !seed.is_empty();
    entry.status.seed.as_deref().filter(named).or(entry.writer.as_deref().filter(named))
}

/// Was anything ever made of it, by which somebody may be writing?
pub(super) fn was_made(entry: &Entry) -> bool {
    entry.observed_generation.is_some() || entry.writer.is_some()
}

/// A move that is under way, or was.
fn migration(entry: &Entry) -> Option<&Operation> {
    entry.status.operation.as_ref().filter(|found| found.kind == OperationKind::Migrate)
}

/// As it was before anybody thought of moving, where it stays; of the next one nothing is known yet.
fn settled(entry: &Entry) -> Option<Operation> {
    kept(entry.status.operation.as_ref()).filter(|found| found.kind != OperationKind::Migrate)
}

/// Reasons are words.
fn reason(entry: &Entry) -> Option<&str> {
    let reason = entry.take_over.as_deref().map(str::trim)?;
    (!matches!(reason, "" | "true" | "false")).then_some(reason)
}

impl<'v> Walk<'v> {
    pub(super) fn turn(&mut self, e: usize, entry: &Entry) -> Turn {
        let held_by = holder(entry).map(str::to_owned);
        let member = self.members().find(|member| Some(&member.seed.name) == held_by.as_ref());
        let goes = held_by.as_deref().is_some_and(|holder| holder != entry.seed);
        if let Some((holder, why)) = held_by.clone().filter(|_| goes).zip(self.unfit(e, entry)) {
            // What the holder says of it stays: it would say its own again, and again.
            let operation = match entry.status.operation.as_ref() {
                Some(found) if migration(entry).is_some() && found.state != OperationState::Pending => {
                    Some(found.clone())
                }
                _ => Some(pending(OperationKind::Migrate, format!("to Seed {}: {why}", entry.seed))),
            };
            self.wait(e, why);
            return Turn { holder, operation, handed: None };
        }
        let step = self.step(entry, held_by.as_deref(), member);
        let Some(from) = held_by.filter(|_| step != Step::Stay) else {
            // What it waited for is there.
            let operation = entry.status.seed.as_ref().and_then(|_| settled(entry));
            return Turn { holder: entry.seed.clone(), operation, handed: None };
        };
        match step {
            Step::Stay | Step::HandOver(_) => {
                let because = if let Step::HandOver(because) = step { because } else { Because::Free };
                let handed = Handed { from, to: entry.seed.clone(), because };
                Turn { holder: entry.seed.clone(), operation: None, handed: Some(handed) }
            }
            Step::Wait(what) => {
                if let Some(expires) = member.and_then(Member::expires) {
                    self.wake(expires);
                }
                self.plan.moving.push((e, what));
                let operation = operation(entry, &from, what);
                Turn { holder: from, operation, handed: None }
            }
        }
    }

    /// Why an entry cannot go to the Seed that it names, where its data is.
    pub(super) fn unfit(&self, e: usize, entry: &Entry) -> Option<Waiting> {
        let bucket = self.view.buckets.get(self.target.get(e).copied().flatten()?)?;
        self.misfit(&entry.seed, bucket)
    }

    fn step(&self, entry: &Entry, held_by: Option<&str>, member: Option<&Member>) -> Step {
        let holder = match held_by {
            None => Holder::Nobody,
            Some(holder) if holder == entry.seed => Holder::Wanted,
            Some(_) => Holder::Another {
                // A hub that lost its statuses knows it from the entry; and who was asked once is waited for.
                was_made: was_made(entry) || migration(entry).is_some(),
            },
        };
        // Of what was never made no generation is ever observed: whoever lets it go says no more than that.
        let is_current = match entry.observed_generation {
            Some(_) => entry.observed_generation == entry.generation,
            None => !was_made(entry),
        };
        let answer = match migration(entry) {
            Some(found) if is_current && found.state == OperationState::Succeeded => Answer::LetGo,
            None if is_current => Answer::Deaf,
            _ => Answer::Nothing,
        };
        let heard = match member {
            None if held_by.is_some_and(|seed| self.view.unregistered.contains(seed)) => Heard::Unregistered,
            None => Heard::Silent,
            Some(member) if member.is_silent(self.now) => Heard::Silent,
            Some(_) => Heard::Lately,
        };
        let asked = if reason(entry).is_some() { Asked::TakeOver } else { Asked::Move };
        let is_expected = self.members().any(|member| member.seed.name == entry.seed);
        fence::next(holder, answer, heard, asked, is_expected)
    }
}

/// What is said of a move that waits; what the one that is waited for says itself stays, while it speaks.
fn operation(entry: &Entry, from: &str, what: For) -> Option<Operation> {
    let found = entry.status.operation.as_ref();
    let speaks = |found: &&Operation| {
        use OperationState::{Aborted, Error, Failed, Pending, Processing, Succeeded};
        let is_its = match found.state {
            Processing | Error | Failed | Aborted => true,
            Pending | Succeeded => false,
        };
        // An error of before is mended by whoever had it: nobody overwrites another one in turns.
        is_its
    };
    match what {
        For::Answer => {
            if let Some(found) = found.filter(speaks) {
                return Some(found.clone());
            }
            let text = format!(
                "to Seed {}: Seed {from} is to write no more first: its location becomes read-only, and backups that run there \
                 end",
                entry.seed
            );
            Some(pending(OperationKind::Migrate, text))
        }
        For::Sign => Some(pending(OperationKind::Migrate, silence(entry, from))),
        // It would say its own again, and again.
        For::Upgrade => found.cloned(),
    }
}

fn silence(entry: &Entry, from: &str) -> String {
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
