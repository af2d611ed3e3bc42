//! One queue's way into a file volume.

use std::collections::VecDeque;
use std::sync::Arc;

use strongroom_io::{
    Channel, Done, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, Io, IoError, Request,
    Sealed, Slot, Thread, Waker,
};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::blocks::seal_what_was_read;
use super::descriptor::Provisioning;
use super::disk::Shared;
use super::syncs::SyncTicket;

/// What was sent to the file.
enum Sent {
    Read,
    Write,
    /// A write with an fsync of its own blocks.
    DurableWrite(SyncTicket),
    /// An fsync; its failure outlives it.
    Sync(SyncTicket),
    /// A change of allocation that need not be durable yet.
    Space,
    /// A zeroing that must be durable: an fsync follows.
    DurableZero,
}

pub(super) struct FileChannel {
    shared: Arc<Shared>,
    queue: Box<dyn FileQueue>,
    layer: FileToken,
    in_flight: InFlight<(u64, Sent)>,
    /// Flushes that have succeeded and wait for other syncs to end: those before the ticket.
    settling: VecDeque<(SyncTicket, u64)>,
    waker: Arc<Waker>,
    /// What ended without the file's help, until the next poll.
    ended: VecDeque<Done<Sealed>>,
    file_done: Vec<FileDone>,
}

impl FileChannel {
    pub(super) fn open(shared: Arc<Shared>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        let mut queue = thread.reactor.file_queue()?;
        let layer = queue.register(Arc::clone(&shared.layer) as _)?;
        let in_flight = InFlight::with_depth(depth);
        let (ended, file_done) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        let (settling, waker) = (VecDeque::with_capacity(depth), thread.reactor.waker());
        Ok(Self { shared, queue, layer, in_flight, settling, waker, ended, file_done })
    }

    fn send(&mut self, tag: u64, sent: Sent, operation: FileOperation) {
        let slot = self.in_flight.insert((tag, sent));
        self.queue.submit(FileIo { tag: slot.tag(), file: self.layer, operation });
    }

    /// Zeroes read as "nothing here" in the lowest layer, so freeing the space is writing zeroes. A thick volume keeps
    /// its space.
    fn zero(&mut self, extent: Extent, may_unmap: bool) -> FileOperation {
        match self.shared.provisioning {
            Provisioning::Thin if may_unmap => FileOperation::Punch { extent },
            Provisioning::Thin | Provisioning::Thick => FileOperation::Zero { extent },
        }
    }

    fn sync(&mut self, tag: u64) {
        let ticket = self.shared.syncs.begin();
        self.send(tag, Sent::Sync(ticket), FileOperation::SyncData);
    }

    /// Ends the flushes beside which no sync is under way any more.
    fn settle(&mut self, done: &mut Vec<Done<Sealed>>) {
        let syncs = &self.shared.syncs;
        while let Some((next, tag)) = self.settling.front().copied()
            && syncs.have_ended_before(next, &self.waker)
        {
            self.settling.pop_front();
            let result = if syncs.have_failed() { Err(IoError::FlushFailed) } else { Ok(()) };
            done.push(Done { tag, result, memory: None });
        }
    }

    fn finish(&mut self, done: FileDone) -> Option<Done<Sealed>> {
        let (tag, sent) = self.in_flight.take(Slot::from_tag(done.tag)?)?;
        let FileDone { mut result, mut buffer, .. } = done;
        match (sent, result) {
            (Sent::Read, Ok(())) => {
                if let Some(buffer) = &mut buffer {
                    let (bytes, seals) = buffer.parts_mut();
                    seal_what_was_read(bytes, seals, self.shared.epoch);
                }
            }
            // There was no room for the write. Nothing that was acknowledged is lost, and room can come back.
            (Sent::DurableWrite(ticket), Err(IoError::NoSpace)) => self.shared.syncs.end(ticket, false),
            (Sent::DurableWrite(ticket) | Sent::Sync(ticket), Err(_)) => {
                self.shared.syncs.end(ticket, true);
            }
            (Sent::DurableWrite(ticket), Ok(())) => {
                self.shared.syncs.end(ticket, false);
                // What was promised durable beside a failed fsync is not.
                if self.shared.syncs.have_failed() {
                    result = Err(IoError::FlushFailed);
                }
            }
            (Sent::Sync(ticket), Ok(())) => {
                self.shared.syncs.end(ticket, false);
                self.settling.push_back((self.shared.syncs.next(), tag));
                return None;
            }
            (Sent::DurableZero, Ok(())) => {
                self.sync(tag);
                return None;
            }
            (Sent::Read | Sent::Write | Sent::Space | Sent::DurableZero, _) => {}
        }
        Some(Done { tag, result, memory: buffer })
    }
}

impl Channel<Sealed> for FileChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        if let Err(error) = self.shared.limits().check(&io.request) {
            self.ended.push_back(io.end(Err(error)));
            return;
        }
        let flush_failed = self.shared.syncs.have_failed();
        let Io { tag, request } = io;
        match request {
            Request::Read { extent, into } => {
                self.send(tag, Sent::Read, FileOperation::Read { offset: extent.offset(), into });
            }
            Request::Write { from, durable: true, .. } if flush_failed => {
                self.ended.push_back(Done { tag, result: Err(IoError::FlushFailed), memory: Some(from) });
            }
            Request::Write { extent, from, durable } => {
                debug_assert!(from.seals().iter().all(Option::is_some), "a block was written without a seal");
                let sent = match durable {
                    true => Sent::DurableWrite(self.shared.syncs.begin()),
                    false => Sent::Write,
                };
                self.send(tag, sent, FileOperation::Write { offset: extent.offset(), from, durable });
            }
            Request::Flush | Request::WriteZeroes { durable: true, .. } if flush_failed => {
                self.ended.push_back(Done { tag, result: Err(IoError::FlushFailed), memory: None });
            }
            Request::Flush => self.sync(tag),
            Request::Discard { extent } => {
                let extent = extent.narrowed_to(BLOCK_BYTES);
                if extent.is_empty() || self.shared.provisioning == Provisioning::Thick {
                    self.ended.push_back(Done { tag, result: Ok(()), memory: None });
                } else {
                    self.send(tag, Sent::Space, FileOperation::Punch { extent });
                }
            }
            Request::WriteZeroes { extent, .. } if extent.is_empty() => {
                self.ended.push_back(Done { tag, result: Ok(()), memory: None });
            }
            Request::WriteZeroes { extent, may_unmap, durable } => {
                let operation = self.zero(extent, may_unmap);
                self.send(tag, if durable { Sent::DurableZero } else { Sent::Space }, operation);
            }
        }
    }

    fn kick(&mut self) {
        self.queue.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        loop {
            done.extend(self.ended.drain(..));
            let mut file_done = std::mem::take(&mut self.file_done);
            self.queue.poll(&mut file_done);
            let moved = !file_done.is_empty();
            for ended in file_done.drain(..) {
                done.extend(self.finish(ended));
            }
            self.file_done = file_done;
            self.settle(done);
            if !moved {
                return;
            }
            self.queue.kick();
        }
    }
}

impl Drop for FileChannel {
    /// Nobody will hear how the syncs end that are still under way, so nobody waits for them.
    fn drop(&mut self) {
        let mut slots = (0..).map_while(Slot::from_tag);
        while !self.in_flight.is_empty()
            && let Some(slot) = slots.next()
        {
            if let Some((_, Sent::DurableWrite(ticket) | Sent::Sync(ticket))) = self.in_flight.take(slot) {
                self.shared.syncs.end(ticket, false);
            }
        }
    }
}
