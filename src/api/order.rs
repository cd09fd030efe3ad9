//! The order of the queue: in flags, and on the leader's Lease, where `berth queue` reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::queue::{FairShare, QueueOrder};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::GoDuration;

/// [`QueueOrder`] as JSON; durations in whole seconds.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireOrder {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    priority_classes: BTreeMap<String, i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fair_share: Option<WireShare>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireShare {
    label: String,
    workers: u16,
    half_life: i64,
    limit: i64,
}

/// Writes the order for the annotation of the Lease.
///
/// # Errors
/// The order cannot be written as JSON.
pub fn to_json(order: &QueueOrder) -> Result<String, serde_json::Error> {
    serde_json::to_string(&WireOrder {
        priority_classes: order.classes.iter().map(|(name, start)| (name.clone(), start.as_secs())).collect(),
        fair_share: order.share.as_ref().map(|share| WireShare {
            label: share.label.clone(),
            workers: share.workers,
            half_life: share.half_life.as_secs(),
            limit: share.most.as_secs(),
        }),
    })
}

/// Reads the annotation of the Lease.
///
/// # Errors
/// The text is not the output of [`to_json`].
pub fn from_json(text: &str) -> Result<QueueOrder, serde_json::Error> {
    let wire: WireOrder = serde_json::from_str(text)?;
    Ok(QueueOrder {
        classes: wire
            .priority_classes
            .into_iter()
            .map(|(name, seconds)| (name, SignedDuration::from_secs(seconds)))
            .collect(),
        share: wire.fair_share.map(|share| FairShare {
            label: share.label,
            workers: share.workers,
            half_life: SignedDuration::from_secs(share.half_life),
            most: SignedDuration::from_secs(share.limit),
        }),
    })
}

/// Parses a priority class of the command line: `high=1h` counts as having arrived an hour earlier,
/// `low=-1h` as an hour later.
///
/// # Errors
/// A message for people, with the way out.
pub fn parse_class(text: &str) -> Result<(String, SignedDuration), String> {
    let wrong =
        || format!("{text:?} is not a priority class: write NAME=HEAD_START, as in high=1h or low=-30m");
    let (name, start) = text.split_once('=').ok_or_else(wrong)?;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(is_name) {
        return Err(format!("{text:?}: the name of a priority class has 1 to 63 of a-z, 0-9 and -"));
    }
    let (negative, digits) = start.strip_prefix('-').map_or((false, start), |digits| (true, digits));
    // An empty text would parse as zero.
    if digits.is_empty() {
        return Err(wrong());
    }
    let start = GoDuration(digits.to_owned()).get().map_err(|error| format!("{text:?}: {error}"))?;
    let start = SignedDuration::try_from(start.unwrap_or(Duration::ZERO)).map_err(|_| wrong())?;
    Ok((name.to_owned(), if negative { -start } else { start }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_a_name_and_a_head_start() {
        assert_eq!(parse_class("high=1h"), Ok(("high".to_owned(), SignedDuration::from_hours(1))));
        assert_eq!(parse_class("low=-30m"), Ok(("low".to_owned(), SignedDuration::from_mins(-30))));
        assert_eq!(parse_class("normal=0"), Ok(("normal".to_owned(), SignedDuration::ZERO)));
        for wrong in ["high", "=1h", "High=1h", "high=soon", "high=--1h", "high=", "high=-"] {
            assert!(
                parse_class(wrong).is_err_and(|why| why.contains("high=") || why.contains("class")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_order_survives_the_lease() -> Result<(), serde_json::Error> {
        let order = QueueOrder {
            classes: parse_class("high=1h").into_iter().collect(),
            share: Some(FairShare {
                label: "team".to_owned(),
                workers: 2,
                half_life: SignedDuration::from_hours(24),
                most: SignedDuration::from_hours(1),
            }),
        };
        assert_eq!(from_json(&to_json(&order)?)?, order);
        assert_eq!(from_json(&to_json(&QueueOrder::default())?)?, QueueOrder::default());
        Ok(())
    }
}
