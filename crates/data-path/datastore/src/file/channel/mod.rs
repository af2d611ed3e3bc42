//! The channel of one queue into a file volume.
//!
//! A request is one or several operations on files. Writes that go through the first-write log are
//! appended in records ([`append`]). Blocks that the log answers for are read from there
//! ([`read`]). A flush syncs every file that has unsynced changes.

mod append;
mod read;

use std::collections::VecDeque;
use std::sync::Arc;

use strongroom_io::{
    Channel, Done, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, Io, IoError, Request,
    Sealed, Slot, Thread, Waker,
};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};

use self::append::Appender;
use self::read::LogReads;
use super::blocks::seal_what_was_read;
use super::descriptor::Provisioning;
use super::disk::Shared;
use super::log::epochs::Epoch;
use super::log::{Log, Route};
use super::syncs::{FlushEnd, SyncTicket, Unsynced};

/// An operation that was sent to a file, and what its completion needs.
enum Step {
    /// A read of the layer that is a whole request.
    Read { tag: u64, epoch: Option<Epoch> },
    /// A write of the layer. `fills` names blocks that were "nothing here". A durable one is an
    /// fsync of its own blocks.
    Write { tag: u64, epoch: Option<Epoch>, fills: Option<Extent>, sync: Option<SyncTicket> },
    /// A change of the layer's allocation; a durable one is followed by a flush.
    Space { tag: u64, extent: Extent, durable: bool },
    /// An fsync of one of the files that a flush covers.
    Sync { flush: Slot },
    /// A record of the log.
    Record { record: Slot },
    /// A read of the log that is a whole request: so many blocks of a segment.
    LogRead { tag: u64, segment: usize, blocks: usize },
    /// A part of a read of both the layer and the log.
    Part { read: Slot, part: read::Part },
}

/// A flush on its way.
struct Flush {
    tag: u64,
    ticket: SyncTicket,
    /// Syncs that were abandoned before it began.
    abandoned: u64,
    files_left: u32,
    failure: Option<IoError>,
}

pub(super) struct FileChannel {
    shared: Arc<Shared>,
    files: Files,
    flushes: InFlight<Flush>,
    /// Flushes that have succeeded and wait for other syncs to end.
    settling: VecDeque<Settling>,
    waker: Arc<Waker>,
    /// Requests that ended without a file operation, until the next poll.
    ended: VecDeque<Done<Sealed>>,
    file_done: Vec<FileDone>,
    log: Option<LogSide>,
}

/// A flush whose own syncs have succeeded.
struct Settling {
    tag: u64,
    end: FlushEnd,
    abandoned: u64,
}

/// The channel's queue to its files.
struct Files {
    queue: Box<dyn FileQueue>,
    layer: FileToken,
    steps: InFlight<Step>,
}

impl Files {
    fn send(&mut self, file: FileToken, step: Step, operation: FileOperation) {
        let slot = self.steps.insert(step);
        self.queue.submit(FileIo { tag: slot.tag(), file, operation });
    }
}

/// A channel's state for its layer's log.
struct LogSide {
    log: Arc<Log>,
    file: FileToken,
    append: Appender,
    reads: LogReads,
}

impl FileChannel {
    pub(super) fn open(shared: Arc<Shared>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        let mut queue = shared.sync_order.queue(&*shared.layer, thread)?;
        let layer = queue.register(Arc::clone(&shared.layer) as _)?;
        let waker = thread.reactor.waker();
        let log = match &shared.log {
            None => None,
            Some(log) => Some(LogSide {
                file: queue.register(Arc::clone(&log.file) as _)?,
                append: Appender::new(depth, &waker),
                reads: LogReads::new(depth),
                log: Arc::clone(log),
            }),
        };
        Ok(Self {
            shared,
            files: Files { queue, layer, steps: InFlight::with_depth(depth) },
            flushes: InFlight::with_depth(depth),
            settling: VecDeque::with_capacity(depth),
            waker,
            ended: VecDeque::with_capacity(depth),
            file_done: Vec::with_capacity(depth),
            log,
        })
    }

    fn read(&mut self, tag: u64, extent: Extent, into: Buffer) {
        let epoch = match &mut self.log {
            None => None,
            Some(LogSide { log, file, reads, .. }) => {
                let epoch = log.epochs.enter();
                if !log.answers_for_nothing() {
                    reads.begin(tag, extent, into, epoch, log, *file, &mut self.files);
                    self.ended.extend(reads.next_ended());
                    return;
                }
                Some(epoch)
            }
        };
        let operation = FileOperation::Read { offset: extent.offset(), into };
        self.files.send(self.files.layer, Step::Read { tag, epoch }, operation);
    }

    fn write(&mut self, tag: u64, extent: Extent, from: Buffer, durable: bool) {
        debug_assert!(from.seals().iter().all(Option::is_some), "a block was written without a seal");
        let (mut in_epoch, mut fills) = (None, None);
        if let Some(LogSide { log, append, .. }) = &mut self.log {
            let epoch = log.epochs.enter();
            match log.route(&*self.shared.layer, extent) {
                Ok(Route::InPlace) => in_epoch = Some(epoch),
                Ok(Route::FirstInPlace) => (in_epoch, fills) = (Some(epoch), Some(extent)),
                Ok(Route::Log) => {
                    log.epochs.leave(epoch);
                    return append.write(tag, extent, from, durable);
                }
                Err(errno) => {
                    log.epochs.leave(epoch);
                    self.ended.push_back(Done { tag, result: Err(errno.into()), memory: Some(from) });
                    return;
                }
            }
        }
        let sync = durable.then(|| self.shared.syncs.begin());
        let operation = FileOperation::Write { offset: extent.offset(), from, durable };
        self.files.send(self.files.layer, Step::Write { tag, epoch: in_epoch, fills, sync }, operation);
    }

    /// Makes blocks "nothing here": first in the log, where it has entries of them, and then in
    /// place.
    fn clear(&mut self, tag: u64, extent: Extent, may_unmap: bool, durable: bool) {
        if let Some(LogSide { log, append, .. }) = &mut self.log {
            let runs = log.runs(extent);
            if !runs.is_empty() {
                return append.clear(tag, extent, runs, may_unmap, durable);
            }
        }
        self.clear_in_place(tag, extent, may_unmap, durable);
    }

    /// Zeroes read as "nothing here" in the lowest layer, so freeing the space is writing zeroes. A
    /// thick volume keeps its space.
    fn clear_in_place(&mut self, tag: u64, extent: Extent, may_unmap: bool, durable: bool) {
        let operation = match self.shared.provisioning {
            Provisioning::Thin if may_unmap => FileOperation::Punch { extent },
            Provisioning::Thin | Provisioning::Thick => FileOperation::Zero { extent },
        };
        if let Some(LogSide { log, .. }) = &self.log {
            log.cleared(extent);
        }
        self.files.send(self.files.layer, Step::Space { tag, extent, durable }, operation);
    }

    /// Syncs the files with unsynced changes. It waits for changes that another flush is syncing
    /// when it settles.
    fn flush(&mut self, tag: u64) {
        let abandoned = self.shared.syncs.abandoned();
        let (ticket, [layer, log]) = self.shared.syncs.begin_for(self.unsynced());
        let log = self.log.as_ref().filter(|_| log).map(|side| side.file);
        let files = [layer.then_some(self.files.layer), log];
        let files_left = files.iter().flatten().count() as u32;
        let flush = self.flushes.insert(Flush { tag, ticket, abandoned, files_left, failure: None });
        for file in files.into_iter().flatten() {
            self.files.send(file, Step::Sync { flush }, FileOperation::SyncData);
        }
        if files_left == 0 {
            self.end_flush(flush);
        }
    }

    /// The marks of the files that a flush covers: the layer's, and its log's.
    fn unsynced(&self) -> [Option<&Unsynced>; 2] {
        [Some(&self.shared.layer_unsynced), self.log.as_ref().map(|side| &side.log.unsynced)]
    }

    fn synced(&mut self, flush: Slot, result: Result<(), IoError>) {
        let Some(Flush { files_left, failure, .. }) = self.flushes.get_mut(flush) else { return };
        *files_left -= 1;
        *failure = failure.or(result.err());
        if *files_left == 0 {
            self.end_flush(flush);
        }
    }

    fn end_flush(&mut self, flush: Slot) {
        let Some(Flush { tag, ticket, abandoned, failure, .. }) = self.flushes.take(flush) else { return };
        self.shared.syncs.end(ticket, failure.is_some());
        match failure {
            Some(error) => self.ended.push_back(Done { tag, result: Err(error), memory: None }),
            None => self.settling.push_back(Settling { tag, end: FlushEnd::of(ticket), abandoned }),
        }
    }

    /// Ends the flushes for which no earlier sync is still under way.
    fn settle(&mut self, done: &mut Vec<Done<Sealed>>) {
        while let Some(first) = self.settling.front_mut()
            && self.shared.syncs.have_ended_around(&mut first.end, &self.waker)
            && let Some(Settling { tag, abandoned, .. }) = self.settling.pop_front()
        {
            let syncs = &self.shared.syncs;
            let result = match syncs.have_failed() {
                true => Err(IoError::FlushFailed),
                // A sync that it relied on was abandoned.
                false if syncs.abandoned() != abandoned => {
                    self.flush(tag);
                    continue;
                }
                false => Ok(()),
            };
            done.push(Done { tag, result, memory: None });
        }
    }

    fn leave(&self, epoch: Option<Epoch>) {
        if let (Some(epoch), Some(side)) = (epoch, &self.log) {
            side.log.epochs.leave(epoch);
        }
    }

    fn finish(&mut self, done: FileDone) {
        let Some(step) = Slot::from_tag(done.tag).and_then(|slot| self.files.steps.take(slot)) else {
            return;
        };
        let FileDone { mut result, buffer, .. } = done;
        match step {
            Step::Read { tag, epoch } => {
                self.leave(epoch);
                self.end_read(tag, result, buffer);
            }
            Step::Write { tag, epoch, fills, sync } => {
                if let (Ok(()), Some(filled), Some(side)) = (result, fills, &self.log) {
                    side.log.filled(filled);
                }
                self.leave(epoch);
                match sync {
                    Some(ticket) => result = self.shared.syncs.end_of_durable_write(ticket, result),
                    None => self.shared.layer_unsynced.set(),
                }
                self.ended.push_back(Done { tag, result, memory: buffer });
            }
            Step::Space { tag, extent, durable } => {
                if let Some(side) = &self.log {
                    side.log.cleared(extent);
                }
                self.shared.layer_unsynced.set();
                match result {
                    Ok(()) if durable => self.flush(tag),
                    _ => self.ended.push_back(Done { tag, result, memory: None }),
                }
            }
            Step::Sync { flush } => self.synced(flush, result),
            Step::Record { record } => self.record_ended(record, result, buffer),
            Step::LogRead { tag, segment, blocks } => {
                if let Some(side) = &self.log {
                    side.log.release(segment, blocks);
                }
                self.end_read(tag, result, buffer);
            }
            Step::Part { read, part } => {
                if let Some(LogSide { log, reads, .. }) = &mut self.log
                    && let Some(done) = reads.ended(read, part, result, buffer, log, self.shared.epoch)
                {
                    self.ended.push_back(done);
                }
            }
        }
    }

    /// Ends a request that was one read of one file.
    fn end_read(&mut self, tag: u64, result: Result<(), IoError>, mut memory: Option<Buffer>) {
        if let (Ok(()), Some(buffer)) = (result, &mut memory) {
            let (bytes, seals) = buffer.parts_mut();
            seal_what_was_read(bytes, seals, self.shared.epoch);
        }
        self.ended.push_back(Done { tag, result, memory });
    }

    fn record_ended(&mut self, record: Slot, result: Result<(), IoError>, memory: Option<Buffer>) {
        let Some(LogSide { log, file, append, .. }) = &mut self.log else { return };
        if let Some((offset, from)) = append.ended(record, result, memory, log, &self.shared.syncs) {
            let operation = FileOperation::Write { offset, from, durable: false };
            self.files.send(*file, Step::Record { record }, operation);
        }
        self.take_appended();
    }

    /// Ends requests that have gone through the log.
    fn take_appended(&mut self) {
        while let Some(appended) = self.log.as_mut().and_then(|side| side.append.next_ended()) {
            match appended {
                append::Ended::Write(done) => self.ended.push_back(done),
                append::Ended::Clear { tag, extent, may_unmap, durable, result: Ok(()) } => {
                    self.clear_in_place(tag, extent, may_unmap, durable);
                }
                append::Ended::Clear { tag, result, .. } => {
                    self.ended.push_back(Done { tag, result, memory: None });
                }
            }
        }
    }

    /// Sends requests that have waited for room in the log or for memory.
    fn go_on(&mut self) {
        if let Some(LogSide { log, file, append, reads }) = &mut self.log {
            append.send(log, *file, &mut self.files, &self.shared.syncs);
            reads.go_on(log, *file, &mut self.files);
            self.ended.extend(std::iter::from_fn(|| reads.next_ended()));
            self.take_appended();
        }
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
            Request::Read { extent, into } => self.read(tag, extent, into),
            Request::Write { from, durable: true, .. } if flush_failed => {
                self.ended.push_back(Done { tag, result: Err(IoError::FlushFailed), memory: Some(from) });
            }
            Request::Write { extent, from, durable } => self.write(tag, extent, from, durable),
            Request::Flush | Request::WriteZeroes { durable: true, .. } if flush_failed => {
                self.ended.push_back(Done { tag, result: Err(IoError::FlushFailed), memory: None });
            }
            Request::Flush => self.flush(tag),
            Request::Discard { extent } => {
                let extent = extent.narrowed_to(BLOCK_BYTES);
                if extent.is_empty() || self.shared.provisioning == Provisioning::Thick {
                    self.ended.push_back(Done { tag, result: Ok(()), memory: None });
                } else {
                    self.clear(tag, extent, true, false);
                }
            }
            Request::WriteZeroes { extent, .. } if extent.is_empty() => {
                self.ended.push_back(Done { tag, result: Ok(()), memory: None });
            }
            Request::WriteZeroes { extent, may_unmap, durable } => {
                self.clear(tag, extent, may_unmap, durable);
            }
        }
    }

    fn kick(&mut self) {
        self.go_on();
        self.files.queue.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        loop {
            done.extend(self.ended.drain(..));
            let mut file_done = std::mem::take(&mut self.file_done);
            self.files.queue.poll(&mut file_done);
            let moved = !file_done.is_empty();
            for ended in file_done.drain(..) {
                self.finish(ended);
            }
            self.file_done = file_done;
            // Room can appear without a completion of this channel.
            self.go_on();
            self.settle(done);
            self.files.queue.kick();
            if !moved && self.ended.is_empty() {
                return;
            }
        }
    }
}

impl Drop for FileChannel {
    /// Gives up the operations under way: their completions will never arrive, so nothing must wait
    /// for them.
    fn drop(&mut self) {
        let mut slots = (0..).map_while(Slot::from_tag);
        while !self.files.steps.is_empty()
            && let Some(slot) = slots.next()
        {
            match self.files.steps.take(slot) {
                Some(Step::Read { epoch, .. }) => self.leave(epoch),
                Some(Step::Write { epoch, sync, .. }) => {
                    self.leave(epoch);
                    if let Some(ticket) = sync {
                        self.shared.syncs.end(ticket, false);
                    }
                }
                Some(Step::LogRead { segment, blocks, .. }) => {
                    if let Some(side) = &self.log {
                        side.log.release(segment, blocks);
                    }
                }
                Some(Step::Part { part, .. }) => {
                    if let Some(side) = &self.log {
                        part.let_go(&side.log);
                    }
                }
                Some(Step::Record { record }) => {
                    if let Some(LogSide { log, append, .. }) = &mut self.log {
                        append.lost(record, log, &self.shared.syncs);
                    }
                }
                Some(Step::Sync { flush }) => {
                    if let Some(Flush { ticket, .. }) = self.flushes.take(flush) {
                        self.shared.syncs.abandon(ticket, self.unsynced());
                    }
                }
                Some(Step::Space { .. }) | None => {}
            }
        }
        if let Some(LogSide { log, append, .. }) = &mut self.log {
            append.give_up(log);
        }
    }
}
