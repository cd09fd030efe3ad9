//! Flags of `berth install` for the reviews of the webhooks.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::duration;

/// The value of `--reviews-from` that removes the restriction.
pub const ANYWHERE: &str = "anywhere";

/// Which clients may send reviews to the webhooks, and the timeout of a review.
#[derive(ClapArgs)]
pub struct ReviewArgs {
    /// How long the API server waits for an answer of the webhooks: whole seconds, from 1s to 30s.
    /// Default: as it is installed, else 2s.
    #[arg(long, env = "BERTH_WEBHOOK_TIMEOUT", value_parser = webhook_timeout)]
    pub webhook_timeout: Option<u8>,
    /// Addresses of the control plane, as CIDR: a NetworkPolicy then allows reviews from no other
    /// address. May be given more than once; `anywhere` removes the restriction. Default: as it is
    /// installed, else anywhere.
    #[arg(long, value_name = "CIDR", value_parser = addresses)]
    pub reviews_from: Vec<String>,
    /// ConfigMap of the namespace whose ca.crt signs the API server's client certificate: the
    /// webhooks then accept reviews from no other client. Empty removes the restriction. Default:
    /// as it is installed, else none.
    #[arg(long, value_name = "NAME")]
    pub client_ca_configmap: Option<String>,
}

/// In seconds, as `timeoutSeconds` of a webhook has it.
fn webhook_timeout(text: &str) -> Result<u8, String> {
    let timeout = duration(text)?;
    let seconds = u8::try_from(timeout.as_secs()).ok().filter(|seconds| (1..=30).contains(seconds));
    seconds
        .filter(|seconds| Duration::from_secs((*seconds).into()) == timeout)
        .ok_or_else(|| "must be whole seconds, from 1s to 30s".to_owned())
}

/// A block of addresses as a NetworkPolicy has it, or the word for all.
fn addresses(text: &str) -> Result<String, String> {
    let is_block = || {
        let (address, length) = text.split_once('/')?;
        let most = if address.parse::<IpAddr>().ok()?.is_ipv4() { 32 } else { 128 };
        length.parse::<u8>().ok().filter(|length| *length <= most)
    };
    if text == ANYWHERE || is_block().is_some() {
        return Ok(text.to_owned());
    }
    Err(format!("must be a block of addresses such as 10.0.0.0/28, or {ANYWHERE}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn addresses_are_blocks() {
        for right in ["10.0.0.0/28", "10.0.0.1/32", "fd00::/64", "anywhere"] {
            assert_eq!(super::addresses(right).as_deref(), Ok(right));
        }
        for wrong in ["", "10.0.0.1", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "/8", "host/8", "10.0.0.0/-1"]
        {
            assert!(super::addresses(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_timeout_of_webhooks_is_what_an_api_server_takes() {
        for (text, seconds) in [("1s", 1), ("2s", 2), ("0.5m", 30)] {
            assert_eq!(super::webhook_timeout(text), Ok(seconds), "{text}");
        }
        for wrong in ["0s", "500ms", "1.5s", "31s", "300s", "5m", "", "2"] {
            assert!(super::webhook_timeout(wrong).is_err(), "{wrong}");
        }
    }
}
