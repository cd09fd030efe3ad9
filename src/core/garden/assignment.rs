//! Assigns a seed to a bucket, and to an entry whose data is being removed, because the hub itself
//! may have no way to the store. A bucket outlives the seed that created it.

use jiff::{SignedDuration, Timestamp};

use super::{ProviderRegion, Seed};

/// A seed that is silent for longer counts as gone.
pub const SILENT: SignedDuration = SignedDuration::from_secs(40);

/// A seed's health, as seen by the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedHealth {
    pub seed: Seed,
    /// Of its profile: where the cluster is.
    pub provider: String,
    /// Its controllers' last report, by the hub's clock (see [`super::heartbeat`]).
    pub seen: Option<Timestamp>,
    /// Until then it is unknown whether it is silent.
    pub unknown_until: Option<Timestamp>,
}

impl SeedHealth {
    /// A heartbeat from the future counts no longer than one from the past, because a wrong clock
    /// must not keep a seed alive that is gone.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.seen.is_some_and(|seen| now.duration_since(seen).abs() <= SILENT)
    }

    /// It has sent no heartbeat for too long. A seed whose state is unknown is not silent.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        !self.is_alive(now) && self.unknown_until.is_none_or(|until| now > until)
    }

    /// When it will count as gone, unless it reports.
    pub fn expires(&self) -> Option<Timestamp> {
        let seen = self.seen.and_then(|seen| seen.checked_add(SILENT).ok());
        seen.max(self.unknown_until)
    }
}

/// The seed that acts on objects in `place`: the current one, while it is not known to be silent;
/// else, of the seeds that can reach the place, 1. one in the place itself, 2. one at the same
/// provider, 3. any, by name. `None`: no seed can.
pub fn assign<'m>(
    current: Option<&str>,
    place: &ProviderRegion,
    members: impl Iterator<Item = &'m SeedHealth> + Clone,
    now: Timestamp,
) -> Option<&'m SeedHealth> {
    let distance = |member: &SeedHealth| match member.provider == place.provider {
        true if member.seed.region == place.region => 0,
        true => 1,
        false => 2,
    };
    let near = || members.clone().filter(|member| member.seed.reaches(place));
    near().find(|member| current == Some(member.seed.name.as_str()) && !member.is_silent(now)).or_else(|| {
        let able = near().filter(|member| member.is_alive(now));
        able.min_by_key(|member| (distance(member), &member.seed.name))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn member(name: &str, provider: &str, region: &str, seen: Option<i64>) -> SeedHealth {
        let seed = Seed { name: name.to_owned(), region: region.to_owned(), ..Seed::default() };
        SeedHealth { seed, provider: provider.to_owned(), seen: seen.map(at), unknown_until: None }
    }

    fn place() -> ProviderRegion {
        ProviderRegion { provider: "aws".to_owned(), region: "eu-west-1".to_owned() }
    }

    fn chosen(current: Option<&str>, members: &[SeedHealth]) -> Option<String> {
        assign(current, &place(), members.iter(), at(100)).map(|member| member.seed.name.clone())
    }

    #[test]
    fn who_acts_goes_on_while_it_is_there() {
        let mut members = [
            member("a", "packet", "ewr1", Some(100)),
            member("b", "aws", "us-east-1", Some(100)),
            member("c", "aws", "eu-west-1", Some(60)),
        ];
        assert_eq!(chosen(Some("a"), &members).as_deref(), Some("a"));
        assert_eq!(chosen(None, &members).as_deref(), Some("c"));
        members[2].seen = Some(at(59));
        assert_eq!(chosen(Some("c"), &members).as_deref(), Some("b"));
        members[1].seen = None;
        assert_eq!(chosen(Some("c"), &members).as_deref(), Some("a"));
        members[0].seed.reaches = Some(vec!["aws/us-east-1".to_owned()]);
        assert_eq!(chosen(Some("a"), &members), None);
        members[0].seed.reaches = Some(vec!["gcp".to_owned(), "aws/eu-west-1".to_owned()]);
        assert_eq!(chosen(None, &members).as_deref(), Some("a"));
    }

    /// A hub that has just begun has heard of nobody.
    #[test]
    fn who_is_not_known_to_be_silent_keeps_what_it_has_and_gets_nothing() {
        let mut members = [member("a", "packet", "ewr1", None), member("b", "aws", "us-east-1", None)];
        members[0].unknown_until = Some(at(100));
        members[1].seen = Some(at(100));
        assert_eq!(chosen(Some("a"), &members).as_deref(), Some("a"));
        assert_eq!(chosen(None, &members).as_deref(), Some("b"));
        assert_eq!(members[0].expires(), Some(at(100)));
        members[0].unknown_until = Some(at(99));
        assert_eq!(chosen(Some("a"), &members).as_deref(), Some("b"));
    }

    #[test]
    fn a_clock_that_is_far_ahead_is_no_sign_of_life() {
        assert!(member("a", "aws", "r", Some(130)).is_alive(at(100)));
        assert!(!member("a", "aws", "r", Some(141)).is_alive(at(100)));
        assert!(!member("a", "aws", "r", None).is_alive(at(100)));
    }

    fn anybody() -> impl Strategy<Value = Vec<SeedHealth>> {
        let provider = prop::sample::select(vec!["aws", "packet"]);
        let region = prop::sample::select(vec!["eu-west-1", "ewr1"]);
        let reaches = prop::option::of(prop::sample::select(vec!["aws", "aws/eu-west-1", "gcp"]));
        let one = (provider, region, prop::option::of(0i64..200), reaches);
        prop::collection::vec(one, 0..6).prop_map(|them| {
            let members = them.into_iter().enumerate().map(|(i, (provider, region, seen, reaches))| {
                let mut member = member(&format!("s{i}"), provider, region, seen);
                member.seed.reaches = reaches.map(|reaches| vec![reaches.to_owned()]);
                member
            });
            members.collect()
        })
    }

    proptest! {
        #[test]
        fn somebody_acts_whenever_somebody_can_and_nobody_takes_over_without_need(members in anybody(), by in 0usize..6) {
            let current = format!("s{by}");
            let can = |member: &SeedHealth| member.is_alive(at(100)) && member.seed.reaches(&place());
            let found = assign(Some(&current), &place(), members.iter(), at(100));
            prop_assert_eq!(found.is_some(), members.iter().any(can));
            prop_assert!(found.is_none_or(can));
            if members.iter().any(|member| member.seed.name == current && can(member)) {
                prop_assert_eq!(found.map(|member| member.seed.name.clone()), Some(current));
            }
        }
    }
}
