//! Where the time of a run goes: a line of JSON for each test and each control plane, in the file
//! that `BERTH_TIMES` names. The program `times` of `tests/tools` makes a table of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::wait::PATIENCE;

/// The variable with the path of the file. Unset: nothing is recorded.
pub const FILE: &str = "BERTH_TIMES";

/// The variable with the time by which the run must be over, in Unix seconds, because CI would end
/// it without a message.
const END: &str = "BERTH_TESTS_END";

/// The variable with the process id of `tests/run`, which started us.
const RUN: &str = "BERTH_TESTS_RUN";

/// Some waits fail with whole objects and logs. Their beginning says what was waited for.
const LONGEST_FAILURE: usize = 2500;

/// No test takes half of it on a busy machine. A test that hangs outside of all waits would hold
/// the run for ever, and its name would stay unknown.
const LONGEST_TEST: Duration = PATIENCE.saturating_mul(3);

/// The wait for what exists once on this machine. It is not part of a test's time, because others,
/// of another run perhaps, may have theirs before.
pub const TURN: &str = "the turn of this stock Velero";

/// One line of the file.
#[derive(Debug, Serialize)]
pub struct Record {
    /// `test`, `begun` (a test, too), `control plane`, or the tool that built something.
    pub kind: String,
    pub what: String,
    pub seconds: f64,
    /// Of a test that failed: where and why, cut to [`LONGEST_FAILURE`] characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Of a test: what it waited for, and for how many seconds in all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waits: BTreeMap<String, f64>,
}

impl Record {
    pub fn new(kind: &str, what: &str, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { kind: kind.to_owned(), what: what.to_owned(), seconds, failure: None, waits: BTreeMap::new() }
    }

    /// Appends it to the file, if one is wanted. Nothing depends on it, so errors are not reported.
    pub fn save(&self) {
        let Some(path) = std::env::var_os(FILE) else { return };
        let Ok(line) = serde_json::to_string(self) else { return };
        if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
            // One write for one line: other processes append, too.
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}

thread_local! {
    /// libtest runs each test in a thread of its own, named after it, and the thread's end is the
    /// test's.
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// A test that is under way, as other threads may know it.
struct Running {
    since: Instant,
    /// The wait that it is in.
    wait: Option<(String, Instant)>,
}

impl Running {
    fn waits_for_its_turn(&self) -> bool {
        self.wait.as_ref().is_some_and(|(what, _)| what == TURN)
    }

    fn wait_for(&mut self, what: Option<&str>) {
        if self.waits_for_its_turn()
            && let Some((_, since)) = &self.wait
        {
            self.since += since.elapsed();
        }
        self.wait = what.map(|what| (what.to_owned(), Instant::now()));
    }

    fn hangs(&self) -> bool {
        !self.waits_for_its_turn() && self.since.elapsed() > LONGEST_TEST
    }
}

/// By their names.
static RUNNING: LazyLock<Mutex<BTreeMap<String, Running>>> = LazyLock::new(|| {
    let _ = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch);
    Mutex::default()
});

fn running() -> MutexGuard<'static, BTreeMap<String, Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `tests/run` started us, and not somebody who runs one test?
pub fn is_a_run() -> bool {
    std::env::var_os(RUN).is_some()
}

/// Is that process gone? Without the run that started them the tests would go on beside the next
/// one, because its lock went with it.
pub fn is_gone(run: Option<&str>) -> bool {
    let id = run.and_then(|id| id.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

/// Ends the process when a test hangs, at the end that [`END`] gives, or when [`RUN`] is gone, and
/// says what ran then. A thread cannot be ended alone. The janitor ends what was started.
fn watch() {
    let end: Option<u64> = std::env::var(END).ok().and_then(|end| end.parse().ok());
    let run = std::env::var(RUN).ok();
    loop {
        std::thread::sleep(Duration::from_secs(5));
        if is_gone(run.as_deref()) {
            eprintln!("tests/run has ended, and so do its tests");
            std::process::exit(101);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_late = end.is_some_and(|end| now.as_secs() > end);
        let running = running();
        let mut is_over = is_late;
        for (name, test) in running.iter().filter(|(_, test)| is_late || test.hangs()) {
            is_over = true;
            let place = match &test.wait {
                Some((what, since)) => format!("waiting for {what}, for {:?} now", since.elapsed()),
                None => "outside of all waits".to_owned(),
            };
            let time = test.since.elapsed();
            let late = if is_late { "the run takes too long; " } else { "" };
            let why = format!("{late}it has not ended after {time:?}: it is {place}");
            eprintln!("test {name}: {why}");
            let mut record = Record::new("test", name, time);
            record.failure = Some(why);
            record.save();
        }
        if is_over {
            std::process::exit(101);
        }
    }
}

struct Clock {
    test: String,
    started: Instant,
    waits: BTreeMap<String, Duration>,
    /// A wait within a wait is part of it.
    depth: usize,
    failure: Option<String>,
}

impl Drop for Clock {
    fn drop(&mut self) {
        running().remove(&self.test);
        let mut record = Record::new("test", &self.test, self.started.elapsed());
        record.failure = self.failure.take();
        record.waits = self.waits.iter().map(|(what, time)| (what.clone(), time.as_secs_f64())).collect();
        record.save();
    }
}

/// Calls `change` with the clock of the test in whose thread we are, if we are in one.
fn with_clock<T>(change: impl FnOnce(&mut Clock) -> T) -> Option<T> {
    let change = |clock: &RefCell<Option<Clock>>| {
        let mut clock = clock.try_borrow_mut().ok()?;
        if clock.is_none() {
            let thread = std::thread::current();
            let test = thread.name().filter(|name| name.contains("::"))?.to_owned();
            note_failures();
            Record::new("begun", &test, Duration::ZERO).save();
            running().insert(test.clone(), Running { since: Instant::now(), wait: None });
            *clock = Some(Clock {
                test,
                started: Instant::now(),
                waits: BTreeMap::new(),
                depth: 0,
                failure: None,
            });
        }
        clock.as_mut().map(change)
    };
    CLOCK.try_with(change).ok().flatten()
}

/// Tells other threads what that test waits for.
fn note_wait(test: &str, what: Option<&str>) {
    if let Some(test) = running().get_mut(test) {
        test.wait_for(what);
    }
}

/// Why the last thread panicked that is no test's: a test whose thread did fails with nothing but
/// that it did.
static ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

fn elsewhere() -> MutexGuard<'static, Option<String>> {
    ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a thread panicked: of one that did because another one had, also why that had.
pub fn with_cause(why: String, elsewhere: &mut Option<String>) -> String {
    let cause = if why.contains("thread panicked") { elsewhere.take() } else { None };
    match cause {
        Some(cause) => format!("{why}: {cause}"),
        None => why,
    }
}

/// From now on a test that panics is recorded as failed.
fn note_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let why = with_cause(info.to_string(), &mut elsewhere());
            let why: String = why.chars().take(LONGEST_FAILURE).collect();
            // The first one is the cause: what is dropped while a test unwinds may panic, too.
            let failed = with_clock(|clock| match &clock.failure {
                Some(_) => None,
                None => Some(format!("test {}: {}", clock.test, clock.failure.insert(why.clone()))),
            });
            // libtest shows what a test says at the end of the whole run, which somebody may end
            // before. It catches what the macros print, and not this.
            if let Some(failed) = failed.clone().flatten() {
                let _ = writeln!(std::io::stderr(), "{failed}");
            }
            if failed.is_none() {
                let thread = std::thread::current();
                let name = thread.name().unwrap_or("without a name");
                *elsewhere() = Some(format!("thread {name}: {why}"));
            }
            usual(info);
        }));
    });
}

/// Where and why this thread's test has failed.
pub fn failure() -> Option<String> {
    with_clock(|clock| clock.failure.clone()).flatten()
}

/// A wait that is under way. It ends when this value is dropped.
pub struct Wait {
    what: String,
    started: Instant,
}

impl Wait {
    pub fn start(what: &str) -> Self {
        with_clock(|clock| {
            clock.depth += 1;
            if clock.depth == 1 {
                note_wait(&clock.test, Some(what));
            }
        });
        Self { what: what.to_owned(), started: Instant::now() }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        with_clock(|clock| {
            clock.depth = clock.depth.saturating_sub(1);
            if clock.depth == 0 {
                note_wait(&clock.test, None);
                *clock.waits.entry(std::mem::take(&mut self.what)).or_default() += time;
            }
        });
    }
}
