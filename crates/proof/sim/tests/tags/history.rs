//! The life of a volume with tags, recorded moment by moment: written, discarded, flushed, closed
//! in order and opened again.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::tags::TagsDisk;
use strongroom_datastore::file::{Access, Integrity, OpenVolume, Provisioning};
use strongroom_io::{Disk, Done, Io, IoError, Reactor, Request, Sealed};
use strongroom_keys::Kek;
use strongroom_memory::BufferPool;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::BLOCK_BYTES;

use super::mutations::{Rule, SaidAt};
use super::oracle::{Event, Oracle, RequestId};
use super::volume::*;

/// Requests in flight on each queue, at most.
const DEPTH: usize = 5;

/// The blocks in use: neighbours on both sides of the boundaries of a page of tags and of a region.
const SMALL: [std::ops::Range<u64>; 3] = [0..6, 253..259, 510..514];
/// More pages of tags than fit in memory.
const LARGE: [std::ops::Range<u64>; 9] =
    [0..4, 254..258, 600..602, 1100..1102, 1700..1702, 2300..2302, 2900..2902, 3500..3502, 4092..4100];

/// Up to this size every block of a volume is known; of a larger one, those in use.
pub const ALL_KNOWN: u64 = 600;

/// One in this many volumes has more than one region, and more pages of tags than fit in memory.
pub const LARGE_EVERY: u64 = 16;

/// A recorded life.
pub struct History {
    pub fs: SimFs,
    pub events: Vec<(usize, Event)>,
    /// The knowledge at the start.
    pub first: Oracle,
    /// Violations.
    pub wrong: Vec<String>,
    pub adopted: u64,
    /// Detected reads of damaged blocks.
    pub detected: usize,
    /// Writes that found no room.
    pub refused: usize,
    /// The moments at which the presence of tag pages was written.
    pub said: Vec<usize>,
}

/// The disk under a queue, and its open volume.
type Opened = (Option<TagsDisk>, Arc<dyn Disk<Sealed>>, OpenVolume);

pub struct Life<'a> {
    pub fs: SimFs,
    pub kek: &'a Kek,
    pub random: StdRng,
    pub rule: Option<Rule>,
    pub faults: Faults,
    pool: BufferPool,
    oracle: Oracle,
    history: History,
    said: SaidAt,
    used: Vec<u64>,
    queues: Vec<Queue>,
    disk: Option<Opened>,
    integrity: bool,
    may_be_full: bool,
    in_flight: Vec<Asked>,
    busy: BTreeSet<u64>,
    next: RequestId,
}

struct Asked {
    queue: usize,
    id: RequestId,
    blocks: Vec<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Change { durable: bool },
    Flush,
}

pub fn used(size_blocks: u64) -> Vec<u64> {
    let ranges = if size_blocks > 4096 { &LARGE[..] } else { &SMALL };
    ranges.iter().cloned().flatten().filter(|block| *block < size_blocks).collect()
}

/// A life leaks the handles of its end.
impl Drop for History {
    fn drop(&mut self) {
        self.fs.discard();
    }
}

impl History {
    /// A life from the volume's creation on.
    pub fn of(kek: &Kek, seed: u64, steps: usize, rule: Option<Rule>, faults: Faults) -> Self {
        Self::with(kek, seed, steps, rule, faults, true)
    }

    /// The same life of a volume without tags.
    pub fn without_tags(kek: &Kek, seed: u64, steps: usize, faults: Faults) -> Self {
        Self::with(kek, seed, steps, None, faults, false)
    }

    /// A life of a thin volume in a datastore with room for this many more bytes.
    pub fn in_room_of(kek: &Kek, seed: u64, steps: usize, room_bytes: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let fs = SimFs::new(seed);
        create_volume(&fs, kek, 520 * BLOCK_BYTES, Provisioning::Thin, Some(Integrity::NEW));
        let directory = Storage::open_directory(&fs, Path::new(PATH)).unwrap();
        let names = directory.names().unwrap();
        let taken: u64 = names.iter().map(|name| directory.allocated_bytes(name).unwrap()).sum();
        fs.set_capacity(Some(taken + room_bytes));
        fs.record();
        let mut life = Life::new(kek, fs, random, None, Faults::default(), Oracle::default(), 0);
        life.may_be_full = true;
        life.lived(steps)
    }

    fn with(kek: &Kek, seed: u64, steps: usize, rule: Option<Rule>, faults: Faults, integrity: bool) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = SimFs::new(seed);
        let blocks = if seed.is_multiple_of(LARGE_EVERY) { 4100 } else { random.random_range(260..520) };
        let thin = random.random_ratio(3, 4);
        let provisioning = if thin { Provisioning::Thin } else { Provisioning::Thick };
        let algorithm = if seed.is_multiple_of(2) { Integrity::HmacSha256Absence } else { Integrity::NEW };
        create_volume(&fs, kek, blocks * BLOCK_BYTES, provisioning, integrity.then_some(algorithm));
        // The other rules need the stage's queue to be the leaf's own.
        let skips = rule.map_or_else(|| random.random_ratio(1, 3), |rule| rule == Rule::SyncsSideBySide);
        fs.set_skips_overlapping_syncs(skips);
        fs.record();
        let mut life = Life::new(kek, fs, random, rule, faults, Oracle::default(), 0);
        life.integrity = integrity;
        life.lived(steps)
    }
}

impl<'a> Life<'a> {
    pub fn new(
        kek: &'a Kek,
        fs: SimFs,
        random: StdRng,
        rule: Option<Rule>,
        faults: Faults,
        oracle: Oracle,
        first_request: RequestId,
    ) -> Self {
        let history = History {
            fs: fs.clone(),
            events: Vec::new(),
            first: oracle.clone(),
            wrong: Vec::new(),
            adopted: 0,
            detected: 0,
            refused: 0,
            said: Vec::new(),
        };
        let said = SaidAt { fs: fs.clone(), moments: Arc::default() };
        Self {
            fs,
            kek,
            random,
            rule,
            faults,
            pool: BufferPool::new(32 << 20).unwrap(),
            oracle,
            history,
            said,
            used: Vec::new(),
            queues: Vec::new(),
            disk: None,
            integrity: true,
            may_be_full: false,
            in_flight: Vec::new(),
            busy: BTreeSet::new(),
            next: first_request,
        }
    }

    pub fn lived(mut self, steps: usize) -> History {
        for _ in 0..steps {
            self.open();
            match self.random.random_range(0..100) {
                0 if !self.lies() => self.close(),
                1..40 => self.submit(),
                _ => {
                    let queue = self.random.random_range(0..self.queues.len());
                    self.poll(queue);
                }
            }
        }
        if self.random.random() {
            self.close();
        }
        // Otherwise it ends abruptly, like a killed process.
        std::mem::forget(self.queues);
        std::mem::forget(self.disk);
        self.history.said = std::mem::take(&mut self.said.moments.lock());
        self.history
    }

    fn moment(&self) -> usize {
        self.fs.moments() - 1
    }

    fn log(&mut self, event: Event) {
        self.oracle.apply(&event);
        let moment = self.moment();
        self.history.events.push((moment, event));
    }

    fn open(&mut self) {
        if self.disk.is_some() {
            return;
        }
        let mut volume = open_volume(&self.fs, self.kek, Access::ReadWrite).unwrap();
        let below: Arc<dyn Disk<Sealed>> = match self.rule {
            Some(rule) => rule.below(Arc::clone(&volume.disk) as _),
            None => Arc::clone(&volume.disk) as _,
        };
        if let (Some(Rule::SyncsSideBySide), Some((_, facts))) = (self.rule, &mut volume.tags) {
            facts.syncs_in_turn = false;
        }
        let sidecar = volume.tags.clone().map(|(file, _)| file);
        let tags = self.integrity.then(|| tags_over(Arc::clone(&below), &mut volume));
        let disk = tags.clone().map_or(below, |tags| Arc::new(tags) as _);
        self.used = used(disk.limits().size_bytes / BLOCK_BYTES);
        for _ in 0..2 {
            let reactor = self.fs.reactor(self.random.random()).unwrap();
            let reactor: Rc<dyn Reactor> = match self.rule.zip(sidecar.clone()) {
                Some((rule, sidecar)) => rule.over(reactor, sidecar, self.said.clone()),
                None => Rc::new(reactor),
            };
            self.queues.push(Queue::open(&*disk, reactor, &self.pool));
        }
        self.disk = Some((tags, disk, volume));
    }

    /// Whether the disk lies about writes; then adopted blocks are not checked.
    fn lies(&self) -> bool {
        self.faults.corrupt_one_in > 0 || self.faults.misdirect_one_in > 0
    }

    fn close(&mut self) {
        let flush = self.random.random();
        if flush && self.disk.is_some() {
            self.drain();
            self.flush(0);
        }
        self.drain();
        self.queues.clear();
        if let Some((Some(tags), ..)) = self.disk.take() {
            self.history.adopted += tags.counts().adopted;
            tags.close();
        }
    }

    fn drain(&mut self) {
        for _ in 0..100_000 {
            if self.in_flight.is_empty() {
                return;
            }
            for queue in 0..self.queues.len() {
                self.poll(queue);
            }
        }
        self.history.wrong.push("requests do not end".to_owned());
        self.in_flight.clear();
    }

    fn flush(&mut self, queue: usize) {
        self.next += 1;
        let id = self.next;
        self.log(Event::FlushSubmitted { id });
        self.in_flight.push(Asked { queue, id, blocks: Vec::new(), kind: Kind::Flush });
        self.queues[queue].channel.submit(Io { tag: id, request: Request::Flush });
    }

    fn submit(&mut self) {
        let queue = self.random.random_range(0..self.queues.len());
        if self.in_flight.iter().filter(|asked| asked.queue == queue).count() >= DEPTH {
            return;
        }
        let first = self.used[self.random.random_range(0..self.used.len())];
        let last_of_run = (first..).take_while(|block| self.used.contains(block)).last().unwrap();
        let count = self.random.random_range(1..=4.min(last_of_run - first + 1));
        let kind = self.random.random_range(0..20);
        if kind >= 17 {
            return self.flush(queue);
        }
        // Now and then everything is discarded.
        let all = (12..15).contains(&kind) && self.random.random_ratio(1, 8);
        let size_blocks = self.disk.as_ref().map_or(0, |(_, disk, _)| disk.limits().size_bytes / BLOCK_BYTES);
        let (first, count) = if all { (0, size_blocks) } else { (first, count) };
        let blocks_of: Vec<u64> = match all {
            true if size_blocks <= ALL_KNOWN => (0..size_blocks).collect(),
            true => self.used.clone(),
            false => (first..first + count).collect(),
        };
        if blocks_of.iter().any(|block| self.busy.contains(block)) {
            return;
        }
        let extent = blocks(first, count);
        let durable = self.random.random_ratio(1, 6);
        self.next += 1;
        let id = self.next;
        let keeps = self.disk.as_ref().is_some_and(|(_, disk, _)| !disk.limits().discards);
        let (request, kind, version) = match kind {
            0..4 => (self.queues[queue].read_request(extent), Kind::Read, None),
            4..12 => {
                (self.queues[queue].write_request(id, extent, durable), Kind::Change { durable }, Some(id))
            }
            12..15 => {
                let version = if keeps { None } else { Some(0) };
                (Request::Discard { extent }, Kind::Change { durable: false }, version)
            }
            _ => {
                let may_unmap = self.random.random();
                (Request::WriteZeroes { extent, may_unmap, durable }, Kind::Change { durable }, Some(0))
            }
        };
        self.busy.extend(&blocks_of);
        if let Some(version) = version {
            self.log(Event::Submitted { id, blocks: blocks_of.clone(), version });
        }
        self.in_flight.push(Asked { queue, id, blocks: blocks_of, kind });
        self.queues[queue].channel.submit(Io { tag: id, request });
    }

    fn poll(&mut self, queue: usize) {
        let mut done: Vec<Done<Sealed>> = Vec::new();
        self.fs.set_faults(self.faults);
        self.queues[queue].channel.kick();
        self.queues[queue].channel.poll(&mut done);
        self.fs.set_faults(Faults::default());
        for Done { tag: id, result, memory } in done {
            let at = self.in_flight.iter().position(|asked| asked.id == id).unwrap();
            let Asked { blocks, kind, .. } = self.in_flight.swap_remove(at);
            for block in &blocks {
                self.busy.remove(block);
            }
            if let Err(error @ IoError::Integrity { .. }) = result {
                match self.lies() {
                    true => self.history.detected += 1,
                    false => self.history.wrong.push(format!("a false alarm: {error}")),
                }
            }
            let is_change = matches!(kind, Kind::Change { .. });
            let finds_no_room = is_change && self.may_be_full && result == Err(IoError::NoSpace);
            self.history.refused += usize::from(finds_no_room);
            if result.is_err() && !finds_no_room && self.faults == Faults::default() {
                self.history.wrong.push(format!("request {id} failed: {result:?}"));
            }
            let succeeded = result.is_ok();
            match kind {
                Kind::Read => {
                    let content = memory.unwrap();
                    let pairs = blocks.iter().zip(content.bytes().chunks(BLOCK));
                    for (block, content) in pairs.filter(|_| succeeded) {
                        if !self.oracle.allows(*block, content) {
                            self.history.wrong.push(format!("a read of block {block} shows something else"));
                        }
                    }
                }
                Kind::Change { durable } => self.log(Event::Ended { id, succeeded, durable }),
                Kind::Flush => self.log(Event::FlushEnded { id, succeeded }),
            }
        }
    }
}
