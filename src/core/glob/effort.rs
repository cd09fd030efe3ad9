//! The budget for comparing patterns.

use std::cell::Cell;

/// The remaining budget for comparisons, in steps of a few nanoseconds. Once it is spent the answer
/// is "perhaps", which counts as yes. It is bounded because users choose the patterns, while others
/// wait for the answer.
#[derive(Debug)]
pub struct Effort(Cell<u32>);

impl Effort {
    /// Of comparing two sets: half a millisecond.
    const COMPARISON: u32 = 200_000;
    /// Of all comparisons of one decision: some 20 milliseconds.
    const DECISION: u32 = 8_000_000;

    pub fn of_decision() -> Self {
        Self(Cell::new(Self::DECISION))
    }

    /// The budget of one comparison out of this one.
    pub fn of_comparison(&self) -> Self {
        Self(Cell::new(self.0.get().min(Self::COMPARISON)))
    }

    /// Deducts what a comparison used that began with `begun`.
    pub fn charge(&self, begun: u32, comparison: &Self) {
        self.0.set(self.0.get().saturating_sub(begun.saturating_sub(comparison.left())));
    }

    pub fn left(&self) -> u32 {
        self.0.get()
    }

    /// Returns `false` if the budget is spent.
    pub fn spend(&self, steps: usize) -> bool {
        let left = self.left().saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
        self.0.set(left);
        left > 0
    }
}
