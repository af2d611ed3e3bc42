//! The digests that identify certificates and public keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_crypto::mac::{DIGEST_BYTES, sha256};
use strongroom_types::hex;

/// A text that is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 is written as 64 hexadecimal digits, with or without colons between them")]
pub struct DigestTextError;

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; DIGEST_BYTES]);

        impl $name {
            /// The digest of these DER bytes.
            pub fn of(der: &[u8]) -> Self {
                Self(sha256(der))
            }

            /// The digest with these bytes.
            pub const fn from_bytes(bytes: [u8; DIGEST_BYTES]) -> Self {
                Self(bytes)
            }

            /// The bytes of the digest.
            pub const fn as_bytes(&self) -> &[u8; DIGEST_BYTES] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&hex::encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = DigestTextError;

            fn from_str(text: &str) -> Result<Self, DigestTextError> {
                parse_hex(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

digest_type! {
    /// The SHA-256 of a whole certificate's DER, as `openssl x509 -fingerprint -sha256` shows it.
    CertificateSha256
}
digest_type! {
    /// The SHA-256 of a public key's DER `SubjectPublicKeyInfo` (RFC 5280, 4.1.2.7). It stays the
    /// same when a certificate is renewed for the same key.
    PublicKeySha256
}

fn parse_hex(text: &str) -> Result<[u8; DIGEST_BYTES], DigestTextError> {
    let mut digits = text.chars().filter(|letter| *letter != ':').map(|letter| letter.to_digit(16));
    let mut bytes = [0; DIGEST_BYTES];
    for byte in &mut bytes {
        let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
            return Err(DigestTextError);
        };
        // Two digits below 16 make a byte.
        *byte = (high << 4 | low) as u8;
    }
    if digits.next().is_some() { Err(DigestTextError) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_back_from_what_it_shows_and_from_what_openssl_shows() {
        let digest = CertificateSha256::of(b"certificate");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        let pairs: Vec<String> = digest.as_bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(pairs.join(":").parse(), Ok(digest));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<CertificateSha256>(&json).unwrap(), digest);
    }

    #[test]
    fn any_other_text_is_refused() {
        let digits = CertificateSha256::of(b"").to_string();
        for text in [
            "",
            "00",
            &digits[1..],
            &format!("{digits}0"),
            &format!("{digits}00"),
            &digits.replacen('e', "g", 1),
        ] {
            assert_eq!(text.parse::<CertificateSha256>(), Err(DigestTextError), "{text}");
        }
    }
}
