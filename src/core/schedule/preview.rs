//! The next few times of a Schedule, and which of them meet what other Schedules take at nearly the
//! same time: then one backup waits for the other in the queue.
//!
//! Whether two backups meet is decided by the function by which the queue decides it. Whether they
//! do at that time, when one of them may have ended already, nobody knows yet.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::cron::Cron;
use crate::glob::Effort;
use crate::namespace::NamespaceSet;

/// How many times are looked at.
pub const TIMES: usize = 5;
/// Backups that are created within this of each other are likely to wait for each other.
pub const NEAR: SignedDuration = SignedDuration::from_mins(5);
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A Schedule, as far as others meet it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSchedule {
    pub name: String,
    pub cron: Cron,
    /// Its times are those after this one.
    pub reference: Timestamp,
    /// How much later than its times its backups are created.
    pub offset: SignedDuration,
    pub namespaces: Arc<NamespaceSet>,
}

/// The Schedules of a namespace, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    pub plans: Vec<Arc<PlannedSchedule>>,
    /// How many are due as well, and are not among them.
    pub left_out: usize,
}

/// A Schedule that is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetSchedule {
    pub schedule: String,
    /// What both take: see [`NamespaceOverlap`](crate::namespace::NamespaceOverlap).
    pub namespaces: Vec<String>,
    /// At which of the next times of the one that was asked about, in their order.
    pub at: Vec<Timestamp>,
}

/// The next times of a Schedule, and whom they meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    pub times: Vec<Timestamp>,
    /// Those that are met first come first.
    pub meets: Vec<MetSchedule>,
    /// How many other Schedules were not compared.
    pub left_out: usize,
}

impl PlannedSchedule {
    /// Its next times.
    pub fn upcoming(&self, now: Timestamp) -> Vec<Timestamp> {
        self.cron.upcoming(self.cron.begin(self.reference, now), TIMES)
    }

    /// Is a backup of it created near this moment?
    fn is_near(&self, moment: Timestamp, effort: &Effort) -> bool {
        let shifted = |by: SignedDuration| moment.checked_sub(self.offset).and_then(|at| at.checked_add(by));
        let (Ok(from), Ok(until)) = (shifted(-NEAR - SECOND), shifted(NEAR)) else { return false };
        let after = self.cron.begin(self.reference, from);
        self.cron.next_until(after, until, effort).is_some()
    }
}

/// Looks at the next times. It takes a bounded time, however many others there are and whatever
/// they ask for; of those for which that is not enough only the number is told.
pub fn preview(own: &PlannedSchedule, others: &Others, now: Timestamp) -> Preview {
    let times = own.upcoming(now);
    let effort = Effort::of_decision();
    let mut preview = Preview { times, meets: Vec::new(), left_out: others.left_out };
    let mut plans = others.plans.iter().filter(|other| other.name != own.name);
    while let Some(other) = plans.next() {
        let is_near = |time: &&Timestamp| {
            let created = time.checked_add(own.offset);
            created.is_ok_and(|created| other.is_near(created, &effort))
        };
        let at: Vec<Timestamp> = preview.times.iter().filter(is_near).copied().collect();
        let meeting = if at.is_empty() { None } else { own.namespaces.meets(&other.namespaces, &effort) };
        if effort.left() == 0 {
            preview.left_out += 1 + plans.count();
            break;
        }
        if let Some(meeting) = meeting {
            let (schedule, namespaces) = (other.name.clone(), meeting.namespaces);
            preview.meets.push(MetSchedule { schedule, namespaces, at });
        }
    }
    preview.meets.sort_by(|a, b| (a.at.first(), &a.schedule).cmp(&(b.at.first(), &b.schedule)));
    preview
}

#[cfg(test)]
mod tests;
