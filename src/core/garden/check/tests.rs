use super::*;
use crate::bucket::{BucketStatus, GardenBucket};
use crate::entry::GardenEntry;
use crate::operation::{OperationReport, OperationState, OperationType};
use crate::profile::{Profile, ProfileBackupSettings, Seed};
use crate::store::{
    AWS, GCP, LocationKeyMode, ObjectLockSettings, ProviderRegion, RetentionMode, Store, StoreSettings,
};
use crate::view::ExtensionObject;

mod entries;
mod members;

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn secret() -> Option<SecretRef> {
    Some(SecretRef { name: "operator".to_owned(), namespace: "garden".to_owned() })
}

fn place(provider: &str, region: &str) -> ProviderRegion {
    ProviderRegion { provider: provider.to_owned(), region: region.to_owned() }
}

/// Clusters at `aws`, each backed up in its own region, unless one is named.
fn profile(name: &str, region: &str) -> Profile {
    Profile {
        name: name.to_owned(),
        provider: "aws".to_owned(),
        regions: vec!["eu".to_owned(), "us".to_owned()],
        backup: Some(ProfileBackupSettings {
            region: text(region),
            secret: secret(),
            config: StoreSettings {
                location_keys: Some(LocationKeyMode::Shared),
                ..StoreSettings::default()
            },
            ..ProfileBackupSettings::default()
        }),
        allows_cross_provider: false,
        same_store: None,
    }
}

fn seed(name: &str, profile: &str, region: &str) -> Seed {
    Seed { name: name.to_owned(), profile: profile.to_owned(), region: region.to_owned(), reaches: None }
}

fn bucket(name: &str, region: &str) -> GardenBucket {
    GardenBucket {
        name: name.to_owned(),
        store: Store { place: place("aws", region), secret: secret().unwrap(), ..Store::default() },
        names_secret: true,
        profile: text("main"),
        ..GardenBucket::default()
    }
}

fn entry(name: &str, seed: &str, bucket: &str) -> GardenEntry {
    GardenEntry {
        namespace: "garden-dev".to_owned(),
        name: name.to_owned(),
        seed: seed.to_owned(),
        bucket: text(bucket),
        ..GardenEntry::default()
    }
}

/// Two profiles, a seed in each region, a bucket with two entries in it, and one that is full.
fn view() -> GardenView {
    let mut view = GardenView { garden_namespace: "garden".to_owned(), ..GardenView::default() };
    for one in [profile("main", ""), profile("other", "eu"), Profile { backup: None, ..profile("none", "") }]
    {
        view.profiles.insert(one.name.clone(), one);
    }
    for one in [
        seed("eu-1", "main", "eu"),
        seed("eu-2", "main", "eu"),
        seed("us-1", "main", "us"),
        seed("far", "main", "far"),
        seed("foreign", "other", "eu"),
        seed("bare", "none", "eu"),
    ] {
        view.seeds.insert(one.name.clone(), one);
    }
    let full = GardenBucket {
        status: BucketStatus { limit: Some(1), allocated: vec!["x".to_owned()], ..BucketStatus::default() },
        ..bucket("main-eu-2", "eu")
    };
    let failed = OperationReport {
        kind: OperationType::Create,
        state: OperationState::Failed,
        description: String::new(),
    };
    for one in [
        bucket("main-eu", "eu"),
        full,
        GardenBucket { is_deleted: true, ..bucket("going", "eu") },
        GardenBucket {
            status: BucketStatus { operation: Some(failed), ..BucketStatus::default() },
            ..bucket("failed", "eu")
        },
        GardenBucket { profile: None, ..bucket("made-by-hand", "eu") },
    ] {
        view.buckets.insert(one.name.clone(), one);
    }
    for one in [entry("a", "eu-1", "main-eu"), entry("b", "eu-2", "main-eu")] {
        view.entries.insert((one.namespace.clone(), one.name.clone()), one);
    }
    view
}

fn there() -> Option<SecretLookup> {
    Some(SecretLookup::Found(secret_keys(AWS).iter().map(|key| (*key).to_owned()).collect()))
}

/// The fields at fault; then, after a bar, how many warnings there are.
fn said(found: &AdmissionFindings) -> String {
    let fields: Vec<String> = found.violations().iter().map(|one| one.field.to_string()).collect();
    format!("{} | {}", fields.join(" "), found.warnings.len()).trim_start().to_owned()
}

fn message(found: &AdmissionFindings) -> String {
    format!("{} {}", found.violations(), found.warnings.join("; "))
}

#[test]
fn a_secret_is_where_it_can_be_read_and_there_and_whole() {
    let judge = |namespace: &str, credentials: Option<SecretLookup>| {
        let mut profile = profile("main", "");
        profile.backup.as_mut().unwrap().secret.as_mut().unwrap().namespace = namespace.to_owned();
        profile::check(None, &profile, credentials.as_ref(), &view())
    };
    assert_eq!(said(&judge("garden", there())), "| 0");
    assert_eq!(said(&judge("elsewhere", there())), "spec.backup.secretRef.namespace | 0");
    assert_eq!(said(&judge("garden", Some(SecretLookup::Missing))), "spec.backup.secretRef.name | 0");
    let unknown = judge("garden", Some(SecretLookup::Unknown("timed out".to_owned())));
    assert_eq!(said(&unknown), "| 1");
    let half = judge("garden", Some(SecretLookup::Found(vec!["accessKeyID".to_owned()])));
    assert!(message(&half).ends_with("Secret garden/operator lacks secretAccessKey"), "{}", message(&half));
}

#[test]
fn a_profile_is_told_what_comes_of_it() {
    let judge = |change: &dyn Fn(&mut Profile)| {
        let mut new = Profile { name: "new".to_owned(), ..profile("new", "") };
        change(&mut new);
        said(&profile::check(None, &new, there().as_ref(), &view()))
    };
    let backup = |profile: &mut Profile, provider: &str, region: &str| {
        let backup = profile.backup.as_mut().unwrap();
        (backup.provider, backup.region) = (text(provider), text(region));
    };
    for (what, change, expected) in [
        ("as it is", &(|_: &mut Profile| {}) as &dyn Fn(&mut Profile), "| 0"),
        ("no regions", &|p| p.regions.clear(), "| 1"),
        ("a region of its own", &|p| backup(p, "", "ap"), "| 1"),
        (
            "another provider's region",
            &|p| backup(p, "berth.dev/filesystem", "ap"),
            "spec.backup.providerConfig.path | 0",
        ),
        ("a provider that berth does not serve", &|p| backup(p, "swift", "x"), "| 1"),
        ("another provider, no region", &|p| backup(p, "swift", ""), "spec.backup.region | 1"),
        (
            "a region twice, and one without a name",
            &|p| p.regions = ["a", "", "a"].map(str::to_owned).into(),
            "spec.constraints.regions[1] spec.constraints.regions[2] | 0",
        ),
        (
            "everything",
            &|p| {
                p.regions = vec![String::new()];
                backup(p, "berth.dev/filesystem", "");
                p.backup.as_mut().unwrap().secret = None;
            },
            "spec.backup.region spec.backup.secretRef spec.constraints.regions[0] spec.backup.providerConfig.path | 0",
        ),
    ] {
        assert_eq!(judge(change), expected, "{what}");
    }
    let odd = judge(&|p| {
        backup(p, "swift", "");
        p.allows_cross_provider = true;
    });
    assert_eq!(odd, "| 2", "let in, and told");
}

#[test]
fn a_profile_cannot_leave_its_entries_behind() {
    let judge = |change: &dyn Fn(&mut Profile)| {
        let old = profile("main", "");
        let mut new = old.clone();
        change(&mut new);
        profile::check(Some(&old), &new, there().as_ref(), &view())
    };
    for (what, change, expected) in [
        ("the backup goes", &(|p: &mut Profile| p.backup = None) as &dyn Fn(&mut Profile), "spec.backup | 0"),
        ("another region", &|p| p.backup.as_mut().unwrap().region = text("us"), "spec.backup.region | 0"),
        ("the same region, in words", &|p| p.backup.as_mut().unwrap().region = text("eu"), "| 0"),
        ("the same provider, in words", &|p| p.backup.as_mut().unwrap().provider = text("aws"), "| 0"),
        (
            "another provider",
            &|p| {
                let backup = p.backup.as_mut().unwrap();
                (backup.provider, backup.region) = (text("packet"), text("eu"));
            },
            "spec.backup.provider | 1",
        ),
        ("another infrastructure", &|p| p.provider = "packet".to_owned(), "spec.provider | 1"),
        ("its region goes", &|p| p.regions = vec!["us".to_owned()], "spec.constraints.regions | 0"),
        ("a region that nobody is in goes", &|p| p.regions = vec!["eu".to_owned()], "| 0"),
        (
            "other credentials",
            &|p| p.backup.as_mut().unwrap().secret.as_mut().unwrap().name = "b".to_owned(),
            "| 0",
        ),
    ] {
        let found = judge(change);
        assert_eq!(said(&found), expected, "{what}");
        assert!(found.faults.is_empty(), "{what}");
    }
    let found = judge(&|p| p.backup = None);
    assert_eq!(
        found.violations().to_string(),
        "spec.backup: cannot change, for it is needed by 2 entries (a, b) in 1 bucket: migrate or delete them first"
    );
    let unused = profile("other", "eu");
    let gone = Profile { backup: None, ..unused.clone() };
    assert_eq!(said(&profile::check(Some(&unused), &gone, None, &view())), "| 0", "nobody depends on it");
}

#[test]
fn a_lock_cannot_be_weakened_by_the_profile_or_the_bucket() {
    let locked = |days: u32| StoreSettings {
        object_lock: Some(ObjectLockSettings { mode: RetentionMode::Compliance, retention_days: days }),
        location_keys: Some(LocationKeyMode::Shared),
        ..StoreSettings::default()
    };
    let profile_with = |days| {
        let mut one = profile("main", "");
        one.backup.as_mut().unwrap().config = locked(days);
        one
    };
    let found = profile::check(Some(&profile_with(9)), &profile_with(8), None, &view());
    assert_eq!(said(&found), "spec.backup.providerConfig.objectLock.retentionDays | 0");
    let with = |days| {
        let mut bucket = bucket("main-eu", "eu");
        bucket.store.config = locked(days);
        bucket
    };
    let found = bucket::check(Some(&with(9)), &with(8), None, &view());
    assert_eq!(said(&found), "spec.providerConfig.objectLock.retentionDays | 0");
    assert_eq!(said(&bucket::check(Some(&with(8)), &with(9), None, &view())), "| 0");
}

#[test]
fn a_new_profile_says_how_locations_come_by_their_keys() {
    let said_so = Profile { provider: GCP.to_owned(), ..profile("other", "") };
    let there = || Some(SecretLookup::Found(secret_keys(GCP).iter().map(|key| (*key).to_owned()).collect()));
    let mut unsaid = said_so.clone();
    unsaid.backup.as_mut().unwrap().config.location_keys = None;
    let bare = Profile { backup: None, ..said_so.clone() };
    let field = "spec.backup.providerConfig.locationKeys | 0";
    for (what, old, new, expected) in [
        ("made anew", None, &unsaid, field),
        ("with its first backup", Some(&bare), &unsaid, field),
        ("taken back", Some(&said_so), &unsaid, field),
        ("from before it was asked", Some(&unsaid), &unsaid, "| 1"),
        ("said at last", Some(&unsaid), &said_so, "| 0"),
        ("without a backup", None, &bare, "| 0"),
    ] {
        assert_eq!(said(&profile::check(old, new, there().as_ref(), &view())), expected, "{what}");
    }
    let restored = profile::check(None, &unsaid, there().as_ref(), &view()).of_a_restore();
    assert_eq!(said(&restored), "| 1", "let in as it was, and told");
    let message = message(&profile::check(None, &unsaid, there().as_ref(), &view()));
    assert!(message.contains("locationKeys: required: \"scoped\" gives each cluster keys"), "{message}");

    // Of what is served by somebody else nothing is known: it is told, and left to them.
    let mut elsewhere = profile("other", "");
    elsewhere.provider = "packet".to_owned();
    elsewhere.backup.as_mut().unwrap().config.location_keys = None;
    let found = profile::check(None, &elsewhere, self::there().as_ref(), &view());
    assert_eq!(said(&found), "| 2");
    assert!(found.warnings.iter().any(|one| one.contains("counts as \"shared\"")), "{:?}", found.warnings);
}

#[test]
fn a_profile_that_entries_depend_on_is_not_deleted() {
    assert_eq!(said(&profile::check_delete("main", &view())), "metadata.deletionTimestamp | 1");
    assert_eq!(said(&profile::check_delete("other", &view())), "| 1", "a seed is left, which is told");
    assert_eq!(said(&profile::check_delete("unknown", &view())), "| 0");
    let mut orphaned = view();
    orphaned.seeds.clear();
    assert_eq!(
        said(&profile::check_delete("main", &orphaned)),
        "metadata.deletionTimestamp | 0",
        "by its bucket"
    );
}

#[test]
fn a_seed_belongs_to_a_profile_and_stays_where_its_backups_are() {
    let judge = |old: Option<&Seed>, new: &Seed| said(&seed::check(old, new, &view()));
    assert_eq!(judge(None, &seed("new", "main", "eu")), "| 0");
    assert_eq!(judge(None, &seed("new", "", "")), "spec.cloudProfileName spec.region | 0");
    assert_eq!(judge(None, &seed("new", "nothing", "eu")), "spec.cloudProfileName | 0");
    assert_eq!(judge(None, &seed("new", "main", "far")), "| 1", "nowhere to back up");
    assert_eq!(judge(None, &seed("new", "none", "far")), "| 0", "without backups, on purpose");
    let reaching = |reaches: &[&str]| Seed {
        reaches: Some(reaches.iter().map(|one| (*one).to_owned()).collect()),
        ..seed("new", "main", "eu")
    };
    assert_eq!(judge(None, &reaching(&["aws/us"])), "| 1", "not its own store");
    assert_eq!(judge(None, &reaching(&["aws/eu"])), "| 0");
    assert_eq!(judge(None, &reaching(&["", "a b"])), "spec.reaches[0] spec.reaches[1] | 0");
    let old = seed("eu-1", "main", "eu");
    assert_eq!(judge(Some(&old), &seed("eu-1", "main", "us")), "spec.region | 0");
    assert_eq!(judge(Some(&old), &seed("eu-1", "none", "eu")), "spec.cloudProfileName | 0");
    assert_eq!(judge(Some(&old), &seed("eu-1", "other", "eu")), "| 0", "the same place");
    let idle = seed("us-1", "main", "us");
    assert_eq!(judge(Some(&idle), &seed("us-1", "main", "eu")), "| 0", "it has no entries");
    assert_eq!(said(&seed::check_delete("eu-1", &view())), "| 1");
    assert_eq!(said(&seed::check_delete("us-1", &view())), "| 0");
}

#[test]
fn a_bucket_stays_what_it_is() {
    let judge = |old: Option<&GardenBucket>, new: &GardenBucket| {
        said(&bucket::check(old, new, there().as_ref(), &view()))
    };
    let good = bucket("new-eu", "eu");
    assert_eq!(judge(None, &good), "| 0");
    for (name, legal) in [
        ("abc", true),
        (&"a".repeat(63), true),
        ("a-1", true),
        ("ab", false),
        (&"a".repeat(64), false),
        ("a.b", false),
        ("-ab", false),
        ("ab-", false),
        ("aBc", false),
    ] {
        let expected = if legal { "| 0" } else { "metadata.name | 0" };
        assert_eq!(judge(None, &bucket(name, "eu")), expected, "{name}");
    }
    // The Secret that is there has keys for S3.
    for (provider, name, expected) in [
        ("azure", "a--b", "metadata.name | 1"),
        ("azure", "a-b", "| 1"),
        ("gcp", "a--b", "| 1"),
        ("gcp", "goog-a", "metadata.name | 1"),
    ] {
        let mut new = GardenBucket { profile: None, ..bucket(name, "eu") };
        new.store.place = place(provider, "eu");
        assert_eq!(judge(None, &new), expected, "{provider} {name}");
    }
    assert_eq!(judge(None, &bucket("", "eu")), "| 0", "the API server has not named it yet");
    let empty = GardenBucket { name: "x".to_owned(), ..GardenBucket::default() };
    assert_eq!(judge(None, &empty), "metadata.name spec.provider spec.region spec.secretRef | 0");
    let mut moved = GardenBucket { profile: text("other"), ..good.clone() };
    moved.store.place = place("packet", "us");
    assert_eq!(
        judge(Some(&good), &moved),
        "spec.provider spec.region metadata.annotations[garden.berth.dev/cloud-profile] | 1"
    );
    assert_eq!(
        judge(Some(&GardenBucket { profile: None, ..good.clone() }), &good),
        "| 0",
        "it gets an owner"
    );
    let elsewhere = StoreSettings { endpoint: text("http://127.0.0.1:1"), ..StoreSettings::default() };
    let old = bucket("main-eu", "eu");
    let mut moved = old.clone();
    moved.store.config = elsewhere;
    assert_eq!(judge(Some(&old), &moved), "| 1", "looked for elsewhere");
    assert_eq!(said(&bucket::check_delete("main-eu", &view())), "metadata.deletionTimestamp | 0");
    assert_eq!(said(&bucket::check_delete("main-eu-2", &view())), "| 0");
    let found = bucket::check_delete("main-eu", &view());
    assert_eq!(
        found.violations().to_string(),
        "metadata.deletionTimestamp: holds 2 entries (a, b): migrate or delete them first"
    );
}

#[test]
fn filled_buckets_are_not_looked_for_elsewhere() {
    let at = |endpoint: &str| {
        let mut one = profile("main", "");
        one.backup.as_mut().unwrap().config.endpoint = text(endpoint);
        one
    };
    let judge = |new: &Profile, made: bool| {
        let mut view = view();
        view.buckets.get_mut("main-eu").unwrap().is_made = made;
        profile::check(Some(&at("https://store")), new, there().as_ref(), &view)
    };
    let refused = judge(&at("https://other"), true);
    assert_eq!(
        refused.violations().to_string(),
        "spec.backup.providerConfig.endpoint: cannot change while 1 bucket (main-eu) are there, which would be looked for in \
         another store: make another CloudProfile for that; if it is the same store by another address, annotate \
         garden.berth.dev/same-store=https://other"
    );
    assert!(refused.faults.is_empty());
    assert_eq!(said(&judge(&at("https://other"), false)), "| 0", "nothing was made there yet");
    assert_eq!(said(&judge(&at("https://store/"), true)), "| 0", "written otherwise");
    assert_eq!(said(&judge(&at(""), true)), "spec.backup.providerConfig.endpoint | 0");
    let confirmed = |what: &str| Profile { same_store: text(what), ..at("https://other") };
    assert_eq!(said(&judge(&confirmed("https://other/"), true)), "| 1");
    let of_before = said(&judge(&confirmed("https://store"), true));
    assert_eq!(of_before, "spec.backup.providerConfig.endpoint | 0", "it is about one address");
    // Other settings come through.
    let mut trusted = at("https://store");
    trusted.backup.as_mut().unwrap().config.insecure_skip_tls_verify = Some(false);
    assert_eq!(said(&judge(&trusted, true)), "| 0");
}

#[test]
fn force_says_why_and_does_not_shorten_a_lock() {
    let mut locked = view();
    let lock = ObjectLockSettings { mode: RetentionMode::Governance, retention_days: 30 };
    locked.buckets.get_mut("main-eu").unwrap().store.config.object_lock = Some(lock);
    let old = entry("a", "eu-1", "main-eu");
    let judge = |reason: &str, view: &GardenView| {
        let new = GardenEntry { force_deletion: Some(reason.to_owned()), ..old.clone() };
        said(&entry::check(Some(&old), &new, false, view))
    };
    assert_eq!(judge("customer left", &view()), "| 0");
    for reason in ["", " ", "true"] {
        assert_eq!(judge(reason, &view()), "metadata.annotations[garden.berth.dev/force-deletion] | 0");
    }
    assert_eq!(judge("customer left", &locked), "| 1");
}

#[test]
fn a_bucket_is_made_for_a_profile_that_backs_up_there() {
    let of = |owner: &str, provider: &str| {
        let mut bucket = GardenBucket { profile: text(owner), ..bucket("new-eu", "eu") };
        bucket.store.place = place(provider, "eu");
        bucket
    };
    let judge =
        |old: Option<&GardenBucket>, new: &GardenBucket| said(&bucket::check(old, new, None, &view()));
    let refused = "metadata.annotations[garden.berth.dev/cloud-profile] | 0";
    for (owner, provider, expected) in [
        ("main", "aws", "| 0"),
        ("", "gcp", "| 0"),
        ("main", "gcp", refused),
        ("nobody", "aws", refused),
        ("none", "aws", refused),
    ] {
        let new = of(owner, provider);
        assert_eq!(judge(None, &new), expected, "{owner} {provider}");
        // Made by hand, and given to it later.
        assert_eq!(judge(Some(&of("", provider)), &new), expected, "{owner} {provider}");
        assert_eq!(judge(Some(&new), &new), "| 0", "it was let in once");
    }
    let found = bucket::check(None, &of("nobody", "aws"), None, &view());
    assert!(found.faults.is_empty(), "it may come later");
    assert_eq!(said(&found.of_a_restore()), "| 1");
    let moved = said(&bucket::check(Some(&of("main", "aws")), &of("nobody", "aws"), None, &view()));
    assert_eq!(moved, refused, "once");
}

#[test]
fn what_is_forgotten_says_why() {
    let of_entry = |old: &str, new: &str| {
        let with = |why: &str| GardenEntry { forget_data: text(why), ..entry("a", "eu-1", "main-eu") };
        said(&entry::check(Some(&with(old)), &with(new), false, &view()))
    };
    let of_bucket = |old: &str, new: &str| {
        let with = |why: &str| GardenBucket { forget_data: text(why), ..bucket("main-eu", "eu") };
        said(&bucket::check(Some(&with(old)), &with(new), there().as_ref(), &view()))
    };
    let expected = "metadata.annotations[garden.berth.dev/forget-data] | 0";
    for judge in [&of_entry as &dyn Fn(&str, &str) -> String, &of_bucket] {
        for (old, new) in [("", " "), ("", "true"), ("the store is given up", "true")] {
            assert_eq!(judge(old, new), expected, "{old:?} {new:?}");
        }
        assert_eq!(judge("", "the store is given up"), "| 0");
        assert_eq!(judge("true", "true"), "| 0", "it was let in once");
        assert_eq!(judge("the store is given up", ""), "| 0", "taken back");
    }
    let both =
        GardenEntry { force_deletion: text("true"), forget_data: text("true"), ..entry("new", "eu-1", "") };
    assert_eq!(entry::faults(None, &both, false).iter().count(), 2);
}

#[test]
fn the_first_three_are_named() {
    assert_eq!(entries(["a"]), "1 entry (a)");
    assert_eq!(entries(["a", "b", "c"]), "3 entries (a, b, c)");
    assert_eq!(some(["a", "b", "c", "d"], "seed", "seeds"), "4 seeds (a, b, c, …)");
}

#[test]
fn a_name_with_another_clusters_uid_is_noticed() {
    let sha1 = |_: &str| "3ef42aaa".to_owned();
    let uid = text("19a9538b-5058-11e9-b5a6-5e696cab3bc8");
    for (name, shoot_uid, is_noticed) in [
        ("shoot--dev--example--3ef42", &uid, false),
        ("shoot--dev--example--19a95", &uid, false),
        ("shoot--dev--example--12345", &uid, true),
        ("shoot--dev--example--12345", &None, false),
        ("shoot--dev--example--other", &uid, false),
        ("shoot--dev--example--123456", &uid, false),
        ("12345", &uid, false),
    ] {
        let new = GardenEntry { shoot_uid: shoot_uid.clone(), ..entry(name, "eu-1", "") };
        assert_eq!(entry::has_another_uid(&new, sha1).is_some(), is_noticed, "{name} {shoot_uid:?}");
    }
}
