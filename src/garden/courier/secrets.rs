//! Secrets of the hub, each read by its name, because a seed may read those of its buckets and may
//! list none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_garden_core::member::StatusProblem;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::client::is_forbidden;
use crate::pace::paced;
use crate::text::chain;

/// Changed keys are noticed within this time.
const PERIOD: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(5);
/// How long a refusal has to last: new rights take a moment to reach every API server, and new keys
/// take a moment to be created.
const SETTLED: Duration = Duration::from_secs(5);

/// Keys and values of a Secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// Credentials of a bucket or of an entry, as far as the hub has answered.
#[derive(Clone, Debug)]
pub enum HubCredentials {
    /// The hub has yet to say what this Secret contains.
    Unanswered(String),
    /// There are none: why, and what to do about it.
    Missing(StatusProblem),
    Known(Arc<SecretData>),
}

/// What the hub answered last.
#[derive(Clone, Debug, PartialEq)]
pub enum SecretAnswer {
    Found(Arc<SecretData>),
    Missing,
    Forbidden,
}

pub struct Secrets {
    namespace: String,
    answers: RwLock<BTreeMap<String, SecretAnswer>>,
    wanted: watch::Sender<BTreeSet<String>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Secrets {
    pub fn new(namespace: &str, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            answers: RwLock::default(),
            wanted: watch::Sender::default(),
            changes: Arc::clone(changes),
        }
    }

    /// Reads these, and forgets all others.
    pub fn want(&self, names: BTreeSet<String>) {
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != names;
            *wanted = names;
            differs
        });
    }

    /// `None`: the hub has not answered yet.
    pub fn get(&self, name: &str) -> Option<SecretAnswer> {
        self.answers.read().get(name).cloned()
    }

    /// Runs for ever.
    pub async fn follow(&self, client: &Client) {
        let api: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let mut changed = self.wanted.subscribe();
        let mut refused: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let wanted = changed.borrow_and_update().clone();
            self.answers.write().retain(|name, _| wanted.contains(name));
            refused.retain(|name, _| wanted.contains(name));
            for name in &wanted {
                match self.ask(&api, name).await {
                    Some(SecretAnswer::Forbidden | SecretAnswer::Missing)
                        if !has_lasted(&mut refused, name) => {}
                    Some(answer @ (SecretAnswer::Forbidden | SecretAnswer::Missing)) => {
                        self.take_in(name, answer)
                    }
                    Some(answer) => {
                        refused.remove(name);
                        self.take_in(name, answer);
                    }
                    None => {}
                }
            }
            let is_waiting = wanted.iter().any(|name| self.get(name).is_none());
            let _ = timeout(if is_waiting { RETRY } else { paced(PERIOD) }, changed.changed()).await;
        }
    }

    /// `None`: no answer; what is known stays valid.
    async fn ask(&self, api: &Api<Secret>, name: &str) -> Option<SecretAnswer> {
        match timeout(ANSWER, api.get_opt(name)).await {
            Ok(Ok(None)) => Some(SecretAnswer::Missing),
            Ok(Ok(Some(secret))) => {
                let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0));
                Some(SecretAnswer::Found(Arc::new(data.collect())))
            }
            Ok(Err(error)) if is_forbidden(&error) => {
                debug!(name, error = chain(&error), "may not read a Secret of the hub");
                Some(SecretAnswer::Forbidden)
            }
            Ok(Err(error)) => {
                warn!(
                    name,
                    error = chain(&error),
                    "could not read a Secret of the hub: its last contents stand"
                );
                None
            }
            Err(_) => {
                warn!(name, "could not read a Secret of the hub in time: its last contents stand");
                None
            }
        }
    }

    fn take_in(&self, name: &str, answer: SecretAnswer) {
        let before = self.answers.write().insert(name.to_owned(), answer.clone());
        if before.as_ref() != Some(&answer) {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

/// Has it been refused for so long that the refusal is final?
fn has_lasted(refused: &mut BTreeMap<String, Instant>, name: &str) -> bool {
    refused.entry(name.to_owned()).or_insert_with(Instant::now).elapsed() >= paced(SETTLED)
}
