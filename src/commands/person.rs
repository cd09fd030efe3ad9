//! What the commands of people have in common: reading, creating and printing objects, questions,
//! and suggestions.

use std::fmt::Debug;
use std::io::{BufRead as _, IsTerminal as _, Write};
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_api::keys::FIELD_MANAGER;
use berth_core::glob::is_subdomain;
use http_body_util::BodyExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::client::Body;
use kube::core::{NamespaceResourceScope, Request, Status};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::queue::NamespacedClient;
use crate::args::backup::{DryRun, GetArgs, MadeArgs, MadeOutput, SelectArgs};
use crate::args::listed::ListOutput;
use crate::args::value::selector_text;
use crate::args::{ClusterArgs, ColourArgs, Output};
use crate::cli::config;
use crate::cli::object::bad_name;
use crate::cli::print;
use crate::cli::rights;
use crate::cli::suggest::closest;
use crate::cli::table::{More, Table};
use crate::client::{is_not_found, persistent, server};
use crate::text::{escaped, printable};

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Objects that a list holds at most.
const MOST: usize = 100_000;

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
        std::io::stdout().is_terminal()
            && self.colorized.or_else(|| config::read().colorized) != Some(false)
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var("TERM").is_ok_and(|terminal| terminal != "dumb")
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
        let kind = K::kind(&()).into_owned();
        let text = format!("there is no {kind} {name} in namespace {}", self.namespace());
        let Ok(there) = self.list::<K>(None).await else { return anyhow!(text) };
        let names: Vec<String> = there.iter().map(ResourceExt::name_any).collect();
        match closest(name, names.iter().map(String::as_str)) {
            Some(meant) => anyhow!("{text}: did you mean {meant}?"),
            None if names.is_empty() => {
                anyhow!("{text}, which has none at all: --namespace names another one")
            }
            None => anyhow!("{text}: `berth {} get` lists them", noun(&kind)),
        }
    }

    /// The objects of a kind with all their fields.
    pub async fn list<K>(&self, selector: Option<&LabelSelector>) -> anyhow::Result<Vec<DynamicObject>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.list_of(&ApiResource::erase::<K>(&()), selector.map(|selector| selector_text(Some(selector))))
            .await
    }

    /// [`Person::list`] by a resource that no type describes. `selector`: as kubectl takes it.
    pub async fn list_of(
        &self,
        resource: &ApiResource,
        selector: Option<String>,
    ) -> anyhow::Result<Vec<DynamicObject>> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client().await?, self.namespace(), resource);
        let mut params = ListParams::default().limit(PAGE);
        if let Some(selector) = selector.filter(|selector| selector != "<none>") {
            params = params.labels(&selector);
        }
        let mut all = Vec::new();
        loop {
            let page =
                api.list(&params).await.with_context(|| format!("failed to list {}", resource.plural))?;
            let more = page.metadata.continue_.clone().filter(|token| !token.is_empty());
            all.extend(page.items);
            ensure!(all.len() <= MOST, "there are more than {MOST} {}: name some of them", resource.plural);
            match more {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// The objects that were named, or all that match.
    pub async fn chosen<K>(
        &self,
        names: &[String],
        selector: Option<&LabelSelector>,
    ) -> anyhow::Result<Vec<DynamicObject>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if names.is_empty() {
            return self.list::<K>(selector).await;
        }
        let message = "--selector does not go together with names: give one of them";
        ensure!(selector.is_none(), WrongFlags(message.to_owned()));
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client().await?, self.namespace(), &resource);
        let mut found = Vec::new();
        for name in names {
            check_name(&resource.kind, name)?;
            match api.get(name).await {
                Ok(object) => found.push(object),
                Err(error) if is_not_found(&error) => return Err(self.missing::<K>(name).await),
                Err(error) => {
                    return Err(error).with_context(|| format!("failed to get {} {name}", resource.kind));
                }
            }
        }
        Ok(found)
    }

    /// The objects that a command acts on.
    pub async fn selected<K>(&self, which: &SelectArgs) -> anyhow::Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if let Some(selector) = &which.selector {
            let message = "--selector is empty and would match everything: use --all, if that is meant";
            ensure!(selector_text(Some(selector)) != "<none>", WrongFlags(message.to_owned()));
        }
        let found = self.chosen::<K>(&which.names, which.selector.as_ref()).await?;
        Ok(typed(&found))
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
                eprintln!("Warning: {text}");
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

/// Of several objects those that can be read. What cannot is told.
pub fn typed<K>(objects: &[DynamicObject]) -> Vec<K>
where
    K: DeserializeOwned,
{
    let read = |object: &DynamicObject| {
        let value = serde_json::to_value(object).ok()?;
        match serde_json::from_value(value) {
            Ok(object) => Some(object),
            Err(error) => {
                let why = error.to_string();
                eprintln!(
                    "{} is left out, because it cannot be read: {}",
                    object.name_any(),
                    printable(&why)
                );
                None
            }
        }
    };
    objects.iter().filter_map(read).collect()
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

/// Prints a list as its flags say.
pub fn print_list(
    objects: &[DynamicObject],
    kind: &str,
    get: &GetArgs,
    table: impl FnOnce(&More) -> Table,
) -> anyhow::Result<()> {
    let args = &get.output;
    let mut out = std::io::stdout().lock();
    let more = More {
        wide: args.output == ListOutput::Wide,
        label_columns: args.label_columns.clone(),
        show_labels: args.show_labels,
    };
    match &args.output {
        ListOutput::Table | ListOutput::Wide => {
            let Table { heads, rows } = table(&more);
            print::table(&mut out, &heads, &rows)?;
        }
        ListOutput::Name => {
            for object in objects {
                writeln!(out, "{}", object.name_any())?;
            }
        }
        ListOutput::JsonPath(template) => {
            // As with kubectl, what a template is of does not depend on how many there are.
            let value = match objects {
                [one] if get.names.len() == 1 => serde_json::to_value(one)?,
                all => list_of(kind, all),
            };
            write!(out, "{}", escaped(&template.print(&value), &['\n', '\t']))?;
        }
        ListOutput::Columns(columns) => {
            let heads: Vec<print::ColumnHead> =
                columns.iter().map(|column| print::ColumnHead::Named(column.head.clone())).collect();
            let mut rows = Vec::new();
            for object in objects {
                let value = serde_json::to_value(object)?;
                rows.push(columns.iter().map(|column| column.cell(&value)).collect());
            }
            print::table(&mut out, &heads, &rows)?;
        }
        ListOutput::Json | ListOutput::Yaml => {
            let value = match objects {
                [one] => serde_json::to_value(one)?,
                all => list_of(kind, all),
            };
            let output = if args.output == ListOutput::Yaml { Output::Yaml } else { Output::Json };
            print::value(&mut out, &value, output)?;
        }
    }
    Ok(())
}

fn list_of(kind: &str, all: &[DynamicObject]) -> Value {
    json!({"apiVersion": "velero.io/v1", "kind": format!("{kind}List"), "metadata": {}, "items": all})
}

/// How a command that creates something prints instead, if it does. A dry run of the server prints
/// what the server made of it.
pub fn printed_instead(made: &MadeArgs) -> Option<MadeOutput> {
    match made.dry_run {
        Some(DryRun::Client) => Some(made.output.unwrap_or(MadeOutput::Yaml)),
        Some(DryRun::Server | DryRun::Plan) => None,
        None => made.output,
    }
}

/// Only of a Backup it is known what it would store.
pub fn refuse_plan(made: &MadeArgs, kind: &str) -> anyhow::Result<()> {
    let message = format!("--dry-run=plan is of Backups, not of {kind}: give --dry-run=server");
    ensure!(made.dry_run != Some(DryRun::Plan), WrongFlags(message));
    Ok(())
}

/// Prints an object that was not created.
pub fn print_object(
    object: &impl Serialize,
    output: MadeOutput,
    made: &MadeArgs,
    table: impl FnOnce(&More) -> Table,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        MadeOutput::Json => print::value(&mut out, object, Output::Json)?,
        MadeOutput::Yaml => print::value(&mut out, object, Output::Yaml)?,
        MadeOutput::Table => {
            let more = More {
                wide: false,
                label_columns: made.label_columns.clone(),
                show_labels: made.show_labels,
            };
            let Table { heads, rows } = table(&more);
            print::table(&mut out, &heads, &rows)?;
        }
    }
    Ok(())
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
    ensure!(
        std::io::stdin().is_terminal(),
        "nothing was deleted, because nobody can be asked: standard input is no terminal. Give --confirm to delete without a question"
    );
    eprint!("Are you sure you want to continue (Y/N)? ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        eprintln!("nothing was deleted");
    }
    Ok(is_yes)
}

#[cfg(test)]
mod tests {
    use berth_api::velero::Backup;

    use super::*;
    use crate::text::chain;

    const NOBODY_LISTENS: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}"#;

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_named_with_the_flags_that_choose_it() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, NOBODY_LISTENS).unwrap();
        let target = ClusterArgs { namespace: "velero".to_owned(), kubeconfig: Some(file), context: None };
        let person = Person::new(target).unwrap();
        let error = person.list::<Backup>(None).await.unwrap_err();
        let said = chain(person.explained(error).await.as_ref());
        for wanted in ["http://127.0.0.1:1/", "--context", "failed to list backups"] {
            assert!(said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn the_text_of_a_warning_is_read() {
        assert_eq!(warning_text("299 - \"at position 3\"").as_deref(), Some("at position 3"));
        assert_eq!(warning_text("299 - \"a \\\"b\\\" \\\\\" \"date\"").as_deref(), Some("a \"b\" \\"));
        for bad in ["", "299", "299 - text", "299 - \"text", "299 - \"text\\"] {
            assert_eq!(warning_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn several_faults_are_told_at_once() {
        assert!(faults(Vec::new()).is_ok());
        assert_eq!(faults(vec!["a".into()]).unwrap_err().to_string(), "a");
        let said = faults(vec!["a".into(), "b".into()]).unwrap_err().to_string();
        assert_eq!(said, "2 flags are wrong:\n  a\n  b");
        let namespace = "No".to_owned();
        let target = ClusterArgs { namespace, kubeconfig: None, context: None };
        let wrong =
            [faults(vec!["a".into()]).err(), Person::new(target).err(), check_name("Backup", "No").err()];
        for error in wrong.map(Option::unwrap) {
            assert!(error.context("more").is::<WrongFlags>(), "it ends with exit code 2");
        }
    }
}
