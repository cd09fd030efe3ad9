//! Objects in progress that other processes carry. They are left to these as long as they are seen
//! to live: two that take an object from each other store nothing, and use up its runs.

use std::collections::BTreeMap;
use std::time::Duration;

/// A process that has not written its object for so long counts as dead.
pub const SILENCE: Duration = Duration::from_secs(600);
/// One that has nothing else to write says so often that it lives.
pub const SIGN: Duration = Duration::from_secs(150);

/// By UID, the version of the object that was seen last, and since when it is that one.
#[derive(Clone, Debug, Default)]
pub struct Others(BTreeMap<String, (String, Duration)>);

impl Others {
    /// From now on the object is another one's. Its version is known only by the next look.
    pub fn leave(&mut self, uid: &str, now: Duration) {
        self.0.insert(uid.to_owned(), (String::new(), now));
    }

    pub fn has(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// Is the object to be left to the process that carries it? Any write of the object counts as
    /// that one's. `now`: by a clock that never goes back.
    pub fn keeps(&mut self, uid: &str, version: &str, now: Duration) -> bool {
        match self.0.get(uid) {
            Some((seen, since)) if seen == version => now.saturating_sub(*since) < SILENCE,
            _ => {
                self.0.insert(uid.to_owned(), (version.to_owned(), now));
                true
            }
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_wanted(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_left_to_who_writes_it_and_to_nobody_who_is_silent() {
        let mut others = Others::default();
        let mut now = Duration::ZERO;
        others.leave("u", now);
        assert!(others.has("u") && !others.has("v"));
        // It writes nothing else than that it lives.
        for version in 0..100 {
            assert!(others.keeps("u", &version.to_string(), now), "{version}");
            now += SIGN;
            assert!(others.keeps("u", &version.to_string(), now), "{version}");
        }
        now += SILENCE;
        assert!(!others.keeps("u", "99", now));
        others.remove("u");
        assert!(others.keeps("u", "99", now), "a third one may have begun it meanwhile");
        others.retain(|uid| uid != "u");
        assert!(!others.has("u"));
        assert!(3 * SIGN < SILENCE, "a few signs may be lost");
    }
}
