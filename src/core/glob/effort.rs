//! How long patterns are compared.

use std::cell::Cell;

/// How much more may be compared before the answer is "perhaps", which counts as yes. Whoever creates a backup
/// chooses the patterns, and others wait for the answer. In steps of a few nanoseconds.
#[derive(Debug)]
pub struct Effort(Cell<u32>);

impl Effort {
    /// Of two sets: half a millisecond.
    const COMPARISON: u32 = 200_000;
    /// Of all the comparisons of one decision: some 20 milliseconds.
    const DECISION: u32 = 8_000_000;

    pub fn of_decision() -> Self {
        Self(Cell::new(Self::DECISION))
    }

    /// What one comparison may take of this.
    pub fn of_comparison(&self) -> Self {
        Self(Cell::new(self.0.get().min(Self::COMPARISON)))
    }

    /// Takes off what a comparison took that began with `begun`.
    pub fn charge(&self, begun: u32, comparison: &Self) {
        self.0.set(self.0.get().saturating_sub(begun.saturating_sub(comparison.left())));
    }

    pub fn left(&self) -> u32 {
        self.0.get()
    }

    /// `false`: there is none left.
    pub fn spend(&self, steps: usize) -> bool {
        let left = self.left().saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
        self.0.set(left);
        left > 0
    }
}
