//! One block request: its progress, and its pieces.

use std::time::Instant;

use strongroom_io::{IoError, Plain, Request};
use strongroom_memory::{GuestAddress, GuestSlice, Segment};
use strongroom_statistics::{ErrorKind, Operation};
use strongroom_types::Extent;

use super::chain::Run;
use super::split_ring::{RingError, SplitRing};
use crate::failure::kind_of;

/// The values of a request's status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Not done, or not in full.
    Failed = 1,
    /// Not supported by this device.
    Unsupported = 2,
}

/// The outcome of a request once none of its pieces is in the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// Some of it failed.
    Failed,
    /// Some of it found no room, and the queue ends: it is not answered, and a successor repeats
    /// it.
    Left,
}

/// A request of a guest.
pub struct Pending {
    pub head: u16,
    /// The address of its status byte.
    pub place: GuestAddress,
    /// Bytes of its memory that are written if it succeeds, including the status.
    pub written_bytes: u32,
    pub operation: Operation,
    /// Bytes that it transfers, for the statistics.
    pub bytes: u64,
    /// When it was taken from the ring.
    pub taken: Instant,
    /// The memory of its content. Byte `run_offset` of run `run` is where the content of `rest`
    /// begins.
    pub runs: Vec<Run>,
    run: usize,
    run_offset: u32,
    /// The extent that is not submitted yet.
    pub rest: Extent,
    pub durable: bool,
    /// Whether a flush follows once every piece is done.
    pub flush_after: bool,
    pub ios: usize,
    /// Count of pieces so far.
    pub pieces: u32,
    pub outcome: Outcome,
    /// The kind that its first failure is counted as.
    pub failure: Option<ErrorKind>,
}

impl Pending {
    /// A request with its status at `place` that transfers `rest`, which is empty if it is no
    /// transfer.
    pub fn new(head: u16, place: GuestAddress, operation: Operation, rest: Extent, taken: Instant) -> Self {
        Self {
            head,
            place,
            written_bytes: 1,
            operation,
            bytes: rest.length(),
            taken,
            runs: Vec::new(),
            run: 0,
            run_offset: 0,
            rest,
            durable: false,
            flush_after: false,
            ios: 0,
            pieces: 0,
            outcome: Outcome::Done,
            failure: None,
        }
    }

    /// Cuts off the next piece of a transfer.
    pub fn next_piece(
        &mut self,
        ring: &SplitRing,
        piece_bytes: u64,
        segments: Vec<Segment>,
    ) -> Result<Request<Plain>, RingError> {
        let extent = first_piece(self.rest, piece_bytes);
        let mut left = extent.length();
        let ranges = std::iter::from_fn(|| {
            let (address, length) = *self.runs.get(self.run).filter(|_| left > 0)?;
            let taken = u64::from(length - self.run_offset).min(left) as u32;
            let start = GuestAddress(address.0 + u64::from(self.run_offset));
            left -= u64::from(taken);
            self.run_offset += taken;
            if self.run_offset == length {
                (self.run, self.run_offset) = (self.run + 1, 0);
            }
            Some((start, taken))
        });
        let memory = GuestSlice::from_guest(ring.memory(), ranges, segments)?;
        self.rest = Extent::between(extent.end(), self.rest.end());
        Ok(match self.operation == Operation::Write {
            true => Request::Write { extent, from: memory, durable: self.durable },
            false => Request::Read { extent, into: memory },
        })
    }

    /// Fails the request: its remaining pieces are not submitted.
    pub fn fail(&mut self, error: &IoError) {
        if self.outcome != Outcome::Failed {
            tracing::warn!(%error, "a guest's request failed");
        }
        self.outcome = Outcome::Failed;
        self.failure.get_or_insert(kind_of(error));
        self.rest = Extent::default();
    }

    /// Leaves the request to a successor, unless it has failed already.
    pub fn leave(&mut self) {
        if self.outcome == Outcome::Done {
            self.outcome = Outcome::Left;
        }
        self.rest = Extent::default();
    }
}

/// The piece that an extent begins with.
pub fn first_piece(extent: Extent, piece_bytes: u64) -> Extent {
    let boundary = (extent.offset() / piece_bytes + 1).saturating_mul(piece_bytes);
    Extent::between(extent.offset(), extent.end().min(boundary))
}

/// Writes the status of a request and puts it into the used ring.
pub fn answer(
    ring: &mut SplitRing,
    head: u16,
    place: GuestAddress,
    written_bytes: u32,
    status: Status,
) -> Result<(), RingError> {
    ring.memory().write(place, &[status as u8])?;
    ring.put_used(head, written_bytes)
}
