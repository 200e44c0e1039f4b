//! Chance that can be repeated. Touches nothing but the variable of the environment that names a seed.
#![expect(clippy::disallowed_methods, reason = "it reads the seed that a person gave")]

/// A generator of numbers that look random (splitmix64): the same from the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From the seed in `SUREHOOK_SEED`, else from one of chance. It is printed, so that a failed run can be tried again.
    pub fn from_environment() -> Self {
        let given = std::env::var("SUREHOOK_SEED").ok().map(|text| text.parse().expect("SUREHOOK_SEED is a number"));
        let seed = given.unwrap_or_else(fresh_seed);
        println!("SUREHOOK_SEED={seed}");
        Self(seed)
    }

    /// Another generator, for somebody who throws at the same time.
    #[must_use]
    pub fn split(&mut self) -> Self {
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
    pub fn below(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// True in one of `sides` cases.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.below(sides) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = self.below(from.len() as u64);
        &from[usize::try_from(at).expect("a place in memory")]
    }
}

/// A seed that nobody chose, short enough to be typed.
pub fn fresh_seed() -> u64 {
    let random = uuid::Uuid::new_v4().as_u128() % 1_000_000;
    u64::try_from(random).expect("it is below a million")
}
