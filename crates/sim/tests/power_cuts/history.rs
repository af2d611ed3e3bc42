//! The life of a volume on a simulated file system, recorded moment by moment.
//!
//! It is created, written, grown while it is in use, closed and opened again, renamed, and at last perhaps deleted. At every
//! moment it is known which of its names may exist, how large it may be, and what it may hold.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::CryptDisk;
use strongroom_io::{Disk, IoError, Plain, RangeLocks, Reactor, Thread};
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES, VolumeSize};
use strongroom_worker::layers::epoch_keys;

use super::guest::Guest;
use super::image::read_all;
use super::knowledge::{Account, Allowed, Bench, NAMES, Sort};
use super::mutations::{Broken, Rule, Whose};
use super::oracle::{Event, Oracle, RequestId};

/// A request that no guest makes.
const NOBODYS: RequestId = RequestId::MAX;

pub const DATASTORE: &str = "/ds";

/// A recorded life.
pub struct History {
    pub fs: SimFs,
    pub sort: Sort,
    pub account: Account,
    /// What failed, and with what.
    pub errors: Vec<IoError>,
    /// Reads that succeeded and were wrong.
    pub wrong: Vec<String>,
}

/// What goes wrong while a volume is used, and not while it is created or opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    pub faults: Faults,
    /// Room for so many hundredths of the volume.
    pub room_percent: Option<u64>,
}

/// Where a volume of this name is.
pub fn path(name: &str) -> PathBuf {
    Path::new(DATASTORE).join(name)
}

pub fn options(protection: Protection<'_>) -> OpenOptions<'_> {
    let lock_wait = Duration::ZERO;
    OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 }
}

/// The stages over an open volume, kept apart so that it can grow while it is in use.
struct Stages {
    volume: OpenVolume,
    top: Arc<BlocksizeDisk>,
}

impl Stages {
    fn over(mut volume: OpenVolume) -> Self {
        let blocks = Arc::clone(&volume.disk);
        let plain: Arc<dyn Disk<Plain>> = match volume.descriptor().encryption {
            Some(_) => Arc::new(CryptDisk::new(blocks, Arc::new(epoch_keys(volume.take_deks()).unwrap()))),
            None => Arc::new(CleartextDisk::new(blocks)),
        };
        let size_bytes = volume.descriptor().size_bytes.bytes();
        Self { top: Arc::new(BlocksizeDisk::new(plain, size_bytes, 1, RangeLocks::new()).unwrap()), volume }
    }
}

struct Life<'a> {
    bench: &'a Bench,
    fs: SimFs,
    storage: Box<dyn Storage>,
    rule: Option<Rule>,
    trouble: Trouble,
    random: StdRng,
    sort: Sort,
    name: &'static str,
    size_bytes: u64,
    account: Account,
    open: Option<Stages>,
    /// Empties the log of an open volume that has one.
    destager: Option<Destager>,
    guest: Guest,
    errors: Vec<IoError>,
    wrong: Vec<String>,
}

impl History {
    /// A life of so many steps. A broken rule, if there is one, is broken all along.
    pub fn of(bench: &Bench, seed: u64, steps: usize, rule: Option<Rule>) -> Self {
        // A failure that is forgotten must happen first.
        let faults = match rule {
            Some(Rule::StickyFailureForgotten) => Faults { sync_error_one_in: 8, ..Faults::default() },
            _ => Faults::default(),
        };
        Self::with(bench, seed, steps, rule, Trouble { faults, room_percent: None })
    }

    /// A life in trouble, in which the volume keeps its size and its name.
    pub fn with(bench: &Bench, seed: u64, steps: usize, rule: Option<Rule>, trouble: Trouble) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = SimFs::new(seed);
        let sort = Sort::draw(&mut random);
        let blocks = random.random_range(8..40);
        let size_bytes = blocks * BLOCK_BYTES + random.random_range(0..8) * SECTOR_BYTES;
        let storage: Box<dyn Storage> = match rule {
            Some(rule) => Box::new(Broken::storage(fs.clone(), rule)),
            None => Box::new(fs.clone()),
        };
        // A thick volume has no log: it takes a file system that makes first blocks whole, as the supported ones do.
        fs.set_fills_whole(sort.provisioning == Provisioning::Thick || random.random());
        fs.set_skips_overlapping_syncs(random.random_ratio(1, 3) || rule == Some(Rule::SyncsSideBySide));
        fs.record();
        let mut life = Life {
            bench,
            storage,
            rule,
            trouble,
            random,
            sort,
            name: NAMES[0],
            size_bytes,
            account: Account::new(Oracle::new(size_bytes), Allowed::absent()),
            open: None,
            destager: None,
            guest: Guest::new(&bench.memory, 0),
            errors: Vec::new(),
            wrong: Vec::new(),
            fs,
        };
        life.create();
        life.lived(steps)
    }

    /// The life goes on after a power cut, for so many steps.
    pub fn after(bench: &Bench, fs: SimFs, name: &'static str, sort: Sort, seed: u64, steps: usize) -> Self {
        fs.record();
        let volume = open_on(&fs, &path(name), &options(sort.protection(&bench.kek))).unwrap();
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let stages = Stages::over(volume);
        let first = Oracle::of(&read_all(bench, &fs, seed, &*stages.top).unwrap());
        drop(stages);
        let life = Life {
            bench,
            storage: Box::new(fs.clone()),
            rule: None,
            trouble: Trouble::default(),
            random: StdRng::seed_from_u64(seed),
            sort,
            name,
            size_bytes,
            account: Account::new(first, Allowed::settled(name, size_bytes)),
            open: None,
            destager: None,
            // Its contents differ from those of before.
            guest: Guest::new(&bench.memory, 1 << 20),
            errors: Vec::new(),
            wrong: Vec::new(),
            fs,
        };
        life.lived(steps)
    }
}

impl Life<'_> {
    fn lived(mut self, steps: usize) -> History {
        for _ in 0..steps {
            self.step();
        }
        self.end();
        let Life { fs, sort, account, errors, wrong, .. } = self;
        History { fs, sort, account, errors, wrong }
    }

    fn moment(&self) -> usize {
        self.fs.moments() - 1
    }

    fn allow(&mut self, allowed: Allowed) {
        self.account.allow(self.moment(), allowed);
    }

    fn settled(&self) -> Allowed {
        Allowed::settled(self.name, self.size_bytes)
    }

    fn create(&mut self) {
        self.allow(Allowed { absent: true, ..self.settled() });
        let options = self.bench.create_options(self.sort, self.size_bytes);
        create_on(&*self.storage, &path(self.name), &options).unwrap();
        let taken = describe_on(&*self.storage, &path(self.name)).unwrap().allocated_bytes;
        let room = self.trouble.room_percent.map(|percent| taken + self.size_bytes * percent / 100);
        self.fs.set_capacity(room);
        self.allow(self.settled());
    }

    fn step(&mut self) {
        match self.random.random_range(0..400) {
            0 => self.close(),
            _ if self.is_in_trouble() => self.use_it(),
            1 => {
                self.close();
                self.rename();
            }
            2..4 => self.grow(),
            _ => self.use_it(),
        }
    }

    fn open(&mut self) {
        if self.open.is_some() {
            return;
        }
        let protection = self.sort.protection(&self.bench.kek);
        let volume = open_on(&*self.storage, &path(self.name), &options(protection)).unwrap();
        let stages = Stages::over(volume);
        let reactors: Vec<_> = (0..3).map(|_| self.reactor(Whose::Guest)).collect();
        let thread = Thread { pool: self.bench.pool.clone(), reactor: self.reactor(Whose::Destager) };
        self.destager = stages.volume.disk.destager(&thread).unwrap();
        if let Some(destager) = &mut self.destager {
            // At once, or only when the log is nearly full.
            let eager = self.random.random();
            destager.set_quiet(if eager { Duration::ZERO } else { Duration::from_secs(86_400) });
        }
        self.guest = Guest::new(&self.bench.memory, self.guest.next_request());
        self.guest.attach(&*stages.top, &reactors, &self.bench.pool).unwrap();
        self.open = Some(stages);
    }

    fn reactor(&mut self, whose: Whose) -> Rc<dyn Reactor> {
        let reactor = self.fs.reactor(self.random.random()).unwrap();
        match self.rule {
            Some(rule) => rule.over(reactor, whose),
            None => Rc::new(reactor),
        }
    }

    fn is_in_trouble(&self) -> bool {
        self.trouble.room_percent.is_some() || self.trouble.faults != Faults::default()
    }

    fn use_it(&mut self) {
        self.open();
        let moment = self.moment();
        if self.random.random_ratio(1, 6) {
            self.fs.set_faults(self.trouble.faults);
            if let Some(destager) = &mut self.destager {
                destager.poll();
            }
            self.fs.set_faults(Faults::default());
        } else if self.random.random_ratio(2, 5) {
            self.guest.submit(&mut self.account.log, moment, &mut self.random);
        } else {
            let queue = self.random.random_range(0..self.guest.queues.len());
            self.guest.kick(queue);
            let fs = self.fs.clone();
            fs.set_faults(self.trouble.faults);
            self.guest.poll(queue, &mut self.account.log, || fs.moments() - 1);
            fs.set_faults(Faults::default());
        }
    }

    fn drain(&mut self) {
        while self.guest.in_flight() > 0 {
            for queue in 0..self.guest.queues.len() {
                self.guest.kick(queue);
                let fs = self.fs.clone();
                self.guest.poll(queue, &mut self.account.log, move || fs.moments() - 1);
            }
            // Some of it may wait for room in the log.
            if let Some(destager) = &mut self.destager {
                destager.poll();
            }
        }
    }

    /// Ends destaging: in order, at once, or in the middle of it.
    fn end_destaging(&mut self) {
        let (Some(mut destager), Some(stages)) = (self.destager.take(), &self.open) else { return };
        let end = match self.random.random_range(0..3) {
            0 => End::Empty,
            1 => End::Now,
            _ => return,
        };
        stages.volume.disk.end_destaging(end);
        while destager.ended().is_none() {
            destager.poll();
        }
    }

    fn close(&mut self) {
        self.drain();
        self.guest.queues.clear();
        self.end_destaging();
        self.errors.append(&mut self.guest.errors);
        self.wrong.append(&mut self.guest.wrong);
        if self.open.take().is_some_and(|stages| stages.volume.disk.has_failed_flush()) {
            // The next flush would have failed; opened anew, the volume knows nothing of it.
            let moment = self.moment();
            self.account.log.add(moment, Event::FlushSubmitted { id: NOBODYS });
            self.account.log.add(moment, Event::FlushEnded { id: NOBODYS, succeeded: false });
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.name, NAMES[usize::from(self.name == NAMES[0])]);
        self.allow(Allowed { names: vec![from, to], ..self.settled() });
        rename_on(&*self.storage, &path(from), &path(to)).unwrap();
        self.name = to;
        self.allow(self.settled());
    }

    /// Makes it larger while requests are in flight.
    fn grow(&mut self) {
        self.open();
        let from = self.size_bytes;
        let to = from + self.random.random_range(1..40) * SECTOR_BYTES;
        if to > 64 * BLOCK_BYTES {
            return;
        }
        self.allow(Allowed { sizes: vec![from, to], ..self.settled() });
        let protection = self.sort.protection(&self.bench.kek);
        let Some(stages) = &mut self.open else { return };
        let size = VolumeSize::new(to).unwrap();
        stages.volume.grow(size, protection).unwrap();
        stages.top.grow(to).unwrap();
        self.size_bytes = to;
        self.guest.size_bytes = to;
        let moment = self.moment();
        self.account.log.add(moment, Event::Resized { blocks: to.div_ceil(BLOCK_BYTES) as usize });
        self.allow(self.settled());
    }

    fn end(&mut self) {
        self.close();
        self.fs.set_capacity(None);
        if self.random.random() {
            self.allow(Allowed { absent: true, remains: true, ..self.settled() });
            delete_on(&*self.storage, &path(self.name), Duration::ZERO).unwrap();
            self.allow(Allowed::absent());
        }
    }
}
