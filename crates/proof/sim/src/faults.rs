//! What goes wrong, and how often.

use rand::Rng;
use rand::rngs::StdRng;

/// How often something goes wrong: once in so many times, at random; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read_error_one_in: u32,
    /// Writes, punches and zeroings that fail with EIO. Of a write any of its sectors may have been
    /// written.
    pub write_error_one_in: u32,
    /// Syncs that fail with EIO. What they should have covered is seen by readers, and never
    /// becomes durable for certain, whatever later syncs say.
    pub sync_error_one_in: u32,
    /// Changes of names, and opening, that fail with EIO.
    pub name_error_one_in: u32,
    /// Writes of which one bit is changed, and that succeed.
    pub corrupt_one_in: u32,
    /// Writes that land elsewhere in their file, and that succeed.
    pub misdirect_one_in: u32,
}

pub(crate) fn strikes(one_in: u32, random: &mut StdRng) -> bool {
    one_in > 0 && random.random_range(0..one_in) == 0
}
