//! Keys for the directory of one entry: what their Secret is called in the hub, and when they are made anew.

use jiff::Timestamp;

/// An entry that is made again has another UID, and does not get what the one before had.
pub fn secret_name(entry: &str, uid: &str) -> String {
    format!("location-keys-{entry}-{}", uid.get(..5).unwrap_or(uid))
}

/// Keys that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// By which they were made: others make others.
    pub from: String,
    pub at: Timestamp,
    pub expire_at: Timestamp,
}

impl Made {
    /// Whoever has them has the other half of their life to get the next ones, and to end what was begun with them.
    pub fn renewed_at(&self) -> Timestamp {
        let half = self.expire_at.duration_since(self.at) / 2;
        self.at.saturating_add(half).unwrap_or(self.at)
    }
}

/// Are they to be made, or made anew?
pub fn is_due(made: Option<&Made>, from: &str, now: Timestamp) -> bool {
    made.is_none_or(|made| made.from != from || made.renewed_at() <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn keys_are_made_anew_at_half_of_their_life_and_when_others_make_them() {
        let made = Made { from: "a".to_owned(), at: at(100), expire_at: at(3700) };
        assert_eq!(made.renewed_at(), at(1900));
        for (from, now, due) in
            [("a", 100, false), ("a", 1899, false), ("a", 1900, true), ("a", 9999, true), ("b", 100, true)]
        {
            assert_eq!(is_due(Some(&made), from, at(now)), due, "{from} at {now}");
        }
        assert!(is_due(None, "a", at(0)));
    }

    #[test]
    fn an_entry_that_is_made_again_has_another_secret() {
        assert_eq!(secret_name("ship--1", "0b1c2d3e-0000"), "location-keys-ship--1-0b1c2");
        assert_eq!(secret_name("e", "u"), "location-keys-e-u");
    }
}
