//! `berth version`: of this program, and of the server that answers ServerStatusRequests. Other
//! commands compare their version with that of the leading berth, which stands on its Lease,
//! because few people may create ServerStatusRequests.

use std::sync::Once;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys;
use berth_api::velero::ServerStatusRequest;
use berth_api::velero::server_status_request::ServerStatusRequestSpec;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::namespaced::{NamespacedClient, lease};
use super::person::Person;
use crate::args::VersionArgs;
use crate::cli::print::{note, say};
use crate::leader::no_leader_reason;
use crate::text::printable;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What stands before berth's version in that of the server.
const BUILD: &str = "+berth.";
/// Pauses between looks at the request.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long the removal of the answered request may take.
const TIDY: Duration = Duration::from_secs(2);
/// How long a command that changes something waits for the version of the leading berth.
const PATIENCE: Duration = Duration::from_secs(1);

/// # Errors
/// When no server answers.
pub async fn run(args: VersionArgs) -> anyhow::Result<()> {
    say!("Client:\n\tVersion: v{VERSION}");
    if args.client_only {
        return Ok(());
    }
    let person = Person::new(args.target)?;
    let api = person.api::<ServerStatusRequest>().await?;
    let asked = server(&api, Instant::now() + args.timeout.0).await;
    let version = match asked {
        Ok(version) => version,
        Err(error) => {
            let error = person.explained(error).await;
            return Err(
                error.context("the server's version is not known (--client-only does not ask for it)")
            );
        }
    };
    say!("Server:\n\tVersion: {}", printable(&version));
    if let Some(warning) = warning(&version) {
        note!("Warning: {}", printable(&warning));
    }
    Ok(())
}

/// Asks whoever serves the namespace for its version.
async fn server(api: &Api<ServerStatusRequest>, deadline: Instant) -> anyhow::Result<String> {
    let metadata = ObjectMeta { generate_name: Some("velero-cli-".to_owned()), ..ObjectMeta::default() };
    let request = ServerStatusRequest { metadata, spec: ServerStatusRequestSpec {}, status: None };
    let late = "nobody answered in time: is a berth controller or a Velero server running in this namespace? --timeout sets how long to wait";
    let params = PostParams::default();
    let made = timeout_at(deadline, api.create(&params, &request)).await.context(late)?;
    let name = made.context("failed to create a ServerStatusRequest")?.name_any();
    let answered = timeout_at(deadline, answer(api, &name)).await;
    // Whoever answers these requests removes them a minute later, if this does not.
    let _ = timeout_at(Instant::now() + TIDY, api.delete(&name, &DeleteParams::default())).await;
    answered.context(late)?
}

async fn answer(api: &Api<ServerStatusRequest>, name: &str) -> anyhow::Result<String> {
    let mut pause = FIRST_PAUSE;
    loop {
        let found = api.get_opt(name).await.context("failed to get a ServerStatusRequest")?;
        let Some(found) = found else {
            bail!("ServerStatusRequest {name} was deleted before it was answered: try again");
        };
        let version = found.status.and_then(|status| status.server_version);
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            return Ok(version);
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Before a command changes something: tells if the leading berth has another version. The Lease is
/// read for it, so commands that only list objects do without. Who may not read it is told nothing,
/// and a slow answer holds no command up for long.
pub async fn compare(person: &Person) {
    if let Ok(here) = person.here().await {
        compare_in(&here).await;
    }
}

/// The same for a command that has a client of its own.
pub async fn compare_in(here: &NamespacedClient) {
    if let Ok(Some(lease)) = timeout(PATIENCE, lease(&here.client, &here.namespace)).await {
        tell(&lease);
    }
}

/// The same by a Lease that was read anyway. It is told once in a command.
pub fn tell(lease: &Lease) {
    static TOLD: Once = Once::new();
    if let Some(warning) = of_leader(lease, Timestamp::now()) {
        TOLD.call_once(|| note!("Warning: {}", printable(&warning)));
    }
}

/// What is wrong with the version of the berth that leads, if one does.
fn of_leader(lease: &Lease, now: Timestamp) -> Option<String> {
    let version = lease.annotations().get(keys::VERSION)?;
    if no_leader_reason(Some(lease), now).is_some() { None } else { difference(version) }
}

/// What is wrong with a server of this version. Nothing is known of one that is no berth.
fn warning(server: &str) -> Option<String> {
    let (_, version) = server.split_once(BUILD)?;
    difference(version)
}

fn difference(version: &str) -> Option<String> {
    if version == VERSION {
        return None;
    }
    let than = match numbers(version).zip(numbers(VERSION)) {
        Some((server, own)) if server > own => "newer than",
        Some((server, own)) if server < own => "older than",
        _ => "another one than",
    };
    Some(format!(
        "the server is berth {version}, {than} this program, which is {VERSION}: use the same version of both"
    ))
}

/// `1.2.3` of `1.2.3-rc.1`.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let release = version.split(['-', '+']).next()?;
    let numbers: Vec<u64> = release.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, delete, get, post};
    use serde_json::{Value, json};

    use super::*;

    const ALL: &str = "/apis/velero.io/v1/namespaces/velero/serverstatusrequests";
    const ONE: &str = "/apis/velero.io/v1/namespaces/velero/serverstatusrequests/one";

    fn request(status: &Value) -> Value {
        json!({
            "apiVersion": "velero.io/v1", "kind": "ServerStatusRequest",
            "metadata": {"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": "7"},
            "spec": {}, "status": status,
        })
    }

    async fn asked(api: &Scripted) -> anyhow::Result<String> {
        let requests = Api::namespaced(api.client("velero"), "velero");
        server(&requests, Instant::now() + Duration::from_secs(5)).await
    }

    fn script() -> Scripted {
        let gone = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
        Scripted::new().next(post(ALL).answers(request(&json!({})))).always(delete(ONE).answers(gone))
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_is_asked_until_it_answers_and_the_request_is_removed() {
        let answer = json!({"phase": "Processed", "serverVersion": "v1.18.3+berth.0.1.0"});
        let api =
            script().next(get(ONE).answers(request(&json!({})))).next(get(ONE).answers(request(&answer)));
        assert_eq!(asked(&api).await.unwrap(), "v1.18.3+berth.0.1.0");
        assert!(api.asked().iter().any(|one| one.starts_with("DELETE")), "{:?}", api.asked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_an_error_with_the_way_out_and_leaves_no_request() {
        let api = script().always(get(ONE).answers(request(&json!({}))));
        let error = asked(&api).await.unwrap_err();
        assert!(error.to_string().contains("--timeout"), "{error}");
        assert!(api.asked().iter().any(|one| one.starts_with("DELETE")), "{:?}", api.asked());
        let looks = api.asked().iter().filter(|one| one.starts_with("GET")).count();
        assert!((10..=20).contains(&looks), "{looks} looks in five seconds");
    }

    #[test]
    fn the_version_of_the_berth_that_leads_is_told_and_none_of_one_that_is_gone() {
        let now: Timestamp = "2026-11-25T16:00:00Z".parse().unwrap();
        let lease = |version: &str, holder: &str| -> Lease {
            serde_json::from_value(json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"annotations": {"berth.dev/version": version}},
                "spec": {"holderIdentity": holder, "renewTime": "2026-11-25T15:59:50.000000Z"},
            }))
            .unwrap()
        };
        let said = of_leader(&lease("99.0.0", "one"), now).unwrap_or_default();
        assert!(said.starts_with("the server is berth 99.0.0, newer than this program"), "{said}");
        assert_eq!(of_leader(&lease(VERSION, "one"), now), None);
        assert_eq!(of_leader(&lease("99.0.0", ""), now), None, "it has given the Lease up");
        let later: Timestamp = "2026-11-25T16:30:00Z".parse().unwrap();
        assert_eq!(of_leader(&lease("99.0.0", "one"), later), None, "it is silent");
        assert_eq!(of_leader(&Lease::default(), now), None);
    }

    #[test]
    fn another_version_of_berth_is_told_and_a_velero_is_not() {
        assert_eq!(warning(&format!("v1.18.3+berth.{VERSION}")), None);
        assert_eq!(warning("v1.18.3"), None);
        let candidate = format!("{VERSION}-rc.1");
        for (server, than) in [
            ("99.0.0", "newer than"),
            ("0.0.9", "older than"),
            (candidate.as_str(), "another one than"),
            ("next", "another one than"),
        ] {
            let said = warning(&format!("v1.18.3+berth.{server}")).unwrap_or_default();
            let expected = format!("the server is berth {server}, {than} this program, which is {VERSION}: ");
            assert!(said.starts_with(&expected), "{said}");
        }
    }
}
