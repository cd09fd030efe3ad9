//! A pattern as an automaton.

use super::name::{LETTERS, MAX_NAME, letter};
use super::token::GlobToken;

/// An automaton that reads a name byte by byte, in all possible ways at once: bit i of a set of
/// positions stands for the position before token i, and the last bit for the end.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    /// For each of [`LETTERS`], the positions that accept it.
    letters: [u64; LETTERS.len()],
    /// The positions that accept any other byte.
    any: u64,
    stars: u64,
    end: u64,
}

impl Automaton {
    /// `None`: the pattern has more tokens than a name has characters.
    pub(super) fn new(tokens: &[GlobToken]) -> Option<Self> {
        if tokens.len() > MAX_NAME {
            return None;
        }
        let mut made = Self { letters: [0; LETTERS.len()], any: 0, stars: 0, end: 1 << tokens.len() };
        for (i, token) in tokens.iter().enumerate() {
            let place = 1_u64 << i;
            match token {
                GlobToken::One(byte) => made.read_at(*byte, place),
                GlobToken::Any => made.any |= place,
                GlobToken::Star => {
                    made.any |= place;
                    made.stars |= place;
                }
                GlobToken::Class(_) => {
                    for byte in LETTERS.iter().filter(|byte| token.takes(**byte)) {
                        made.read_at(*byte, place);
                    }
                }
            }
        }
        for places in &mut made.letters {
            *places |= made.any;
        }
        Some(made)
    }

    fn read_at(&mut self, byte: u8, place: u64) {
        if let Some(places) = letter(byte).and_then(|at| self.letters.get_mut(at)) {
            *places |= place;
        }
    }

    /// Adds the positions behind stars, because stars may match nothing.
    fn past_stars(&self, mask: u64) -> u64 {
        mask | (mask & self.stars) << 1
    }

    pub(super) fn start(&self) -> u64 {
        self.past_stars(1)
    }

    /// `takes`: the positions that accept the byte.
    pub(super) fn step(&self, mask: u64, takes: u64) -> u64 {
        let read = mask & takes;
        self.past_stars((read & !self.stars) << 1 | read & self.stars)
    }

    pub(super) fn accepts(&self, mask: u64) -> bool {
        mask & self.end != 0
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let mut mask = self.start();
        for byte in name {
            let takes = letter(*byte).and_then(|at| self.letters.get(at)).copied().unwrap_or(self.any);
            mask = self.step(mask, takes);
            if mask == 0 {
                return false;
            }
        }
        self.accepts(mask)
    }

    pub(super) fn letter(&self, at: usize) -> u64 {
        self.letters.get(at).copied().unwrap_or_default()
    }
}
