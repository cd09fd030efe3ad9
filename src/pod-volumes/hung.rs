//! Threads that a file system does not give back: nobody can end them.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::fault::Fault;

/// How many there are, by whose files they wait for.
static HUNG: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
/// With so many of one nothing new is begun for it. The others go on: anybody may mount a share
/// that does not answer.
const MOST_OF_ONE: usize = 4;
/// And with so many of all nothing is begun for anybody. A process has 512 of these threads.
const MOST: usize = 256;

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Hung(String);

impl Hung {
    pub fn new(of: &str) -> Self {
        *HUNG.lock().entry(of.to_owned()).or_default() += 1;
        Self(of.to_owned())
    }

    /// # Errors
    /// When there are too many to begin anything new.
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
