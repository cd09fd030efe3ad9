//! Replaces the package of this name, with which rustic_core finds where the next piece of a file
//! begins: by a Rabin fingerprint of the last 64 bytes, the same as restic's. rustic_core makes one
//! for each file, and the original package computes its tables by long division of each byte. That
//! takes 140 µs, as long as everything else that a small file needs. This package computes them
//! from the entries of the eight single bits, because the remainder of a sum is the sum of the
//! remainders.

/// Bytes that the fingerprint covers.
const WINDOW: usize = 64;

/// A polynomial over the field with two elements. Each bit is a coefficient.
pub type Polynom64 = u64;

pub trait Polynom {
    /// The exponent of the highest coefficient that is not zero; -1 if all are zero.
    fn degree(&self) -> i32;

    /// The remainder of a division by `divisor`; `self` if the divisor is zero.
    #[must_use]
    fn modulo(&self, divisor: &Self) -> Self;
}

impl Polynom for Polynom64 {
    fn degree(&self) -> i32 {
        63_i32.saturating_sub_unsigned(self.leading_zeros())
    }

    fn modulo(&self, divisor: &Self) -> Self {
        let mut rest = *self;
        if *divisor == 0 {
            return rest;
        }
        while let Some(over) = divisor.leading_zeros().checked_sub(rest.leading_zeros()) {
            rest ^= divisor << over;
        }
        rest
    }
}

pub trait RollingHash64 {
    /// Starts again with the next 63 bytes, or as many as there are. Returns how many there were.
    fn reset_and_prefill_window<I: Iterator<Item = u8>>(&mut self, bytes: &mut I) -> usize;

    /// Adds a byte, and removes the oldest one.
    fn slide(&mut self, byte: u8);
}

/// The fingerprint of the last 64 bytes.
#[derive(Clone, Debug)]
pub struct Rabin64 {
    pub hash: Polynom64,
    window: [u8; WINDOW],
    /// Index of the oldest byte.
    oldest: usize,
    /// How many bits the highest eight bits of a fingerprint are above the lowest eight.
    shift: u32,
    /// What the oldest byte is in the fingerprint once that is shifted. So it is looked up at the
    /// same time as what shifts it, and not before: each byte waits for the one before it.
    leaving: [Polynom64; 256],
    /// For each value of the eight bits that a shift has moved above the divisor's degree: the term
    /// that removes them and adds their remainder.
    reducing: [Polynom64; 256],
}

impl Rabin64 {
    /// # Panics
    /// Where the window has not 2^6 bytes, as restic's has.
    #[must_use]
    pub fn new_with_polynom(window_bits: u32, divisor: &Polynom64) -> Self {
        assert_eq!(1_usize.checked_shl(window_bits), Some(WINDOW), "restic's window has 64 bytes");
        let degree = u32::try_from(divisor.degree()).unwrap_or(0);
        let mut rabin = Self {
            hash: 0,
            window: [0; WINDOW],
            oldest: 0,
            shift: degree.saturating_sub(8),
            leaving: [0; 256],
            reducing: [0; 256],
        };
        rabin.reducing = sums(|bit| {
            let above = bit.checked_shl(degree).unwrap_or(0);
            above.modulo(divisor) | above
        });
        rabin.leaving = sums(|bit| (0..WINDOW).fold(bit.modulo(divisor), |hash, _| rabin.shifted(hash)));
        rabin
    }

    /// The fingerprint after a byte of zeros is appended.
    #[inline]
    fn shifted(&self, hash: Polynom64) -> Polynom64 {
        (hash << 8) ^ self.reducing[usize::from((hash >> self.shift) as u8)]
    }
}

/// A table of all bytes, as sums of the entries of their single bits.
fn sums(of_bit: impl Fn(Polynom64) -> Polynom64) -> [Polynom64; 256] {
    let mut table = [0; 256];
    for byte in 1..256_usize {
        let rest = byte & (byte - 1);
        table[byte] = if rest == 0 { of_bit(byte as Polynom64) } else { table[rest] ^ table[byte ^ rest] };
    }
    table
}

impl RollingHash64 for Rabin64 {
    fn reset_and_prefill_window<I: Iterator<Item = u8>>(&mut self, bytes: &mut I) -> usize {
        (self.hash, self.window, self.oldest) = (0, [0; WINDOW], 0);
        bytes.take(WINDOW - 1).map(|byte| self.slide(byte)).count()
    }

    #[inline]
    fn slide(&mut self, byte: u8) {
        let left = self.window[self.oldest];
        self.window[self.oldest] = byte;
        self.oldest = (self.oldest + 1) % WINDOW;
        let change = self.leaving[usize::from(left)] ^ Polynom64::from(byte);
        self.hash = self.shifted(self.hash) ^ change;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divisor with which restic's chunker is tested.
    const DIVISOR: Polynom64 = 0x3D_A335_8B4D_C173;

    fn bytes(count: u32) -> impl Iterator<Item = u8> {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        (0..count).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
    }

    /// The remainder by its definition, bit by bit.
    fn remainder(bytes: &[u8]) -> Polynom64 {
        let bits =
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| Polynom64::from(byte >> bit & 1)));
        bits.fold(0, |rest, bit| {
            let rest = rest << 1 | bit;
            if rest >> 53 == 0 { rest } else { rest ^ DIVISOR }
        })
    }

    #[test]
    fn the_fingerprint_is_the_remainder_of_the_last_64_bytes() {
        let all: Vec<u8> = bytes(1_000).collect();
        let mut rabin = Rabin64::new_with_polynom(6, &DIVISOR);
        for round in 0..2 {
            // The second round starts with a window that is full of other bytes.
            let begin = round * 300;
            assert_eq!(rabin.reset_and_prefill_window(&mut all[begin..begin + 64].iter().copied()), 63);
            assert_eq!(rabin.hash, remainder(&all[begin..begin + 63]));
            for end in begin + 64..all.len() {
                rabin.slide(all[end - 1]);
                assert_eq!(rabin.hash, remainder(&all[end - 64..end]), "after {end} bytes");
            }
        }
        assert_eq!(rabin.reset_and_prefill_window(&mut [7, 8].into_iter()), 2);
        assert_eq!(rabin.hash, 0x0708);
    }

    #[test]
    fn divisions_end_and_leave_less_than_the_divisor() {
        assert_eq!((DIVISOR.degree(), 1_u64.degree(), 0_u64.degree()), (53, 0, -1));
        assert_eq!([7.modulo(&3), 16.modulo(&8), 19.modulo(&8), 5.modulo(&5), 5.modulo(&0)], [1, 0, 3, 0, 5]);
        for divisor in [0, 1, 2, 0xFF, DIVISOR, Polynom64::MAX] {
            let mut rabin = Rabin64::new_with_polynom(6, &divisor);
            bytes(200).for_each(|byte| rabin.slide(byte));
            assert!(divisor == 0 || Polynom64::MAX.modulo(&divisor).degree() < divisor.degree());
        }
    }
}
