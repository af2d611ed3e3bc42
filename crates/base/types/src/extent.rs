//! A run of bytes of a volume.

use std::fmt;

use thiserror::Error;

/// The unit of sealing, of allocation and of atomicity, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The smallest unit that a guest addresses, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// A run of bytes: `offset .. offset + length`. The end is representable, which is checked at
/// construction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extent {
    offset: u64,
    length: u64,
}

/// The error of two numbers that do not make an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("extent of {length} bytes at offset {offset} ends beyond 2^64 bytes")]
pub struct ExtentError {
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub length: u64,
}

impl Extent {
    /// The `length` bytes from `offset` on.
    pub const fn new(offset: u64, length: u64) -> Result<Self, ExtentError> {
        match offset.checked_add(length) {
            Some(_) => Ok(Self { offset, length }),
            None => Err(ExtentError { offset, length }),
        }
    }

    /// The bytes from `start` up to `end`, exclusive; empty if `end` is not beyond `start`.
    pub const fn between(start: u64, end: u64) -> Self {
        Self { offset: start, length: end.saturating_sub(start) }
    }

    /// First byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Count of bytes.
    pub const fn length(self) -> u64 {
        self.length
    }

    /// The byte after the last.
    pub const fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Whether the two have a byte in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Whether every byte of `other` is in this extent.
    pub const fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// The bytes that both contain.
    pub fn intersection(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }

    /// Whether it starts and ends on multiples of `unit` bytes (a power of two).
    pub const fn is_aligned_to(self, unit: u64) -> bool {
        (self.offset | self.length) & (unit - 1) == 0
    }

    /// The smallest extent on multiples of `unit` bytes (a power of two) that contains this one,
    /// cut at 2^64.
    pub const fn widened_to(self, unit: u64) -> Self {
        let start = self.offset & !(unit - 1);
        let end = match self.end().checked_add(unit - 1) {
            Some(end) => end & !(unit - 1),
            None => !(unit - 1),
        };
        Self::between(start, end)
    }

    /// The largest extent on multiples of `unit` bytes (a power of two) within this one; it may be
    /// empty.
    pub const fn narrowed_to(self, unit: u64) -> Self {
        let start = match self.offset.checked_add(unit - 1) {
            Some(start) => start & !(unit - 1),
            None => {
                return Self { offset: self.offset & !(unit - 1), length: 0 };
            }
        };
        Self::between(start, self.end() & !(unit - 1))
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.length)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {}", self.length, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent::new(offset, length).unwrap()
    }

    #[test]
    fn an_end_beyond_the_last_byte_is_refused() {
        assert!(Extent::new(u64::MAX, 1).is_err());
        assert!(Extent::new(u64::MAX, 0).is_ok());
    }

    #[test]
    fn widening_holds_and_narrowing_is_held() {
        for offset in [0, 1, 511, 512, 4095, 4096, 4097] {
            for length in [0, 1, 511, 4095, 4096, 8191, 8192, 12_289] {
                let e = extent(offset, length);
                assert!(e.widened_to(4096).contains(e), "{e:?}");
                assert!(e.widened_to(4096).is_aligned_to(4096));
                let n = e.narrowed_to(4096);
                assert!(n.is_aligned_to(4096) && (n.is_empty() || e.contains(n)), "{e:?} {n:?}");
            }
        }
        assert_eq!(extent(1, 4094).narrowed_to(4096).length(), 0);
        assert_eq!(extent(1, 8191).narrowed_to(4096), extent(4096, 4096));
    }

    #[test]
    fn touching_extents_do_not_overlap() {
        assert!(!extent(0, 10).overlaps(extent(10, 5)));
        assert!(extent(0, 11).overlaps(extent(10, 5)));
        assert_eq!(extent(0, 11).intersection(extent(10, 5)), extent(10, 1));
    }
}
