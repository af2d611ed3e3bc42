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
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::BufferPool;
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES, VolumeSize};
use strongroom_worker::stack::epoch_keys;

use super::guest::{Guest, Log};
use super::image::read_all;
use super::mutations::{Broken, Rule, Whose};
use super::oracle::{Event, Oracle};

/// What all histories of a thread share.
pub struct Bench {
    pub kek: Kek,
    pub pool: BufferPool,
    pub memory: BufferPool,
}

impl Bench {
    pub fn new() -> Self {
        let secret = SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap();
        Self {
            kek: KekSource::KeyFile {}.kek(&secret).unwrap(),
            pool: BufferPool::new(64 << 20).unwrap(),
            memory: BufferPool::new(64 << 20).unwrap(),
        }
    }
}

/// What sort of volume it is.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    pub encrypted: bool,
    pub provisioning: Provisioning,
}

impl Sort {
    fn draw(random: &mut StdRng) -> Self {
        let encrypted = random.random_ratio(4, 5);
        let thin = random.random_ratio(3, 4);
        Self { encrypted, provisioning: if thin { Provisioning::Thin } else { Provisioning::Thick } }
    }

    pub fn protection(self, kek: &Kek) -> Protection<'_> {
        if self.encrypted { Protection::Encrypted(kek) } else { Protection::Unencrypted }
    }
}

/// What may be found of the volume.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Where it may be, whole.
    pub paths: Vec<PathBuf>,
    /// It may be nowhere.
    pub absent: bool,
    /// At these places there may be what is left of its deletion.
    pub remains: bool,
    /// Sizes that it may have, in bytes.
    pub sizes: Vec<u64>,
}

/// A recorded life.
pub struct History {
    pub fs: SimFs,
    pub sort: Sort,
    pub log: Log,
    /// From each of these moments on, this is allowed.
    pub allowed: Vec<(usize, Allowed)>,
    /// What was known at the start.
    pub first: Oracle,
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
    path: PathBuf,
    size_bytes: u64,
    log: Log,
    allowed: Vec<(usize, Allowed)>,
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
        fs.record();
        let first = Oracle::new(size_bytes);
        let mut life = Life {
            bench,
            storage,
            rule,
            trouble,
            random,
            sort,
            path: PathBuf::from("/ds/vm1"),
            size_bytes,
            log: Log { oracle: first.clone(), ..Log::default() },
            allowed: vec![(0, Allowed { absent: true, ..Allowed::default() })],
            open: None,
            destager: None,
            guest: Guest::new(&bench.memory, 0),
            errors: Vec::new(),
            wrong: Vec::new(),
            fs,
        };
        life.create();
        for _ in 0..steps {
            life.step();
        }
        life.end();
        life.recorded(first)
    }

    /// The life goes on after a power cut, for so many steps.
    pub fn after(bench: &Bench, fs: SimFs, path: &Path, sort: Sort, seed: u64, steps: usize) -> Self {
        fs.record();
        let volume = open_on(&fs, path, &options(sort.protection(&bench.kek))).unwrap();
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let stages = Stages::over(volume);
        let first = Oracle::of(&read_all(bench, &fs, seed, &*stages.top).unwrap());
        drop(stages);
        let settled = Allowed { paths: vec![path.to_owned()], sizes: vec![size_bytes], ..Allowed::default() };
        let mut life = Life {
            bench,
            storage: Box::new(fs.clone()),
            rule: None,
            trouble: Trouble::default(),
            random: StdRng::seed_from_u64(seed),
            sort,
            path: path.to_owned(),
            size_bytes,
            log: Log { oracle: first.clone(), ..Log::default() },
            allowed: vec![(0, settled)],
            open: None,
            destager: None,
            // Its contents differ from those of before.
            guest: Guest::new(&bench.memory, 1 << 20),
            errors: Vec::new(),
            wrong: Vec::new(),
            fs,
        };
        for _ in 0..steps {
            life.step();
        }
        life.end();
        life.recorded(first)
    }
}

impl Life<'_> {
    fn recorded(self, first: Oracle) -> History {
        let Life { fs, sort, log, allowed, errors, wrong, .. } = self;
        History { fs, sort, log, allowed, first, errors, wrong }
    }

    fn moment(&self) -> usize {
        self.fs.moments() - 1
    }

    fn allow(&mut self, allowed: Allowed) {
        let moment = self.moment();
        self.allowed.push((moment, allowed));
    }

    fn settled(&self) -> Allowed {
        Allowed { paths: vec![self.path.clone()], sizes: vec![self.size_bytes], ..Allowed::default() }
    }

    fn create(&mut self) {
        self.allow(Allowed { absent: true, ..self.settled() });
        let size = VolumeSize::new(self.size_bytes).unwrap();
        let protection = self.sort.protection(&self.bench.kek);
        let (provisioning, log_bytes) = (self.sort.provisioning, Some(LOG_BYTES_MIN));
        let options = CreateOptions { size, provisioning, protection, log_bytes, integrity: false };
        create_on(&*self.storage, &self.path, &options).unwrap();
        let taken = describe_on(&*self.storage, &self.path).unwrap().allocated_bytes;
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
        let volume = open_on(&*self.storage, &self.path, &options(protection)).unwrap();
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
            Some(rule) => Rc::new(Broken::reactor(reactor, rule, whose)),
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
            self.guest.submit(&mut self.log, moment, &mut self.random);
        } else {
            let queue = self.random.random_range(0..self.guest.queues.len());
            self.guest.kick(queue);
            let fs = self.fs.clone();
            fs.set_faults(self.trouble.faults);
            self.guest.poll(queue, &mut self.log, || fs.moments() - 1);
            fs.set_faults(Faults::default());
        }
    }

    fn drain(&mut self) {
        while self.guest.in_flight() > 0 {
            for queue in 0..self.guest.queues.len() {
                self.guest.kick(queue);
                let fs = self.fs.clone();
                self.guest.poll(queue, &mut self.log, move || fs.moments() - 1);
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
        self.open = None;
    }

    fn rename(&mut self) {
        let from = self.path.clone();
        let to = Path::new("/ds").join(if from.ends_with("vm1") { "vm2" } else { "vm1" });
        self.allow(Allowed { paths: vec![from.clone(), to.clone()], ..self.settled() });
        rename_on(&*self.storage, &from, &to).unwrap();
        self.path = to;
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
        self.log.add(moment, Event::Resized { blocks: to.div_ceil(BLOCK_BYTES) as usize });
        self.allow(self.settled());
    }

    fn end(&mut self) {
        self.close();
        self.fs.set_capacity(None);
        if self.random.random() {
            self.allow(Allowed { absent: true, remains: true, ..self.settled() });
            delete_on(&*self.storage, &self.path, Duration::ZERO).unwrap();
            self.allow(Allowed { absent: true, ..Allowed::default() });
        }
    }
}
