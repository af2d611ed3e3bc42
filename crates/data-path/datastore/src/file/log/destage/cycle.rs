//! The state of a cycle: the blocks that it takes to the layer, its progress, and the content that
//! it has read.

use strongroom_io::IoError;
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use super::super::format::BLOCK;
use super::super::state::Planned;
use crate::file::syncs::SyncTicket;

/// Blocks that are read at once.
pub(super) const PIECE_BLOCKS: u32 = 256;

pub(super) struct Cycle {
    pub segments: Vec<usize>,
    /// In the order of their addresses.
    pub planned: Vec<Planned>,
    pub pieces: Vec<Piece>,
    pub step: Step,
    /// The extents to allocate first.
    pub ahead: Vec<Extent>,
    /// How many planned blocks were sent.
    pub next: usize,
    /// Its last sync counts as successful once all syncs before this one have ended. Later ones do
    /// not matter: a guest may sync without a pause.
    pub settles_before: SyncTicket,
    pub failure: Option<IoError>,
}

/// A part of a segment.
pub(super) struct Piece {
    pub segment: usize,
    /// The block of the segment at which it begins.
    pub first: u32,
    pub blocks: u32,
    /// Its content, once it has been read.
    pub content: Option<Buffer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Preparing,
    Allocating,
    Writing,
    SyncingLayer,
    /// The superblock with the new tail is being written.
    Trimming,
    /// The superblock that marks the log as empty is being written.
    Closing,
}

impl Cycle {
    /// A cycle that has sent nothing yet. Its first sync will have the ticket `next_sync` or a
    /// later one.
    pub fn new(
        segments: Vec<usize>,
        planned: Vec<Planned>,
        pieces: Vec<Piece>,
        next_sync: SyncTicket,
    ) -> Self {
        let (step, ahead, settles_before) = (Step::Preparing, Vec::new(), next_sync);
        Self { segments, planned, pieces, step, ahead, next: 0, settles_before, failure: None }
    }

    /// A cycle that only marks the log as empty.
    pub fn closing(next_sync: SyncTicket) -> Self {
        Self { step: Step::Closing, ..Self::new(Vec::new(), Vec::new(), Vec::new(), next_sync) }
    }

    /// The next run of consecutive blocks: either with content, at most `contents_max` of them, or
    /// all "nothing here". Empty when all were sent.
    pub fn next_run(&self, contents_max: usize) -> &[Planned] {
        let rest = &self.planned[self.next..];
        let Some(first) = rest.first() else { return rest };
        let has_content = first.live.at.is_some();
        let count_max = if has_content { contents_max } else { rest.len() };
        let follows = |(planned, block): &(&Planned, u64)| {
            planned.block == *block && planned.live.at.is_some() == has_content
        };
        let count = rest.iter().zip(first.block..).take(count_max).take_while(follows).count();
        &rest[..count]
    }

    pub fn content_of(&self, planned: &Planned) -> Option<&[u8]> {
        let at = planned.live.at?;
        let holds = |piece: &&Piece| {
            piece.segment == planned.live.segment && (piece.first..piece.first + piece.blocks).contains(&at)
        };
        let piece = self.pieces.iter().find(holds)?;
        let start = (at - piece.first) as usize * BLOCK;
        piece.content.as_ref()?.bytes().get(start..start + BLOCK)
    }
}
