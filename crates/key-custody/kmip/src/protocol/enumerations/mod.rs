//! Enumerations: every value of KMIP 1.0 to 1.4, by number and by its name in the OASIS XML
//! encoding.
//!
//! All are open: an unknown number is kept as `Other`, so that a message with one can be answered,
//! forwarded or shown.

mod cryptography;
mod curves;
mod exchange;
mod lifecycle;
mod profiles;
mod server;

pub use cryptography::{
    BlockCipherMode, CryptographicAlgorithm, DerivationMethod, DigitalSignatureAlgorithm, EncodingOption,
    HashingAlgorithm, KeyCompressionType, KeyFormatType, KeyRoleType, KeyWrapType, MaskGenerator,
    PaddingMethod, ValidityIndicator, WrappingMethod,
};
pub use curves::RecommendedCurve;
pub use exchange::{
    AttestationType, BatchErrorContinuationOption, CancellationResult, CredentialType, Operation,
    PutFunction, ResultReason, ResultStatus,
};
pub use lifecycle::{
    AlternativeNameType, CertificateRequestType, CertificateType, KeyValueLocationType, LinkType, NameType,
    ObjectGroupMember, ObjectType, OpaqueDataType, RevocationReasonCode, SecretDataType, SplitKeyMethod,
    State, UsageLimitsUnit,
};
pub use profiles::ProfileName;
pub use server::{
    ClientRegistrationMethod, DestroyAction, DrbgAlgorithm, Fips186Variation, QueryFunction, RngAlgorithm,
    RngMode, ShreddingAlgorithm, UnwrapMode, ValidationAuthorityType, ValidationType,
};

use crate::ttlv::Tag;

/// Makes an open enumeration with both directions of its names, numbers and encoding.
macro_rules! enumeration {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident: $tag:ident {
            $($variant:ident = $number:literal $text:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                #[doc = concat!("`", $text, "`")]
                $variant,
            )*
            /// A number without a name: a vendor's, or of a later version. Never a number that has
            /// one.
            Other(u32),
        }

        impl $name {
            /// The tag under which this enumeration has its own field.
            pub const TAG: crate::ttlv::Tag = crate::ttlv::Tag::$tag;

            /// Every value that has a name.
            pub const NAMED: &'static [Self] = &[$(Self::$variant,)*];

            /// The value of that number.
            pub fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// The number on the wire.
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// The name in the OASIS XML encoding.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($text),)*
                    Self::Other(_) => None,
                }
            }

            /// The value that the OASIS XML encoding spells so.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            /// The name, or the number.
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => formatter.write_str(name),
                    None => write!(formatter, "0x{:08X}", self.number()),
                }
            }
        }

        impl crate::codec::Codec for $name {
            fn decode(
                field: crate::ttlv::Field<'_>,
                _: crate::codec::Rules,
            ) -> Result<Self, crate::codec::DecodeError> {
                let expected = crate::ttlv::Type::Enumeration;
                let wrong = || crate::codec::DecodeError::wrong_type(field.tag(), expected, field.kind());
                field.enumeration().map(Self::from_number).ok_or_else(wrong)
            }

            fn encode(&self, tag: crate::ttlv::Tag, _: crate::protocol::ProtocolVersion, writer: &mut crate::ttlv::Writer) {
                writer.enumeration(tag, self.number());
            }
        }
    };
}
use enumeration;

/// Lists the enumerations for look-ups by tag.
macro_rules! by_tag {
    ($($name:ident,)*) => {
        /// The number that the OASIS XML encoding spells `name` in the enumeration of the field
        /// `tag`.
        ///
        /// The value of an attribute is looked up by the attribute's own tag, not by Attribute
        /// Value.
        pub fn enumeration_number(tag: Tag, name: &str) -> Option<u32> {
            match tag {
                $($name::TAG => $name::from_name(name).map($name::number),)*
                // A mask generator's hash is from the same set.
                Tag::MASK_GENERATOR_HASHING_ALGORITHM => HashingAlgorithm::from_name(name).map(HashingAlgorithm::number),
                _ => None,
            }
        }

        /// The name that the OASIS XML encoding gives `number` in the enumeration of the field
        /// `tag`.
        pub fn enumeration_name(tag: Tag, number: u32) -> Option<&'static str> {
            match tag {
                $($name::TAG => $name::from_number(number).name(),)*
                Tag::MASK_GENERATOR_HASHING_ALGORITHM => HashingAlgorithm::from_number(number).name(),
                _ => None,
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn names_and_numbers_lead_back_to_each_other() {
                $(
                    for &value in $name::NAMED {
                        assert_eq!($name::from_number(value.number()), value);
                        assert_eq!(value.name().and_then($name::from_name), Some(value));
                        assert_eq!(enumeration_number($name::TAG, &value.to_string()), Some(value.number()));
                        assert_eq!(enumeration_name($name::TAG, value.number()), value.name());
                    }
                    let vendor = $name::from_number(0x8000_0001);
                    assert_eq!((vendor.name(), vendor.number()), (None, 0x8000_0001));
                    assert_eq!($name::from_name("no such name"), None);
                )*
            }
        }
    };
}

by_tag! {
    ObjectType,
    State,
    NameType,
    LinkType,
    RevocationReasonCode,
    SecretDataType,
    OpaqueDataType,
    CertificateType,
    CertificateRequestType,
    UsageLimitsUnit,
    ObjectGroupMember,
    AlternativeNameType,
    KeyValueLocationType,
    SplitKeyMethod,
    CryptographicAlgorithm,
    BlockCipherMode,
    PaddingMethod,
    HashingAlgorithm,
    DigitalSignatureAlgorithm,
    MaskGenerator,
    KeyRoleType,
    KeyFormatType,
    KeyCompressionType,
    KeyWrapType,
    WrappingMethod,
    EncodingOption,
    DerivationMethod,
    ValidityIndicator,
    Operation,
    ResultStatus,
    ResultReason,
    BatchErrorContinuationOption,
    CancellationResult,
    PutFunction,
    CredentialType,
    AttestationType,
    QueryFunction,
    RngAlgorithm,
    DrbgAlgorithm,
    Fips186Variation,
    RngMode,
    ValidationAuthorityType,
    ValidationType,
    UnwrapMode,
    DestroyAction,
    ShreddingAlgorithm,
    ClientRegistrationMethod,
    RecommendedCurve,
    ProfileName,
}
