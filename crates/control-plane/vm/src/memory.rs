//! Sizes of guest memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use strongroom_types::{SizeError, display_bytes, parse_bytes};
use thiserror::Error;

use crate::limits::{MEMORY_MAX_BYTES, MEMORY_MIN_BYTES, MEMORY_UNIT_BYTES};

/// Guest memory in bytes: a multiple of 2 MiB from 16 MiB to 1000 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "u64", into = "u64")]
#[cfg_attr(feature = "schema", schema(
    as = Memory, value_type = u64, minimum = 16777216, maximum = 1073741824000u64, multiple_of = 2097152
))]
pub struct MemorySize(u64);

/// Why a text or number is not a size of guest memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemorySizeError {
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Too small, too large, or not a multiple of the unit.
    #[error(
        "a VM cannot have {} of memory; give it a multiple of {} from {} to {}",
        exact(*.0), display_bytes(MEMORY_UNIT_BYTES), display_bytes(MEMORY_MIN_BYTES),
        display_bytes(MEMORY_MAX_BYTES)
    )]
    Impossible(u64),
}

impl MemorySize {
    /// The smallest memory that a machine starts with.
    pub const MIN: Self = Self(MEMORY_MIN_BYTES);

    /// A size of this many bytes.
    ///
    /// # Errors
    /// [`MemorySizeError::Impossible`].
    pub const fn new(bytes: u64) -> Result<Self, MemorySizeError> {
        let is_within = bytes >= MEMORY_MIN_BYTES && bytes <= MEMORY_MAX_BYTES;
        if is_within && bytes.is_multiple_of(MEMORY_UNIT_BYTES) {
            Ok(Self(bytes))
        } else {
            Err(MemorySizeError::Impossible(bytes))
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Formats a size without rounding: a size that is refused for one MiB too many must not read as if
/// it were valid.
fn exact(bytes: u64) -> String {
    let rounded = display_bytes(bytes);
    match parse_bytes(&rounded) {
        Ok(read) if read == bytes => rounded,
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ => format!("{bytes} bytes"),
    }
}

/// Deserialises a size from a record of an earlier release, which accepted every whole MiB up to 64
/// TiB although no machine started with it. Rounds up to a possible size, or down to the greatest.
///
/// # Errors
/// If the field is not a number.
pub fn rounded_memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MemorySize, D::Error> {
    let bytes = u64::deserialize(deserializer)?.clamp(MEMORY_MIN_BYTES, MEMORY_MAX_BYTES);
    // The greatest size is a multiple of the unit, so rounding up cannot exceed it.
    Ok(MemorySize(bytes.next_multiple_of(MEMORY_UNIT_BYTES)))
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
    fn memory_is_whole_units_within_bounds() {
        assert_eq!("2G".parse::<MemorySize>().unwrap().bytes(), 2 << 30);
        for bytes in [MEMORY_MIN_BYTES, MEMORY_MAX_BYTES] {
            assert_eq!(MemorySize::new(bytes).unwrap().bytes(), bytes);
        }
        for bytes in
            [0, MEMORY_MIN_BYTES - MEMORY_UNIT_BYTES, 1025 << 20, MEMORY_MAX_BYTES + MEMORY_UNIT_BYTES]
        {
            assert_eq!(MemorySize::new(bytes), Err(MemorySizeError::Impossible(bytes)), "{bytes}");
        }
        let text = MemorySize::new(1025 << 20).unwrap_err().to_string();
        assert_eq!(text, "a VM cannot have 1025M of memory; give it a multiple of 2M from 16M to 1000G");
        assert!("lots".parse::<MemorySize>().is_err());
        assert!(serde_json::from_str::<MemorySize>("5").is_err());
    }

    #[test]
    fn a_former_record_is_read() {
        #[derive(Deserialize)]
        struct Record(#[serde(deserialize_with = "rounded_memory")] MemorySize);
        for (bytes, read) in [
            (2 << 30, 2 << 30),
            (1025 << 20, 1026 << 20),
            (0, MEMORY_MIN_BYTES),
            (2 << 40, MEMORY_MAX_BYTES),
            (MEMORY_MAX_BYTES - 1, MEMORY_MAX_BYTES),
        ] {
            let Record(memory) = serde_json::from_str(&bytes.to_string()).unwrap();
            assert_eq!(memory.bytes(), read, "{bytes}");
        }
    }
}
