use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{current, scope, sleep};

use super::*;

const MANY: usize = 2_000;

#[test]
fn results_come_in_the_order_of_the_items_however_long_each_takes() {
    for long in [0, 1, 7, 100] {
        let found: Vec<usize> = scope(|scope| {
            let items = (0..MANY).readahead_scoped(scope);
            let map = |number| {
                // Long ones among short ones.
                if long > 0 && number % long == 0 && number < 50 * long {
                    sleep(2 * LONG);
                }
                2 * number
            };
            items.parallel_map_scoped(scope, map).readahead_scoped(scope).collect()
        });
        assert_eq!(found, (0..MANY).map(|number| 2 * number).collect::<Vec<_>>(), "{long}");
    }
    let none: Vec<usize> = scope(|scope| (0..0).parallel_map_scoped(scope, |number| number).collect());
    assert!(none.is_empty());
}

#[test]
fn what_takes_long_is_done_at_the_same_time() {
    let threads = available_parallelism().map_or(1, usize::from).min(MOST);
    // Nobody passes it alone.
    let barrier = Barrier::new(threads);
    let done = scope(|scope| {
        let map = |_| {
            sleep(2 * LONG);
            barrier.wait();
        };
        (0..10 * threads).parallel_map_scoped(scope, map).count()
    });
    assert_eq!(done, 10 * threads);
}

#[test]
fn what_is_short_is_done_where_it_comes_from() {
    let here = AtomicUsize::new(0);
    let own = current().id();
    scope(|scope| {
        let map = |_| {
            if current().id() == own {
                here.fetch_add(1, Ordering::Relaxed);
            }
        };
        (0..MANY).parallel_map_scoped(scope, map).for_each(drop);
    });
    assert!(here.into_inner() > MANY / 2, "a thread was woken for each");
}

#[test]
fn few_items_are_taken_before_they_are_needed() {
    let taken = Cell::new(0);
    scope(|scope| {
        let items = (0..MANY).inspect(|_| taken.set(taken.get() + 1));
        let mut results = items.parallel_map_scoped(scope, |number| number);
        assert_eq!(taken.get(), 0);
        for asked in 1..100 {
            results.next();
            assert!(taken.get() < asked + 2 * MOST, "{} for {asked}", taken.get());
        }
        // The threads end although not everything was asked for.
    });
    assert!(taken.get() < 100 + 2 * MOST);
}

#[test]
fn a_panic_is_no_end() {
    for long in [false, true] {
        let ended = std::panic::catch_unwind(|| {
            scope(|scope| {
                let map = |number: usize| {
                    if long {
                        sleep(2 * LONG);
                    }
                    assert!(number != 50, "as in a fault of the program");
                    number
                };
                (0..100).parallel_map_scoped(scope, map).count()
            })
        });
        assert!(ended.is_err(), "{ended:?}");
    }
}
