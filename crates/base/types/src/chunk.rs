//! Sizes of the chunks in which the content of a volume is reported.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::extent::BLOCK_BYTES;
use crate::size::display_bytes;

/// The largest chunk: a volume of the largest size has 65,536 of them.
const BYTES_MAX: u64 = 1 << 30;

/// The size of a chunk in bytes: a power of two from 4096 to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ChunkSize(u64);

/// The error of a number that is no size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a chunk cannot have {0} bytes; name a power of two from {least} to {most}", least = ChunkSize::LEAST.0, most = ChunkSize::MOST.0)]
pub struct ChunkSizeError(pub u64);

impl ChunkSize {
    /// The smallest: a block.
    pub const LEAST: Self = Self(BLOCK_BYTES);
    /// The largest.
    pub const MOST: Self = Self(BYTES_MAX);

    /// The size of `bytes`.
    ///
    /// # Errors
    /// If it is no power of two, or out of range.
    pub const fn new(bytes: u64) -> Result<Self, ChunkSizeError> {
        if bytes.is_power_of_two() && bytes >= BLOCK_BYTES && bytes <= BYTES_MAX {
            Ok(Self(bytes))
        } else {
            Err(ChunkSizeError(bytes))
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for ChunkSize {
    type Error = ChunkSizeError;

    fn try_from(bytes: u64) -> Result<Self, ChunkSizeError> {
        Self::new(bytes)
    }
}

impl From<ChunkSize> for u64 {
    fn from(size: ChunkSize) -> Self {
        size.0
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_within_the_limits_are_sizes() {
        for bytes in [4096, 8192, 1 << 20, 1 << 30] {
            assert_eq!(ChunkSize::new(bytes).unwrap().bytes(), bytes);
        }
        for bytes in [0, 1, 512, 2048, 4095, 4097, 12_288, (1 << 30) + 4096, 1 << 31, 1 << 63, u64::MAX] {
            assert_eq!(ChunkSize::new(bytes), Err(ChunkSizeError(bytes)));
            assert!(serde_json::from_str::<ChunkSize>(&bytes.to_string()).is_err());
        }
        assert!(serde_json::from_str::<ChunkSize>("-4096").is_err());
    }
}
