//! Bytes as lower-case hexadecimal text.

/// The text of some bytes.
pub(crate) fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The bytes of a text, if it is one: lower case only, so that each has one text.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// As [`decode`], of a fixed length.
pub(crate) fn decode_array<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    decode(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_text() {
        assert_eq!(encode(&[0, 0x1F, 0xFF]), "001fff");
        assert_eq!(decode("001fff"), Some(vec![0, 0x1F, 0xFF]));
        assert_eq!(decode("001F"), None);
        assert_eq!(decode("001"), None);
        assert_eq!(decode_array::<2>("001f00"), None);
    }
}
