//! The command line that becomes a container's program. See the script `container` beside this
//! folder.

use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};

use super::environment::{Environment, expand};
use super::identity::Identity;
use super::site::{self, Site};
use super::volumes::Volume;
use crate::network::Place;
use crate::process::in_own_session;
use crate::project;

/// Where an image has its program, unless the container's command says where else.
const ENTRYPOINT: &str = "/berth";
/// For the programs that lead there. It is not handed on.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the program says of its end: the file that it has for that.
pub fn message_of(site: &Site, pod: &Pod, container: &Container) -> PathBuf {
    site.folder_of(pod).join("containers").join(format!("{}.message", container.name))
}

/// # Errors
/// When it is not allowed to run, a volume is missing, or its log cannot be written.
pub fn command(
    site: &Site,
    pod: &Pod,
    container: &Container,
    place: &Place,
    volumes: &BTreeMap<String, Volume>,
    program: &Path,
    env: &Environment,
) -> anyhow::Result<Command> {
    let spec = pod.spec.as_ref().context("the pod has no spec")?;
    let identity = Identity::of(spec, container);
    identity.ensure_allowed(spec, container)?;
    let root = site.folder_of(pod).join("containers").join(&container.name);
    std::fs::create_dir_all(&root)?;

    let mut command = in_own_session(Path::new("nsenter"));
    command.arg(format!("--net=/run/netns/{}", place.namespace));
    command.args(["unshare", "--mount", "--propagation", "private", "bash"]);
    let own = container.command.as_deref().unwrap_or_default();
    let entrypoint =
        own.first().map(String::as_str).filter(|path| path.starts_with('/')).unwrap_or(ENTRYPOINT);
    command.arg(project().join("tests/support/container")).arg(root).arg(program).arg(entrypoint);
    let mut mounts: Vec<&VolumeMount> = container.volume_mounts.iter().flatten().collect();
    // What is mounted inside another mount comes after it.
    mounts.sort_by(|a, b| a.mount_path.cmp(&b.mount_path));
    for mount in mounts {
        let volume = volumes.get(&mount.name).with_context(|| format!("no volume {}", mount.name))?;
        let is_read_only = volume.is_read_only || mount.read_only == Some(true);
        command.arg(if is_read_only { "ro" } else { "rw" }).arg(&volume.source).arg(&mount.mount_path);
    }
    let message = message_of(site, pod, container);
    std::fs::write(&message, "").with_context(|| format!("failed to write {}", message.display()))?;
    std::fs::set_permissions(&message, Permissions::from_mode(0o666))?;
    let path = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    command.arg("rw").arg(message).arg(path);
    if identity.is_sealed {
        command.arg("sealed");
    }
    command.arg("--").args(identity.flags());
    let folder = container.working_dir.as_deref().unwrap_or("/");
    command.args(["./env", "--ignore-environment", "--chdir", folder]);
    command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
    if own.is_empty() {
        command.arg(ENTRYPOINT);
    }
    let args = container.args.as_deref().unwrap_or_default();
    let more = site.more_args(args);
    let words = own.iter().chain(args).chain(&more);
    command.args(words.map(|word| expand(word, env)));

    let (namespace, name) = site::key(pod);
    let log = site.log_of(&namespace, &name, &container.name);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("failed to open {}", log.display()))?;
    command.env_clear().env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}
