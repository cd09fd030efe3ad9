//! What the commands of people have in common: reading, creating and printing objects, questions,
//! and suggestions.

mod lists;
mod output;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::{BufRead, IsTerminal as _, Write};
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_api::keys::FIELD_MANAGER;
use berth_core::glob::is_subdomain;
use http_body_util::BodyExt as _;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::client::Body;
use kube::core::{NamespaceResourceScope, Request, Status};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::namespaced::NamespacedClient;
use crate::args::backup::SelectArgs;
use crate::args::value::selector_text;
use crate::args::{ClusterArgs, ColourArgs};
use crate::cli::config;
use crate::cli::object::bad_name;
use crate::cli::print::note;
use crate::cli::rights;
use crate::cli::suggest::closest;
use crate::client::{is_not_found, persistent, server};

pub use lists::typed;
pub use output::{print_list, print_object, printed_instead, refuse_plan};

/// The command line itself is wrong, whatever the cluster has.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongFlags(String);

/// One command of a person: the namespace, and a client that is made when it is needed, because
/// what only prints needs no cluster.
pub struct Person {
    target: ClusterArgs,
    /// What `--colorized` says.
    colorized: Option<bool>,
    client: OnceLock<Client>,
}

/// The objects that a command acts on.
pub struct Selected<K> {
    pub found: Vec<K>,
    /// How many names were given that are not there.
    pub missing: usize,
}

impl Person {
    pub fn new(target: ClusterArgs) -> anyhow::Result<Self> {
        if !is_subdomain(&target.namespace) {
            let message = format!(
                "--namespace: {:?} is no name of a namespace: lower case letters, digits and '-'",
                target.namespace
            );
            bail!(WrongFlags(message));
        }
        Ok(Self { target, colorized: None, client: OnceLock::new() })
    }

    /// In namespace `velero`, with a client that is there already.
    #[cfg(test)]
    pub fn of(client: Client) -> Self {
        let target = ClusterArgs { namespace: "velero".to_owned(), kubeconfig: None, context: None };
        Self { target, colorized: None, client: OnceLock::from(client) }
    }

    #[must_use]
    pub fn coloured(self, colours: &ColourArgs) -> Self {
        Self { colorized: colours.colorized.and_then(|said| said.0), ..self }
    }

    /// Adds to an error what to do, where that is known.
    pub async fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let error = rights::explained(error, self.namespace());
        let is_call =
            |cause: &kube::Error| matches!(cause, kube::Error::Service(_) | kube::Error::HyperError(_));
        if !error.chain().filter_map(|cause| cause.downcast_ref::<kube::Error>()).any(is_call) {
            return error;
        }
        match server(self.target.source()).await {
            Ok(server) => error.context(format!(
                "the API server {server} does not answer (--kubeconfig and --context say which one is asked)"
            )),
            Err(_) => error,
        }
    }

    /// Are colours wanted on stdout?
    pub fn colour(&self) -> bool {
        let variables = ["NO_COLOR", "TERM"].map(std::env::var_os);
        std::io::stdout().is_terminal()
            && is_colourful(self.colorized.or_else(|| config::read().colorized), &variables)
    }

    pub fn namespace(&self) -> &str {
        &self.target.namespace
    }

    pub fn target(&self) -> &ClusterArgs {
        &self.target
    }

    pub async fn client(&self) -> anyhow::Result<Client> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = persistent(self.target.source()).await?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    pub async fn here(&self) -> anyhow::Result<NamespacedClient> {
        Ok(NamespacedClient { client: self.client().await?, namespace: self.target.namespace.clone() })
    }

    pub async fn api<K>(&self) -> anyhow::Result<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Ok(Api::namespaced(self.client().await?, self.namespace()))
    }

    /// One object. If there is none of that name, the error suggests one.
    pub async fn get<K>(&self, name: &str) -> anyhow::Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        check_name(&K::kind(&()), name)?;
        match self.api::<K>().await?.get(name).await {
            Ok(object) => Ok(object),
            Err(error) if is_not_found(&error) => Err(self.missing::<K>(name).await),
            Err(error) => Err(error).with_context(|| format!("failed to get {} {name}", K::kind(&()))),
        }
    }

    /// The error of a name that is not there.
    async fn missing<K>(&self, name: &str) -> anyhow::Error
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        anyhow!(self.absent::<K>(name, self.names::<K>().await.as_deref()))
    }

    /// The names of all objects of a kind, if they can be listed.
    async fn names<K>(&self) -> Option<Vec<String>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let all = self.list::<K>(None).await.ok()?;
        Some(all.iter().map(ResourceExt::name_any).collect())
    }

    /// Says that a name is not there, and which one may be meant of those that are.
    fn absent<K>(&self, name: &str, there: Option<&[String]>) -> String
    where
        K: Resource<DynamicType = ()>,
    {
        let kind = K::kind(&());
        let text = format!("there is no {kind} {name} in namespace {}", self.namespace());
        let Some(there) = there else { return text };
        match closest(name, there.iter().map(String::as_str)) {
            Some(meant) => format!("{text}: did you mean {meant}?"),
            None if there.is_empty() => {
                format!("{text}, which has none at all: --namespace names another one")
            }
            None => format!("{text}: `berth {} get` lists them", noun(&kind)),
        }
    }

    /// The objects that were named, or all that match. `selector`: as kubectl takes it.
    pub async fn chosen<K>(
        &self,
        names: &[String],
        selector: Option<&str>,
    ) -> anyhow::Result<Vec<DynamicObject>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if names.is_empty() {
            return self.list::<K>(selector).await;
        }
        let message = "--selector does not go together with names: give one of them";
        ensure!(selector.is_none(), WrongFlags(message.to_owned()));
        let mut found = Vec::new();
        for name in names {
            match self.named::<K>(name).await? {
                Some(object) => found.push(object),
                None => return Err(self.missing::<K>(name).await),
            }
        }
        Ok(found)
    }

    async fn named<K>(&self, name: &str) -> anyhow::Result<Option<DynamicObject>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        check_name(&resource.kind, name)?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client().await?, self.namespace(), &resource);
        api.get_opt(name).await.with_context(|| format!("failed to get {} {name}", resource.kind))
    }

    /// The objects that a command acts on, each once. A name that is not there is told, and the
    /// command acts on the others all the same.
    ///
    /// # Errors
    /// When there is none of the names.
    pub async fn selected<K>(&self, which: &SelectArgs) -> anyhow::Result<Selected<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if which.names.is_empty() {
            // `--all=false` chooses nothing.
            let message = "nothing is chosen: give names, --all, or --selector";
            ensure!(which.all || which.selector.is_some(), WrongFlags(message.to_owned()));
            let selector = which.selector.as_ref().map(|selector| selector_text(Some(selector)));
            let message = "--selector is empty and would match everything: use --all, if that is meant";
            ensure!(selector.as_deref() != Some("<none>"), WrongFlags(message.to_owned()));
            return Ok(Selected { found: self.list_typed::<K>(selector.as_deref()).await?, missing: 0 });
        }
        let (mut found, mut missing, mut once) = (Vec::new(), Vec::new(), HashSet::new());
        for name in which.names.iter().filter(|name| once.insert(name.as_str())) {
            match self.named::<K>(name).await? {
                Some(object) => found.push(object),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let there = self.names::<K>().await;
            let told = missing.iter().map(|name| self.absent::<K>(name, there.as_deref()));
            let told: Vec<String> = told.collect();
            ensure!(!found.is_empty(), told.join("\n"));
            told.iter().for_each(|text| note!("{text}"));
        }
        Ok(Selected { found: typed(&found), missing: missing.len() })
    }

    /// Creates an object. Warnings of admission go to stderr.
    pub async fn create<K>(&self, object: &Value, is_dry_run: bool) -> anyhow::Result<Value>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let params = PostParams { dry_run: is_dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let request = Request::new(K::url_path(&(), Some(self.namespace())));
        let request =
            request.create(&params, serde_json::to_vec(object)?).context("no request could be made")?;
        let answer = self.client().await?.send(request.map(Body::from)).await?;
        let (parts, body) = answer.into_parts();
        for warning in parts.headers.get_all("warning") {
            if let Some(text) = warning.to_str().ok().and_then(warning_text) {
                note!("Warning: {text}");
            }
        }
        let body = body.collect().await.context("the API server's answer was cut off")?.to_bytes();
        let failed = || format!("failed to create {} {name}", K::kind(&()));
        if !parts.status.is_success() {
            let status: Status = serde_json::from_slice(&body).unwrap_or_else(|_| {
                let text: String = String::from_utf8_lossy(&body).chars().take(1000).collect();
                Status::failure(&text, parts.status.as_str()).with_code(parts.status.as_u16())
            });
            return Err(kube::Error::Api(Box::new(status))).with_context(failed);
        }
        serde_json::from_slice(&body).with_context(failed)
    }
}

/// Whether a terminal is to have colours. `said`: what the user says. `variables`: `NO_COLOR` and
/// `TERM`.
fn is_colourful(said: Option<bool>, [no_color, terminal]: &[Option<OsString>; 2]) -> bool {
    said != Some(false)
        && no_color.as_deref().is_none_or(OsStr::is_empty)
        && terminal.as_deref().is_some_and(|terminal| terminal != "dumb")
}

/// The command that lists a kind.
fn noun(kind: &str) -> &'static str {
    match kind {
        "Schedule" => "schedule",
        "BackupStorageLocation" => "backup-location",
        _ => "backup",
    }
}

/// A name becomes a part of a URL.
pub fn check_name(kind: &str, name: &str) -> anyhow::Result<()> {
    bad_name(kind, name).map_or(Ok(()), |fault| Err(WrongFlags(fault).into()))
}

/// The text of a Warning header: `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?.strip_prefix('"')?;
    let (mut text, mut characters) = (String::new(), quoted.chars());
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            other => text.push(other),
        }
    }
}

/// All faults of a command line as one error.
pub fn faults(found: Vec<String>) -> anyhow::Result<()> {
    let message = match found.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("{} flags are wrong:\n  {}", many.len(), many.join("\n  ")),
    };
    Err(WrongFlags(message).into())
}

/// Asks whether to go on. Without a terminal nobody can answer, so nothing is asked.
pub fn confirmed(confirm: bool) -> anyhow::Result<bool> {
    if confirm {
        return Ok(true);
    }
    let input = std::io::stdin();
    answered(input.is_terminal(), input.lock(), std::io::stderr())
}

fn answered(is_terminal: bool, mut input: impl BufRead, mut out: impl Write) -> anyhow::Result<bool> {
    ensure!(
        is_terminal,
        "nothing was deleted, because nobody can be asked: standard input is no terminal. Give --confirm to delete without a question"
    );
    write!(out, "Are you sure you want to continue (Y/N)? ")?;
    out.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        note!("nothing was deleted");
    }
    Ok(is_yes)
}

#[cfg(test)]
mod tests;
