//! The index of a log, which a process hands over with the log's open file: the blocks that the log
//! holds, and where. Its successor would otherwise read the whole log while clients wait.
//!
//! ```text
//! memfd, of little-endian numbers of 8 bytes:
//!   magic; the log's superblock, as on the disk (4096 bytes); next sequence number;
//!   count of segments in use, oldest first: number, first sequence number, blocks that are used;
//!   count of blocks, ascending: block, version, segment << 32 | block of the segment + 1, or 0 there
//!       if the block is "nothing here"
//! ```
//!
//! It never reaches a disk. It comes from a process that may have been taken over by its guest, and
//! that could have written anything to the log, so it is only checked against the limits of the log
//! and the volume. If it does not fit, the log is read.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use strongroom_types::{BLOCK_BYTES, VolumeSize};

use super::format::{BLOCK, LOG_BYTES_MAX, SEGMENTS, Superblock};
use super::state::{HeldBlock, UsedSegment};

const MAGIC: u64 = u64::from_le_bytes(*b"STRLOGIX");
const WORD: usize = 8;
const SUPERBLOCK_WORDS: usize = BLOCK / WORD;
const HEADER_WORDS: usize = 3 + SUPERBLOCK_WORDS;
const SEGMENT_WORDS: usize = 3;
const BLOCK_WORDS: usize = 3;

/// The most blocks of an index. Blocks that are "nothing here" need no space in the log, so an
/// index could be longer than its log; then the log is read instead.
const BLOCKS_MAX: usize = 2 * (LOG_BYTES_MAX / BLOCK_BYTES) as usize;

const BYTES_MAX: usize = WORD * (HEADER_WORDS + 1 + SEGMENTS * SEGMENT_WORDS + BLOCKS_MAX * BLOCK_WORDS);

/// The blocks that a log holds, and the segments that hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Index {
    pub superblock: Superblock,
    pub next_sequence: u64,
    /// The segments in use, oldest first.
    pub segments: Vec<UsedSegment>,
    /// The blocks, ascending.
    pub blocks: Vec<HeldBlock>,
}

impl Index {
    /// Writes it to a file in memory. `None` if it is too long.
    pub fn to_file(&self) -> Result<Option<OwnedFd>, Errno> {
        if self.blocks.len() > BLOCKS_MAX {
            return Ok(None);
        }
        let mut superblock = [0; BLOCK];
        self.superblock.encode(&mut superblock);
        let mut words =
            Vec::with_capacity(WORD * (HEADER_WORDS + BLOCK_WORDS * (self.blocks.len() + SEGMENTS)));
        words.extend_from_slice(&MAGIC.to_le_bytes());
        words.extend_from_slice(&superblock);
        let mut put = |word: u64| words.extend_from_slice(&word.to_le_bytes());
        put(self.next_sequence);
        put(self.segments.len() as u64);
        for UsedSegment { number, first, used_blocks } in &self.segments {
            [*number as u64, *first, u64::from(*used_blocks)].into_iter().for_each(&mut put);
        }
        put(self.blocks.len() as u64);
        for HeldBlock { block, version, segment, at } in &self.blocks {
            let place = (*segment as u64) << 32 | at.map_or(0, |at| u64::from(at) + 1);
            [*block, *version, place].into_iter().for_each(&mut put);
        }
        let mut file = File::from(memfd_create("log-index", MemfdFlags::CLOEXEC)?);
        file.write_all(&words).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Some(file.into()))
    }

    /// Reads the index of a log of segments of so many blocks. `None` if it contradicts the limits.
    pub fn of_file(file: &OwnedFd, segment_blocks: u32, size: VolumeSize) -> Option<Self> {
        let bytes = read(file)?;
        let superblock = Superblock::decode(bytes.get(WORD..WORD + BLOCK)?)?;
        let (words, rest) = bytes.as_chunks::<WORD>();
        if !rest.is_empty() || superblock.next.is_some() {
            return None;
        }
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        if words.next()? != MAGIC {
            return None;
        }
        let mut words = words.skip(SUPERBLOCK_WORDS);
        let mut next = || words.next();
        let next_sequence = next()?;
        let mut segments: Vec<UsedSegment> = Vec::new();
        for _ in 0..next().filter(|count| *count <= SEGMENTS as u64)? {
            let (number, first, used_blocks) = (next()?, next()?, next()?);
            let number = usize::try_from(number).ok().filter(|number| *number < SEGMENTS)?;
            let used_blocks = u32::try_from(used_blocks).ok().filter(|used| *used <= segment_blocks)?;
            let least = segments.last().map_or(superblock.tail, |last| last.first + 1);
            if !(least..next_sequence).contains(&first) || segments.iter().any(|one| one.number == number) {
                return None;
            }
            segments.push(UsedSegment { number, first, used_blocks });
        }
        let volume_blocks = size.block_aligned_bytes() / BLOCK_BYTES;
        let mut blocks: Vec<HeldBlock> = Vec::new();
        for _ in 0..next().filter(|count| *count <= BLOCKS_MAX as u64)? {
            let (block, version, place) = (next()?, next()?, next()?);
            let segment = (place >> 32) as usize;
            let at = (place as u32).checked_sub(1);
            let held = segments.iter().find(|one| one.number == segment)?;
            let is_ascending = blocks.last().is_none_or(|last| last.block < block);
            let is_in_segment = at.is_none_or(|at| at < held.used_blocks);
            let is_of_segment = version >> 8 >= held.first && version >> 8 < next_sequence;
            if !is_ascending || block >= volume_blocks || !is_in_segment || !is_of_segment {
                return None;
            }
            blocks.push(HeldBlock { block, version, segment, at });
        }
        next().is_none().then_some(Self { superblock, next_sequence, segments, blocks })
    }
}

/// The content of a file in memory that is not longer than an index can be.
fn read(file: &OwnedFd) -> Option<Vec<u8>> {
    let file = File::from(file.try_clone().ok()?);
    let length = usize::try_from(file.metadata().ok()?.len()).ok().filter(|length| *length <= BYTES_MAX)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use strongroom_types::LayerId;

    use super::*;

    const SEGMENT_BLOCKS: u32 = 8;

    fn size() -> VolumeSize {
        VolumeSize::new(1 << 20).unwrap()
    }

    fn index() -> Index {
        let held = |block, version, segment, at| HeldBlock { block, version, segment, at };
        Index {
            superblock: Superblock {
                layer: LayerId::random(),
                log: [7; 16],
                generation: 3,
                tail: 9,
                next: None,
            },
            next_sequence: 14,
            segments: vec![
                UsedSegment { number: 15, first: 9, used_blocks: 8 },
                UsedSegment { number: 0, first: 12, used_blocks: 3 },
            ],
            blocks: vec![
                held(0, 9 << 8, 15, Some(1)),
                held(7, 13 << 8 | 4, 0, None),
                held(255, 12 << 8, 0, Some(2)),
            ],
        }
    }

    fn words(file: &OwnedFd) -> Vec<u64> {
        read(file).unwrap().as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    fn read_back(words: &[u64]) -> Option<Index> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Index::of_file(&file.into(), SEGMENT_BLOCKS, size())
    }

    #[test]
    fn an_index_is_read_as_it_was_written_and_only_for_its_volume() {
        let index = index();
        let file = index.to_file().unwrap().unwrap();
        assert_eq!(Index::of_file(&file, SEGMENT_BLOCKS, size()).as_ref(), Some(&index));
        let small = VolumeSize::new(255 * BLOCK_BYTES).unwrap();
        assert_eq!(Index::of_file(&file, SEGMENT_BLOCKS, small), None);
        assert_eq!(Index::of_file(&file, SEGMENT_BLOCKS - 1, size()), None);
        let closed = Superblock { next: Some(14), ..index.superblock.clone() };
        let file = Index { superblock: closed, ..index }.to_file().unwrap().unwrap();
        assert_eq!(Index::of_file(&file, SEGMENT_BLOCKS, size()), None, "of a log that was closed empty");
    }

    #[test]
    fn an_index_that_a_hostile_process_wrote_leads_nowhere_outside_the_log() {
        let index = index();
        let whole = words(&index.to_file().unwrap().unwrap());
        assert_eq!(read_back(&whole), Some(index));
        for length in 0..whole.len() {
            assert_eq!(read_back(&whole[..length]), None, "{length} words");
        }
        assert_eq!(read_back(&[&whole[..], &[0]].concat()), None, "a word too many");
        for at in 0..whole.len() {
            let values = [0, 1, 8, 9, 1 << 31, 1 << 32, 16 << 32, u64::MAX, whole[at] ^ 1, whole[at] << 1];
            for value in values.into_iter().filter(|value| *value != whole[at]) {
                let mut changed = whole.clone();
                changed[at] = value;
                // What is taken leads to blocks of segments in use, and of the volume.
                let Some(taken) = read_back(&changed) else { continue };
                assert!(at > SUPERBLOCK_WORDS, "word {at} with {value} is taken");
                assert!(taken.segments.iter().all(|one| one.first >= 9 && one.used_blocks <= SEGMENT_BLOCKS));
                for held in &taken.blocks {
                    let segment = taken.segments.iter().find(|one| one.number == held.segment).unwrap();
                    assert!(held.at.is_none_or(|at| at < segment.used_blocks) && held.block < 256);
                    assert!((segment.first..taken.next_sequence).contains(&(held.version >> 8)));
                }
            }
        }
    }
}
