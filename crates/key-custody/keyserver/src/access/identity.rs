//! A client, as its verified certificate names it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_types::ClientId;
use time::OffsetDateTime;

use super::digest::{CertificateSha256, PublicKeySha256};
use super::role::Role;

/// Longest name of a client: X.520 lets a common name have 64 characters (`ub-common-name`, RFC
/// 5280, appendix A.1), and TLS libraries enforce it.
pub const CLIENT_NAME_MAX_BYTES: usize = 64;

/// A client's name for people: the common name in its certificate. Decisions use the [`ClientId`].
///
/// ASCII letters and digits, and `.`, `_`, `-`, `@`, `:`: characters that are unambiguous in log
/// lines and file names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ClientName(String);

/// A text that cannot be a client's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a client's name has 1 to {CLIENT_NAME_MAX_BYTES} characters out of letters, digits, '.', '_', '-', '@', ':'"
)]
pub struct ClientNameError;

impl ClientName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClientName {
    type Err = ClientNameError;

    fn from_str(text: &str) -> Result<Self, ClientNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte);
        if (1..=CLIENT_NAME_MAX_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ClientNameError)
        }
    }
}

impl<'de> Deserialize<'de> for ClientName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ClientName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientName({})", self.0)
    }
}

/// A certificate's serial number, for people and logs: the bytes of the DER integer. It identifies
/// a certificate only together with its issuer, so decisions use the [`CertificateSha256`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateSerial(Vec<u8>);

impl CertificateSerial {
    /// The serial number with these bytes, most significant first.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Its bytes, most significant first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for CertificateSerial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for CertificateSerial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CertificateSerial({self})")
    }
}

impl Serialize for CertificateSerial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CertificateSerial {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let malformed =
            || serde::de::Error::custom("a serial number is written as pairs of hexadecimal digits");
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
            return Err(malformed());
        };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = |&[high, low]: &[u8; 2]| Some((digit(high)? << 4 | digit(low)?) as u8);
        pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(Self).ok_or_else(malformed)
    }
}

/// A peer's identity from its verified certificate. Its holder may rely on every field: only the
/// authority, and tests, create one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The client, the same over all its certificates.
    pub client: ClientId,
    /// Its role.
    pub role: Role,
    /// Its name for people.
    pub name: ClientName,
    /// Its public key, by which grants name a host.
    pub public_key: PublicKeySha256,
    /// This very certificate.
    pub certificate: CertificateSha256,
    /// This certificate's serial number, for people and logs.
    pub serial: CertificateSerial,
    /// When the certificate expires.
    pub not_after: OffsetDateTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_mistaken_in_a_log_line_is_refused() {
        for text in ["host-1.example.org", "vcenter_7", "a", "ops@example.org", &"n".repeat(64)] {
            assert_eq!(text.parse::<ClientName>().unwrap().as_str(), text);
        }
        for text in ["", " ", "a b", "a\nb", "a/b", "a\"b", "ä", "a,CN=b", &"n".repeat(65)] {
            assert_eq!(text.parse::<ClientName>(), Err(ClientNameError), "{text:?}");
        }
        assert!(serde_json::from_str::<ClientName>("\"a\\nb\"").is_err());
    }

    #[test]
    fn a_serial_number_is_read_back_from_its_digits() {
        let serial = CertificateSerial::from_bytes(&[0, 0x7f, 0xff]);
        let json = serde_json::to_string(&serial).unwrap();
        assert_eq!(json, "\"007fff\"");
        assert_eq!(serde_json::from_str::<CertificateSerial>(&json).unwrap(), serial);
        for json in ["\"0\"", "\"0g\"", "\"é\"", "7"] {
            assert!(serde_json::from_str::<CertificateSerial>(json).is_err(), "{json}");
        }
    }
}
