//! Chance that can be repeated.

/// A generator of numbers that look random (splitmix64): the same from the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    /// The seed is printed, so that a failed run can be tried again.
    pub(crate) fn from_environment() -> Self {
        let given = std::env::var("SUREHOOK_SEED").ok().map(|text| text.parse().expect("SUREHOOK_SEED is a number"));
        let seed = given.unwrap_or_else(|| getrandom::u64().unwrap() % 1_000_000);
        println!("SUREHOOK_SEED={seed}");
        Self(seed)
    }

    /// Another generator, for somebody who throws at the same time.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `sides`.
    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// True in one of `sides` cases.
    pub(crate) fn one_in(&mut self, sides: u64) -> bool {
        self.below(sides) == 0
    }
}
