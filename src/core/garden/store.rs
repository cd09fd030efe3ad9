//! A store: its place, credentials and settings.

use berth_core::violation::{Field, Violations};

/// Providers that berth itself serves. Other providers need another controller in the member
/// cluster.
pub const SERVED: [&str; 4] = [AWS, AZURE, GCP, FILESYSTEM];
pub const AWS: &str = "aws";
pub const AZURE: &str = "azure";
pub const GCP: &str = "gcp";
/// A folder.
pub const FILESYSTEM: &str = "berth.dev/filesystem";

/// A provider, and one of its regions: names of regions mean nothing at another provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderRegion {
    pub provider: String,
    pub region: String,
}

impl std::fmt::Display for ProviderRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.provider, self.region)
    }
}

/// A Secret with credentials. Either part may be empty if it was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretRef {
    pub name: String,
    pub namespace: String,
}

/// Keys that a Secret must have for it. For providers that berth does not serve: those of S3, which
/// most of them speak.
pub fn secret_keys(provider: &str) -> &'static [&'static str] {
    match provider {
        FILESYSTEM => &[],
        AZURE => &["storageAccount", "storageKey"],
        GCP => &["serviceaccount.json"],
        _ => &["accessKeyID", "secretAccessKey"],
    }
}

/// What a store needs besides.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreSettings {
    /// URL without a path; at Azure, of an account's blobs.
    pub endpoint: Option<String>,
    pub force_path_style: Option<bool>,
    /// PEM.
    pub ca_cert: Option<String>,
    pub insecure_skip_tls_verify: Option<bool>,
    /// Folder that holds the buckets.
    pub path: Option<String>,
    pub object_lock: Option<ObjectLockSettings>,
    pub location_keys: Option<LocationKeyMode>,
    /// What [`LocationKeyMode::Scoped`] takes besides: a role, whose rights they have in their
    /// directories.
    pub role_arn: Option<String>,
    /// The service that creates them, if that is not Amazon's.
    pub sts_endpoint: Option<String>,
    /// How long they last.
    pub key_minutes: Option<u32>,
}

/// How the locations of entries come by their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationKeyMode {
    /// Each gets some that open its own directory, and end by themselves.
    Scoped,
    /// Each gets those of the store, which open all that is in it.
    Shared,
}

impl StoreSettings {
    /// What decides in which store a bucket is looked for, by field; empty where it is left out.
    pub fn addresses(&self) -> [(&'static str, &str); 2] {
        let [endpoint, path] = [&self.endpoint, &self.path]
            .map(|address| address.as_deref().unwrap_or_default().trim_end_matches('/'));
        [("endpoint", endpoint), ("path", path)]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectLockSettings {
    pub mode: RetentionMode,
    /// Whole days.
    pub retention_days: u32,
}

/// The stronger one is the greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetentionMode {
    Governance,
    Compliance,
}

/// All that a bucket is made with, but for its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Store {
    pub place: ProviderRegion,
    pub secret: SecretRef,
    pub config: StoreSettings,
}

/// Settings that cannot work at this provider. Nothing is known of providers other than [`SERVED`].
pub fn check_config(field: &Field, provider: &str, config: &StoreSettings) -> Violations {
    let mut found = Violations::default();
    let is_folder = provider == FILESYSTEM;
    check_scoped(field, provider, config, &mut found);
    if !SERVED.contains(&provider) {
        return found;
    }
    let foreign = |found: &mut Violations, name: &str, is_there: bool| {
        found.require(
            !is_there,
            &field.child(name),
            format!("means nothing to provider {provider:?}: leave it out"),
        );
    };
    if is_folder {
        let is_path = |path: &String| path.starts_with('/') && path.split('/').all(|part| part != "..");
        found.require(
            config.path.as_ref().is_some_and(is_path),
            &field.child("path"),
            "must be the absolute path of the folder that holds the buckets, without \"..\"",
        );
        foreign(&mut found, "endpoint", config.endpoint.is_some());
        foreign(&mut found, "caCert", config.ca_cert.is_some());
        foreign(&mut found, "objectLock", config.object_lock.is_some());
    } else {
        foreign(&mut found, "path", config.path.is_some());
    }
    if [AZURE, GCP].contains(&provider) {
        foreign(&mut found, "forcePathStyle", config.force_path_style.is_some());
        // Velero's plugins for them refuse a location that has it.
        foreign(&mut found, "insecureSkipTLSVerify", config.insecure_skip_tls_verify.is_some());
    }
    if let Some(endpoint) = config.endpoint.as_ref().filter(|_| !is_folder) {
        let field = field.child("endpoint");
        if provider == AZURE {
            found.require(
                is_endpoint(account_host(endpoint)),
                &field,
                "must be http[s]://HOST[:PORT], or http[s]://HOST[:PORT]/ACCOUNT where a host serves many: no user, no query",
            );
        } else {
            found.require(
                is_endpoint(endpoint),
                &field,
                "must be http://HOST[:PORT] or https://HOST[:PORT]: no path, no user, no query",
            );
        }
    }
    if let Some(pem) = config.ca_cert.as_ref().filter(|_| !is_folder) {
        let is_pem = pem.contains("-----BEGIN CERTIFICATE-----") && pem.contains("-----END CERTIFICATE-----");
        found.require(is_pem, &field.child("caCert"), "must be certificates in PEM");
    }
    if let Some(lock) = &config.object_lock {
        let field = field.child("objectLock").child("retentionDays");
        found.require(lock.retention_days >= 1, &field, "must be a day or more");
    }
    found
}

/// Keys for one directory: are there such, and does what is said of them go with it?
fn check_scoped(field: &Field, provider: &str, config: &StoreSettings, found: &mut Violations) {
    let is_scoped = config.location_keys == Some(LocationKeyMode::Scoped);
    let keys = field.child("locationKeys");
    let trust = "say \"shared\", if clusters may read and remove what the others keep there";
    if provider != AWS {
        let message = format!("berth cannot limit keys of provider {provider:?} to a directory: {trust}");
        found.require(!is_scoped, &keys, message);
    } else if config.endpoint.is_some() {
        let message = format!(
            "who makes the keys at another endpoint than Amazon's must be named by stsEndpoint; if nobody does there, {trust}"
        );
        found.require(!is_scoped || config.sts_endpoint.is_some(), &keys, message);
    }
    for (name, is_there) in [
        ("roleArn", config.role_arn.is_some()),
        ("stsEndpoint", config.sts_endpoint.is_some()),
        ("keyMinutes", config.key_minutes.is_some()),
    ] {
        let message = "means nothing without locationKeys \"scoped\": leave it out";
        found.require(is_scoped || !is_there, &field.child(name), message);
    }
    if let Some(role) = &config.role_arn {
        let is_arn = role.starts_with("arn:") && role.bytes().all(|b| b.is_ascii_graphic());
        found.require(is_arn, &field.child("roleArn"), "must be the ARN of a role");
    }
    if let Some(endpoint) = &config.sts_endpoint {
        let message = "must be http://HOST[:PORT] or https://HOST[:PORT]: no path, no user, no query";
        found.require(is_endpoint(endpoint), &field.child("stsEndpoint"), message);
    }
    if let Some(minutes) = config.key_minutes {
        let most = if config.role_arn.is_some() { 720 } else { 2160 };
        let message = format!("must be 15 to {most}: Amazon's keys last no longer");
        found.require((15..=most).contains(&minutes), &field.child("keyMinutes"), message);
    }
}

fn is_endpoint(url: &str) -> bool {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    host.map(|host| host.trim_end_matches('/'))
        .is_some_and(|host| !host.is_empty() && host.chars().all(plain))
}

/// Without an account's name at its end.
fn account_host(url: &str) -> &str {
    let is_account =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match url.trim_end_matches('/').rsplit_once('/') {
        Some((host, account)) if is_account(account) && !host.ends_with('/') => host,
        _ => url,
    }
}

/// Is a lock made weaker than objects were promised?
pub fn check_lock(
    field: &Field,
    old: Option<ObjectLockSettings>,
    new: Option<ObjectLockSettings>,
) -> Violations {
    let mut found = Violations::default();
    let Some(old) = old.filter(|old| old.mode == RetentionMode::Compliance) else { return found };
    let field = field.child("objectLock");
    match new {
        None => found.push(field, "a lock in mode \"compliance\" cannot be taken off: leave it as it is"),
        Some(new) => {
            found.require(
                new.mode >= old.mode,
                &field.child("mode"),
                "\"compliance\" cannot become weaker: leave it as it is",
            );
            found.require(
                new.retention_days >= old.retention_days,
                &field.child("retentionDays"),
                format!("cannot shrink in mode \"compliance\": {} or more", old.retention_days),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(provider: &str, config: &StoreSettings) -> Vec<String> {
        let field = Field::root("c");
        check_config(&field, provider, config).iter().map(|one| one.field.to_string()).collect()
    }

    #[test]
    fn settings_are_those_of_the_provider() {
        let text = |text: &str| Some(text.to_owned());
        let folder = StoreSettings { path: text("/archives"), ..StoreSettings::default() };
        assert_eq!(faults(FILESYSTEM, &folder), [""; 0]);
        assert_eq!(faults(AWS, &folder), ["c.path"]);
        assert_eq!(faults("packet", &folder), [""; 0]);
        assert_eq!(faults(FILESYSTEM, &StoreSettings::default()), ["c.path"]);
        let wrong = StoreSettings {
            path: text("/a/../b"),
            endpoint: text("https://h"),
            ca_cert: text("x"),
            object_lock: Some(ObjectLockSettings { mode: RetentionMode::Governance, retention_days: 0 }),
            ..StoreSettings::default()
        };
        let all = ["c.path", "c.endpoint", "c.caCert", "c.objectLock", "c.objectLock.retentionDays"];
        assert_eq!(faults(FILESYSTEM, &wrong), all);
        assert_eq!(faults(AWS, &wrong), ["c.path", "c.caCert", "c.objectLock.retentionDays"]);
    }

    #[test]
    fn clouds_have_settings_of_their_own() {
        let all = StoreSettings {
            endpoint: Some("http://127.0.0.1:10000/account1/".to_owned()),
            force_path_style: Some(true),
            insecure_skip_tls_verify: Some(false),
            path: Some("/x".to_owned()),
            ..StoreSettings::default()
        };
        let foreign = ["c.path", "c.forcePathStyle", "c.insecureSkipTLSVerify"];
        assert_eq!(faults(AZURE, &all), foreign);
        assert_eq!(faults(GCP, &all), [&foreign[..], &["c.endpoint"]].concat());
        for (endpoint, good) in [
            ("https://account1.blob.core.windows.net", true),
            ("https://store.example.com/account1", true),
            ("https://store.example.com/account1/container", false),
            ("https://store.example.com/Account", false),
            ("https://account1", true),
            ("https:///account1", false),
            ("account1", false),
        ] {
            let config = StoreSettings { endpoint: Some(endpoint.to_owned()), ..StoreSettings::default() };
            assert_eq!(faults(AZURE, &config).is_empty(), good, "{endpoint}");
        }
        assert_eq!(secret_keys(AZURE).len(), 2);
        assert!(secret_keys(FILESYSTEM).is_empty());
    }

    #[test]
    fn keys_are_limited_to_directories_where_somebody_makes_such() {
        let text = |text: &str| Some(text.to_owned());
        let scoped =
            StoreSettings { location_keys: Some(LocationKeyMode::Scoped), ..StoreSettings::default() };
        assert_eq!(faults(AWS, &scoped), [""; 0]);
        for provider in [AZURE, GCP, "packet"] {
            assert_eq!(faults(provider, &scoped), ["c.locationKeys"], "{provider}");
        }
        let alike = StoreSettings { endpoint: text("https://store"), ..scoped.clone() };
        assert_eq!(faults(AWS, &alike), ["c.locationKeys"]);
        let named = StoreSettings { sts_endpoint: text("https://sts"), ..alike };
        assert_eq!(faults(AWS, &named), [""; 0]);
        let more = StoreSettings {
            location_keys: Some(LocationKeyMode::Shared),
            role_arn: text("arn:aws:iam::1:role/a"),
            key_minutes: Some(60),
            ..named
        };
        assert_eq!(faults(AWS, &more), ["c.roleArn", "c.stsEndpoint", "c.keyMinutes"]);
        for (role, minutes, wrong) in [
            (None, 15, false),
            (None, 14, true),
            (None, 2160, false),
            (text("arn:aws:iam::1:role/a"), 2160, true),
            (text("arn:aws:iam::1:role/a"), 720, false),
        ] {
            let config = StoreSettings { role_arn: role, key_minutes: Some(minutes), ..scoped.clone() };
            assert_eq!(faults(AWS, &config).contains(&"c.keyMinutes".to_owned()), wrong, "{config:?}");
        }
        let odd = StoreSettings { role_arn: text("my role"), sts_endpoint: text("sts"), ..scoped };
        assert_eq!(faults(AWS, &odd), ["c.roleArn", "c.stsEndpoint"]);
    }

    #[test]
    fn an_endpoint_is_a_scheme_and_a_host() {
        for (endpoint, good) in [
            ("https://s3.example.com", true),
            ("http://127.0.0.1:7070", true),
            ("http://[::1]:7070/", true),
            ("https://", false),
            ("s3.example.com", false),
            ("https://s3.example.com/path", false),
            ("https://user:pass@s3.example.com", false),
            ("https://s3.example.com?x=y", false),
        ] {
            let config = StoreSettings { endpoint: Some(endpoint.to_owned()), ..StoreSettings::default() };
            assert_eq!(faults(AWS, &config).is_empty(), good, "{endpoint}");
        }
    }

    #[test]
    fn a_lock_in_compliance_never_weakens() {
        use RetentionMode::{Compliance, Governance};
        let lock = |mode, retention_days| Some(ObjectLockSettings { mode, retention_days });
        for (old, new, faults) in [
            (None, lock(Compliance, 1), &[][..]),
            (lock(Governance, 9), None, &[]),
            (lock(Governance, 9), lock(Governance, 1), &[]),
            (lock(Compliance, 9), lock(Compliance, 9), &[]),
            (lock(Compliance, 9), lock(Compliance, 10), &[]),
            (lock(Compliance, 9), lock(Compliance, 8), &["c.objectLock.retentionDays"]),
            (lock(Compliance, 9), lock(Governance, 8), &["c.objectLock.mode", "c.objectLock.retentionDays"]),
            (lock(Compliance, 9), None, &["c.objectLock"]),
        ] {
            let found = check_lock(&Field::root("c"), old, new);
            let found: Vec<String> = found.iter().map(|one| one.field.to_string()).collect();
            assert_eq!(found, faults, "{old:?} to {new:?}");
        }
    }
}
