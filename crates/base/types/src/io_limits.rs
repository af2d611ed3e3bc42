//! Limits of how fast a disk's requests are carried out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::size::{SizeError, display_bytes, parse_bytes};

/// Fewest operations a second: with fewer a guest takes minutes to boot, and its timeouts pass.
pub const IOPS_MIN: u64 = 16;

/// Most operations a second: more than one queue of any device has.
pub const IOPS_MAX: u64 = 10_000_000;

/// Fewest bytes a second: the largest transfer takes a second.
pub const BANDWIDTH_MIN_BYTES: u64 = 1 << 20;

/// Most bytes a second: more than memory moves through one volume.
pub const BANDWIDTH_MAX_BYTES: u64 = 64 << 30;

/// Operations that may come at once: at least one.
const IOPS_BURST_MIN: u64 = 1;

/// Bytes that may come at once: at least one block.
const BANDWIDTH_BURST_MIN_BYTES: u64 = 4096;

/// A number out of the range of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IoLimitError {
    /// Of [`Iops`].
    #[error("a limit of {0} IOPS is not possible; it can be from {IOPS_MIN} to {IOPS_MAX}")]
    Iops(u64),
    /// Of [`IopsBurst`].
    #[error("a burst of {0} operations is not possible; it can have from {IOPS_BURST_MIN} to {IOPS_MAX}")]
    IopsBurst(u64),
    /// Of [`Bandwidth`].
    #[error(
        "a limit of {0} bytes a second is not possible; it can be from {least} to {most}",
        least = display_bytes(BANDWIDTH_MIN_BYTES),
        most = display_bytes(BANDWIDTH_MAX_BYTES)
    )]
    Bandwidth(u64),
    /// Of [`BandwidthBurst`].
    #[error(
        "a burst of {0} bytes is not possible; it can have from {least} to {most}",
        least = display_bytes(BANDWIDTH_BURST_MIN_BYTES),
        most = display_bytes(BANDWIDTH_MAX_BYTES)
    )]
    BandwidthBurst(u64),
    /// Not a number.
    #[error("'{0}' is not a number")]
    Number(String),
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
}

macro_rules! limited {
    ($(#[$doc:meta])* $name:ident, $error:ident, $least:expr, $most:expr, $schema:meta) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(try_from = "u64", into = "u64")]
        #[cfg_attr(feature = "schema", $schema)]
        pub struct $name(u64);

        impl $name {
            /// This number.
            ///
            /// # Errors
            /// If it is out of range.
            pub const fn new(number: u64) -> Result<Self, IoLimitError> {
                if number >= $least && number <= $most {
                    Ok(Self(number))
                } else {
                    Err(IoLimitError::$error(number))
                }
            }

            /// The number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = IoLimitError;

            fn try_from(number: u64) -> Result<Self, IoLimitError> {
                Self::new(number)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

limited! {
    /// Operations a second: 16 to 10,000,000.
    Iops, Iops, IOPS_MIN, IOPS_MAX,
    schema(value_type = u64, minimum = 16, maximum = 10000000)
}
limited! {
    /// Operations that may come at once: 1 to 10,000,000.
    IopsBurst, IopsBurst, IOPS_BURST_MIN, IOPS_MAX,
    schema(value_type = u64, minimum = 1, maximum = 10000000)
}
limited! {
    /// Bytes a second: 1 MiB to 64 GiB.
    Bandwidth, Bandwidth, BANDWIDTH_MIN_BYTES, BANDWIDTH_MAX_BYTES,
    schema(value_type = u64, minimum = 1048576, maximum = 68719476736u64)
}
limited! {
    /// Bytes that may come at once: 4 KiB to 64 GiB.
    BandwidthBurst, BandwidthBurst, BANDWIDTH_BURST_MIN_BYTES, BANDWIDTH_MAX_BYTES,
    schema(value_type = u64, minimum = 4096, maximum = 68719476736u64)
}

fn number(text: &str) -> Result<u64, IoLimitError> {
    text.parse().map_err(|_| IoLimitError::Number(text.to_owned()))
}

impl FromStr for Iops {
    type Err = IoLimitError;

    fn from_str(text: &str) -> Result<Self, IoLimitError> {
        Self::new(number(text)?)
    }
}

impl FromStr for IopsBurst {
    type Err = IoLimitError;

    fn from_str(text: &str) -> Result<Self, IoLimitError> {
        Self::new(number(text)?)
    }
}

impl FromStr for Bandwidth {
    type Err = IoLimitError;

    fn from_str(text: &str) -> Result<Self, IoLimitError> {
        Self::new(parse_bytes(text)?)
    }
}

impl FromStr for BandwidthBurst {
    type Err = IoLimitError;

    fn from_str(text: &str) -> Result<Self, IoLimitError> {
        Self::new(parse_bytes(text)?)
    }
}

/// A limit of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct IopsLimit {
    /// Operations a second. A transfer counts as one operation for each started 256 KiB.
    pub per_second: Iops,
    /// Operations that may come at once after a pause; by default those of a tenth of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<IopsBurst>,
}

/// A limit of transferred bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BandwidthLimit {
    /// Bytes a second, read and written together.
    pub bytes_per_second: Bandwidth,
    /// Bytes that may come at once after a pause; by default those of a tenth of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<BandwidthBurst>,
}

/// The limits of a disk, or of all disks of a VM together. Without a limit there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct IoLimits {
    /// Of operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<IopsLimit>,
    /// Of transferred bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthLimit>,
}

impl IoLimits {
    /// No limit.
    pub const NONE: Self = Self { iops: None, bandwidth: None };

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iops = self.iops.map(|IopsLimit { per_second, burst }| {
            let burst = burst.map(|burst| format!(" (burst {})", burst.get())).unwrap_or_default();
            format!("{} IOPS{burst}", per_second.get())
        });
        let bandwidth = self.bandwidth.map(|BandwidthLimit { bytes_per_second, burst_bytes }| {
            let burst = burst_bytes.map(|burst| format!(" (burst {})", display_bytes(burst.get())));
            format!("{}/s{}", display_bytes(bytes_per_second.get()), burst.unwrap_or_default())
        });
        match (iops, bandwidth) {
            (Some(iops), Some(bandwidth)) => write!(f, "{iops}, {bandwidth}"),
            (Some(limit), None) | (None, Some(limit)) => f.write_str(&limit),
            (None, None) => f.write_str("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_within_their_ranges() {
        for number in [IOPS_MIN, IOPS_MAX] {
            assert_eq!(Iops::new(number).unwrap().get(), number);
        }
        let refused = "15".parse::<Iops>().unwrap_err().to_string();
        assert_eq!(refused, "a limit of 15 IOPS is not possible; it can be from 16 to 10000000");
        assert!(Iops::new(IOPS_MAX + 1).is_err());
        assert!("many".parse::<Iops>().is_err());
        assert_eq!("100M".parse::<Bandwidth>().unwrap().get(), 100 << 20);
        let refused = "64K".parse::<Bandwidth>().unwrap_err().to_string();
        assert_eq!(refused, "a limit of 65536 bytes a second is not possible; it can be from 1M to 64G");
        assert!(Bandwidth::new(BANDWIDTH_MAX_BYTES + 1).is_err());
        assert!(IopsBurst::new(0).is_err() && BandwidthBurst::new(4095).is_err());
    }

    #[test]
    fn limits_read_as_documented() {
        let text = r#"{"iops":{"per_second":2000},"bandwidth":{"bytes_per_second":104857600,"burst_bytes":1048576}}"#;
        let limits: IoLimits = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&limits).unwrap(), text);
        assert_eq!(limits.to_string(), "2000 IOPS, 100M/s (burst 1M)");
        assert_eq!(serde_json::from_str::<IoLimits>("{}").unwrap(), IoLimits::NONE);
        assert_eq!(IoLimits::NONE.to_string(), "unlimited");
        for wrong in [
            r#"{"iops":{"per_second":0}}"#,
            r#"{"iops":{"burst":10}}"#,
            r#"{"bandwidth":{"bytes_per_second":1}}"#,
            r#"{"latency":{}}"#,
        ] {
            assert!(serde_json::from_str::<IoLimits>(wrong).is_err(), "{wrong}");
        }
    }
}
