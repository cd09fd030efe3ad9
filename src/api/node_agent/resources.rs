//! `podResources`, which Velero applies completely or not at all.

use std::collections::BTreeMap;

use berth_core::violation::Field;

use super::json::Json;
use super::reader::Reader;
use crate::quantity::Quantity;

/// Requests and limits of a container, by the name of the resource. An amount of zero means no
/// bound, so it is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodResources {
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
}

/// Keys of request and limit, the resource that they are for, and whether they must be set.
const PAIRS: [(&str, &str, &str, bool); 3] = [
    ("cpuRequest", "cpuLimit", "cpu", true),
    ("memoryRequest", "memoryLimit", "memory", true),
    ("ephemeralStorageRequest", "ephemeralStorageLimit", "ephemeral-storage", false),
];

/// `None`: there are none, or Velero ignores them, or no pod could be created with them.
pub(super) fn read(json: Option<&Json>, at: &Field, reader: &mut Reader) -> Option<PodResources> {
    let json = json?;
    let keys: Vec<&'static str> = PAIRS.iter().flat_map(|(request, limit, ..)| [*request, *limit]).collect();
    let object = reader.object(Some(json), at, &keys);
    let (mut resources, mut is_usable) = (PodResources::default(), true);
    for (request, limit, resource, is_needed) in PAIRS {
        let mut amount = |name: &str| {
            let at = at.child(name);
            let text = reader.text(object.get(name), &at);
            if text.is_empty() {
                let message = "is missing, so Velero ignores all of podResources: write \"0\" for no bound";
                reader.found.require(!is_needed, &at, message);
                is_usable &= !is_needed;
                return None;
            }
            let amount = Quantity::parse(&text);
            let message = match amount {
                None => {
                    format!(
                        "{text:?} is not a quantity, so Velero ignores all of podResources: write 500m or 1Gi"
                    )
                }
                Some(_) => format!("{text:?} is below 0, and no data mover could be created"),
            };
            let is_amount = amount.is_some_and(|amount| amount >= Quantity::ZERO);
            reader.found.require(is_amount, &at, message);
            is_usable &= is_amount;
            amount.map(|amount| (amount, text))
        };
        let (least, most) = (amount(request), amount(limit));
        if let (Some((least, _)), Some((most, _))) = (&least, &most) {
            // A limit of zero means no limit.
            let message = format!("is above {limit}, so Velero ignores all of podResources");
            let is_in_order = least <= most || *most == Quantity::ZERO;
            reader.found.require(is_in_order, &at.child(request), message);
            is_usable &= is_in_order;
        }
        for (bounds, found) in [(&mut resources.requests, least), (&mut resources.limits, most)] {
            if let Some((_, text)) = found.filter(|(amount, _)| *amount != Quantity::ZERO) {
                bounds.insert(resource.to_owned(), text);
            }
        }
    }
    is_usable.then_some(resources)
}
