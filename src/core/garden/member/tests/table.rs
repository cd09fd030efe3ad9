use super::*;
use crate::member::location::NoLocationReason;
use crate::member::object::{ObjectAction, next};

const INTENTS: [Intent; 6] =
    [Intent::Unknown, Intent::Unassigned, Intent::Elsewhere, Intent::Keep, Intent::Remove, Intent::Removed];
const STATES: [MemberState; 8] = [
    MemberState::Absent,
    MemberState::Live { let_go: false },
    MemberState::Live { let_go: true },
    MemberState::Going { let_go: false },
    MemberState::Going { let_go: true },
    MemberState::Done { gone: false },
    MemberState::Done { gone: true },
    MemberState::GivenUp,
];

/// What the member's object is after an action, and after the executor had a turn.
pub(super) fn after(state: MemberState, action: ObjectAction) -> MemberState {
    use MemberState::{Absent, Done, GivenUp, Going, Live};
    match (action, state) {
        (ObjectAction::Apply, Absent) => Live { let_go: false },
        (ObjectAction::Delete, Live { let_go }) => Going { let_go },
        (ObjectAction::Delete, GivenUp) => Done { gone: false },
        (ObjectAction::LetGo, Live { .. }) => Live { let_go: true },
        (ObjectAction::LetGo, Going { .. }) => Going { let_go: true },
        (ObjectAction::Release, Done { .. }) => Absent,
        (_, state) => state,
    }
}

pub(super) fn executed(state: MemberState) -> MemberState {
    match state {
        MemberState::Live { let_go: true } => MemberState::GivenUp,
        MemberState::Going { let_go } => MemberState::Done { gone: !let_go },
        state => state,
    }
}

#[test]
fn an_object_with_data_is_deleted_only_when_the_hub_says_so() {
    for intent in INTENTS {
        for state in STATES {
            let action = next(intent, state);
            let has_data = state == MemberState::Live { let_go: false };
            let removes = action == ObjectAction::Delete && has_data;
            assert_eq!(removes, intent == Intent::Remove && has_data, "{intent:?} {state:?} {action:?}");
        }
    }
}

#[test]
fn from_any_state_each_intent_of_the_hub_is_carried_out() {
    for intent in INTENTS {
        for from in STATES {
            let (mut state, mut is_reported) = (from, false);
            for _ in 0..12 {
                let action = next(intent, state);
                is_reported |= action == ObjectAction::Report;
                state = executed(after(state, action));
            }
            let is_carried_out = match intent {
                // The executor goes on with what it was asked before.
                Intent::Unknown | Intent::Unassigned => true,
                Intent::Elsewhere => state == MemberState::Absent,
                Intent::Keep => state == MemberState::Live { let_go: false },
                Intent::Remove => state == MemberState::Done { gone: true } && is_reported,
                // Only a hub that was restored from an older time leaves more than that.
                Intent::Removed => {
                    state == MemberState::Absent
                        || matches!(from, MemberState::Live { .. } | MemberState::GivenUp)
                }
            };
            assert!(is_carried_out, "{intent:?}, from {from:?}, it became {state:?}");
        }
    }
}

#[test]
fn a_hub_that_lost_everything_changes_nothing() {
    for state in STATES {
        let is_over = matches!(state, MemberState::Done { .. });
        let wanted = if is_over { ObjectAction::Release } else { ObjectAction::Nothing };
        assert_eq!(next(Intent::Unknown, state), wanted, "{state:?}");
    }
}

fn steps(mut scene: Scene) -> Vec<MemberStep> {
    scene.pass().0
}

fn report(mut scene: Scene) -> EntryReport {
    scene.pass().1.unwrap()
}

fn in_location(step: LocationStep) -> MemberStep {
    MemberStep::Location(step)
}

fn set_access(access: LocationAccess) -> MemberStep {
    in_location(LocationStep::SetAccess(NAME.to_owned(), access))
}

fn with_state(mut scene: Scene, state: HubState) -> Scene {
    scene.hub.as_mut().unwrap().object.state = state;
    scene
}

fn leaving() -> Scene {
    let scene = with_state(live(), HubState { holder: AssignedSeed::Us, ..HubState::default() });
    Scene { locations: vec![own_location(true)], ..scene }
}

fn removing() -> Scene {
    let state = HubState {
        is_ours: true,
        holder: AssignedSeed::Us,
        is_deleted: true,
        is_released: true,
        is_removed: false,
    };
    with_state(live(), state)
}

#[test]
fn what_is_as_it_should_be_takes_no_step() {
    assert_eq!(steps(live()), []);
    let told = report(live());
    assert_eq!(told.object, ObjectReport::Kept);
    assert_eq!(told.location, LocationReport::AsFound { tells_validating: true });
}

#[test]
fn an_entry_is_made_credentials_first() {
    let mut scene = live();
    scene.object = ObjectView {
        state: MemberState::Absent,
        wanted: ObjectDrift::Different { in_marks: true },
        copy: CopyState::Absent,
        ..kept_object()
    };
    scene.locations.clear();
    scene.location_secret = None;
    scene.location_credentials = LocationCredentials::Copy(CopyState::Absent);
    scene.hub.as_mut().unwrap().is_made = false;
    let object = [MemberStep::Object(ObjectStep::CopyCredentials), MemberStep::Object(ObjectStep::Apply)];
    assert_eq!(steps(scene.clone()), object, "there is no location before the directory is made");
    scene.hub.as_mut().unwrap().is_made = true;
    let location = [
        in_location(LocationStep::KeepCredentials),
        in_location(LocationStep::Apply(LocationAccess::ReadWrite)),
    ];
    assert_eq!(steps(scene.clone()), [&location[..], &object].concat());
    scene.object.credentials = CredentialsState::Unanswered;
    assert_eq!(scene.next(), MemberDecision::Await);
}

#[test]
fn a_cluster_that_is_to_leave_is_closed_and_waits_before_it_answers() {
    let open = Scene { locations: vec![own_location(false)], ..leaving() };
    assert_eq!(steps(open), [set_access(LocationAccess::ReadOnly)]);
    assert_eq!(steps(leaving()), [MemberStep::BeginQuiet]);
    let quiet = |seconds| Quiesced { lasted: Duration::from_secs(seconds), migrations: Vec::new() };
    let short = Scene { quiet: Some(quiet(9)), ..leaving() };
    assert_eq!((steps(short.clone()), report(short).handoff), (vec![], None));
    let long = Scene { quiet: Some(quiet(10)), ..leaving() };
    assert_eq!(steps(long.clone()), [MemberStep::CountBackups([NAME.to_owned()].into())]);
    assert_eq!(report(long).handoff, Some(Handoff::Leaving { running: 0, is_made: true }));
}

#[test]
fn an_answer_for_an_earlier_generation_is_given_again() {
    let mut scene = leaving();
    scene.quiet = Some(Quiesced { lasted: Duration::from_secs(10), migrations: Vec::new() });
    for (is_current, was_made, is_due) in
        [(true, true, false), (false, true, true), (true, false, false), (false, false, false)]
    {
        let hub = scene.hub.as_mut().unwrap();
        (hub.is_answered, hub.is_current, hub.was_made) = (true, is_current, was_made);
        let counts = steps(scene.clone()).contains(&MemberStep::CountBackups([NAME.to_owned()].into()));
        assert_eq!(counts, is_due, "{is_current} {was_made}");
    }
}

#[test]
fn a_migration_that_is_running_makes_the_answer_wait_longer() {
    let mut scene = leaving();
    scene.locations.push(MemberLocation {
        location: ReviewedLocation {
            name: "old".to_owned(),
            is_read_only: true,
            ..ReviewedLocation::default()
        },
        migrated_by: Some("run".to_owned()),
        ..MemberLocation::default()
    });
    let quiet = |seconds, mark: &str| Quiesced {
        lasted: Duration::from_secs(seconds),
        migrations: vec![mark.to_owned()],
    };
    scene.quiet = Some(quiet(29, "run"));
    assert_eq!(steps(scene.clone()), []);
    scene.quiet = Some(quiet(90, "before"));
    assert_eq!(steps(scene.clone()), [MemberStep::BeginQuiet], "it is alive: its mark has changed");
    scene.quiet = Some(quiet(30, "run"));
    assert_eq!(steps(scene).len(), 1, "its mark has not changed for long");
}

#[test]
fn quiet_is_forgotten_before_a_location_is_opened_again() {
    let scene = Scene {
        locations: vec![own_location(true)],
        quiet: Some(Quiesced { lasted: Duration::from_secs(9), migrations: Vec::new() }),
        ..live()
    };
    assert_eq!(steps(scene), [MemberStep::ForgetQuiet, set_access(LocationAccess::ReadWrite)]);
}

#[test]
fn a_foreign_location_into_the_directory_is_reported_and_not_touched() {
    let mut scene = leaving();
    let mut stray = own_location(false);
    stray.location = ReviewedLocation { name: "stray".to_owned(), entry: None, ..stray.location };
    stray.is_ours = false;
    scene.locations.push(stray);
    assert_eq!(steps(scene.clone()), []);
    let Some(Handoff::Stays(problem)) = report(scene).handoff else { unreachable!() };
    assert!(problem.is_configuration && problem.description.contains("stray"), "{problem:?}");
}

#[test]
fn data_goes_last_and_after_the_hub_was_asked() {
    let backups = || in_location(LocationStep::RemoveBackups([NAME.to_owned()].into()));
    let location = in_location(LocationStep::Delete(NAME.to_owned()));
    assert_eq!(steps(removing()), [MemberStep::AskHub, location, backups()], "its location is still there");
    let closed = Scene { locations: Vec::new(), ..removing() };
    let object = [ObjectStep::Confirm, ObjectStep::Delete].map(MemberStep::Object);
    let credentials = in_location(LocationStep::DeleteCredentials);
    let all = [&[MemberStep::AskHub, backups(), credentials][..], &object].concat();
    assert_eq!(steps(closed.clone()), all);
    let mut denied = closed;
    denied.facts.confirmed = Some(false);
    assert!(steps(denied.clone()).iter().all(|step| !matches!(step, MemberStep::Object(_))));
    assert_eq!(report(denied).object, ObjectReport::Nothing);
}

#[test]
fn a_permit_is_taken_back_when_the_hub_changes_its_mind() {
    let mut scene = live();
    scene.object.is_permitted = true;
    assert_eq!(steps(scene), [MemberStep::Revoke]);
}

#[test]
fn what_ended_is_given_up_before_what_has_its_name_by_now() {
    let mut scene = live();
    scene.ended = ["old".to_owned()].into();
    scene.object.hub_uid = Some("old".to_owned());
    scene.locations = vec![MemberLocation { hub_uid: Some("old".to_owned()), ..own_location(false) }];
    scene.location_secret = Some(Some("old".to_owned()));
    let wanted = [
        in_location(LocationStep::Delete(NAME.to_owned())),
        in_location(LocationStep::RemoveBackups([NAME.to_owned()].into())),
        MemberStep::Object(ObjectStep::LetGo),
    ];
    assert_eq!(steps(scene), wanted);
}

#[test]
fn a_failure_of_the_location_keeps_nothing_else_from_going_on() {
    let mut scene = live();
    scene.object.wanted = ObjectDrift::Different { in_marks: false };
    scene.facts.location_failed = Some("refused".to_owned());
    assert_eq!(steps(scene.clone()), [MemberStep::Object(ObjectStep::Apply)]);
    let told = report(scene);
    assert_eq!(told.location, LocationReport::Without(NoLocationReason::Unavailable, "refused".to_owned()));
    let mut removal = removing();
    removal.facts.location_failed = Some("refused".to_owned());
    assert_eq!(steps(removal), [MemberStep::AskHub], "and data stays where it may still be read");
}

#[test]
fn a_name_that_is_taken_is_reported() {
    let mut scene = live();
    scene.locations[0].is_ours = false;
    scene.locations[0].location.entry = None;
    let LocationReport::Without(NoLocationReason::NameTaken, why) = report(scene.clone()).location else {
        unreachable!()
    };
    assert!(why.contains(NAME), "{why}");
    scene.object.is_ours = false;
    let ObjectReport::Failed { problem, is_removal: false } = report(scene).object else { unreachable!() };
    assert!(problem.is_configuration, "{problem:?}");
}

#[test]
fn a_foreign_object_lets_the_hub_forget_its_entry_where_a_person_says_so() {
    let mut scene = removing();
    scene.object.is_ours = false;
    assert!(matches!(report(scene.clone()).object, ObjectReport::Failed { is_removal: true, .. }));
    scene.hub.as_mut().unwrap().object.forgets_data = true;
    assert_eq!(report(scene).object, ObjectReport::LeftAlone);
}

#[test]
fn data_in_another_bucket_does_not_follow() {
    let mut scene = live();
    scene.object.bucket = Some("other".to_owned());
    scene.locations[0].location.bucket = "other".to_owned();
    let told = report(scene.clone());
    assert!(matches!(told.object, ObjectReport::Failed { .. }), "{told:?}");
    assert!(
        matches!(told.location, LocationReport::Without(NoLocationReason::BucketNotReady, _)),
        "{told:?}"
    );
    assert_eq!(steps(scene), []);
}

#[test]
fn a_deleted_bucket_is_removed_with_its_data_only_where_the_hub_confirms_it() {
    let state = HubState {
        is_ours: false,
        holder: AssignedSeed::Us,
        is_deleted: true,
        is_released: true,
        is_removed: false,
    };
    let hub = HubObject { uid: "uid".to_owned(), state, forgets_data: false };
    let object = ObjectView { kind: HubKind::BackupBucket, bucket: None, ..kept_object() };
    let mut facts = Facts::default();
    let next = |facts: &Facts| bucket(&BucketView { hub: Some(hub.clone()), object: object.clone(), facts });
    assert_eq!(next(&facts), MemberDecision::Do(MemberStep::AskHub));
    facts.confirmed = Some(true);
    for step in [ObjectStep::Confirm, ObjectStep::Delete].map(MemberStep::Object) {
        assert_eq!(next(&facts), MemberDecision::Do(step.clone()));
        facts.done.insert(step);
    }
    assert_eq!(next(&facts), MemberDecision::Report(ObjectReport::Nothing));
    facts.confirmed = Some(false);
    facts.done.clear();
    assert_eq!(next(&facts), MemberDecision::Report(ObjectReport::Nothing));
}
