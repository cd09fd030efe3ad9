use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;

/// What robfig/cron v3.0.1 says: see the head of the file.
const ROBFIG: &str = include_str!("robfig.txt");

/// A text as Go quotes it.
fn unquoted(text: &str) -> String {
    let mut chars = text.trim_matches('"').chars();
    let mut plain = String::new();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('u') => {
                let code: String = chars.by_ref().take(4).collect();
                plain.extend(char::from_u32(u32::from_str_radix(&code, 16).unwrap()));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

/// Each line: an expression, and what was said of it.
fn said() -> impl Iterator<Item = (String, Vec<&'static str>)> {
    let lines = ROBFIG.lines().filter(|line| line.starts_with('"'));
    lines.map(|line| {
        let (text, rest) = line.split_once('\t').unwrap();
        // Within an expression a tab is quoted.
        (unquoted(text), rest.split('\t').collect())
    })
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn read(text: &str) -> Cron {
    Cron::parse(text).unwrap_or_else(|fault| panic!("{text:?}: {fault}"))
}

#[test]
fn the_same_expressions_are_accepted_as_by_veleros_parser() {
    let mut count = [0, 0];
    for (text, rest) in said() {
        let is_refused = rest == ["refused"];
        count[usize::from(is_refused)] += 1;
        let found = Cron::parse(&text);
        assert_eq!(found.is_err(), is_refused, "{text:?}: {found:?}");
    }
    assert!(count[0] > 1000 && count[1] > 100, "{count:?}");
}

#[test]
fn the_same_times_follow_as_by_veleros_parser() {
    let mut wrong = Vec::new();
    for (text, rest) in said() {
        let [after, expected] = rest.as_slice() else { continue };
        let cron = read(&text);
        let mut at = time(after);
        let mut found = Vec::new();
        for _ in expected.split(' ') {
            let next = cron.next(at);
            found.push(next.map_or_else(|| "none".to_owned(), |next| next.to_string()));
            let Some(next) = next else { break };
            at = next;
        }
        if found.join(" ") != *expected {
            wrong.push(format!("{text:?} after {after}: {} and not {expected}", found.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_fault_is_told_with_its_place_and_with_what_is_allowed() {
    for (text, part, wrong, why) in [
        ("", CronPart::Expression, "", "expression is empty; allowed: five fields (minute, hour,"),
        (
            "* * * *",
            CronPart::Expression,
            "* * * *",
            "(characters 1 to 7) has 4 fields where five are needed",
        ),
        ("daily", CronPart::Expression, "daily", "has 1 field where five are needed"),
        ("0 25 * * *", CronPart::Hour, "25", "hour \"25\" (characters 3 to 4) is above 23; allowed: 0-23, *"),
        (
            "0 2 0 * *",
            CronPart::DayOfMonth,
            "0",
            "day of month \"0\" (character 5) is below 1; allowed: 1-31",
        ),
        ("0 2 * 1,13 *", CronPart::Month, "13", "month \"13\" (characters 9 to 10) is above 12"),
        (
            "0 2 * * 7",
            CronPart::DayOfWeek,
            "7",
            "day of week \"7\" (character 9) is above 6; allowed: 0-6 (Sunday",
        ),
        ("0 2 * * FRI-MON", CronPart::DayOfWeek, "FRI-MON", "ends before it begins"),
        ("0 2 * * MON-", CronPart::DayOfWeek, "", "day of week lacks a number"),
        ("*/0 * * * *", CronPart::Minute, "0", "minute \"0\" (character 3) is no step"),
        ("1/2/3 * * * *", CronPart::Minute, "1/2/3", "has more than one /"),
        ("1-2-3 * * * *", CronPart::Minute, "1-2-3", "has more than one -"),
        ("ä * * * *", CronPart::Minute, "ä", "minute \"ä\" (character 1) is no number"),
        ("TZ=Ä 0 x * * *", CronPart::Zone, "Ä", "time zone \"Ä\" (character 4) is not known; allowed: names"),
        (
            "TZ=europe/berlin 0 2 * * *",
            CronPart::Zone,
            "europe/berlin",
            "is not known; is Europe/Berlin meant?",
        ),
        ("TZ=Europe/Berlin", CronPart::Zone, "Europe/Berlin", "is not followed by a space and an expression"),
        ("TZ=Europe/Berlin 0 24 * * *", CronPart::Hour, "24", "hour \"24\" (characters 20 to 21)"),
        (
            "@nightly",
            CronPart::Name,
            "@nightly",
            "(characters 1 to 8) is not one of the names; allowed: @yearly",
        ),
        (
            "@every 5",
            CronPart::Every,
            "5",
            "@every \"5\" (character 8) is no duration; allowed: durations as in 6h",
        ),
        ("@every 9999999h", CronPart::Every, "9999999h", "is longer than about 292 years"),
    ] {
        let fault = Cron::parse(text).unwrap_err();
        assert_eq!((fault.part, &text[fault.bytes.clone()]), (part, wrong), "{text:?}: {fault}");
        assert!(fault.to_string().contains(why), "{text:?}: {fault}");
    }
    let long = Cron::parse(&"1,".repeat(600)).unwrap_err().to_string();
    assert!(long.contains("has 1200 bytes, and at most 1000 are taken") && long.len() < 400, "{long}");
}

#[test]
fn the_zone_that_is_written_in_front_is_told() {
    let cron = read("CRON_TZ=Asia/Kolkata 0 2 * * *");
    assert_eq!(cron.zone().map(|(name, _)| name), Some("Asia/Kolkata"));
    assert_eq!(
        cron.upcoming(time("2026-01-01T00:00:00Z"), 2),
        [time("2026-01-01T20:30:00Z"), time("2026-01-02T20:30:00Z")]
    );
    assert_eq!(read("0 2 * * *").zone(), None);
}

/// Velero's search would not end here: at the end of 2011 Samoa left out a day.
#[test]
fn a_day_that_a_zone_left_out_does_not_stop_the_search_for_ever() {
    let cron = read("CRON_TZ=Pacific/Apia 0 12 31 * *");
    assert_eq!(cron.next(time("2011-12-29T12:00:00Z")), None);
    assert!(cron.next(time("2012-01-01T12:00:00Z")).is_some());
}

#[test]
fn what_never_comes_takes_no_time() {
    let begun = std::time::Instant::now();
    for _ in 0..1000 {
        for text in [", * * * *", "* , * * *", "0 0 31 2 *", "0 0 30 2 *", "0 0 , * *", "* * * , *"] {
            assert_eq!(read(text).next(time("2026-11-25T16:07:31Z")), None);
        }
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}

const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Antarctica/Troll",
];

/// Expressions that are right, in any of a few zones.
fn expression() -> impl Strategy<Value = String> {
    expression_in(ZONES.to_vec())
}

/// The same without the zone that changes its clocks by half an hour. There robfig/cron, whose
/// steps are ours, looks past a time from some seconds of that one day, and finds it from the
/// seconds around them:
/// `a_change_by_half_an_hour_hides_a_time_from_some_seconds_as_it_does_from_robfig` has the
/// example.
fn expression_of_whole_hours() -> impl Strategy<Value = String> {
    expression_in(ZONES.into_iter().filter(|zone| *zone != "Australia/Lord_Howe").collect())
}

fn expression_in(zones: Vec<&'static str>) -> impl Strategy<Value = String> {
    let field = |least: u32, most: u32| {
        prop_oneof![
            Just("*".to_owned()),
            (least..=most).prop_map(|n| n.to_string()),
            (1..=most).prop_map(|n| format!("*/{n}")),
            (least..=most, least..=most).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            (least..=most, least..=most).prop_map(|(a, b)| format!("{a},{b}")),
        ]
    };
    let fields = (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6));
    let fields = fields.prop_map(|(a, b, c, d, e)| format!("{a} {b} {c} {d} {e}"));
    let every = (1_u32..100_000).prop_map(|seconds| format!("@every {seconds}s"));
    let rule = prop_oneof![8 => fields, 1 => every, 1 => Just("@daily".to_owned())];
    (prop::sample::select(zones), rule).prop_map(|(zone, rule)| format!("CRON_TZ={zone} {rule}"))
}

/// The answers are those of the real robfig/cron. The two leaders that look at different seconds
/// may so differ for a while about the last time, and agree once it is later.
#[test]
fn a_change_by_half_an_hour_hides_a_time_from_some_seconds_as_it_does_from_robfig() {
    let cron = read("CRON_TZ=Australia/Lord_Howe @daily");
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let next = |text: &str| cron.next(at(text)).map(|next| next.to_string());
    assert_eq!(next("2016-10-01T13:29:59Z").as_deref(), Some("2016-10-01T13:30:00Z"));
    assert_eq!(next("2016-10-01T13:30:00Z").as_deref(), Some("2016-10-03T13:00:00Z"));
    assert_eq!(next("2016-10-01T20:00:00Z").as_deref(), Some("2016-10-02T13:00:00Z"));
    let last = cron.last_until(at("2016-09-29T03:36:40Z"), at("2016-10-02T13:00:00Z"));
    assert_eq!(last, Some(at("2016-10-02T13:00:00Z")));
}

/// In nanoseconds, from 2015 to 2030.
fn moment() -> impl Strategy<Value = Timestamp> {
    (1_420_070_400_i64..1_893_456_000, 0_i32..1_000_000_000)
        .prop_map(|(second, nanosecond)| Timestamp::new(second, nanosecond).unwrap())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_and_its_fault_lies_in_it(text in "\\PC{0,40}|[-*/?,0-9@TZ= a-z]{0,24}") {
        if let Err(fault) = Cron::parse(&text) {
            prop_assert!(text.get(fault.bytes.clone()).is_some());
            prop_assert!(fault.to_string().len() < 500);
        }
    }

    #[test]
    fn the_next_time_is_always_after_and_on_a_second(text in expression(), at in moment()) {
        let next = read(&text).next(at);
        prop_assert!(next.is_none_or(|next| next > at && next.subsec_nanosecond() == 0), "{:?}", next);
    }

    /// Between a time and the one before it there is none, from wherever it is looked for.
    #[test]
    fn between_two_times_there_is_no_third_one(text in expression_of_whole_hours(), at in moment(), share in 0.0_f64..1.0) {
        let cron = read(&text);
        if let Some(next) = cron.next(at) {
            let between = at + SignedDuration::from_secs_f64(next.duration_since(at).as_secs_f64() * share);
            let is_anchored = !text.contains("@every");
            prop_assert!(!is_anchored || between >= next || cron.next(between) == Some(next), "{}", next);
        }
    }

    #[test]
    fn the_last_time_until_now_is_the_last_of_all(text in expression_of_whole_hours(), at in moment(), seconds in 0_i64..400_000) {
        let cron = read(&text);
        let until = at + SignedDuration::from_secs(seconds);
        let all = std::iter::successors(cron.next(at), |last| cron.next(*last));
        let last = all.take_while(|next| *next <= until).last();
        prop_assert_eq!(cron.last_until(at, until), last);
    }

    /// In every zone.
    #[test]
    fn the_last_time_until_now_is_a_time_and_lies_before_now(text in expression(), at in moment(), seconds in 0_i64..400_000) {
        let cron = read(&text);
        let until = at + SignedDuration::from_secs(seconds);
        let last = cron.last_until(at, until);
        prop_assert_eq!(last.is_some(), cron.next(at).is_some_and(|first| first <= until));
        if let Some(last) = last.filter(|_| !text.contains("@every")) {
            prop_assert!(at < last && last <= until);
            prop_assert_eq!(cron.next(last - SignedDuration::from_secs(1)), Some(last));
        }
    }
}

/// A search that ends early finds what one without an end finds, also where clocks change.
#[test]
fn a_search_to_a_time_finds_what_a_search_without_one_finds() {
    for (text, rest) in said() {
        let [after, _] = rest.as_slice() else { continue };
        let (cron, after) = (read(&text), time(after));
        for begin in [after, after + SignedDuration::from_secs(1801)] {
            let next = cron.next(begin);
            for until in next.into_iter().flat_map(|next| {
                [-86_400, -60, -1, 0, 1, 3600].map(|by| next + SignedDuration::from_secs(by))
            }) {
                // Where clocks change, the next time may be one that has passed.
                if until < begin {
                    continue;
                }
                let found = cron.next_until(begin, until, &Effort::of_decision());
                assert_eq!(found, next.filter(|next| *next <= until), "{text:?} after {begin} until {until}");
            }
            let effort = Effort::of_decision();
            let before = effort.left();
            let _ = cron.next_until(begin, begin + SignedDuration::from_mins(10), &effort);
            let took = before - effort.left();
            assert!(took <= 10_000, "{text:?} after {begin}: {took}");
        }
    }
}
