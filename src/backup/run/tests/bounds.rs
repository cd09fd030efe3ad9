//! What all runs of a process take together.

use std::pin::pin;

use berth_core::selection::ResourceType;
use futures::future::join_all;

use super::*;

impl Site {
    /// Whatever is written to the Backup: for runs that may last until their progress is written.
    pub(super) fn takes_writes(&self) {
        let standing = Mutex::new(backup("7", "ReadyToStart"));
        self.api.always(patch(ONE).answers_with(move |sent| {
            let mut standing = standing.lock();
            json_patch::merge(&mut standing, sent);
            standing.clone()
        }));
    }
}

/// One more than its packers have is for files. A run that kept others would wait for them for
/// ever.
#[test]
fn a_run_keeps_a_thread_for_each_of_its_packers_and_no_other() {
    const PACKERS: usize = 8;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(PACKERS + 1).build().unwrap();
    runtime.block_on(async {
        let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[map("b")])));
        site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
        let engine = Engine { packers: PACKERS, ..engine(&site.api, &site.folder, site.setting) };
        let ran = tokio::time::timeout(LONG, engine.run("one", "u", Signals::default())).await;
        assert_eq!(ran.unwrap().unwrap().unwrap().phase(), BackupPhase::Completed);
    });
}

/// The packers of all of them wait at the same time, and what one run takes too much is missing in
/// another one.
#[test]
fn runs_at_the_same_time_keep_the_threads_of_their_packers_and_no_other() {
    const RUNS: usize = 3;
    const PACKERS: usize = 4;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(RUNS * PACKERS + 1).build().unwrap();
    runtime.block_on(async {
        let begun = || {
            let last = Hold::new();
            let answer = get(MAPS).page("more").answers(list("5", &[map("b")])).held(&last);
            let site = Site::new().with_pages(answer);
            site.takes_writes();
            (site, last)
        };
        let sites: Vec<(Site, Hold)> = (0..RUNS).map(|_| begun()).collect();
        let runs = sites.iter().map(|(site, _)| async move {
            let engine = Engine { packers: PACKERS, ..engine(&site.api, &site.folder, site.setting) };
            let ran = tokio::time::timeout(LONG, engine.run("one", "u", Signals::default())).await;
            assert_eq!(ran.unwrap().unwrap().unwrap().phase(), BackupPhase::Completed);
        });
        let story = async {
            join_all(sites.iter().map(|(_, last)| last.asked())).await;
            sites.iter().for_each(|(_, last)| last.let_go());
        };
        tokio::join!(join_all(runs), story);
    });
}

#[tokio::test(start_paused = true)]
async fn all_runs_share_the_requests_to_the_api_server() {
    let (held, folder) = (Hold::new(), tempfile::tempdir().unwrap());
    let api = Scripted::new()
        .once(get(&format!("{MAPS}/a")).answers(map("a")).held(&held))
        .once(get(&format!("{MAPS}/b")).answers(map("b")));
    let requests = Arc::new(Semaphore::new(1));
    let one = Engine { requests, ..engine(&api, &folder, AfterInterruption::Resume) };
    // As the runner gives one to each run.
    let another = one.clone();
    let kind = ResourceType::regular("", "v1", "ConfigMap", true);
    let (first, second) = (one.lister(), another.lister());
    let story = async {
        held.asked().await;
        let mut waits = pin!(second.get(&kind, Some("app"), "b"));
        // Shorter than a request may be silent.
        let moment = Duration::from_secs(10);
        assert!(
            tokio::time::timeout(moment, &mut waits).await.is_err(),
            "it does not wait for the first one"
        );
        assert_eq!(api.asked().len(), 1);
        held.let_go();
        waits.await.unwrap().unwrap()
    };
    let (a, b) = tokio::join!(first.get(&kind, Some("app"), "a"), story);
    assert_eq!((a.unwrap().unwrap().name, b.name), ("a".to_owned(), "b".to_owned()));
}
