//! Writes zeroes to segments of a new log, ahead of the records.
//!
//! An append to space that is only allocated changes metadata of the file system, which takes it
//! longer than the write itself. The zeroes need no sync: such a segment reads as zeroes before and
//! after.

use strongroom_io::{FileOperation, IoError};

use super::super::format::BLOCK;
use super::super::state::FillingEnd;
use super::cycle::PIECE_BLOCKS;
use super::{Destager, Job};

/// A segment that is being filled, one piece after the other.
pub(super) struct Filling {
    pub segment: usize,
    /// The block of the segment at which the next piece begins.
    next: u32,
    failed: bool,
}

impl Destager {
    /// Whether a segment is being filled. Begins with one if there is need.
    pub(super) fn fills(&mut self) -> bool {
        if self.filling.is_none() && self.ended.is_none() {
            let mut state = self.log.state.lock();
            if state.ending.is_none() {
                let segment = state.begin_filling();
                self.filling = segment.map(|segment| Filling { segment, next: 0, failed: false });
            }
        }
        self.filling.is_some()
    }

    /// Sends the next piece of the segment once the one before it is written, and frees the segment
    /// after the last. Returns whether there was something to do.
    pub(super) fn fill(&mut self) -> bool {
        let Some(filling) = &mut self.filling else { return false };
        if !self.sent.is_empty() {
            return false;
        }
        let (blocks, offset, is_ending) = {
            let state = self.log.state.lock();
            let blocks = PIECE_BLOCKS.min(state.segment_blocks() - filling.next);
            (blocks, state.offset(filling.segment, filling.next), state.ending.is_some())
        };
        let end = match filling {
            Filling { failed: true, .. } => Some(FillingEnd::Failed),
            _ if blocks == 0 => Some(FillingEnd::Filled),
            _ if is_ending => Some(FillingEnd::Halted),
            _ => None,
        };
        if let Some(end) = end {
            return self.end_filling(end);
        }
        let Some(mut from) = self.pool.take(blocks as usize * BLOCK) else {
            return self.end_filling(FillingEnd::Failed);
        };
        from.bytes_mut().fill(0);
        filling.next += blocks;
        self.send(self.file, Job::Fill, FileOperation::Write { offset, from, durable: false });
        true
    }

    fn end_filling(&mut self, end: FillingEnd) -> bool {
        if let Some(Filling { segment, .. }) = self.filling.take() {
            self.log.state.lock().end_filling(segment, end);
        }
        true
    }

    /// Takes the result of a piece.
    pub(super) fn filled(&mut self, result: Result<(), IoError>) {
        if let Some(filling) = &mut self.filling
            && let Err(error) = result
        {
            tracing::debug!(%error, "a segment of the log cannot be written ahead of the records");
            filling.failed = true;
        }
    }
}
