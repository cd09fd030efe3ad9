//! `podResources`, which Velero applies completely or not at all.

use berth_core::violation::Field;

use super::json::Json;
use super::reader::Reader;
use crate::quantity::Quantity;

/// Keys of request and limit, and whether they must be set.
const PAIRS: [(&str, &str, bool); 3] = [
    ("cpuRequest", "cpuLimit", true),
    ("memoryRequest", "memoryLimit", true),
    ("ephemeralStorageRequest", "ephemeralStorageLimit", false),
];

pub(super) fn check(json: Option<&Json>, at: &Field, reader: &mut Reader) {
    let Some(json) = json else { return };
    let keys: Vec<&'static str> = PAIRS.iter().flat_map(|(request, limit, _)| [*request, *limit]).collect();
    let object = reader.object(Some(json), at, &keys);
    for (request, limit, is_needed) in PAIRS {
        let mut amount = |name: &str| {
            let at = at.child(name);
            let text = reader.text(object.get(name), &at);
            if text.is_empty() {
                let message = "is missing, so Velero ignores all of podResources: write \"0\" for no bound";
                reader.found.require(!is_needed, &at, message);
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
            reader.found.require(amount.is_some_and(|amount| amount >= Quantity::ZERO), &at, message);
            amount
        };
        if let (Some(least), Some(most)) = (amount(request), amount(limit)) {
            // A limit of zero means no limit.
            let message = format!("is above {limit}, so Velero ignores all of podResources");
            reader.found.require(least <= most || most == Quantity::ZERO, &at.child(request), message);
        }
    }
}
