//! The life of a volume on a simulated file system, recorded moment by moment.
//!
//! It is created, written, grown while in use, closed and reopened, renamed, and possibly deleted
//! at the end. At every moment its possible names, sizes and contents are known.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_io::{Disk, IoError, RangeLocks, Reactor, Thread};
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES, VolumeSize};
use strongroom_worker::layers::{Ciphers, PlainBlocks, plain_blocks_over};

use super::broken_queue::Whose;
use super::guest::Guest;
use super::image::read_all;
use super::knowledge::{Account, Allowed, Bench, NAMES, Sort};
use super::mutations::{Mutation, Rule};
use super::oracle::{Event, Oracle, RequestId};

/// A request that no guest makes.
const NOBODYS: RequestId = RequestId::MAX;

pub const DATASTORE: &str = "/ds";

/// More layers show nothing that these do not.
const LAYERS_MAX: usize = 5;
/// A life begins with fewer than this many layers on the first, each added after this many steps.
const LAYERS_AT_START_MAX: usize = 3;
const STEPS_PER_LAYER: usize = 40;

/// A recorded life.
pub struct History {
    pub fs: SimFs,
    pub sort: Sort,
    pub account: Account,
    /// Spans during which a layer was being added.
    pub additions: Vec<RangeInclusive<usize>>,
    /// Spans of changes of names, sizes or superblocks: creation, closing, renaming, growth.
    pub changes: Vec<RangeInclusive<usize>>,
    /// The moment by which a successor had first opened it.
    pub opened: usize,
    /// The errors of requests.
    pub errors: Vec<IoError>,
    /// Successful reads with wrong data.
    pub wrong: Vec<String>,
    /// The number of new top layers on the volume in use.
    pub changes_over: usize,
}

/// Faults during a volume's use, but not during its creation or opening.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    pub faults: Faults,
    /// Room for this percentage of the volume.
    pub room_percent: Option<u64>,
}

/// The path of a volume of this name.
pub fn path(name: &str) -> PathBuf {
    Path::new(DATASTORE).join(name)
}

pub fn options(protection: Protection<'_>) -> OpenOptions<'_> {
    let lock_wait = Duration::ZERO;
    OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 }
}

/// The stages over an open volume, kept separately so that it can grow while in use.
struct Stages {
    volume: OpenVolume,
    plain: PlainBlocks,
    top: Arc<BlocksizeDisk>,
    /// The layer below the top, if it is not complete.
    closing: Option<FileDisk>,
}

impl Stages {
    fn over(mut volume: OpenVolume) -> Self {
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let below = volume.lower.first().map(|layer| FileDisk::clone(&layer.disk));
        let closing = below.filter(|disk| !disk.limits().read_only);
        let plain = plain_blocks_over(Arc::clone(&volume.disk) as _, &mut volume).unwrap();
        let top = blocksize(&plain, size_bytes);
        Self { top, plain, volume, closing }
    }

    /// Goes on with a new top, over the same stages of the other layers.
    fn change_top(&mut self, plain: PlainBlocks) {
        let former = std::mem::replace(&mut self.volume.disk, Arc::new(plain.top().clone()));
        self.closing = Some(FileDisk::clone(&former));
        self.top = blocksize(&plain, self.volume.descriptor().size_bytes.bytes());
        self.plain = plain;
    }
}

fn blocksize(plain: &PlainBlocks, size_bytes: u64) -> Arc<BlocksizeDisk> {
    let disk = Arc::clone(&plain.disk);
    Arc::new(BlocksizeDisk::new(disk, size_bytes, 1, RangeLocks::new()).unwrap())
}

struct Life<'a> {
    bench: &'a Bench,
    fs: SimFs,
    storage: Box<dyn Storage>,
    mutation: Option<Mutation>,
    trouble: Trouble,
    random: StdRng,
    sort: Sort,
    name: &'static str,
    size_bytes: u64,
    layers: usize,
    account: Account,
    additions: Vec<RangeInclusive<usize>>,
    changes: Vec<RangeInclusive<usize>>,
    opened: usize,
    open: Option<Stages>,
    /// Empties the log of an open volume that has one.
    destager: Option<Destager>,
    /// Empties the log of the layer below the top, if that is not complete.
    lower_destager: Option<Destager>,
    guest: Guest,
    errors: Vec<IoError>,
    wrong: Vec<String>,
    /// The number of new top layers on the volume in use.
    changes_over: usize,
}

impl History {
    /// A life of this many steps. A broken rule applies to the whole life.
    pub fn of(bench: &Bench, seed: u64, steps: usize, rule: Option<Rule>) -> Self {
        // To be forgotten, a failure must happen first.
        let faults = match rule {
            Some(Rule::StickyFailureForgotten) => Faults { sync_error_one_in: 8, ..Faults::default() },
            _ => Faults::default(),
        };
        Self::with(bench, seed, steps, rule, Trouble { faults, room_percent: None })
    }

    /// A life with faults, in which the volume keeps its size and its name.
    pub fn with(bench: &Bench, seed: u64, steps: usize, rule: Option<Rule>, trouble: Trouble) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = SimFs::new(seed);
        let sort = Sort::draw(&mut random);
        let blocks = random.random_range(8..40);
        let size_bytes = blocks * BLOCK_BYTES + random.random_range(0..8) * SECTOR_BYTES;
        let mutation = rule.map(Mutation::new);
        let storage: Box<dyn Storage> = match &mutation {
            Some(mutation) => mutation.storage(fs.clone()),
            None => Box::new(fs.clone()),
        };
        // A thick volume has no log: it needs a file system that makes first blocks whole, as the
        // supported ones do.
        fs.set_fills_whole(sort.provisioning == Provisioning::Thick || random.random());
        fs.set_skips_overlapping_syncs(random.random_ratio(1, 3) || rule == Some(Rule::SyncsSideBySide));
        fs.record();
        let mut life = Life {
            bench,
            storage,
            mutation,
            trouble,
            random,
            sort,
            name: NAMES[0],
            size_bytes,
            layers: 1,
            account: Account::new(Oracle::new(size_bytes), Allowed::absent()),
            additions: Vec::new(),
            changes: Vec::new(),
            opened: 0,
            open: None,
            destager: None,
            lower_destager: None,
            guest: Guest::new(&bench.memory, 0),
            errors: Vec::new(),
            wrong: Vec::new(),
            changes_over: 0,
            fs,
        };
        life.create();
        life.make_room();
        life.lived(steps)
    }

    /// Continues a life after a power cut, for this many steps.
    pub fn after(bench: &Bench, fs: SimFs, name: &'static str, sort: Sort, seed: u64, steps: usize) -> Self {
        let cut = |content: &[u8], size_bytes| {
            Ok(Account::new(Oracle::of(content), Allowed::settled(name, size_bytes)))
        };
        let life = Life::of_successor(bench, fs, name, sort, seed, None, cut);
        life.unwrap().lived(steps)
    }

    /// Continues a life after the volume's process was killed, for this many steps. Until the
    /// successor has opened the volume, everything `allowed` before may be found after a power cut.
    /// An error states the problem it found.
    pub fn after_kill(
        bench: &Bench,
        fs: SimFs,
        name: &'static str,
        oracle: &Oracle,
        allowed: &Allowed,
        successor: Successor,
    ) -> Result<Self, String> {
        let Successor { sort, seed, steps, rule } = successor;
        let (mut oracle, allowed) = (oracle.clone(), allowed.clone());
        let killed = |content: &[u8], _| match oracle.killed(content) {
            Ok(()) => Ok(Account::new(oracle, allowed)),
            Err(sector) => {
                let shown = &content[sector * SECTOR_BYTES as usize..][..8];
                let allowed = oracle.describe(sector);
                Err(format!("the successor finds {shown:02x?} in sector {sector}; allowed: {allowed}"))
            }
        };
        let mut life = Life::of_successor(bench, fs, name, sort, seed, rule.map(Mutation::new), killed)?;
        life.allow(life.settled());
        Ok(life.lived(steps))
    }
}

/// The successor on a volume.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    pub sort: Sort,
    pub seed: u64,
    pub steps: usize,
    /// The rule it breaks.
    pub rule: Option<Rule>,
}

impl<'a> Life<'a> {
    /// Opens an existing volume as a successor, and derives the knowledge from its content.
    fn of_successor(
        bench: &'a Bench,
        fs: SimFs,
        name: &'static str,
        sort: Sort,
        seed: u64,
        mutation: Option<Mutation>,
        account: impl FnOnce(&[u8], u64) -> Result<Account, String>,
    ) -> Result<Self, String> {
        fs.record();
        let storage: Box<dyn Storage> = match &mutation {
            Some(mutation) => mutation.storage(fs.clone()),
            None => Box::new(fs.clone()),
        };
        let opening = mutation.as_ref().map(Mutation::opening);
        let volume = open_on(&*storage, &path(name), &options(sort.protection(&bench.kek)))
            .map_err(|error| format!("it does not open: {error}"))?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let stages = Stages::over(volume);
        drop(opening);
        let opened = fs.moments() - 1;
        let content = read_all(bench, &fs, seed, &*stages.top).map_err(|error| error.to_string())?;
        drop(stages);
        Ok(Life {
            bench,
            storage,
            mutation,
            trouble: Trouble::default(),
            random: StdRng::seed_from_u64(seed),
            sort,
            name,
            size_bytes,
            layers: 1,
            account: account(&content, size_bytes)?,
            additions: Vec::new(),
            changes: Vec::new(),
            opened,
            open: None,
            destager: None,
            lower_destager: None,
            // Its contents differ from the earlier ones.
            guest: Guest::new(&bench.memory, 1 << 20),
            errors: Vec::new(),
            wrong: Vec::new(),
            changes_over: 0,
            fs,
        })
    }

    fn lived(mut self, steps: usize) -> History {
        for _ in 0..steps {
            self.step();
        }
        self.end();
        let Life { fs, sort, account, additions, changes, opened, errors, wrong, changes_over, .. } = self;
        History { fs, sort, account, additions, changes, opened, errors, wrong, changes_over }
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
        let begun = self.moment();
        self.allow(Allowed { absent: true, ..self.settled() });
        let options = self.bench.create_options(self.sort, self.size_bytes);
        create_on(&*self.storage, &path(self.name), &options).unwrap();
        self.allow(self.settled());
        self.changes.push(begun..=self.moment());
        let trouble = std::mem::take(&mut self.trouble);
        for _ in 0..self.random.random_range(0..LAYERS_AT_START_MAX) {
            for _ in 0..STEPS_PER_LAYER {
                self.use_it();
            }
            self.add_layer();
        }
        self.close();
        self.trouble = trouble;
    }

    /// Limits the room as configured.
    fn make_room(&mut self) {
        let taken = describe_on(&*self.storage, &path(self.name)).unwrap().space.committed_bytes;
        let room = self.trouble.room_percent.map(|percent| taken + self.size_bytes * percent / 100);
        self.fs.set_capacity(room);
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
            4..6 => self.add_layer(),
            6..9 => self.change_over(),
            9..12 => self.change_top(),
            _ => self.use_it(),
        }
    }

    fn open(&mut self) {
        if self.open.is_some() {
            return;
        }
        let protection = self.sort.protection(&self.bench.kek);
        let opening = self.mutation.as_ref().map(Mutation::opening);
        let volume = open_on(&*self.storage, &path(self.name), &options(protection)).unwrap();
        self.layers = volume.descriptor().layers.len();
        if let Some(Mutation { shared, .. }) = &self.mutation {
            *shared.top.lock() = format!("layer-{}", volume.descriptor().top);
        }
        let stages = Stages::over(volume);
        drop(opening);
        self.begin(stages);
    }

    /// Has the guest use the stages, and empties the logs.
    fn begin(&mut self, stages: Stages) {
        let reactors: Vec<_> = (0..3).map(|_| self.reactor(Whose::Guest)).collect();
        let thread = Thread { pool: self.bench.pool.clone(), reactor: self.reactor(Whose::Destager) };
        self.destager = stages.volume.disk.destager(&thread).unwrap();
        if let Some(destager) = &mut self.destager {
            // At once, or only when the log is nearly full.
            let eager = self.random.random();
            destager.set_quiet(if eager { Duration::ZERO } else { Duration::from_secs(86_400) });
        }
        let thread = Thread { pool: self.bench.pool.clone(), reactor: self.reactor(Whose::Destager) };
        let lower = stages.closing.as_ref().and_then(|disk| disk.destager(&thread).unwrap());
        self.lower_destager = lower;
        if let (Some(destager), Some(disk)) = (&mut self.lower_destager, &stages.closing) {
            destager.set_quiet(Duration::ZERO);
            disk.end_destaging(End::Empty);
        }
        self.guest = Guest::new(&self.bench.memory, self.guest.next_request());
        self.guest.attach(&*stages.top, &reactors, &self.bench.pool).unwrap();
        self.open = Some(stages);
    }

    fn reactor(&mut self, whose: Whose) -> Rc<dyn Reactor> {
        let reactor = self.fs.reactor(self.random.random()).unwrap();
        match &self.mutation {
            Some(mutation) => mutation.over(reactor, whose),
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
            // Seldom, so that guests flush what is still on its way to the layer below.
            if let Some(destager) = self.lower_destager.as_mut().filter(|_| self.random.random_ratio(1, 8)) {
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
            // Some requests may wait for room in the log, or for a sync of the layer below.
            for destager in [&mut self.destager, &mut self.lower_destager].into_iter().flatten() {
                destager.poll();
            }
        }
    }

    /// Ends destaging in the given way, or abruptly with `None`.
    fn end_destaging(&mut self, end: Option<End>) {
        let lower_destager = self.lower_destager.take();
        let (Some(mut destager), Some(stages)) = (self.destager.take(), &self.open) else { return };
        let Some(end) = end else { return };
        if let (Some(mut lower), Some(disk)) = (lower_destager, &stages.closing) {
            disk.end_destaging(end);
            while lower.ended().is_none() {
                lower.poll();
            }
        }
        stages.volume.disk.end_destaging(end);
        while destager.ended().is_none() {
            destager.poll();
        }
    }

    fn close(&mut self) {
        let end = match self.random.random_range(0..3) {
            0 => Some(End::Empty),
            1 => Some(End::Now),
            _ => None,
        };
        self.close_with(end);
    }

    fn close_with(&mut self, end: Option<End>) {
        self.drain();
        let begun = self.moment();
        self.guest.queues.clear();
        self.end_destaging(end);
        self.changes.push(begun..=self.moment());
        self.errors.append(&mut self.guest.errors);
        self.wrong.append(&mut self.guest.wrong);
        let has_failed_flush = |stages: Stages| {
            stages.volume.disk.has_failed_flush()
                || stages.closing.is_some_and(|disk| disk.has_failed_flush())
        };
        if self.open.take().is_some_and(has_failed_flush) {
            // The next flush would have failed; the reopened volume does not know that.
            let moment = self.moment();
            self.account.log.add(moment, Event::FlushSubmitted { id: NOBODYS });
            self.account.log.add(moment, Event::FlushEnded { id: NOBODYS, succeeded: false });
        }
    }

    /// Adds a layer, which requires an empty log.
    fn add_layer(&mut self) {
        self.open();
        self.close_with(Some(End::Empty));
        if self.layers >= LAYERS_MAX {
            return;
        }
        let options = AddLayerOptions {
            protection: self.sort.protection(&self.bench.kek),
            log_bytes: Some(LOG_BYTES_MIN),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let set_adding = |is_adding| {
            if let Some(Mutation { shared, .. }) = &self.mutation {
                shared.set_adding(is_adding);
            }
        };
        let begun = self.moment();
        set_adding(true);
        let added = add_layer_on(&*self.storage, &path(self.name), &options);
        set_adding(false);
        match added {
            Ok(_) => self.additions.push(begun..=self.moment()),
            // The tags of the layer below the top are not yet settled.
            Err(DatastoreError::NotClosed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Puts a new top on the volume in use, to which nothing is written yet. Returns the moment
    /// before that.
    fn prepare_top(&mut self) -> Option<usize> {
        self.open();
        if self.layers >= LAYERS_MAX {
            return None;
        }
        let protection = self.sort.protection(&self.bench.kek);
        let begun = self.moment();
        match self.open.as_mut()?.volume.head.prepare_layer(protection, Some(LOG_BYTES_MIN)) {
            Ok(()) => Some(begun),
            Err(DatastoreError::NotClosed { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a new top layer to the volume in use, and continues with a successor, which finds the
    /// layer below in its present state.
    fn change_over(&mut self) {
        let Some(begun) = self.prepare_top() else { return };
        self.additions.push(begun..=self.moment());
        self.changes_over += 1;
        // The previous worker's drain: its writes still go to the layer below.
        let end = self.random.random_bool(0.5).then_some(End::Now);
        self.close_with(end);
        self.open();
    }

    /// Adds a new top layer to the volume in use, and goes on with it in the same process: the
    /// stages of the former top stay as they are, and so does what they have in memory.
    fn change_top(&mut self) {
        let Some(begun) = self.prepare_top() else { return };
        let protection = self.sort.protection(&self.bench.kek);
        let Some(stages) = &mut self.open else { return };
        let (top, deks) = stages.volume.head.prepared_blocks(protection).unwrap();
        let ciphers = if deks.is_empty() { Ciphers::Unencrypted } else { Ciphers::of(deks).unwrap() };
        let plain = stages.plain.with_new_top(top, ciphers).unwrap();
        let top = stages.volume.descriptor().top;
        self.additions.push(begun..=self.moment());
        self.changes_over += 1;
        // Until the freeze, writes go to the former top.
        for _ in 0..self.random.random_range(0..20) {
            self.use_it();
        }
        self.drain();
        self.guest.queues.clear();
        self.errors.append(&mut self.guest.errors);
        self.wrong.append(&mut self.guest.wrong);
        self.end_destaging(Some(End::Now));
        let Some(mut stages) = self.open.take() else { return };
        stages.change_top(plain);
        self.layers = stages.volume.descriptor().layers.len();
        if let Some(Mutation { shared, .. }) = &self.mutation {
            *shared.top.lock() = format!("layer-{top}");
        }
        self.begin(stages);
    }

    fn rename(&mut self) {
        let (from, to) = (self.name, NAMES[usize::from(self.name == NAMES[0])]);
        let begun = self.moment();
        self.allow(Allowed { names: vec![from, to], ..self.settled() });
        rename_on(&*self.storage, &path(from), &path(to)).unwrap();
        self.name = to;
        self.allow(self.settled());
        self.changes.push(begun..=self.moment());
    }

    /// Grows it while requests are in flight.
    fn grow(&mut self) {
        self.open();
        let from = self.size_bytes;
        let to = from + self.random.random_range(1..40) * SECTOR_BYTES;
        if to > 64 * BLOCK_BYTES {
            return;
        }
        let begun = self.moment();
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
        self.changes.push(begun..=moment);
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
