//! The content of one file: blocks of data, reserved but unwritten space, holes, and a length.
//!
//! States share blocks, and copy them on write.

use std::collections::BTreeMap;
use std::sync::Arc;

use strongroom_types::{BLOCK_BYTES, Extent};

const BLOCK: usize = BLOCK_BYTES as usize;

#[derive(Clone, Debug)]
enum Block {
    /// Takes space and reads as zeroes.
    Reserved,
    Data(Arc<[u8; BLOCK]>),
}

/// A change of an extent's space allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceChange {
    /// Its blocks become holes.
    Free,
    /// Its blocks read as zeroes and stay allocated.
    Zero,
    /// Its holes are allocated; data stays.
    Reserve,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    length: u64,
    /// The allocated blocks, by number.
    blocks: BTreeMap<u64, Block>,
}

impl Content {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Sets only the length. Blocks beyond a new end must already be free.
    pub(crate) fn set_length(&mut self, length: u64) {
        self.length = length;
    }

    /// Bytes of all allocated blocks.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// Whether a block holds data.
    pub(crate) fn is_data(&self, block: u64) -> bool {
        matches!(self.blocks.get(&block), Some(Block::Data(_)))
    }

    /// How many blocks of the extent are holes.
    pub(crate) fn holes_in(&self, extent: Extent) -> u64 {
        let (first, end) = (extent.offset() / BLOCK_BYTES, extent.end().div_ceil(BLOCK_BYTES));
        (end - first) - self.blocks.range(first..end).count() as u64
    }

    /// Reads the content; holes, and bytes beyond the end, are zeroes.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for (block, within, piece) in pieces(offset, into.len()) {
            let into = &mut into[piece];
            match self.blocks.get(&block) {
                Some(Block::Data(data)) => into.copy_from_slice(&data[within..within + into.len()]),
                Some(Block::Reserved) | None => into.fill(0),
            }
        }
    }

    /// Writes; the length stays.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) {
        for (block, within, piece) in pieces(offset, from.len()) {
            let from = &from[piece];
            let slot = self.blocks.entry(block).or_insert(Block::Reserved);
            if let Ok(whole) = <&[u8; BLOCK]>::try_from(from) {
                *slot = Block::Data(Arc::new(*whole));
                continue;
            }
            if matches!(slot, Block::Reserved) {
                *slot = Block::Data(Arc::new([0; BLOCK]));
            }
            if let Block::Data(data) = slot {
                Arc::make_mut(data)[within..within + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Changes the allocation; the length stays. In partially covered blocks only the covered bytes
    /// are zeroed.
    pub(crate) fn change_space(&mut self, extent: Extent, change: SpaceChange) {
        if change == SpaceChange::Reserve {
            let extent = extent.widened_to(BLOCK_BYTES);
            for block in extent.offset() / BLOCK_BYTES..extent.end() / BLOCK_BYTES {
                self.blocks.entry(block).or_insert(Block::Reserved);
            }
            return;
        }
        let whole = extent.narrowed_to(BLOCK_BYTES);
        let (first, end) = (whole.offset() / BLOCK_BYTES, whole.end() / BLOCK_BYTES);
        if !whole.is_empty() {
            match change {
                SpaceChange::Zero => (first..end).for_each(|block| {
                    self.blocks.insert(block, Block::Reserved);
                }),
                SpaceChange::Free | SpaceChange::Reserve => {
                    let covered: Vec<u64> = self.blocks.range(first..end).map(|(block, _)| *block).collect();
                    for block in covered {
                        self.blocks.remove(&block);
                    }
                }
            }
        }
        let (head, tail) = match whole.is_empty() {
            true => (extent, Extent::default()),
            false => {
                (Extent::between(extent.offset(), whole.offset()), Extent::between(whole.end(), extent.end()))
            }
        };
        for edge in [head, tail] {
            self.zero_bytes(edge);
        }
    }

    /// Zeroes bytes of blocks that hold data.
    fn zero_bytes(&mut self, extent: Extent) {
        let mut at = extent.offset();
        while at < extent.end() {
            let end = extent.end().min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
            if let Some(Block::Data(data)) = self.blocks.get_mut(&(at / BLOCK_BYTES)) {
                let within = (at % BLOCK_BYTES) as usize;
                Arc::make_mut(data)[within..within + (end - at) as usize].fill(0);
            }
            at = end;
        }
    }

    /// The first byte of data from `at` on, before the end.
    pub(crate) fn next_data(&self, at: u64) -> Option<u64> {
        let mut blocks = self.blocks.range(at / BLOCK_BYTES..);
        let (block, _) = blocks.find(|(_, block)| matches!(block, Block::Data(_)))?;
        let data = at.max(block * BLOCK_BYTES);
        (data < self.length).then_some(data)
    }

    /// The first byte from `at` on that is not data; the end counts as a hole.
    pub(crate) fn next_hole(&self, at: u64) -> u64 {
        let mut block = at / BLOCK_BYTES;
        while matches!(self.blocks.get(&block), Some(Block::Data(_))) {
            block += 1;
        }
        at.max(block * BLOCK_BYTES).min(self.length)
    }
}

/// The pieces of a transfer, block by block: the block, the offset in it, and the range of the
/// memory.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES) as usize;
        let count = (BLOCK - within).min(length - done);
        let piece = done..done + count;
        done += count;
        (count > 0).then_some((at / BLOCK_BYTES, within, piece))
    })
}
