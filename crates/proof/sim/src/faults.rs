//! Injected faults and their frequencies.

use rand::Rng;
use rand::rngs::StdRng;

/// The frequencies of faults: one in this many operations, at random; 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read_error_one_in: u32,
    /// Writes, punches and zeroings that fail with EIO. Any sectors of a failed write may have been
    /// written.
    pub write_error_one_in: u32,
    /// Syncs that fail with EIO. Readers see the uncovered changes, which may never become durable,
    /// even if later syncs succeed.
    pub sync_error_one_in: u32,
    /// Changes of names, and opening, that fail with EIO.
    pub name_error_one_in: u32,
    /// Writes that succeed with one bit changed.
    pub corrupt_one_in: u32,
    /// Writes that succeed but land elsewhere in their file.
    pub misdirect_one_in: u32,
}

pub(crate) fn strikes(one_in: u32, random: &mut StdRng) -> bool {
    one_in > 0 && random.random_range(0..one_in) == 0
}
