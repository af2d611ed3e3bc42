//! The bytes of a first-write log.
//!
//! ```text
//! offset         bytes          content
//!      0          4096          superblock, where its generation is even
//!   4096          4096          superblock, where its generation is odd
//!   8192  16 x segment          segments, used in turn; records lie in them one after the other, none across a border
//! ```
//!
//! Everything is little-endian, and every part lies on a 4096-byte boundary. Checks are XXH3-64:
//! they tell a torn write from a whole one, and no more. An attacker who can write to the datastore
//! can forge them, as he can overwrite any block.
//!
//! Superblock:
//! ```text
//!      0     8  "STRLOG01"
//!      8    16  layer
//!     24    16  id of the log, random: what an earlier log left in the same place is not taken for this one's
//!     40     8  generation, counts superblocks
//!     48     8  tail: records with a lower sequence number are not needed any more
//!     56     8  next: where this is not 0, the log was closed empty, and the next record gets this sequence number
//!   4088     8  check of bytes 0 .. 4088
//! ```
//!
//! Record: a header of 4096 bytes, then one block for each of its entries with content:
//! ```text
//!      0     8  "STRLOGRE"
//!      8    16  id of the log
//!     24     8  sequence number
//!     32     4  count of entries, 1 to 252
//!     40   16n  entries: first block (8), and
//!                 - check of the block's ciphertext (8), seeded with sequence number and block: its bytes follow
//!                 - count of blocks (8), where the top bit of the first block is set: they are "nothing here" from now on
//!   4088     8  check of bytes 0 .. 4088
//! ```

use strongroom_types::{BLOCK_BYTES, LayerId, STORED_COUNT_MAX};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A block as an index into buffers.
pub(super) const BLOCK: usize = BLOCK_BYTES as usize;

/// Segments of a log. Space is freed by the segment; sixteen of them make that smooth.
pub(super) const SEGMENTS: usize = 16;
/// Where the segments begin.
pub(super) const SEGMENTS_START: u64 = 2 * BLOCK_BYTES;
/// The smallest log, without its superblocks: segments of four blocks.
pub const LOG_BYTES_MIN: u64 = SEGMENTS as u64 * 4 * BLOCK_BYTES;
/// The largest log, without its superblocks: a destage holds one segment, here 4 MiB, in memory.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Sizes of logs are multiples of this.
pub const LOG_BYTES_STEP: u64 = SEGMENTS as u64 * BLOCK_BYTES;
/// The most entries of a record: a header has no room for more.
pub(super) const ENTRIES_MAX: usize = 252;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"STRLOG01";
const RECORD_MAGIC: &[u8; 8] = b"STRLOGRE";
const ENTRIES_START: usize = 40;
const ENTRY_BYTES: usize = 16;
const CHECK_START: usize = BLOCK - 8;
/// Marks an entry without content.
const NOTHING: u64 = 1 << 63;

/// The random name of a log.
pub(super) type LogId = [u8; 16];

/// The superblock of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub layer: LayerId,
    pub log: LogId,
    pub generation: u64,
    pub tail: u64,
    /// The next sequence number of a log that was closed empty.
    pub next: Option<u64>,
}

/// An entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum LogEntry {
    /// The block's content follows; `check` is its check.
    Data { block: u64, check: u64 },
    /// These blocks are "nothing here".
    Nothing { first: u64, count: u64 },
}

impl Superblock {
    /// The offset at which it is written: never over the newest one.
    pub fn offset(&self) -> u64 {
        self.generation % 2 * BLOCK_BYTES
    }

    /// Encodes it into a block.
    pub fn encode(&self, into: &mut [u8]) {
        into.fill(0);
        into[..8].copy_from_slice(SUPERBLOCK_MAGIC);
        into[8..24].copy_from_slice(self.layer.as_bytes());
        into[24..40].copy_from_slice(&self.log);
        put(into, 40, self.generation);
        put(into, 48, self.tail);
        put(into, 56, self.next.unwrap_or(0));
        seal(into);
    }

    /// Decodes a block, if it is a whole superblock.
    pub fn decode(block: &[u8]) -> Option<Self> {
        if block.get(..8)? != SUPERBLOCK_MAGIC || !is_sealed(block) {
            return None;
        }
        let layer = LayerId::from_bytes(block[8..24].try_into().ok()?);
        let next = get(block, 56);
        if [get(block, 40), get(block, 48), next].iter().any(|count| *count > STORED_COUNT_MAX) {
            return None;
        }
        Some(Self {
            layer,
            log: block[24..40].try_into().ok()?,
            generation: get(block, 40),
            tail: get(block, 48),
            next: (next != 0).then_some(next),
        })
    }
}

/// Encodes the header of a record into a block.
pub(super) fn encode_record(into: &mut [u8], log: &LogId, sequence: u64, entries: &[LogEntry]) {
    debug_assert!((1..=ENTRIES_MAX).contains(&entries.len()));
    into.fill(0);
    into[..8].copy_from_slice(RECORD_MAGIC);
    into[8..24].copy_from_slice(log);
    put(into, 24, sequence);
    put(into, 32, entries.len() as u64);
    for (entry, at) in entries.iter().zip((ENTRIES_START..).step_by(ENTRY_BYTES)) {
        let (first, second) = match *entry {
            LogEntry::Data { block, check } => (block, check),
            LogEntry::Nothing { first, count } => (first | NOTHING, count),
        };
        put(into, at, first);
        put(into, at + 8, second);
    }
    seal(into);
}

/// Decodes the sequence number and entries of a record, if the block is a whole record header of
/// this log.
pub(super) fn decode_record(block: &[u8], log: &LogId) -> Option<(u64, Vec<LogEntry>)> {
    if block.get(..8)? != RECORD_MAGIC || block[8..24] != *log || !is_sealed(block) {
        return None;
    }
    let count = usize::try_from(get(block, 32)).ok().filter(|count| (1..=ENTRIES_MAX).contains(count))?;
    let entries = (ENTRIES_START..).step_by(ENTRY_BYTES).take(count).map(|at| {
        let (first, second) = (get(block, at), get(block, at + 8));
        match first & NOTHING {
            0 => LogEntry::Data { block: first, check: second },
            _ => LogEntry::Nothing { first: first & !NOTHING, count: second },
        }
    });
    Some((get(block, 24), entries.collect()))
}

/// The check of a block's content. It is different in every record and for every block.
pub(super) fn content_check(content: &[u8], sequence: u64, block: u64) -> u64 {
    // An odd constant spreads the sequence number, so that no two pairs in use share a seed.
    xxh3_64_with_seed(content, sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ block)
}

fn seal(block: &mut [u8]) {
    let check = xxh3_64_with_seed(&block[..CHECK_START], 0);
    put(block, CHECK_START, check);
}

fn is_sealed(block: &[u8]) -> bool {
    block.len() == BLOCK && get(block, CHECK_START) == xxh3_64_with_seed(&block[..CHECK_START], 0)
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(block: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&block[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_torn_is_not() {
        let superblock =
            Superblock { layer: LayerId::random(), log: [7; 16], generation: 3, tail: 9, next: Some(12) };
        let mut block = vec![0xFF; BLOCK];
        superblock.encode(&mut block);
        assert_eq!(superblock.offset(), BLOCK_BYTES);
        assert_eq!(Superblock::decode(&block), Some(superblock.clone()));
        let mut other = vec![0; BLOCK];
        Superblock { generation: 5, tail: 10, ..superblock }.encode(&mut other);
        // The first sector of one and the rest of the other.
        other[512..].copy_from_slice(&block[512..]);
        assert_eq!(Superblock::decode(&other), None);

        let entries: Vec<LogEntry> = (0..ENTRIES_MAX as u64)
            .map(|at| match at % 3 {
                0 => LogEntry::Nothing { first: at, count: 1 << 30 },
                _ => LogEntry::Data { block: at << 40, check: at.wrapping_mul(0xABCD_EF01_2345) },
            })
            .collect();
        encode_record(&mut block, &[7; 16], 77, &entries);
        assert_eq!(decode_record(&block, &[7; 16]), Some((77, entries)));
        assert_eq!(decode_record(&block, &[8; 16]), None, "another log's");
        for at in [0, 30, 33, 40, 2000, BLOCK - 1] {
            block[at] ^= 1;
            assert_eq!(decode_record(&block, &[7; 16]), None, "byte {at}");
            block[at] ^= 1;
        }
        assert_eq!(decode_record(&block[..512], &[7; 16]), None);
        assert_eq!(decode_record(&[], &[7; 16]), None);
    }

    #[test]
    fn the_check_of_a_block_is_its_records_own() {
        let content = [1; BLOCK];
        let check = content_check(&content, 5, 6);
        assert_ne!(check, content_check(&content, 6, 6));
        assert_ne!(check, content_check(&content, 5, 7));
        assert_ne!(check, content_check(&[2; BLOCK], 5, 6));
    }
}
