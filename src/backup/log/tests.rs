use std::io::Read;

use super::*;

#[test]
fn results_hold_so_many_messages_and_the_log_all_of_them() {
    let log = BackupLog::new("velero/b".into());
    for i in 0..TOLD + 2 {
        log.warning(&ResultsHeading::Cluster, "", &format!("warning {i}"));
    }
    log.error(&ResultsHeading::Cluster, "", "an error");
    assert_eq!(log.counts(), MessageCounts { warnings: TOLD + 2, errors: 1 });
    let (lines, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
    assert!(text(&lines).contains(&format!("\"warning {}\"", TOLD + 1)));
    let results = text(&results);
    assert!(!results.contains(&format!("warning {TOLD}\"")) && results.contains("an error"));
    assert_eq!(results.matches("which only the log has").count(), 1);
}

#[test]
fn a_run_that_goes_on_counts_what_the_one_before_had_no_room_to_tell() {
    let log = BackupLog::new("velero/b".into());
    for i in 0..TOLD + 7 {
        log.error(&ResultsHeading::Cluster, "", &format!("error {i}"));
    }
    let untold = log.untold();
    assert_eq!(untold, Untold::from([(String::new(), MessageCounts { warnings: 0, errors: 7 })]));
    let again = BackupLog::new("velero/b".into()).behind(log.told(), Vec::new());
    again.count_untold(untold.clone());
    assert_eq!(again.counts(), log.counts());
    assert_eq!((again.untold(), again.behind(Vec::new(), Vec::new()).counts()), (untold, log.counts()));
}

#[test]
fn of_what_several_runs_told_a_log_keeps_no_more_than_of_one() {
    let full = |what: &str| {
        let log = BackupLog::new("velero/b".into());
        for i in 0..TOLD + 7 {
            log.error(&ResultsHeading::Cluster, "", &format!("{what} {i}"));
            log.error(&ResultsHeading::Namespace("loud"), "", &format!("{what} {i}"));
        }
        log
    };
    let (one, other) = (full("one"), full("other"));
    let both = other.behind(one.told(), Vec::new());
    both.count_untold(one.untold());
    assert_eq!(both.told(), one.told());
    assert_eq!(both.counts().errors, one.counts().errors + other.counts().errors);
    assert!(one.told().len() < MESSAGES);
}

/// What there is no room for when the words of two runs are put together is counted by every run
/// after them, too.
#[test]
fn counts_are_true_over_any_number_of_runs() {
    let mut log = BackupLog::new("velero/b".into());
    let mut errors = 0;
    for run in 0..4 {
        // As one that thaws what a dead run has left, and then goes on.
        let thawed = BackupLog::new("velero/b".into());
        for i in 0..TOLD / 2 {
            thawed.lasting_error(
                &ResultsHeading::Namespace(&format!("ns-{}", i % 20)),
                "pods",
                &format!("{run} {i}"),
            );
        }
        let again = thawed.behind(log.told(), Vec::new());
        again.count_untold(log.untold());
        for i in 0..TOLD / 2 {
            again.error(&ResultsHeading::Cluster, "configmaps", &format!("{run} {i}"));
        }
        errors += TOLD / 2 * 2;
        assert_eq!(again.counts(), MessageCounts { warnings: 0, errors }, "run {run}");
        let told = again.told();
        let untold: u32 = again.untold().values().map(|counts| counts.errors).sum();
        assert_eq!(MessageCounts::of(&told).errors + untold, errors, "run {run}");
        let more = told.iter().filter(|told| told.is_more && told.namespace.is_none()).count();
        assert_eq!((more, told.len() <= MESSAGES / 2), (usize::from(untold > 0), true), "run {run}");
        log = again;
    }
}

#[test]
fn one_namespace_does_not_take_the_room_of_the_others() {
    let log = BackupLog::new("velero/b".into());
    for i in 0..TOLD + 2 {
        log.error(&ResultsHeading::Namespace("loud"), "pods", &format!("error {i}"));
    }
    log.error(&ResultsHeading::Namespace("quiet"), "pods", "an error");
    assert_eq!(log.counts(), MessageCounts { warnings: 0, errors: TOLD + 3 });
    let (_, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
    let results: serde_json::Value = serde_json::from_str(&text(&results)).unwrap_or_default();
    let of = |namespace: &str| results["errors"]["namespaces"][namespace].as_array().map(Vec::len);
    let of_namespace = usize::try_from(OF_NAMESPACE).unwrap_or_default();
    assert_eq!((of("loud"), of("quiet")), (Some(of_namespace + 1), Some(1)));
    let last = &results["errors"]["namespaces"]["loud"][of_namespace];
    assert!(last.as_str().is_some_and(|last| last.contains("which only the log has")), "{last}");
    assert!(results["errors"].get("velero").is_none(), "{results}");
}

fn text(gzip: &[u8]) -> String {
    let mut text = String::new();
    let read = flate2::read::GzDecoder::new(gzip).read_to_string(&mut text);
    read.map(|_| text).unwrap_or_else(|e| unreachable!("{e}"))
}

#[test]
fn lines_are_counted_and_gathered() {
    let log = BackupLog::new("velero/b".into());
    log.info("said \"so\"");
    log.warning(&ResultsHeading::Cluster, "", "w");
    log.error(&ResultsHeading::Namespace("ns1"), "configmaps", "gone");
    log.error(&ResultsHeading::Velero, "", "bad");
    assert_eq!(log.counts(), MessageCounts { warnings: 1, errors: 2 });
    let (lines, results) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
    let lines = text(&lines);
    assert!(lines.contains(r#"level=info msg="said \"so\"" backup=velero/b"#), "{lines}");
    assert!(
        lines.contains(r#"level=error msg="gone" backup=velero/b resource=configmaps namespace=ns1"#),
        "{lines}"
    );
    let again = BackupLog::again("velero/b".into(), log.told(), log.lines().unwrap());
    again.error(&ResultsHeading::Velero, "", "bad");
    again.error(&ResultsHeading::Velero, "", "worse");
    assert_eq!(again.counts(), MessageCounts { warnings: 1, errors: 3 }, "what is told twice counts once");
    assert!(again.lines().unwrap().len() > log.lines().unwrap().len());
    log.info("later");
    let (whole, _) = log.files().unwrap_or_else(|e| unreachable!("{e}"));
    let mut both = String::new();
    let read = flate2::read::MultiGzDecoder::new(&whole[..]).read_to_string(&mut both);
    assert!(read.is_ok() && both.starts_with(&lines) && both.contains("msg=\"later\""), "{both}");
    assert_eq!(
        text(&results),
        "{\"errors\":{\"velero\":[\" message: /bad\"],\"namespaces\":{\"ns1\":[\" resource: /configmaps message: /gone\"]}},\"warnings\":{\"cluster\":[\" message: /w\"]}}\n"
    );
}
