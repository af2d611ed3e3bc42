//! Decides when a cycle begins, and with which segments.

use std::time::Instant;

use strongroom_io::{FileOperation, IoError};
use strongroom_memory::BufferPool;

use super::super::SEGMENTS_BUSY;
use super::super::format::{BLOCK, SEGMENTS};
use super::super::state::{End, Planned};
use super::cycle::{Cycle, PIECE_BLOCKS, Piece};
use super::{Destager, Job, POOL_BYTES};

/// The most blocks of a cycle, which are held in memory: a segment of the largest log.
pub(super) const CYCLE_BLOCKS_MAX: u32 = 1024;
/// Once the destager is busy, it stays so until at most this many segments are in use.
const SEGMENTS_CALM: usize = SEGMENTS / 2;

impl Destager {
    /// Begins a cycle, if it is time for one.
    pub(super) fn begin(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.shared.syncs.have_failed() {
            // The log keeps its records until the volume is reopened.
            let mut state = self.log.state.lock();
            state.stalled = Some(IoError::FlushFailed);
            state.wake_waiting();
            drop(state);
            return self.end_if_asked(Err(IoError::FlushFailed));
        }
        let mut state = self.log.state.lock();
        let ending = state.ending;
        if state.is_empty() {
            self.is_busy = false;
            state.is_watched = false;
            drop(state);
            self.give_memory_back();
            return ending.is_some() && self.close();
        }
        drop(state);
        if ending == Some(End::Now) {
            return self.end_if_asked(Ok(()));
        }
        let planned = self.plan(ending.is_some());
        planned.is_some_and(|(segments, planned)| {
            self.prepare(segments, planned);
            true
        })
    }

    /// Frees the memory of past cycles: the next one may be hours away.
    fn give_memory_back(&mut self) {
        if self.pool.resident_bytes() > 0
            && let Ok(pool) = BufferPool::new(POOL_BYTES)
        {
            self.pool = pool;
        }
    }

    /// Chooses what to bring to the layer now. If there is nothing, it arranges to be woken later.
    fn plan(&mut self, is_ending: bool) -> Option<(Vec<usize>, Vec<Planned>)> {
        let now = Instant::now();
        let mut state = self.log.state.lock();
        state.is_watched = true;
        if !is_ending && !state.allows_a_cycle() {
            return None;
        }
        if !is_ending
            && !state.is_attempt_wanted
            && let Some(retry_at) = self.retry_at.filter(|at| *at > now)
        {
            self.reactor.wake_at(retry_at);
            return None;
        }
        self.is_busy = match state.segments_in_use() {
            busy if busy >= SEGMENTS_BUSY => true,
            calm if calm <= SEGMENTS_CALM => false,
            _ => self.is_busy,
        };
        if self.last_records.0 != state.records {
            self.last_records = (state.records, now);
        }
        let quiet_at = self.last_records.1.checked_add(self.quiet);
        let all = is_ending || quiet_at.is_some_and(|at| at <= now);
        let plan = if all || self.is_busy { state.plan(CYCLE_BLOCKS_MAX, all) } else { None };
        if plan.is_none() {
            // Try again when the guest is quiet, or when a record that is under way may have
            // arrived.
            let again_at = if all { now.checked_add(self.quiet) } else { quiet_at };
            if let Some(at) = again_at {
                self.reactor.wake_at(at);
            }
        }
        plan
    }

    /// Sends the sync of the log, and the reads of the segments.
    fn prepare(&mut self, segments: Vec<usize>, planned: Vec<Planned>) {
        {
            let mut state = self.log.state.lock();
            state.attempts.begin();
            state.is_attempt_wanted = false;
        }
        let mut pieces = Vec::new();
        let mut offsets = Vec::new();
        if planned.iter().any(|planned| planned.live.at.is_some()) {
            let state = self.log.state.lock();
            for &segment in &segments {
                let end = state.used_blocks(segment);
                for first in (0..end).step_by(PIECE_BLOCKS as usize) {
                    let blocks = PIECE_BLOCKS.min(end - first);
                    pieces.push(Piece { segment, first, blocks, content: None });
                    offsets.push((blocks, state.offset(segment, first)));
                }
            }
        }
        let cycle = self.cycle.insert(Cycle::new(segments, planned, pieces, self.shared.syncs.next()));
        self.log.epochs.turn(&self.waker);
        let buffers: Option<Vec<_>> =
            offsets.iter().map(|(blocks, _)| self.pool.take(*blocks as usize * BLOCK)).collect();
        if buffers.is_none() {
            debug_assert!(false, "the pool has room for a cycle");
            cycle.failure = Some(IoError::NoSpace);
        }
        // Even if nothing is marked unsynced: another channel's sync of the planned records may
        // still be under way.
        let (ticket, _) = self.shared.syncs.begin_for([Some(&self.log.unsynced)]);
        self.sync(self.file, ticket);
        for (piece, (into, (_, offset))) in buffers.into_iter().flatten().zip(offsets).enumerate() {
            self.send(self.file, Job::Read(piece), FileOperation::Read { offset, into });
        }
    }
}
