use proptest::prelude::*;

use super::*;
use crate::garden::location::{self, Access, Life, Wanted, life, wanted};

#[test]
fn the_table_of_moves() {
    use Answer::{Deaf, LetGo, Nothing};
    use Asked::{Move, TakeOver};
    use Because::{Free, NeverMade, TakenOver};
    use For::{Sign, Upgrade};
    use Heard::{Lately, Silent, Unregistered};
    let made = Holder::Another { was_made: true };
    let unmade = Holder::Another { was_made: false };
    let rows = [
        (Holder::Nobody, Nothing, Unregistered, Move, Step::HandOver(Free)),
        (Holder::Wanted, LetGo, Lately, TakeOver, Step::Stay),
        (Holder::Wanted, Nothing, Silent, Move, Step::Stay),
        (unmade, Nothing, Silent, Move, Step::HandOver(NeverMade)),
        (made, Nothing, Lately, Move, Step::Wait(For::Answer)),
        (made, Deaf, Lately, Move, Step::Wait(Upgrade)),
        (made, Nothing, Silent, Move, Step::Wait(Sign)),
        (made, Deaf, Silent, Move, Step::Wait(Sign)),
        (made, LetGo, Silent, Move, Step::HandOver(Because::LetGo)),
        (made, LetGo, Lately, TakeOver, Step::HandOver(Because::LetGo)),
        (made, Nothing, Unregistered, Move, Step::HandOver(Because::Unregistered)),
        (made, Nothing, Silent, TakeOver, Step::HandOver(TakenOver)),
        (made, Nothing, Lately, TakeOver, Step::HandOver(TakenOver)),
    ];
    for (holder, answer, heard, asked, step) in rows {
        assert_eq!(
            next(holder, answer, heard, asked, true),
            step,
            "{holder:?} {answer:?} {heard:?} {asked:?}"
        );
    }
    // Neither Seed is there: the hub is being restored.
    assert_eq!(next(made, Nothing, Unregistered, Move, false), Step::Wait(Sign));
    assert_eq!(next(made, LetGo, Unregistered, Move, false), Step::HandOver(Because::LetGo));
}

/// What the hub has on record of an entry, with the version of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    version: u32,
    generation: u32,
    /// Whose it is to be.
    wanted: usize,
    holder: Option<usize>,
    /// Outlives a restore, as the rest does not.
    noted: Option<usize>,
    observed: Option<u32>,
    /// The last operation is a move: has it succeeded?
    moving: Option<bool>,
    takes_over: bool,
}

/// A cluster: what it saw last, and its location.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    seen: Record,
    access: Option<Access>,
    /// Backups that write there.
    running: u8,
    is_registered: bool,
}

#[derive(Clone, Debug)]
struct World {
    record: Record,
    clusters: [Cluster; 3],
    /// Somebody said that who might write does not, and nobody asked it.
    was_forced: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// People change their minds.
    Name(usize),
    TakeOver,
    Unregister(usize),
    /// A cluster hears of the hub.
    Look(usize),
    /// It does what follows from what it has heard; `crashes`: and is gone before it tells.
    Act(usize, bool),
    Start(usize),
    End(usize),
    /// The hub decides and writes; `crashes`: the status, and not the note of it.
    Decide(bool),
    /// The hub comes back without statuses, and its objects begin anew.
    Restore,
}

impl World {
    fn new() -> Self {
        let record = Record {
            version: 1,
            generation: 1,
            wanted: 0,
            holder: None,
            noted: None,
            observed: None,
            moving: None,
            takes_over: false,
        };
        let cluster = Cluster { seen: record, access: None, running: 0, is_registered: true };
        Self { record, clusters: [cluster; 3], was_forced: false }
    }

    fn write(&mut self, record: Record) {
        if record != self.record {
            self.record = Record { version: self.record.version + 1, ..record };
        }
    }

    fn step(&self) -> (Option<usize>, Step) {
        let record = self.record;
        let holder = record.holder.or(record.noted);
        let of = match holder {
            None => Holder::Nobody,
            Some(holder) if holder == record.wanted => Holder::Wanted,
            Some(_) => Holder::Another {
                was_made: record.observed.is_some() || record.noted.is_some() || record.moving.is_some(),
            },
        };
        let is_current = record.observed == Some(record.generation);
        let answer = match record.moving {
            Some(true) if is_current => Answer::LetGo,
            None if is_current => Answer::Deaf,
            _ => Answer::Nothing,
        };
        let is_registered = |cluster: usize| self.clusters[cluster].is_registered;
        let heard = if holder.is_none_or(is_registered) { Heard::Lately } else { Heard::Unregistered };
        let asked = if record.takes_over { Asked::TakeOver } else { Asked::Move };
        (holder, next(of, answer, heard, asked, is_registered(record.wanted)))
    }

    fn decide(&mut self, crashes: bool) {
        let mut record = self.record;
        let (holder, step) = self.step();
        match step {
            Step::Stay => (record.holder, record.moving) = (Some(record.wanted), None),
            Step::HandOver(because) => {
                let is_forced = matches!(because, Because::TakenOver | Because::Unregistered);
                self.was_forced |= is_forced;
                (record.holder, record.moving) = (Some(record.wanted), None);
            }
            Step::Wait(For::Upgrade) => record.holder = holder,
            Step::Wait(For::Answer | For::Sign) => {
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

    fn act(&mut self, me: usize, crashes: bool) {
        let seen = self.clusters[me].seen;
        let holder = match seen.holder {
            None => location::Holder::Nobody,
            Some(holder) if holder == me => location::Holder::Us,
            Some(_) => location::Holder::Another,
        };
        let life = life(seen.wanted == me, holder, false, false);
        let cluster = &mut self.clusters[me];
        match wanted(life, seen.observed.is_some(), cluster.access.is_some()) {
            Wanted::Kept(access) => cluster.access = Some(access),
            Wanted::AsItIs | Wanted::None => {}
        }
        let is_quiet = cluster.access != Some(Access::ReadWrite) && cluster.running == 0;
        // Written as it was seen, or not at all.
        if crashes || seen.version != self.record.version {
            return;
        }
        match life {
            Life::Leaving if is_quiet => {
                self.write(Record { moving: Some(true), observed: Some(seen.generation), ..seen })
            }
            Life::Live => self.write(Record { moving: None, observed: Some(seen.generation), ..seen }),
            _ => {}
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Name(cluster) if cluster != self.record.wanted => {
                let generation = self.record.generation + 1;
                self.write(Record { wanted: cluster, generation, ..self.record });
            }
            Event::Name(_) => {}
            Event::TakeOver => self.write(Record { takes_over: true, ..self.record }),
            Event::Unregister(cluster) => self.clusters[cluster].is_registered = false,
            Event::Look(cluster) => self.clusters[cluster].seen = self.record,
            Event::Act(cluster, crashes) => self.act(cluster, crashes),
            Event::Start(cluster) if self.clusters[cluster].access == Some(Access::ReadWrite) => {
                self.clusters[cluster].running += 1;
            }
            Event::Start(_) => {}
            Event::End(cluster) => {
                let running = &mut self.clusters[cluster].running;
                *running = running.saturating_sub(1);
            }
            Event::Decide(crashes) => self.decide(crashes),
            Event::Restore => {
                let record = self.record;
                self.write(Record { generation: 1, holder: None, observed: None, moving: None, ..record });
            }
        }
    }

    fn writers(&self) -> Vec<usize> {
        let writes = |cluster: &Cluster| cluster.access == Some(Access::ReadWrite) || cluster.running > 0;
        (0..3).filter(|i| writes(&self.clusters[*i])).collect()
    }
}

fn events(forced: bool, restored: bool) -> impl Strategy<Value = Vec<Event>> {
    let cluster = || 0usize..3;
    let common = prop_oneof![
        2 => cluster().prop_map(Event::Name),
        6 => cluster().prop_map(Event::Look),
        6 => (cluster(), prop::bool::weighted(0.2)).prop_map(|(cluster, crashes)| Event::Act(cluster, crashes)),
        2 => cluster().prop_map(Event::Start),
        2 => cluster().prop_map(Event::End),
        6 => prop::bool::weighted(0.2).prop_map(Event::Decide),
    ];
    let forces = prop_oneof![Just(Event::TakeOver), cluster().prop_map(Event::Unregister)];
    let restores = Just(Event::Restore);
    let one = prop_oneof![
        20 => common,
        u32::from(forced) => forces,
        u32::from(restored) => restores,
    ];
    prop::collection::vec(one, 1..120)
}

/// Everybody hears of the hub and answers, and what runs ends.
fn settle(world: &mut World) {
    for _ in 0..12 {
        world.decide(false);
        for cluster in 0..3 {
            world.happen(Event::Look(cluster));
            world.happen(Event::End(cluster));
            world.act(cluster, false);
        }
    }
    for cluster in 0..3 {
        world.clusters[cluster].running = 0;
    }
    for _ in 0..12 {
        world.decide(false);
        for cluster in 0..3 {
            world.happen(Event::Look(cluster));
            world.act(cluster, false);
        }
    }
}

proptest! {
    /// However late each of them hears of it, and wherever somebody dies: two clusters never write, unless somebody has said
    /// that one of them does not; and the one that is wanted does in the end.
    #[test]
    fn one_cluster_writes_at_any_time(events in events(true, false)) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            if !world.was_forced {
                prop_assert!(world.writers().len() <= 1, "{:?}", world);
            }
        }
        settle(&mut world);
        let record = world.record;
        prop_assert_eq!((record.holder, record.noted, record.moving), (Some(record.wanted), Some(record.wanted), None));
        prop_assert_eq!(world.writers(), [record.wanted], "{:?}", world);
    }

    /// The same of a hub that loses its statuses now and then, with everybody's answers.
    #[test]
    fn a_hub_that_lost_its_statuses_knows_who_writes(events in events(false, true)) {
        let mut world = World::new();
        for event in events {
            // Before it was noted it cannot know.
            let was_made = world.record.observed.is_some();
            if matches!(event, Event::Restore) && was_made && world.record.noted != world.record.holder {
                continue;
            }
            world.happen(event);
            prop_assert!(world.writers().len() <= 1, "{:?}", world);
        }
        settle(&mut world);
        prop_assert_eq!(world.writers(), [world.record.wanted], "{:?}", world);
    }
}
