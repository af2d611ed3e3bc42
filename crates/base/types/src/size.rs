//! Sizes of volumes, and sizes as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::extent::{BLOCK_BYTES, SECTOR_BYTES};

/// The smallest volume: one block.
pub const MIN_VOLUME_BYTES: u64 = BLOCK_BYTES;

/// The largest volume: 64 TiB. This exceeds the largest virtual disks of the systems that guests
/// come from (62 TB). Files of XFS and btrfs can be larger; those of ext4 cannot exceed 16 TiB.
pub const MAX_VOLUME_BYTES: u64 = 64 << 40;

/// A volume's size in bytes: a multiple of 512 from 4096 to 64 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct VolumeSize(u64);

/// The reasons why a text or number is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// It is not a number with an optional unit.
    #[error("'{0}' is not a size; write a number of bytes or a number with a unit, such as 20G or 512M")]
    Syntax(String),
    /// It is not a multiple of a sector.
    #[error("a size of {0} bytes is not a multiple of 512; the nearest above is {above}", above = .0.div_ceil(SECTOR_BYTES) * SECTOR_BYTES)]
    Sector(u64),
    /// It is below the smallest volume.
    #[error("a size of {0} bytes is too small; the smallest volume has {MIN_VOLUME_BYTES} bytes")]
    TooSmall(u64),
    /// It is above the largest volume.
    #[error("a size of {text} is too large; the largest volume has 64T", text = display_bytes(*.0))]
    TooLarge(u64),
}

impl VolumeSize {
    /// The size of `bytes`.
    pub const fn new(bytes: u64) -> Result<Self, SizeError> {
        if bytes < MIN_VOLUME_BYTES {
            Err(SizeError::TooSmall(bytes))
        } else if bytes > MAX_VOLUME_BYTES {
            Err(SizeError::TooLarge(bytes))
        } else if !bytes.is_multiple_of(SECTOR_BYTES) {
            Err(SizeError::Sector(bytes))
        } else {
            Ok(Self(bytes))
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The size rounded up to whole blocks, in bytes: the range of a layer's file.
    pub const fn block_aligned_bytes(self) -> u64 {
        self.0.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
    }
}

impl TryFrom<u64> for VolumeSize {
    type Error = SizeError;

    fn try_from(bytes: u64) -> Result<Self, SizeError> {
        Self::new(bytes)
    }
}

impl From<VolumeSize> for u64 {
    fn from(size: VolumeSize) -> u64 {
        size.0
    }
}

impl FromStr for VolumeSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        Self::new(parse_bytes(text)?)
    }
}

impl fmt::Display for VolumeSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&display_bytes(self.0))
    }
}

const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Parses `20G`, `1.5T`, `512MiB`, `4096` or `4096B`: units are powers of 1024, in upper or lower
/// case.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let syntax = || SizeError::Syntax(text.to_owned());
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let (number, shift) = match bare.chars().last() {
        Some(letter) if letter.is_ascii_alphabetic() => {
            let unit = UNITS.iter().find(|(unit, _)| *unit == letter).ok_or_else(syntax)?;
            (&bare[..bare.len() - 1], unit.1)
        }
        _ if upper.ends_with("IB") => return Err(syntax()),
        _ => (bare, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    // Nine decimals keep the arithmetic below within 128 bits, and suffice for any input.
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || number.ends_with('.')
    {
        return Err(syntax());
    }
    let whole: u64 = whole.parse().map_err(|_| SizeError::TooLarge(u64::MAX))?;
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| syntax())? };
    let scaled = (u128::from(whole) * scale + fraction)
        .checked_mul(1 << shift)
        .ok_or(SizeError::TooLarge(u64::MAX))?;
    if !scaled.is_multiple_of(scale) {
        return Err(syntax());
    }
    u64::try_from(scaled / scale).map_err(|_| SizeError::TooLarge(u64::MAX))
}

/// Formats a count of bytes with the largest unit that keeps it exact, or to two decimals: `20G`,
/// `1.5T`, `1.21M`.
pub fn display_bytes(bytes: u64) -> String {
    let Some((unit, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >= 1 << shift) else {
        return format!("{bytes}B");
    };
    let hundredths = ((u128::from(bytes) * 100) >> shift) as u64;
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole}{unit}"),
        (whole, part) if part % 10 == 0 => format!("{whole}.{}{unit}", part / 10),
        (whole, part) => format!("{whole}.{part:02}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("4K", 4096),
            ("20G", 20 << 30),
            ("20g", 20 << 30),
            ("20GiB", 20 << 30),
            ("20GB", 20 << 30),
            ("1.5T", 3 << 39),
            ("0.5M", 512 << 10),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1,5G",
            "1.G",
            ".5G",
            "20X",
            "1e9",
            "5iB",
            "0.0001K",
            "99999999999999999999",
            "20 GG",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_bytes("18446744073709551615.000000001P"), Err(SizeError::TooLarge(u64::MAX)));
        assert_eq!(parse_bytes("16777216T"), Err(SizeError::TooLarge(u64::MAX)));
    }

    #[test]
    fn volumes_have_limits() {
        assert!(matches!("0".parse::<VolumeSize>(), Err(SizeError::TooSmall(0))));
        assert!(matches!("65T".parse::<VolumeSize>(), Err(SizeError::TooLarge(_))));
        assert!(matches!("5000".parse::<VolumeSize>(), Err(SizeError::Sector(5000))));
        assert_eq!("64T".parse::<VolumeSize>().unwrap().bytes(), MAX_VOLUME_BYTES);
        assert_eq!(VolumeSize::new(4608).unwrap().block_aligned_bytes(), 8192);
    }

    #[test]
    fn bytes_are_shown_shortly() {
        for (bytes, text) in [
            (0, "0B"),
            (512, "512B"),
            (4096, "4K"),
            (20 << 30, "20G"),
            (3 << 39, "1.5T"),
            (1_270_000, "1.21M"),
        ] {
            assert_eq!(display_bytes(bytes), text);
        }
    }
}
