//! What the tests themselves rely on, when one of them fails.

use std::time::Duration;

use crate::support::{seen, times, wait_for};

#[test]
fn a_wait_in_vain_says_what_it_saw_last_and_nothing_from_before() {
    seen::note("kubectl get old", "from before");
    let vain = wait_for("something that never comes", Duration::ZERO, || {
        seen::note("kubectl get pod", "an earlier answer");
        seen::note("kubectl get pod", &format!("{} the last answer\n", "é".repeat(1000)));
        Ok(None::<()>)
    });
    let why = vain.unwrap_err().to_string();
    assert!(why.starts_with("waited 0ns in vain for something that never comes\n"), "{why}");
    assert!(why.contains("last seen of kubectl get pod: …é") && why.ends_with("the last answer"), "{why}");
    assert!(!why.contains("from before") && !why.contains("earlier"), "{why}");
    assert!(why.len() < 1000, "{why}");
}

#[test]
fn tests_whose_run_is_gone_know_it() {
    assert!(!times::is_gone(None) && !times::is_gone(Some("no number")));
    assert!(!times::is_gone(Some(&std::process::id().to_string())));
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let id = ended.id().to_string();
    ended.wait().unwrap();
    assert!(times::is_gone(Some(&id)));
}

#[test]
fn a_test_that_fails_by_a_thread_of_its_own_tells_why_that_did() {
    let mut elsewhere = Some("thread crash-of-4711: it broke".to_owned());
    let own = times::with_cause("assertion failed".to_owned(), &mut elsewhere);
    assert_eq!((own.as_str(), elsewhere.is_some()), ("assertion failed", true));
    let why = times::with_cause("a scoped thread panicked".to_owned(), &mut elsewhere);
    assert_eq!(why, "a scoped thread panicked: thread crash-of-4711: it broke");
    assert_eq!(elsewhere, None);
}
