//! The progress of a read down the chain.

use strongroom_io::{IoError, TRANSFER_BYTES_MAX};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::file::discards::Discards;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The blocks of the longest transfer.
const BLOCKS_MAX: usize = TRANSFER_BYTES_MAX as usize / BLOCK + 2;

/// The part of a layer that a read is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// From the first block that is wanted to the last one: blocks between them are read in vain.
    Span,
    /// Only blocks that are wanted, one run after the other.
    Runs,
}

/// The blocks of a read that must be looked for in the next layer.
#[derive(Clone, Copy, Debug, Default)]
struct Open([u64; BLOCKS_MAX.div_ceil(64)]);

impl Open {
    fn all(blocks: usize) -> Self {
        let mut open = Self::default();
        (0..blocks).for_each(|block| open.0[block / 64] |= 1 << (block % 64));
        open
    }

    fn has(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }

    fn close(&mut self, block: usize) {
        self.0[block / 64] &= !(1 << (block % 64));
    }

    /// The first run of open blocks from `start` on.
    fn run_from(&self, start: usize, end: usize) -> Option<std::ops::Range<usize>> {
        let first = (start..end).find(|block| self.has(*block))?;
        let end = (first..end).find(|block| !self.has(*block)).unwrap_or(end);
        Some(first..end)
    }

    fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    fn last(&self) -> Option<usize> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word * 64 + 63 - self.0[word].leading_zeros() as usize)
    }
}

/// A read on its way.
pub(super) struct Read {
    pub tag: u64,
    extent: Extent,
    /// The memory that is read into, unless a layer has it just now.
    pub into: Option<Buffer>,
    open: Open,
    /// Blocks of the extent that the layer at `level` is asked for.
    asked: std::ops::Range<usize>,
    /// The layer that is read; the top is 0.
    pub level: usize,
}

/// What a read needs next.
pub(super) enum Next {
    /// Read this part of the layer at its level, into the whole of the read's own memory.
    Whole(Extent),
    /// Read this part of the layer, into separate memory.
    Part(Extent),
    Ended,
}

impl Read {
    /// A read that starts at the top, which has its memory.
    pub fn new(tag: u64, extent: Extent) -> Self {
        let blocks = (extent.length() / BLOCK_BYTES) as usize;
        Self { tag, extent, into: None, open: Open::all(blocks), asked: 0..blocks, level: 0 }
    }

    /// Takes the blocks that a layer has, and settles those that it hides.
    pub fn take(&mut self, content: Buffer, discards: Option<&Discards>) -> Result<(), IoError> {
        let first_block = self.extent.offset() / BLOCK_BYTES;
        match &mut self.into {
            None => {
                let seals = content.seals();
                let asked = self.asked.clone();
                asked.filter(|block| seals[*block].is_some()).for_each(|block| self.open.close(block));
                self.into = Some(content);
            }
            Some(into) => {
                let (bytes, seals) = into.parts_mut();
                for (block, at) in self.asked.clone().zip(0..) {
                    if self.open.has(block) && content.seals()[at].is_some() {
                        bytes[block * BLOCK..][..BLOCK]
                            .copy_from_slice(&content.bytes()[at * BLOCK..][..BLOCK]);
                        seals[block] = content.seals()[at];
                        self.open.close(block);
                    }
                }
            }
        }
        if let Some(discards) = discards.filter(|_| self.open.first().is_some()) {
            let recorded = discards.recorded();
            for block in self.asked.clone() {
                if self.open.has(block) && recorded.has(first_block + block as u64)? {
                    self.open.close(block);
                }
            }
        }
        Ok(())
    }

    /// Goes down to a layer of `layer_bytes` bytes.
    pub fn descend(&mut self, layer_bytes: u64, reach: Reach) -> Next {
        let first_block = self.extent.offset() / BLOCK_BYTES;
        let reaches = (layer_bytes / BLOCK_BYTES).saturating_sub(first_block) as usize;
        let blocks = self.blocks();
        (reaches..blocks).for_each(|block| self.open.close(block));
        let (Some(first), Some(last)) = (self.open.first(), self.open.last()) else { return Next::Ended };
        self.level += 1;
        self.asked = match reach {
            Reach::Span => first..last + 1,
            Reach::Runs => self.open.run_from(first, blocks).unwrap_or(first..first),
        };
        // No block was found yet, so the memory holds nothing to keep.
        match self.asked == (0..blocks) && (0..blocks).all(|block| self.open.has(block)) {
            true => Next::Whole(self.asked_extent()),
            false => Next::Part(self.asked_extent()),
        }
    }

    /// Goes on to the next run of wanted blocks in the same layer, which is read in runs.
    pub fn next_run(&mut self) -> Option<Next> {
        self.asked = self.open.run_from(self.asked.end, self.blocks())?;
        Some(Next::Part(self.asked_extent()))
    }

    fn blocks(&self) -> usize {
        (self.extent.length() / BLOCK_BYTES) as usize
    }

    fn asked_extent(&self) -> Extent {
        let place = |block: usize| self.extent.offset() + block as u64 * BLOCK_BYTES;
        Extent::between(place(self.asked.start), place(self.asked.end))
    }
}
