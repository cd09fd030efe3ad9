//! What a test saw last. A wait that ends in vain says it, because its name alone does not tell
//! what was there instead.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Answers to so many different questions are kept,
const KEPT: usize = 3;
/// of each its end: an object ends with its status.
const LONGEST: usize = 700;
/// Some questions have whole objects in them.
const LONGEST_QUESTION: usize = 150;

thread_local! {
    static SEEN: RefCell<VecDeque<(String, String)>> = const { RefCell::new(VecDeque::new()) };
}

/// Keeps an answer instead of the one before to the same question.
pub fn note(question: &str, answer: &str) {
    let mut from = answer.len().saturating_sub(LONGEST);
    while !answer.is_char_boundary(from) {
        from += 1;
    }
    let cut = if from > 0 { "…" } else { "" };
    let answer = format!("{cut}{}", answer.get(from..).unwrap_or_default().trim_end());
    let question: String = question.chars().take(LONGEST_QUESTION).collect();
    // A thread that ends sees nothing any more.
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.borrow_mut();
        seen.retain(|(of, _)| *of != question);
        if seen.len() >= KEPT {
            seen.pop_front();
        }
        seen.push_back((question, answer));
    });
}

/// From now on only what is seen later counts.
pub fn forget() {
    let _ = SEEN.try_with(|seen| seen.borrow_mut().clear());
}

/// All of it, for the end of a message.
pub fn told() -> String {
    let line = |(question, answer): &(String, String)| format!("\nlast seen of {question}: {answer}");
    let told = SEEN.try_with(|seen| seen.borrow().iter().map(line).collect::<String>());
    told.unwrap_or_default()
}
