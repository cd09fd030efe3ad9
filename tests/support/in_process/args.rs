//! Command lines of kubectl, as far as they are answered here.

mod look;

use std::time::Duration;

use serde_json::{Value, json};

pub use look::{MayI, Print, Step, Wanted};

/// For what one command asks, and for each object that it writes.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_OF_OBJECT: Duration = Duration::from_secs(1);
/// For objects to be gone, because a finalizer may take its time.
const PATIENCE_OF_END: Duration = Duration::from_secs(900);

/// One command.
#[derive(Debug)]
pub enum Asked {
    Get(Wanted),
    MayI(MayI),
    Apply(Apply),
    Create(Create),
    Change(Change),
    Note(Note),
    Delete(Delete),
}

impl Asked {
    /// `None`: it is not known here, or something of it is not.
    pub fn parse(args: &[&str], stdin: &str) -> Option<Self> {
        let mut words = words(args);
        match words.next()? {
            "get" => Wanted::parse(words).map(Self::Get),
            "auth" => MayI::parse(words).map(Self::MayI),
            "apply" => Apply::parse(words, stdin).map(Self::Apply),
            "create" => Create::parse(words, stdin).map(Self::Create),
            "patch" => Change::parse(words).map(Self::Change),
            "annotate" => Note::parse(words, "annotations").map(Self::Note),
            "label" => Note::parse(words, "labels").map(Self::Note),
            "delete" => Delete::parse(words).map(Self::Delete),
            _ => None,
        }
    }

    pub fn patience(&self) -> Duration {
        let objects = match self {
            Self::Apply(apply) => apply.objects.len(),
            Self::Create(create) => create.objects.len(),
            Self::Delete(delete) if delete.waits => return PATIENCE_OF_END,
            _ => 0,
        };
        PATIENCE + PATIENCE_OF_OBJECT.saturating_mul(u32::try_from(objects).unwrap_or(u32::MAX))
    }
}

type Words<'a> = std::vec::IntoIter<&'a str>;

/// A flag's value is a word of its own, however it was written.
fn words<'a>(args: &[&'a str]) -> Words<'a> {
    let split = |arg: &'a str| match arg.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag, value],
        _ => vec![arg],
    };
    args.iter().flat_map(|arg| split(arg)).collect::<Vec<_>>().into_iter()
}

/// The objects of a text, if it is JSON.
fn objects_of(text: &str) -> Option<Vec<Value>> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    Some(match object.get_mut("items") {
        Some(Value::Array(items)) => std::mem::take(items),
        _ => vec![object],
    })
}

/// What many commands take.
#[derive(Debug, Default)]
pub struct Common {
    namespace: Option<String>,
    /// The user to impersonate.
    pub user: Option<String>,
    pub groups: Vec<String>,
    /// A dry run: nothing is written.
    pub is_dry: bool,
    /// Print the answer.
    pub prints_json: bool,
}

impl Common {
    /// Takes a flag with its value. `Some(false)`: it is none of these; `None`: it says what is not
    /// known here.
    fn takes(&mut self, flag: &str, rest: &mut Words<'_>) -> Option<bool> {
        match flag {
            "-n" | "--namespace" => {
                self.namespace = Some(rest.next()?.to_owned()).filter(|name| !name.is_empty());
            }
            "--as" => self.user = Some(rest.next()?.to_owned()),
            "--as-group" => self.groups.push(rest.next()?.to_owned()),
            "--dry-run" => {
                (rest.next()? == "server").then_some(())?;
                self.is_dry = true;
            }
            "-o" | "--output" => {
                (rest.next()? == "json").then_some(())?;
                self.prints_json = true;
            }
            _ => return Some(false),
        }
        Some(true)
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Where an object goes; `None` if it says something else than the command.
    pub fn namespace_of<'a>(&'a self, object: &'a Value) -> Option<&'a str> {
        match (object["metadata"]["namespace"].as_str(), self.namespace.as_deref()) {
            (Some(own), Some(said)) if own != said => None,
            (Some(own), _) => Some(own),
            (None, _) => Some(self.namespace()),
        }
    }

    /// Behind the `?` of a write.
    pub fn query(&self, command: &str) -> String {
        format!("fieldManager=kubectl{command}{}", if self.is_dry { "&dryRun=All" } else { "" })
    }
}

/// Of `kubectl apply --server-side -f -`.
#[derive(Debug)]
pub struct Apply {
    pub objects: Vec<Value>,
    pub common: Common,
    pub is_forced: bool,
}

impl Apply {
    fn parse(mut words: Words<'_>, stdin: &str) -> Option<Self> {
        let (mut common, mut is_server_side, mut is_stdin, mut is_forced) =
            (Common::default(), false, false, false);
        while let Some(word) = words.next() {
            match word {
                "--server-side" => is_server_side = true,
                "--force-conflicts" => is_forced = true,
                "-f" => is_stdin = words.next()? == "-",
                flag => common.takes(flag, &mut words)?.then_some(())?,
            }
        }
        (is_server_side && is_stdin && !common.prints_json).then_some(())?;
        Some(Self { objects: objects_of(stdin)?, common, is_forced })
    }
}

/// Of `kubectl create`.
#[derive(Debug)]
pub struct Create {
    pub objects: Vec<Value>,
    pub common: Common,
}

impl Create {
    fn parse(mut words: Words<'_>, stdin: &str) -> Option<Self> {
        let (mut common, mut is_stdin) = (Common::default(), false);
        let (mut said, mut flags) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            if common.takes(word, &mut words)? {
                continue;
            }
            match word {
                "-f" => is_stdin = words.next()? == "-",
                "--role" | "--clusterrole" | "--user" | "--group" | "--serviceaccount" | "--from-literal" => {
                    flags.push((word, words.next()?));
                }
                flag if flag.starts_with('-') => return None,
                word => said.push(word),
            }
        }
        let objects = match (is_stdin, &said[..]) {
            (true, []) if flags.is_empty() => objects_of(stdin)?,
            (false, said) => vec![made(said, &flags)?],
            _ => return None,
        };
        Some(Self { objects, common })
    }
}

/// What kubectl makes of words.
fn made(said: &[&str], flags: &[(&str, &str)]) -> Option<Value> {
    const RIGHTS: &str = "rbac.authorization.k8s.io";
    let object = |api_version: &str, kind: &str, name: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    match said {
        ["namespace", name] if flags.is_empty() => Some(object("v1", "Namespace", name)),
        ["serviceaccount", name] if flags.is_empty() => Some(object("v1", "ServiceAccount", name)),
        ["secret", "generic", name] => {
            let mut secret = object("v1", "Secret", name);
            for (flag, value) in flags {
                let (key, value) = value.split_once('=').filter(|_| *flag == "--from-literal")?;
                secret["stringData"][key] = json!(value);
            }
            Some(secret)
        }
        [kind @ ("rolebinding" | "clusterrolebinding"), name] => {
            let (mut role, mut subjects) = (None, Vec::new());
            for (flag, value) in flags {
                let subject = |kind: &str| json!({"apiGroup": RIGHTS, "kind": kind, "name": value});
                match *flag {
                    "--role" if role.is_none() => role = Some(("Role", value)),
                    "--clusterrole" if role.is_none() => role = Some(("ClusterRole", value)),
                    "--user" => subjects.push(subject("User")),
                    "--group" => subjects.push(subject("Group")),
                    "--serviceaccount" => {
                        let (namespace, name) = value.split_once(':')?;
                        subjects
                            .push(json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}));
                    }
                    _ => return None,
                }
            }
            let (role_kind, role) = role?;
            let kind = if *kind == "rolebinding" { "RoleBinding" } else { "ClusterRoleBinding" };
            let mut binding = object(&format!("{RIGHTS}/v1"), kind, name);
            binding["roleRef"] = json!({"apiGroup": RIGHTS, "kind": role_kind, "name": role});
            binding["subjects"] = json!(subjects);
            Some(binding)
        }
        _ => None,
    }
}

/// Of `kubectl patch`.
#[derive(Debug)]
pub struct Change {
    pub kind: String,
    pub name: String,
    pub patch: String,
    /// `merge`, `json` or `strategic`.
    pub how: String,
    pub subresource: Option<String>,
    pub common: Common,
}

impl Change {
    fn parse(mut words: Words<'_>) -> Option<Self> {
        let (mut common, mut said) = (Common::default(), Vec::new());
        let (mut patch, mut subresource, mut how) = (None, None, "strategic".to_owned());
        while let Some(word) = words.next() {
            if common.takes(word, &mut words)? {
                continue;
            }
            match word {
                "-p" | "--patch" => patch = Some(words.next()?.to_owned()),
                "--type" => words.next()?.clone_into(&mut how),
                "--subresource" => subresource = Some(words.next()?.to_owned()),
                flag if flag.starts_with('-') || flag.contains(['/', ',']) => return None,
                word => said.push(word),
            }
        }
        let [kind, name] = said[..] else { return None };
        let patch = patch?;
        // In YAML it may be, too.
        serde_json::from_str::<Value>(&patch).ok()?;
        Some(Self { kind: kind.to_owned(), name: name.to_owned(), patch, how, subresource, common })
    }
}

/// Of `kubectl annotate` and `kubectl label`.
#[derive(Debug)]
pub struct Note {
    /// Of the metadata.
    pub part: &'static str,
    pub kind: String,
    pub names: Vec<String>,
    /// `None`: remove it.
    pub values: Vec<(String, Option<String>)>,
    pub overwrites: bool,
    pub common: Common,
}

impl Note {
    fn parse(mut words: Words<'_>, part: &'static str) -> Option<Self> {
        let (mut common, mut said, mut overwrites) = (Common::default(), Vec::new(), false);
        let mut values = Vec::new();
        while let Some(word) = words.next() {
            if common.takes(word, &mut words)? {
                continue;
            }
            match (word, word.split_once('=')) {
                ("--overwrite", _) => overwrites = true,
                (flag, _) if flag.starts_with('-') => return None,
                (_, Some((key, value))) => values.push((key.to_owned(), Some(value.to_owned()))),
                (word, None) => match word.strip_suffix('-') {
                    Some(key) => values.push((key.to_owned(), None)),
                    None if word.contains(['/', ',']) => return None,
                    None => said.push(word.to_owned()),
                },
            }
        }
        let mut said = said.into_iter();
        let (kind, names) = (said.next()?, said.collect::<Vec<_>>());
        (!names.is_empty() && !values.is_empty()).then_some(())?;
        Some(Self { part, kind, names, values, overwrites, common })
    }
}

/// Of `kubectl delete`.
#[derive(Debug)]
pub struct Delete {
    /// Kinds and names.
    pub targets: Vec<(String, String)>,
    pub waits: bool,
    pub may_be_absent: bool,
    pub common: Common,
}

impl Delete {
    fn parse(mut words: Words<'_>) -> Option<Self> {
        let (mut common, mut said) = (Common::default(), Vec::new());
        let (mut waits, mut may_be_absent) = (true, false);
        while let Some(word) = words.next() {
            if common.takes(word, &mut words)? {
                continue;
            }
            match word {
                "--wait" => waits = words.next()? == "true",
                "--ignore-not-found" => may_be_absent = true,
                flag if flag.starts_with('-') => return None,
                word => said.push(word),
            }
        }
        let owned = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
        let targets = if said.iter().any(|word| word.contains('/')) {
            let pair = |word: &&str| word.split_once('/').map(|(kind, name)| owned(kind, name));
            said.iter().map(pair).collect::<Option<Vec<_>>>()?
        } else {
            let (kinds, names) = said.split_first()?;
            let of = |kind: &str| names.iter().map(|name| owned(kind, name)).collect::<Vec<_>>();
            kinds.split(',').flat_map(of).collect()
        };
        (!targets.is_empty() && !common.prints_json).then_some(())?;
        waits &= !common.is_dry;
        Some(Self { targets, waits, may_be_absent, common })
    }
}
