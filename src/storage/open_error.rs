//! Why a BackupStorageLocation cannot be opened.

use berth_api::keys::FILESYSTEM_PROVIDER;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("spec.provider: {0:?} is not supported: use aws, azure, gcp, or {FILESYSTEM_PROVIDER}")]
    Provider(String),
    #[error("spec.config.{0} is not served: {1}")]
    NotServed(&'static str, &'static str),
    #[error("spec.config.{0} is missing: {1}")]
    Config(&'static str, &'static str),
    #[error("spec.config.path: {0}")]
    NotAdmitted(String),
    #[error("spec.objectStorage.{0}")]
    ObjectStorage(String),
    #[error("Secret {name}, key {key}: {why}")]
    Secret { name: String, key: String, why: String },
    #[error("failed to read Secret {0}")]
    ReadSecret(String, #[source] Box<kube::Error>),
    #[error("folder {0} does not exist: mount its volume, or create it")]
    Missing(String),
    #[error("folder {0} cannot be used")]
    Folder(String, #[source] std::io::Error),
    #[error("the settings of the location cannot be used")]
    Build(#[source] object_store::Error),
}
