//! Names of key providers and of their keys.
//!
//! There are only names here, so that crates which must not hold a key can refer to one.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hex;
use crate::text::text_conversions;

/// The longest name of a provider, in bytes. It is also used as a file name, with a suffix.
pub const PROVIDER_NAME_BYTES_MAX: usize = 64;

/// The longest id of a key, in bytes. KMIP sets no limit, and servers use 36 (a UUID) to some
/// hundred.
pub const PROVIDER_KEY_ID_BYTES_MAX: usize = 1024;

/// The longest wrapped key, in bytes: a key of 32, and the provider's additions, which may contain
/// long names.
pub const WRAPPED_KEK_BYTES_MAX: usize = 4096;

/// The name of a key provider: 1 to 64 of `a` to `z`, `0` to `9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProviderName(String);

/// A provider's id of a key: 1 to 1024 bytes of text without control characters. KMIP's unique
/// identifiers are free text (KMIP 1.4, 3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProviderKeyId(String);

/// A KEK as its provider wrapped it, for providers that store no keys but unwrap them. Not secret:
/// only the provider can open it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WrappedKek(Vec<u8>);

/// The errors of a text that is not the name of a provider, a key or a wrapped key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProviderNameError {
    /// Invalid as a provider's name.
    #[error("'{0}' is no name of a key provider: write 1 to {PROVIDER_NAME_BYTES_MAX} of a-z, 0-9 and -")]
    Name(String),
    /// Invalid as a key's id.
    #[error(
        "a key's id has 1 to {PROVIDER_KEY_ID_BYTES_MAX} bytes and no control characters; this one has {0} bytes"
    )]
    KeyId(usize),
    /// Invalid as a wrapped key.
    #[error("a wrapped key has 1 to {WRAPPED_KEK_BYTES_MAX} bytes in lower-case hexadecimal")]
    Wrapped,
}

impl ProviderName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ProviderName {
    type Error = ProviderNameError;

    fn try_from(name: String) -> Result<Self, ProviderNameError> {
        let fits = (1..=PROVIDER_NAME_BYTES_MAX).contains(&name.len());
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if fits && name.bytes().all(plain) { Ok(Self(name)) } else { Err(ProviderNameError::Name(name)) }
    }
}

impl ProviderKeyId {
    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ProviderKeyId {
    type Error = ProviderNameError;

    fn try_from(id: String) -> Result<Self, ProviderNameError> {
        let fits = (1..=PROVIDER_KEY_ID_BYTES_MAX).contains(&id.len());
        if fits && !id.contains(char::is_control) {
            Ok(Self(id))
        } else {
            Err(ProviderNameError::KeyId(id.len()))
        }
    }
}

impl WrappedKek {
    /// Makes a wrapped key of these bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, ProviderNameError> {
        let fits = (1..=WRAPPED_KEK_BYTES_MAX).contains(&bytes.len());
        if fits { Ok(Self(bytes)) } else { Err(ProviderNameError::Wrapped) }
    }

    /// The bytes that the provider unwraps.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<String> for WrappedKek {
    type Error = ProviderNameError;

    fn try_from(digits: String) -> Result<Self, ProviderNameError> {
        hex::decode(&digits).ok_or(ProviderNameError::Wrapped).and_then(Self::new)
    }
}

impl From<WrappedKek> for String {
    fn from(wrapped: WrappedKek) -> Self {
        hex::encode(&wrapped.0)
    }
}

impl fmt::Debug for WrappedKek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappedKek({} bytes)", self.0.len())
    }
}

text_conversions!(ProviderName, ProviderNameError);
text_conversions!(ProviderKeyId, ProviderNameError);

/// The location of a KEK at a provider. `Display` gives "key provider corp, key 4711".
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderKey {
    /// The provider.
    pub provider: ProviderName,
    /// The provider's id of the key.
    pub key: ProviderKeyId,
    /// The KEK wrapped under that key, for providers that wrap and store none.
    pub wrapped: Option<WrappedKek>,
}

impl fmt::Display for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key provider {}, key {}", self.provider, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        for name in ["corp", "a", "kms-2", &"x".repeat(64)] {
            assert_eq!(name.parse::<ProviderName>().unwrap().as_str(), name);
        }
        for name in ["", "Corp", "a/b", "..", "a b", "é", &"x".repeat(65)] {
            assert!(name.parse::<ProviderName>().is_err(), "{name}");
            assert!(serde_json::from_value::<ProviderName>(name.into()).is_err(), "{name}");
        }
    }

    #[test]
    fn key_ids_are_any_printable_text() {
        for id in ["4711", "vm/é 3", &"x".repeat(1024)] {
            assert_eq!(id.parse::<ProviderKeyId>().unwrap().as_str(), id);
        }
        for id in ["", "a\nb", "\u{9b}2J", &"x".repeat(1025)] {
            assert!(id.parse::<ProviderKeyId>().is_err(), "{id:?}");
        }
    }

    #[test]
    fn wrapped_keys_have_a_limit() {
        let digits = |bytes: usize| serde_json::Value::from("ab".repeat(bytes));
        assert_eq!(serde_json::from_value::<WrappedKek>(digits(3)).unwrap().as_bytes(), [0xab; 3]);
        assert!(serde_json::from_value::<WrappedKek>(digits(4096)).is_ok());
        assert!(serde_json::from_value::<WrappedKek>(digits(4097)).is_err());
        assert!(serde_json::from_value::<WrappedKek>(digits(0)).is_err());
    }
}
