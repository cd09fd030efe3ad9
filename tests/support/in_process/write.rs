//! What is written: `apply --server-side`, `create`, `patch`, `annotate`, `label`, `delete`.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use http::{Method, Request};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::args::{Apply, Change, Common, Create, Delete, Note};
use super::{Connection, JSON, Kind, Reply, hide_managers, request, status};
use crate::kubectl::Answer;

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
/// Objects that are sent at the same time where their order does not matter.
const AT_ONCE: usize = 8;
/// Between two checks whether an object is gone.
const PAUSE: Duration = Duration::from_millis(50);

/// What kubectl has printed so far.
struct Said<'c> {
    common: &'c Common,
    stdout: String,
    stderr: String,
    /// It prints each warning once.
    warned: BTreeSet<String>,
    is_well: bool,
}

impl<'c> Said<'c> {
    fn new(common: &'c Common) -> Self {
        let warned = BTreeSet::new();
        Self { common, stdout: String::new(), stderr: String::new(), warned, is_well: true }
    }

    /// `done`: what is to be printed of a success; `before`: what stands before the words of a
    /// refusal. Gives what came back of a success.
    fn take(
        &mut self,
        reply: Result<Reply, String>,
        done: impl FnOnce(&Value) -> String,
        before: &str,
    ) -> Option<Value> {
        let reply = match reply {
            Ok(reply) => reply,
            Err(said) => {
                self.fails(&said);
                return None;
            }
        };
        for warning in &reply.warnings {
            if self.warned.insert(warning.clone()) {
                self.stderr += &format!("Warning: {warning}\n");
            }
        }
        if !reply.is_done {
            self.fails(&reply.refusal(before));
            return None;
        }
        let mut body = reply.body;
        if self.common.prints_json {
            hide_managers(&mut body);
            self.stdout += &format!("{body}\n");
        } else {
            let dry = if self.common.is_dry { " (server dry run)" } else { "" };
            self.stdout += &format!("{}{dry}\n", done(&body));
        }
        Some(body)
    }

    fn fails(&mut self, said: &str) {
        self.stderr += said;
        self.is_well = false;
    }

    fn answer(self) -> Answer {
        Answer { stdout: self.stdout, stderr: self.stderr, status: status(self.is_well) }
    }
}

/// As kubectl names an object: by what came back, for its name may be made there.
fn named(kind: &Kind, object: &Value) -> String {
    format!("{}/{}", kind.word(), object["metadata"]["name"].as_str().unwrap_or_default())
}

/// An object that is to be written: its kind, and the request.
type Writing = (Kind, Request<Vec<u8>>);

/// Nothing has to be there before it but its namespace, and its place in a row says nothing.
fn is_free(kind: &Kind) -> bool {
    let groups = [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "rbac.authorization.k8s.io",
        "scheduling.k8s.io",
    ];
    let kinds = ["ConfigMap", "Secret", "Service", "ServiceAccount"];
    groups.contains(&kind.group()) || kind.group().is_empty() && kinds.contains(&kind.kind.as_str())
}

impl Connection {
    /// In their order, where that matters. `None`, before anything is sent, for kinds that are not
    /// known.
    pub(super) async fn apply(&self, apply: &Apply) -> Option<Answer> {
        let force = if apply.is_forced { "&force=true" } else { "" };
        let query = format!("{}&fieldValidation=Strict{force}", apply.common.query(""));
        let mut requests: Vec<Writing> = Vec::new();
        for object in &apply.objects {
            let kind = self.kind_of(object).await?;
            let name = object["metadata"]["name"].as_str()?;
            let path = kind.path(Some(apply.common.namespace_of(object)?));
            let body = object.to_string().into_bytes();
            let request =
                request(Method::PATCH, &format!("{path}/{name}?{query}"), &apply.common, APPLY, body)?;
            requests.push((kind, request));
        }
        let mut said = Said::new(&apply.common);
        for (kind, reply) in self.send_all(&requests).await {
            said.take(reply, |object| format!("{} serverside-applied", named(kind, object)), "");
        }
        Some(said.answer())
    }

    /// In their order, where that matters; some at a time elsewhere. Once something is sent,
    /// kubectl is not asked any more: a request that failed must not be made good by a second one.
    async fn send_all<'r>(&self, requests: &'r [Writing]) -> Vec<(&'r Kind, Result<Reply, String>)> {
        let together = requests.chunk_by(|(a, _), (b, _)| is_free(a) && is_free(b));
        let together: Vec<_> = together.flat_map(|some| some.chunks(AT_ONCE)).collect();
        let mut replies = Vec::new();
        for some in together {
            let sent: Vec<_> = some.iter().map(|(_, request)| self.send(request)).collect();
            replies.extend(some.iter().map(|(kind, _)| kind).zip(join_all(sent).await));
        }
        replies
    }

    /// In their order, where that matters. `None`, before anything is sent, for kinds that are not
    /// known.
    pub(super) async fn create(&self, create: &Create) -> Option<Answer> {
        let query = format!("{}&fieldValidation=Strict", create.common.query("-create"));
        let mut requests: Vec<Writing> = Vec::new();
        for object in &create.objects {
            let kind = self.kind_of(object).await?;
            let path = kind.path(Some(create.common.namespace_of(object)?));
            let body = object.to_string().into_bytes();
            let request = request(Method::POST, &format!("{path}?{query}"), &create.common, JSON, body)?;
            requests.push((kind, request));
        }
        let mut said = Said::new(&create.common);
        for (kind, reply) in self.send_all(&requests).await {
            let done = |object: &Value| format!("{} created", named(kind, object));
            said.take(reply, done, "error when creating \"STDIN\": ");
        }
        Some(said.answer())
    }

    pub(super) async fn change(&self, change: &Change) -> Option<Answer> {
        let kind = self.kind(&change.kind).await?;
        let content = match change.how.as_str() {
            "merge" => MERGE,
            "json" => "application/json-patch+json",
            "strategic" if !kind.is_custom() => "application/strategic-merge-patch+json",
            _ => return None,
        };
        let mut said = Said::new(&change.common);
        // A user who may not read an object cannot change it by kubectl.
        if change.common.user.is_some()
            && let Err(refused) = self.look(&kind, &change.name, &change.common).await?
        {
            said.fails(&refused);
            return Some(said.answer());
        }
        let part = change.subresource.as_ref().map_or_else(String::new, |part| format!("/{part}"));
        let path = kind.path(Some(change.common.namespace()));
        let path = format!("{path}/{}{part}?{}", change.name, change.common.query("-patch"));
        let body = change.patch.clone().into_bytes();
        let request = request(Method::PATCH, &path, &change.common, content, body)?;
        let reply = self.send(&request).await;
        said.take(reply, |object| format!("{} patched", named(&kind, object)), "");
        Some(said.answer())
    }

    /// `None`, before anything is sent, where kubectl would refuse to write over something.
    pub(super) async fn note(&self, note: &Note) -> Option<Answer> {
        let kind = self.kind(&note.kind).await?;
        let mut said = Said::new(&note.common);
        let mut values = Map::new();
        for (key, value) in &note.values {
            values.insert(key.clone(), json!(value));
        }
        let (command, done) =
            if note.part == "labels" { ("-label", "labeled") } else { ("-annotate", "annotated") };
        let patch = json!({"metadata": {note.part: values}}).to_string().into_bytes();
        let mut found = Vec::new();
        for name in &note.names {
            found.push(self.look(&kind, name, &note.common).await?);
        }
        let is_in_the_way = |object: &Value| {
            note.values.iter().any(|(key, value)| {
                let before = &object["metadata"][note.part][key.as_str()];
                value.as_ref().is_some_and(|value| !before.is_null() && before != value.as_str())
            })
        };
        (note.overwrites || !found.iter().flatten().any(is_in_the_way)).then_some(())?;
        for (name, found) in note.names.iter().zip(found) {
            if let Err(refused) = found {
                said.fails(&refused);
                continue;
            }
            let path = kind.path(Some(note.common.namespace()));
            let path = format!("{path}/{name}?{}", note.common.query(command));
            let request = request(Method::PATCH, &path, &note.common, MERGE, patch.clone())?;
            let reply = self.send(&request).await;
            said.take(reply, |object| format!("{} {done}", named(&kind, object)), "");
        }
        Some(said.answer())
    }

    pub(super) async fn delete(&self, delete: &Delete) -> Option<Answer> {
        let common = &delete.common;
        let mut kinds = Vec::new();
        for (kind, _) in &delete.targets {
            kinds.push(self.kind(kind).await?);
        }
        let mut body =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        if common.is_dry {
            // Beside a body the API server reads no parameters.
            body["dryRun"] = json!(["All"]);
        }
        let mut said = Said::new(common);
        let mut going = Vec::new();
        for (kind, (_, name)) in kinds.iter().zip(&delete.targets) {
            // A user who may not read an object cannot delete it by kubectl.
            if common.user.is_some()
                && let Err(refused) = self.look(kind, name, common).await?
            {
                said.fails(&refused);
                continue;
            }
            let path = format!("{}/{name}", kind.path(Some(common.namespace())));
            let body = body.to_string().into_bytes();
            let request = request(Method::DELETE, &path, common, JSON, body)?;
            let reply = self.send(&request).await;
            if delete.may_be_absent && reply.as_ref().is_ok_and(|reply| reply.code == 404) {
                continue;
            }
            let deleted = said.take(reply, |_| format!("{} \"{name}\" deleted", kind.word()), "");
            // The object itself, or a word about it.
            let uid = deleted.map(|mut object| {
                let uid = object["details"]["uid"].take();
                if uid.is_null() { object["metadata"]["uid"].take() } else { uid }
            });
            going.extend(uid.map(|uid| (path, uid)));
        }
        for (path, uid) in going.into_iter().filter(|_| delete.waits) {
            while self.is_there(&path, &uid).await {
                sleep(PAUSE).await;
            }
        }
        Some(said.answer())
    }

    /// That one, and not another one of its name. Who does not answer may have it.
    async fn is_there(&self, path: &str, uid: &Value) -> bool {
        match self.ask(path, None).await {
            Ok(object) => object["metadata"]["uid"] == *uid,
            Err(404) => false,
            Err(_) => true,
        }
    }
}
