//! Appending to the first-write log: writes of a channel that wait together travel in one record.

use std::collections::VecDeque;
use std::sync::Arc;

use strongroom_io::{Done, FileOperation, FileToken, InFlight, IoError, Sealed, Slot, Waker};
use strongroom_memory::{Buffer, BufferPool, CHUNK_BYTES};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::super::log::{Attempts, Log, LogEntry, RECORD_BLOCKS_MAX, RecordEnd, Reservation, Room, Run};
use super::super::syncs::{SyncTicket, Syncs};
use super::{Files, Step};

const BLOCK: usize = BLOCK_BYTES as usize;

/// The most records of a channel under way together. Meanwhile new writes gather for the next
/// record.
const RECORDS_MAX: usize = 2;
/// How often zeroes are written over a failed record, if that fails too.
const ERASURES_MAX: u32 = 3;
/// Runs of cleared blocks in a record, which take no space in it but their entry.
const RUNS_MAX: usize = 128;

/// A request that goes through the log.
struct Asked {
    tag: u64,
    extent: Extent,
    durable: bool,
    what: What,
    /// How many of its blocks are in records already.
    placed: u64,
    /// How many records under way hold blocks of it.
    records: u32,
    /// The attempts to empty the log that had begun when it first found no room.
    waits_since: Option<Attempts>,
    failure: Option<IoError>,
}

enum What {
    /// Writes this content.
    Write { from: Buffer },
    /// Clears these blocks, of which the log holds entries; then the whole extent is cleared in
    /// place too.
    Clear { may_unmap: bool, runs_left: VecDeque<Run> },
}

impl Asked {
    /// Blocks that still need space in a record.
    fn blocks_left(&self) -> u64 {
        match self.what {
            What::Write { .. } => self.extent.length() / BLOCK_BYTES - self.placed,
            What::Clear { .. } => 0,
        }
    }

    fn is_placed(&self) -> bool {
        match self.what {
            What::Write { .. } => self.blocks_left() == 0,
            What::Clear { ref runs_left, .. } => runs_left.is_empty(),
        }
    }
}

/// A record on its way.
struct Record {
    reservation: Reservation,
    /// Its offset in the log's file, in bytes.
    offset: u64,
    entries: Vec<LogEntry>,
    asked: Vec<Slot>,
    sync: Option<SyncTicket>,
    /// Why it has failed; then zeroes are being written over it.
    failure: Option<IoError>,
    erasures: u32,
}

/// A request that has ended.
pub(super) enum Ended {
    Write(Done<Sealed>),
    /// If it succeeded, it must now be done in place.
    Clear {
        tag: u64,
        extent: Extent,
        may_unmap: bool,
        durable: bool,
        result: Result<(), IoError>,
    },
}

pub(super) struct Appender {
    asked: InFlight<Asked>,
    /// Requests that are not yet completely in records.
    waiting: VecDeque<Slot>,
    records: InFlight<Record>,
    ended: VecDeque<Ended>,
    pool: BufferPool,
    waker: Arc<Waker>,
}

impl Appender {
    pub(super) fn new(depth: usize, waker: &Arc<Waker>) -> Self {
        Self {
            asked: InFlight::with_depth(depth),
            waiting: VecDeque::with_capacity(depth),
            records: InFlight::with_depth(RECORDS_MAX),
            ended: VecDeque::new(),
            pool: BufferPool::new(CHUNK_BYTES).expect("a chunk is a pool"),
            waker: Arc::clone(waker),
        }
    }

    /// Takes a write that was routed here.
    pub(super) fn write(&mut self, tag: u64, extent: Extent, from: Buffer, durable: bool) {
        self.ask(tag, extent, durable, What::Write { from });
    }

    /// Takes a request to clear blocks, and the runs of them that the log holds entries of: at
    /// least one.
    pub(super) fn clear(
        &mut self,
        tag: u64,
        extent: Extent,
        runs_left: VecDeque<Run>,
        may_unmap: bool,
        durable: bool,
    ) {
        self.ask(tag, extent, durable, What::Clear { may_unmap, runs_left });
    }

    fn ask(&mut self, tag: u64, extent: Extent, durable: bool, what: What) {
        let asked =
            Asked { tag, extent, durable, what, placed: 0, records: 0, waits_since: None, failure: None };
        let slot = self.asked.insert(asked);
        self.waiting.push_back(slot);
    }

    /// Sends as many records as may be under way.
    pub(super) fn send(&mut self, log: &Log, file: FileToken, files: &mut Files, syncs: &Syncs) {
        while !self.waiting.is_empty() && self.records.len() < RECORDS_MAX {
            let wanted = self.wanted();
            let Some(memory) = self.pool.take((1 + wanted) as usize * BLOCK) else { return };
            let (reservation, offset) = match log.reserve(wanted, &self.waker) {
                Ok(Room::At { reservation, offset }) => (reservation, offset),
                Ok(Room::Later { begun, failed }) => return self.wait_for_room(begun, failed, log),
                Err(error) => return self.fail_waiting(error, log),
            };
            let memory = match reservation.blocks == 1 + wanted {
                true => memory,
                false => {
                    drop(memory);
                    let Some(smaller) = self.pool.take(reservation.blocks as usize * BLOCK) else {
                        // Memory for more was available. If there is none here all the same, the
                        // space is lost until it is trimmed.
                        return log.ended(&reservation, &[], RecordEnd::Erased);
                    };
                    smaller
                }
            };
            let (record, from) = self.fill(reservation, offset, memory, log, syncs);
            let durable = record.sync.is_some();
            let record = self.records.insert(record);
            files.send(file, Step::Record { record }, FileOperation::Write { offset, from, durable });
        }
    }

    /// Blocks of content that the next record should have room for.
    fn wanted(&mut self) -> u32 {
        let mut blocks = 0;
        for slot in &self.waiting {
            blocks += self.asked.get_mut(*slot).map_or(0, |asked| asked.blocks_left());
            if blocks >= u64::from(RECORD_BLOCKS_MAX) {
                return RECORD_BLOCKS_MAX;
            }
        }
        blocks as u32
    }

    /// Puts waiting requests into a record, as far as it has room.
    fn fill(
        &mut self,
        reservation: Reservation,
        offset: u64,
        mut memory: Buffer,
        log: &Log,
        syncs: &Syncs,
    ) -> (Record, Buffer) {
        let (header, contents) = memory.bytes_mut().split_at_mut(BLOCK);
        let mut contents = contents.chunks_exact_mut(BLOCK);
        let (entries, asked) = (Vec::new(), Vec::new());
        let mut record =
            Record { reservation, offset, entries, asked, sync: None, failure: None, erasures: 0 };
        let (mut runs, mut durable) = (0, false);
        while let Some(slot) = self.waiting.front().copied() {
            let Some(asked) = self.asked.get_mut(slot) else { break };
            match &mut asked.what {
                What::Clear { runs_left, .. } => {
                    if runs == RUNS_MAX {
                        break;
                    }
                    let taken = runs_left.drain(..runs_left.len().min(RUNS_MAX - runs));
                    runs += taken.len();
                    record
                        .entries
                        .extend(taken.map(|Run { first, count }| LogEntry::Nothing { first, count }));
                }
                What::Write { from } => {
                    let first = asked.extent.offset() / BLOCK_BYTES;
                    let before = asked.placed;
                    for content in from.bytes().chunks(BLOCK).skip(asked.placed as usize) {
                        let Some(place) = contents.next() else { break };
                        place.copy_from_slice(content);
                        record.entries.push(log.entry(&record.reservation, first + asked.placed, place));
                        asked.placed += 1;
                    }
                    if asked.placed == before {
                        break;
                    }
                }
            }
            asked.records += 1;
            durable |= asked.durable;
            record.asked.push(slot);
            if !asked.is_placed() {
                break;
            }
            self.waiting.pop_front();
        }
        log.encode(header, &record.reservation, &record.entries);
        record.sync = durable.then(|| syncs.begin());
        (record, memory)
    }

    /// A record has ended, or the zeroes over a failed one. Some of a failed record may be in the
    /// file, and would be found when the log is opened: content that its writer was told has
    /// failed, and that no read has shown, would replace what was read meanwhile. So it is erased
    /// before it fails; returns where and with what. If that fails too, no flush succeeds any more.
    pub(super) fn ended(
        &mut self,
        record: Slot,
        result: Result<(), IoError>,
        memory: Option<Buffer>,
        log: &Log,
        syncs: &Syncs,
    ) -> Option<(u64, Buffer)> {
        let found = self.records.get_mut(record)?;
        let mut answer = result;
        match found.sync.take() {
            Some(ticket) => answer = syncs.end_of_durable_write(ticket, result),
            None => log.unsynced.set(),
        }
        let was_erasing = found.failure.is_some();
        if let Err(error) = result {
            found.failure.get_or_insert(answer.err().unwrap_or(error));
            if let Some(mut zeroes) = memory.filter(|_| found.erasures < ERASURES_MAX) {
                found.erasures += 1;
                zeroes.bytes_mut().fill(0);
                return Some((found.offset, zeroes));
            }
        }
        let Record { reservation, entries, asked, failure, .. } = self.records.take(record)?;
        match failure {
            None => log.ended(&reservation, &entries, RecordEnd::Arrived),
            Some(_) if was_erasing && result.is_ok() => log.ended(&reservation, &entries, RecordEnd::Erased),
            Some(_) => {
                log.ended(&reservation, &entries, RecordEnd::Unknown);
                syncs.fail();
            }
        }
        let result = failure.map_or(answer, Err);
        for slot in asked {
            if let Some(asked) = self.asked.get_mut(slot) {
                asked.records -= 1;
                let is_hurt = asked.durable || result != Err(IoError::FlushFailed);
                asked.failure = asked.failure.or(result.err().filter(|_| is_hurt));
            }
            self.end_if_done(slot);
        }
        None
    }

    fn end_if_done(&mut self, slot: Slot) {
        let is_done = self.asked.get_mut(slot).is_some_and(|asked| asked.is_placed() && asked.records == 0);
        if !is_done {
            return;
        }
        let Some(Asked { tag, extent, durable, what, failure, .. }) = self.asked.take(slot) else { return };
        let result = failure.map_or(Ok(()), Err);
        self.ended.push_back(match what {
            What::Write { from } => Ended::Write(Done { tag, result, memory: Some(from) }),
            What::Clear { may_unmap, .. } => Ended::Clear { tag, extent, may_unmap, durable, result },
        });
    }

    /// Keeps requests waiting for room. Fails those that began to wait before an attempt to empty
    /// the log that found none.
    fn wait_for_room(&mut self, begun: Attempts, failed: Attempts, log: &Log) {
        for slot in std::mem::take(&mut self.waiting) {
            let Some(asked) = self.asked.get_mut(slot) else { continue };
            match *asked.waits_since.get_or_insert(begun) < failed {
                true => self.fail(slot, IoError::NoSpace, log),
                false => self.waiting.push_back(slot),
            }
        }
        if !self.waiting.is_empty() && failed == begun {
            log.want_attempt();
        }
    }

    /// There will be no room: fails the requests that wait for it.
    fn fail_waiting(&mut self, error: IoError, log: &Log) {
        for slot in std::mem::take(&mut self.waiting) {
            self.fail(slot, error, log);
        }
    }

    fn fail(&mut self, slot: Slot, error: IoError, log: &Log) {
        let Some(asked) = self.asked.get_mut(slot) else { return };
        asked.failure = asked.failure.or(Some(error));
        asked.abandon(log);
        self.end_if_done(slot);
    }

    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Gives up a record whose completion will never arrive.
    pub(super) fn lost(&mut self, record: Slot, log: &Log, syncs: &Syncs) {
        if let Some(Record { reservation, entries, sync, .. }) = self.records.take(record) {
            log.lost(&reservation, &entries);
            if let Some(ticket) = sync {
                syncs.end(ticket, false);
            }
        }
    }

    /// Gives up the requests that were not sent.
    pub(super) fn give_up(&mut self, log: &Log) {
        for slot in std::mem::take(&mut self.waiting) {
            if let Some(asked) = self.asked.get_mut(slot) {
                asked.abandon(log);
            }
        }
    }
}

impl Asked {
    /// Gives up the blocks that are in no record yet.
    fn abandon(&mut self, log: &Log) {
        match &mut self.what {
            What::Write { .. } => {
                let from = self.extent.offset() + self.placed * BLOCK_BYTES;
                log.give_up(Extent::between(from, self.extent.end()));
                self.placed = self.extent.length() / BLOCK_BYTES;
            }
            What::Clear { runs_left, .. } => runs_left.clear(),
        }
    }
}
