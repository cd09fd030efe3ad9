//! Two runs of one Backup, whose steps are single requests or single answers, in every order. The
//! old run does not know that the next one has its Backup, and may pause between any two of its
//! steps.

use std::collections::HashSet;

use super::*;

const OLD: usize = 0;
const NEXT: usize = 1;
const NAMES: [&str; 2] = ["old", "next"];

/// Upload `n` is the one that run `n` begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Note {
    Nothing,
    Void,
    Of { run: usize, upload: usize },
}

impl Note {
    fn standing(self) -> FoundCheckpoint<'static> {
        match self {
            Self::Nothing => FoundCheckpoint::Nothing,
            Self::Void => FoundCheckpoint::Void,
            Self::Of { run, upload } => FoundCheckpoint::Of { run: NAMES[run], upload: NAMES[upload] },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Takes the Backup over.
    Take,
    ReadClaim,
    ReadNote,
    Claim,
    TakeUp,
    Begin,
    Work,
    /// The claim has been read, and the archive is about to be completed.
    Complete,
    Publish,
    /// Clearing away what was begun: the checkpoint, the claim, the empty checkpoint, a list, the
    /// claim, aborts, files.
    Clear,
    ClearClaim,
    Void,
    List,
    ListClaim,
    Abort,
    Remove,
    LetGo,
    LetGoAbort,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    at: At,
    uses: Option<usize>,
    claim_read: usize,
    read: (Note, u8),
    /// Version of the checkpoint that the run has written.
    known: u8,
    is_over: bool,
    listed: [bool; 2],
    /// The run starts from nothing once it has cleared the folder.
    begins_anew: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    owner: usize,
    claim: usize,
    note: Note,
    version: u8,
    alive: [bool; 2],
    /// The run that completed the archive.
    archive: Option<usize>,
    published: Option<usize>,
    runs: [Run; 2],
    fault: Option<&'static str>,
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    None,
    /// A run continues from a checkpoint that it could not replace with its own.
    TakeUp,
    /// Aborts the upload that a checkpoint names without writing the empty one first.
    Void,
    /// Does not read the claim between the list and the aborts.
    ListClaim,
    /// Does not read the claim before it completes the archive.
    Complete,
}

const ABORTED: &str = "somebody aborted what the run of the claim goes on with";
const REPLACED: &str = "a published archive is another one, or none";

impl World {
    fn new() -> Self {
        let run = |at| Run {
            at,
            uses: None,
            claim_read: OLD,
            read: (Note::Nothing, 0),
            known: 0,
            is_over: false,
            listed: [false; 2],
            begins_anew: false,
        };
        Self {
            owner: OLD,
            claim: OLD,
            note: Note::Nothing,
            version: 0,
            alive: [false; 2],
            archive: None,
            published: None,
            runs: [run(At::Begin), run(At::Take)],
            fault: None,
        }
    }

    fn write(&mut self, note: Note) -> u8 {
        self.note = note;
        self.version += 1;
        self.version
    }

    fn abort(&mut self, by: usize, upload: usize) {
        let holder = &self.runs[self.claim];
        let is_live = matches!(holder.at, At::Work | At::Complete) && holder.uses == Some(upload);
        if self.alive[upload] && is_live && self.claim != by {
            self.fault = Some(ABORTED);
        }
        self.alive[upload] = false;
    }

    /// All states after one step of this run.
    fn step(&self, me: usize, broken: Broken) -> Vec<Self> {
        let mut next = self.clone();
        let is_claimed = self.claim == me;
        let run = &self.runs[me];
        let mut more = Vec::new();
        let at = match run.at {
            At::Done => return Vec::new(),
            At::Take if self.published.is_some() => At::Done,
            At::Take => {
                next.owner = me;
                At::ReadClaim
            }
            At::ReadClaim => {
                next.runs[me].claim_read = self.claim;
                At::ReadNote
            }
            At::ReadNote => {
                next.runs[me].read = (self.note, self.version);
                At::Claim
            }
            At::Claim => {
                next.claim = me;
                let is_of_claim = matches!(run.read.0, Note::Of { run: by, .. } if by == run.claim_read);
                next.runs[me].begins_anew = true;
                if is_of_claim { At::TakeUp } else { At::Clear }
            }
            At::TakeUp => {
                let Note::Of { upload, .. } = run.read.0 else { return Vec::new() };
                if self.version == run.read.1 {
                    next.runs[me].known = next.write(Note::Of { run: me, upload });
                    next.runs[me].uses = Some(upload);
                    At::Work
                } else if broken == Broken::TakeUp {
                    next.runs[me].uses = Some(upload);
                    At::Work
                } else {
                    assert!(!may_write_over(NAMES[me], true, is_claimed, &self.note.standing()));
                    At::Clear
                }
            }
            At::Begin => {
                next.alive[me] = true;
                next.runs[me].uses = Some(me);
                At::Work
            }
            At::Work => {
                // A run may end early at any time.
                let mut ends = self.clone();
                ends.runs[me].begins_anew = false;
                ends.runs[me].at = At::Clear;
                more.push(ends);
                more.extend(self.keep(me));
                if is_claimed || broken == Broken::Complete { At::Complete } else { At::Clear }
            }
            At::Complete => match run.uses.filter(|upload| self.alive[*upload]) {
                Some(upload) => {
                    next.alive[upload] = false;
                    next.archive = Some(me);
                    At::Publish
                }
                None => At::Clear,
            },
            At::Publish if is_claimed && self.owner == me && self.archive == Some(me) => {
                next.published = Some(me);
                At::Done
            }
            At::Publish => At::Clear,
            At::Clear if broken == Broken::Void => At::List,
            At::Clear => {
                next.runs[me].read = (self.note, self.version);
                At::ClearClaim
            }
            At::ClearClaim => {
                if is_claimed {
                    At::Void
                } else {
                    At::LetGo
                }
            }
            At::Void => match run.read.0 {
                Note::Nothing | Note::Void => At::List,
                Note::Of { .. } if self.version == run.read.1 => {
                    next.write(Note::Void);
                    At::List
                }
                Note::Of { .. } => At::Clear,
            },
            At::List => {
                next.runs[me].listed = self.alive;
                At::ListClaim
            }
            At::ListClaim => {
                if is_claimed || broken == Broken::ListClaim {
                    At::Abort
                } else {
                    At::LetGo
                }
            }
            At::Abort => match run.listed.iter().position(|is_listed| *is_listed) {
                Some(upload) => {
                    next.abort(me, upload);
                    next.runs[me].listed[upload] = false;
                    At::Abort
                }
                None => At::Remove,
            },
            // A store has no conditional delete: see `BackupLayout::remove`.
            At::Remove => {
                if is_claimed && self.published.is_none() {
                    next.write(Note::Nothing);
                    next.archive = None;
                }
                next.runs[me].uses = None;
                if is_claimed && run.begins_anew {
                    next.runs[me].begins_anew = false;
                    next.runs[me].known = next.version;
                    At::Begin
                } else {
                    At::Done
                }
            }
            At::LetGo => match run.uses {
                Some(upload) if may_abort(NAMES[upload], &self.note.standing()) => At::LetGoAbort,
                _ => At::Done,
            },
            At::LetGoAbort => {
                if let Some(upload) = run.uses {
                    next.abort(me, upload);
                }
                At::Done
            }
        };
        next.runs[me].at = at;
        more.push(next);
        for world in &mut more {
            if world.published.is_some() && world.published != world.archive {
                world.fault = world.fault.or(Some(REPLACED));
            }
        }
        more
    }

    /// Writes the run's checkpoint, or finds another one there.
    fn keep(&self, me: usize) -> Option<Self> {
        let run = &self.runs[me];
        let upload = run.uses.filter(|_| !run.is_over)?;
        let note = Note::Of { run: me, upload };
        if self.note == note {
            return None;
        }
        let mut next = self.clone();
        if run.known == self.version {
            next.runs[me].known = next.write(note);
        } else if may_write_over(NAMES[me], false, self.claim == me, &self.note.standing()) {
            next.runs[me].known = self.version;
        } else {
            next.runs[me].is_over = true;
        }
        Some(next)
    }
}

/// All reachable states.
fn worlds(broken: Broken) -> HashSet<World> {
    let (mut seen, mut left) = (HashSet::new(), vec![World::new()]);
    while let Some(world) = left.pop() {
        assert!(seen.len() < 1_000_000, "it has no end");
        if seen.insert(world.clone()) && world.fault.is_none() {
            left.extend([OLD, NEXT].into_iter().flat_map(|me| world.step(me, broken)));
        }
    }
    seen
}

fn faults(broken: Broken) -> HashSet<&'static str> {
    worlds(broken).iter().filter_map(|world| world.fault).collect()
}

#[test]
fn whatever_two_runs_do_to_each_other_nobodys_live_upload_is_aborted_and_what_is_published_stays() {
    let worlds = worlds(Broken::None);
    let fault = worlds.iter().find(|world| world.fault.is_some());
    assert!(fault.is_none(), "{fault:?}");
    // The states without a violation are not idle ones.
    let ends = |by: usize, upload: usize| {
        worlds.iter().any(|world| world.published == Some(by) && world.runs[by].uses == Some(upload))
    };
    assert!(ends(OLD, OLD) && ends(NEXT, OLD) && ends(NEXT, NEXT));
}

#[test]
fn each_rule_is_needed() {
    for (broken, fault) in [
        (Broken::TakeUp, ABORTED),
        (Broken::Void, ABORTED),
        (Broken::ListClaim, ABORTED),
        (Broken::Complete, REPLACED),
    ] {
        assert!(faults(broken).contains(fault), "{broken:?}");
    }
}

#[test]
fn a_checkpoint_is_written_over_by_the_run_of_the_claim_alone_and_a_void_one_by_nobody() {
    let ours = FoundCheckpoint::Of { run: "ours", upload: "u" };
    let another = FoundCheckpoint::Of { run: "another", upload: "u" };
    for (found, when_claimed, when_not) in [
        (ours, true, true),
        (another, true, false),
        (FoundCheckpoint::Unreadable, true, false),
        (FoundCheckpoint::Nothing, true, false),
        (FoundCheckpoint::Void, false, false),
    ] {
        assert_eq!(may_write_over("ours", false, true, &found), when_claimed, "{found:?}");
        assert_eq!(may_write_over("ours", false, false, &found), when_not, "{found:?}");
        assert_eq!(may_write_over("ours", true, true, &found), found == ours, "{found:?}");
    }
    for (found, may) in [
        (ours, false),
        (another, false),
        (FoundCheckpoint::Unreadable, false),
        (FoundCheckpoint::Void, true),
        (FoundCheckpoint::Nothing, true),
        (FoundCheckpoint::Of { run: "ours", upload: "v" }, true),
    ] {
        assert_eq!(may_abort("u", &found), may, "{found:?}");
    }
}
