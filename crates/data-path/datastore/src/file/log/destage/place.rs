//! Writes a cycle's blocks to their places in the layer.

use strongroom_io::{FileOperation, IoError};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::super::format::BLOCK;
use super::cycle::Step;
use super::{Destager, Job, WRITES_MAX};

/// Blocks that are written at once.
const RUN_BLOCKS: usize = 64;

impl Destager {
    /// Allocates space ahead, and goes on to writing when that is done.
    pub(super) fn allocate_some(&mut self) -> bool {
        let mut moved = false;
        while self.sent.len() < WRITES_MAX {
            let Some(cycle) = &mut self.cycle else { return moved };
            let Some(extent) = cycle.ahead.pop() else {
                let ready = self.sent.is_empty();
                if ready {
                    cycle.step = Step::Writing;
                }
                return moved | ready;
            };
            self.send(self.layer, Job::Ahead, FileOperation::Allocate { extent });
            moved = true;
        }
        moved
    }

    /// Sends writes to the layer, as many as may be under way, and then syncs it.
    pub(super) fn write_some(&mut self) -> bool {
        let mut moved = false;
        while self.sent.len() < WRITES_MAX {
            let Some(cycle) = &mut self.cycle else { return moved };
            let run = cycle.next_run(RUN_BLOCKS);
            let count = run.len();
            let Some(first) = run.first() else {
                if self.sent.is_empty() {
                    cycle.pieces.clear();
                    cycle.step = Step::SyncingLayer;
                    let ticket = self.shared.syncs.begin();
                    self.sync(self.layer, ticket);
                    return true;
                }
                return moved;
            };
            let offset = first.block * BLOCK_BYTES;
            let operation = match first.live.at {
                None => FileOperation::Punch {
                    extent: Extent::between(offset, offset + count as u64 * BLOCK_BYTES),
                },
                Some(_) => {
                    let Some(mut from) = self.pool.take(count * BLOCK) else { return moved };
                    for (planned, into) in run.iter().zip(from.bytes_mut().chunks_mut(BLOCK)) {
                        let Some(content) = cycle.content_of(planned) else {
                            debug_assert!(false, "what was planned was read");
                            let failure = IoError::Short { done_bytes: 0, wanted_bytes: BLOCK_BYTES };
                            cycle.failure = Some(failure);
                            return true;
                        };
                        into.copy_from_slice(content);
                    }
                    FileOperation::Write { offset, from, durable: false }
                }
            };
            cycle.next += count;
            self.send(self.layer, Job::Write, operation);
            moved = true;
        }
        moved
    }
}
