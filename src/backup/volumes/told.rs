//! What a backup says of claims whose data is missing.

use crate::backup::log::ResultsHeading;
use crate::text::few;

use super::RunVolumes;

impl RunVolumes<'_> {
    /// Logs what is stored without its data: an error where the backup asks for it, a warning where
    /// it takes what can be taken.
    pub fn tell(&self) {
        let mut seen = self.seen.lock();
        // Those of earlier runs are known by their outcomes; of others there may be no outcome.
        let mut lacking = self.outcomes.lacking();
        let (asked, unasked) = (std::mem::take(&mut seen.asked), std::mem::take(&mut seen.unasked));
        for (is_asked, all) in [(true, asked), (false, unasked)] {
            for (lack, claims) in all {
                lacking.entry((is_asked, lack.to_string())).or_default().extend(claims);
            }
        }
        let claims_of = |of: bool| {
            let of = lacking.iter().filter(move |((is_asked, _), _)| *is_asked == of);
            of.map(|((_, lack), claims)| (lack, claims.iter().cloned().collect::<Vec<String>>()))
        };
        for (lack, claims) in claims_of(true) {
            let message = format!(
                "{} claims are stored without the data of their volumes, which the backup asks for ({}): {lack}",
                claims.len(),
                few(&claims)
            );
            self.log.error(&ResultsHeading::Velero, "persistentvolumeclaims", &message);
        }
        for (lack, claims) in claims_of(false) {
            let message = format!(
                "{} claims are stored without the data of their volumes ({}): {lack} (snapshotVolumes: false says that this is meant)",
                claims.len(),
                few(&claims)
            );
            self.log.warning(&ResultsHeading::Velero, "persistentvolumeclaims", &message);
        }
        for (refusal, claims) in std::mem::take(&mut seen.ungrouped) {
            let claims: Vec<String> = claims.into_iter().collect();
            let message = format!(
                "no group snapshot was taken of {} claims that have the label {} ({}), so their snapshots are not of one moment: {refusal}",
                claims.len(),
                self.group_key,
                few(&claims)
            );
            self.log.error(&ResultsHeading::Velero, "persistentvolumeclaims", &message);
        }
        if seen.lost > 0 {
            let message = format!(
                "the file of volume infos lacks {} claims, for which there was no room; use several Backups",
                seen.lost
            );
            self.log.error(&ResultsHeading::Velero, "persistentvolumeclaims", &message);
        }
    }
}
