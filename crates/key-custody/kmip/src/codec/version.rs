//! Versions of the protocol.

use std::fmt;

use super::{Codec, DecodeError, Fields, Member, Rules};
use crate::ttlv::{Field, Tag, Writer};

/// A version of KMIP, ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolVersion {
    /// 1 in all supported versions.
    pub major: i32,
    /// 0 to 4 in all supported versions.
    pub minor: i32,
}

impl ProtocolVersion {
    /// KMIP 1.0.
    pub const V1_0: Self = Self { major: 1, minor: 0 };
    /// KMIP 1.1.
    pub const V1_1: Self = Self { major: 1, minor: 1 };
    /// KMIP 1.2.
    pub const V1_2: Self = Self { major: 1, minor: 2 };
    /// KMIP 1.3.
    pub const V1_3: Self = Self { major: 1, minor: 3 };
    /// KMIP 1.4.
    pub const V1_4: Self = Self { major: 1, minor: 4 };

    /// The supported versions, newest first, as Discover Versions lists them.
    pub const SPOKEN: [Self; 5] = [Self::V1_4, Self::V1_3, Self::V1_2, Self::V1_1, Self::V1_0];

    /// Whether this version is supported.
    pub fn is_spoken(self) -> bool {
        Self::SPOKEN.contains(&self)
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

impl Codec for ProtocolVersion {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let version = Self {
            major: Member::take(Tag::PROTOCOL_VERSION_MAJOR, &mut fields)?,
            minor: Member::take(Tag::PROTOCOL_VERSION_MINOR, &mut fields)?,
        };
        fields.finish()?;
        Ok(version)
    }

    fn encode(&self, tag: Tag, _: Self, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            writer.integer(Tag::PROTOCOL_VERSION_MAJOR, self.major);
            writer.integer(Tag::PROTOCOL_VERSION_MINOR, self.minor);
        });
    }
}
