use super::super::{BackupBucketSpec, BackupEntrySpec};
use super::*;

fn shared(provider: &str, config: StoreConfig) -> (BackupEntry, BackupBucket) {
    let mut entry = BackupEntry::new("ship--1", BackupEntrySpec::default());
    entry.spec.bucket_name = Some("packet-eu".into());
    let spec = BackupBucketSpec {
        provider: provider.into(),
        region: "eu-west-1".into(),
        provider_config: Some(config),
        ..BackupBucketSpec::default()
    };
    (entry, BackupBucket::new("packet-eu", spec))
}

const MEMBER: MemberContext<'_> = MemberContext { seed: "ship", namespace: "garden", digest: "d1" };

#[test]
fn a_bucket_knows_all_that_its_locations_need() {
    let config = StoreConfig {
        endpoint: Some("https://s3.example".into()),
        force_path_style: Some(true),
        ca_cert: Some("PEM".into()),
        ..StoreConfig::default()
    };
    let (entry, bucket) = shared("aws", config);
    let found = location(&entry, &bucket, LocationAccess::ReadWrite, false, None, MEMBER);
    assert_eq!(found.metadata.name.as_deref(), Some("ship--1"));
    let spec = serde_json::to_value(&found.spec).unwrap();
    let wanted = serde_json::json!({
        "provider": "aws",
        "config": {"region": "eu-west-1", "s3Url": "https://s3.example", "s3ForcePathStyle": "true"},
        "credential": {"name": "ship--1-credentials", "key": "cloud"},
        "objectStorage": {"bucket": "packet-eu", "prefix": "ship--1/velero", "caCert": "UEVN"},
        "accessMode": "ReadWrite",
    });
    assert_eq!(spec, wanted);
}

#[test]
fn a_folder_needs_no_credentials() {
    let config = StoreConfig { path: Some("/srv".into()), ..StoreConfig::default() };
    let (entry, bucket) = shared(keys::FILESYSTEM_PROVIDER, config);
    let found = location(&entry, &bucket, LocationAccess::ReadOnly, true, None, MEMBER);
    let spec = serde_json::to_value(&found.spec).unwrap();
    let wanted = serde_json::json!({
        "provider": "berth.dev/filesystem",
        "config": {"path": "/srv"},
        "objectStorage": {"bucket": "packet-eu", "prefix": "ship--1/velero"},
        "accessMode": "ReadOnly",
        "default": true,
    });
    assert_eq!(spec, wanted);
}

#[test]
fn clouds_get_what_their_plugins_of_velero_know() {
    let spec = |provider: &str, endpoint: Option<&str>, account: Option<&StorageAccount>| {
        let config = StoreConfig { endpoint: endpoint.map(str::to_owned), ..StoreConfig::default() };
        let (entry, bucket) = shared(provider, config);
        location(&entry, &bucket, LocationAccess::ReadWrite, false, account, MEMBER)
    };
    let secret = |domain: Option<&str>| {
        let pairs = [("storageAccount", Some("acc1")), ("storageKey", Some("a2V5")), ("domain", domain)];
        let given = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
        given.collect::<BTreeMap<_, Vec<u8>>>()
    };
    let key = "AZURE_STORAGE_ACCOUNT_ACCESS_KEY";
    for (domain, endpoint, uri) in [
        (None, None, None),
        (Some("blob.core.chinacloudapi.cn"), None, Some("https://acc1.blob.core.chinacloudapi.cn")),
        (None, Some("http://127.0.0.1:1/acc1/"), Some("http://127.0.0.1:1/acc1")),
    ] {
        let account = account("azure", &secret(domain)).unwrap();
        let found = spec("azure", endpoint, Some(&account));
        let mut wanted = serde_json::json!({"storageAccount": "acc1", "storageAccountKeyEnvVar": key});
        if let Some(uri) = uri {
            wanted["storageAccountURI"] = uri.into();
        }
        assert_eq!(serde_json::to_value(&found.spec.config).unwrap(), wanted);
        assert_eq!(account_of(&found), Some(account));
    }
    assert_eq!(cloud_file("azure", &secret(None)).unwrap(), format!("{key}=a2V5\n"));
    let faults = cloud_file("azure", &BTreeMap::new()).unwrap_err();
    let fields: Vec<String> = faults.iter().map(|fault| fault.field.to_string()).collect();
    assert_eq!(fields, ["data[storageAccount]", "data[storageKey]"]);
    assert_eq!(account("gcp", &secret(None)), None);

    assert_eq!(spec("gcp", None, None).spec.config, Some(BTreeMap::new()));
    let endpoint = spec("gcp", Some("http://127.0.0.1:1"), None).spec.config.unwrap();
    assert_eq!(endpoint["storeEndpoint"], "http://127.0.0.1:1/storage/v1/");
    let file = |text: &str| cloud_file("gcp", &[(SERVICE_ACCOUNT.to_owned(), text.into())].into());
    assert_eq!(file(" {\"type\": 1}\n").unwrap(), "{\"type\": 1}\n");
    for wrong in ["", "top secret", "[]"] {
        let said = file(wrong).unwrap_err().to_string();
        assert!(said.starts_with("data[serviceaccount.json]") && !said.contains("top"), "{said}");
    }
}

#[test]
fn what_people_set_besides_stays() {
    let (entry, bucket) = shared("aws", StoreConfig::default());
    let wanted = location(&entry, &bucket, LocationAccess::ReadWrite, false, None, MEMBER).spec;
    let mut found = wanted.clone();
    found.validation_frequency = Some(berth_api::GoDuration("1s".into()));
    found.default = Some(false);
    assert!(is_as(&found, &wanted));
    found.default = Some(true);
    assert!(!is_as(&found, &wanted));
    found.default = None;
    found.access_mode = Some(AccessMode::ReadOnly);
    assert!(!is_as(&found, &wanted));
}

#[test]
fn keys_become_a_file() {
    let data = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect::<BTreeMap<_, _>>()
    };
    let file =
        cloud_file("aws", &data(&[("accessKeyID", "id\n"), ("secretAccessKey", "s=1"), ("region", "x")]));
    assert_eq!(file.unwrap(), "[default]\naws_access_key_id=id\naws_secret_access_key=s=1\n");
    let faults = cloud_file("aws", &data(&[("secretAccessKey", "top\nsecret")])).unwrap_err().to_string();
    assert_eq!(
        faults,
        "data[accessKeyID]: is missing: put the store's key there; data[secretAccessKey]: must be one line of text"
    );
}

#[test]
fn the_condition_follows_the_phase() {
    let (entry, bucket) = shared("aws", StoreConfig::default());
    let mut found = location(&entry, &bucket, LocationAccess::ReadWrite, false, None, MEMBER);
    let now = Timestamp::UNIX_EPOCH;
    let says = |found: &BackupStorageLocation| {
        let condition = condition(found, now);
        (condition.status, condition.reason, condition.codes)
    };
    assert_eq!(says(&found), ("Unknown".into(), reason::VALIDATING.into(), Vec::new()));
    let mut status = berth_api::velero::backup_storage_location::BackupStorageLocationStatus {
        phase: Some(BackupStorageLocationPhase::Available),
        ..Default::default()
    };
    found.status = Some(status.clone());
    assert_eq!(says(&found).0, "Unknown", "from before the keys changed");
    status.last_validation_time = Some(Time(now));
    found.status = Some(status.clone());
    assert_eq!(says(&found), ("True".into(), reason::AVAILABLE.into(), Vec::new()));
    status.phase = Some(BackupStorageLocationPhase::Unavailable);
    status.message = Some("403 Forbidden: SignatureDoesNotMatch".into());
    found.status = Some(status);
    assert_eq!(says(&found), ("False".into(), reason::UNAVAILABLE.into(), vec![UNAUTHORIZED.into()]));
}

#[test]
fn a_default_location_of_the_clusters_own_is_told_with_the_way_out() {
    let now = Timestamp::UNIX_EPOCH;
    let mut own = BackupStorageLocation::default();
    own.metadata.name = Some("old".into());
    own.spec.object_storage.bucket = "theirs".into();
    own.spec.default = Some(true);
    let (entry, bucket) = shared("aws", StoreConfig::default());
    let of_hub = location(&entry, &bucket, LocationAccess::ReadWrite, false, None, MEMBER);
    let told = legacy(&[&of_hub, &own], "ship--1", now).unwrap();
    assert_eq!((&*told.kind, &*told.status, &*told.reason), ("LegacyLocation", "True", "OwnDefault"));
    for part in
        ["BackupStorageLocation old", "bucket theirs", "berth garden migrate --from old --to-entry ship--1"]
    {
        assert!(told.message.contains(part), "{}", told.message);
    }

    // As `berth garden migrate` leads it.
    let mut led = own.clone();
    led.metadata.labels = Some([(keys::BACKUP_ENTRY.to_owned(), "ship--1".to_owned())].into());
    assert_eq!(legacy(&[&of_hub, &led], "ship--1", now), None);
    let of_hub = location(&entry, &bucket, LocationAccess::ReadWrite, true, None, MEMBER);
    assert_eq!(legacy(&[&of_hub], "ship--1", now), None);
}
