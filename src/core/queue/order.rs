//! Priority classes and fair shares: what changes the order of arrival. Without configuration,
//! nothing does.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

/// The configured changes to the order of arrival. The default changes nothing.
///
/// Both changes are times: a priority class counts as an earlier arrival, recent use of a tenant as
/// a later one. No backup starves, because waiting improves the place of all backups alike: a
/// backup that arrives later than the sum of the largest shifts goes behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueOrder {
    /// Head start of each priority class; a negative one puts its backups back. Empty if no classes
    /// are configured.
    pub classes: BTreeMap<String, SignedDuration>,
    pub share: Option<FairShare>,
}

/// Fair sharing: moves the backups of a tenant back by what the tenant used recently.
#[derive(Clone, Debug, PartialEq)]
pub struct FairShare {
    /// Key of the Backup label that names the tenant.
    pub label: String,
    /// Number of workers of each run: one second of a run is so many worker-seconds.
    pub workers: u16,
    /// Time after which a worker-second counts half.
    pub half_life: SignedDuration,
    /// The largest shift of a tenant.
    pub most: SignedDuration,
}

/// The class of a Backup without a class annotation.
pub const DEFAULT_CLASS: &str = "normal";

impl QueueOrder {
    pub fn is_by_arrival(&self) -> bool {
        self.classes.is_empty() && self.share.is_none()
    }

    /// Returns `None` if the class is not configured.
    pub fn head_start(&self, class: Option<&str>) -> Option<SignedDuration> {
        let class = class.unwrap_or(DEFAULT_CLASS);
        let known = self.classes.get(class).copied();
        known.or_else(|| (class == DEFAULT_CLASS).then_some(SignedDuration::ZERO))
    }
}

/// What one run of a tenant used. The run has ended or goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    pub tenant: String,
    pub worker_seconds: f64,
    /// When the run ended; `now` if it goes on.
    pub until: Timestamp,
}

/// How far each tenant is moved back: one second for each worker-second that it used recently.
pub fn handicaps(
    uses: impl IntoIterator<Item = Use>,
    share: &FairShare,
    now: Timestamp,
) -> HashMap<String, SignedDuration> {
    let mut seconds: HashMap<String, f64> = HashMap::new();
    let half_life = share.half_life.as_secs_f64().max(1.0);
    for used in uses {
        let age = now.duration_since(used.until).as_secs_f64().max(0.0);
        *seconds.entry(used.tenant).or_default() += used.worker_seconds.max(0.0) * (-age / half_life).exp2();
    }
    let most = share.most.as_secs_f64().max(0.0);
    let shift = |seconds: f64| SignedDuration::from_millis((seconds.min(most) * 1000.0) as i64);
    seconds.into_iter().map(|(tenant, seconds)| (tenant, shift(seconds))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_fades_and_its_handicap_has_an_end() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(48);
        let share = FairShare {
            label: "team".to_owned(),
            workers: 1,
            half_life: SignedDuration::from_hours(1),
            most: SignedDuration::from_secs(100),
        };
        let used = |tenant: &str, worker_seconds: f64, hours: i64| Use {
            tenant: tenant.to_owned(),
            worker_seconds,
            until: now - SignedDuration::from_hours(hours),
        };
        let uses = [used("a", 40.0, 1), used("a", 40.0, 2), used("b", 1e12, 0), used("c", -5.0, 0)];
        let found = handicaps(uses, &share, now);
        assert_eq!(found["a"], SignedDuration::from_secs(30));
        assert_eq!(found["b"], share.most);
        assert_eq!(found["c"], SignedDuration::ZERO);
    }
}
