//! Looks up blocks in the log for reads.

use std::collections::VecDeque;

use strongroom_types::Extent;

use super::{Live, State, Use, extent_of, numbers};

/// A block that the log answers for.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct LogBlock {
    pub block: u64,
    /// The segment, and the offset in the log's file; `None` if the block is "nothing here".
    pub content: Option<(usize, u64)>,
}

/// A run of consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) struct Run {
    pub first: u64,
    pub count: u64,
}

impl State {
    /// The runs of blocks that the log has, or will have, entries of.
    pub fn runs(&self, blocks: Extent) -> VecDeque<Run> {
        let (first, end) = numbers(blocks);
        let mut runs: VecDeque<Run> = VecDeque::new();
        for block in self.index.range(first..end).map(|(block, _)| *block) {
            match runs.back_mut() {
                Some(run) if run.first + run.count == block => run.count += 1,
                _ => runs.push_back(Run { first: block, count: 1 }),
            }
        }
        runs
    }

    /// Appends to `live` the blocks of an extent that the log answers for, with their locations.
    /// Their segments are kept until [`Self::release`].
    pub fn pin(&mut self, blocks: Extent, live: &mut Vec<LogBlock>) {
        let (first, end) = numbers(blocks);
        for (block, entry) in self.index.range(first..end) {
            let Some(Live { segment, at, .. }) = entry.live else { continue };
            live.push(LogBlock { block: *block, content: at.map(|at| (segment, self.offset(segment, at))) });
            if at.is_some() {
                self.segments[segment].readers += 1;
            }
        }
    }

    /// Whether blocks are being read.
    pub fn is_being_read(&self) -> bool {
        self.segments.iter().any(|segment| segment.readers > 0)
    }

    /// Ends reads of so many blocks of this segment.
    pub fn release(&mut self, segment: usize, blocks: usize) {
        self.segments[segment].readers -= blocks;
        if self.segments[segment].readers == 0 && self.segments[segment].state == Use::Free {
            self.wake_waiting();
        }
    }

    /// Calls `run` with each run of blocks that the log answers for, and whether they hold data.
    pub fn for_each_run(&self, blocks: Extent, mut run: impl FnMut(Extent, bool)) {
        let (first, end) = numbers(blocks);
        // Pending blocks do not count yet.
        let live = self.index.range(first..end).filter_map(|(block, entry)| Some((*block, entry.live?)));
        let mut live = live.map(|(block, live)| (block, live.at.is_some())).peekable();
        while let Some((start, is_data)) = live.next() {
            let mut stop = start + 1;
            while live.next_if_eq(&(stop, is_data)).is_some() {
                stop += 1;
            }
            run(extent_of(start, stop), is_data);
        }
    }
}
