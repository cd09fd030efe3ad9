//! kubectl, as people use it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail};
use berth_api::velero::{Backup, BackupPhase};
use serde::Deserialize;
use serde_json::Value;

use super::in_process;
use super::process::without_proxies;
use super::seen;
use super::times::Wait;
use super::wait::{PATIENCE, wait_for};

/// kubectl with one kubeconfig, and so with one identity.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

/// What kubectl said.
#[derive(Debug)]
pub struct Answer {
    pub stdout: String,
    pub stderr: String,
    pub status: ExitStatus,
}

impl Answer {
    /// Texts of the `Warning:` lines, which is how kubectl shows admission warnings.
    pub fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter_map(|line| line.strip_prefix("Warning: ")).collect()
    }
}

impl Kubectl {
    /// `folder` takes kubectl's cache of what the API server has.
    pub fn new(program: PathBuf, kubeconfig: PathBuf, folder: &Path) -> Self {
        Self { program, kubeconfig, cache: folder.join("kubectl-cache") }
    }

    /// The same kubectl under another identity.
    pub fn with_kubeconfig(&self, kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, ..self.clone() }
    }

    /// For callers that want to run it their own way.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(&self.cache).args(args);
        without_proxies(&mut command);
        command
    }

    /// Runs it with `stdin`; a refusal is an answer too.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn answer(&self, args: &[&str], stdin: &str) -> anyhow::Result<Answer> {
        let _wait = Wait::start(&format!("kubectl {}", args.first().unwrap_or(&"")));
        let answer = match in_process::answer(&self.kubeconfig, args, stdin) {
            Some(answer) => answer,
            None => self.answer_by_process(args, stdin)?,
        };
        seen::note(&format!("kubectl {}", args.join(" ")), &format!("{}{}", answer.stdout, answer.stderr));
        Ok(answer)
    }

    /// [`Kubectl::answer`] where kubectl itself is what is tested.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn answer_by_process(&self, args: &[&str], stdin: &str) -> anyhow::Result<Answer> {
        let _wait = Wait::start(&format!("kubectl {}", args.first().unwrap_or(&"")));
        // Some of its commands wait for ever, as for what has a finalizer.
        let own = self.command(args);
        let mut command = Command::new("timeout");
        command.arg("--kill-after=10").arg(PATIENCE.as_secs().to_string());
        command.arg(own.get_program()).args(own.get_args());
        without_proxies(&mut command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to run {}", self.program.display()))?;
        let mut pipe = child.stdin.take().context("kubectl has no stdin")?;
        let output = std::thread::scope(|scope| {
            // What it does not want to read it says on stderr.
            scope.spawn(move || pipe.write_all(stdin.as_bytes()));
            child.wait_with_output()
        })?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer { stdout: text(output.stdout), stderr: text(output.stderr), status: output.status })
    }

    /// Runs it; gives its stdout.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        self.run_with(args, "")
    }

    /// [`Kubectl::run`] with `stdin`.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn run_with(&self, args: &[&str], stdin: &str) -> anyhow::Result<String> {
        let Answer { stdout, stderr, status } = self.answer(args, stdin)?;
        if !status.success() {
            bail!("kubectl {} failed ({status}):\n{}", args.join(" "), stderr.trim_end());
        }
        Ok(stdout)
    }

    /// Creates one or more objects (given as JSON), in `namespace` where they name none.
    ///
    /// # Errors
    /// When kubectl cannot be run. A refusal is an answer.
    pub fn create(&self, namespace: &str, objects: &[Value]) -> anyhow::Result<Answer> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.answer(&["create", "--namespace", namespace, "-f", "-"], &list.to_string())
    }

    /// Waits until the API server serves all that its definitions define, and lists it in
    /// discovery: it does neither before a definition is established, and may do both a moment
    /// later.
    ///
    /// # Errors
    /// When the definitions cannot be read, or one is not served in time.
    pub fn await_definitions(&self) -> anyhow::Result<()> {
        let definitions = self.run(&["get", "crd", "-o", "name"])?;
        let names = definitions.lines().filter_map(|line| Some(line.split_once('/')?.1));
        let mut missing: Vec<&str> = names.collect();
        let waited = wait_for("definitions to be served", PATIENCE, || {
            if let Some(served) = in_process::served(&self.kubeconfig) {
                missing.retain(|name| !served.contains(*name));
            }
            Ok(missing.is_empty().then_some(()))
        });
        waited.with_context(|| format!("not served: {}", missing.join(", ")))
    }

    /// A token of a service account, for a day.
    ///
    /// # Errors
    /// When the API server issues none.
    pub fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        if let Some(token) = in_process::token(&self.kubeconfig, namespace, name) {
            return Ok(token);
        }
        let args = ["create", "token", name, "--namespace", namespace, "--duration=24h"];
        Ok(self.run(&args)?.trim().to_owned())
    }

    /// Waits until the API server knows that this user may do that: it learns of roles through
    /// watches.
    ///
    /// # Errors
    /// When kubectl cannot be run, or it takes too long.
    pub fn await_right(&self, user: &str, namespace: &str, verb: &str, resource: &str) -> anyhow::Result<()> {
        let args = ["auth", "can-i", verb, resource, "--namespace", namespace, "--as", user];
        wait_for(&format!("{user} to be allowed to {verb} {resource}"), PATIENCE, || {
            Ok(self.answer(&args, "")?.status.success().then_some(()))
        })
    }

    /// Backups of a namespace by name.
    ///
    /// # Errors
    /// When they cannot be listed or read.
    pub fn backups(&self, namespace: &str) -> anyhow::Result<BTreeMap<String, Backup>> {
        #[derive(Deserialize)]
        struct Found {
            items: Vec<Backup>,
        }
        let text = self.run(&["get", "backups.velero.io", "--namespace", namespace, "-o", "json"])?;
        let found: Found = serde_json::from_str(&text)?;
        Ok(found.items.into_iter().map(|b| (b.metadata.name.clone().unwrap_or_default(), b)).collect())
    }

    /// # Errors
    /// When there is no Backup of that name.
    pub fn backup(&self, namespace: &str, name: &str) -> anyhow::Result<Backup> {
        let text = self.run(&["get", "backups.velero.io", name, "--namespace", namespace, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// # Errors
    /// When there is no Backup of that name.
    pub fn phase(&self, namespace: &str, name: &str) -> anyhow::Result<BackupPhase> {
        Ok(self.backup(namespace, name)?.phase())
    }
}
