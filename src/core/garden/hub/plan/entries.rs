//! Plans each entry.

use jiff::Timestamp;

use super::moves::{holder, was_made};
use super::{EntryEnd, EntryPlan, HubPlanner, kept, pending, released, was_removed};
use crate::assignment::{self, SeedHealth};
use crate::bucket::GardenBucket;
use crate::entry::{EntryStatus, GardenEntry};
use crate::hub::reason::PlacementWaitReason;
use crate::operation::OperationType;
use crate::retention::{self, Deletion, GraceDecision};

/// Ends an entry whose directory is another one's: no seed may touch that directory for it.
fn give_up(e: usize, entry: &GardenEntry) -> EntryPlan {
    let status = EntryStatus { seed: None, released_at: None, ..entry.status.clone() };
    let status = (status != entry.status).then_some(status);
    EntryPlan { entry: e, status, end: Some(EntryEnd::NotIts), ..EntryPlan::default() }
}

impl<'v> HubPlanner<'v> {
    pub(super) fn plan_entries(&mut self) {
        for (e, entry) in self.view.entries.iter().enumerate() {
            let planned = match entry.deleted_at {
                // Without the hub's finalizer it never had a place, or its end is on record.
                Some(_) if !entry.is_claimed => continue,
                Some(_) if !self.holds_name(e, entry) => give_up(e, entry),
                Some(at) => self.plan_deleted(e, entry, at),
                None => self.plan_entry(e, entry),
            };
            if planned != (EntryPlan { entry: e, ..EntryPlan::default() }) {
                self.plan.entries.push(planned);
            }
            if let Some(why) = self.waiting.get_mut(e).and_then(Option::take) {
                self.plan.waiting.push((e, why));
            }
        }
    }

    fn plan_entry(&mut self, e: usize, entry: &GardenEntry) -> EntryPlan {
        let target = self.target.get(e).copied().flatten();
        if target.is_some() {
            return self.plan_placed(e, entry, target);
        }
        let found = &entry.status;
        let operation = match self.waiting.get(e) {
            Some(Some(PlacementWaitReason::Making)) => found.operation.clone(),
            Some(Some(why @ PlacementWaitReason::NameTaken { .. })) => {
                Some(pending(OperationType::Create, why.to_string()))
            }
            // Its place is not known any more, and the seed that acts on it continues. Without such
            // a seed, the finalizer is not the hub's.
            Some(Some(_)) if entry.is_claimed && found.seed.is_some() => kept(found.operation.as_ref()),
            Some(Some(why)) => Some(pending(OperationType::Create, why.to_string())),
            _ => kept(found.operation.as_ref()),
        };
        let status = EntryStatus {
            // No seed acts on an entry whose directory is another one's.
            seed: found.seed.clone().filter(|_| self.holds_name(e, entry)),
            earliest_deletion: None,
            released_at: None,
            operation,
        };
        let status = (status != *found).then_some(status);
        EntryPlan { entry: e, status, ..EntryPlan::default() }
    }

    fn plan_placed(&mut self, e: usize, entry: &GardenEntry, target: Option<usize>) -> EntryPlan {
        let name = target.and_then(|b| self.view.buckets.get(b)).map(|bucket| &bucket.name);
        let is_told = entry.is_claimed && entry.bucket.as_ref() == name && entry.placed_in.as_ref() == name;
        let found = &entry.status;
        let turn = self.turn(e, entry);
        let status = EntryStatus {
            seed: Some(turn.holder.clone()),
            earliest_deletion: None,
            released_at: None,
            operation: turn.operation,
        };
        EntryPlan {
            entry: e,
            claim: target.filter(|_| !is_told),
            status: (status != *found).then_some(status),
            handed: turn.handed,
            // Permission to take it over is for a move that is under way, and ends with it.
            writer: Some(turn.holder).filter(|holder| {
                let is_over = *holder == entry.seed && entry.take_over.is_some();
                was_made(entry) && (entry.writer.as_ref() != Some(holder) || is_over)
            }),
            end: None,
        }
    }

    fn plan_deleted(&mut self, e: usize, entry: &GardenEntry, at: Timestamp) -> EntryPlan {
        let found = &entry.status;
        // The bucket in which it has its place; naming a bucket does not permit to remove data
        // there.
        let bucket = self.target.get(e).copied().flatten().and_then(|b| self.view.buckets.get(b));
        let place = bucket.map(|bucket| &bucket.store.place);
        let named = entry.bucket.as_deref().unwrap_or("(none)");
        let is_strange = bucket.is_none() && self.buckets.contains_key(named);
        // The seed that may write there has to give it up.
        let holder = holder(entry).unwrap_or(&entry.seed).to_owned();
        let own = self.members().find(|member| member.seed.name == holder);
        // A release from before it was deleted was for another deletion, of which a restored hub
        // knows nothing.
        let is_released = found.released_at.is_some_and(|released| released >= at);
        let deletion = Deletion {
            at,
            grace: place.map(|place| self.settings.grace.period(&place.provider, entry.purpose)),
            is_forced: entry.force_deletion.is_some(),
            is_forgotten: entry.forget_data.is_some(),
            is_kept: own.is_some_and(|own| !own.is_silent(self.now)),
            is_released,
            is_removed: is_released && found.operation.as_ref().is_some_and(was_removed),
        };
        let fate = retention::fate(&deletion, self.now);
        let mut status = found.clone();
        match fate {
            GraceDecision::Stay { until } => {
                self.wake(until);
                status.seed = Some(holder);
                status.earliest_deletion = Some(until);
                status.released_at = None;
                status.operation = Some(pending(OperationType::Delete, self.grace_text(until, bucket)));
            }
            GraceDecision::Lost => {
                let why = match is_strange {
                    true => format!(
                        "it has no place in BackupBucket {named}, so what is in the directory of its name there is left alone: end it"
                    ),
                    false => format!(
                        "there is no BackupBucket {named}, so nobody knows where its data is: bring that back, or let go of the data"
                    ),
                };
                let text = format!("{why} with the annotation garden.berth.dev/forget-data");
                status.operation = Some(pending(OperationType::Delete, text));
            }
            GraceDecision::Go => {
                let current = found.seed.as_deref().or(Some(holder.as_str()));
                let acts =
                    place.and_then(|place| assignment::assign(current, place, self.members(), self.now));
                if let Some(expires) = acts.and_then(SeedHealth::expires) {
                    self.wake(expires);
                }
                // No seed can act now: the one that had it may come back.
                status.seed = acts.map(|member| member.seed.name.clone()).or_else(|| found.seed.clone());
                if !is_released {
                    status.released_at = Some(self.second().max(at));
                    status.operation = Some(released("its data is to be removed from the store"));
                }
            }
            GraceDecision::Forget | GraceDecision::Gone => {}
        }
        EntryPlan {
            entry: e,
            status: (status != *found).then_some(status),
            end: match fate {
                // As far as the hub knows, the directory is its own, even without a place there.
                GraceDecision::Forget => Some(EntryEnd::Forgotten),
                GraceDecision::Gone if entry.forget_data.is_some() => Some(EntryEnd::Forgotten),
                GraceDecision::Gone => Some(EntryEnd::Removed),
                GraceDecision::Stay { .. } | GraceDecision::Lost | GraceDecision::Go => None,
            },
            ..EntryPlan::default()
        }
    }

    fn grace_text(&self, until: Timestamp, bucket: Option<&GardenBucket>) -> String {
        let lock = bucket.and_then(|bucket| bucket.store.config.object_lock);
        let lock = lock.map(|lock| {
            format!("; the store locks objects for {} d after they were written", lock.retention_days)
        });
        format!(
            "its data stays until {until}{}. To remove it before, give the reason in the annotation \
             garden.berth.dev/force-deletion",
            lock.unwrap_or_default()
        )
    }
}
