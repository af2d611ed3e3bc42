//! Masks: sets of bits in an integer (KMIP 1.4, section 9.1.3.3).

use crate::codec::{Codec, DecodeError, Rules};
use crate::protocol::ProtocolVersion;
use crate::ttlv::{Field, Tag, Writer};

/// Makes a mask with its names and its encoding. Bits without a name are kept.
macro_rules! mask {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($constant:ident = $bits:literal $text:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub i32);

        impl $name {
            $(
                #[doc = concat!("`", $text, "`")]
                pub const $constant: Self = Self($bits);
            )*

            /// Whether all bits of `other` are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bit that the OASIS XML encoding spells so.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$constant),)*
                    _ => None,
                }
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl Codec for $name {
            fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
                i32::decode(field, rules).map(Self)
            }

            fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
                writer.integer(tag, self.0);
            }
        }
    };
}

mask! {
    /// The permitted uses of an object.
    pub struct CryptographicUsageMask {
        SIGN = 0x0000_0001 "Sign",
        VERIFY = 0x0000_0002 "Verify",
        ENCRYPT = 0x0000_0004 "Encrypt",
        DECRYPT = 0x0000_0008 "Decrypt",
        WRAP_KEY = 0x0000_0010 "WrapKey",
        UNWRAP_KEY = 0x0000_0020 "UnwrapKey",
        EXPORT = 0x0000_0040 "Export",
        MAC_GENERATE = 0x0000_0080 "MACGenerate",
        MAC_VERIFY = 0x0000_0100 "MACVerify",
        DERIVE_KEY = 0x0000_0200 "DeriveKey",
        CONTENT_COMMITMENT = 0x0000_0400 "ContentCommitment",
        KEY_AGREEMENT = 0x0000_0800 "KeyAgreement",
        CERTIFICATE_SIGN = 0x0000_1000 "CertificateSign",
        CRL_SIGN = 0x0000_2000 "CRLSign",
        GENERATE_CRYPTOGRAM = 0x0000_4000 "GenerateCryptogram",
        VALIDATE_CRYPTOGRAM = 0x0000_8000 "ValidateCryptogram",
        TRANSLATE_ENCRYPT = 0x0001_0000 "TranslateEncrypt",
        TRANSLATE_DECRYPT = 0x0002_0000 "TranslateDecrypt",
        TRANSLATE_WRAP = 0x0004_0000 "TranslateWrap",
        TRANSLATE_UNWRAP = 0x0008_0000 "TranslateUnwrap",
    }
}

mask! {
    /// Where the objects to locate are stored.
    pub struct StorageStatusMask {
        ON_LINE = 0x0000_0001 "OnLineStorage",
        ARCHIVAL = 0x0000_0002 "ArchivalStorage",
    }
}

/// The bits that the OASIS XML encoding spells as `names`, separated by blanks, in the mask of the
/// field `tag`.
pub fn mask_bits(tag: Tag, names: &str) -> Option<i32> {
    let bit = |name: &str| match tag {
        Tag::CRYPTOGRAPHIC_USAGE_MASK => CryptographicUsageMask::from_name(name).map(|mask| mask.0),
        Tag::STORAGE_STATUS_MASK => StorageStatusMask::from_name(name).map(|mask| mask.0),
        _ => None,
    };
    names.split_whitespace().try_fold(0, |bits, name| Some(bits | bit(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_masks() {
        assert_eq!(mask_bits(Tag::CRYPTOGRAPHIC_USAGE_MASK, "Decrypt   Encrypt"), Some(12));
        assert_eq!(mask_bits(Tag::STORAGE_STATUS_MASK, "ArchivalStorage OnLineStorage"), Some(3));
        assert_eq!(mask_bits(Tag::STORAGE_STATUS_MASK, "Encrypt"), None);
        let mask = CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT;
        assert!(
            mask.contains(CryptographicUsageMask::ENCRYPT) && !mask.contains(CryptographicUsageMask::SIGN)
        );
    }
}
