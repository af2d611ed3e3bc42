//! Moves the log's tail, before which no record is needed any more.

use strongroom_io::{FileOperation, IoError};

use super::super::Log;
use super::super::format::{BLOCK, Superblock};
use super::cycle::{Cycle, Step};
use super::{Destager, Job};

impl Destager {
    /// Sends the superblock whose tail is beyond the cycle's segments.
    pub(super) fn trim(&mut self) {
        let Some(cycle) = &mut self.cycle else { return };
        cycle.step = Step::Trimming;
        let tail = self.log.state.lock().tail_after(cycle.segments.len());
        self.write_superblock(tail, None);
    }

    /// Ends the cycle, once that superblock is durable.
    pub(super) fn trimmed(&mut self) -> bool {
        let Some(Cycle { segments, planned, .. }) = self.cycle.take() else { return false };
        let mut state = self.log.state.lock();
        state.trim(&segments, &planned);
        state.stalled = None;
        self.retry_at = None;
        self.log.done(state);
        true
    }

    /// Marks the log as empty, so that it need not be searched when it is opened.
    pub(super) fn close(&mut self) -> bool {
        let next = {
            let mut state = self.log.state.lock();
            // Nothing is appended from here on.
            state.is_closed = true;
            state.next_sequence()
        };
        self.cycle = Some(Cycle::closing(self.shared.syncs.next()));
        self.write_superblock(next, Some(next));
        true
    }

    /// Ends the cycle, once that mark is durable.
    pub(super) fn closed(&mut self) -> bool {
        self.cycle = None;
        self.ended = Some(Ok(()));
        true
    }

    fn write_superblock(&mut self, tail: u64, next: Option<u64>) {
        let superblock = self.log.superblock_after(tail, next);
        let Some(mut from) = self.pool.take(BLOCK) else {
            debug_assert!(false, "the pool has room for a superblock");
            // The tail has not moved, then.
            if let Some(cycle) = &mut self.cycle {
                cycle.failure = Some(IoError::NoSpace);
            }
            return;
        };
        superblock.encode(from.bytes_mut());
        let ticket = self.shared.syncs.begin();
        let write = FileOperation::Write { offset: superblock.offset(), from, durable: true };
        self.send(self.file, Job::Superblock(ticket, superblock), write);
    }
}

impl Log {
    /// The superblock that follows the last one.
    fn superblock_after(&self, tail: u64, next: Option<u64>) -> Superblock {
        let last = self.superblock.lock();
        Superblock { generation: last.generation + 1, tail, next, ..last.clone() }
    }

    /// Notes that a superblock is in the file.
    pub(super) fn written(&self, superblock: Superblock) {
        *self.superblock.lock() = superblock;
    }
}
