//! CustomResourceDefinitions of shared buckets, generated from the types.

use berth_api::crd::ours;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{BackupBucket, BackupEntry, CloudProfile, Seed, extensions};

/// The kinds of the hub cluster.
pub fn hub() -> Vec<CustomResourceDefinition> {
    [BackupBucket::crd(), BackupEntry::crd(), CloudProfile::crd(), Seed::crd()].map(ours).into()
}

/// The kinds of a member cluster, for members without Gardener's own definitions.
pub fn member() -> Vec<CustomResourceDefinition> {
    [extensions::BackupBucket::crd(), extensions::BackupEntry::crd()].map(ours).into()
}
