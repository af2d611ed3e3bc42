//! The first block of a stream: its identity and its secret.

use std::fmt;

use strongroom_crypto::bulk::BulkKey;
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_crypto::{aead, mac};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeId;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::error::StreamError;
use crate::medium::Medium;

/// Bytes of the first block.
pub const HEADER_BYTES: usize = 4096;
/// The smallest slot of a record, in bytes: a block of a volume.
pub const SLOT_BYTES_MIN: u32 = 4096;
/// The largest slot of a record, in bytes. It limits the memory that a reader allocates.
pub const SLOT_BYTES_MAX: u32 = 1 << 20;

const MAGIC: &[u8; 8] = b"STRSTRM1";
const VERSION: u32 = 1;
const SECRET_BYTES: usize = 32;
/// Bytes of the fields that identify the stream; all of them are bound into the key.
const FIELDS_BYTES: usize = 64;
const SECRET_AT: std::ops::Range<usize> = FIELDS_BYTES..FIELDS_BYTES + SECRET_BYTES;
const MAC_AT: usize = HEADER_BYTES - mac::DIGEST_BYTES;

/// The kind of content in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The memory and device state of a suspended VM.
    Memory,
    /// A guest's memory as a core file, for debuggers.
    Dump,
    /// A guest's console output.
    Console,
}

impl StreamKind {
    fn number(self) -> u32 {
        match self {
            Self::Memory => 1,
            Self::Dump => 2,
            Self::Console => 3,
        }
    }

    fn of(number: u32) -> Option<Self> {
        [Self::Memory, Self::Dump, Self::Console].into_iter().find(|kind| kind.number() == number)
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "a suspended memory",
            Self::Dump => "a guest's dump",
            Self::Console => "a console's log",
        })
    }
}

/// How a stream's volume is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a record's slot.
    pub slot_bytes: u32,
    /// The count of records in a log's ring; 0 for a stream with an end.
    pub ring_slots: u32,
}

/// A stream's identity, with the key of its records.
#[derive(Debug)]
pub struct Header {
    pub slot_bytes: u32,
    /// The count of records in a log's ring; 0 for a stream with an end.
    pub ring_slots: u32,
    pub key: BulkKey,
}

impl Header {
    /// Makes a new stream with its own secret, and writes its first block.
    pub fn write(
        medium: &mut impl Medium,
        kind: StreamKind,
        volume: VolumeId,
        shape: Shape,
    ) -> Result<Self, StreamError> {
        let Shape { slot_bytes, ring_slots } = shape;
        check_slot_bytes(slot_bytes)?;
        let mut block = Zeroizing::new([0; HEADER_BYTES]);
        block[0..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&kind.number().to_le_bytes());
        block[16..32].copy_from_slice(Uuid::new_v4().as_bytes());
        block[32..48].copy_from_slice(volume.as_bytes());
        block[48..52].copy_from_slice(&slot_bytes.to_le_bytes());
        block[52..56].copy_from_slice(&ring_slots.to_le_bytes());
        let secret = SecretBytes::random(SECRET_BYTES).map_err(strongroom_crypto::CryptoError::from)?;
        block[SECRET_AT].copy_from_slice(secret.expose());
        let tag = mac::hmac_sha256(&header_key(&secret, &block)?, &block[..MAC_AT])?;
        block[MAC_AT..].copy_from_slice(&tag);
        medium.write_at(0, &*block)?;
        Ok(Self { slot_bytes, ring_slots, key: record_key(&secret, &block)? })
    }

    /// Reads the first block of a stream of this kind, in this volume.
    pub fn read(medium: &mut impl Medium, kind: StreamKind, volume: VolumeId) -> Result<Self, StreamError> {
        let mut block = Zeroizing::new([0; HEADER_BYTES]);
        if medium.size_bytes() < HEADER_BYTES as u64 {
            return Err(StreamError::NoStream);
        }
        medium.read_at(0, &mut *block)?;
        Self::parse(&mut block, kind, volume)
    }

    fn parse(
        block: &mut [u8; HEADER_BYTES],
        kind: StreamKind,
        volume: VolumeId,
    ) -> Result<Self, StreamError> {
        if block.iter().all(|byte| *byte == 0) {
            return Err(StreamError::NotThere);
        }
        if &block[..8] != MAGIC {
            return Err(StreamError::NoStream);
        }
        // Check this before parsing the rest: a later format may have its secret elsewhere.
        let version = number(block, 8);
        if version > VERSION {
            return Err(StreamError::Newer { found: version, known: VERSION });
        }
        let secret = SecretBytes::from_slice_and_wipe(&mut block[SECRET_AT].to_vec())
            .map_err(strongroom_crypto::CryptoError::from)?;
        let key = header_key(&secret, block)?;
        mac::verify_hmac_sha256(&key, &block[..MAC_AT], &block[MAC_AT..])
            .map_err(|_| StreamError::HeaderDamaged)?;
        let found = StreamKind::of(number(block, 12)).ok_or(StreamError::HeaderDamaged)?;
        if found != kind {
            return Err(StreamError::AnotherKind { found, wanted: kind });
        }
        if block[32..48] != volume.as_bytes()[..] {
            return Err(StreamError::AnotherVolume);
        }
        let (slot_bytes, ring_slots) = (number(block, 48), number(block, 52));
        check_slot_bytes(slot_bytes)?;
        Ok(Self { slot_bytes, ring_slots, key: record_key(&secret, block)? })
    }
}

fn number(block: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&block[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn check_slot_bytes(slot_bytes: u32) -> Result<(), StreamError> {
    let possible = (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes) && slot_bytes.is_power_of_two();
    let (least, most) = (SLOT_BYTES_MIN.into(), SLOT_BYTES_MAX.into());
    let what = "a power of two for the bytes of a record";
    possible.then_some(()).ok_or(StreamError::Limit { what, actual: slot_bytes.into(), least, most })
}

fn header_key(secret: &SecretBytes, block: &[u8; HEADER_BYTES]) -> Result<SecretBytes, StreamError> {
    Ok(hkdf_sha256(secret, &block[16..32], b"strongroom stream header v1", aead::KEY_BYTES)?)
}

/// Derives the key of the records. It is bound to all fields of the first block, so that no record
/// verifies if one of them changes.
fn record_key(secret: &SecretBytes, block: &[u8; HEADER_BYTES]) -> Result<BulkKey, StreamError> {
    let info = [b"strongroom stream records v1", &block[..FIELDS_BYTES]].concat();
    Ok(BulkKey::new(&hkdf_sha256(secret, &block[16..32], &info, aead::KEY_BYTES)?)?)
}
