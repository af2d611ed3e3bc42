//! Reads all of a volume, to check that it can be read.

use std::collections::VecDeque;
use std::rc::Rc;

use rustix::io::Errno;
use strongroom_io::{
    Allocation, Channel, Disk, Done, InFlight, Io, IoError, Plain, Request, Slot, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_memory::{BufferPool, GuestSlice};
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::transfer::{Progress, TransferError};

/// Reads in flight: enough that the disk never waits for the next one.
const DEPTH: usize = 16;

const PIECE_BYTES: u64 = TRANSFER_BYTES_MAX as u64;

/// Memory for our reads: half a chunk each, and as much again for single blocks.
const OWN_MEMORY_BYTES: usize = 2 * DEPTH * PIECE_BYTES as usize;

/// Memory for the stages below.
const STAGE_MEMORY_BYTES: usize = 32 << 20;

/// How much of the disk is asked for its allocation at once, so that the answer stays short.
const WINDOW_BYTES: u64 = 1 << 30;

/// The most runs that are reported: a disk that fails everywhere has more than a person would read.
const RUNS_MAX: usize = 64;

/// The result of reading a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadThrough {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Blocks that do not match their tags.
    pub wrong: FailedBlocks,
    /// Blocks that cannot be read for another reason.
    pub unreadable: FailedBlocks,
}

/// Blocks that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedBlocks {
    /// How many there are.
    pub count: u64,
    /// The first runs of them, with the error of each one's first block.
    pub runs: Vec<(Extent, IoError)>,
}

impl FailedBlocks {
    fn add(&mut self, block: Extent, error: IoError) {
        self.count += 1;
        let room = self.runs.len() < RUNS_MAX;
        match self.runs.last_mut().filter(|(run, _)| run.end() == block.offset()) {
            Some((run, _)) => *run = Extent::between(run.offset(), block.end()),
            None if room => self.runs.push((block, error)),
            None => {}
        }
    }
}

/// Reads everything on the disk that is not a known hole. Failed reads are repeated block by block,
/// to find each failed block.
///
/// # Errors
/// If there is no memory or event loop, or it was stopped. Unreadable blocks are not an error.
pub fn read_through(
    disk: &dyn Disk<Plain>,
    progress: &mut Progress<'_>,
) -> Result<ReadThrough, TransferError> {
    let size_bytes = disk.limits().size_bytes;
    let mut reader = Reader::open(disk)?;
    for window in 0..size_bytes.div_ceil(WINDOW_BYTES) {
        let window = Extent::between(window * WINDOW_BYTES, size_bytes.min((window + 1) * WINDOW_BYTES));
        let mut data = Vec::new();
        let found = disk.allocation(window, &mut |extent, allocation| {
            if allocation == Allocation::Data {
                data.push(extent.intersection(window));
            }
            true
        });
        found.map_err(TransferError::Volume)?;
        for extent in data {
            let mut at = extent.offset();
            while at < extent.end() {
                let piece = Extent::between(at, extent.end().min((at / PIECE_BYTES + 1) * PIECE_BYTES));
                progress.at(at)?;
                reader.read(piece)?;
                at = piece.end();
            }
        }
        reader.settle(0)?;
        reader.look_closer(progress)?;
    }
    progress.at(size_bytes)?;
    Ok(reader.found)
}

struct Reader {
    ring: Ring,
    pool: BufferPool,
    channel: Box<dyn Channel<Plain>>,
    in_flight: InFlight<Extent>,
    /// Pieces that failed.
    failed: VecDeque<Extent>,
    looks_closer: bool,
    found: ReadThrough,
}

impl Reader {
    fn open(disk: &dyn Disk<Plain>) -> Result<Self, TransferError> {
        let ring = Ring::new(2 * DEPTH)?;
        let thread = Thread { pool: BufferPool::new(STAGE_MEMORY_BYTES)?, reactor: Rc::new(ring.clone()) };
        Ok(Self {
            channel: disk.open(&thread, DEPTH).map_err(TransferError::Volume)?,
            pool: BufferPool::new(OWN_MEMORY_BYTES)?,
            in_flight: InFlight::with_depth(DEPTH),
            failed: VecDeque::new(),
            looks_closer: false,
            found: ReadThrough::default(),
            ring,
        })
    }

    /// Starts a read.
    fn read(&mut self, extent: Extent) -> Result<(), TransferError> {
        self.settle(DEPTH - 1)?;
        let into = self.pool.take(extent.length() as usize);
        let into = into.ok_or(TransferError::Volume(IoError::from(Errno::NOMEM)))?;
        let tag = self.in_flight.insert(extent).tag();
        let request = Request::Read { extent, into: GuestSlice::from_buffer(into) };
        self.channel.submit(Io { tag, request });
        self.channel.kick();
        Ok(())
    }

    /// Waits until at most `left` reads are in flight.
    fn settle(&mut self, left: usize) -> Result<(), TransferError> {
        let mut ended: Vec<Done<Plain>> = Vec::with_capacity(DEPTH);
        loop {
            self.channel.poll(&mut ended);
            for done in ended.drain(..) {
                let extent =
                    Slot::from_tag(done.tag).and_then(|slot| self.in_flight.take(slot)).unwrap_or_default();
                match done.result {
                    Ok(()) => self.found.read_bytes += extent.length(),
                    // Read it a second time later, in order, so that adjacent blocks form runs.
                    Err(error) if !self.looks_closer => {
                        tracing::debug!(%extent, %error, "read again block by block");
                        self.failed.push_back(extent);
                    }
                    Err(error @ IoError::Integrity { .. }) => self.found.wrong.add(extent, error),
                    Err(error) => self.found.unreadable.add(extent, error),
                }
            }
            if self.in_flight.len() <= left {
                return Ok(());
            }
            self.ring.wait(None).map_err(TransferError::Volume)?;
        }
    }

    /// Rereads the failed pieces, one block after the other.
    fn look_closer(&mut self, progress: &mut Progress<'_>) -> Result<(), TransferError> {
        let mut failed = std::mem::take(&mut self.failed);
        failed.make_contiguous().sort_by_key(|extent| extent.offset());
        self.looks_closer = true;
        for extent in failed {
            for at in (extent.offset()..extent.end()).step_by(BLOCK_BYTES as usize) {
                progress.at(at)?;
                self.read(Extent::between(at, at + BLOCK_BYTES))?;
                self.settle(0)?;
            }
        }
        self.looks_closer = false;
        Ok(())
    }
}
