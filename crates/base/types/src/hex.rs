//! Bytes as lower-case hexadecimal, two digits per byte, for records that people may read. The same
//! bytes always have the same text. Not for secrets.
//!
//! With serde: `#[serde(with = "hex")]` for any number of bytes, `#[serde(with = "hex::array")]`
//! for a fixed number.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Encodes bytes.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}

/// Decodes a text; `None` if it is not such a text.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect();
    rest.is_empty().then_some(bytes).flatten()
}

/// Serializes bytes as text.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(bytes))
}

/// Deserializes bytes from text.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| D::Error::custom("not lower-case hexadecimal"))
}

/// As [`decode`], for a fixed number of bytes.
pub fn decode_array<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    decode(text)?.try_into().ok()
}

/// For serde, with a fixed number of bytes.
pub mod array {
    use serde::{Deserializer, Serializer, de::Error};

    /// Serializes bytes as text.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize(bytes, serializer)
    }

    /// Deserializes bytes from text.
    pub fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[u8; N], D::Error> {
        let bytes = super::deserialize(deserializer)?;
        bytes.try_into().map_err(|_| D::Error::custom(format!("not {N} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_and_other_texts_are_refused() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        for text in ["0", "0g", "AB", "é", "00 "] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(encode(&[0, 0x1F, 0xFF]), "001fff");
        assert_eq!((decode_array("001fff"), decode_array::<2>("001fff")), (Some([0, 0x1F, 0xFF]), None));
    }
}
