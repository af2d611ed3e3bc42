//! What the stages between plain and sealed have in common: a buffer of our own between guest
//! memory and disk.
//!
//! Nothing is ever converted in place. A guest could watch its memory while it held ciphertext,
//! could change it under a write so that the sealed bytes are of no text at all, and would find its
//! own buffer changed by writing it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use strongroom_io::{
    Channel, Disk, Done, InFlight, Io, IoError, Limits, Plain, Request, Sealed, Slot, Thread,
};
use strongroom_memory::{Buffer, GuestSlice, MAX_BUFFER_BYTES, ReservedPool};
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::ENOMEM;

/// How bytes and seals come from guest memory and go there. Lengths agree and extents are whole
/// blocks.
pub trait Conversion {
    /// Fills `into` and its seals with what `from` becomes at `extent`.
    fn seal(&mut self, extent: Extent, from: &GuestSlice, into: &mut Buffer) -> Result<(), IoError>;

    /// Fills `into` with what `from` is at `extent`, block by block as its seals say.
    fn unseal(&mut self, extent: Extent, from: &Buffer, into: &mut GuestSlice) -> Result<(), IoError>;
}

/// The limits above a disk of sealed blocks: whole blocks only, and no transfer that a buffer does
/// not hold.
pub fn limits(below: Limits) -> Limits {
    let block_bytes = (BLOCK_BYTES as u32).max(below.block_bytes);
    Limits {
        size_bytes: Extent::between(0, below.size_bytes).narrowed_to(BLOCK_BYTES).length(),
        block_bytes,
        preferred_bytes: below.preferred_bytes.max(block_bytes),
        transfer_bytes_max: below.transfer_bytes_max.min(MAX_BUFFER_BYTES as u32),
        ..below
    }
}

/// One queue's way through such a stage.
pub struct BounceChannel<C> {
    disk: Arc<dyn Disk<Sealed>>,
    below: Box<dyn Channel<Sealed>>,
    pool: ReservedPool,
    conversion: C,
    active: InFlight<Active>,
    /// Transfers that wait for a buffer, first come, first served.
    waiting: VecDeque<Io<Plain>>,
    /// Count of transfers that hold a buffer.
    buffered: usize,
    /// Whether something was submitted below since the last kick.
    unkicked: bool,
    returned: Vec<Done<Sealed>>,
    ended: Vec<Done<Plain>>,
}

enum Active {
    Read { tag: u64, extent: Extent, into: GuestSlice },
    Write { tag: u64, from: GuestSlice },
    Other { tag: u64 },
}

impl<C: Conversion> BounceChannel<C> {
    pub fn open(
        disk: &Arc<dyn Disk<Sealed>>,
        conversion: C,
        thread: &Thread,
        depth: usize,
    ) -> Result<Self, IoError> {
        Ok(Self {
            below: disk.open(thread, depth)?,
            disk: Arc::clone(disk),
            pool: ReservedPool::new(&thread.pool, MAX_BUFFER_BYTES),
            conversion,
            active: InFlight::with_depth(depth),
            waiting: VecDeque::with_capacity(depth),
            buffered: 0,
            unkicked: false,
            returned: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
        })
    }

    /// Sends the request below; a transfer for which there is no buffer comes back.
    fn begin(&mut self, io: Io<Plain>) -> Result<(), Io<Plain>> {
        let tag = io.tag;
        let (active, request) = match io.request {
            Request::Read { extent, into } => match self.pool.take(into.len()) {
                Some(buffer) => (Active::Read { tag, extent, into }, Request::Read { extent, into: buffer }),
                None => return Err(Io { tag, request: Request::Read { extent, into } }),
            },
            Request::Write { extent, from, durable } => match self.pool.take(from.len()) {
                Some(mut buffer) => match self.conversion.seal(extent, &from, &mut buffer) {
                    Ok(()) => (Active::Write { tag, from }, Request::Write { extent, from: buffer, durable }),
                    Err(error) => {
                        self.ended.push(Done { tag, result: Err(error), memory: Some(from) });
                        return Ok(());
                    }
                },
                None => return Err(Io { tag, request: Request::Write { extent, from, durable } }),
            },
            Request::Flush => (Active::Other { tag }, Request::Flush),
            Request::Discard { extent } => (Active::Other { tag }, Request::Discard { extent }),
            Request::WriteZeroes { extent, may_unmap, durable } => {
                (Active::Other { tag }, Request::WriteZeroes { extent, may_unmap, durable })
            }
        };
        self.buffered += usize::from(!matches!(active, Active::Other { .. }));
        let slot = self.active.insert(active);
        self.below.submit(Io { tag: slot.tag(), request });
        self.unkicked = true;
        Ok(())
    }

    /// Lets those go on that wait for a buffer, in order, as far as there are any.
    fn serve_waiting(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            if let Err(io) = self.begin(io) {
                if self.buffered > 0 {
                    return self.waiting.push_front(io);
                }
                // Even the untouched reserve could not be had: the system has no memory left.
                self.ended.push(io.end(Err(IoError::from_errno(ENOMEM))));
            }
        }
    }

    fn on_returned(&mut self, done: Done<Sealed>) {
        let Some(active) = Slot::from_tag(done.tag).and_then(|slot| self.active.take(slot)) else {
            debug_assert!(false, "the disk below returned what was not submitted");
            return;
        };
        let ended = match active {
            Active::Other { tag } => Done { tag, result: done.result, memory: None },
            Active::Write { tag, from } => {
                self.buffered -= 1;
                Done { tag, result: done.result, memory: Some(from) }
            }
            Active::Read { tag, extent, mut into } => {
                self.buffered -= 1;
                let result = match (done.result, done.memory) {
                    (Ok(()), Some(buffer)) => self.conversion.unseal(extent, &buffer, &mut into),
                    // A transfer brings its memory back. Should one ever not, what was read is
                    // lost.
                    (Ok(()), None) => Err(IoError::Short { done_bytes: 0, wanted_bytes: extent.length() }),
                    (Err(error), _) => Err(error),
                };
                Done { tag, result, memory: Some(into) }
            }
        };
        self.ended.push(ended);
    }
}

impl<C: Conversion> Channel<Plain> for BounceChannel<C> {
    fn submit(&mut self, io: Io<Plain>) {
        if let Err(error) = limits(self.disk.limits()).check(&io.request) {
            return self.ended.push(io.end(Err(error)));
        }
        let is_transfer = matches!(io.request, Request::Read { .. } | Request::Write { .. });
        if is_transfer && !self.waiting.is_empty() {
            return self.waiting.push_back(io);
        }
        if let Err(io) = self.begin(io) {
            self.waiting.push_back(io);
            self.serve_waiting();
        }
    }

    fn kick(&mut self) {
        self.unkicked = false;
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.below.poll(&mut self.returned);
        while !self.returned.is_empty() {
            let mut returned = mem::take(&mut self.returned);
            returned.drain(..).for_each(|done| self.on_returned(done));
            self.returned = returned;
            self.serve_waiting();
            if self.unkicked {
                self.kick();
                self.below.poll(&mut self.returned);
            }
        }
        done.append(&mut self.ended);
    }
}

/// The runs of blocks that bear the same seal: where each starts, where it ends, in bytes, and the
/// seal.
pub fn runs<S: Copy + Eq>(seals: &[S]) -> impl Iterator<Item = (std::ops::Range<usize>, S)> {
    let mut start = 0;
    seals.chunk_by(|a, b| a == b).map(move |run| {
        let from = start;
        start += run.len() * BLOCK_BYTES as usize;
        (from..start, run[0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_equal_seals() {
        assert_eq!(runs::<u8>(&[]).count(), 0);
        let found: Vec<_> = runs(&[1, 1, 2, 1]).collect();
        assert_eq!(found, [(0..8192, 1), (8192..12_288, 2), (12_288..16_384, 1)]);
    }
}
