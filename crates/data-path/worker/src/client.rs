//! A client of a disk for one thread: transfers of its own memory, several in flight.

use std::rc::Rc;

use rustix::io::Errno;
use strongroom_io::{Channel, Disk, InFlight, Io, IoError, Plain, Request, Slot, TRANSFER_BYTES_MAX, Thread};
use strongroom_memory::{Buffer, BufferPool, GuestSlice};
use strongroom_ring::Ring;
use strongroom_types::Extent;

use crate::file_writer::WRITES_MAX;
use crate::transfer::TransferError;

/// Transfers in flight: enough that a disk, or the cipher, never waits for the next one.
const DEPTH: usize = 16;

/// Bytes of one transfer: the most that a disk takes.
const PIECE_BYTES: u64 = TRANSFER_BYTES_MAX as u64;

/// Memory for our transfers: each piece in flight, and one that is being filled; half a chunk each.
/// Data that was read may take as much again until it is written to a file, and as much a third
/// time where runs of it were copied.
const OWN_MEMORY_BYTES: usize = (DEPTH + 2 + 2 * WRITES_MAX) * PIECE_BYTES as usize;

/// Memory for the stages below, separate from ours, so that transfers that wait here cannot starve
/// operations that must end there.
const STAGE_MEMORY_BYTES: usize = 32 << 20;

/// Takes the content of a read, and its extent on the disk.
pub type Sink<'a> = &'a mut dyn FnMut(Extent, Buffer) -> Result<(), TransferError>;

/// A client of a disk for one thread.
pub struct Client {
    ring: Ring,
    pool: BufferPool,
    channel: Box<dyn Channel<Plain>>,
    /// The extent of each transfer in flight; empty for a flush.
    in_flight: InFlight<Extent>,
}

impl Client {
    pub fn open(disk: &dyn Disk<Plain>) -> Result<Self, TransferError> {
        let ring = Ring::new(2 * DEPTH)?;
        let thread = Thread { pool: BufferPool::new(STAGE_MEMORY_BYTES)?, reactor: Rc::new(ring.clone()) };
        let channel = disk.open(&thread, DEPTH).map_err(TransferError::Volume)?;
        let pool = BufferPool::new(OWN_MEMORY_BYTES)?;
        Ok(Self { ring, pool, channel, in_flight: InFlight::with_depth(DEPTH) })
    }

    /// A buffer for one piece. At most [`DEPTH`] are in flight and one is being filled, so there is
    /// always a free one.
    pub fn take_buffer(&self) -> Result<Buffer, TransferError> {
        self.take(PIECE_BYTES as usize)
    }

    fn take(&self, bytes: usize) -> Result<Buffer, TransferError> {
        take(&self.pool, bytes)
    }

    /// The thread's event loop, and the pool that read buffers come from.
    pub fn ring_and_pool(&self) -> (&Ring, &BufferPool) {
        (&self.ring, &self.pool)
    }

    /// Starts a write of a piece.
    pub fn write(&mut self, extent: Extent, bytes: &[u8]) -> Result<(), TransferError> {
        self.settle(DEPTH - 1, &mut nothing_read)?;
        let mut buffer = self.take(bytes.len())?;
        buffer.bytes_mut().copy_from_slice(bytes);
        self.submit(extent, Request::Write { extent, from: GuestSlice::from_buffer(buffer), durable: false });
        Ok(())
    }

    /// Makes an extent read as zeroes, and frees its space if possible.
    pub fn write_zeroes(&mut self, extent: Extent) -> Result<(), TransferError> {
        self.settle(DEPTH - 1, &mut nothing_read)?;
        self.submit(extent, Request::WriteZeroes { extent, may_unmap: true, durable: false });
        Ok(())
    }

    /// Starts a read of a piece; `sink` gets the content of this read or of earlier ones.
    pub fn read(&mut self, extent: Extent, sink: Sink<'_>) -> Result<(), TransferError> {
        self.settle(DEPTH - 1, sink)?;
        let into = GuestSlice::from_buffer(self.take(extent.length() as usize)?);
        self.submit(extent, Request::Read { extent, into });
        Ok(())
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

    /// Waits until at most `left` transfers are in flight, or one has failed.
    pub fn settle(&mut self, left: usize, sink: Sink<'_>) -> Result<(), TransferError> {
        let mut ended = Vec::with_capacity(DEPTH);
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
            self.ring.wait(None).map_err(TransferError::Volume)?;
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
    let first = extent.offset() / PIECE_BYTES;
    let last = extent.end().div_ceil(PIECE_BYTES);
    (first..last).map(move |piece| {
        Extent::between(piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES).intersection(extent)
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
