//! The files of `manifests/`, embedded in the binary.

/// Path below `manifests/`, and text.
pub const FILES: &[(&str, &str)] = &[
    ("base/kustomization.yaml", include_str!("../../manifests/base/kustomization.yaml")),
    (
        "components/alone/kustomization.yaml",
        include_str!("../../manifests/components/alone/kustomization.yaml"),
    ),
    ("components/alone/namespace.yaml", include_str!("../../manifests/components/alone/namespace.yaml")),
    (
        "components/beside-velero/kustomization.yaml",
        include_str!("../../manifests/components/beside-velero/kustomization.yaml"),
    ),
    (
        "components/beside-velero/rbac.yaml",
        include_str!("../../manifests/components/beside-velero/rbac.yaml"),
    ),
    (
        "components/cert-manager/certificates.yaml",
        include_str!("../../manifests/components/cert-manager/certificates.yaml"),
    ),
    (
        "components/cert-manager/kustomization.yaml",
        include_str!("../../manifests/components/cert-manager/kustomization.yaml"),
    ),
    (
        "components/files-by-movers/kustomization.yaml",
        include_str!("../../manifests/components/files-by-movers/kustomization.yaml"),
    ),
    (
        "components/garden-courier/kustomization.yaml",
        include_str!("../../manifests/components/garden-courier/kustomization.yaml"),
    ),
    (
        "components/garden-courier/rbac.yaml",
        include_str!("../../manifests/components/garden-courier/rbac.yaml"),
    ),
    (
        "components/garden-member/crd/backupbuckets.extensions.gardener.cloud.yaml",
        include_str!(
            "../../manifests/components/garden-member/crd/backupbuckets.extensions.gardener.cloud.yaml"
        ),
    ),
    (
        "components/garden-member/crd/backupentries.extensions.gardener.cloud.yaml",
        include_str!(
            "../../manifests/components/garden-member/crd/backupentries.extensions.gardener.cloud.yaml"
        ),
    ),
    (
        "components/garden-member/crd/kustomization.yaml",
        include_str!("../../manifests/components/garden-member/crd/kustomization.yaml"),
    ),
    (
        "components/garden-member/agent.yaml",
        include_str!("../../manifests/components/garden-member/agent.yaml"),
    ),
    (
        "components/garden-member/kustomization.yaml",
        include_str!("../../manifests/components/garden-member/kustomization.yaml"),
    ),
    (
        "components/garden-member/rbac.yaml",
        include_str!("../../manifests/components/garden-member/rbac.yaml"),
    ),
    ("components/pod-volumes/agent.yaml", include_str!("../../manifests/components/pod-volumes/agent.yaml")),
    (
        "components/pod-volumes/crd/backuprepositories.velero.io.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/backuprepositories.velero.io.yaml"),
    ),
    (
        "components/pod-volumes/crd/datadownloads.velero.io.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/datadownloads.velero.io.yaml"),
    ),
    (
        "components/pod-volumes/crd/datauploads.velero.io.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/datauploads.velero.io.yaml"),
    ),
    (
        "components/pod-volumes/crd/kustomization.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/kustomization.yaml"),
    ),
    (
        "components/pod-volumes/crd/podvolumebackups.velero.io.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/podvolumebackups.velero.io.yaml"),
    ),
    (
        "components/pod-volumes/crd/podvolumerestores.velero.io.yaml",
        include_str!("../../manifests/components/pod-volumes/crd/podvolumerestores.velero.io.yaml"),
    ),
    (
        "components/pod-volumes/kustomization.yaml",
        include_str!("../../manifests/components/pod-volumes/kustomization.yaml"),
    ),
    ("components/pod-volumes/rbac.yaml", include_str!("../../manifests/components/pod-volumes/rbac.yaml")),
    (
        "components/self-managed/kustomization.yaml",
        include_str!("../../manifests/components/self-managed/kustomization.yaml"),
    ),
    ("components/self-managed/rbac.yaml", include_str!("../../manifests/components/self-managed/rbac.yaml")),
    (
        "components/without-velero/kustomization.yaml",
        include_str!("../../manifests/components/without-velero/kustomization.yaml"),
    ),
    ("crd/backups.velero.io.yaml", include_str!("../../manifests/crd/backups.velero.io.yaml")),
    (
        "crd/backupstoragelocations.velero.io.yaml",
        include_str!("../../manifests/crd/backupstoragelocations.velero.io.yaml"),
    ),
    (
        "crd/deletebackuprequests.velero.io.yaml",
        include_str!("../../manifests/crd/deletebackuprequests.velero.io.yaml"),
    ),
    (
        "crd/downloadrequests.velero.io.yaml",
        include_str!("../../manifests/crd/downloadrequests.velero.io.yaml"),
    ),
    ("crd/kustomization.yaml", include_str!("../../manifests/crd/kustomization.yaml")),
    ("crd/schedules.velero.io.yaml", include_str!("../../manifests/crd/schedules.velero.io.yaml")),
    (
        "crd/serverstatusrequests.velero.io.yaml",
        include_str!("../../manifests/crd/serverstatusrequests.velero.io.yaml"),
    ),
    (
        "garden/crd/backupbuckets.garden.berth.dev.yaml",
        include_str!("../../manifests/garden/crd/backupbuckets.garden.berth.dev.yaml"),
    ),
    (
        "garden/crd/backupentries.garden.berth.dev.yaml",
        include_str!("../../manifests/garden/crd/backupentries.garden.berth.dev.yaml"),
    ),
    (
        "garden/crd/cloudprofiles.garden.berth.dev.yaml",
        include_str!("../../manifests/garden/crd/cloudprofiles.garden.berth.dev.yaml"),
    ),
    ("garden/crd/kustomization.yaml", include_str!("../../manifests/garden/crd/kustomization.yaml")),
    (
        "garden/crd/seeds.garden.berth.dev.yaml",
        include_str!("../../manifests/garden/crd/seeds.garden.berth.dev.yaml"),
    ),
    ("garden/kustomization.yaml", include_str!("../../manifests/garden/kustomization.yaml")),
    ("garden/namespace.yaml", include_str!("../../manifests/garden/namespace.yaml")),
    ("garden/policies.yaml", include_str!("../../manifests/garden/policies.yaml")),
    ("garden/rbac.yaml", include_str!("../../manifests/garden/rbac.yaml")),
    ("garden/seeds.yaml", include_str!("../../manifests/garden/seeds.yaml")),
    ("manager/controller.yaml", include_str!("../../manifests/manager/controller.yaml")),
    ("manager/kustomization.yaml", include_str!("../../manifests/manager/kustomization.yaml")),
    ("manager/priority.yaml", include_str!("../../manifests/manager/priority.yaml")),
    ("manager/webhook.yaml", include_str!("../../manifests/manager/webhook.yaml")),
    ("rbac/controller.yaml", include_str!("../../manifests/rbac/controller.yaml")),
    ("rbac/engine.yaml", include_str!("../../manifests/rbac/engine.yaml")),
    ("rbac/lifecycle.yaml", include_str!("../../manifests/rbac/lifecycle.yaml")),
    ("rbac/kustomization.yaml", include_str!("../../manifests/rbac/kustomization.yaml")),
    ("rbac/people.yaml", include_str!("../../manifests/rbac/people.yaml")),
    ("rbac/webhook.yaml", include_str!("../../manifests/rbac/webhook.yaml")),
    ("webhook/guard.yaml", include_str!("../../manifests/webhook/guard.yaml")),
    ("webhook/kustomization.yaml", include_str!("../../manifests/webhook/kustomization.yaml")),
    ("webhook/mutating.yaml", include_str!("../../manifests/webhook/mutating.yaml")),
    ("webhook/validating.yaml", include_str!("../../manifests/webhook/validating.yaml")),
];

/// Text of a file; `None` where there is no such file.
pub fn read(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}
