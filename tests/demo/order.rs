//! In which order the five Backups of the worked example must run, with two slots.

use anyhow::{Context as _, ensure};

pub const NAMES: [&str; 5] = ["backup1", "backup2", "backup3", "backup4", "backup5"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    Started(String),
    Ended(String),
}

/// Each pair: the first before the second. backup2 shares ns2 with backup1; backup3 and backup4
/// share namespaces only with backup2, but would keep it waiting longer if they went first; backup5
/// blocks none.
fn rules() -> [(Happening, Happening); 5] {
    let started = |name: &str| Happening::Started(name.to_owned());
    let ended = |name: &str| Happening::Ended(name.to_owned());
    [
        (started("backup1"), started("backup5")),
        (started("backup5"), ended("backup1")),
        (ended("backup1"), started("backup2")),
        (ended("backup2"), started("backup3")),
        (ended("backup2"), started("backup4")),
    ]
}

/// Says in one line that the order is right.
///
/// # Errors
/// When it is not.
pub fn check(happened: &[Happening]) -> anyhow::Result<String> {
    let place = |wanted: &Happening| {
        happened.iter().position(|h| h == wanted).with_context(|| format!("never seen: {wanted:?}"))
    };
    for (earlier, later) in rules() {
        ensure!(
            place(&earlier)? < place(&later)?,
            "out of order: {later:?} before {earlier:?}. Seen: {happened:?}"
        );
    }
    Ok("The order is right: backup5 beside backup1, backup2 after backup1, backup3 and backup4 after backup2.".to_owned())
}
