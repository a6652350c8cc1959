//! Luck that depends on what it is for, and on nothing else.
//!
//! One generator for all that a process does would give every later call other luck once a single call is
//! missing, as when an accident is taken away to shrink a plan. So each stream of luck has a name, and each
//! draw a number.

use fastrand::Rng;

/// A stream of luck: a seed and a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Luck(u64);

impl Luck {
    /// The luck of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(mixed(seed))
    }

    /// The luck that this has here.
    pub(crate) fn of(self, name: &str) -> Self {
        Self(mixed(self.0 ^ number(name)))
    }

    /// The draw with this number.
    pub(crate) fn draw(self, number: u64) -> u64 {
        mixed(self.0.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A generator that begins here, for somebody who draws in an order of their own.
    pub(crate) fn generator(self) -> Rng {
        Rng::with_seed(self.0)
    }
}

/// A name as a number (FNV).
pub(crate) fn number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Spreads a number over all of its bits (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_does_not_shift_another() {
        let luck = Luck::new(7).of("r1");
        assert_eq!(luck.of("settle").draw(3), Luck::new(7).of("r1").of("settle").draw(3));
        assert_ne!(luck.of("settle").draw(3), luck.of("settle").draw(4));
        assert_ne!(luck.of("settle").draw(3), luck.of("claim").draw(3));
        assert_ne!(luck.draw(3), Luck::new(8).of("r1").draw(3));
    }
}
