use proptest::prelude::*;

use super::*;

const PERIOD: SignedDuration = SignedDuration::from_mins(1);

pub(super) fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

fn listing<'a>(names: impl IntoIterator<Item = &'a str>) -> FolderListing {
    FolderListing { names: names.into_iter().map(str::to_owned).collect(), is_whole: true }
}

fn standing(uid: &str) -> ClusterBackup {
    ClusterBackup { uid: uid.to_owned(), is_here: true, is_stored: true }
}

fn standings<'a>(names: impl IntoIterator<Item = &'a str>) -> Standings {
    names.into_iter().map(|name| (name.to_owned(), standing(&format!("uid of {name}")))).collect()
}

fn doubtful(name: &str) -> Doubtful {
    Doubtful { name: name.to_owned(), uid: format!("uid of {name}") }
}

#[test]
fn new_names_are_read_and_known_ones_are_not() {
    let mut memory = Memory::default();
    let known = standings(["a", "b"]);
    let plan = memory.plan(&listing(["a", "b", "c"]), &known, &known, at(0));
    assert_eq!(plan, SyncPlan { read: vec!["c".into()], ..SyncPlan::default() });
}

#[test]
fn a_backup_goes_after_two_rounds_in_a_row_that_both_miss_it_by_list_and_by_look() {
    let known = standings(["a", "b"]);
    let mut memory = Memory::default();
    let mut round = |names: &[&str], is_there: Option<bool>| {
        let plan = memory.plan(&listing(names.iter().copied()), &known, &known, at(0));
        plan.doubtful.iter().any(|one| memory.looked(one, is_there))
    };
    for (names, is_there, goes) in [
        (&["a"][..], Some(false), false),
        // Each of these begins anew: it is listed, the look finds it, the look fails, the listing
        // is empty.
        (&["a", "b"], Some(false), false),
        (&["a"], Some(false), false),
        (&["a"], Some(true), false),
        (&["a"], Some(false), false),
        (&["a"], None, false),
        (&["a"], Some(false), false),
        (&[], Some(false), false),
        (&["a"], Some(false), false),
        (&["a"], Some(false), true),
    ] {
        assert_eq!(round(names, is_there), goes, "{names:?} {is_there:?}");
    }
}

#[test]
fn what_a_backup_has_left_goes_after_two_looks_in_a_row_that_find_it_gone() {
    let (mut memory, one) = (Memory::default(), doubtful("left"));
    for (is_gone, goes) in [
        (Some(true), false),
        (Some(false), false),
        (Some(true), false),
        (None, false),
        (Some(true), false),
        (Some(true), true),
    ] {
        assert_eq!(memory.orphaned(&one, is_gone), goes, "{is_gone:?}");
    }
    // A round in which the folder is not listed, or that fails, begins the count anew.
    memory.plan(&listing(["another"]), &standings([]), &standings([]), at(0));
    assert!(!memory.orphaned(&one, Some(true)));
    memory.failed();
    assert!(!memory.orphaned(&one, Some(true)));
    let again = Doubtful { uid: "another".to_owned(), ..one.clone() };
    assert!(!memory.orphaned(&again, Some(true)), "it is another Backup");
    assert!(memory.orphaned(&one, Some(true)));
}

#[test]
fn a_listing_that_is_empty_or_cut_dooms_nothing() {
    let known = standings(["a", "b"]);
    let mut memory = Memory::default();
    for _ in 0..5 {
        let plan = memory.plan(&listing([]), &known, &known, at(0));
        assert_eq!(plan, SyncPlan { spared: 2, ..SyncPlan::default() });
        let cut = FolderListing { is_whole: false, ..listing(["a"]) };
        let plan = memory.plan(&cut, &known, &known, at(0));
        assert_eq!(plan, SyncPlan { spared: 1, ..SyncPlan::default() });
    }
}

#[test]
fn a_round_has_all_if_nothing_is_cut_or_skipped_that_could_still_come() {
    let known = standings(["a"]);
    for why in SyncSkipReason::ALL {
        let mut memory = Memory::default();
        let all = listing(["a", "b"]);
        let plan = memory.plan(&all, &known, &known, at(0));
        assert!(memory.has_all(&all, &plan));
        memory.skip("b", why, Tag::new(), PERIOD, at(0));
        let comes_not = [
            SyncSkipReason::NoMetadata,
            SyncSkipReason::Abandoned,
            SyncSkipReason::Unfinished,
            SyncSkipReason::Name,
            SyncSkipReason::NameTaken,
        ]
        .contains(&why);
        assert_eq!(memory.has_all(&all, &plan), comes_not, "{why:?}");
    }
    let memory = Memory::default();
    let (all, plan) = (listing(["a"]), SyncPlan::default());
    assert!(memory.has_all(&all, &plan));
    for (listing, plan) in [
        (FolderListing { is_whole: false, ..all.clone() }, plan.clone()),
        (all.clone(), SyncPlan { is_cut: true, ..plan.clone() }),
        (all.clone(), SyncPlan { spared: 1, ..plan.clone() }),
        (all, SyncPlan { doubtful: vec![doubtful("b")], ..plan }),
    ] {
        assert!(!memory.has_all(&listing, &plan), "{listing:?} {plan:?}");
    }
}

#[test]
fn only_finished_backups_of_this_location_that_stood_there_before_the_listing_are_doubted() {
    let all = ["stays", "running", "of another", "new", "again"];
    let mut after = standings(all);
    after.get_mut("running").unwrap().is_stored = false;
    after.get_mut("of another").unwrap().is_here = false;
    let mut before = after.clone();
    before.remove("new");
    before.get_mut("again").unwrap().uid = "of the one before".to_owned();
    let plan = Memory::default().plan(&listing(["else"]), &before, &after, at(0));
    assert_eq!(plan.doubtful, [doubtful("stays")]);
    // It ended while the listing was on its way.
    before.get_mut("stays").unwrap().is_stored = false;
    let plan = Memory::default().plan(&listing(["else"]), &before, &after, at(0));
    assert_eq!(plan.doubtful, []);
}

#[test]
fn a_backup_created_again_under_its_name_is_missed_anew() {
    let mut memory = Memory::default();
    let first = standings(["a"]);
    memory.plan(&listing(["else"]), &first, &first, at(0));
    assert!(!memory.looked(&doubtful("a"), Some(false)));
    let again = BTreeMap::from([("a".to_owned(), standing("another"))]);
    let plan = memory.plan(&listing(["else"]), &again, &again, at(1));
    let [one] = plan.doubtful.as_slice() else { panic!("{plan:?}") };
    assert!(!memory.looked(one, Some(false)));
}

#[test]
fn a_round_has_its_bounds_and_the_next_ones_do_the_rest() {
    let names: Vec<String> = (0..MOST_NEW + 7).map(|i| format!("b{i:06}")).collect();
    let mut memory = Memory::default();
    let none = Standings::new();
    let plan = memory.plan(&listing(names.iter().map(String::as_str)), &none, &none, at(0));
    assert!(plan.read.len() == MOST_NEW && plan.is_cut);
    let known = standings(names.iter().map(String::as_str));
    let mut removed = 0;
    for _ in 0..4 {
        let plan = memory.plan(&listing(["else"]), &known, &known, at(0));
        assert!(plan.doubtful.len() == MOST_DOUBTFUL && plan.is_cut);
        removed += plan.doubtful.iter().filter(|one| memory.looked(one, Some(false))).count();
    }
    assert_eq!(removed, 3 * MOST_DOUBTFUL, "the same are asked after again, so that each is decided");
}

#[test]
fn what_is_skipped_is_told_once_and_read_again_ever_more_rarely() {
    let mut memory = Memory::default();
    let none = Standings::new();
    let (mut told, mut reads) = (0, Vec::new());
    for minute in 0..300 {
        let plan = memory.plan(&listing(["bad"]), &none, &none, at(minute));
        if !plan.read.is_empty() {
            reads.push(minute);
            told +=
                u32::from(memory.skip("bad", SyncSkipReason::Unreadable, "v1".into(), PERIOD, at(minute)));
        }
    }
    assert_eq!((told, reads), (1, vec![0, 1, 3, 7, 15, 31, 63, 123, 183, 243]));
    assert_eq!(memory.skipped(), BTreeMap::from([(SyncSkipReason::Unreadable, 1)]));
    assert!(
        memory.skip("bad", SyncSkipReason::Unreadable, "v2".into(), PERIOD, at(300)),
        "it is another file now"
    );
    memory.plan(&listing(["else"]), &none, &none, at(301));
    assert!(memory.skipped().is_empty(), "the folder is gone");
}

#[test]
fn what_was_skipped_by_a_clock_that_was_ahead_is_read_again_by_the_right_one() {
    let mut memory = Memory::default();
    let none = Standings::new();
    memory.skip("bad", SyncSkipReason::Unreadable, Tag::new(), PERIOD, at(10_000));
    assert_eq!(memory.plan(&listing(["bad"]), &none, &none, at(0)).read, ["bad"]);
    memory.skip("bad", SyncSkipReason::Unreadable, Tag::new(), PERIOD, at(0));
    assert_eq!(memory.plan(&listing(["bad"]), &none, &none, at(0)).read, [""; 0]);
}

#[test]
fn a_folder_that_is_not_complete_is_read_every_few_minutes() {
    let none = Standings::new();
    for why in [SyncSkipReason::NoMetadata, SyncSkipReason::Abandoned] {
        let (mut memory, mut reads) = (Memory::default(), Vec::new());
        for minute in 0..20 {
            if !memory.plan(&listing(["new"]), &none, &none, at(minute)).read.is_empty() {
                reads.push(minute);
                memory.skip("new", why, Tag::new(), PERIOD, at(minute));
            }
        }
        assert_eq!(reads, [0, 1, 3, 7, 12, 17], "{why:?}");
    }
}

#[test]
fn a_name_that_another_location_has_is_told_once_and_taken_when_it_is_free() {
    let mut memory = Memory::default();
    let mut known = standings(["a"]);
    known.get_mut("a").unwrap().is_here = false;
    let plan = memory.plan(&listing(["a"]), &known, &known, at(0));
    assert_eq!(plan.taken, ["a"]);
    let plan = memory.plan(&listing(["a"]), &known, &known, at(1));
    assert_eq!(plan, SyncPlan::default());
    let plan = memory.plan(&listing(["a"]), &known, &Standings::new(), at(2));
    assert_eq!(plan.read, ["a"]);
}

#[test]
fn names_that_no_object_can_have_are_not_read() {
    let long = "x".repeat(NAME);
    for (name, is_valid) in [
        ("daily-20260101000000", true),
        ("a.b-c.1", true),
        (long.as_str(), true),
        (&format!("{long}x"), false),
        ("", false),
        ("A", false),
        ("a_b", false),
        ("-a", false),
        ("a..b", false),
        ("a.", false),
        ("ü", false),
        ("a\nb", false),
    ] {
        assert_eq!(is_name(name), is_valid, "{name:?}");
    }
    let mut memory = Memory::default();
    let none = Standings::new();
    assert_eq!(memory.plan(&listing(["Odd"]), &none, &none, at(0)).invalid, ["Odd"]);
    assert_eq!(memory.plan(&listing(["Odd"]), &none, &none, at(100)), SyncPlan::default());
}

#[test]
fn a_location_is_due_by_its_own_period() {
    let minute = Some(SignedDuration::from_mins(1));
    for (last, period, due) in [
        (None, minute, true),
        (None, None, false),
        (Some(at(9)), minute, true),
        (Some(at(10)), minute, false),
        (Some(at(99)), minute, true),
        (Some(at(0)), None, false),
    ] {
        assert_eq!(is_due(last, period, at(10)), due, "{last:?} {period:?}");
    }
}

#[test]
fn a_copy_of_the_cluster_is_known_by_a_backup_that_this_one_does_not_have() {
    let [early, late] = [1, 2].map(|at| Timestamp::from_second(at).ok());
    let claim = |cluster: &str, namespace: &str| crate::claim::FolderClaim {
        cluster: cluster.into(),
        namespace: namespace.into(),
        ..crate::claim::FolderClaim::default()
    };
    let is = |last, ended, claim| is_written_by_copy(last, ended, &claim, "here", "velero");
    assert!(is(early, late, claim("here", "velero")));
    assert!(!is(late, early, claim("here", "velero")), "it was there before");
    assert!(!is(None, late, claim("here", "velero")), "the first round finds what is old");
    assert!(!is(early, late, claim("away", "velero")));
    assert!(!is(early, late, claim("here", "elsewhere")), "that is another installation");
}

#[test]
fn only_what_another_cluster_wrote_since_the_last_round_is_told() {
    for (round, ended, by, told) in [
        (Some(at(1)), Some(at(2)), Some("there"), true),
        (Some(at(1)), Some(at(2)), Some("here"), false),
        (Some(at(1)), Some(at(2)), Some(""), false),
        (Some(at(1)), Some(at(2)), None, false),
        (Some(at(3)), Some(at(2)), Some("there"), false),
        (None, Some(at(2)), Some("there"), false),
        (Some(at(1)), None, Some("there"), false),
    ] {
        assert_eq!(is_written_elsewhere(round, ended, by, "here"), told, "{round:?} {ended:?} {by:?}");
    }
}

/// What a store says in one round.
#[derive(Clone, Debug)]
enum Answer {
    Truth,
    /// It leaves out these names of its list, and says so or not.
    Half {
        left_out: BTreeSet<usize>,
        is_whole: bool,
    },
    /// It denies these names, to a list and to a look.
    Lie {
        denied: BTreeSet<usize>,
    },
    Empty,
    Fails,
    /// The list is true; each look fails.
    LooksFail,
}

const NAMES: usize = 6;

fn answer() -> impl Strategy<Value = Answer> {
    let some = || prop::collection::btree_set(0..NAMES, 0..NAMES);
    prop_oneof![
        Just(Answer::Truth),
        (some(), any::<bool>()).prop_map(|(left_out, is_whole)| Answer::Half { left_out, is_whole }),
        some().prop_map(|denied| Answer::Lie { denied }),
        Just(Answer::Empty),
        Just(Answer::Fails),
        Just(Answer::LooksFail),
    ]
}

proptest! {
    /// Whatever a store answers, as long as it does not deny the same backup twice in a row.
    #[test]
    fn no_backup_goes_that_is_in_the_store(answers in prop::collection::vec(answer(), 1..40)) {
        let all: Vec<String> = (0..NAMES).map(|i| format!("b{i}")).collect();
        let known = standings(all.iter().map(String::as_str));
        let mut memory = Memory::default();
        let mut denied_before = BTreeSet::new();
        for (minute, answer) in (0..).zip(answers) {
            let denied: BTreeSet<String> = match &answer {
                Answer::Lie { denied } => denied.iter().map(|i| format!("b{i}")).filter(|b| !denied_before.contains(b)).collect(),
                _ => BTreeSet::new(),
            };
            let names = |left_out: &BTreeSet<String>| all.iter().filter(|b| !left_out.contains(*b)).cloned().collect();
            let (names, is_whole): (BTreeSet<String>, bool) = match &answer {
                Answer::Fails => {
                    memory.failed();
                    denied_before.clear();
                    continue;
                }
                Answer::Truth | Answer::LooksFail => (names(&BTreeSet::new()), true),
                Answer::Half { left_out, is_whole } => (names(&left_out.iter().map(|i| format!("b{i}")).collect()), *is_whole),
                Answer::Lie { .. } => (names(&denied), true),
                Answer::Empty => (BTreeSet::new(), true),
            };
            let plan = memory.plan(&FolderListing { names, is_whole }, &known, &known, at(minute));
            for one in &plan.doubtful {
                let is_there = (!matches!(answer, Answer::LooksFail)).then(|| !denied.contains(&one.name));
                prop_assert!(!memory.looked(one, is_there), "{} goes", one.name);
            }
            denied_before = denied;
        }
    }

    /// A backup that the store no longer has goes in the end, if the store has others.
    #[test]
    fn what_the_store_no_longer_has_goes(answers in prop::collection::vec(answer(), 0..20)) {
        let known = standings(["gone", "b0"]);
        let mut memory = Memory::default();
        for answer in answers {
            if matches!(answer, Answer::Fails) {
                memory.failed();
            } else {
                memory.plan(&listing(["b0"]), &known, &known, at(0));
            }
        }
        let mut goes = Vec::new();
        for _ in 0..2 {
            for one in memory.plan(&listing(["b0"]), &known, &known, at(0)).doubtful {
                if memory.looked(&one, Some(false)) {
                    goes.push(one.name);
                }
            }
        }
        prop_assert_eq!(goes, ["gone"]);
    }

    #[test]
    fn no_name_and_no_file_makes_it_panic(name in ".*", phase in ".*", format in ".*", now in -1000_i64..1000) {
        let stored = StoredBackupFile { api_version: "velero.io/v1", kind: "Backup", name: &name, phase: &phase, format_version: &format, expiration: Some(at(now)) };
        let _ = judge(&name, &stored, at(0));
        let mut memory = Memory::default();
        let none = Standings::new();
        memory.plan(&listing([name.as_str()]), &none, &none, at(now));
        for _ in 0..70 {
            memory.skip(&name, SyncSkipReason::Unreadable, Tag::new(), SignedDuration::MAX, Timestamp::MAX);
        }
    }
}
