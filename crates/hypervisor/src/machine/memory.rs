//! Sizes of guests' memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::{SizeError, display_bytes, parse_bytes};
use thiserror::Error;

/// Memory comes in these: a large page of x86-64, which KVM maps as one.
pub const MEMORY_UNIT_BYTES: u64 = 2 << 20;
/// SeaBIOS and a small kernel; below it no supported guest boots.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;
/// What 7.2's machine types address with 40 physical bits: 1 TiB less the hole below 4 GiB and at its end.
pub const MEMORY_MAX_BYTES: u64 = 1000 << 30;

/// A guest's memory in bytes: a multiple of 2 MiB from 16 MiB to 1000 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MemorySize(u64);

/// Why a text or number is no size of a guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemorySizeError {
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Outside of the bounds.
    #[error("a guest cannot have {} of memory; it takes 16M to 1000G", display_bytes(*.0))]
    Bounds(u64),
    /// Not whole units.
    #[error("memory of {0} bytes is not a multiple of 2M")]
    Unit(u64),
}

impl MemorySize {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Result<Self, MemorySizeError> {
        if bytes < MEMORY_MIN_BYTES || bytes > MEMORY_MAX_BYTES {
            Err(MemorySizeError::Bounds(bytes))
        } else if !bytes.is_multiple_of(MEMORY_UNIT_BYTES) {
            Err(MemorySizeError::Unit(bytes))
        } else {
            Ok(Self(bytes))
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for MemorySize {
    type Error = MemorySizeError;

    fn try_from(bytes: u64) -> Result<Self, MemorySizeError> {
        Self::new(bytes)
    }
}

impl From<MemorySize> for u64 {
    fn from(size: MemorySize) -> Self {
        size.0
    }
}

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<Self, MemorySizeError> {
        Self::new(parse_bytes(text)?)
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&display_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_units_within_bounds() {
        assert_eq!("2G".parse::<MemorySize>().unwrap().bytes(), 2 << 30);
        assert_eq!(MemorySize::new(MEMORY_MAX_BYTES + 1), Err(MemorySizeError::Bounds(MEMORY_MAX_BYTES + 1)));
        assert!(matches!(MemorySize::new(17 << 20), Err(MemorySizeError::Unit(_))));
        assert!(matches!("1M".parse::<MemorySize>(), Err(MemorySizeError::Bounds(_))));
        assert!(serde_json::from_str::<MemorySize>("5").is_err());
    }
}
