//! What members hold, and the locations of entries.

use super::*;

#[test]
fn what_members_hold_is_guarded_as_gardener_does_it() {
    let bucket = ExtensionObject {
        name: "b".to_owned(),
        place: place("aws", "eu"),
        secret: secret(),
        ..ExtensionObject::default()
    };
    let entry = ExtensionObject { bucket: text("b"), ..bucket.clone() };
    let fields = |old: Option<&ExtensionObject>, new: &ExtensionObject, spec_changed: bool| {
        let found = extension::faults(old, new, spec_changed);
        found.iter().map(|one| one.field.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(fields(None, &bucket, true), "");
    assert_eq!(fields(None, &entry, true), "");
    let empty = ExtensionObject {
        bucket: Some(String::new()),
        place: place("aws", ""),
        secret: None,
        ..bucket.clone()
    };
    assert_eq!(
        fields(None, &empty, true),
        "spec.region spec.bucketName spec.secretRef.name spec.secretRef.namespace"
    );
    let moved =
        |old: &ExtensionObject| ExtensionObject { place: place("berth.dev/filesystem", "us"), ..old.clone() };
    assert_eq!(fields(Some(&bucket), &moved(&bucket), true), "spec.type spec.region");
    assert_eq!(
        fields(Some(&entry), &moved(&entry), true),
        "spec.type",
        "an entry may be moved to another region"
    );
    let going = ExtensionObject { is_terminating: true, ..entry.clone() };
    assert_eq!(fields(Some(&going), &entry, true), "spec");
    assert_eq!(fields(Some(&going), &entry, false), "");
    assert!(!extension::check_delete(&entry).is_empty());
    assert!(extension::check_delete(&ExtensionObject { is_confirmed: true, ..entry.clone() }).is_empty());
    assert!(extension::is_served(&entry) && !extension::is_served(&ExtensionObject::default()));
}

#[test]
fn a_location_in_a_shared_bucket_is_of_one_entry() {
    use location::ReviewedLocation;
    let mut view = view();
    let here = ExtensionObject {
        name: "member".to_owned(),
        place: place("berth.dev/filesystem", "here"),
        ..ExtensionObject::default()
    };
    view.extension_buckets.insert("member".to_owned(), here.clone());
    let moving = ExtensionObject { name: "source-m".to_owned(), bucket: text("member"), ..here };
    view.extension_entries.insert("source-m".to_owned(), moving);
    let good = ReviewedLocation {
        name: "a".to_owned(),
        provider: "aws".to_owned(),
        bucket: "main-eu".to_owned(),
        prefix: "a/velero".to_owned(),
        ..ReviewedLocation::default()
    };
    let judge = |new: ReviewedLocation| said(&location::check(&new, &view));
    assert_eq!(judge(good.clone()), "| 0");
    let with = |change: &dyn Fn(&mut ReviewedLocation)| {
        let mut one = good.clone();
        change(&mut one);
        judge(one)
    };
    for (what, change, expected) in [
        (
            "another bucket",
            &(|l: &mut ReviewedLocation| l.bucket = "private".to_owned()) as &dyn Fn(&mut ReviewedLocation),
            "| 0",
        ),
        ("Velero's other name", &|l| l.provider = "velero.io/aws".to_owned(), "| 0"),
        ("another provider", &|l| l.provider = "gcp".to_owned(), "spec.provider | 0"),
        ("its region", &|l| l.region = text("eu"), "| 0"),
        ("another region", &|l| l.region = text("us"), "spec.config[region] | 0"),
        ("no prefix", &|l| l.prefix = "/".to_owned(), "spec.objectStorage.prefix | 0"),
        ("a way out of it", &|l| l.prefix = "a/../b".to_owned(), "spec.objectStorage.prefix | 0"),
        ("another entry's directory", &|l| l.prefix = "b/velero".to_owned(), "spec.objectStorage.prefix | 0"),
        (
            "the same, only read",
            &|l| {
                l.prefix = "b/velero".to_owned();
                l.is_read_only = true;
            },
            "| 0",
        ),
        ("its own, by its label", &|l| l.name = "elsewhere".to_owned(), "spec.objectStorage.prefix | 0"),
        (
            "its own, by its label",
            &|l| {
                l.name = "elsewhere".to_owned();
                l.entry = text("a");
            },
            "| 0",
        ),
        ("nobody's directory", &|l| l.prefix = "c/velero".to_owned(), "| 1"),
        (
            "a bucket of this cluster",
            &|l| {
                l.bucket = "member".to_owned();
                l.prefix = "m/velero".to_owned();
            },
            "spec.provider spec.objectStorage.prefix | 0",
        ),
        (
            "everything",
            &|l| {
                l.provider = "gcp".to_owned();
                l.region = text("us");
                l.prefix = "b".to_owned();
            },
            "spec.provider spec.config[region] spec.objectStorage.prefix | 0",
        ),
    ] {
        assert_eq!(with(change), expected, "{what}");
    }
}
