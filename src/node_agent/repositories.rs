//! Opens the repository of each namespace and location, with its password from a Secret.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_core::pod_volume::secret_name;
use berth_core::sync::is_name;
use berth_pod_volumes::{Repository, Store};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::reports::Reports;
use crate::patch::digest;
use crate::storage::{BackupLayout, Opener};
use crate::write::{Pauses, WriteResult, create};

/// The key of the password in its Secret. Velero's Secret has the same key.
pub const PASSWORD: &str = "repository-password";
/// How many repositories are kept open.
const MOST: usize = 1024;
/// Time-out of opening a repository, including the wait for others of the same location. A patient
/// store tries one request for ten minutes.
const OPENING: Duration = Duration::from_secs(1800);
/// How long berth tries to read a location again.
const KEPT: Duration = Duration::from_secs(300);
/// Bytes of a password that berth generates.
const RANDOM: usize = 32;

/// The repository that is needed does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no repository at {0}")]
pub struct MissingRepository(String);

pub struct Repositories {
    client: Client,
    namespace: String,
    secret: Option<String>,
    opener: Opener,
    /// Where it is reported whether the repositories can be used.
    reports: Option<Reports>,
    /// Open repositories, by name of the location and namespace of the volumes, with a digest of
    /// the location's spec.
    open: Mutex<BTreeMap<(String, String), (String, Repository)>>,
    /// By name of the location. Repositories of one location are opened one after another, because
    /// opening takes a third of a second of a core and some memory. Those of another location do
    /// not wait for a store that does not answer.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Repositories {
    /// `secret`: the Secret with the password of all repositories. Default: each has a Secret of
    /// its own.
    pub fn new(client: Client, namespace: &str, secret: Option<String>, opener: Opener) -> Self {
        let (open, turns) = (Mutex::default(), Mutex::default());
        Self { client, namespace: namespace.to_owned(), secret, opener, reports: None, open, turns }
    }

    /// The same, reporting in BackupRepositories whether each repository can be used.
    #[must_use]
    pub fn reporting(self) -> Self {
        let reports = Some(Reports::new(self.client.clone(), &self.namespace));
        Self { reports, ..self }
    }

    /// The repository for the volumes of a namespace. `writes`: it is created if it does not exist.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn get(&self, location: &str, namespace: &str, writes: bool) -> anyhow::Result<Repository> {
        let found = self.find(location, namespace, writes).await;
        if let Some(reports) = &self.reports {
            let fault = found.as_ref().err().map(|error| format!("{error:#}"));
            reports.tell(location, namespace, fault).await;
        }
        found
    }

    async fn find(&self, location: &str, namespace: &str, writes: bool) -> anyhow::Result<Repository> {
        // The name becomes part of a path in the store and of the name of a Secret.
        ensure!(is_name(namespace), "{namespace:?} cannot be the name of a namespace");
        let found = self.location(location).await?;
        let is_read_only = found.spec.access_mode == Some(AccessMode::ReadOnly);
        ensure!(!(writes && is_read_only), "BackupStorageLocation {location} is read-only");
        let state = digest(&serde_json::to_string(&found.spec)?);
        let key = (location.to_owned(), namespace.to_owned());
        if let Some(known) = self.known(&key, &state) {
            return Ok(known);
        }
        let turn = self.turn(location);
        let opened = async {
            let _turn = turn.lock().await;
            // Another job may have opened it meanwhile.
            match self.known(&key, &state) {
                Some(known) => Ok::<_, anyhow::Error>(known),
                None => {
                    let opened = self.open(&found, namespace, writes).await?;
                    self.keep(key, state, opened.clone());
                    Ok(opened)
                }
            }
        };
        timeout(OPENING, opened).await.with_context(|| {
            format!("BackupStorageLocation {location} did not answer within {} s", OPENING.as_secs())
        })?
    }

    fn keep(&self, key: (String, String), state: String, repository: Repository) {
        let mut open = self.open.lock();
        if open.len() >= MOST {
            open.clear();
        }
        open.insert(key, (state, repository));
    }

    async fn location(&self, name: &str) -> anyhow::Result<BackupStorageLocation> {
        ensure!(is_name(name), "{name:?} cannot be the name of a BackupStorageLocation");
        let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(name).await.context("the BackupStorageLocation cannot be read")?;
        found.with_context(|| format!("there is no BackupStorageLocation {name}"))
    }

    /// The place in the store to which a location leads, for [`Repositories::ensure_kept`].
    ///
    /// # Errors
    /// When the location cannot be read.
    pub async fn place(&self, location: &str) -> anyhow::Result<String> {
        let spec = self.location(location).await?.spec;
        let storage = spec.object_storage;
        Ok(digest(&json!([spec.provider, storage.bucket, storage.prefix, spec.config]).to_string()))
    }

    /// Checks that a location still leads to the place in which something was stored meanwhile,
    /// because otherwise nobody would find it.
    ///
    /// # Errors
    /// When it leads elsewhere, or cannot be read for minutes.
    pub async fn ensure_kept(&self, location: &str, place: &str) -> anyhow::Result<()> {
        let (begun, mut pauses) = (Instant::now(), Pauses::default());
        loop {
            match self.place(location).await {
                Ok(found) if found == place => return Ok(()),
                Ok(_) => {
                    bail!("BackupStorageLocation {location} has been changed to another store meanwhile")
                }
                Err(error) if begun.elapsed() > KEPT => return Err(error),
                Err(_) => pauses.wait().await,
            }
        }
    }

    /// The open repository, unless the location's spec has changed since.
    fn known(&self, key: &(String, String), state: &str) -> Option<Repository> {
        self.open.lock().get(key).filter(|(of, _)| of == state).map(|(_, open)| open.clone())
    }

    fn turn(&self, location: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        if turns.len() >= MOST {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        Arc::clone(turns.entry(location.to_owned()).or_default())
    }

    /// Opens the repository, or creates it if it does not exist.
    async fn open(
        &self,
        location: &BackupStorageLocation,
        namespace: &str,
        writes: bool,
    ) -> anyhow::Result<Repository> {
        let name = location.name_any();
        let objects = self.opener.open_existing(location).await?;
        let prefix = location.spec.object_storage.prefix.as_deref();
        let store = Store::new(objects, BackupLayout::path(prefix, &format!("restic/{namespace}")));
        let is_there = store.has_repository().await.context("the store cannot be read")?;
        ensure!(is_there || writes, MissingRepository(store.place().to_owned()));
        let password = self.password(&name, namespace, !is_there).await?;
        let repository = if is_there {
            Repository::open(&store, &password).await?
        } else {
            info!(location = name, namespace, place = store.place(), "making a repository");
            Repository::make(&store, &password).await?
        };
        let is_read_only = location.spec.access_mode == Some(AccessMode::ReadOnly);
        Ok(if is_read_only { repository.read_only() } else { repository })
    }

    /// The password. `makes`: the repository does not exist yet, so a new password may be
    /// generated.
    async fn password(&self, location: &str, namespace: &str, makes: bool) -> anyhow::Result<String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let is_shared = self.secret.is_some();
        let name = self.secret.clone().unwrap_or_else(|| secret_name(location, namespace, digest));
        if let Some(found) = read(&api, &name).await? {
            return Ok(found);
        }
        if is_shared || !makes {
            bail!(
                "Secret {name} in namespace {}, which has the password of the repository, is not there: bring it back from wherever you keep it",
                self.namespace
            );
        }
        let mut random = [0; RANDOM];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| anyhow::anyhow!("the system has no random numbers"))?;
        let password = URL_SAFE_NO_PAD.encode(random);
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(PASSWORD.to_owned(), ByteString(password.clone().into_bytes()))])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        match create(&api, &secret).await {
            WriteResult::Written(_) => Ok(password),
            // Another node's agent was first, or this agent was and lost the answer.
            WriteResult::Conflict(_) | WriteResult::TimedOut => {
                let found = read(&api, &name).await?;
                found.with_context(|| format!("Secret {name} could not be made"))
            }
            WriteResult::Gone(error) | WriteResult::Refused(error) => {
                Err(error).with_context(|| format!("Secret {name} could not be made"))
            }
        }
    }

    /// Closes the repository, so that it is opened again, because it did not work.
    pub fn forget(&self, location: &str, namespace: &str) {
        self.open.lock().remove(&(location.to_owned(), namespace.to_owned()));
    }
}

async fn read(api: &Api<Secret>, name: &str) -> anyhow::Result<Option<String>> {
    let found = api.get_opt(name).await.with_context(|| format!("Secret {name} cannot be read"))?;
    let Some(found) = found else { return Ok(None) };
    let bytes = found.data.and_then(|mut data| data.remove(PASSWORD)).filter(|bytes| !bytes.0.is_empty());
    let bytes = bytes.with_context(|| format!("Secret {name} has no key {PASSWORD}"))?;
    let text =
        String::from_utf8(bytes.0).ok().with_context(|| format!("Secret {name}: its password is no text"));
    text.map(Some)
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Hold, Scripted, get, post};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_location_that_leads_elsewhere_has_not_got_what_was_stored() {
        const PATH: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/l";
        let location = |bucket: &str, mode: &str| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": "l", "namespace": "velero"},
                "spec": {"provider": "aws", "objectStorage": {"bucket": bucket}, "accessMode": mode},
            })
        };
        let api = Scripted::new()
            .next(get(PATH).answers(location("one", "ReadWrite")))
            .next(get(PATH).answers(location("one", "ReadOnly")))
            .next(get(PATH).refuses(500))
            .next(get(PATH).answers(location("two", "ReadWrite")));
        let client = api.client("velero");
        let opener = Opener::new(client.clone(), "velero", Vec::new().into());
        let repositories = Repositories::new(client, "velero", None, opener);
        let place = repositories.place("l").await.unwrap();
        assert!(repositories.ensure_kept("l", &place).await.is_ok());
        let why = repositories.ensure_kept("l", &place).await.unwrap_err().to_string();
        assert!(why.contains("changed to another store"), "{why}");
        api.finish();
    }

    #[tokio::test(start_paused = true)]
    async fn a_location_that_does_not_answer_delays_no_other_one() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("dead/restic/shop")).unwrap();
        std::fs::write(root.path().join("dead/restic/shop/config"), "x").unwrap();
        std::fs::create_dir(root.path().join("well")).unwrap();
        let answer = |name: &str| {
            let location = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": name, "namespace": "velero"},
                "spec": {
                    "provider": "berth.dev/filesystem", "objectStorage": {"bucket": name},
                    "config": {"path": root.path()},
                },
            });
            let path = format!("/apis/velero.io/v1/namespaces/velero/backupstoragelocations/{name}");
            get(&path).answers(location)
        };
        let hold = Hold::new();
        let secret = get("/api/v1/namespaces/velero/secrets/berth-repository-dead.shop");
        let api = Scripted::new()
            .always(answer("dead"))
            .always(answer("well"))
            .once(secret.refuses(404).held(&hold));
        let client = api.client("velero");
        let opener = Opener::new(client.clone(), "velero", vec![root.path().to_owned()].into());
        let repositories = Repositories::new(client, "velero", None, opener);
        let well = async {
            hold.asked().await;
            let found = repositories.get("well", "shop", false).await;
            hold.let_go();
            found.err()
        };
        let both = async { tokio::join!(repositories.get("dead", "shop", false), well) };
        let (dead, well) = timeout(Duration::from_secs(600), both).await.unwrap();
        assert!(well.unwrap().is::<MissingRepository>());
        assert!(dead.err().unwrap().to_string().contains("is not there: bring it back"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_new_repository_gets_a_password_that_nobody_guesses_unless_one_is_given_for_all() {
        const SECRETS: &str = "/api/v1/namespaces/velero/secrets";
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bucket")).unwrap();
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "l", "namespace": "velero"},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket"},
                "config": {"path": root.path()},
            },
        });
        let path = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/l";
        let api = Scripted::new().always(get(path).answers(location));
        let repositories = |secret: Option<&str>| {
            let client = api.client("velero");
            let opener = Opener::new(client.clone(), "velero", vec![root.path().to_owned()].into());
            Repositories::new(client, "velero", secret.map(str::to_owned), opener)
        };
        for namespace in ["shop", "bank"] {
            let secret = format!("{SECRETS}/berth-repository-l.{namespace}");
            api.once(get(&secret).refuses(404)).once(post(SECRETS).takes_as("6"));
            repositories(None).get("l", namespace, true).await.unwrap();
        }
        let passwords: Vec<String> = api
            .writes()
            .iter()
            .map(|write| write.body["data"][PASSWORD].as_str().unwrap_or_default().to_owned())
            .collect();
        // In the encoding of Secrets.
        assert!(passwords.iter().all(|password| password.len() >= RANDOM * 4 / 3 * 4 / 3), "{passwords:?}");
        assert!(passwords.len() == 2 && passwords[0] != passwords[1], "{passwords:?}");

        let shared = format!("{SECRETS}/velero-repo-credentials");
        api.once(get(&shared).refuses(404));
        let missing =
            repositories(Some("velero-repo-credentials")).get("l", "farm", true).await.err().unwrap();
        assert!(missing.to_string().contains("Secret velero-repo-credentials"), "{missing}");
        assert!(!root.path().join("bucket/restic/farm").exists(), "nothing is made with another password");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "velero-repo-credentials"},
            "data": {PASSWORD: "c3RhdGljLXBhc3N3MHJk"},
        });
        api.once(get(&shared).answers(secret));
        repositories(Some("velero-repo-credentials")).get("l", "farm", true).await.unwrap();
        assert_eq!(api.writes().len(), 2, "no password is made where one is given");
        api.finish();
    }

    #[tokio::test(start_paused = true)]
    async fn what_leads_elsewhere_is_no_namespace() {
        let api = Scripted::new();
        let client = api.client("velero");
        let opener = Opener::new(client.clone(), "velero", Vec::new().into());
        let repositories = Repositories::new(client, "velero", None, opener);
        for (location, namespace) in [("l", ".."), ("l", "shop/../other"), ("l", ""), ("../l", "shop")] {
            assert!(repositories.get(location, namespace, false).await.is_err(), "{location} {namespace}");
        }
        assert!(api.asked().is_empty());
    }
}
