//! The life of a volume on a recorded file system.
//!
//! It is created, written on several queues, grown while in use, closed and reopened, renamed, and
//! possibly deleted at the end. At every moment of the device its possible names, sizes and
//! contents are known. The stages are the product's, from the guest's bytes down to io_uring.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::*;
use strongroom_io::Reactor;
use strongroom_ring::{Lanes, Ring};
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES, VolumeSize};
use strongroom_worker::Destaging;
use strongroom_worker::layers::Ciphers;
use strongroom_worker::stack::Stack;

use super::broken::Rule;
use super::guest::Guest;
use super::knowledge::{Account, Allowed, Bench, NAMES, Sort};
use super::oracle::{Event, Oracle};
use super::recorder::Recorder;

/// Queues of the guest, each with a ring of its own.
const QUEUES: usize = 3;
const RING_DEPTH: usize = 32;
/// Larger volumes take longer to compare and show nothing new.
const BLOCKS_MAX: u64 = 128;
/// The kernel releases a closed file, and its lock, a little later.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// How long a step waits for a completion.
const STEP_WAIT: Duration = Duration::from_millis(2);

/// The directory of volumes in the mounted file system.
pub const DATASTORE: &str = "ds";

/// Some have tags.
fn draw_sort(random: &mut StdRng) -> Sort {
    let sort = Sort::draw(random);
    Sort { integrity: sort.encrypted && random.random_ratio(1, 4), ..sort }
}

/// The history, by moments of the device.
pub struct History {
    pub sort: Sort,
    pub account: Account,
}

/// An open volume: its head, and the stages of a worker.
pub struct OpenStack {
    pub head: VolumeHead,
    pub stack: Stack,
    /// Destages first writes from the log to the layer, on its own thread.
    destaging: Option<(Destaging, Lanes)>,
}

impl OpenStack {
    pub fn open(bench: &Bench, sort: Sort, path: &std::path::Path) -> Result<Self, String> {
        let protection = sort.protection(&bench.kek);
        let options =
            OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation: 0 };
        let (head, layer, deks) = open_apart(path, &options).map_err(|error| error.to_string())?;
        let ciphers = match sort.encrypted {
            true => Ciphers::of(deks).map_err(|error| error.to_string())?,
            false => Ciphers::Unencrypted,
        };
        let stack = Stack::new(layer, ciphers).map_err(|error| error.to_string())?;
        Ok(Self { head, stack, destaging: None })
    }

    pub fn destage(&mut self) {
        let lanes = Lanes::start("destage", 1, RING_DEPTH).unwrap();
        self.destaging = Some((self.stack.destage(&lanes).unwrap(), lanes));
    }

    /// Closes it in order, or with a log that is not empty.
    pub fn close(mut self, end: End) {
        if let Some((destaging, _lanes)) = self.destaging.take() {
            destaging.end(end).unwrap();
        }
        self.stack.close(true);
    }

    pub fn size_bytes(&self) -> u64 {
        self.head.descriptor().size_bytes.bytes()
    }
}

pub struct Life<'a> {
    bench: &'a Bench,
    recorder: &'a Recorder,
    rule: Option<Rule>,
    random: StdRng,
    sort: Sort,
    name: &'static str,
    size_bytes: u64,
    account: Account,
    open: Option<OpenStack>,
    /// One for each queue of the guest, while the volume is open: an idle ring keeps files open.
    rings: Vec<Ring>,
    guest: Guest,
}

impl<'a> Life<'a> {
    /// A life of this many steps from creation on. A broken rule applies to the whole life.
    pub fn of(
        bench: &'a Bench,
        recorder: &'a Recorder,
        seed: u64,
        steps: usize,
        rule: Option<Rule>,
    ) -> History {
        let mut random = StdRng::seed_from_u64(seed);
        let sort = draw_sort(&mut random);
        let size_bytes = random.random_range(8..100) * BLOCK_BYTES + random.random_range(0..8) * SECTOR_BYTES;
        let account = Account::new(Oracle::new(size_bytes), Allowed::absent());
        let mut life = Self::with(bench, recorder, random, sort, NAMES[0], size_bytes, account);
        life.rule = rule;
        life.create();
        life.go_on(steps)
    }

    /// Continues a life after a cut that left this volume, for this many steps.
    pub fn after(
        bench: &'a Bench,
        recorder: &'a Recorder,
        seed: u64,
        steps: usize,
        sort: Sort,
        found: &Found,
    ) -> History {
        let (name, size_bytes) = (found.name, found.content.len() as u64);
        let random = StdRng::seed_from_u64(seed);
        let account = Account::new(Oracle::of(&found.content), Allowed::settled(name, size_bytes));
        let mut life = Self::with(bench, recorder, random, sort, name, size_bytes, account);
        // Its contents differ from the earlier ones.
        life.guest = Guest::new(&bench.memory, 1 << 20);
        life.go_on(steps)
    }

    fn with(
        bench: &'a Bench,
        recorder: &'a Recorder,
        random: StdRng,
        sort: Sort,
        name: &'static str,
        size_bytes: u64,
        account: Account,
    ) -> Self {
        let guest = Guest::new(&bench.memory, 0);
        Self {
            bench,
            recorder,
            rule: None,
            random,
            sort,
            name,
            size_bytes,
            account,
            open: None,
            rings: Vec::new(),
            guest,
        }
    }

    fn go_on(mut self, steps: usize) -> History {
        for _ in 0..steps {
            self.step();
        }
        self.end();
        History { sort: self.sort, account: self.account }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.recorder.path().join(DATASTORE).join(name)
    }

    fn allow(&mut self, allowed: Allowed) {
        self.account.allow(self.recorder.moment(), allowed);
    }

    fn settled(&self) -> Allowed {
        Allowed::settled(self.name, self.size_bytes)
    }

    fn create(&mut self) {
        self.allow(Allowed { absent: true, ..self.settled() });
        create(&self.path(self.name), &self.bench.create_options(self.sort, self.size_bytes)).unwrap();
        self.allow(self.settled());
    }

    fn step(&mut self) {
        match self.random.random_range(0..300) {
            0 => self.close(),
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
        let mut open = OpenStack::open(self.bench, self.sort, &self.path(self.name)).unwrap();
        open.destage();
        self.rings = (0..QUEUES).map(|_| Ring::new(RING_DEPTH).unwrap()).collect();
        let reactors: Vec<Rc<dyn Reactor>> = self.rings.iter().map(|ring| self.reactor(ring)).collect();
        self.guest = Guest::new(&self.bench.memory, self.guest.next_request());
        self.guest.attach(&*open.stack.disk(), &reactors, &self.bench.pool).unwrap();
        self.open = Some(open);
    }

    fn reactor(&self, ring: &Ring) -> Rc<dyn Reactor> {
        match self.rule {
            Some(rule) => rule.over(ring.clone()),
            None => Rc::new(ring.clone()),
        }
    }

    fn use_it(&mut self) {
        self.open();
        if self.random.random_ratio(1, 2) {
            let moment = self.recorder.moment();
            self.guest.submit(&mut self.account.log, moment, &mut self.random);
        } else {
            let queue = self.random.random_range(0..QUEUES);
            let wait = if self.random.random() { STEP_WAIT } else { Duration::ZERO };
            self.turn(queue, wait);
        }
    }

    /// One turn of a queue's loop.
    fn turn(&mut self, queue: usize, wait: Duration) {
        self.guest.kick(queue);
        self.rings[queue].wait(Some(wait)).unwrap();
        let recorder = self.recorder;
        self.guest.poll(queue, &mut self.account.log, || recorder.moment());
    }

    fn close(&mut self) {
        while self.guest.in_flight() > 0 {
            (0..QUEUES).for_each(|queue| self.turn(queue, STEP_WAIT));
        }
        self.guest.queues.clear();
        assert_eq!(self.guest.errors, [], "nothing fails on a device that does not");
        assert_eq!(self.guest.wrong, [""; 0], "reads are right");
        let end = if self.random.random() { End::Empty } else { End::Now };
        if let Some(open) = self.open.take() {
            open.close(end);
        }
        self.rings.clear();
    }

    fn rename(&mut self) {
        let (from, to) = (self.name, NAMES[usize::from(self.name == NAMES[0])]);
        self.allow(Allowed { names: vec![from, to], ..self.settled() });
        rename(&self.path(from), &self.path(to)).unwrap();
        self.name = to;
        self.allow(self.settled());
    }

    /// Grows it while requests are in flight.
    fn grow(&mut self) {
        self.open();
        let from = self.size_bytes;
        let to = from + self.random.random_range(1..100) * SECTOR_BYTES;
        if to > BLOCKS_MAX * BLOCK_BYTES {
            return;
        }
        self.allow(Allowed { sizes: vec![from, to], ..self.settled() });
        let protection = self.sort.protection(&self.bench.kek);
        let Some(open) = &mut self.open else { return };
        let size = VolumeSize::new(to).unwrap();
        open.head.grow(size, protection).unwrap();
        open.stack.grow(size).unwrap();
        self.size_bytes = to;
        self.guest.size_bytes = to;
        let blocks = to.div_ceil(BLOCK_BYTES) as usize;
        self.account.log.add(self.recorder.moment(), Event::Resized { blocks });
        self.allow(self.settled());
    }

    fn end(&mut self) {
        self.close();
        if self.random.random_ratio(1, 3) {
            self.allow(Allowed { absent: true, remains: true, ..self.settled() });
            delete(&self.path(self.name), LOCK_WAIT).unwrap();
            self.allow(Allowed::absent());
        }
    }
}

/// A volume found after a cut.
pub struct Found {
    pub name: &'static str,
    pub content: Vec<u8>,
}
