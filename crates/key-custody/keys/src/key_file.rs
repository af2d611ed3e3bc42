//! Key files: 32 bytes, or 64 hexadecimal digits with an optional line end, readable by the owner
//! alone.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroize;

use crate::error::KeyError;
use crate::kek::KEK_BYTES;

/// Hexadecimal digits and a line end of either kind.
const FORM_BYTES_MAX: usize = 2 * KEK_BYTES + 2;

/// Reads a key file. Refuses one that group or others may read.
pub fn read_key_file(path: &Path) -> Result<SecretBytes, KeyError> {
    let unreadable = |error| KeyError::KeyFileUnreadable { path: path.to_owned(), error };
    let form = || KeyError::KeyFileForm { path: path.to_owned() };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_file() && mode & 0o077 != 0 {
        return Err(KeyError::KeyFileMode { path: path.to_owned(), mode });
    }
    // One byte more than any form has, so that a longer file is noticed without reading it all.
    let mut content = SecretBytes::zeroed(FORM_BYTES_MAX + 1)?;
    let mut length = 0;
    while length < content.len() {
        match file.read(&mut content.expose_mut()[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    let content = &content.expose()[..length];
    let mut key = [0; KEK_BYTES];
    match content.len() {
        KEK_BYTES => key.copy_from_slice(content),
        length
            if (2 * KEK_BYTES..=FORM_BYTES_MAX).contains(&length)
                && content[2 * KEK_BYTES..].trim_ascii().is_empty() =>
        {
            if !decode_digits(&content[..2 * KEK_BYTES], &mut key) {
                key.zeroize();
                return Err(form());
            }
        }
        _ => return Err(form()),
    }
    Ok(SecretBytes::from_slice_and_wipe(&mut key)?)
}

/// Decodes hexadecimal digits of either case without a branch or a table look-up that depends on
/// them.
fn decode_digits(digits: &[u8], key: &mut [u8; KEK_BYTES]) -> bool {
    let mut wrong = 0_u8;
    for (byte, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = pair.map(|digit| {
            let within = |first: u8, last: u8| {
                let (below, above) =
                    (i16::from(digit) - i16::from(first), i16::from(last) - i16::from(digit));
                (!((below | above) >> 15) & 0xff) as u8
            };
            let (decimal, lower, upper) = (within(b'0', b'9'), within(b'a', b'f'), within(b'A', b'F'));
            wrong |= !(decimal | lower | upper);
            (digit.wrapping_sub(b'0') & decimal)
                | (digit.wrapping_sub(b'a' - 10) & lower)
                | (digit.wrapping_sub(b'A' - 10) & upper)
        });
        *byte = high << 4 | low;
    }
    wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn both_forms_are_read() {
        let key: Vec<u8> = (0..32).map(|i| i * 7 + 3).collect();
        assert_eq!(read_key_file(file(&key, 0o600).path()).unwrap().expose(), key);
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        for text in [digits.clone(), digits.to_uppercase(), digits.clone() + "\n", digits + "\r\n"] {
            assert_eq!(read_key_file(file(text.as_bytes(), 0o400).path()).unwrap().expose(), key);
        }
    }

    #[test]
    fn every_digit_is_decoded_and_nothing_else() {
        let mut key = [0; KEK_BYTES];
        for byte in 0..=255_u8 {
            let mut digits = [b'0'; 2 * KEK_BYTES];
            digits[1] = byte;
            let good = decode_digits(&digits, &mut key);
            assert_eq!(good.then_some(u32::from(key[0])), char::from(byte).to_digit(16));
        }
    }

    #[test]
    fn other_files_are_refused() {
        let digits = [b'0'; 64];
        let and = |rest: &[u8]| [&digits[..], rest].concat();
        for content in [&b""[..], &[1; 31], &[1; 33], &[b'0'; 40], &[b'g'; 64], &[b'0'; 65], &[b'0'; 100_000]]
        {
            assert!(matches!(read_key_file(file(content, 0o600).path()), Err(KeyError::KeyFileForm { .. })));
        }
        // Digits, and more than a line end.
        for content in [and(b"\n\n\n"), and(b"\r\nx"), and(b"\r\n\nanother line\n")] {
            let refused = read_key_file(file(&content, 0o600).path());
            assert!(matches!(refused, Err(KeyError::KeyFileForm { .. })), "{content:?}");
        }
        assert!(matches!(read_key_file(file(&[1; 32], 0o640).path()), Err(KeyError::KeyFileMode { .. })));
        assert!(matches!(read_key_file(Path::new("/nowhere/key")), Err(KeyError::KeyFileUnreadable { .. })));
    }
}
