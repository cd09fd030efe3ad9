use proptest::prelude::*;

use super::*;
use crate::glob::Glob;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    time("2026-01-01T12:00:30Z")
}

fn set(names: &[&str]) -> Arc<NamespaceSet> {
    Arc::new(NamespaceSet::new(names.iter().filter_map(|name| Glob::parse(name).ok()).collect(), Vec::new()))
}

fn plan(name: &str, cron: &str, namespaces: &[&str]) -> PlannedSchedule {
    PlannedSchedule {
        name: name.to_owned(),
        cron: Cron::parse(cron).unwrap(),
        reference: time("2026-01-01T00:00:00Z"),
        offset: SignedDuration::ZERO,
        namespaces: set(namespaces),
    }
}

fn others(plans: impl IntoIterator<Item = PlannedSchedule>) -> Others {
    Others { plans: plans.into_iter().map(Arc::new).collect(), left_out: 0 }
}

/// Days of January on which `own` meets `other`, and in what.
fn met(own: &PlannedSchedule, other: PlannedSchedule) -> (Vec<i8>, String) {
    let found = preview(own, &others([other]), now());
    assert!(found.meets.len() <= 1 && found.left_out == 0, "{found:?}");
    let Some(met) = found.meets.first() else { return (Vec::new(), String::new()) };
    let day = |at: &Timestamp| at.to_zoned(jiff::tz::TimeZone::UTC).day();
    (met.at.iter().map(day).collect(), met.namespaces.join(","))
}

#[test]
fn times_meet_where_others_take_the_same_at_nearly_the_same_time() {
    let all = vec![2, 3, 4, 5, 6];
    for (cron, namespaces, days, shared) in [
        ("0 2 * * *", "shop", all.clone(), "shop"),
        ("0 2 * * *", "club", vec![], ""),
        ("0 2 * * *", "*", all.clone(), "shop,web"),
        ("0 2 * * *", "s*", all.clone(), "shop"),
        // Near, on both sides, and not near any more.
        ("5 2 * * *", "shop", all.clone(), "shop"),
        ("55 1 * * *", "shop", all.clone(), "shop"),
        ("6 2 * * *", "shop", vec![], ""),
        ("54 1 * * *", "shop", vec![], ""),
        // Some of them.
        ("0 2 * * SUN", "shop", vec![4], "shop"),
        ("0 2 3,5 * *", "shop web", vec![3, 5], "shop,web"),
        ("*/5 * * * *", "web", all.clone(), "web"),
        ("CRON_TZ=Europe/Berlin 0 3 * * *", "shop", all.clone(), "shop"),
        ("CRON_TZ=Europe/Berlin 0 2 * * *", "shop", vec![], ""),
        // Counted from the last midnight.
        ("@every 26h", "shop", vec![2], "shop"),
        ("@every 7h", "shop", vec![5], "shop"),
        ("@every 1h", "shop", all.clone(), "shop"),
    ] {
        let own = plan("own", "0 2 * * *", &["shop", "web"]);
        let namespaces: Vec<&str> = namespaces.split(' ').collect();
        let found = met(&own, plan("other", cron, &namespaces));
        assert_eq!(found, (days, shared.to_owned()), "{cron} {namespaces:?}");
    }
}

#[test]
fn what_counts_is_when_backups_are_created() {
    let mins = SignedDuration::from_mins;
    let own = plan("own", "0 2 * * *", &["shop"]);
    for (offset, cron, is_met) in [(30, "0 2 * * *", false), (30, "30 1 * * *", true)] {
        let other = PlannedSchedule { offset: mins(offset), ..plan("other", cron, &["shop"]) };
        assert_eq!(!met(&own, other.clone()).0.is_empty(), is_met, "{cron}");
        let found = preview(&other, &others([own.clone()]), now());
        assert_eq!(!found.meets.is_empty(), is_met, "{cron}");
        assert!(found.meets.iter().all(|met| met.at == found.times), "its times are shown: {found:?}");
    }
}

#[test]
fn its_own_times_are_those_that_follow_from_what_is_recorded() {
    let every = plan("own", "@every 5h", &[]);
    let times = every.upcoming(now());
    assert_eq!(times.first(), Some(&time("2026-01-01T15:00:00Z")));
    assert_eq!(times.len(), TIMES);
    let later = PlannedSchedule { reference: time("2026-01-03T01:30:00Z"), ..every };
    assert_eq!(later.upcoming(now()).first(), Some(&time("2026-01-03T06:30:00Z")));
    assert_eq!(plan("own", "0 2 * * *", &[]).upcoming(now()).first(), Some(&time("2026-01-02T02:00:00Z")));
    assert!(plan("own", "0 0 31 2 *", &[]).upcoming(now()).is_empty());
}

#[test]
fn it_does_not_meet_itself_and_those_that_are_met_first_come_first() {
    let own = plan("own", "0 2 * * *", &["shop"]);
    let found = preview(
        &own,
        &others([
            own.clone(),
            plan("c", "0 2 3 * *", &["shop"]),
            plan("b", "0 2 * * *", &["shop"]),
            plan("a", "0 2 3 * *", &["shop"]),
        ]),
        now(),
    );
    let names: Vec<&str> = found.meets.iter().map(|met| met.schedule.as_str()).collect();
    assert_eq!(names, ["b", "a", "c"]);
}

/// Searches and sets, each as expensive as they may be.
#[test]
fn it_takes_a_bounded_time_and_tells_how_many_it_left_out() {
    let own = plan("own", "* * * * *", &["*a*b*c*d*e*f*g"]);
    let letter = |i: usize| char::from(b'a' + u8::try_from(i % 26).unwrap());
    let pattern =
        |p: usize| (0..31).map(|i| format!("*{}", letter(p * 7 + i * (p % 5 + 1)))).collect::<String>();
    let patterns: Vec<String> = (0..30).map(pattern).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    for (cron, namespaces) in
        [("CRON_TZ=America/Sao_Paulo 59 23 29 2 *", &["a"][..]), ("* * * * *", patterns.as_slice())]
    {
        let other = plan("other", cron, namespaces);
        let many = (0..100_000).map(|i| PlannedSchedule { name: format!("o{i}"), ..other.clone() });
        let begun = std::time::Instant::now();
        let found = preview(&own, &others(many), now());
        assert!(found.left_out > 0 && found.left_out < 100_000, "{cron}: {}", found.left_out);
        eprintln!("{cron}: {} left out, {:?}", found.left_out, begun.elapsed());
    }
    // What is usual fits in.
    let many = (0..1000).map(|i| plan(&format!("o{i}"), "0 2 * * *", &[&format!("n{i}")]));
    let found = preview(&plan("own", "0 2 * * *", &["n7", "n8"]), &others(many), now());
    assert_eq!((found.meets.len(), found.left_out), (2, 0));
}

fn crons() -> impl Strategy<Value = String> {
    let zone = prop::sample::select(&["", "CRON_TZ=Europe/Berlin ", "CRON_TZ=America/Sao_Paulo "][..]);
    let minute = prop::sample::select(&["0", "*/7", "58", "*", "3-6"][..]);
    let hour = prop::sample::select(&["0", "2", "*", "*/3", "23"][..]);
    let day = prop::sample::select(&["*", "1", "2,4", "*/2"][..]);
    let week = prop::sample::select(&["*", "SUN", "MON-FRI"][..]);
    let fields = (zone, minute, hour, day, week)
        .prop_map(|(zone, minute, hour, day, week)| format!("{zone}{minute} {hour} {day} * {week}"));
    prop_oneof![4 => fields, 1 => (1_u32..3000).prop_map(|minutes| format!("@every {minutes}m"))]
}

proptest! {
    /// Told by going through all backups that are created in that time.
    #[test]
    fn whom_it_meets_is_whom_it_would_meet(
        own in crons(), other in crons(), offsets in (0_i64..4000, 0_i64..4000), since in 0_i64..200_000,
        names in prop::collection::vec("[ab*]{1,2}", 1..3), theirs in prop::collection::vec("[ab*]{1,2}", 1..3),
    ) {
        let plan = |name: &str, cron: &str, offset: i64, names: &[String]| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let reference = now() - SignedDuration::from_secs(since);
            PlannedSchedule { offset: SignedDuration::from_secs(offset), reference, ..plan(name, cron, &names) }
        };
        let own = plan("own", &own, offsets.0, &names);
        let other = plan("other", &other, offsets.1, &theirs);
        let found = preview(&own, &others([other.clone()]), now());
        prop_assert_eq!(found.left_out, 0);
        prop_assert!(found.times.is_sorted() && found.times.first().is_none_or(|first| *first > now()));
        let created = |plan: &PlannedSchedule, time: Timestamp| time + plan.offset;
        let mut expected = Vec::new();
        for time in &found.times {
            let at = created(&own, *time);
            let mut theirs = other.cron.begin(other.reference, at - other.offset - NEAR * 2 - SECOND);
            while let Some(next) = other.cron.next(theirs).filter(|next| created(&other, *next) <= at + NEAR) {
                theirs = next;
                if created(&other, next) >= at - NEAR {
                    expected.push(*time);
                    break;
                }
            }
        }
        let meet = own.namespaces.overlaps(&other.namespaces, &Effort::of_decision());
        let at = found.meets.first().map(|met| met.at.clone()).unwrap_or_default();
        prop_assert_eq!(at, if meet { expected } else { Vec::new() });
    }
}
