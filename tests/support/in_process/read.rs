//! What is asked: `get`, `auth can-i`.

use futures::future::join_all;
use http::Method;
use serde_json::{Map, Value, json};

use super::args::{Common, MayI, Print, Step, Wanted};
use super::{Connection, JSON, Kind, hide_managers, request, status};
use crate::kubectl::Answer;

/// A list of objects' metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

impl Connection {
    pub(super) async fn get(&self, wanted: &Wanted) -> Option<String> {
        let mut kinds = Vec::new();
        for name in wanted.resources.split(',') {
            kinds.push(self.kind(name).await?);
        }
        let namespace = (!wanted.everywhere).then(|| wanted.common.namespace());
        let Some(name) = &wanted.name else { return self.lists(&kinds, namespace, wanted).await };
        let kind = kinds.first()?;
        match self.ask(&format!("{}/{name}", kind.path(namespace)), None).await {
            Ok(mut object) => {
                hide_managers(&mut object);
                printed(&wanted.print, &[(kind, object)], false)
            }
            Err(404) if wanted.may_be_absent && !wanted.everywhere => Some(String::new()),
            Err(_) => None,
        }
    }

    /// All kinds at once: an API server that answers from its cache takes its time for each, until
    /// that is up to date.
    async fn lists(&self, kinds: &[Kind], namespace: Option<&str>, wanted: &Wanted) -> Option<String> {
        let query = selectors(wanted)?;
        let accept = (wanted.print == Print::Names).then_some(METADATA);
        let paths: Vec<String> =
            kinds.iter().map(|kind| format!("{}?{query}", kind.path(namespace))).collect();
        let asked: Vec<_> = paths.iter().map(|path| self.ask(path, accept)).collect();
        let mut found = Vec::new();
        for (kind, list) in kinds.iter().zip(join_all(asked).await) {
            let Value::Array(items) = list.ok()?.get_mut("items")?.take() else { return None };
            for mut item in items {
                hide_managers(&mut item);
                if let Some(item) = item.as_object_mut() {
                    item.insert("apiVersion".to_owned(), json!(kind.api_version));
                    item.insert("kind".to_owned(), json!(kind.kind));
                }
                found.push((kind, item));
            }
        }
        printed(&wanted.print, &found, true)
    }

    pub(super) async fn may_i(&self, asked: &MayI) -> Option<Answer> {
        let namespace = if asked.everywhere { "" } else { asked.common.namespace() };
        let mut attributes = json!({
            "verb": asked.verb, "resource": asked.resource, "subresource": asked.subresource,
            "name": asked.name, "namespace": namespace,
        });
        if asked.resource != "*" {
            let kind = self.kind(&asked.resource).await?;
            attributes["resource"] = json!(kind.plural);
            attributes["group"] = json!(kind.group());
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let request = request(Method::POST, path, &asked.common, JSON, review.to_string().into_bytes())?;
        let reply = self.send(&request).await.ok().filter(|reply| reply.is_done)?;
        let is_allowed = reply.body["status"]["allowed"] == true;
        let stdout = if is_allowed { "yes\n" } else { "no\n" }.to_owned();
        Some(Answer { stdout, stderr: String::new(), status: status(is_allowed) })
    }

    /// The present object, as the asking user may see it.
    pub(super) async fn look(
        &self,
        kind: &Kind,
        name: &str,
        common: &Common,
    ) -> Option<Result<Value, String>> {
        let path = format!("{}/{name}", kind.path(Some(common.namespace())));
        let request = request(Method::GET, &path, common, "", Vec::new())?;
        Some(match self.send(&request).await {
            Ok(reply) if reply.is_done => Ok(reply.body),
            Ok(reply) => Err(reply.refusal("")),
            Err(said) => Err(said),
        })
    }
}

/// Behind the `?` of a list.
fn selectors(wanted: &Wanted) -> Option<String> {
    let mut query = Vec::new();
    for (key, value) in [("labelSelector", &wanted.labels), ("fieldSelector", &wanted.fields)] {
        let Some(value) = value else { continue };
        let value = value.replace('=', "%3D").replace(',', "%2C").replace('!', "%21");
        (!value.contains([' ', '&', '(', '#'])).then_some(())?;
        query.push(format!("{key}={value}"));
    }
    Some(query.join("&"))
}

/// `None`: kubectl would print it in a way that is not known here.
fn printed(print: &Print, found: &[(&Kind, Value)], is_list: bool) -> Option<String> {
    let whole = || match (is_list, found) {
        (false, [(_, object)]) => object.clone(),
        _ => {
            let items: Vec<&Value> = found.iter().map(|(_, object)| object).collect();
            json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": Map::new()})
        }
    };
    match print {
        Print::Json => serde_json::to_string(&whole()).ok(),
        Print::Names => {
            let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let lines = found.iter().map(|(kind, object)| format!("{}/{}\n", kind.word(), name(object)));
            Some(lines.collect())
        }
        Print::Value(steps) => {
            let mut whole = whole();
            for step in steps {
                let next = match step {
                    Step::Key(key) => whole.get_mut(key.as_str()).map(Value::take),
                    Step::Index(index) => whole.get_mut(*index).map(Value::take),
                };
                whole = next.unwrap_or_default();
            }
            match whole {
                Value::Null => Some(String::new()),
                Value::String(text) => Some(text),
                other => serde_json::to_string(&other).ok(),
            }
        }
    }
}
