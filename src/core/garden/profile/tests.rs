use proptest::prelude::*;

use super::*;

fn secret() -> Option<SecretRef> {
    Some(SecretRef { name: "backup-operator".to_owned(), namespace: "garden".to_owned() })
}

/// An empty word is an absent one.
fn profile(provider: &str, regions: &[&str], backup: Option<(&str, &str)>) -> Profile {
    let word = |word: &str| (!word.is_empty()).then(|| word.to_owned());
    Profile {
        name: "profile".to_owned(),
        provider: provider.to_owned(),
        regions: regions.iter().map(|region| (*region).to_owned()).collect(),
        backup: backup.map(|(provider, region)| ProfileBackupSettings {
            provider: word(provider),
            region: word(region),
            secret: secret(),
            config: StoreSettings::default(),
        }),
        allows_cross_provider: false,
        same_store: None,
    }
}

fn seeds(regions: &[&str]) -> Vec<Seed> {
    let of = |(number, region): (usize, &&str)| Seed {
        name: format!("seed-{number}"),
        profile: "profile".to_owned(),
        region: (*region).to_owned(),
        reaches: None,
    };
    regions.iter().enumerate().map(of).collect()
}

/// The places, as `provider region`; and the fields at fault.
fn outcome(profile: &Profile, regions: &[&str]) -> Result<Vec<String>, Vec<String>> {
    match wanted(profile, &seeds(regions)) {
        Ok(wanted) => Ok(wanted.stores.iter().map(|store| store.place.to_string()).collect()),
        Err(found) => Err(found.iter().map(|one| one.field.to_string()).collect()),
    }
}

#[test]
fn every_row_of_the_decision_table() {
    let packet = |backup| profile("packet", &["ewr1", "ams1"], backup);
    let aws = |backup| profile("aws", &["eu-west-1", "us-east-1"], backup);
    for (what, profile, seeds, expected) in [
        ("no backup", packet(None), &["ewr1"][..], Ok(&[][..])),
        ("own provider, a region", packet(Some(("packet", "ewr1"))), &["ewr1", "ams1"], Ok(&["packet ewr1"])),
        ("the same, no seed yet", packet(Some(("packet", "ewr1"))), &[], Ok(&[])),
        (
            "another provider, a region",
            packet(Some(("aws", "eu-west-1"))),
            &["ewr1", "ams1"],
            Ok(&["aws eu-west-1"]),
        ),
        ("the same, no seed yet", packet(Some(("aws", "eu-west-1"))), &[], Ok(&[])),
        ("no provider, a region", packet(Some(("", "ewr1"))), &["ams1"], Ok(&["packet ewr1"])),
        ("no provider, no region", packet(Some(("", ""))), &["ams1", "ams1"], Ok(&["packet ams1"])),
        ("own provider, no region, no seed", aws(Some(("aws", ""))), &[], Ok(&[])),
        ("one region", aws(Some(("aws", ""))), &["eu-west-1"; 3], Ok(&["aws eu-west-1"])),
        (
            "both",
            aws(Some(("aws", ""))),
            &["eu-west-1", "us-east-1"],
            Ok(&["aws eu-west-1", "aws us-east-1"]),
        ),
        ("a stranger", aws(Some(("aws", ""))), &["eu-west-1", "ap-south-1"], Ok(&["aws eu-west-1"])),
        (
            "another provider, no region",
            packet(Some(("aws", ""))),
            &["ewr1"],
            Err(&["spec.backup.region"][..]),
        ),
        ("no regions", profile("aws", &[], Some(("aws", ""))), &["eu-west-1"], Ok(&[])),
        ("a region of its own", aws(Some(("aws", "ap-south-1"))), &["eu-west-1"], Ok(&["aws ap-south-1"])),
        ("a provider that nobody serves", packet(Some(("swift", "x"))), &["ewr1"], Ok(&["swift x"])),
    ] {
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            outcome(&profile, seeds),
            expected.map(text).map_err(|fields: &[&str]| text(fields)),
            "{what}"
        );
    }
}

#[test]
fn every_fault_is_told_at_once() {
    let mut wrong = profile("packet", &[], Some(("aws", "")));
    let fields = |profile: &Profile| outcome(profile, &[]).err().unwrap_or_default();
    wrong.backup.as_mut().unwrap().secret = None;
    assert_eq!(fields(&wrong), ["spec.backup.region", "spec.backup.secretRef"]);
    wrong.backup.as_mut().unwrap().secret = Some(SecretRef::default());
    assert_eq!(
        fields(&wrong),
        ["spec.backup.region", "spec.backup.secretRef.name", "spec.backup.secretRef.namespace"]
    );
    wrong.provider.clear();
    assert_eq!(fields(&wrong).first().map(String::as_str), Some("spec.provider"));
}

#[test]
fn who_opts_out_gets_no_bucket_and_no_refusal() {
    let mut odd = profile("packet", &["ewr1"], Some(("aws", "")));
    odd.allows_cross_provider = true;
    let wanted = wanted(&odd, &seeds(&["ewr1"])).unwrap();
    assert_eq!((wanted.stores.len(), wanted.stranded), (0, vec!["seed-0".to_owned()]));
}

#[test]
fn a_seed_outside_the_regions_is_told_of_and_one_of_another_profile_is_not() {
    let aws = profile("aws", &["eu-west-1"], Some(("", "")));
    let mut all = seeds(&["eu-west-1", "ap-south-1", "eu-west-1"]);
    all[2].profile = "other".to_owned();
    all[2].region = "nowhere".to_owned();
    assert_eq!(wanted(&aws, &all).unwrap().stranded, ["seed-1"]);
}

#[test]
fn a_seed_reaches_a_provider_or_one_region_of_it() {
    let reaches = |list: &[&str], provider: &str, region: &str| {
        let reaches = Some(list.iter().map(|one| (*one).to_owned()).collect());
        let place = ProviderRegion { provider: provider.to_owned(), region: region.to_owned() };
        Seed { reaches, ..Seed::default() }.reaches(&place)
    };
    assert!(reaches(&["aws"], "aws", "x") && reaches(&["gcp", "aws/x"], "aws", "x"));
    assert!(reaches(&["berth.dev/filesystem"], "berth.dev/filesystem", "x"));
    assert!(!reaches(&[], "aws", "x") && !reaches(&["aws/y"], "aws", "x") && !reaches(&["aw"], "aws", "x"));
    assert!(Seed::default().reaches(&ProviderRegion::default()));
}

fn words(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(of).prop_map(str::to_owned)
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let backup = (words(&["", "aws", "packet"]), words(&["", "r1", "r9"])).prop_map(|(provider, region)| {
        ProfileBackupSettings {
            provider: Some(provider),
            region: Some(region),
            secret: secret(),
            config: StoreSettings::default(),
        }
    });
    let regions = prop::collection::vec(words(&["r1", "r2", "r3"]), 0..4);
    (words(&["aws", "packet"]), regions, prop::option::of(backup), any::<bool>()).prop_map(
        |(provider, regions, backup, allows_cross_provider)| Profile {
            name: "profile".to_owned(),
            provider,
            regions,
            backup,
            allows_cross_provider,
            same_store: None,
        },
    )
}

proptest! {
    /// As many buckets as there are regions with seeds, at most; none without a seed, none
    /// elsewhere; and it is all the same in which order seeds came.
    #[test]
    fn wanted_is_lazy_minimal_and_a_function_of_the_set(
        profile in any_profile(),
        regions in prop::collection::vec(words(&["r1", "r2", "r3", "r4"]), 0..8),
    ) {
        let regions: Vec<&str> = regions.iter().map(String::as_str).collect();
        let seeds = seeds(&regions);
        let Ok(found) = wanted(&profile, &seeds) else {
            prop_assert!(profile.is_cross_provider_without_region() && !profile.allows_cross_provider);
            return Ok(());
        };
        let distinct: BTreeSet<&str> = regions.iter().copied().collect();
        prop_assert!(found.stores.len() <= distinct.len());
        if profile.backup_region().is_some() {
            prop_assert_eq!(found.stores.len(), usize::from(!seeds.is_empty()));
            prop_assert!(found.stranded.is_empty());
        } else {
            for store in &found.stores {
                prop_assert!(distinct.contains(store.place.region.as_str()));
                prop_assert!(profile.regions.contains(&store.place.region));
                prop_assert_eq!(&store.place.provider, &profile.provider);
            }
        }
        let reversed: Vec<Seed> = seeds.iter().rev().cloned().collect();
        prop_assert_eq!(wanted(&profile, &reversed).map(|wanted| wanted.stores), Ok(found.stores.clone()));
        // Each seed has its bucket among them, or is told of.
        if profile.backup.is_some() {
            for seed in &seeds {
                let place = profile.place(&seed.region);
                let has = place.is_some_and(|place| found.stores.iter().any(|store| store.place == place));
                prop_assert!(has != found.stranded.contains(&seed.name));
            }
        }
    }
}
