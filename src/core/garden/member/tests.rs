use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::check::location::ReviewedLocation;
use crate::entry_life::{AssignedSeed, MemberState};

mod clusters;
mod table;

pub(super) const NAME: &str = "ship--1";

/// What a view of an entry is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Scene {
    pub(super) hub: Option<HubEntry>,
    pub(super) bucket: Option<BucketOfEntry>,
    pub(super) ended: BTreeSet<String>,
    pub(super) object: ObjectView,
    pub(super) locations: Vec<MemberLocation>,
    pub(super) own: OwnLocation,
    pub(super) location_credentials: LocationCredentials,
    pub(super) location_secret: Option<Option<String>>,
    pub(super) quiet: Option<Quiesced>,
    pub(super) facts: Facts,
}

impl Scene {
    pub(super) fn view(&self) -> EntryView<'_> {
        EntryView {
            name: NAME,
            namespace: "velero",
            hub: self.hub.clone(),
            bucket: self.bucket,
            ended: self.ended.clone(),
            object: self.object.clone(),
            locations: &self.locations,
            own: self.own,
            location_credentials: self.location_credentials.clone(),
            location_secret: self.location_secret.clone(),
            quiet: self.quiet.clone(),
            facts: &self.facts,
        }
    }

    pub(super) fn next(&self) -> MemberDecision<EntryReport> {
        entry(&self.view())
    }

    /// All that is done in one pass, where nothing of it shows before the next one.
    pub(super) fn pass(&mut self) -> (Vec<MemberStep>, Option<EntryReport>) {
        let mut steps = Vec::new();
        loop {
            match self.next() {
                MemberDecision::Report(report) => return (steps, Some(report)),
                MemberDecision::Await => return (steps, None),
                MemberDecision::Do(step) => {
                    match &step {
                        MemberStep::AskHub => self.facts.confirmed = Some(true),
                        MemberStep::CountBackups(_) => self.facts.running = Some(0),
                        MemberStep::Location(LocationStep::RemoveBackups(_)) => self.facts.removed = Some(0),
                        _ => {}
                    }
                    self.facts.done.insert(step.clone());
                    steps.push(step);
                    assert!(steps.len() < 100, "this does not end: {steps:?}");
                }
            }
        }
    }
}

pub(super) fn own_location(is_read_only: bool) -> MemberLocation {
    MemberLocation {
        location: ReviewedLocation {
            name: NAME.to_owned(),
            bucket: "b".to_owned(),
            prefix: format!("{NAME}/velero"),
            is_read_only,
            entry: Some(NAME.to_owned()),
            ..ReviewedLocation::default()
        },
        is_ours: true,
        hub_uid: Some("uid".to_owned()),
        ..MemberLocation::default()
    }
}

pub(super) fn hub_entry(state: HubState) -> HubEntry {
    HubEntry {
        object: HubObject { uid: "uid".to_owned(), state, forgets_data: false },
        holder: "holder".to_owned(),
        bucket: Some("b".to_owned()),
        is_made: true,
        was_made: true,
        has_condition: true,
        ..HubEntry::default()
    }
}

pub(super) fn kept_object() -> ObjectView {
    ObjectView {
        kind: HubKind::BackupEntry,
        name: NAME.to_owned(),
        state: MemberState::Live { let_go: false },
        is_ours: true,
        hub_uid: Some("uid".to_owned()),
        bucket: Some("b".to_owned()),
        wanted: ObjectDrift::Same,
        credentials: CredentialsState::Known,
        copy: CopyState::Current,
        is_permitted: false,
        is_permit_fresh: false,
    }
}

/// An entry of this cluster, as it should be.
pub(super) fn live() -> Scene {
    Scene {
        hub: Some(hub_entry(HubState { is_ours: true, holder: AssignedSeed::Us, ..HubState::default() })),
        bucket: Some(BucketOfEntry { is_made: true }),
        object: kept_object(),
        locations: vec![own_location(false)],
        location_credentials: LocationCredentials::Copy(CopyState::Current),
        location_secret: Some(Some("uid".to_owned())),
        ..Scene::default()
    }
}

fn holders() -> impl Strategy<Value = AssignedSeed> {
    prop_oneof![Just(AssignedSeed::Nobody), Just(AssignedSeed::Us), Just(AssignedSeed::Another)]
}

fn hub_states() -> impl Strategy<Value = HubState> {
    (any::<bool>(), holders(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(is_ours, holder, is_deleted, is_released, is_removed)| HubState {
            is_ours,
            holder,
            is_deleted,
            is_released: is_deleted && is_released,
            is_removed,
        },
    )
}

fn hub_entries() -> impl Strategy<Value = Option<HubEntry>> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let uid = prop_oneof![3 => Just("uid"), 1 => Just("other")];
    let bucket = prop_oneof![1 => Just(None), 4 => Just(Some("b")), 1 => Just(Some("other"))];
    prop::option::weighted(
        0.9,
        (hub_states(), flags, uid, bucket).prop_map(|(state, flags, uid, bucket)| HubEntry {
            object: HubObject { uid: uid.to_owned(), state, forgets_data: flags.0 },
            bucket: bucket.map(str::to_owned),
            is_made: flags.1,
            was_made: flags.1 || flags.2,
            is_answered: flags.3,
            is_current: flags.4,
            has_condition: flags.5,
            ..hub_entry(state)
        }),
    )
}

fn member_states() -> impl Strategy<Value = MemberState> {
    prop_oneof![
        Just(MemberState::Absent),
        any::<bool>().prop_map(|let_go| MemberState::Live { let_go }),
        any::<bool>().prop_map(|let_go| MemberState::Going { let_go }),
        any::<bool>().prop_map(|gone| MemberState::Done { gone }),
        Just(MemberState::GivenUp),
    ]
}

fn objects() -> impl Strategy<Value = ObjectView> {
    let wanted = prop_oneof![
        Just(ObjectDrift::Unknown),
        Just(ObjectDrift::Same),
        any::<bool>().prop_map(|in_marks| ObjectDrift::Different { in_marks }),
    ];
    let credentials = prop_oneof![
        1 => Just(CredentialsState::NoBucket),
        1 => Just(CredentialsState::Unanswered),
        1 => Just(CredentialsState::Missing(StatusProblem::of_configuration("none"))),
        3 => Just(CredentialsState::Known),
    ];
    let copy = prop_oneof![Just(CopyState::Absent), Just(CopyState::Stale), Just(CopyState::Current)];
    let uid = prop_oneof![1 => Just(None), 1 => Just(Some("other")), 3 => Just(Some("uid"))];
    let bucket = prop_oneof![4 => Just("b"), 1 => Just("other")];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.9));
    (member_states(), wanted, credentials, copy, uid, bucket, flags).prop_map(
        |(state, wanted, credentials, copy, uid, bucket, flags)| ObjectView {
            state,
            wanted,
            credentials,
            copy,
            hub_uid: uid.map(str::to_owned),
            bucket: Some(bucket.to_owned()),
            is_permitted: flags.0,
            is_permit_fresh: flags.0 && flags.1,
            is_ours: flags.2,
            ..kept_object()
        },
    )
}

fn locations() -> impl Strategy<Value = Vec<MemberLocation>> {
    let one = (any::<bool>(), any::<bool>(), prop::option::of(Just("other")), 0..3usize).prop_map(
        |(is_read_only, is_own, uid, led)| {
            let mut one = own_location(is_read_only);
            if !is_own {
                one.location.name = ["old", NAME, "stray"][led].to_owned();
                one.location.entry = (led == 0).then(|| NAME.to_owned());
                one.is_ours = false;
            }
            if let Some(uid) = uid {
                one.hub_uid = Some(uid.to_owned());
            }
            one
        },
    );
    prop::collection::vec(one, 0..4).prop_map(|mut all| {
        all.sort_by(|a, b| a.location.name.cmp(&b.location.name));
        all.dedup_by(|a, b| a.location.name == b.location.name);
        all
    })
}

pub(super) fn scenes() -> impl Strategy<Value = Scene> {
    let quiet = prop::option::of(
        (0..60u64)
            .prop_map(|seconds| Quiesced { lasted: Duration::from_secs(seconds), migrations: Vec::new() }),
    );
    let keys = prop_oneof![
        Just(LocationCredentials::NotNeeded),
        Just(LocationCredentials::Faulty("faulty".to_owned())),
        Just(LocationCredentials::Copy(CopyState::Absent)),
        Just(LocationCredentials::Copy(CopyState::Current)),
    ];
    let secret = prop::option::of(prop::option::of(Just("other".to_owned())));
    let ended = prop::option::of(Just("other".to_owned()));
    let bucket = prop::option::weighted(0.8, any::<bool>().prop_map(|is_made| BucketOfEntry { is_made }));
    let rest = (quiet, keys, secret, ended, bucket, any::<bool>());
    (hub_entries(), objects(), locations(), rest).prop_map(|(hub, object, locations, rest)| Scene {
        hub,
        object,
        locations,
        quiet: rest.0,
        location_credentials: rest.1,
        location_secret: rest.2,
        ended: rest.3.into_iter().collect(),
        bucket: rest.4,
        own: OwnLocation { differs: rest.5 },
        facts: Facts::default(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Each step is taken once at most, so a pass ends whatever there is.
    #[test]
    fn a_pass_ends_and_takes_each_step_once(mut scene in scenes()) {
        let (steps, _) = scene.pass();
        let all: BTreeSet<&MemberStep> = steps.iter().collect();
        prop_assert_eq!(all.len(), steps.len(), "{:?}", steps);
    }

    /// Only the cluster that the hub names opens a location, or makes one that is open.
    #[test]
    fn only_in_its_live_phase_is_a_location_opened(mut scene in scenes()) {
        let phase = scene.view().phase();
        let (steps, _) = scene.pass();
        for step in steps {
            if let MemberStep::Location(
                LocationStep::SetAccess(_, LocationAccess::ReadWrite) | LocationStep::Apply(LocationAccess::ReadWrite),
            ) = step
            {
                prop_assert_eq!(phase, Some(EntryPhase::Live));
            }
        }
    }

    /// Data goes when the hub itself has said so a moment ago, when nothing writes there any more,
    /// and after the last step that could still fail.
    #[test]
    fn data_is_removed_only_by_the_hubs_word(mut scene in scenes()) {
        let before = scene.clone();
        let (steps, _) = scene.pass();
        let deletes = steps.iter().position(|step| *step == MemberStep::Object(ObjectStep::Delete));
        if let Some(at) = deletes.filter(|_| before.object.state == (MemberState::Live { let_go: false })) {
            let hub = before.hub.as_ref().unwrap();
            prop_assert!(hub.object.state.is_released && hub.object.state.holder == AssignedSeed::Us);
            prop_assert!(before.object.is_permit_fresh || steps[..at].contains(&MemberStep::AskHub));
            prop_assert!(steps[..at].contains(&MemberStep::Object(ObjectStep::Confirm)));
            prop_assert!(before.object.is_ours);
            let is_open = |one: &MemberLocation| !one.location.is_read_only;
            let view = before.view();
            for one in view.of_entry().filter(|one| is_open(one)) {
                let deleted = MemberStep::Location(LocationStep::Delete(one.location.name.clone()));
                prop_assert!(steps[..at].contains(&deleted), "{:?}", steps);
            }
        }
    }

    /// A foreign object, or a foreign location that nobody led into the directory, is never
    /// touched.
    #[test]
    fn nothing_foreign_is_touched(mut scene in scenes()) {
        let before = scene.clone();
        let view = before.view();
        let of_entry: BTreeSet<&str> = view.of_entry().map(|one| one.location.name.as_str()).collect();
        let (steps, _) = scene.pass();
        for step in &steps {
            match step {
                MemberStep::Object(_) => prop_assert!(before.object.is_ours || !before.object.is_found(), "{:?}", step),
                MemberStep::Location(LocationStep::SetAccess(name, _) | LocationStep::Delete(name)) => {
                    prop_assert!(of_entry.contains(name.as_str()), "{:?}", step);
                }
                MemberStep::Location(LocationStep::Apply(_)) => {
                    let found = view.named(NAME);
                    prop_assert!(found.is_none_or(|found| found.is_ours), "{:?}", step);
                }
                _ => {}
            }
        }
    }
}
