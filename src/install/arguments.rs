//! The arguments of Deployments in a cluster: flags, their values, and which of them berth
//! installed.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::ResourceExt;

/// Annotation of a Deployment with the arguments that berth installed, as a JSON array. All other
/// arguments were added by hand.
pub(super) const RENDERED: &str = "berth.dev/installed-args";
/// Most arguments that are kept. Nobody adds more by hand.
pub(super) const MOST: usize = 256;

pub fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    let spec = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    spec.into_iter().flat_map(|spec| &spec.containers)
}

/// The value of a flag in any of the Deployments; the last one counts.
pub(super) fn flag_of(deployments: &[Deployment], flag: &str) -> Option<String> {
    let args = deployments.iter().flat_map(containers).filter_map(|container| container.args.as_deref());
    let values = args.flat_map(flags).filter_map(|arg| {
        let value = arg.strip_prefix(flag)?.strip_prefix('=')?;
        Some(value.to_owned())
    });
    values.last()
}

/// The arguments that berth installed, where the annotation has them.
pub(super) fn recorded(live: &Deployment) -> Option<Vec<String>> {
    let recorded: Vec<String> = serde_json::from_str(live.annotations().get(RENDERED)?).ok()?;
    Some(recorded).filter(|args| args.len() <= MOST)
}

/// The arguments that berth installed; without the annotation, all arguments.
pub(super) fn installed(live: &Deployment) -> Vec<String> {
    let all = || containers(live).filter_map(|one| one.args.clone()).flatten().take(MOST).collect();
    recorded(live).unwrap_or_else(all)
}

/// Each flag with its value as one argument, `--flag=value`, without the command.
pub(super) fn flags(args: &[String]) -> Vec<String> {
    let mut flags: Vec<String> = Vec::new();
    for arg in args.iter().skip_while(|arg| !arg.starts_with('-')) {
        match flags.last_mut() {
            Some(flag) if !arg.starts_with('-') && !flag.contains('=') => {
                flag.push('=');
                flag.push_str(arg);
            }
            _ => flags.push(arg.clone()),
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_flag_are_read() {
        for (args, expected) in [
            (&["garden", "agent", "--a=1", "--b", "2", "--c"][..], &["--a=1", "--b=2", "--c"][..]),
            (&["webhook", "-n", "here", "--a", "x=1"], &["-n=here", "--a=x=1"]),
            (&["--a=1", "stray"], &["--a=1", "stray"]),
            (&["controller"], &[]),
            (&[], &[]),
        ] {
            let texts: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            assert_eq!(flags(&texts), expected, "{args:?}");
        }
    }
}
