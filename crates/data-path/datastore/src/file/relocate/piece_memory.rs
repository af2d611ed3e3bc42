//! Memory of pieces that pass from one thread to another.

use super::layer_content::{BLOCK, LAYER_PIECE_BYTES_MAX};

/// Memory of one piece. It begins with a block, as direct I/O needs it.
pub(super) struct PieceMemory {
    bytes: Box<[u8]>,
    start: usize,
    length: usize,
}

impl PieceMemory {
    /// Room for a piece.
    pub(super) fn new() -> Self {
        let bytes = vec![0; LAYER_PIECE_BYTES_MAX as usize + BLOCK].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start, length: 0 }
    }

    /// The piece's content.
    pub(super) fn content(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    /// Room for a content of `length` bytes, at most [`LAYER_PIECE_BYTES_MAX`].
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        self.length = length;
        &mut self.bytes[self.start..][..length]
    }
}
