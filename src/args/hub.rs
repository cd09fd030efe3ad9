//! Flags of the hub of shared buckets.

use std::time::Duration;

use anyhow::Context as _;
use berth_api::GoDuration;
use berth_garden_core::hub::HubSettings;
use berth_garden_core::quota::Quota;
use berth_garden_core::retention::{Grace, GraceScope, Purpose};
use clap::Args as ClapArgs;
use jiff::SignedDuration;

/// Shared buckets, on the hub. They have no effect in a cluster without the hub's definitions.
#[derive(ClapArgs, Clone)]
pub struct HubArgs {
    /// Most entries in one bucket of a provider, as in aws=100. Default: no limit. May be given
    /// more than once.
    #[arg(long = "bucket-quota", value_delimiter = ',', value_parser = limit)]
    pub bucket_quotas: Vec<(String, u32)>,
    /// How long the data of a deleted entry is kept: of all entries, as in 168h; of one provider,
    /// as in aws=168h; of one provider and purpose, as in aws/production=720h. The most specific
    /// period applies. May be given more than once. Default: data is deleted at once.
    #[arg(long = "deletion-grace-period", value_delimiter = ',', value_parser = grace)]
    pub deletion_grace_periods: Vec<(GraceScope, SignedDuration)>,
    /// How long to keep a bucket that no seed uses and that has no entry.
    #[arg(long, default_value = "1h", value_parser = super::duration)]
    pub bucket_idle_delay: Duration,
}

impl HubArgs {
    /// The hub's settings.
    ///
    /// # Errors
    /// When two values are for the same provider and purpose.
    pub fn settings(&self, namespace: &str) -> anyhow::Result<HubSettings> {
        Ok(HubSettings {
            quota: Quota::new(self.bucket_quotas.iter().cloned()).context("--bucket-quota")?,
            grace: Grace::new(self.deletion_grace_periods.iter().cloned())
                .context("--deletion-grace-period")?,
            idle_delay: SignedDuration::try_from(self.bucket_idle_delay).unwrap_or(SignedDuration::MAX),
            namespace: namespace.to_owned(),
        })
    }
}

pub(super) fn limit(text: &str) -> Result<(String, u32), String> {
    let (provider, limit) = text.rsplit_once('=').ok_or("write PROVIDER=LIMIT, as in aws=100")?;
    let limit = limit.parse().map_err(|_| format!("{limit:?} is no number of entries"))?;
    Ok((provider.to_owned(), limit))
}

fn grace(text: &str) -> Result<(GraceScope, SignedDuration), String> {
    let (whose, period) = text.rsplit_once('=').unwrap_or(("", text));
    let period = GoDuration(period.to_owned()).get().map_err(|error| error.to_string())?.unwrap_or_default();
    let period = SignedDuration::try_from(period).map_err(|error| error.to_string())?;
    if whose.is_empty() {
        return Ok((GraceScope::default(), period));
    }
    // A provider may have a slash itself; then its part before the slash has a dot.
    let whose = match whose.rsplit_once('/') {
        Some((provider, last)) => match Purpose::parse(last) {
            Some(purpose) => GraceScope { provider: Some(provider.to_owned()), purpose: Some(purpose) },
            None if provider.contains('.') && !provider.contains('/') => {
                GraceScope { provider: Some(whose.to_owned()), purpose: None }
            }
            None => {
                let known = Purpose::ALL.map(Purpose::as_str).join(", ");
                return Err(format!("{last:?} is no purpose: write one of {known}, or leave it out"));
            }
        },
        None => GraceScope { provider: Some(whose.to_owned()), purpose: None },
    };
    Ok((whose, period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_graces_are_read() {
        assert_eq!(limit("aws=100"), Ok(("aws".to_owned(), 100)));
        assert!(limit("aws").is_err() && limit("aws=many").is_err() && limit("aws=-1").is_err());
        let hours = SignedDuration::from_hours;
        let of = |provider: &str, purpose| GraceScope { provider: Some(provider.to_owned()), purpose };
        for (text, whose, period) in [
            ("168h", GraceScope::default(), hours(168)),
            ("0s", GraceScope::default(), hours(0)),
            ("aws=2h", of("aws", None), hours(2)),
            ("aws/production=2h", of("aws", Some(Purpose::Production)), hours(2)),
            ("berth.dev/filesystem=2h", of("berth.dev/filesystem", None), hours(2)),
            ("berth.dev/filesystem/testing=2h", of("berth.dev/filesystem", Some(Purpose::Testing)), hours(2)),
        ] {
            assert_eq!(grace(text), Ok((whose, period)), "{text}");
        }
        for wrong in ["aws/prodution=2h", "berth.dev/filesystem/prodution=2h", "aws/=2h"] {
            assert!(grace(wrong).unwrap_err().contains("evaluation, testing"), "{wrong}");
        }
        assert!(grace("aws=soon").is_err() && grace("-1h").is_err());
    }
}
