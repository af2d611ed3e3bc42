//! The order in which a disk is written.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use strongroom_types::Extent;

/// The most blocks of a random order, which is kept whole: 64 GiB of blocks of 4 KiB, in 64 MiB of
/// memory.
pub const BLOCKS_MAX: u32 = 1 << 24;

/// Every block of a disk once, in random order.
#[derive(Debug)]
pub struct Shuffled {
    blocks: std::vec::IntoIter<u32>,
    block_bytes: u64,
}

impl Shuffled {
    /// The first `blocks` blocks, at most [`BLOCKS_MAX`].
    pub fn new(blocks: u32, block_bytes: u64, seed: u64) -> Self {
        Self::in_pieces(blocks, 1, block_bytes, seed)
    }

    /// Pieces of so many blocks in random order, and the blocks of each in order.
    pub fn in_pieces(blocks: u32, piece_blocks: u32, block_bytes: u64, seed: u64) -> Self {
        let blocks = blocks.min(BLOCKS_MAX);
        let mut pieces: Vec<u32> = (0..blocks).step_by(piece_blocks.max(1) as usize).collect();
        pieces.shuffle(&mut StdRng::seed_from_u64(seed));
        let blocks_of = |piece: u32| piece..blocks.min(piece.saturating_add(piece_blocks));
        let order: Vec<u32> = pieces.into_iter().flat_map(blocks_of).collect();
        Self { blocks: order.into_iter(), block_bytes }
    }
}

impl Iterator for Shuffled {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let start = u64::from(self.blocks.next()?) * self.block_bytes;
        Some(Extent::between(start, start + self.block_bytes))
    }
}

/// An area from its beginning to its end, in requests of `request_bytes`, without an incomplete one
/// at the end.
pub fn sequential(area: Extent, request_bytes: u64) -> impl Iterator<Item = Extent> {
    let starts = (area.offset()..area.end()).step_by(request_bytes as usize);
    let extents = starts.map(move |start| Extent::between(start, start + request_bytes));
    extents.take_while(move |extent| extent.end() <= area.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_order_has_every_block_once() {
        let order: Vec<Extent> = Shuffled::new(1000, 4096, 7).collect();
        let mut sorted: Vec<u64> = order.iter().map(|extent| extent.offset() / 4096).collect();
        assert!(!sorted.is_sorted() && order.iter().all(|extent| extent.length() == 4096));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_eq!(order, Shuffled::new(1000, 4096, 7).collect::<Vec<_>>());
        assert_ne!(order, Shuffled::new(1000, 4096, 8).collect::<Vec<_>>());
    }

    #[test]
    fn pieces_are_shuffled_and_whole() {
        let order: Vec<u64> =
            Shuffled::in_pieces(1001, 8, 4096, 7).map(|extent| extent.offset() / 4096).collect();
        assert!(!order.is_sorted());
        let mut pieces: Vec<&[u64]> =
            order.chunk_by(|block, next| next % 8 != 0 && *next == block + 1).collect();
        assert_eq!(pieces.len(), 126);
        pieces.sort_unstable();
        assert_eq!(pieces.concat(), (0..1001).collect::<Vec<_>>());
    }

    #[test]
    fn a_sequential_order_stays_in_its_area() {
        let starts = |area: Extent| sequential(area, 4096).map(|extent| extent.offset()).collect::<Vec<_>>();
        assert_eq!(starts(Extent::between(8192, 20480)), [8192, 12288, 16384]);
        assert_eq!(starts(Extent::between(8192, 20000)), [8192, 12288]);
        assert!(starts(Extent::between(0, 512)).is_empty());
    }
}
