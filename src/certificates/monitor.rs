//! Where cert-manager issues the certificates: checks that every webhook has a caBundle.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{info, warn};

use super::ca_bundles::CaBundles;
use crate::metrics::QueueMetrics;
use crate::pace::paced;

const PERIOD: Duration = Duration::from_secs(5);
/// cert-manager takes a second; it may be restarted.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct CaBundleMonitor {
    pub trust: CaBundles,
    pub metrics: QueueMetrics,
}

impl CaBundleMonitor {
    /// Runs for ever.
    pub async fn run(&self) {
        let mut missing_since: Option<Instant> = None;
        let mut told = false;
        loop {
            match self.trust.read().await {
                Ok(believed) => {
                    let missing: Vec<String> = believed
                        .into_iter()
                        .filter(|(_, bundle)| bundle.trim().is_empty())
                        .map(|(name, _)| name)
                        .collect();
                    self.metrics.ca_bundles_missing.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
                    if missing.is_empty() {
                        if told {
                            info!("every webhook has a caBundle again");
                        }
                        (missing_since, told) = (None, false);
                    } else if missing_since.get_or_insert_with(Instant::now).elapsed() >= paced(PATIENCE)
                        && !told
                    {
                        warn!(webhooks = ?missing, "no caBundle: does cert-manager's cainjector run? Backups are let through without a place and queued later");
                        told = true;
                    }
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "could not read the webhook configurations")
                }
            }
            sleep(paced(PERIOD)).await;
        }
    }
}
