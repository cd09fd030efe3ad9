//! A pattern as it reads names.

use super::name::{LETTERS, MAX_NAME, letter};
use super::token::Token;

/// A pattern that reads a name byte by byte, all ways of reading it at once: bit i of a set of positions stands
/// before token i, the bit after the last one at the end.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    /// For each of [`LETTERS`], where it may be read.
    letters: [u64; LETTERS.len()],
    /// Where any other byte may be read.
    any: u64,
    stars: u64,
    end: u64,
}

impl Automaton {
    /// `None`: more tokens than a name has characters.
    pub(super) fn new(tokens: &[Token]) -> Option<Self> {
        if tokens.len() > MAX_NAME {
            return None;
        }
        let mut made = Self { letters: [0; LETTERS.len()], any: 0, stars: 0, end: 1 << tokens.len() };
        for (i, token) in tokens.iter().enumerate() {
            let place = 1_u64 << i;
            match token {
                Token::One(byte) => made.read_at(*byte, place),
                Token::Any => made.any |= place,
                Token::Star => {
                    made.any |= place;
                    made.stars |= place;
                }
                Token::Class(_) => {
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

    /// Stars may match nothing.
    fn past_stars(&self, mask: u64) -> u64 {
        mask | (mask & self.stars) << 1
    }

    pub(super) fn start(&self) -> u64 {
        self.past_stars(1)
    }

    /// `takes`: where the byte may be read.
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
