//! Reading blocks that the first-write log answers for.
//!
//! A read whose blocks lie in the log one after the other is a read of the log. Any other read goes
//! to the layer, and its newer blocks are read from the log at the same time. When all parts have
//! arrived, the newer blocks are copied over the older ones.

use std::collections::VecDeque;

use strongroom_io::{Done, FileOperation, FileToken, InFlight, IoError, Sealed, Slot};
use strongroom_memory::{Buffer, BufferPool, CHUNK_BYTES};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch};

use super::super::blocks::seal_what_was_read;
use super::super::log::epochs::Epoch;
use super::super::log::{Log, LogBlock};
use super::{Files, Step};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A part of a read.
pub(super) enum Part {
    /// The whole extent, from the layer.
    Layer { epoch: Epoch },
    /// `blocks` blocks from block `first` of the read on, from this segment of the log.
    Log { first: usize, blocks: usize, segment: usize },
}

impl Part {
    /// Releases what the part holds.
    pub(super) fn let_go(self, log: &Log) {
        match self {
            Self::Layer { epoch } => log.epochs.leave(epoch),
            Self::Log { blocks, segment, .. } => log.release(segment, blocks),
        }
    }
}

/// A read of both the layer and the log.
struct Mixed {
    tag: u64,
    /// The memory that is read into; the kernel has it while the layer is read.
    into: Option<Buffer>,
    parts_left: usize,
    /// Content from the log, with its first block in the read.
    newer: Vec<(usize, Buffer)>,
    /// Blocks of the read that are "nothing here".
    nothing: Vec<usize>,
    failure: Option<IoError>,
}

pub(super) struct LogReads {
    mixed: InFlight<Mixed>,
    /// Reads that wait for memory.
    waiting: VecDeque<(u64, Extent, Buffer)>,
    pool: BufferPool,
    live: Vec<LogBlock>,
    /// Reads that needed no file.
    ended: VecDeque<Done<Sealed>>,
}

/// Blocks that lie one after the other in the read and in the log.
struct Run {
    first: usize,
    blocks: usize,
    segment: usize,
    offset: u64,
}

impl LogReads {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            mixed: InFlight::with_depth(depth),
            waiting: VecDeque::new(),
            // Enough for the longest read, however its runs are rounded up.
            pool: BufferPool::new(2 * CHUNK_BYTES).expect("two chunks are a pool"),
            live: Vec::new(),
            ended: VecDeque::new(),
        }
    }

    /// Begins a read in an epoch that it entered before it asks the log.
    #[expect(clippy::too_many_arguments, reason = "a request, and what it is done with")]
    pub(super) fn begin(
        &mut self,
        tag: u64,
        extent: Extent,
        into: Buffer,
        epoch: Epoch,
        log: &Log,
        file: FileToken,
        files: &mut Files,
    ) {
        let mut live = std::mem::take(&mut self.live);
        live.clear();
        log.pin(extent, &mut live);
        let first_block = extent.offset() / BLOCK_BYTES;
        let (runs, nothing) = runs_of(&live, first_block);
        let blocks = (extent.length() / BLOCK_BYTES) as usize;
        match (&runs[..], live.len()) {
            (_, 0) => {
                let operation = FileOperation::Read { offset: extent.offset(), into };
                files.send(files.layer, Step::Read { tag, epoch: Some(epoch) }, operation);
            }
            (&[Run { blocks: in_run, segment, offset, .. }], _) if in_run == blocks => {
                log.epochs.leave(epoch);
                let step = Step::LogRead { tag, segment, blocks };
                files.send(file, step, FileOperation::Read { offset, into });
            }
            (&[], found) if found == blocks => {
                log.epochs.leave(epoch);
                let mut into = into;
                let (bytes, seals) = into.parts_mut();
                bytes.fill(0);
                seals.fill(None);
                self.ended.push_back(Done { tag, result: Ok(()), memory: Some(into) });
            }
            (_, found) => match self.buffers(&runs) {
                Some(buffers) => {
                    let reads_layer = found < blocks;
                    let parts_left = buffers.len() + usize::from(reads_layer);
                    let newer = Vec::with_capacity(buffers.len());
                    let mut mixed = Mixed { tag, into: None, parts_left, newer, nothing, failure: None };
                    let layer_into = match reads_layer {
                        true => Some(into),
                        false => {
                            mixed.into = Some(into);
                            None
                        }
                    };
                    let read = self.mixed.insert(mixed);
                    match layer_into {
                        Some(into) => {
                            let part = Part::Layer { epoch };
                            let operation = FileOperation::Read { offset: extent.offset(), into };
                            files.send(files.layer, Step::Part { read, part }, operation);
                        }
                        None => log.epochs.leave(epoch),
                    }
                    for (Run { first, blocks, segment, offset }, into) in runs.into_iter().zip(buffers) {
                        let part = Part::Log { first, blocks, segment };
                        files.send(file, Step::Part { read, part }, FileOperation::Read { offset, into });
                    }
                }
                None => {
                    log.epochs.leave(epoch);
                    release(&runs, log);
                    self.waiting.push_back((tag, extent, into));
                }
            },
        }
        self.live = live;
    }

    /// Memory for all runs, or for none.
    fn buffers(&self, runs: &[Run]) -> Option<Vec<Buffer>> {
        runs.iter().map(|run| self.pool.take(run.blocks * BLOCK)).collect()
    }

    /// Begins reads that have waited for memory.
    pub(super) fn go_on(&mut self, log: &Log, file: FileToken, files: &mut Files) {
        for _ in 0..self.waiting.len() {
            let Some((tag, extent, into)) = self.waiting.pop_front() else { return };
            let epoch = log.epochs.enter();
            self.begin(tag, extent, into, epoch, log, file, files);
        }
    }

    pub(super) fn next_ended(&mut self) -> Option<Done<Sealed>> {
        self.ended.pop_front()
    }

    /// Takes the end of a part, and ends the read with its last part.
    pub(super) fn ended(
        &mut self,
        read: Slot,
        part: Part,
        result: Result<(), IoError>,
        buffer: Option<Buffer>,
        log: &Log,
        key_epoch: KeyEpoch,
    ) -> Option<Done<Sealed>> {
        let mixed = self.mixed.get_mut(read)?;
        mixed.parts_left -= 1;
        mixed.failure = mixed.failure.or(result.err());
        match (&part, buffer) {
            (Part::Layer { .. }, buffer) => mixed.into = buffer,
            (Part::Log { first, .. }, Some(buffer)) => mixed.newer.push((*first, buffer)),
            (Part::Log { .. }, None) => {}
        }
        part.let_go(log);
        if mixed.parts_left > 0 {
            return None;
        }
        let Mixed { tag, mut into, newer, nothing, failure, .. } = self.mixed.take(read)?;
        if let (None, Some(into)) = (failure, &mut into) {
            let (bytes, seals) = into.parts_mut();
            for (first, content) in &newer {
                bytes[first * BLOCK..][..content.len()].copy_from_slice(content.bytes());
            }
            for block in nothing {
                bytes[block * BLOCK..][..BLOCK].fill(0);
            }
            seal_what_was_read(bytes, seals, key_epoch);
        }
        Some(Done { tag, result: failure.map_or(Ok(()), Err), memory: into })
    }
}

/// The runs of blocks whose content is in the log, and the blocks of the read that the log says are
/// "nothing here".
fn runs_of(live: &[LogBlock], first_block: u64) -> (Vec<Run>, Vec<usize>) {
    let (mut runs, mut nothing): (Vec<Run>, Vec<usize>) = (Vec::new(), Vec::new());
    for LogBlock { block, content } in live {
        let place = (block - first_block) as usize;
        let Some((segment, offset)) = *content else {
            nothing.push(place);
            continue;
        };
        match runs.last_mut() {
            Some(run)
                if run.segment == segment
                    && run.first + run.blocks == place
                    && run.offset + run.blocks as u64 * BLOCK_BYTES == offset =>
            {
                run.blocks += 1;
            }
            _ => runs.push(Run { first: place, blocks: 1, segment, offset }),
        }
    }
    (runs, nothing)
}

fn release(runs: &[Run], log: &Log) {
    runs.iter().for_each(|run| log.release(run.segment, run.blocks));
}
