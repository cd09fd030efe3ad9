//! Locations at Azure and Google, by the settings and credential files of Velero's plugins for
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::RetryConfig;
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{ClientOptions, ReqwestConnector};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};

use super::credentials::{CloudFile, variables};
use super::http_clients::connector;
use super::open_error::OpenError;

type LocationConfig = BTreeMap<String, String>;
type Built<S> = Result<Arc<S>, OpenError>;

fn get<'a>(config: &'a LocationConfig, key: &str) -> Option<&'a str> {
    config.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

/// `file`: variables `AZURE_…`. Without a file, credentials come from the environment.
pub fn azure(
    config: &LocationConfig,
    container: &str,
    file: Option<CloudFile>,
    options: ClientOptions,
    retry: RetryConfig,
) -> Built<MicrosoftAzure> {
    let account = get(config, "storageAccount");
    let account = account.ok_or(OpenError::Config("storageAccount", "the account of the container"))?;
    let mut builder = match &file {
        None => MicrosoftAzureBuilder::from_env(),
        Some(file) => {
            let found = variables(&file.text);
            let needed = |name: &str| {
                let value = found.get(name).filter(|value| !value.is_empty()).cloned();
                value.ok_or_else(|| file.fault(format!("has no {name}")))
            };
            let builder = MicrosoftAzureBuilder::new();
            if let Some(name) = get(config, "storageAccountKeyEnvVar") {
                builder.with_access_key(needed(name)?)
            } else if get(config, "useAAD").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
                builder.with_client_secret_authorization(
                    needed("AZURE_CLIENT_ID")?,
                    needed("AZURE_CLIENT_SECRET")?,
                    needed("AZURE_TENANT_ID")?,
                )
            } else {
                // Velero would read the account's key from Azure's management API.
                return Err(OpenError::Config(
                    "storageAccountKeyEnvVar",
                    "the name of the account's key in the credentials, or set useAAD to \"true\"",
                ));
            }
        }
    };
    let uri = match get(config, "storageAccountURI").map(|uri| uri.trim_end_matches('/')) {
        Some(uri) if uri.contains("://") => uri.to_owned(),
        Some(host) => format!("https://{host}"),
        None => {
            let named = file.as_ref().and_then(|file| variables(&file.text).remove("AZURE_CLOUD_NAME"));
            let domain = match named.as_deref().map(str::to_ascii_uppercase).as_deref() {
                Some("AZURECHINACLOUD") => "blob.core.chinacloudapi.cn",
                Some("AZUREUSGOVERNMENT" | "AZUREUSGOVERNMENTCLOUD") => "blob.core.usgovcloudapi.net",
                _ => "blob.core.windows.net",
            };
            format!("https://{account}.{domain}")
        }
    };
    builder = builder
        .with_account(account)
        .with_container_name(container)
        .with_client_options(options.with_allow_http(uri.starts_with("http://")))
        .with_http_connector(connector(ReqwestConnector::default()))
        .with_endpoint(uri)
        .with_retry(retry);
    Ok(Arc::new(builder.build().map_err(OpenError::Build)?))
}

/// `file`: the JSON file of a service account. Without a file, credentials come from the
/// environment.
pub fn google(
    config: &LocationConfig,
    bucket: &str,
    file: Option<CloudFile>,
    options: ClientOptions,
    retry: RetryConfig,
) -> Built<GoogleCloudStorage> {
    if get(config, "kmsKeyName").is_some() {
        return Err(OpenError::NotServed(
            "kmsKeyName",
            "set it as the bucket's default key, and leave it out here",
        ));
    }
    let url = match (get(config, "storeEndpoint"), get(config, "universeDomain")) {
        // Google's clients take the endpoint with the path of the JSON API; object_store appends
        // paths of its own.
        (Some(url), _) => url.trim_end_matches('/').trim_end_matches("/storage/v1").to_owned(),
        (None, Some(domain)) => format!("https://storage.{domain}"),
        (None, None) => "https://storage.googleapis.com".to_owned(),
    };
    let builder = match &file {
        Some(file) => GoogleCloudStorageBuilder::new().with_service_account_key(&file.text),
        None => GoogleCloudStorageBuilder::from_env(),
    };
    let builder = builder
        .with_bucket_name(bucket)
        .with_base_url(&url)
        .with_client_options(options.with_allow_http(url.starts_with("http://")))
        .with_http_connector(connector(ReqwestConnector::default()))
        .with_retry(retry);
    let store = builder.build().map_err(|error| match &file {
        // The error of object_store is dropped, because it quotes the file.
        Some(file) => file.fault("is not the JSON file of a service account with its private key".to_owned()),
        None => OpenError::Build(error),
    })?;
    Ok(Arc::new(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> LocationConfig {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn file(text: &str) -> Option<CloudFile> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Some(CloudFile { name: "s".into(), key: "cloud".into(), text: text.into() })
    }

    fn said<S: std::fmt::Display>(built: Built<S>) -> String {
        built.map_or_else(|error| error.to_string(), |store| store.to_string())
    }

    #[test]
    fn an_account_is_opened_by_its_key_or_by_a_service_principal() {
        let open = |pairs: &[(&str, &str)], text: &str| {
            said(azure(&settings(pairs), "c", file(text), ClientOptions::new(), RetryConfig::default()))
        };
        let key = "# of the account\nMY_KEY='c2VjcmV0'\n";
        let by_key = [("storageAccount", "acc1"), ("storageAccountKeyEnvVar", "MY_KEY")];
        assert!(open(&by_key, key).contains("acc1"), "{}", open(&by_key, key));
        assert_eq!(open(&by_key, "OTHER=x"), "Secret s, key cloud: has no MY_KEY");
        assert!(open(&[], key).starts_with("spec.config.storageAccount is missing"));
        assert!(open(&by_key[..1], key).starts_with("spec.config.storageAccountKeyEnvVar is missing"));
        let principal = "AZURE_CLIENT_ID=a\nAZURE_TENANT_ID=b\nAZURE_CLIENT_SECRET=c\n";
        let by_principal =
            [("storageAccount", "acc1"), ("useAAD", "true"), ("storageAccountURI", "acc1.example")];
        assert!(open(&by_principal, principal).contains("acc1"));
        assert!(open(&by_principal, key).contains("has no AZURE_CLIENT_ID"));
    }

    #[test]
    fn what_is_wrong_with_a_service_account_is_said_and_nothing_is_quoted() {
        let open = |pairs: &[(&str, &str)], text: &str| {
            said(google(&settings(pairs), "b", file(text), ClientOptions::new(), RetryConfig::default()))
        };
        let good = r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
        assert!(open(&[("storeEndpoint", "http://h/storage/v1/")], good).contains('b'));
        for wrong in ["top secret", r#"{"private_key": ["top"]}"#] {
            let why = "Secret s, key cloud: is not the JSON file of a service account with its private key";
            assert_eq!(open(&[], wrong), why);
        }
        assert!(open(&[("kmsKeyName", "k")], good).starts_with("spec.config.kmsKeyName is not served"));
    }
}
