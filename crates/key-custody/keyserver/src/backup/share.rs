//! One custodian's share of a backup's key: a line of text that can be carried, printed or typed.
//!
//! ```text
//! strongroom-share-1:<backup id, 32 digits>:<index>:<threshold>:<total>:<value, 64 digits>:<checksum, 16 digits>
//! ```
//! The checksum is the first 8 bytes of SHA-256 of everything before its colon. The value is the
//! custodian's point of Shamir's scheme, byte by byte over GF(2^8) with AES's polynomial
//! x^8+x^4+x^3+x+1; the index is its x.
//!
//! `vsss-rs` implements Shamir's scheme: audited, and constant-time, without tables indexed by the
//! secret.

use aws_lc_rs::digest::{SHA256, digest};
use getrandom::SysRng;
use getrandom::rand_core::UnwrapErr;
use strongroom_memory::secret::SecretBytes;
use uuid::Uuid;
use vsss_rs::Gf256;
use zeroize::Zeroizing;

use super::error::{BackupError, ShareError};
use super::header::BackupId;

/// Bytes of a backup's key, and so of a share's value.
pub(super) const BACKUP_KEY_BYTES: usize = 32;

const START: &str = "strongroom-share-1";
const CHECKSUM_BYTES: usize = 8;

/// A share, opened.
#[derive(Debug)]
pub(super) struct Share {
    pub backup: BackupId,
    pub index: u8,
    pub threshold: u8,
    pub total: u8,
    value: SecretBytes,
}

/// Splits `key` so that any `threshold` of the `total` shares restore it, and fewer reveal nothing.
pub(super) fn split(
    key: &SecretBytes,
    backup: BackupId,
    threshold: u8,
    total: u8,
) -> Result<Vec<Share>, BackupError> {
    // The kernel's random source does not fail once it has started; it has just supplied the key.
    let random = UnwrapErr(SysRng);
    let points = Gf256::split_bytes(threshold.into(), total.into(), key.expose(), random)
        .map_err(|_| BackupError::Library { call: "splitting the key" })?;
    let mut shares = Vec::with_capacity(points.len());
    for point in points {
        let mut point = Zeroizing::new(point);
        let (index, value) =
            point.split_first_mut().ok_or(BackupError::Library { call: "splitting the key" })?;
        let value = SecretBytes::from_slice_and_wipe(value)?;
        shares.push(Share { backup, index: *index, threshold, total, value });
    }
    Ok(shares)
}

/// The key that `shares` give. The backup's header tells whether it is the right one.
pub(super) fn combine(shares: &[Share]) -> Result<SecretBytes, BackupError> {
    let points: Zeroizing<Vec<Vec<u8>>> = Zeroizing::new(
        shares.iter().map(|share| [&[share.index][..], share.value.expose()].concat()).collect(),
    );
    let mut key =
        Gf256::combine_bytes(&*points).map_err(|_| BackupError::Library { call: "combining the shares" })?;
    Ok(SecretBytes::from_slice_and_wipe(&mut key)?)
}

impl Share {
    /// The line of text.
    pub fn encode(&self) -> Result<SecretBytes, BackupError> {
        let start = format!(
            "{START}:{}:{}:{}:{}:",
            self.backup.as_uuid().simple(),
            self.index,
            self.threshold,
            self.total
        );
        let checked_bytes = start.len() + 2 * BACKUP_KEY_BYTES;
        let mut text = SecretBytes::zeroed(checked_bytes + 1 + 2 * CHECKSUM_BYTES)?;
        let (checked, rest) = text.expose_mut().split_at_mut(checked_bytes);
        checked[..start.len()].copy_from_slice(start.as_bytes());
        write_digits(self.value.expose(), &mut checked[start.len()..]);
        rest[0] = b':';
        write_digits(&digest(&SHA256, checked).as_ref()[..CHECKSUM_BYTES], &mut rest[1..]);
        Ok(text)
    }

    /// Reads the line, ignoring white space around it.
    pub fn decode(text: &SecretBytes) -> Result<Self, ShareError> {
        let text = text.expose().trim_ascii();
        let fields: Vec<&[u8]> = text.split(|&byte| byte == b':').collect();
        let [start, backup, index, threshold, total, value, checksum] = fields[..] else {
            return Err(if text.starts_with(START.as_bytes()) {
                ShareError::Damaged { why: "it has not seven fields" }
            } else {
                ShareError::NotAShare
            });
        };
        if start != START.as_bytes() {
            return Err(ShareError::NotAShare);
        }
        let checked = &text[..text.len() - checksum.len() - 1];
        let mut said = [0; CHECKSUM_BYTES];
        if !read_digits(checksum, &mut said) || digest(&SHA256, checked).as_ref()[..CHECKSUM_BYTES] != said {
            return Err(ShareError::Damaged { why: "its checksum does not match" });
        }
        let field = ShareError::Damaged { why: "a field is not what it should be" };
        let mut share_value = SecretBytes::zeroed(BACKUP_KEY_BYTES)?;
        let mut id = [0; 16];
        let (Some(index), Some(threshold), Some(total)) = (number(index), number(threshold), number(total))
        else {
            return Err(field);
        };
        let is_possible = (1..=total).contains(&index) && (2..=total).contains(&threshold);
        if !read_digits(backup, &mut id) || !read_digits(value, share_value.expose_mut()) || !is_possible {
            return Err(field);
        }
        let backup = BackupId::from(Uuid::from_bytes(id));
        Ok(Self { backup, index, threshold, total, value: share_value })
    }
}

fn number(digits: &[u8]) -> Option<u8> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes secret bytes as lower-case digits, without a branch or table that depends on them.
fn write_digits(bytes: &[u8], digits: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(digits.as_chunks_mut::<2>().0) {
        *pair = [byte >> 4, byte & 15].map(|nibble| {
            let is_letter = 9_u8.wrapping_sub(nibble) >> 7;
            nibble + b'0' + is_letter * (b'a' - b'9' - 1)
        });
    }
}

/// The inverse, also without such branches. Returns `false` unless the text is exactly lower-case
/// digits of `bytes`' length.
fn read_digits(digits: &[u8], bytes: &mut [u8]) -> bool {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return false;
    }
    let mut wrong = 0_u8;
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let [high, low] = pair.map(|digit| {
            let within = |first: u8, last: u8| {
                let (below, above) =
                    (i16::from(digit) - i16::from(first), i16::from(last) - i16::from(digit));
                (!((below | above) >> 15) & 0xff) as u8
            };
            let (decimal, letter) = (within(b'0', b'9'), within(b'a', b'f'));
            wrong |= !(decimal | letter);
            (digit.wrapping_sub(b'0') & decimal) | (digit.wrapping_sub(b'a' - 10) & letter)
        });
        *byte = high << 4 | low;
    }
    wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_is_written_and_read_and_nothing_else() {
        for byte in 0..=255_u8 {
            let (mut digits, mut read) = ([0; 2], [0; 1]);
            write_digits(&[byte], &mut digits);
            assert_eq!(digits, format!("{byte:02x}").as_bytes());
            assert!(read_digits(&digits, &mut read));
            assert_eq!(read, [byte]);
            let is_digit = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            assert_eq!(read_digits(&[b'0', byte], &mut read), is_digit, "{byte}");
        }
        assert!(!read_digits(b"000", &mut [0]) && !read_digits(b"00", &mut [0; 2]));
    }

    #[test]
    fn a_share_survives_its_text_and_any_other_character_is_noticed() {
        let backup = BackupId::new();
        let key = SecretBytes::random(BACKUP_KEY_BYTES).unwrap();
        let shares = split(&key, backup, 2, 3).unwrap();
        let text = shares[1].encode().unwrap();
        let read = Share::decode(&text).unwrap();
        assert_eq!((read.backup, read.index, read.threshold, read.total), (backup, 2, 2, 3));
        assert_eq!(read.value, shares[1].value);

        let with_spaces = [b"  ", text.expose(), b"\r\n"].concat();
        Share::decode(&SecretBytes::from_slice_and_wipe(&mut with_spaces.clone()).unwrap()).unwrap();
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.duplicate().unwrap();
                changed.expose_mut()[at] ^= 1 << bit;
                Share::decode(&changed).unwrap_err();
            }
            let cut = text.expose()[..at].to_vec();
            Share::decode(&SecretBytes::from_slice_and_wipe(&mut cut.clone()).unwrap()).unwrap_err();
        }
    }
}
