//! A client of a disk for one thread: transfers of its own memory, several in flight.

use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use strongroom_io::{
    Channel, Disk, EventLoop, InFlight, Io, IoError, Plain, Request, Slot, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_memory::{Buffer, BufferPool, GuestSlice};
use strongroom_ring::Ring;
use strongroom_types::Extent;

use crate::file_writer::WRITES_MAX;
use crate::transfer::TransferError;

/// Transfers in flight: enough that a disk, or the cipher, never waits for the next one.
pub const DEPTH: usize = 16;

/// Bytes of one transfer: the most that a disk takes.
const PIECE_BYTES: u64 = TRANSFER_BYTES_MAX as u64;

/// Memory for the stages below, separate from ours, so that transfers that wait here cannot starve
/// operations that must end there.
const STAGE_MEMORY_BYTES: usize = 32 << 20;

/// A sleep that only an event ends.
const UNTIL_WOKEN: Duration = Duration::from_secs(3600);

/// Takes the content of a read, and its extent on the disk.
pub type Sink<'a> = &'a mut dyn FnMut(Extent, Buffer) -> Result<(), TransferError>;

/// A client of a disk for one thread.
pub struct Client {
    event_loop: Rc<dyn EventLoop>,
    depth: usize,
    pool: BufferPool,
    channel: Box<dyn Channel<Plain>>,
    /// The extent of each transfer in flight; empty for a flush.
    in_flight: InFlight<Extent>,
}

impl Client {
    /// A client with an event loop of its own.
    pub fn open(disk: &dyn Disk<Plain>) -> Result<Self, TransferError> {
        Self::on(Rc::new(Ring::new(2 * DEPTH)?), disk, DEPTH)
    }

    /// A client on this thread's event loop, with at most `depth` transfers in flight.
    pub fn on(
        event_loop: Rc<dyn EventLoop>,
        disk: &dyn Disk<Plain>,
        depth: usize,
    ) -> Result<Self, TransferError> {
        let thread = Thread { pool: BufferPool::new(STAGE_MEMORY_BYTES)?, reactor: event_loop.reactor() };
        let channel = disk.open(&thread, depth).map_err(TransferError::Volume)?;
        // Each piece in flight, and one that is being filled; half a chunk each. What was read may
        // be as much again until a file has taken it, and a third time where runs of it were
        // copied.
        let pieces = depth + 2 + 2 * depth.max(WRITES_MAX);
        let pool = BufferPool::new(pieces * PIECE_BYTES as usize)?;
        Ok(Self { event_loop, depth, pool, channel, in_flight: InFlight::with_depth(depth) })
    }

    /// A buffer of a piece. At most `depth` are in flight, and one is being filled, so there is
    /// always one.
    pub fn take_buffer(&self) -> Result<Buffer, TransferError> {
        self.take(PIECE_BYTES as usize)
    }

    fn take(&self, bytes: usize) -> Result<Buffer, TransferError> {
        take(&self.pool, bytes)
    }

    /// The memory that what was read is in.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Starts a write of a piece.
    pub fn write(&mut self, extent: Extent, bytes: &[u8]) -> Result<(), TransferError> {
        self.settle(self.depth - 1, &mut nothing_read)?;
        let mut buffer = self.take(bytes.len())?;
        buffer.bytes_mut().copy_from_slice(bytes);
        self.submit(extent, Request::Write { extent, from: GuestSlice::from_buffer(buffer), durable: false });
        Ok(())
    }

    /// Makes an extent read as zeroes, and frees its space if possible.
    pub fn write_zeroes(&mut self, extent: Extent) -> Result<(), TransferError> {
        self.settle(self.depth - 1, &mut nothing_read)?;
        self.submit(extent, Request::WriteZeroes { extent, may_unmap: true, durable: false });
        Ok(())
    }

    /// Starts a read of a piece; `sink` gets the content of this read or of earlier ones.
    pub fn read(&mut self, extent: Extent, sink: Sink<'_>) -> Result<(), TransferError> {
        self.settle(self.depth - 1, sink)?;
        let into = GuestSlice::from_buffer(self.take(extent.length() as usize)?);
        self.submit(extent, Request::Read { extent, into });
        Ok(())
    }

    /// Waits for all writes.
    pub fn settle_writes(&mut self) -> Result<(), TransferError> {
        self.settle(0, &mut nothing_read)
    }

    /// Waits for all writes and makes them durable.
    pub fn flush(&mut self) -> Result<(), TransferError> {
        self.settle(0, &mut nothing_read)?;
        self.submit(Extent::default(), Request::Flush);
        self.settle(0, &mut nothing_read)
    }

    fn submit(&mut self, extent: Extent, request: Request<Plain>) {
        let tag = self.in_flight.insert(extent).tag();
        self.channel.submit(Io { tag, request });
        self.channel.kick();
    }

    /// Takes up what the stages below do by themselves. Nothing may be in flight.
    pub fn poll(&mut self) {
        debug_assert_eq!(self.in_flight.len(), 0, "its end would be lost");
        self.channel.poll(&mut Vec::new());
    }

    /// Waits until at most `left` transfers are in flight, or one has failed.
    pub fn settle(&mut self, left: usize, sink: Sink<'_>) -> Result<(), TransferError> {
        let mut ended = Vec::with_capacity(self.depth);
        let mut settled = Ok(());
        loop {
            self.channel.poll(&mut ended);
            for done in ended.drain(..) {
                let extent =
                    Slot::from_tag(done.tag).and_then(|slot| self.in_flight.take(slot)).unwrap_or_default();
                let buffer = done.memory.and_then(GuestSlice::into_buffer);
                let now = match (done.result, buffer) {
                    (Err(error), _) => Err(TransferError::Volume(error)),
                    (Ok(_), Some(buffer)) => sink(extent, buffer),
                    (Ok(_), None) => Ok(()),
                };
                // Take all other completions too, so that no later call finds them.
                settled = settled.and(now);
            }
            if settled.is_err() || self.in_flight.len() <= left {
                return settled;
            }
            self.event_loop.sleep(UNTIL_WOKEN).map_err(TransferError::Volume)?;
        }
    }
}

/// A buffer of `bytes` bytes.
pub fn take(pool: &BufferPool, bytes: usize) -> Result<Buffer, TransferError> {
    pool.take(bytes).ok_or(TransferError::Volume(IoError::from(Errno::NOMEM)))
}

/// The sink of a caller that only writes.
fn nothing_read(_: Extent, _: Buffer) -> Result<(), TransferError> {
    Ok(())
}

/// Splits an extent into pieces for one transfer each, at multiples of the piece size.
pub fn pieces(extent: Extent) -> impl Iterator<Item = Extent> {
    pieces_of(extent, PIECE_BYTES)
}

/// An extent in pieces of at most so many bytes, split where multiples of these are.
pub fn pieces_of(extent: Extent, piece_bytes: u64) -> impl Iterator<Item = Extent> {
    let first = extent.offset() / piece_bytes;
    let last = extent.end().div_ceil(piece_bytes);
    (first..last).map(move |piece| {
        Extent::between(piece * piece_bytes, (piece + 1) * piece_bytes).intersection(extent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_an_extent() {
        let extent = Extent::between(PIECE_BYTES - 1, 2 * PIECE_BYTES + 1);
        let found: Vec<_> = pieces(extent).collect();
        let edges = [PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1];
        assert_eq!(found, edges.windows(2).map(|edge| Extent::between(edge[0], edge[1])).collect::<Vec<_>>());
        assert_eq!(pieces(Extent::default()).count(), 0);
    }
}
