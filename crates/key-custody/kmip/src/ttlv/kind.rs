//! The ten item types and the two kinds of time among them.

use std::time::{SystemTime, UNIX_EPOCH};

/// The type of a field (KMIP 1.4, section 9.1.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// Fields, one after another.
    Structure = 0x01,
    /// 32 bits, signed.
    Integer = 0x02,
    /// 64 bits, signed.
    LongInteger = 0x03,
    /// Two's complement, a multiple of eight bytes.
    BigInteger = 0x04,
    /// 32 bits, one of a named set.
    Enumeration = 0x05,
    /// 64 bits, 0 or 1.
    Boolean = 0x06,
    /// UTF-8 without a terminator.
    TextString = 0x07,
    /// Bytes.
    ByteString = 0x08,
    /// POSIX time, see [`DateTime`].
    DateTime = 0x09,
    /// A number of seconds, see [`Interval`].
    Interval = 0x0A,
}

impl Type {
    /// The type of that number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0x01 => Self::Structure,
            0x02 => Self::Integer,
            0x03 => Self::LongInteger,
            0x04 => Self::BigInteger,
            0x05 => Self::Enumeration,
            0x06 => Self::Boolean,
            0x07 => Self::TextString,
            0x08 => Self::ByteString,
            0x09 => Self::DateTime,
            0x0A => Self::Interval,
            _ => return None,
        })
    }

    /// The length of every value of this type, if it is fixed.
    pub(super) fn fixed_length_bytes(self) -> Option<usize> {
        match self {
            Self::Integer | Self::Enumeration | Self::Interval => Some(4),
            Self::LongInteger | Self::Boolean | Self::DateTime => Some(8),
            Self::Structure | Self::BigInteger | Self::TextString | Self::ByteString => None,
        }
    }
}

/// A point in time: seconds since 1970-01-01 00:00:00 UTC, negative before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DateTime(pub i64);

impl DateTime {
    /// The time by this machine's clock.
    pub fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX))
    }
}

/// A span of time in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval(pub u32);
