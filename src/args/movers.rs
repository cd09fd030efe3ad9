//! Periods for data movers. The help does not show these flags, because nobody needs to set them
//! except tests, which wait less.

use std::time::Duration;

use berth_core::mover::grant::NodeAgentTimeouts;
use clap::Args as ClapArgs;
use jiff::SignedDuration;

use super::duration;

#[derive(ClapArgs, Clone, Copy)]
pub struct MoverArgs {
    /// How long a node may be without a ready node-agent before its data movers count as orphaned.
    #[arg(long, default_value = "25s", value_parser = duration, hide = true)]
    pub mover_orphaned_after: Duration,
    /// How long before an orphaned data mover that cannot be restarted is given up.
    #[arg(long, default_value = "2m", value_parser = duration, hide = true)]
    pub mover_given_up_after: Duration,
    /// How long no leader may renew its sign that it grants places before the webhook lets every
    /// write pass. The leader renews the sign three times in this period, so the webhook's value
    /// must not be less than the controller's.
    #[arg(long, default_value = "1m", value_parser = duration, hide = true)]
    pub mover_grants_silent_after: Duration,
}

impl MoverArgs {
    pub fn patience(&self) -> NodeAgentTimeouts {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        NodeAgentTimeouts {
            out_after: signed(self.mover_orphaned_after),
            given_up_after: signed(self.mover_given_up_after),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        movers: MoverArgs,
    }

    #[test]
    fn a_cluster_has_the_periods_that_the_documentation_tells() {
        let movers =
            |args: &[&str]| Alone::try_parse_from([&["berth"], args].concat()).map(|args| args.movers);
        let usual = movers(&[]).unwrap();
        assert_eq!(usual.patience(), NodeAgentTimeouts::default());
        assert_eq!(usual.mover_grants_silent_after, Duration::from_secs(60));
        assert!(movers(&["--mover-orphaned-after=0s"]).is_err());
    }
}
