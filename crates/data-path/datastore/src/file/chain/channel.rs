//! The channel of one queue into a chain of layers.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use strongroom_io::{Channel, Done, InFlight, Io, IoError, Request, Sealed, Slot, Thread, Waker};
use strongroom_memory::{Buffer, CHUNK_BYTES, ReservedPool};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::Shared;
use super::closing::{LowerFlush, LowerFlushes};
use super::read::{Next, Reach, Read, Start, blocks_of};
use crate::file::blocks::is_zero;
use crate::file::discards::round::Recorder;
use crate::file::discards::{Answer, Asked};

/// The most blocks that are recorded at once: those of one round.
const RECORD_BLOCKS_MAX: u64 = 1 << 21;

const BLOCK: usize = BLOCK_BYTES as usize;

pub struct ChainChannel {
    shared: Arc<Shared>,
    /// The layers, the top first.
    layers: Vec<Box<dyn Channel<Sealed>>>,
    recorder: Recorder,
    pool: ReservedPool,
    waker: Arc<Waker>,
    active: InFlight<Active>,
    /// Changes whose record is on its way.
    recording: VecDeque<Recording>,
    /// Parts of reads that wait for memory.
    waiting: VecDeque<WaitingPart>,
    returned: Vec<Done<Sealed>>,
    ended: Vec<Done<Sealed>>,
    /// Something was submitted since the last kick.
    unkicked: bool,
}

/// A part of a read that a layer is to be asked for.
struct WaitingPart {
    read: Slot,
    level: usize,
    extent: Extent,
}

/// A request that was sent down.
#[expect(clippy::large_enum_variant, reason = "a read makes no allocation of its own")]
enum Active {
    Read(Read),
    /// A request that was passed to the top unchanged.
    Passed {
        tag: u64,
        /// The blocks that it changes.
        changes: Range<u64>,
    },
    /// A flush of the top and of the layer below it.
    Flush {
        tag: u64,
        /// How many of the two flushes have not ended.
        left: u8,
        /// The lower layer's flush, until it has ended.
        lower: Option<LowerFlush>,
        result: Result<(), IoError>,
    },
}

impl Shared {
    /// What a read needs after what its layer had.
    fn next(&self, read: &mut Read) -> Next {
        let run = if self.is_merged_into(read.level) { read.next_run() } else { None };
        run.unwrap_or_else(|| {
            let level = read.level + 1;
            let Some(blocks) = self.blocks(level) else { return Next::Ended };
            let reach = if self.is_merged_into(level) { Reach::Runs } else { Reach::Span };
            read.descend(blocks.limits().size_bytes, reach)
        })
    }
}

/// A change of the top whose blocks that become "nothing here" must be recorded first.
struct Recording {
    io: Io<Sealed>,
    /// The blocks that are still to be examined.
    rest: Range<u64>,
    /// The blocks that are being recorded: the first of `rest`.
    asked: Option<(Range<u64>, Asked)>,
}

impl ChainChannel {
    pub(super) fn open(shared: Arc<Shared>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        let disks = std::iter::once(&shared.top).chain(shared.lower.iter().map(|layer| &layer.blocks));
        let layers = disks.map(|disk| disk.open(thread, depth)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            layers,
            recorder: Recorder::open(&shared.discards, thread)?,
            pool: ReservedPool::new(&thread.pool, CHUNK_BYTES),
            waker: thread.reactor.waker(),
            active: InFlight::with_depth(depth),
            recording: VecDeque::with_capacity(depth),
            waiting: VecDeque::with_capacity(depth),
            returned: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            unkicked: false,
            shared,
        })
    }

    fn send(&mut self, level: usize, slot: Slot, request: Request<Sealed>) {
        if let Some(layer) = self.layers.get_mut(level) {
            layer.submit(Io { tag: slot.tag(), request });
            self.unkicked = true;
        }
    }

    fn pass(&mut self, io: Io<Sealed>) {
        let changes = changes_of(&io.request);
        let slot = self.active.insert(Active::Passed { tag: io.tag, changes });
        self.send(0, slot, io.request);
    }

    /// Begins a read, at the layers that are known to have its blocks.
    fn read(&mut self, tag: u64, extent: Extent, mut into: Buffer) {
        let mut read = Read::new(tag, extent);
        let shared = &self.shared;
        match read.begin(&shared.owners, |level| shared.is_merged_into(level)) {
            Start::At(level) => {
                let slot = self.active.insert(Active::Read(read));
                self.send(level, slot, Request::Read { extent, into });
            }
            Start::Parts => {
                read.hold(into);
                let slot = self.active.insert(Active::Read(read));
                for level in 1..self.layers.len() {
                    let Some(Active::Read(read)) = self.active.get_mut(slot) else { return };
                    if let Some(extent) = read.take_up_part(level) {
                        self.read_part(slot, level, extent);
                    }
                }
            }
            Start::Nowhere => {
                let (bytes, seals) = into.parts_mut();
                bytes.fill(0);
                seals.fill(None);
                self.ended.push(Done { tag, result: Ok(()), memory: Some(into) });
            }
        }
    }

    fn flush(&mut self, io: Io<Sealed>) {
        let Some(lower) = self.shared.lower_flushes.as_ref().and_then(LowerFlushes::begin) else {
            return self.pass(io);
        };
        let flush = Active::Flush { tag: io.tag, left: 2, lower: Some(lower), result: Ok(()) };
        let slot = self.active.insert(flush);
        self.send(0, slot, Request::Flush);
        self.send(1, slot, Request::Flush);
    }

    /// One of the two layers of a flush has ended.
    fn on_flushed(&mut self, slot: Slot, level: usize, ended: Result<(), IoError>) -> Option<()> {
        let Some(Active::Flush { tag, left, lower, result }) = self.active.get_mut(slot) else { return None };
        if level == 1 {
            lower.take();
        }
        *result = result.and(ended);
        *left -= 1;
        if *left == 0 {
            let (tag, result) = (*tag, *result);
            self.active.take(slot);
            self.ended.push(Done { tag, result, memory: None });
        }
        Some(())
    }

    /// Takes a change of the top in which these blocks may become "nothing here" over blocks of a
    /// lower layer.
    fn change(&mut self, io: Io<Sealed>, blocks: Range<u64>) {
        let rest = blocks.start..blocks.end.min(self.shared.lower_end_block());
        let recording = Recording { io, rest, asked: None };
        self.go_on_recording(recording);
    }

    /// Records the blocks that need it. Once all are recorded, the change goes to the top.
    fn go_on_recording(&mut self, mut recording: Recording) {
        loop {
            let asked = recording.asked.take();
            let (blocks, asked) = match asked {
                Some((blocks, asked)) => (blocks, Some(asked)),
                None => match next_to_record(&recording.io.request, recording.rest.clone()) {
                    Some(blocks) => (blocks, None),
                    None => return self.pass(recording.io),
                },
            };
            match self.shared.discards.ask(blocks.clone(), asked, &self.waker) {
                Ok(Answer::Recorded) => recording.rest.start = blocks.end,
                Ok(Answer::Waits(now)) => {
                    // A request made before is on its way: the channel that records it wakes this
                    // thread.
                    self.unkicked |= asked.is_none();
                    recording.asked = Some((blocks, now));
                    return self.recording.push_back(recording);
                }
                Err(error) => {
                    // Some of it may be recorded, and hide blocks.
                    self.shared.owners.forget(changes_of(&recording.io.request));
                    return self.ended.push(recording.io.end(Err(error)));
                }
            }
        }
    }

    fn on_returned(&mut self, level: usize, done: Done<Sealed>) -> Option<()> {
        let slot = Slot::from_tag(done.tag)?;
        let read = match self.active.get_mut(slot)? {
            Active::Read(read) => read,
            Active::Flush { .. } => return self.on_flushed(slot, level, done.result),
            Active::Passed { .. } => {
                let Some(Active::Passed { tag, changes }) = self.active.take(slot) else { return None };
                // Before the client learns of its end.
                self.shared.owners.forget(changes);
                self.ended.push(Done { tag, ..done });
                return Some(());
            }
        };
        if read.is_in_parts() {
            match read.take_part(level, done.result.map(|()| done.memory)) {
                Some(Next::Whole(extent) | Next::Part(extent)) => self.read_part(slot, 0, extent),
                Some(Next::Ended) => {
                    let result = read.failure();
                    self.end_read(slot, result);
                }
                None => {}
            }
            return Some(());
        }
        let level = read.level;
        let taken = match (done.result, done.memory) {
            (Ok(()), Some(content)) => {
                read.take(content, self.shared.discards(level).map(|discards| &**discards))
            }
            (result, content) => {
                read.into = read.into.take().or(content);
                result
            }
        };
        let next = match taken {
            Ok(()) => self.shared.next(read),
            Err(_) => Next::Ended,
        };
        let level = read.level;
        match next {
            Next::Whole(extent) => {
                let into = read.into.take()?;
                self.send(level, slot, Request::Read { extent, into });
            }
            Next::Part(extent) => self.read_part(slot, level, extent),
            Next::Ended => self.end_read(slot, taken),
        }
        Some(())
    }

    /// Reads the blocks that the layers above do not have, into separate memory.
    fn read_part(&mut self, slot: Slot, level: usize, extent: Extent) {
        match self.pool.take(extent.length() as usize) {
            Some(into) => self.send(level, slot, Request::Read { extent, into }),
            None => self.waiting.push_back(WaitingPart { read: slot, level, extent }),
        }
    }

    fn end_read(&mut self, slot: Slot, result: Result<(), IoError>) {
        if let Some(Active::Read(mut read)) = self.active.take(slot) {
            if result.is_ok() {
                read.teach(&self.shared.owners);
            }
            self.ended.push(Done { tag: read.tag, result, memory: read.into });
        }
    }

    /// Whether there is anything to record. If not, there is no need to take the lock that all
    /// channels share to see whether a round can begin.
    fn records(&self) -> bool {
        !self.recording.is_empty() || self.recorder.is_in_round()
    }

    /// Resumes requests that have waited for memory or for a record.
    fn look_again(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(WaitingPart { read, level, extent }) = self.waiting.pop_front() else { break };
            self.read_part(read, level, extent);
        }
        for _ in 0..self.recording.len() {
            let Some(recording) = self.recording.pop_front() else { break };
            self.go_on_recording(recording);
        }
    }
}

/// The next of the remaining blocks that will become "nothing here".
fn next_to_record(request: &Request<Sealed>, rest: Range<u64>) -> Option<Range<u64>> {
    if rest.is_empty() {
        return None;
    }
    let Request::Write { extent, from, .. } = request else {
        return Some(rest.start..rest.end.min(rest.start + RECORD_BLOCKS_MAX));
    };
    // Ciphertext is never all zero; a clear volume's blocks may be.
    let first = extent.offset() / BLOCK_BYTES;
    let is_nothing = |block: &u64| is_zero(&from.bytes()[(block - first) as usize * BLOCK..][..BLOCK]);
    let start = rest.clone().find(is_nothing)?;
    let end = (start..rest.end).find(|block| !is_nothing(block)).unwrap_or(rest.end);
    Some(start..end)
}

/// The blocks that a request changes.
fn changes_of(request: &Request<Sealed>) -> Range<u64> {
    match request {
        Request::Read { .. } | Request::Flush => 0..0,
        Request::Write { extent, .. } | Request::Discard { extent } | Request::WriteZeroes { extent, .. } => {
            blocks_of(extent.widened_to(BLOCK_BYTES))
        }
    }
}

impl Channel<Sealed> for ChainChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        let limits = self.shared.top.limits();
        if let Err(error) = limits.check(&io.request) {
            return self.ended.push(io.end(Err(error)));
        }
        match io.request {
            Request::Read { extent, into } => self.read(io.tag, extent, into),
            Request::Write { extent, .. } => self.change(io, blocks_of(extent)),
            Request::Flush => self.flush(io),
            // The top keeps its content.
            Request::Discard { .. } if !limits.discards => self.pass(io),
            Request::Discard { extent } => self.change(io, blocks_of(extent.narrowed_to(BLOCK_BYTES))),
            Request::WriteZeroes { extent, .. } => self.change(io, blocks_of(extent)),
        }
    }

    fn kick(&mut self) {
        self.unkicked = false;
        if self.records() {
            self.recorder.kick(&self.pool);
        }
        self.layers.iter_mut().for_each(|layer| layer.kick());
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        loop {
            let mut returned = mem::take(&mut self.returned);
            let mut moved = false;
            for level in 0..self.layers.len() {
                self.layers[level].poll(&mut returned);
                moved |= !returned.is_empty();
                for done in returned.drain(..) {
                    let is_known = self.on_returned(level, done).is_some();
                    debug_assert!(is_known, "a layer returned what was not submitted");
                }
            }
            self.returned = returned;
            // First: a request that is repeated because another channel went away is part of the
            // round that begins below.
            self.look_again();
            moved |= self.records() && self.recorder.poll(&self.pool);
            if self.unkicked {
                self.kick();
            } else if !moved {
                break;
            }
        }
        done.append(&mut self.ended);
    }
}
