//! The three requests of the load, and enough of a parser to tell a key from a refusal.
//!
//! TTLV (KMIP 1.2, section 9.1): three bytes of tag, one of type, four of length, the value padded
//! to eight.

const STRUCTURE: u8 = 0x01;
const INTEGER: u8 = 0x02;
const ENUMERATION: u8 = 0x05;
const TEXT: u8 = 0x07;

const OPERATION_CREATE: u32 = 0x01;
const OPERATION_GET: u32 = 0x0A;
const OPERATION_ACTIVATE: u32 = 0x12;

const TAG_ATTRIBUTE: u32 = 0x42_0008;
const TAG_KEY_MATERIAL: u32 = 0x42_0043;
const TAG_RESULT_STATUS: u32 = 0x42_007F;
const TAG_UNIQUE_IDENTIFIER: u32 = 0x42_0094;

/// Tag, type and length.
pub const HEADER_BYTES: usize = 8;

/// The longest answer accepted: a key and its attributes take some hundred bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

fn item(tag: u32, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = tag.to_be_bytes()[1..].to_vec();
    bytes.push(kind);
    bytes.extend((value.len() as u32).to_be_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn structure(tag: u32, fields: &[Vec<u8>]) -> Vec<u8> {
    item(tag, STRUCTURE, &fields.concat())
}

fn number(tag: u32, kind: u8, value: u32) -> Vec<u8> {
    item(tag, kind, &value.to_be_bytes())
}

fn attribute(name: &str, value: Vec<u8>) -> Vec<u8> {
    structure(TAG_ATTRIBUTE, &[item(0x42_000A, TEXT, name.as_bytes()), value])
}

/// A message of KMIP 1.2 with one operation.
fn request(operation: u32, payload: &[Vec<u8>]) -> Vec<u8> {
    let version = [number(0x42_006A, INTEGER, 1), number(0x42_006B, INTEGER, 2)];
    let header = [structure(0x42_0069, &version), number(0x42_000D, INTEGER, 1)];
    let batch_item = [number(0x42_005C, ENUMERATION, operation), structure(0x42_0079, payload)];
    structure(0x42_0078, &[structure(0x42_0077, &header), structure(0x42_000F, &batch_item)])
}

/// Asks for a new AES-256 key that may encrypt and decrypt.
pub fn create() -> Vec<u8> {
    const VALUE: u32 = 0x42_000B;
    let attributes = [
        attribute("Cryptographic Algorithm", number(VALUE, ENUMERATION, 3)),
        attribute("Cryptographic Length", number(VALUE, INTEGER, 256)),
        attribute("Cryptographic Usage Mask", number(VALUE, INTEGER, 0x0C)),
    ];
    request(OPERATION_CREATE, &[number(0x42_0057, ENUMERATION, 2), structure(0x42_0091, &attributes)])
}

/// Asks for the key to become active.
pub fn activate(id: &str) -> Vec<u8> {
    request(OPERATION_ACTIVATE, &[item(TAG_UNIQUE_IDENTIFIER, TEXT, id.as_bytes())])
}

/// Asks for the key itself.
pub fn get(id: &str) -> Vec<u8> {
    request(OPERATION_GET, &[item(TAG_UNIQUE_IDENTIFIER, TEXT, id.as_bytes())])
}

/// How many bytes follow a message's header, if it is one.
pub fn length_after(header: &[u8; HEADER_BYTES]) -> Option<usize> {
    let [_, _, _, kind, length @ ..] = *header;
    let length = u32::from_be_bytes(length) as usize;
    (kind == STRUCTURE && length <= ANSWER_BYTES_MAX).then_some(length)
}

/// The first item with this tag, at any depth.
fn find(mut bytes: &[u8], tag: u32) -> Option<&[u8]> {
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let [a, b, c, kind, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        let value = rest.get(..length)?;
        if u32::from_be_bytes([0, a, b, c]) == tag {
            return Some(value);
        }
        if let Some(found) = (kind == STRUCTURE).then(|| find(value, tag)).flatten() {
            return Some(found);
        }
        bytes = rest.get(length.next_multiple_of(8)..)?;
    }
    None
}

/// Whether the operation was done.
pub fn succeeded(answer: &[u8]) -> bool {
    find(answer, TAG_RESULT_STATUS) == Some(&[0; 4])
}

/// The id that the answer names.
pub fn unique_identifier(answer: &[u8]) -> Option<String> {
    find(answer, TAG_UNIQUE_IDENTIFIER).and_then(|id| String::from_utf8(id.to_vec()).ok())
}

/// Whether the answer has 32 bytes of key.
pub fn has_key(answer: &[u8]) -> bool {
    succeeded(answer) && find(answer, TAG_KEY_MATERIAL).is_some_and(|material| material.len() == 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_and_its_parts_are_found() {
        let message = get("0f2c");
        let header: [u8; HEADER_BYTES] = message[..HEADER_BYTES].try_into().unwrap();
        assert_eq!(length_after(&header), Some(message.len() - HEADER_BYTES));
        assert_eq!(unique_identifier(&message).as_deref(), Some("0f2c"));
        assert_eq!(find(&message, 0x42_005C), Some(&[0, 0, 0, 0x0A][..]));
        assert!(!succeeded(&message) && !has_key(&message));
    }

    #[test]
    fn answers_cut_anywhere_are_no_keys() {
        let material = structure(0x42_0045, &[item(TAG_KEY_MATERIAL, 0x08, &[7; 32])]);
        let fields = [number(TAG_RESULT_STATUS, ENUMERATION, 0), material];
        let answer = structure(0x42_007B, &fields);
        assert!(has_key(&answer));
        for length in 0..answer.len() {
            assert!(!has_key(&answer[..length]), "{length}");
        }
        let refused = structure(0x42_007B, &[number(TAG_RESULT_STATUS, ENUMERATION, 1), fields[1].clone()]);
        assert!(!has_key(&refused));
    }
}
