//! What a pod may ask for and these nodes cannot give.

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};

/// That of it which this pod asks for.
pub fn unsupported(spec: &PodSpec) -> Vec<&'static str> {
    let containers = &spec.containers;
    let any = |asks: fn(&Container) -> bool| containers.iter().any(asks);
    let probes = || containers.iter().flat_map(|c| [&c.startup_probe, &c.readiness_probe, &c.liveness_probe]);
    let any_probe = |asks: fn(&Probe) -> bool| probes().flatten().any(asks);
    let in_host = [spec.host_network, spec.host_pid, spec.host_ipc].contains(&Some(true));
    let table = [
        ("init containers", spec.init_containers.iter().flatten().next().is_some()),
        ("namespaces of the host", in_host),
        ("privileged containers", any(is_privileged)),
        ("envFrom", any(|c| c.env_from.iter().flatten().next().is_some())),
        ("block devices", any(|c| c.volume_devices.iter().flatten().next().is_some())),
        ("subPath", any(uses_sub_path)),
        ("lifecycle hooks but preStop.sleep", any(has_hook)),
        ("probes that run a command", any_probe(|probe| probe.exec.is_some())),
        ("gRPC probes", any_probe(|probe| probe.grpc.is_some())),
        ("HTTPS probes, or probes of another host", any_probe(leads_elsewhere)),
    ];
    table.into_iter().filter(|(_, is_asked)| *is_asked).map(|(what, _)| what).collect()
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
}

fn uses_sub_path(container: &Container) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.sub_path.is_some() || mount.sub_path_expr.is_some())
}

fn has_hook(container: &Container) -> bool {
    container.lifecycle.as_ref().is_some_and(|hooks| {
        hooks.post_start.is_some() || hooks.pre_stop.as_ref().is_some_and(|hook| hook.sleep.is_none())
    })
}

fn leads_elsewhere(probe: &Probe) -> bool {
    let https = |scheme: &String| scheme == "HTTPS";
    probe.http_get.as_ref().is_some_and(|get| get.host.is_some() || get.scheme.as_ref().is_some_and(https))
        || probe.tcp_socket.as_ref().is_some_and(|socket| socket.host.is_some())
}
