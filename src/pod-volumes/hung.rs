//! Threads that are blocked in a call of a file system. No process can end them.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::fault::Fault;

/// How many threads are blocked, by what their job works on (see [`Hung::new`]).
static HUNG: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
/// If so many threads of one name are blocked, no new job of that name is started. Other jobs
/// continue, because anybody may mount a share that does not answer.
const MOST_OF_ONE: usize = 4;
/// If so many threads are blocked in all, no new job is started. A process has 512 of these
/// threads.
const MOST: usize = 256;

/// One blocked thread, counted until this is dropped.
#[derive(Debug)]
pub struct Hung(String);

impl Hung {
    pub fn new(of: &str) -> Self {
        *HUNG.lock().entry(of.to_owned()).or_default() += 1;
        Self(of.to_owned())
    }

    /// # Errors
    /// When too many threads are blocked to start a new job.
    pub fn ensure_few(of: &str) -> Result<(), Fault> {
        let hung = HUNG.lock();
        let is_full = hung.get(of).is_some_and(|count| *count >= MOST_OF_ONE);
        if is_full || hung.values().sum::<usize>() >= MOST { Err(Fault::AllHung) } else { Ok(()) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let mut hung = HUNG.lock();
        if let Some(count) = hung.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                hung.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_file_systems_do_not_answer_keeps_nobody_else_from_anything() {
        let hung: Vec<Hung> = (0..MOST_OF_ONE).map(|_| Hung::new("one")).collect();
        assert!(matches!(Hung::ensure_few("one"), Err(Fault::AllHung)));
        assert!(Hung::ensure_few("other").is_ok());
        drop(hung);
        assert!(Hung::ensure_few("one").is_ok());
        assert!(!HUNG.lock().contains_key("one"));
    }
}
