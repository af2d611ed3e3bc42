//! Tracks which blocks of a file are known to be written. The log lets those be overwritten in
//! place, and their syncs need not cover the file system's map.
//!
//! The truth is the file system's map of the layer (`SEEK_DATA`); this is a cache of it, one bit
//! per block, loaded when a block of a chunk is first written. It errs on the safe side: a block
//! that is not known to be written goes through the log, which is always right. So an entry is
//! dropped if a discard may have changed the map while it was read.

use std::ops::Range;

use rustix::io::Errno;
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::file::storage::StoredFile;

/// Blocks of a chunk.
const CHUNK_BLOCKS: u64 = 256;
const CHUNK_BYTES: u64 = CHUNK_BLOCKS * BLOCK_BYTES;
/// The most chunks that are remembered: 16 GiB of volume, in 640 KiB.
const CHUNKS_MAX: u64 = 16 << 10;

/// Blocks of a region, the unit in which space is allocated ahead.
pub(super) const REGION_BLOCKS: u64 = CHUNK_BLOCKS / 8;

/// One bit per block of a chunk.
pub(super) type Written = [u64; 4];

/// The file system's map of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    chunk: u64,
    written: Written,
    /// The following chunks whose blocks are all written too; the same lookup showed this.
    follow: Range<u64>,
}

#[cfg(test)]
impl Loaded {
    pub fn alone(chunk: u64, written: Written) -> Self {
        Self { chunk, written, follow: 0..0 }
    }
}

/// The knowledge about some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// All of them are written.
    Written,
    /// Some are not, as far as is known.
    NotAll,
    /// This chunk must be loaded first.
    Unknown { chunk: u64 },
}

pub(super) struct Known {
    /// The chunk in each place, counted from 1. A chunk's number determines its place, which it
    /// shares with other chunks. Untouched places take no memory.
    chunks: Vec<u64>,
    written: Vec<Written>,
    /// One bit per region: space was allocated for all of it.
    reserved: Vec<u8>,
    /// Counts the changes that made blocks unwritten.
    changes: u64,
}

impl Known {
    pub fn new(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES).clamp(1, CHUNKS_MAX);
        Self {
            chunks: vec![0; chunks as usize],
            written: vec![[0; 4]; chunks as usize],
            reserved: vec![0; chunks as usize],
            changes: 0,
        }
    }

    /// The count to pass to [`Self::insert`], with a map that was read after this call.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn of(&self, blocks: Extent) -> Knowledge {
        let mut all = true;
        for (chunk, bits) in chunks_of(blocks) {
            let Some(place) = self.place(chunk) else { return Knowledge::Unknown { chunk } };
            all &= bits.iter().zip(&self.written[place]).all(|(bits, written)| bits & !written == 0);
        }
        if all { Knowledge::Written } else { Knowledge::NotAll }
    }

    /// Remembers the map of a chunk, unless it may have changed since. The following chunks are
    /// remembered where their places are free.
    pub fn insert(&mut self, loaded: &Loaded, changes: u64) {
        if changes != self.changes {
            return;
        }
        let places = self.chunks.len() as u64;
        let place = (loaded.chunk % places) as usize;
        (self.chunks[place], self.written[place], self.reserved[place]) =
            (loaded.chunk + 1, loaded.written, 0);
        for chunk in loaded.follow.clone().take(self.chunks.len()) {
            let place = (chunk % places) as usize;
            if self.chunks[place] == 0 {
                (self.chunks[place], self.written[place]) = (chunk + 1, [u64::MAX; 4]);
            }
        }
    }

    /// Notes that these blocks have been written in the file system's map.
    pub fn set(&mut self, blocks: Extent) {
        for (chunk, bits) in chunks_of(blocks) {
            if let Some(place) = self.place(chunk) {
                bits.iter().zip(&mut self.written[place]).for_each(|(bits, written)| *written |= bits);
            }
        }
    }

    /// Notes that these blocks are being, or have been, made "nothing here".
    pub fn clear(&mut self, blocks: Extent) {
        self.changes += 1;
        for (chunk, bits) in chunks_of(blocks) {
            if let Some(place) = self.place(chunk) {
                bits.iter().zip(&mut self.written[place]).for_each(|(bits, written)| *written &= !bits);
            }
        }
    }

    /// Whether to allocate space for a region in which `blocks` blocks are about to be written; if
    /// so, it counts as allocated from then on. A lone block is not worth it, but a second one
    /// predicts more.
    pub fn should_reserve(&mut self, region: u64, blocks: u64) -> bool {
        let (chunk, bit) = (region / 8, region % 8);
        let Some(place) = self.place(chunk) else { return blocks > 1 };
        let first = bit * REGION_BLOCKS;
        let written =
            self.written[place][(first / 64) as usize] >> (first % 64) & (u64::MAX >> (64 - REGION_BLOCKS));
        let is_full = written.count_ones() as u64 + blocks >= REGION_BLOCKS && written == 0;
        let is_reserved = self.reserved[place] & 1 << bit != 0;
        let worth_it = !is_reserved && !is_full && (blocks > 1 || written != 0);
        if worth_it {
            self.reserved[place] |= 1 << bit;
        }
        worth_it
    }

    /// The place of a chunk, if it occupies it now.
    fn place(&self, chunk: u64) -> Option<usize> {
        let place = (chunk % self.chunks.len() as u64) as usize;
        (self.chunks[place] == chunk + 1).then_some(place)
    }
}

/// Asks the file system which blocks of a chunk are written. A block that is only partly data does
/// not count.
///
/// The answer is where the data ends, however far away; on tmpfs, which examines every page up to
/// there, it can take a millisecond. So all of the answer is kept.
pub(super) fn load(file: &dyn StoredFile, chunk: u64) -> Result<Loaded, Errno> {
    let start = chunk * CHUNK_BYTES;
    let end = start + CHUNK_BYTES;
    let mut written = [0; 4];
    let mut follow = chunk + 1..chunk + 1;
    let mut at = start;
    while at < end {
        let data = match file.next_data(at) {
            Ok(data) if data < end => data,
            // No data from here on.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let hole = file.next_hole(data)?;
        follow.end = follow.end.max(hole / CHUNK_BYTES);
        let hole = hole.clamp(data + 1, end);
        let whole = Extent::between(data, hole).narrowed_to(BLOCK_BYTES);
        for (_, bits) in chunks_of(whole) {
            bits.iter().zip(&mut written).for_each(|(bits, written)| *written |= bits);
        }
        at = hole;
    }
    Ok(Loaded { chunk, written, follow })
}

/// The chunks of an extent of whole blocks, and its bits in each.
fn chunks_of(blocks: Extent) -> impl Iterator<Item = (u64, Written)> {
    debug_assert!(blocks.is_aligned_to(BLOCK_BYTES));
    let (first, end) = (blocks.offset() / BLOCK_BYTES, blocks.end() / BLOCK_BYTES);
    let chunks = if first == end { 0..0 } else { first / CHUNK_BLOCKS..(end - 1) / CHUNK_BLOCKS + 1 };
    chunks.map(move |chunk| {
        let base = chunk * CHUNK_BLOCKS;
        let (from, to) = (first.max(base) - base, end.min(base + CHUNK_BLOCKS) - base);
        let mut bits = [0; 4];
        for (word, bits) in bits.iter_mut().enumerate() {
            let start = word as u64 * 64;
            let (from, to) = (from.clamp(start, start + 64) - start, to.clamp(start, start + 64) - start);
            if from < to {
                *bits = u64::MAX >> (64 - (to - from)) << from;
            }
        }
        (chunk, bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(first: u64, count: u64) -> Extent {
        Extent::between(first * BLOCK_BYTES, (first + count) * BLOCK_BYTES)
    }

    #[test]
    fn what_was_set_is_known_until_it_is_cleared() {
        let mut known = Known::new(1 << 30);
        assert_eq!(known.of(blocks(300, 1)), Knowledge::Unknown { chunk: 1 });
        for chunk in 0..3 {
            known.insert(&Loaded::alone(chunk, [0; 4]), known.changes());
        }
        for (first, count) in [(0, 1), (63, 2), (200, 200), (511, 2), (255, 258)] {
            assert_eq!(known.of(blocks(first, count)), Knowledge::NotAll);
            known.set(blocks(first, count));
            assert_eq!(known.of(blocks(first, count)), Knowledge::Written);
            assert_eq!(known.of(blocks(first, count + 1)), Knowledge::NotAll, "{first} {count}");
            known.clear(blocks(first + count - 1, 1));
            assert_eq!(known.of(blocks(first, count)), Knowledge::NotAll);
            known.clear(blocks(0, 700));
        }
        assert_eq!(known.of(blocks(700, 100)), Knowledge::Unknown { chunk: 3 });
    }

    #[test]
    fn a_map_that_was_read_while_it_changed_is_not_believed() {
        let mut known = Known::new(1 << 30);
        let changes = known.changes();
        known.clear(blocks(5000, 1));
        known.insert(&Loaded::alone(0, [u64::MAX; 4]), changes);
        assert_eq!(known.of(blocks(0, 1)), Knowledge::Unknown { chunk: 0 });
        known.insert(&Loaded::alone(0, [u64::MAX; 4]), known.changes());
        assert_eq!(known.of(blocks(0, 256)), Knowledge::Written);
    }

    #[test]
    fn chunks_share_places_and_are_not_mistaken() {
        let mut known = Known::new(1 << 46);
        let other = CHUNKS_MAX;
        known.insert(&Loaded::alone(0, [u64::MAX; 4]), 0);
        known.insert(&Loaded::alone(other, [0; 4]), 0);
        assert_eq!(known.of(blocks(0, 1)), Knowledge::Unknown { chunk: 0 });
        known.set(blocks(0, 1));
        assert_eq!(known.of(blocks(other * CHUNK_BLOCKS, 1)), Knowledge::NotAll);
    }

    #[test]
    fn the_file_systems_map_is_read() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let stored = crate::file::host::HostFile(file);
        stored.set_length(4 << 20).unwrap();
        for first in [0_u64, 3, 255, 300] {
            stored.write_at(first * BLOCK_BYTES, &[1; BLOCK_BYTES as usize]).unwrap();
        }
        let written = |chunk| load(&stored, chunk).unwrap().written;
        assert_eq!(written(0), [0b1001, 0, 0, 1 << 63]);
        assert_eq!(written(1), [1 << 44, 0, 0, 0]);
        assert_eq!(written(2), [0; 4]);
        assert_eq!(written(200), [0; 4], "beyond the end");
    }

    #[test]
    fn one_look_at_what_was_filled_tells_of_all_of_it() {
        const CHUNKS: u64 = 8;
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let stored = crate::file::host::HostFile(file);
        stored.set_length(CHUNKS * CHUNK_BYTES).unwrap();
        // From the middle of the second to the middle of the seventh.
        let half = CHUNK_BYTES / 2;
        stored.write_at(CHUNK_BYTES + half, &vec![1; 5 * CHUNK_BYTES as usize]).unwrap();
        let mut known = Known::new(CHUNKS * CHUNK_BYTES);
        known.insert(&Loaded::alone(3, [0; 4]), 0);
        known.insert(&load(&stored, 1).unwrap(), 0);
        let middle = CHUNK_BLOCKS / 2;
        assert_eq!(known.of(blocks(CHUNK_BLOCKS + middle, middle + CHUNK_BLOCKS)), Knowledge::Written);
        assert_eq!(known.of(blocks(CHUNK_BLOCKS, CHUNK_BLOCKS)), Knowledge::NotAll);
        assert_eq!(known.of(blocks(3 * CHUNK_BLOCKS, 1)), Knowledge::NotAll, "was known better");
        assert_eq!(known.of(blocks(4 * CHUNK_BLOCKS, 2 * CHUNK_BLOCKS)), Knowledge::Written);
        assert_eq!(known.of(blocks(6 * CHUNK_BLOCKS, 1)), Knowledge::Unknown { chunk: 6 });
        // A map that was read before a discard is not used, nor are the chunks that follow it.
        let mut known = Known::new(CHUNKS * CHUNK_BYTES);
        let (before, loaded) = (known.changes(), load(&stored, 2).unwrap());
        known.clear(blocks(4 * CHUNK_BLOCKS, 1));
        known.insert(&loaded, before);
        assert_eq!(known.of(blocks(5 * CHUNK_BLOCKS, 1)), Knowledge::Unknown { chunk: 5 });
    }
}
