//! A guest with several queues, which writes distinguishable data, and logs its requests and their
//! results.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use strongroom_io::{Channel, Disk, Done, Io, IoError, Plain, Reactor, Request, Thread};
use strongroom_memory::{BufferPool, GuestSlice};
use strongroom_types::{BLOCK_BYTES, Extent, SECTOR_BYTES};

use super::oracle::{Effect, Event, Oracle, RequestId, SectorBytes, blocks_of};

const SECTOR: usize = SECTOR_BYTES as usize;

/// Requests in flight on each queue, at most.
const DEPTH: usize = 6;

/// The guest's requests and observations, with the last moment of the file system before each.
#[derive(Default)]
pub struct Log {
    pub events: Vec<(usize, Event)>,
    pub oracle: Oracle,
}

impl Log {
    pub fn add(&mut self, moment: usize, event: Event) {
        self.oracle.apply(&event);
        self.events.push((moment, event));
    }
}

/// The effect of a request on each block.
type Effects = Vec<(usize, Effect)>;

/// The kind of a request in flight.
#[derive(Clone, Copy)]
enum Asked {
    Read(Extent),
    Change,
    Flush,
}

pub struct Queue {
    channel: Box<dyn Channel<Plain>>,
    in_flight: Vec<(RequestId, Asked)>,
}

pub struct Guest {
    pub queues: Vec<Queue>,
    memory: BufferPool,
    /// Sectors that a request in flight touches.
    busy: BTreeSet<usize>,
    /// Blocks that a request in flight writes.
    written: Vec<usize>,
    touched: Vec<(RequestId, Vec<usize>, Vec<usize>)>,
    next: RequestId,
    /// The size of the disk, as the guest knows it.
    pub size_bytes: u64,
    discards: bool,
    /// The errors of requests.
    pub errors: Vec<IoError>,
    /// Successful reads with wrong data.
    pub wrong: Vec<String>,
}

impl Guest {
    pub fn new(memory: &BufferPool, first_request: RequestId) -> Self {
        Self {
            queues: Vec::new(),
            memory: memory.clone(),
            busy: BTreeSet::new(),
            written: Vec::new(),
            touched: Vec::new(),
            next: first_request,
            size_bytes: 0,
            discards: false,
            errors: Vec::new(),
            wrong: Vec::new(),
        }
    }

    pub fn next_request(&self) -> RequestId {
        self.next
    }

    /// Opens queues, each on its own thread.
    pub fn attach(
        &mut self,
        disk: &dyn Disk<Plain>,
        reactors: &[Rc<dyn Reactor>],
        pool: &BufferPool,
    ) -> Result<(), IoError> {
        let limits = disk.limits();
        (self.size_bytes, self.discards) = (limits.size_bytes, limits.discards);
        for reactor in reactors {
            let thread = Thread { pool: pool.clone(), reactor: Rc::clone(reactor) };
            self.queues.push(Queue { channel: disk.open(&thread, DEPTH)?, in_flight: Vec::new() });
        }
        Ok(())
    }

    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.in_flight.len()).sum()
    }

    /// Submits a random request, if its sectors are free.
    pub fn submit(&mut self, log: &mut Log, moment: usize, random: &mut StdRng) {
        let queue = random.random_range(0..self.queues.len());
        if self.queues[queue].in_flight.len() >= DEPTH {
            return;
        }
        let kind = random.random_range(0..23);
        let durable = random.random_ratio(1, 5);
        let extent = self.extent(random);
        let id = self.next + 1;
        match kind {
            0..11 => {
                let Some((bytes, effects)) = self.content(&log.oracle, extent, id) else { return };
                let Some(mut from) = self.memory.take(bytes.len()) else { return };
                from.bytes_mut().copy_from_slice(&bytes);
                let from = GuestSlice::from_buffer(from);
                self.send(log, moment, queue, effects, durable, Request::Write { extent, from, durable });
            }
            11..14 => {
                let blocks = extent.narrowed_to(BLOCK_BYTES);
                let effects = match self.discards {
                    true => blocks_of(blocks).map(|(block, _)| (block, Effect::Nothing)).collect(),
                    false => Vec::new(),
                };
                if self.is_free(&effects) {
                    self.send(log, moment, queue, effects, false, Request::Discard { extent });
                }
            }
            14..17 => {
                let Some(effects) = self.zeroes(&log.oracle, extent) else { return };
                let may_unmap = random.random();
                self.send(
                    log,
                    moment,
                    queue,
                    effects,
                    durable,
                    Request::WriteZeroes { extent, may_unmap, durable },
                );
            }
            17..20 => self.read(queue, extent),
            _ => {
                self.next = id;
                log.add(moment, Event::FlushSubmitted { id });
                self.queues[queue].in_flight.push((id, Asked::Flush));
                self.queues[queue].channel.submit(Io { tag: id, request: Request::Flush });
            }
        }
    }

    /// Reads sectors without conflicting requests in flight, and reserves them.
    fn read(&mut self, queue: usize, extent: Extent) {
        let sectors: Vec<usize> = sectors_touched(extent).collect();
        let Some(into) = self.memory.take(extent.length() as usize) else { return };
        if sectors.iter().any(|sector| self.busy.contains(sector)) {
            return;
        }
        self.next += 1;
        self.busy.extend(&sectors);
        self.touched.push((self.next, sectors, Vec::new()));
        self.queues[queue].in_flight.push((self.next, Asked::Read(extent)));
        let request = Request::Read { extent, into: GuestSlice::from_buffer(into) };
        self.queues[queue].channel.submit(Io { tag: self.next, request });
    }

    fn send(
        &mut self,
        log: &mut Log,
        moment: usize,
        queue: usize,
        effects: Effects,
        durable: bool,
        request: Request<Plain>,
    ) {
        self.next += 1;
        let id = self.next;
        let sectors: Vec<usize> = sectors_of(&effects).collect();
        let blocks = written_by(&effects);
        self.busy.extend(&sectors);
        self.written.extend(&blocks);
        self.touched.push((id, sectors, blocks));
        log.add(moment, Event::Submitted { id, effects, durable });
        self.queues[queue].in_flight.push((id, Asked::Change));
        self.queues[queue].channel.submit(Io { tag: id, request });
    }

    /// Whole blocks, sectors, or bytes.
    fn extent(&self, random: &mut StdRng) -> Extent {
        let unit = [BLOCK_BYTES, BLOCK_BYTES, SECTOR_BYTES, 1][random.random_range(0..4)];
        let units = self.size_bytes / unit;
        let most = match unit {
            BLOCK_BYTES => 4,
            SECTOR_BYTES => 12,
            _ => 6000,
        };
        let first = random.random_range(0..units);
        let count = random.random_range(1..=most.min(units - first));
        Extent::between(first * unit, (first + count) * unit)
    }

    /// The effect of a write of its own pattern; `None` if a sector is in use, or partially changed
    /// with unknown content.
    fn content(&self, oracle: &Oracle, extent: Extent, id: RequestId) -> Option<(Vec<u8>, Effects)> {
        let mut bytes = vec![0; extent.length() as usize];
        for (at, word) in bytes.chunks_mut(8).enumerate() {
            let pattern = (id << 24 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            word.copy_from_slice(&pattern.to_le_bytes()[..word.len()]);
        }
        let effects = blocks_of(extent).map(|(block, within)| {
            let start = (block as u64 * BLOCK_BYTES + within.start as u64 - extent.offset()) as usize;
            let new = &bytes[start..start + within.len()];
            Some((block, Effect::Written(changed(oracle, block, within, |at| new[at])?)))
        });
        let effects: Effects = effects.collect::<Option<_>>()?;
        self.is_free(&effects).then_some((bytes, effects))
    }

    fn zeroes(&self, oracle: &Oracle, extent: Extent) -> Option<Effects> {
        let effects = blocks_of(extent).map(|(block, within)| {
            if within.len() == BLOCK_BYTES as usize {
                return Some((block, Effect::Nothing));
            }
            Some((block, Effect::Written(changed(oracle, block, within, |_| 0)?)))
        });
        let effects: Effects = effects.collect::<Option<_>>()?;
        self.is_free(&effects).then_some(effects)
    }

    /// Whether no request in flight touches these sectors, nor a block that becomes "nothing here".
    fn is_free(&self, effects: &[(usize, Effect)]) -> bool {
        let becomes_nothing = |(block, effect): &(usize, Effect)| {
            matches!(effect, Effect::Nothing) && self.written.contains(block)
        };
        !sectors_of(effects).any(|sector| self.busy.contains(&sector)) && !effects.iter().any(becomes_nothing)
    }

    pub fn kick(&mut self, queue: usize) {
        self.queues[queue].channel.kick();
    }

    /// Takes completed requests; `moment` is called after their completion.
    pub fn poll(&mut self, queue: usize, log: &mut Log, moment: impl FnOnce() -> usize) {
        let mut done: Vec<Done<Plain>> = Vec::new();
        self.queues[queue].channel.poll(&mut done);
        let moment = moment();
        for Done { tag: id, result, memory } in done {
            let Some(at) = self.queues[queue].in_flight.iter().position(|(other, _)| *other == id) else {
                panic!("request {id} came back and was not in flight");
            };
            let (_, asked) = self.queues[queue].in_flight.swap_remove(at);
            let succeeded = result.is_ok();
            self.errors.extend(result.err());
            match asked {
                Asked::Flush => log.add(moment, Event::FlushEnded { id, succeeded }),
                Asked::Change => log.add(moment, Event::Ended { id, succeeded }),
                Asked::Read(extent) if succeeded => self.wrong.extend(check_read(log, extent, memory).err()),
                Asked::Read(_) => {}
            }
            if let Some(at) = self.touched.iter().position(|(other, ..)| *other == id) {
                let (_, sectors, blocks) = self.touched.swap_remove(at);
                sectors.iter().for_each(|sector| {
                    self.busy.remove(sector);
                });
                for block in blocks {
                    let at = self.written.iter().position(|other| *other == block);
                    at.map(|at| self.written.swap_remove(at));
                }
            }
        }
    }
}

/// Checks the result of a read.
fn check_read(log: &Log, extent: Extent, memory: Option<GuestSlice>) -> Result<(), String> {
    let Some(buffer) = memory.and_then(GuestSlice::into_buffer) else {
        return Err("a read came back without its memory".to_owned());
    };
    for sector in sectors_touched(extent) {
        let start = sector as u64 * SECTOR_BYTES;
        let within = extent.intersection(Extent::between(start, start + SECTOR_BYTES));
        let from = (within.offset() - extent.offset()) as usize;
        let found = &buffer.bytes()[from..from + within.length() as usize];
        if !log.oracle.is_visible(sector, (within.offset() - start) as usize, found) {
            return Err(format!("a read of {extent} shows another sector {sector}"));
        }
    }
    Ok(())
}

fn sectors_touched(extent: Extent) -> impl Iterator<Item = usize> {
    (extent.offset() / SECTOR_BYTES) as usize..extent.end().div_ceil(SECTOR_BYTES) as usize
}

/// The sectors of a block that an extent within it changes, including the bytes around it.
fn changed(
    oracle: &Oracle,
    block: usize,
    within: std::ops::Range<usize>,
    new: impl Fn(usize) -> u8,
) -> Option<Vec<(usize, SectorBytes)>> {
    let sectors = within.start / SECTOR..within.end.div_ceil(SECTOR);
    let changed = sectors.map(|sector| {
        let (start, end) = (sector * SECTOR, (sector + 1) * SECTOR);
        let is_whole = within.start <= start && end <= within.end;
        let mut bytes = match is_whole {
            true => [0; SECTOR],
            false => *oracle.latest(block * (BLOCK_BYTES as usize / SECTOR) + sector)?,
        };
        for at in within.start.max(start)..within.end.min(end) {
            bytes[at - start] = new(at - within.start);
        }
        Some((sector, Arc::new(bytes)))
    });
    changed.collect()
}

fn sectors_of(effects: &[(usize, Effect)]) -> impl Iterator<Item = usize> {
    let per_block = BLOCK_BYTES as usize / SECTOR;
    effects.iter().flat_map(move |(block, effect)| {
        let sectors: Vec<usize> = match effect {
            Effect::Nothing => (0..per_block).collect(),
            Effect::Written(sectors) => sectors.iter().map(|(sector, _)| *sector).collect(),
        };
        sectors.into_iter().map(move |sector| block * per_block + sector)
    })
}

fn written_by(effects: &[(usize, Effect)]) -> Vec<usize> {
    let written = |(block, effect): &(usize, Effect)| matches!(effect, Effect::Written(_)).then_some(*block);
    effects.iter().filter_map(written).collect()
}
