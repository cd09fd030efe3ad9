//! Keys for the directory of one entry: the name of their Secret in the hub, and when they are
//! renewed.

use jiff::Timestamp;

/// Contains a part of the UID, so that an entry that is created again does not get the keys of the
/// one before.
pub fn secret_name(entry: &str, uid: &str) -> String {
    format!("location-keys-{entry}-{}", uid.get(..5).unwrap_or(uid))
}

/// Keys that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedKeys {
    /// Digest of the keys that created them. Other keys create other ones.
    pub from: String,
    pub at: Timestamp,
    pub expire_at: Timestamp,
}

impl IssuedKeys {
    /// At half of their life, so that a holder has the other half to get the next keys, and to
    /// finish what it began with these.
    pub fn renewed_at(&self) -> Timestamp {
        let half = self.expire_at.duration_since(self.at) / 2;
        self.at.saturating_add(half).unwrap_or(self.at)
    }
}

/// Do they have to be created or renewed?
pub fn is_due(made: Option<&IssuedKeys>, from: &str, now: Timestamp) -> bool {
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
        let made = IssuedKeys { from: "a".to_owned(), at: at(100), expire_at: at(3700) };
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
