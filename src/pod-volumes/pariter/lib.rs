//! Stands in for the package of this name, by which rustic_core works in several threads. That one
//! passes each piece of a file through seven threads, each of which waits for the next: of a small
//! file a third of its time is spent on waking them. And it has a thread for each core of the
//! machine, with two pieces in memory for each. Here what takes no longer than waking a thread is
//! done where it comes from, and there are [`MOST`] threads at most.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, available_parallelism};
use std::time::{Duration, Instant};

/// Threads that do the same at the same time.
pub const MOST: usize = 4;
/// What takes longer than this is given to another thread.
const LONG: Duration = Duration::from_micros(100);
/// A thread that nobody has woken looks so often whether there is something to do: whoever does
/// what should be short may have come to something long.
const LOOK: Duration = Duration::from_millis(20);

pub trait IteratorExt: Iterator + Sized {
    /// What that package gives to a thread of its own is done by whoever asks for the next item.
    #[must_use]
    fn readahead_scoped(self, _: &Scope<'_, '_>) -> Self {
        self
    }

    /// The results come in the order of the items. Twice as many as there are threads are taken
    /// from the iterator before the first of them is asked for.
    fn parallel_map_scoped<'scope, 'env: 'scope, F, O>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        map: F,
    ) -> ParallelMap<'scope, 'env, Self, F, O>
    where
        F: FnMut(Self::Item) -> O + Clone + Send + 'env,
        Self::Item: Send + 'env,
        O: Send + 'env,
    {
        let threads = available_parallelism().map_or(1, usize::from).min(MOST);
        ParallelMap { items: Some(self), map, scope, threads, are_there: false, shared: Arc::default() }
    }
}

impl<I: Iterator> IteratorExt for I {}

pub struct ParallelMap<'scope, 'env: 'scope, I: Iterator, F, O> {
    /// `None`: there are no more.
    items: Option<I>,
    map: F,
    scope: &'scope Scope<'scope, 'env>,
    threads: usize,
    /// The threads.
    are_there: bool,
    shared: Arc<Shared<I::Item, O>>,
}

struct Shared<T, O> {
    state: Mutex<State<T, O>>,
    /// There is something to do, or nothing more will come.
    work: Condvar,
    /// The first result is there, or a thread has panicked.
    done: Condvar,
}

struct State<T, O> {
    /// Items that nobody has taken yet, with their numbers.
    waiting: VecDeque<(usize, T)>,
    /// Results in their order; `None` while one is not there.
    results: VecDeque<Option<O>>,
    /// The number of the first of them.
    first: usize,
    is_closed: bool,
    has_panicked: bool,
    /// The last item took long, or it is not known yet how long they take.
    is_long: bool,
}

impl<T, O> Default for Shared<T, O> {
    fn default() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            results: VecDeque::new(),
            first: 0,
            is_closed: false,
            has_panicked: false,
            is_long: true,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() }
    }
}

impl<T, O> Shared<T, O> {
    fn lock(&self) -> MutexGuard<'_, State<T, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, (number, item): (usize, T), map: &mut impl FnMut(T) -> O) {
        let begun = Instant::now();
        let result = map(item);
        let is_long = begun.elapsed() > LONG;
        let mut state = self.lock();
        state.is_long = is_long;
        let at = number.wrapping_sub(state.first);
        // Nobody wants it any more where there is no place.
        if let Some(place) = state.results.get_mut(at) {
            *place = Some(result);
        }
        if at == 0 {
            self.done.notify_one();
        }
    }

    /// A thread: until nothing more will come.
    fn work(&self, mut map: impl FnMut(T) -> O) {
        let _panic = Panic(self);
        loop {
            let mut state = self.lock();
            let item = loop {
                if let Some(item) = state.waiting.pop_front() {
                    break item;
                }
                if state.is_closed {
                    return;
                }
                let woken = self.work.wait_timeout(state, LOOK);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            };
            drop(state);
            self.carry_out(item, &mut map);
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }
}

/// Tells whoever waits for a result that none will come, if its thread panics.
struct Panic<'a, T, O>(&'a Shared<T, O>);

impl<T, O> Drop for Panic<'_, T, O> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().has_panicked = true;
            self.0.done.notify_one();
        }
    }
}

impl<'scope, I, F, O> ParallelMap<'scope, '_, I, F, O>
where
    I: Iterator,
    F: FnMut(I::Item) -> O + Clone + Send + 'scope,
    I::Item: Send + 'scope,
    O: Send + 'scope,
{
    /// Takes as many items as may wait.
    fn fill(&mut self) {
        while let Some(items) = &mut self.items {
            if self.shared.lock().results.len() >= 2 * self.threads {
                return;
            }
            let Some(item) = items.next() else {
                self.items = None;
                self.shared.close();
                return;
            };
            let mut state = self.shared.lock();
            let number = state.first.wrapping_add(state.results.len());
            state.results.push_back(None);
            state.waiting.push_back((number, item));
            let is_long = state.is_long;
            drop(state);
            if !self.are_there {
                self.are_there = true;
                for _ in 0..self.threads {
                    let (shared, map) = (Arc::clone(&self.shared), self.map.clone());
                    self.scope.spawn(move || shared.work(map));
                }
            }
            if is_long {
                self.shared.work.notify_one();
            }
        }
    }
}

impl<'scope, I, F, O> Iterator for ParallelMap<'scope, '_, I, F, O>
where
    I: Iterator,
    F: FnMut(I::Item) -> O + Clone + Send + 'scope,
    I::Item: Send + 'scope,
    O: Send + 'scope,
{
    type Item = O;

    fn next(&mut self) -> Option<O> {
        self.fill();
        loop {
            let mut state = self.shared.lock();
            if state.has_panicked {
                drop(state);
                // What is missing must not look like the end.
                std::panic::resume_unwind(Box::new("a thread has panicked"));
            }
            match state.results.front_mut() {
                None => return None,
                Some(Some(_)) => {
                    state.first = state.first.wrapping_add(1);
                    return state.results.pop_front().flatten();
                }
                Some(None) => {}
            }
            let item = if state.is_long { None } else { state.waiting.pop_front() };
            match item {
                Some(item) => {
                    drop(state);
                    self.shared.carry_out(item, &mut self.map);
                }
                None => {
                    let woken = self.shared.done.wait_timeout(state, LOOK);
                    drop(woken.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}

impl<I: Iterator, F, O> Drop for ParallelMap<'_, '_, I, F, O> {
    fn drop(&mut self) {
        self.shared.lock().waiting.clear();
        self.shared.close();
    }
}

#[cfg(test)]
mod tests;
