//! Repeatable randomness for the test instruments.

/// SplitMix64 (Steele, Lea, Flood 2014): a full-period generator of one word of state. The same
/// seed gives the same run in every version, which the generators of `rand` do not promise; it
/// guards nothing.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Uniform in `0.0 .. 1.0`, of 53 random bits.
    pub fn next_fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // Of the reference implementation, https://prng.di.unimi.it/splitmix64.c, with
        // seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let words = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert!(words.iter().all(|word| random.next() == *word));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.next_fraction())));
    }
}
