//! The manifest by which krew, kubectl's plugin manager, installs berth as `kubectl berth`. What
//! only a release knows stands in double braces: the addresses of its archives, and their digests.

/// Systems for which a release has an archive.
const ARCHES: [&str; 2] = ["amd64", "arm64"];

/// The manifest.
pub fn manifest() -> String {
    let mut text = format!(
        "# Generated from the program: `make manifests` writes it. A release replaces what stands in double braces.
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: berth
spec:
  version: v{}
  homepage: {}
  shortDescription: Queue, create and inspect Velero backups
  description: |
    The commands of a velero user, with the same flags: backups, schedules and
    backup locations. Also shows the queue of backups, what each of them waits
    for, and what a backup would store.
  caveats: |
    Without berth in the cluster, the commands of the queue have nothing to show.
    kubectl completes what stands behind `kubectl berth` once this link is there:
      ln -s kubectl-berth ~/.krew/bin/kubectl_complete-berth
  platforms:
",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_REPOSITORY"),
    );
    for arch in ARCHES {
        let upper = arch.to_uppercase();
        text += &format!(
            "  - selector:
      matchLabels:
        os: linux
        arch: {arch}
    uri: \"{{{{URI_LINUX_{upper}}}}}\"
    sha256: \"{{{{SHA256_LINUX_{upper}}}}}\"
    files:
      - from: berth
        to: kubectl-berth
      - from: LICENSE
        to: .
    bin: kubectl-berth
"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_manifest_on_disk_is_what_the_program_says_and_names_kubectl_berth() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/krew/berth.yaml");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            text == manifest(),
            "manifests/krew/berth.yaml is not what the program says: run `make manifests`"
        );
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["metadata"]["name"], "berth");
        assert_eq!(read["spec"]["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
        let platforms = read["spec"]["platforms"].as_array().unwrap();
        assert_eq!(platforms.len(), ARCHES.len());
        for (one, arch) in platforms.iter().zip(ARCHES) {
            assert_eq!(one["selector"]["matchLabels"], json!({"os": "linux", "arch": arch}));
            assert_eq!(one["bin"], "kubectl-berth");
            assert_eq!(one["files"][0], json!({"from": "berth", "to": "kubectl-berth"}));
            for field in ["uri", "sha256"] {
                let text = one[field].as_str().unwrap();
                assert!(text.starts_with("{{") && text.ends_with("}}"), "{field} is for the release: {text}");
            }
        }
        // krew refuses longer ones.
        assert!(read["spec"]["shortDescription"].as_str().unwrap().len() <= 50);
    }
}
