//! Keys and certificates of one control plane, as files.

use std::path::{Path, PathBuf};

use berth_certs::Authority;
use jiff::Timestamp;

pub struct Keys(PathBuf);

impl Keys {
    /// The API server is called under `address` besides its usual names.
    ///
    /// # Errors
    /// When one cannot be made or written.
    pub fn make(folder: &Path, address: &str) -> anyhow::Result<Self> {
        let now = Timestamp::now();
        let ca = Authority::new("throw-away", now)?;
        let names = ["localhost", "kubernetes", "kubernetes.default.svc", address].map(str::to_owned);
        let server = ca.issue("kube-apiserver", &[], &names, now)?;
        let admin = ca.issue("admin", &["system:masters"], &[], now)?;
        let accounts = Authority::new("service-accounts", now)?;
        // Of what the API server shows to webhooks, and of nothing else.
        let webhooks = Authority::new("webhook-clients", now)?;
        let caller = webhooks.issue("kube-apiserver", &[], &[], now)?;
        std::fs::create_dir_all(folder)?;
        for (name, text) in [
            ("ca.crt", &ca.certificate),
            ("server.crt", &server.certificate),
            ("server.key", &server.key),
            ("admin.crt", &admin.certificate),
            ("admin.key", &admin.key),
            ("webhook-clients.crt", &webhooks.certificate),
            ("webhook-caller.crt", &caller.certificate),
            ("webhook-caller.key", &caller.key),
            ("service-accounts.crt", &accounts.certificate),
            ("service-accounts.key", &accounts.key),
        ] {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(Self(folder.to_owned()))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `FLAG=PATH`.
    pub fn flag(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.path(name).display())
    }
}
