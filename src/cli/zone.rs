//! The time zone in which people read times, as Velero's command line finds it: that of `TZ`, else
//! that of /etc/localtime, else UTC.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use jiff::tz::TimeZone;

/// Where a system says what its zone is.
const SYSTEM: &str = "/etc/localtime";
/// A file with the rules of a zone is not larger.
const LARGEST: u64 = 1 << 20;

/// The zone of whoever started the program.
pub fn local() -> &'static TimeZone {
    static LOCAL: OnceLock<TimeZone> = OnceLock::new();
    // Tests compare with UTC, wherever they run.
    LOCAL.get_or_init(|| if cfg!(test) { TimeZone::UTC } else { of(std::env::var("TZ").ok().as_deref()) })
}

/// `named`: what `TZ` says.
fn of(named: Option<&str>) -> TimeZone {
    let zone = match named.map(|name| name.strip_prefix(':').unwrap_or(name)) {
        None => file(Path::new(SYSTEM)),
        Some(path) if path.starts_with('/') => file(Path::new(path)),
        Some(name) => berth_core::cron::zone(name),
    };
    zone.unwrap_or(TimeZone::UTC)
}

fn file(path: &Path) -> Option<TimeZone> {
    let mut rules = Vec::new();
    File::open(path).ok()?.take(LARGEST).read_to_end(&mut rules).ok()?;
    TimeZone::tzif("Local", &rules).ok()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::cli::table::time_in;

    fn told(zone: &TimeZone) -> String {
        time_in(&Time("2026-11-25T16:00:00Z".parse::<Timestamp>().unwrap()), zone)
    }

    #[test]
    fn times_are_told_in_the_zone_that_is_named_as_go_prints_them() {
        for (named, expected) in [
            ("Europe/Berlin", "2026-11-25 17:00:00 +0100 CET"),
            (":America/St_Johns", "2026-11-25 12:30:00 -0330 NST"),
            // A zone without letters.
            ("America/Sao_Paulo", "2026-11-25 13:00:00 -0300 -03"),
            ("UTC", "2026-11-25 16:00:00 +0000 UTC"),
            ("", "2026-11-25 16:00:00 +0000 UTC"),
            ("Nowhere/Land", "2026-11-25 16:00:00 +0000 UTC"),
            ("/does/not/exist", "2026-11-25 16:00:00 +0000 UTC"),
        ] {
            assert_eq!(told(&of(Some(named))), expected, "{named}");
        }
    }

    #[test]
    fn a_file_of_rules_counts_and_any_other_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zone");
        // The header of version 2, empty rules of version 1, and one rule for all times.
        let header = |version: &[u8], counts: [u32; 6]| {
            let counts = counts.map(u32::to_be_bytes).concat();
            [b"TZif".as_slice(), version, &[0; 15], &counts].concat()
        };
        let one = [&7200_i32.to_be_bytes()[..], &[0, 0], b"XYZ\0"].concat();
        let counts = [0, 0, 0, 0, 1, 4];
        let rules = [header(b"2", counts), one.clone(), header(b"2", counts), one, b"\nXYZ-2\n".to_vec()];
        std::fs::write(&path, rules.concat()).unwrap();
        let named = path.display().to_string();
        assert_eq!(told(&of(Some(&named))), "2026-11-25 18:00:00 +0200 XYZ");
        std::fs::write(&path, "no rules").unwrap();
        assert_eq!(told(&of(Some(&named))), "2026-11-25 16:00:00 +0000 UTC");
    }
}
