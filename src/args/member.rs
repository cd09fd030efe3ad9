//! Flags of `berth install` for a cluster that shares backup buckets with others.

use std::path::PathBuf;

use anyhow::bail;
use berth_core::glob::is_subdomain;
use clap::Args as ClapArgs;

#[derive(ClapArgs)]
pub struct MemberArgs {
    /// This cluster shares backup buckets with others: install its agent (`berth garden agent`),
    /// and the agent's definitions unless they exist. =false removes the agent. Default: as it is
    /// installed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub garden_member: Option<bool>,
    /// Kubeconfig file of the hub. Only its current context is stored, in the Secret
    /// berth-garden-hub. Implies --garden-member. Default: as it is installed.
    #[arg(long, value_name = "FILE", requires = "seed")]
    pub hub_kubeconfig: Option<PathBuf>,
    /// Name of this cluster's Seed in the hub. Implies --garden-member.
    #[arg(long, value_name = "NAME", requires = "hub_kubeconfig", value_parser = name)]
    pub seed: Option<String>,
    /// Existing Secret of berth's namespace with the keys `kubeconfig` and `seed`, in place of
    /// --hub-kubeconfig and --seed. Implies --garden-member.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["hub_kubeconfig", "seed"], value_parser = name)]
    pub hub_secret: Option<String>,
    /// With --output: Gardener has installed the member's definitions, so print none. Without
    /// --output this is detected.
    #[arg(long, requires = "output")]
    pub beside_gardener: bool,
}

impl MemberArgs {
    /// Checks that the flags fit together.
    ///
    /// # Errors
    /// When the agent should be removed and a hub is given for it.
    pub fn ensure_consistent(&self) -> anyhow::Result<()> {
        let flag = match self {
            Self { garden_member: Some(false), hub_kubeconfig: Some(_), .. } => "--hub-kubeconfig",
            Self { garden_member: Some(false), hub_secret: Some(_), .. } => "--hub-secret",
            _ => return Ok(()),
        };
        bail!("--garden-member=false removes the agent, but {flag} gives it a hub: use only one of the two")
    }
}

/// The name of an object (RFC 1123, subdomain).
fn name(text: &str) -> Result<String, String> {
    if is_subdomain(text) {
        return Ok(text.to_owned());
    }
    Err("must be the name of an object: lower-case letters, digits, `-` and `.`".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn parse(flags: &[&str]) -> Result<MemberArgs, String> {
        let args = Args::try_parse_from(["berth", "install"].iter().chain(flags));
        match args.map_err(|error| error.to_string())?.command {
            Command::Install(args) => Ok(args.member),
            _ => Err("another command".to_owned()),
        }
    }

    #[test]
    fn what_needs_another_flag_names_it() {
        for (flags, named) in [
            (&["--hub-kubeconfig=f"][..], "--seed"),
            (&["--seed=ship"], "--hub-kubeconfig"),
            (&["--hub-secret=hub", "--seed=ship", "--hub-kubeconfig=f"], "--hub-secret"),
            (&["--beside-gardener"], "--output"),
            (&["--hub-kubeconfig=f", "--seed=No Name"], "--seed"),
        ] {
            let said = parse(flags).err().unwrap_or_default();
            assert!(said.contains(named), "{flags:?}: {said}");
        }
    }

    #[test]
    fn it_is_taken_out_only_without_a_hub() {
        let said =
            |flags: &[&str]| parse(flags).map(|args| args.ensure_consistent().map_err(|e| e.to_string()));
        assert_eq!(said(&["--garden-member"]), Ok(Ok(())));
        assert_eq!(said(&["--garden-member=false"]), Ok(Ok(())));
        assert_eq!(said(&["--garden-member", "--hub-secret=hub"]), Ok(Ok(())));
        let Ok(Err(refused)) = said(&["--garden-member=false", "--seed=ship", "--hub-kubeconfig=f"]) else {
            unreachable!("it was let through")
        };
        assert!(refused.contains("--hub-kubeconfig"), "{refused}");
    }

    #[test]
    fn names_are_those_of_objects() {
        for (text, is_one) in [
            ("ship", true),
            ("a.b-2", true),
            ("", false),
            ("-a", false),
            ("a..b", false),
            ("A", false),
            ("a/b", false),
        ] {
            assert_eq!(name(text).is_ok(), is_one, "{text}");
        }
        assert!(name(&"a".repeat(254)).is_err());
    }
}
