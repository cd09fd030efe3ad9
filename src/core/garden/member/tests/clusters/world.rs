//! The hub's record of one entry, three clusters, and all that can happen to them.

use crate::entry_life::MemberState;
use crate::fence::{self, HandoverAnswer, HandoverStep, Liveness};
use crate::member::object::ObjectAction;
use crate::member::tests::table::{after, executed};
use crate::member::tests::*;

/// What the hub has on record of an entry, with the version of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub version: u32,
    pub generation: u32,
    /// Whose it is to be.
    pub wanted: usize,
    pub holder: Option<usize>,
    /// The annotation of the writer: outlives a restore, as the rest does not.
    pub noted: Option<usize>,
    pub observed: Option<u32>,
    /// The last operation is a move: has it succeeded?
    pub moving: Option<bool>,
    pub takes_over: bool,
    pub is_deleted: bool,
    pub is_released: bool,
    pub is_removed: bool,
}

/// A member cluster and the process of its agent.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub seen: Record,
    pub access: Option<LocationAccess>,
    /// Until when a client may begin a backup: it saw the location open.
    pub open_until: i64,
    pub running: u8,
    pub object: MemberState,
    /// The hub has answered what its Secret contains.
    pub has_credentials: bool,
    pub is_registered: bool,
    /// Of the process.
    pub facts: Facts,
    pub quiet_since: Option<i64>,
    pub permitted_at: Option<i64>,
    /// The data of its directory was removed by it.
    pub has_removed: bool,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now: i64,
    pub record: Record,
    pub clusters: [Cluster; 3],
    /// A person said that the holder does not write, and nobody asked it.
    pub is_forced: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Pass(i64),
    /// People change their minds.
    Name(usize),
    TakeOver,
    Unregister(usize),
    Delete,
    Release,
    /// A cluster's watch of the hub catches up.
    Look(usize),
    /// Its agent takes one step.
    Act(usize),
    /// Its agent takes steps until one has to wait for something.
    Finish(usize),
    /// Its agent is killed, and another one begins.
    Crash(usize),
    Execute(usize),
    Credentials(usize, bool),
    Start(usize),
    End(usize),
    /// The hub decides and writes; `true`: it dies between the status and the note of it.
    Decide(bool),
    /// The hub comes back without statuses, and its objects begin with their first generation.
    Restore,
}

impl World {
    pub fn new() -> Self {
        let record = Record {
            version: 1,
            generation: 1,
            wanted: 0,
            holder: None,
            noted: None,
            observed: None,
            moving: None,
            takes_over: false,
            is_deleted: false,
            is_released: false,
            is_removed: false,
        };
        let cluster = Cluster {
            seen: record,
            access: None,
            open_until: i64::MIN,
            running: 0,
            object: MemberState::Absent,
            has_credentials: true,
            is_registered: true,
            facts: Facts::default(),
            quiet_since: None,
            permitted_at: None,
            has_removed: false,
        };
        let clusters = [cluster.clone(), cluster.clone(), cluster];
        Self { now: 0, record, clusters, is_forced: false }
    }

    fn write(&mut self, record: Record) {
        if record != self.record {
            self.record = Record { version: self.record.version + 1, ..record };
        }
    }

    fn fence(&self) -> (Option<usize>, HandoverStep) {
        let record = self.record;
        let holder = record.holder.or(record.noted);
        let was_made = record.observed.is_some() || record.noted.is_some();
        let of = match holder {
            None => fence::DirectoryWriter::Nobody,
            Some(holder) if holder == record.wanted => fence::DirectoryWriter::Wanted,
            Some(_) => fence::DirectoryWriter::Another { was_made: was_made || record.moving.is_some() },
        };
        let is_current = match record.observed {
            Some(observed) => observed == record.generation,
            None => !was_made,
        };
        let answer = match record.moving {
            Some(true) if is_current => HandoverAnswer::LetGo,
            None if is_current => HandoverAnswer::Outdated,
            _ => HandoverAnswer::Nothing,
        };
        let is_registered = |cluster: usize| self.clusters[cluster].is_registered;
        let heard = if holder.is_none_or(is_registered) { Liveness::Lately } else { Liveness::Unregistered };
        let asked =
            if record.takes_over { fence::HandoverRequest::TakeOver } else { fence::HandoverRequest::Move };
        (holder, fence::next(of, answer, heard, asked, is_registered(record.wanted)))
    }

    fn decide(&mut self, crashes: bool) {
        let mut record = self.record;
        if record.is_deleted {
            return;
        }
        let (holder, step) = self.fence();
        match step {
            HandoverStep::Stay => (record.holder, record.moving) = (Some(record.wanted), None),
            HandoverStep::HandOver(because) => {
                use fence::HandoverReason::{TakenOver, Unregistered};
                self.is_forced |= matches!(because, TakenOver | Unregistered);
                (record.holder, record.moving) = (Some(record.wanted), None);
            }
            HandoverStep::Wait(fence::WaitingFor::Upgrade) => record.holder = holder,
            HandoverStep::Wait(fence::WaitingFor::Answer | fence::WaitingFor::Sign) => {
                record.holder = holder;
                record.moving = Some(false);
            }
        }
        self.write(record);
        let was_made = record.observed.is_some() || record.noted.is_some();
        if !crashes && was_made && record.noted != record.holder {
            self.write(Record { noted: record.holder, takes_over: false, ..self.record });
        }
    }

    fn state(&self, record: &Record, me: usize) -> HubState {
        let holder = match record.holder {
            None => AssignedSeed::Nobody,
            Some(holder) if holder == me => AssignedSeed::Us,
            Some(_) => AssignedSeed::Another,
        };
        HubState {
            is_ours: record.wanted == me,
            holder,
            is_deleted: record.is_deleted,
            is_released: record.is_released,
            is_removed: record.is_removed,
        }
    }

    fn scene(&self, me: usize) -> Scene {
        let cluster = &self.clusters[me];
        let seen = &cluster.seen;
        let hub = HubEntry {
            is_made: seen.observed.is_some(),
            was_made: seen.observed.is_some() || seen.noted.is_some(),
            is_answered: seen.moving == Some(true),
            is_current: seen.observed == Some(seen.generation),
            ..hub_entry(self.state(seen, me))
        };
        let since = |at: i64| Duration::from_secs(u64::try_from(self.now - at).unwrap_or_default());
        let is_found = cluster.object != MemberState::Absent;
        Scene {
            hub: Some(hub),
            bucket: Some(BucketOfEntry { is_made: true }),
            object: ObjectView {
                state: cluster.object,
                wanted: if is_found { ObjectDrift::Same } else { ObjectDrift::Different { in_marks: true } },
                credentials: if cluster.has_credentials {
                    CredentialsState::Known
                } else {
                    CredentialsState::Unanswered
                },
                is_ours: is_found,
                is_permitted: cluster.permitted_at.is_some_and(|at| self.now - at < 30),
                is_permit_fresh: cluster.permitted_at.is_some_and(|at| self.now - at < 8),
                ..kept_object()
            },
            locations: cluster
                .access
                .map(|access| own_location(access == LocationAccess::ReadOnly))
                .into_iter()
                .collect(),
            quiet: cluster.quiet_since.map(|at| Quiesced { lasted: since(at), migrations: Vec::new() }),
            facts: cluster.facts.clone(),
            ..Scene::default()
        }
    }

    /// `false`: the pass has ended.
    fn act(&mut self, me: usize) -> bool {
        let step = match self.scene(me).next() {
            MemberDecision::Do(step) => step,
            MemberDecision::Await => {
                self.clusters[me].facts = Facts::default();
                return false;
            }
            MemberDecision::Report(report) => {
                self.clusters[me].facts = Facts::default();
                self.report(me, &report);
                return false;
            }
        };
        let now = self.now;
        let is_removal = intent(Some(&self.state(&self.record, me)), false) == Intent::Remove;
        let cluster = &mut self.clusters[me];
        cluster.facts.done.insert(step.clone());
        let open = |cluster: &mut Cluster, access| {
            if access == LocationAccess::ReadOnly && cluster.access == Some(LocationAccess::ReadWrite) {
                cluster.open_until = now + 9;
            }
            cluster.access = Some(access);
        };
        match step {
            MemberStep::AskHub => {
                cluster.facts.confirmed = Some(is_removal);
                cluster.permitted_at = is_removal.then_some(now);
            }
            MemberStep::Revoke => cluster.permitted_at = None,
            MemberStep::BeginQuiet => cluster.quiet_since = Some(now),
            MemberStep::ForgetQuiet => cluster.quiet_since = None,
            MemberStep::CountBackups(_) => cluster.facts.running = Some(usize::from(cluster.running)),
            MemberStep::Location(LocationStep::SetAccess(_, access) | LocationStep::Apply(access)) => {
                open(cluster, access);
            }
            MemberStep::Location(LocationStep::Delete(_)) => {
                open(cluster, LocationAccess::ReadOnly);
                cluster.access = None;
            }
            MemberStep::Location(LocationStep::RemoveBackups(_)) => cluster.facts.removed = Some(0),
            MemberStep::Location(LocationStep::KeepCredentials | LocationStep::DeleteCredentials) => {}
            MemberStep::Object(step) => {
                let action = match step {
                    ObjectStep::Apply => ObjectAction::Apply,
                    ObjectStep::Delete => ObjectAction::Delete,
                    ObjectStep::LetGo => ObjectAction::LetGo,
                    ObjectStep::Release => ObjectAction::Release,
                    ObjectStep::CopyCredentials
                    | ObjectStep::Confirm
                    | ObjectStep::DeleteCopy
                    | ObjectStep::PassOn => ObjectAction::Nothing,
                };
                cluster.object = after(cluster.object, action);
            }
        }
        true
    }

    /// Written as it was seen, or not at all.
    fn report(&mut self, me: usize, report: &EntryReport) {
        let seen = self.clusters[me].seen;
        if seen.version != self.record.version {
            return;
        }
        let mut record = seen;
        match (&report.handoff, &report.object) {
            (Some(Handoff::Leaving { running: 0, is_made }), _) => {
                record.moving = Some(true);
                if *is_made {
                    record.observed = Some(seen.generation);
                }
            }
            (Some(_), _) => record.moving = Some(false),
            (None, ObjectReport::Kept) => {
                (record.moving, record.observed) = (None, Some(seen.generation));
            }
            (None, ObjectReport::Gone) => record.is_removed = true,
            (None, _) => {}
        }
        self.write(record);
        self.clusters[me].seen = self.record;
    }

    pub fn happen(&mut self, event: Event) {
        let (record, now) = (self.record, self.now);
        match event {
            Event::Pass(seconds) => self.now += seconds,
            Event::Name(cluster) if cluster != record.wanted && !record.is_deleted => {
                self.write(Record { wanted: cluster, generation: record.generation + 1, ..record });
            }
            Event::Name(_) => {}
            Event::TakeOver => self.write(Record { takes_over: true, ..record }),
            Event::Unregister(cluster) => self.clusters[cluster].is_registered = false,
            Event::Delete => self.write(Record { is_deleted: true, ..record }),
            Event::Release if record.is_deleted => self.write(Record { is_released: true, ..record }),
            Event::Release => {}
            Event::Look(cluster) => self.clusters[cluster].seen = record,
            Event::Act(cluster) => {
                self.act(cluster);
            }
            Event::Finish(cluster) => while self.act(cluster) {},
            Event::Crash(cluster) => {
                let cluster = &mut self.clusters[cluster];
                (cluster.facts, cluster.quiet_since, cluster.permitted_at) = (Facts::default(), None, None);
            }
            Event::Execute(me) => {
                let cluster = &mut self.clusters[me];
                let removes = cluster.object == MemberState::Going { let_go: false };
                let is_permitted = cluster.permitted_at.is_some_and(|at| now - at < 30);
                if !removes || is_permitted {
                    cluster.object = executed(cluster.object);
                    cluster.has_removed |= removes;
                }
            }
            Event::Credentials(cluster, known) => self.clusters[cluster].has_credentials = known,
            Event::Start(cluster) => {
                let cluster = &mut self.clusters[cluster];
                if cluster.access == Some(LocationAccess::ReadWrite) || now <= cluster.open_until {
                    cluster.running = cluster.running.saturating_add(1);
                }
            }
            Event::End(cluster) => {
                let running = &mut self.clusters[cluster].running;
                *running = running.saturating_sub(1);
            }
            Event::Decide(crashes) => self.decide(crashes),
            Event::Restore => {
                self.write(Record {
                    generation: 1,
                    holder: None,
                    observed: None,
                    moving: None,
                    is_released: false,
                    is_removed: false,
                    ..record
                });
            }
        }
    }

    /// Clusters in which something writes or may begin to.
    pub fn writers(&self) -> Vec<usize> {
        let writes = |cluster: &Cluster| {
            cluster.access == Some(LocationAccess::ReadWrite)
                || cluster.running > 0
                || self.now <= cluster.open_until
        };
        (0..3).filter(|i| writes(&self.clusters[*i])).collect()
    }

    /// Every watch catches up, every process works, and what runs ends.
    pub fn settle(&mut self) {
        for _ in 0..30 {
            self.happen(Event::Decide(false));
            for cluster in 0..3 {
                for event in [
                    Event::Credentials(cluster, true),
                    Event::Look(cluster),
                    Event::End(cluster),
                    Event::Finish(cluster),
                    Event::Execute(cluster),
                ] {
                    self.happen(event);
                }
            }
            for cluster in &mut self.clusters {
                cluster.running = 0;
            }
            self.now += 10;
        }
    }
}
