//! The image by its digest: by Helm, by kustomize, by the binary.

use serde_json::Value;

use super::{documents, helm, kustomized_with, printed, rendered_by_helm};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Of each Deployment.
fn images(objects: &[Value]) -> Vec<&str> {
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    deployments
        .map(|one| one["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap())
        .collect()
}

#[test]
fn an_image_is_named_by_its_digest_in_every_deployment_whoever_renders() {
    let image = format!("mirror.example/berth:{}@{DIGEST}", env!("CARGO_PKG_VERSION"));
    let flag = format!("--image={image}");
    let ours = documents(&printed("berth", "self-managed", "elsewhere", &["--garden-member", flag.as_str()]));
    assert_eq!(images(&ours), vec![image.as_str(); 3]);

    let values = "image.repository=mirror.example/berth,garden.member.enabled=true";
    let theirs = rendered_by_helm(&format!("{values},image.digest={DIGEST}"));
    assert_eq!(images(&theirs), vec![image.as_str(); 3]);
    let theirs = rendered_by_helm(&format!("{values},image.tag={}@{DIGEST}", env!("CARGO_PKG_VERSION")));
    assert_eq!(images(&theirs), vec![image.as_str(); 3]);

    // It leaves the tag out, which says no more to a node.
    let lines = format!("images:\n- name: berth\n  newName: mirror.example/berth\n  digest: {DIGEST}\n");
    let theirs = kustomized_with(
        &["components/garden-member/crd"],
        "alone without-velero self-managed garden-member",
        &lines,
    );
    let image = format!("mirror.example/berth@{DIGEST}");
    assert_eq!(images(&theirs), vec![image.as_str(); 3]);
}

#[test]
fn the_chart_refuses_two_digests() {
    let output = helm(&["--set", &format!("image.tag=1@{DIGEST},image.digest={DIGEST}")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("leave one of them out"), "{said}");
}
