//! Values that may be secret: wiped when dropped, compared in constant time, never shown.

use std::fmt;

use strongroom_memory::secret::{SecretBytes, SecretError};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// The value of a byte string.
///
/// Any of them may be a key or data under one. So all are wiped when dropped, compared in a time
/// that depends only on their lengths, and shown only by their length.
#[derive(Clone, Default)]
pub struct ByteString(Zeroizing<Vec<u8>>);

impl ByteString {
    /// The bytes. A caller that copies them must wipe the copy.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves the bytes into secret memory and wipes them here.
    ///
    /// # Errors
    /// As [`SecretBytes::from_slice_and_wipe`].
    pub fn into_secret(mut self) -> Result<SecretBytes, SecretError> {
        SecretBytes::from_slice_and_wipe(&mut self.0)
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }
}

impl<const LENGTH_BYTES: usize> From<&[u8; LENGTH_BYTES]> for ByteString {
    fn from(bytes: &[u8; LENGTH_BYTES]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl From<Zeroizing<Vec<u8>>> for ByteString {
    fn from(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }
}

impl From<&SecretBytes> for ByteString {
    fn from(secret: &SecretBytes) -> Self {
        Self::from(secret.expose())
    }
}

impl PartialEq for ByteString {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for ByteString {}

impl fmt::Debug for ByteString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ByteString({} bytes, redacted)", self.0.len())
    }
}

/// A text string that is a secret: a password. Otherwise like [`ByteString`].
#[derive(Clone, Default)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// The text. A caller that copies it must wipe the copy.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for SecretText {}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SecretText({} bytes, redacted)", self.0.len())
    }
}

/// A big integer: two's complement, big end first, a multiple of eight bytes. It may be a private
/// exponent, so it is kept like a [`ByteString`]; this crate does not compute with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigInteger(ByteString);

impl BigInteger {
    /// A big integer of the bytes of a two's complement, big end first, sign-extended to a multiple
    /// of eight bytes.
    pub fn from_twos_complement(bytes: &[u8]) -> Self {
        let padding_bytes = bytes.len().next_multiple_of(8) - bytes.len();
        let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
        let mut extended = Vec::with_capacity(padding_bytes + bytes.len());
        extended.resize(padding_bytes, if negative { 0xFF } else { 0 });
        extended.extend_from_slice(bytes);
        Self(extended.into())
    }

    /// The bytes, a multiple of eight.
    pub fn expose(&self) -> &[u8] {
        self.0.expose()
    }
}

impl Zeroize for ByteString {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_lengths_only() {
        let shown = format!(
            "{:?} {:?} {:?}",
            ByteString::from(b"marker-key"),
            SecretText::from("marker-password"),
            BigInteger::from_twos_complement(b"marker")
        );
        assert!(!shown.contains("marker"), "{shown}");
        assert!(shown.contains("10 bytes"), "{shown}");
    }

    #[test]
    fn big_integers_are_sign_extended() {
        assert_eq!(BigInteger::from_twos_complement(&[0x7F]).expose(), [0, 0, 0, 0, 0, 0, 0, 0x7F]);
        assert_eq!(
            BigInteger::from_twos_complement(&[0x80]).expose(),
            [255, 255, 255, 255, 255, 255, 255, 0x80]
        );
        assert!(BigInteger::from_twos_complement(&[]).expose().is_empty());
    }

    #[test]
    fn a_byte_string_becomes_a_secret() {
        let secret = ByteString::from(b"0123456789abcdef").into_secret().unwrap();
        assert_eq!(secret.expose(), b"0123456789abcdef");
    }
}
