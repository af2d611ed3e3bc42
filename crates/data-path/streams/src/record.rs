//! One record: its head in plaintext (as content of the volume), and its sealed content.

use strongroom_crypto::aead::{NONCE_BYTES, TAG_BYTES};
use strongroom_crypto::bulk::{BulkKey, Seal};
use zeroize::Zeroize;

use crate::error::StreamError;

/// Bytes of a record's head.
pub const HEAD_BYTES: usize = 64;
/// Records are written in whole multiples of this, in bytes: a volume's block.
const BLOCK_BYTES: usize = 4096;

/// The flag of a stream's last record.
pub const FINAL: u32 = 1;
/// The flag of a log's tail: the output since the last whole record, which is replaced when there
/// is more.
pub const TAIL: u32 = 2;

/// The identity of a record, bound into its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The record's number, from 0.
    pub number: u64,
    /// [`FINAL`] or [`TAIL`].
    pub flags: u32,
    /// The count of writes of a tail; the tail with the higher step is valid.
    pub step: u64,
}

/// The most content of a record, in bytes.
pub fn content_bytes_max(slot_bytes: u32) -> usize {
    slot_bytes as usize - HEAD_BYTES
}

/// Seals the content that follows the head in `slot`, and returns the part of the slot that must be
/// written: whole blocks.
pub fn seal<'a>(
    key: &BulkKey,
    place: Place,
    slot: &'a mut [u8],
    length_bytes: usize,
) -> Result<&'a [u8], StreamError> {
    let end = HEAD_BYTES + length_bytes;
    let written = end.next_multiple_of(BLOCK_BYTES).min(slot.len());
    slot[end..written].zeroize();
    let length = length_bytes as u32;
    let seal = key.seal(&associated_data(place, length), &mut slot[HEAD_BYTES..end])?;
    slot[..HEAD_BYTES].fill(0);
    slot[0..8].copy_from_slice(&place.number.to_le_bytes());
    slot[8..12].copy_from_slice(&length.to_le_bytes());
    slot[12..16].copy_from_slice(&place.flags.to_le_bytes());
    slot[16..16 + NONCE_BYTES].copy_from_slice(&seal.nonce);
    slot[32..32 + TAG_BYTES].copy_from_slice(&seal.tag);
    slot[48..56].copy_from_slice(&place.step.to_le_bytes());
    Ok(&slot[..written])
}

/// The content of a slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A record that verifies; its decrypted content is `slot[HEAD_BYTES..][..length_bytes]`.
    Record {
        /// Its identity.
        place: Place,
        /// The length of its content.
        length_bytes: usize,
    },
    /// Zeroes in place of a head.
    Nothing,
    /// Neither of these.
    Damaged,
}

/// Opens the record in `slot`. If it does not verify, the slot is wiped.
pub fn open(key: &BulkKey, slot: &mut [u8]) -> Found {
    let found = try_open(key, slot);
    if !matches!(found, Found::Record { .. }) {
        slot.zeroize();
    }
    found
}

fn try_open(key: &BulkKey, slot: &mut [u8]) -> Found {
    if slot[..HEAD_BYTES].iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let place = Place { number: word(slot, 0), flags: half_word(slot, 12), step: word(slot, 48) };
    let length = half_word(slot, 8);
    let Some(end) = HEAD_BYTES.checked_add(length as usize).filter(|end| *end <= slot.len()) else {
        return Found::Damaged;
    };
    let mut seal = Seal { nonce: [0; NONCE_BYTES], tag: [0; TAG_BYTES] };
    seal.nonce.copy_from_slice(&slot[16..16 + NONCE_BYTES]);
    seal.tag.copy_from_slice(&slot[32..32 + TAG_BYTES]);
    let padding = end..end.next_multiple_of(BLOCK_BYTES).min(slot.len());
    let zeroes = [16 + NONCE_BYTES..32, 56..HEAD_BYTES, padding];
    let as_written = zeroes.into_iter().all(|zeroes| slot[zeroes].iter().all(|byte| *byte == 0));
    let opened = key.open(&associated_data(place, length), &mut slot[HEAD_BYTES..end], &seal);
    match as_written && opened.is_ok() {
        true => Found::Record { place, length_bytes: length as usize },
        false => Found::Damaged,
    }
}

fn associated_data(place: Place, length: u32) -> [u8; 44] {
    let mut data = [0; 44];
    data[..20].copy_from_slice(b"strongroom record v1");
    data[20..28].copy_from_slice(&place.number.to_le_bytes());
    data[28..32].copy_from_slice(&length.to_le_bytes());
    data[32..36].copy_from_slice(&place.flags.to_le_bytes());
    data[36..44].copy_from_slice(&place.step.to_le_bytes());
    data
}

fn word(slot: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&slot[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn half_word(slot: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&slot[at..at + 4]);
    u32::from_le_bytes(bytes)
}
