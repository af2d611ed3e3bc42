//! What a cycle knows: what it takes to the layer, how far it is, and what of it has been read.

use strongroom_io::IoError;
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use super::super::format::BLOCK;
use super::super::state::Planned;
use crate::file::syncs::SyncTicket;

/// Read at once.
pub(super) const PIECE_BLOCKS: u32 = 256;

pub(super) struct Cycle {
    pub segments: Vec<usize>,
    /// In the order of their addresses.
    pub planned: Vec<Planned>,
    pub pieces: Vec<Piece>,
    pub step: Step,
    /// What to take space for first.
    pub ahead: Vec<Extent>,
    /// Planned blocks that were sent.
    pub next: usize,
    /// Its last sync is a success when those before this one have ended too. Later ones do not
    /// matter: a guest may sync without a pause.
    pub settles_before: SyncTicket,
    pub failure: Option<IoError>,
}

/// A part of a segment.
pub(super) struct Piece {
    pub segment: usize,
    /// Block of the segment that it begins with.
    pub first: u32,
    pub blocks: u32,
    /// Once it has been read.
    pub content: Option<Buffer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Preparing,
    Allocating,
    Writing,
    SyncingLayer,
    /// The superblock that says so is on its way.
    Trimming,
    /// The superblock that says that the log is empty.
    Closing,
}

impl Cycle {
    /// One that has sent nothing yet, and whose first sync will have the ticket `next_sync`, or a
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

    /// One that only says that the log is empty.
    pub fn closing(next_sync: SyncTicket) -> Self {
        Self { step: Step::Closing, ..Self::new(Vec::new(), Vec::new(), Vec::new(), next_sync) }
    }

    /// The blocks to go on with that lie one after the other and are all contents, at most
    /// `contents_max` of them, or all "nothing here"; none when all were sent.
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
